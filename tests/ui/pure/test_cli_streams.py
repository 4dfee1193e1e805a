"""What is printed where the encoding of the terminal has few letters."""

from __future__ import annotations

import codecs

import pytest

from shoal.ui.cli.streams import print_anything


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("3 s (0\u20137) left", b"3 s (0-7) left"),
        ("\u22125 µs", b"-5 us"),
        ("a · b…", b"a , b."),
        ("é\udcff", b"?\xff"),
        ("plain", b"plain"),
    ],
)
def test_what_an_encoding_does_not_have_becomes_something_simpler(text: str, printed: bytes) -> None:
    print_anything()
    assert codecs.encode(text, "ascii", "shoal-lenient") == printed

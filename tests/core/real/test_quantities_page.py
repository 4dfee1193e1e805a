"""The page writes durations, sizes and shares as the terminal does."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from random import Random

from shoal.core.quantities import count, show_bytes, show_estimate, show_number, show_progress, show_seconds, show_share
from support.browser import browser
from support.web import needs_browser

FORMS: dict[str, tuple[Callable[[float], str], float]] = {
    "seconds": (show_seconds, 1e20),
    "estimate": (show_estimate, 1e12),
    "bytes": (show_bytes, 1e21),
    "percent": (show_share, 1e12),
    "number": (show_number, 1e12),
}
"""The function, and below which values both write all digits: beyond them whole numbers are no longer exact."""
BORDERS = (
    1e-6,
    1e-3,
    0.0005,
    0.005,
    0.0995,
    0.25,
    0.5,
    0.95,
    0.985,
    0.995,
    0.9995,
    1,
    2.5,
    9.95,
    59.95,
    60,
    99.95,
    999.5,
)
SCALES = (1e-6, 1e-3, 1, 60, 3600, 86400, 31557600, *(1024.0**power for power in range(1, 7)))


def samples() -> list[float]:
    """Values of all magnitudes, and those at and beside the borders between units, where halves are rounded."""
    random = Random(19)
    found = [0.0, *(border * scale for border in BORDERS for scale in SCALES)]
    found += [value * (1 + by) for value in found for by in (-1e-4, 1e-15, 1e-4)]
    found += [10 ** random.uniform(-9, 18) for _ in range(500)]
    found += [float(number) for number in range(130)]
    return found + [-value for value in found[::10]]


@needs_browser
def test_page_and_terminal_write_the_same(tmp_path: Path) -> None:
    script = (resources.files("shoal.ui.web") / "assets" / "quantities.js").read_text("utf-8")
    pairs = [[done, total] for total in (0, 1, 3, 7, 1000, 100_001) for done in range(min(total, 8) + 1)]
    nouns = [(number, noun) for number in (0, 1, 2, 12345) for noun in ("task", "category")]
    with browser(tmp_path / "profile") as page:
        page.evaluate(script + "\nglobalThis.Q = Quantities; null")
        for name, (form, most) in FORMS.items():
            values = [value for value in samples() if abs(value) < most]
            said = page.evaluate(f"{json.dumps(values)}.map((n) => Q.{name}(n))")
            both = [(value, text, form(value)) for value, text in zip(values, said, strict=True)]
            assert [each for each in both if each[1] != each[2]] == [], name
        assert page.evaluate(f"{pairs}.map((two) => Q.shareOf(...two))") == [show_progress(*pair) for pair in pairs]
        said = page.evaluate(f"{json.dumps(nouns)}.map((two) => Q.many(...two))")
        assert said == [count(number, noun) for number, noun in nouns]
        assert page.evaluate("[Q.seconds(null), Q.percent(undefined)]") == ["\N{EN DASH}"] * 2

"""The page of a report: one file with everything in it, that asks for nothing from anywhere.

Data is put in as JSON in which nothing can end the element it stands in; the script of the page makes text of it, never
markup. A policy in the head of the page forbids everything else, should that ever fail.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html import escape
from importlib import resources
from typing import Any

import msgspec

STYLES, SCRIPTS = ("page.css",), ("quantities.js", "plots.js", "report.js")


def asset(name: str) -> str:
    """The text of a file that draws."""
    return (resources.files("shoal.ui.web") / "assets" / name).read_text("utf-8")


def embedded(data: Any) -> str:
    """JSON that may stand in a script element, whatever strings are in it."""
    text = msgspec.json.encode(data).decode("utf-8")
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def page(title: str, data: Any) -> str:
    """The whole file; `data` has the list of `runs`."""
    style = "\n".join(map(asset, STYLES))
    script = "\n".join(map(asset, SCRIPTS))
    policy = f"default-src 'none'; style-src {_hashed(style)}; script-src {_hashed(script)}; img-src data:"
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#content">Skip to the report</a>\n'
        '<header id="head"></header>\n<main id="content"></main>\n'
        "<noscript><p>This report needs JavaScript, which is part of this file. Please enable it.</p></noscript>\n"
        f'<script type="application/json" id="data">{embedded(data)}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _hashed(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"

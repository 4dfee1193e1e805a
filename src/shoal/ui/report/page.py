"""The HTML file of a report: self-contained, without any request to another address.

The data is embedded as JSON that cannot end its script element. The script inserts it as text, never as markup. As a
second line of defence, a content security policy in the page forbids everything else.
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
    """Content of a script or style file."""
    return (resources.files("shoal.ui.web") / "assets" / name).read_text("utf-8")


def embedded(data: Any) -> str:
    """JSON that is safe inside a script element, whatever strings it contains."""
    text = msgspec.json.encode(data).decode("utf-8")
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def page(title: str, data: Any) -> str:
    """The whole file; `data` contains the list of `runs`."""
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

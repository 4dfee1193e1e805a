"""The style sheet of cards: it travels with each of them, so that a saved notebook needs nothing else.

Ground, ink and lines are those of Jupyter's theme where there is one. Elsewhere the reader's wish for light or dark
counts. Where a viewer takes style sheets out, what is left is a heading, lines of text and tables.
"""

from __future__ import annotations

_LIGHT = """--sh-ground:var(--jp-layout-color0,#fff);--sh-ink:var(--jp-content-font-color0,#1d2733);
--sh-soft:#5b6876;--sh-line:#dfe4ea;--sh-wash:#f4f6f8;--sh-idle:#e3e8ed;
--sh-good:#2f8f4e;--sh-bad:#c8372d;--sh-live:#1f5f99;--sh-on:#fff;color-scheme:light"""
_DARK = """--sh-ground:var(--jp-layout-color0,#12171d);--sh-ink:var(--jp-content-font-color0,#e4e9ee);
--sh-soft:#9aa7b4;--sh-line:#36414d;--sh-wash:#222b34;--sh-idle:#333e49;
--sh-good:#58bb78;--sh-bad:#f0705f;--sh-live:#6fb1ea;--sh-on:#12171d;color-scheme:dark"""
_LIGHT_PLACES = ('[data-jp-theme-light="true"] .shoal', ".vscode-light .shoal", '[data-theme="light"] .shoal')
_DARK_PLACES = (
    *('[data-jp-theme-light="false"] .shoal', ".vscode-dark .shoal", '[data-theme="dark"] .shoal'),
    '[theme="dark"] .shoal',
)
_RULES = """
.shoal{container-type:inline-size;box-sizing:border-box;max-width:880px;margin:2px 0;padding:14px 18px 12px;
background:var(--sh-ground);color:var(--sh-ink);border:1px solid var(--sh-line);border-radius:10px;
font:13px/1.45 var(--jp-ui-font-family,system-ui,-apple-system,"Segoe UI","Noto Sans","Liberation Sans",sans-serif)}
.shoal.shoal-one{padding:5px 12px;width:fit-content;max-width:100%;container-type:normal;overflow-wrap:anywhere}
.shoal *{box-sizing:border-box}
.shoal .shoal-sep{display:none}
.shoal .shoal-head{display:flex;flex-wrap:wrap;align-items:baseline;gap:2px 10px;margin:0 0 10px}
.shoal .shoal-title{font-size:17px;font-weight:650;overflow-wrap:anywhere}
.shoal .shoal-chip{font-size:12px;font-weight:650;padding:1px 9px;border-radius:10px;color:var(--sh-on);
background:var(--sh-soft)}
.shoal .shoal-chip.good{background:var(--sh-good)}
.shoal .shoal-chip.bad{background:var(--sh-bad)}
.shoal .shoal-chip.live{background:var(--sh-live)}
.shoal .shoal-facts{margin-left:auto;color:var(--sh-soft);overflow-wrap:anywhere}
.shoal .shoal-bar{display:flex;height:12px;border-radius:6px;overflow:hidden;background:var(--sh-idle);
margin:0 0 7px}
.shoal .shoal-bar i{display:block;height:100%}
.shoal .shoal-bar .good{background:var(--sh-good)}
.shoal .shoal-bar .bad{background:var(--sh-bad)}
.shoal .shoal-bar .live{background:repeating-linear-gradient(135deg,var(--sh-live) 0 6px,color-mix(in srgb,
var(--sh-live) 62%,var(--sh-ground)) 6px 12px)}
.shoal .shoal-line{display:flex;flex-wrap:wrap;gap:1px 14px;font-variant-numeric:tabular-nums}
.shoal .shoal-line b{font-weight:650}
.shoal .shoal-line .push{margin-left:auto;color:var(--sh-soft)}
.shoal .shoal-dot{display:inline-block;width:9px;height:9px;border-radius:50%;margin-right:5px;
background:var(--sh-idle)}
.shoal .shoal-dot.good{background:var(--sh-good)}
.shoal .shoal-dot.bad{background:var(--sh-bad)}
.shoal .shoal-dot.live{background:var(--sh-live)}
.shoal .shoal-dot.idle{box-shadow:inset 0 0 0 1px var(--sh-soft)}
.shoal .shoal-part{margin:14px 0 0}
.shoal .shoal-part>.shoal-line{margin-bottom:4px}
.shoal .shoal-name{font-weight:650}
.shoal svg.shoal-area{display:block;width:100%;height:84px;max-width:none;background:var(--sh-wash);
border-bottom:1px solid var(--sh-soft)}
.shoal .shoal-limit{stroke:var(--sh-ink);opacity:.65}
.shoal .shoal-lost{fill:var(--sh-bad)}
.shoal .shoal-axis{display:flex;justify-content:space-between;font-size:12px;color:var(--sh-soft);margin:1px 0 2px}
.shoal .shoal-soft{color:var(--sh-soft)}
.shoal .shoal-key{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:6px}
.shoal .shoal-key.lost{background:var(--sh-bad)}
.shoal .shoal-scroll{overflow-x:auto}
.shoal table.shoal-table.shoal-table{width:100%;margin:0;border-collapse:collapse;border:0;font-size:13px;
table-layout:auto;font-variant-numeric:tabular-nums;color:inherit;background:none}
.shoal .shoal-table.shoal-table tr:nth-child(n){background:none}
.shoal .shoal-table.shoal-table tr th,.shoal .shoal-table.shoal-table tr td{padding:4px 0 4px 14px;border:0;
border-bottom:1px solid var(--sh-line);text-align:right;white-space:nowrap;font-weight:400;color:inherit;
background:none;vertical-align:middle;max-width:none}
.shoal .shoal-table.shoal-table thead th{color:var(--sh-soft)}
.shoal .shoal-table.shoal-table tbody tr:last-child th,.shoal .shoal-table.shoal-table tbody tr:last-child td{
border-bottom:0}
.shoal .shoal-table.shoal-table tr th:first-child{text-align:left;padding-left:0;white-space:normal;
overflow-wrap:anywhere;min-width:90px}
.shoal .shoal-table.shoal-table .bad{color:var(--sh-bad);font-weight:650}
.shoal .shoal-table.shoal-table td.shoal-text{text-align:left;padding-left:0;width:100%;white-space:normal;
overflow-wrap:anywhere}
.shoal .shoal-table.shoal-table td.shoal-meter{width:18%;min-width:60px}
.shoal .shoal-meter span{display:flex;height:8px;border-radius:4px;overflow:hidden;background:var(--sh-idle)}
.shoal .shoal-meter i{display:block;height:100%}
.shoal .shoal-meter .good{background:var(--sh-good)}
.shoal .shoal-meter .bad{background:var(--sh-bad)}
.shoal .shoal-meter .live{background:var(--sh-live)}
@container (max-width:560px){
.shoal .shoal-facts,.shoal .shoal-line .push{margin-left:0;width:100%}
.shoal .shoal-table.shoal-table tr .shoal-wide{display:none}
.shoal .shoal-table.shoal-table tr th,.shoal .shoal-table.shoal-table tr td{padding-left:10px}
.shoal .shoal-table.shoal-table tr th:first-child,.shoal .shoal-table.shoal-table td.shoal-text{padding-left:0}}
"""
SHEET = (
    f".shoal{{{_LIGHT}}}@media (prefers-color-scheme:dark){{.shoal{{{_DARK}}}}}"
    f"{','.join(_LIGHT_PLACES)}{{{_LIGHT}}}{','.join(_DARK_PLACES)}{{{_DARK}}}{_RULES}"
).replace("\n", "")

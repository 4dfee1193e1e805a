"""All of one set of files compared with all of another, as a rules file: for hosts that share no files."""

from __future__ import annotations


def all_pairs_flow(side: int, file_bytes: int, make_seconds: float, pair_seconds: float) -> str:
    """The target `whole` has the bytes that each pair has read; pairs begin when all files are made."""
    return f"""from shoal import rule

made = []
for i in range({side}):
    for name in (f"a{{i}}", f"b{{i}}"):
        run = f"sleep {make_seconds}; head -c {file_bytes} /dev/zero > {{name}}; touch {{name}}.ok"
        rule([name, f"{{name}}.ok"], run=run)
        made.append(f"{{name}}.ok")
rule("made", made, run="touch made")
pairs = []
for i in range({side}):
    for j in range({side}):
        name = f"p{{i}}_{{j}}"
        rule(name, [f"a{{i}}", f"b{{j}}", "made"], run=f"sleep {pair_seconds}; cat a{{i}} b{{j}} | wc -c > {{name}}")
        pairs.append(name)
rule("whole", pairs, run="cat p* > whole")
"""

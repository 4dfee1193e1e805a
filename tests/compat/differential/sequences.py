"""Several runs one after the other, with something done in between."""

from __future__ import annotations

from compat.differential.case import Case

IN = {"in": "1\n"}
CHAIN = "b: in\n\tcat in in > b\nc: b\n\tcat b b > c\nd: c\n\tcat c c > d\n"
RULE = "out: in\n\tcat in > out\n"

CASES = [
    # A second run.
    Case("nothing is done twice", CHAIN, "run w.mf; run w.mf", "0 0", files=IN),
    Case("a last file is deleted", CHAIN, "run w.mf; rm d; run w.mf", "0 0", files=IN),
    Case("a middle file is deleted", CHAIN, "run w.mf; rm c; run w.mf", "0 0", files=IN, says_the_same=False),
    Case("all files are deleted", CHAIN, "run w.mf; rm b c d; run w.mf", "0 0", files=IN),
    Case(
        "a made file is changed",
        CHAIN,
        "run w.mf; echo new > c; touch -d '+5 sec' c; run w.mf",
        "0 0",
        files=IN,
        says_the_same=False,
    ),
    Case("a source is deleted", CHAIN, "run w.mf; rm in; run w.mf", "0 1", files=IN),
    Case("files of earlier times are made anew", CHAIN, "echo old > b; echo old > d; run w.mf", files=IN),
    Case("the log is deleted", CHAIN, "run w.mf; rm w.mf.makeflowlog; run w.mf", "0 0", files=IN),
    Case("two logs are two runs", CHAIN, "run -l one.makeflowlog w.mf; run -l two.makeflowlog w.mf", "0 0", files=IN),
    Case("two workflows make the same files", CHAIN, "cp w.mf v.mf; run w.mf; run v.mf", "0 0", files=IN),
    Case("the log is damaged", CHAIN, "run w.mf; echo junk >> w.mf.makeflowlog; run w.mf", "0 1", files=IN),
    Case(
        "a source is changed",
        CHAIN,
        "run w.mf; echo new > in; run w.mf",
        "0 0",
        why="it does not notice",
        files=IN,
        differs={"b": "new\nnew\n", "c": "new\nnew\nnew\nnew\n", "d": "new\nnew\nnew\nnew\nnew\nnew\nnew\nnew\n"},
        says_the_same=False,
    ),
    # An edited workflow.
    Case(
        "a rule is added at the end",
        CHAIN,
        "run w.mf; printf 'e: d\\n\\tcat d d > e\\n' >> w.mf; run w.mf",
        "0 0",
        files=IN,
    ),
    Case(
        "a rule is added at the front",
        CHAIN,
        "run w.mf; printf 'z:\\n\\techo z > z\\n' | cat - w.mf > new; mv new w.mf; run w.mf",
        "0 0",
        why="it knows rules by their number",
        files=IN,
        differs={"z": "z\n"},
        says_the_same=False,
    ),
    Case(
        "a command is changed",
        CHAIN,
        "run w.mf; sed -i 's/cat c c/cat c/' w.mf; run w.mf",
        "0 0",
        why="it knows rules by their number",
        files=IN,
        differs={"d": "1\n1\n1\n1\n"},
        says_the_same=False,
    ),
    # After failures.
    Case(
        "what failed is done by the next run",
        ("ok:\n\techo x >> count; echo 1 > ok\nbad: ok\n\ttest -e flag && echo 1 > bad\nend: bad\n\tcp bad end\n"),
        "run -r 0 w.mf; touch flag; run w.mf",
        "0 0",
        ours="1 0",
        why="it calls a failed run a success",
    ),
    Case("a source that was missing is there in the end", RULE, "run w.mf; echo 1 > in; run w.mf", "1 0"),
    # Cleaning.
    Case(
        "everything is cleaned",
        CHAIN,
        "run w.mf; run -c w.mf; ls -a > names; sed -i '/^.shoal$/d' names",
        "0 0",
        files=IN,
    ),
    Case("everything is cleaned and made again", CHAIN, "run w.mf; run --clean w.mf; run w.mf", "0 0 0", files=IN),
    Case("intermediate files are cleaned", CHAIN, "run w.mf; run --clean=intermediates w.mf", "0 0", files=IN),
    Case(
        "intermediate files are cleaned and not made again",
        CHAIN,
        "run w.mf; run -cintermediates w.mf; run w.mf",
        "0 0 0",
        files=IN,
    ),
    Case("outputs are cleaned", CHAIN, "run w.mf; run --clean=outputs w.mf", "0 0", files=IN),
    Case(
        "outputs are cleaned and made again",
        CHAIN,
        "run w.mf; run -coutputs w.mf; run w.mf",
        "0 0 0",
        why="it leaves the target unmade",
        files=IN,
        differs={"d": "1\n1\n1\n1\n1\n1\n1\n1\n"},
        says_the_same=False,
    ),
    Case(
        "declared outputs are cleaned", "MAKEFLOW_OUTPUTS=b\n" + CHAIN, "run w.mf; run -coutputs w.mf", "0 0", files=IN
    ),
    Case("the cache is cleaned", CHAIN, "run w.mf; run --clean=cache w.mf", "0 0", files=IN),
    Case("an unknown kind of cleaning", CHAIN, "run w.mf; run --clean=some w.mf", "0 1", files=IN),
    Case("nothing to clean", CHAIN, "run -c w.mf", files=IN),
    Case("cleaning by names although nothing was run", CHAIN, "echo old > b; run -c w.mf", files=IN),
    Case(
        "outputs of a wrapper are cleaned",
        CHAIN,
        "run --wrapper '{}; echo x > o.%%' --wrapper-output o.%% w.mf; run -c w.mf",
        "0 0",
        files=IN,
    ),
    Case(
        "what rules of earlier times made is cleaned",
        CHAIN,
        "run w.mf; printf 'x: in\\n\\tcp in x\\n' > w.mf; run -c w.mf",
        "0 0",
        files=IN,
    ),
    Case(
        "what failed rules left is cleaned",
        "a:\n\techo 1 > a; exit 3\nc:\n\techo 1 > c\n",
        "run -r 0 w.mf; run -c w.mf",
        "0 0",
        ours="1 0",
        why="it calls a failed run a success",
    ),
    Case(
        "sub-workflows are cleaned",
        "b: a\n\tMAKEFLOW child.mf\n",
        "run w.mf; run -c w.mf; ls > names",
        "0 0",
        files={"a": "1\n", "child.mf": "b: a\n\tcat a > x; cat a > b\n"},
        says_the_same=False,
    ),
    Case("a directory is cleaned", "d: in\n\tmkdir d; cp in d/x\n", "run w.mf; run -c w.mf", "0 0", files=IN),
    # Collected files in later runs.
    Case(
        "collected files are not made again",
        CHAIN,
        "run -g ref_cnt w.mf; run -g ref_cnt w.mf; run w.mf",
        "0 0 0",
        files=IN,
    ),
    Case(
        "collected files are cleaned and made again",
        CHAIN,
        "run -g ref_cnt w.mf; run -c w.mf; run w.mf",
        "0 0 0",
        files=IN,
    ),
    Case(
        "an output is deleted whose sources were collected",
        CHAIN,
        "run -g ref_cnt w.mf; rm d; run -g ref_cnt w.mf",
        "0 0",
        why="it leaves the target unmade",
        files=IN,
        differs={"d": "1\n1\n1\n1\n1\n1\n1\n1\n"},
        says_the_same=False,
    ),
]

"""Workflows written in JSON and JX."""

from __future__ import annotations

from compat.differential.case import Case

IN = {"in": "1\n"}
PLAIN_JSON = (
    '{"rules": [{"command": "cat in > out", "inputs": ["in"], "outputs": ["out"]},\n'
    ' {"command": "cat out out > end", "inputs": ["out"], "outputs": ["end"]}]}\n'
)
PARTS_IN_JX = (
    '{"define": {"N": 3, "P": ["p" + i for i in range(N)]},\n'
    ' "rules": [{"command": template("echo {i} > p{i}"), '
    '"outputs": ["p" + i]} for i in range(N),\n'
    '  {"command": "cat " + join(P) + " > sum", "inputs": P, "outputs": ["sum"]}]}\n'
)

CASES = [
    # JSON.
    Case("rules in JSON", PLAIN_JSON, "run --json w.mf", files=IN),
    Case(
        "environment, categories and resources in JSON",
        (
            '{"environment": {"E": "all"},\n'
            ' "categories": {"c": {"resources": {"cores": 2}, "environment": {"E": "category"}}},\n'
            ' "rules": [\n  {"command": "echo $E $CORES $MEMORY > a", "outputs": ["a"], '
            '"category": "c", "resources": {"memory": 5}},\n  {"command": "echo $E $CORES > b", '
            '"outputs": ["b"], "environment": {"E": "own"}, "local_job": true},\n'
            '  {"command": "echo $E \'x  y\' > c", "outputs": ["c"]}, ]}\n'
        ),
        "run --json w.mf",
        files=IN,
    ),
    Case(
        "a default category in JSON",
        (
            '{"default_category": "c", "categories": {"c": {"environment": {"E": "category"}}}, '
            '"environment": {"E": "all"},\n'
            ' "rules": [{"command": "echo $E > out", "outputs": ["out"]}]}\n'
        ),
        "run --json w.mf",
        files=IN,
    ),
    Case("a document without rules", "{}", "run --json w.mf", files=IN),
    Case(
        "comments and trailing commas in JSON",
        (
            "# first\n"
            '{"rules": [{"command": "cat in > out", "inputs": ["in"], "outputs": ["out"]},\n'
            ' {"command": "cat out out > end", "inputs": ["out"], "outputs": ["end"],},]}\n'
        ),
        "run --json w.mf",
        files=IN,
    ),
    Case("a document that is no object", "[]", "run --json w.mf", "143", files=IN, places=False),
    Case("a document that ends too early", '{"rules": [{"command": ', "run --json w.mf", "143", files=IN),
    Case("expressions in JSON", PARTS_IN_JX, "run --json w.mf", "143", files=IN),
    Case("a rule without a command in JSON", '{"rules": [{"inputs": []}]}', "run --json w.mf", "143", files=IN),
    Case(
        "a rule with a command and a workflow",
        '{"rules": [{"command": "x", "workflow": "y"}]}',
        "run --json w.mf",
        "143",
        files=IN,
    ),
    Case(
        "inputs that are no list",
        '{"rules": [{"command": "x", "inputs": "in", "outputs": ["out"]}]}',
        "run --json w.mf",
        "143",
        files=IN,
    ),
    Case(
        "an unknown resource",
        '{"rules": [{"command": "echo 1 > out", "outputs": ["out"], "resources": {"cups": 2}}]}',
        "run --json w.mf",
        "143",
        files=IN,
    ),
    Case(
        "an unknown allocation",
        '{"rules": [{"command": "echo 1 > out", "outputs": ["out"], "allocation": "some"}]}',
        "run --json w.mf",
        "143",
        files=IN,
    ),
    Case(
        "files under an old key",
        ('{"rules": [{"command": "cat in > out", "inputs": [{"name": "in"}], "outputs": ["out"]}]}'),
        "run --json w.mf",
        "143",
        files=IN,
    ),
    Case(
        "a renamed file in JSON",
        (
            '{"rules": [{"command": "cat x > out", "inputs": [{"dag_name": "in", '
            '"task_name": "x"}], "outputs": ["out"]}]}'
        ),
        "run --json w.mf",
        "1",
        files=IN,
        says_the_same=False,
    ),
    Case(
        "a rule that fails in JSON",
        ('{"rules": [{"command": "exit 3", "outputs": ["out"]}, {"command": "echo 1 > b", "outputs": ["b"]}]}'),
        "run -r 0 --json w.mf",
        ours="1",
        why="it calls a failed run a success",
        files=IN,
    ),
    Case(
        "two runs and cleaning in JSON",
        PLAIN_JSON,
        "run --json w.mf; run --json w.mf; run --json -c w.mf",
        "0 0 0",
        files=IN,
    ),
    Case(
        "a dry run in JSON",
        PLAIN_JSON,
        "run --json -T dryrun w.mf; sh ./w.mf.sh > /dev/null 2>&1; rm w.mf.sh",
        files=IN,
    ),
    Case("JSON read as a Makeflow", PLAIN_JSON, status="1", files=IN, says_the_same=False),
    # JX.
    Case("rules in JX", PARTS_IN_JX, "run --jx w.mf", files=IN),
    Case("JX with a definition on the command line", PARTS_IN_JX, "run --jx --jx-define N=1+1 w.mf", files=IN),
    Case("a definition implies JX", PARTS_IN_JX, "run --jx-define N=1 w.mf", files=IN),
    Case("JX with definitions in a file", PARTS_IN_JX, "run --jx --jx-args a.jx w.mf", files={"a.jx": '{"N": 1}'}),
    Case(
        "JX with definitions in a file and on the command line",
        PARTS_IN_JX,
        "run --jx --jx-args a.jx --jx-define N=2 w.mf",
        files={"a.jx": '{"N": 1}'},
    ),
    Case(
        "definitions that are none",
        PARTS_IN_JX,
        ("run --jx --jx-define N w.mf; run --jx --jx-args a.jx w.mf; run --jx --jx-args nosuch w.mf"),
        "143 143 143",
        files={"a.jx": "[1]"},
        places=False,
    ),
    Case(
        "an unknown name in JX",
        '{"rules": [{"command": "echo " + nosuch, "outputs": ["out"]}]}',
        "run --jx w.mf",
        "143",
        files=IN,
    ),
    Case(
        "a division by zero in JX",
        '{"rules": [{"command": "echo " + 1 / 0, "outputs": ["out"]}]}',
        "run --jx w.mf",
        "143",
        files=IN,
    ),
    Case(
        "files seen by JX",
        (
            '{"rules": [{"command": "cat d/* > out", "outputs": ["out"], '
            '"inputs": ["d/" + f for f in listdir("d")]},\n'
            ' {"command": "echo " + fetch("v.json")["x"] + " > b", "outputs": ["b"]}]}'
        ),
        "run --jx w.mf",
        files={"d/a": "1\n", "d/b": "2\n", "v.json": '{"x": 5}'},
    ),
    Case(
        "a sub-workflow with arguments",
        ('{"rules": [{"workflow": "sub.jx", "args": {"N": 2, "S": "a b"}, "inputs": ["in"], "outputs": ["x"]}]}'),
        "run --jx w.mf; ls *.jx x > names; run --jx -c w.mf",
        "0 0",
        files={
            **IN,
            "sub.jx": ('{"rules": [{"command": "echo " + N + S + " > x", "inputs": ["in"], "outputs": ["x"]}]}\n'),
        },
        says_the_same=False,
    ),
]

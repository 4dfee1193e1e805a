"""The options of the original, each in a run or two."""

from __future__ import annotations

from compat.differential.case import Case

IN = {"in": "1\n"}
CHAIN = "b: in\n\tcat in in > b\nc: b\n\tcat b b > c\nd: c\n\tcat c c > d\n"
FLAKY = "bad:\n\techo x >> count; test `wc -l < count` -ge 3 && echo 1 > bad\n"
RULE = "out: in\n\tcat in > out\n"

CASES = [
    # What is run, where, and what is written about it.
    Case("one job at a time", CHAIN, "run -j 1 w.mf", files=IN),
    Case("the long form of an option, behind the file", CHAIN, "run w.mf --max-local=2", files=IN),
    Case("no jobs at a time", CHAIN, "run -j 0 w.mf", files=IN),
    Case("shortened options", CHAIN, "run --max-loc 1 --zero w.mf", files=IN),
    Case(
        "options that make no difference here",
        CHAIN,
        (
            "run -J 2 -d all -o debug.txt -B x -N name -p 0 -W fcfs --allocation=waste --shared-fs=/nowhere w.mf; "
            "rm -f debug.txt"
        ),
        files=IN,
    ),
    Case("an unknown allocation of resources", CHAIN, "run --allocation=some w.mf", "143", files=IN, places=False),
    Case("another log", CHAIN, "run -l other.makeflowlog w.mf; ls *log > logs", files=IN),
    Case("a log that is none", CHAIN, "run -l in w.mf", "1", files=IN),
    Case("a summary", CHAIN, "run -f sum w.mf; sed -n '4,6p' sum > part; rm sum", files=IN),
    Case("the default name", CHAIN, "mv w.mf Makeflow; run; cp Makeflow w.mf", files=IN, says_the_same=False),
    Case("no file at all", CHAIN, "run", "1", files=IN),
    Case("two files", CHAIN, "run w.mf w.mf", "1", files=IN),
    Case("an unknown option", CHAIN, "run --nosuch w.mf", "1", files=IN),
    Case("an unknown batch system", CHAIN, "run -T nosuch w.mf", "1", files=IN),
    Case("the local batch system", CHAIN, "run -T local w.mf", files=IN),
    Case("version and help", CHAIN, "run -v; run -h", "0 0", files=IN),
    Case("another directory", CHAIN, "mkdir s; mv in s; run -X s w.mf; ls s > names", files=IN),
    Case("a file in another directory", CHAIN, "mkdir s; cp w.mf s; run s/w.mf; ls s > names", files=IN),
    Case(
        "options from a file",
        CHAIN,
        "run --argv args.json",
        files={**IN, "args.json": '{"MAKEFLOW":"w.mf","max-local":1,"gc":"ref_cnt"}'},
    ),
    Case(
        "options from a file that leads to another",
        CHAIN,
        "run --argv=a.json w.mf",
        files={**IN, "a.json": '{"argv":"b.json"}', "b.json": '{"gc":"all","zero-length-error":null}'},
    ),
    Case(
        "options from a file that is not understood",
        CHAIN,
        "run --argv=a.json w.mf; run --argv=b.json w.mf",
        "1 143",
        files={**IN, "a.json": '{"nosuch":true}', "b.json": "[1]"},
        places=False,
    ),
    Case(
        "a log that describes the rules",
        CHAIN,
        (
            "run --log-verbose w.mf; grep '^# [NCSPT][A-Z]*\t' w.mf.makeflowlog | "
            "sort > described; grep -v '^#' w.mf.makeflowlog | cut -d' ' -f2,3,5- > records"
        ),
        files=IN,
    ),
    Case(
        "a dry run", CHAIN, "run -T dryrun w.mf; ls *.sh > names; sh ./w.mf.sh > /dev/null 2>&1; rm w.mf.sh", files=IN
    ),
    Case(
        "a dry run of a rule with quotes and exports",
        "export A=1 2\nx:\n\techo \"\\$A\" 'b  c' \\\\\\\\d > x\n",
        "run -T dryrun w.mf; sh ./w.mf.sh > /dev/null 2>&1; rm w.mf.sh",
    ),
    # Resources.
    Case(
        "jobs at once by the option for remote jobs",
        (
            "p0:\n\techo + >> t; sleep 0.1; echo - >> t; echo 1 > p0\np1:\n"
            "\techo + >> t; sleep 0.1; echo - >> t; echo 1 > p1\np2:\n"
            "\techo + >> t; sleep 0.1; echo - >> t; echo 1 > p2\n"
        ),
        "run -J 1 w.mf",
    ),
    Case("enough cores by option", "CORES=3\n" + CHAIN, "run --local-cores 4 w.mf", files=IN),
    Case(
        "too few cores by option",
        "CORES=2\n" + CHAIN,
        "run --local-cores 1 w.mf",
        ours="1",
        why="rules that can never run are no success",
        files=IN,
    ),
    Case(
        "enough memory and disk by option",
        "MEMORY=100\nDISK=100\n" + CHAIN,
        "run --local-memory=200 --local-disk=200 w.mf",
        files=IN,
    ),
    Case(
        "too little memory by option",
        "MEMORY=100\n" + CHAIN,
        "run --local-memory=50 w.mf",
        ours="1",
        why="rules that can never run are no success",
        files=IN,
    ),
    # Failures.
    Case("repetition a number of times", FLAKY, "run -r 5 w.mf"),
    Case("repetition", FLAKY, "run -R w.mf"),
    Case("too few repetitions", FLAKY, "run -r 1 w.mf", ours="1", why="it calls a failed run a success"),
    Case(
        "repetition that the command asks for",
        "out:\n\techo x >> count; test `wc -l < count` -ge 3 && echo 1 > out || exit 101\n",
    ),
    Case(
        "no repetition even if the command asks for it",
        "out:\n\techo x >> count; exit 101\n",
        "run -r 0 w.mf",
        ours="1",
        why="it calls a failed run a success",
    ),
    Case(
        "nothing kept of a failed rule",
        "a:\n\techo 1 > a; exit 3\nc:\n\techo 1 > c\n",
        "run -r 0 --do-not-save-failed-output w.mf",
        ours="1",
        why="it calls a failed run a success",
    ),
    Case(
        "what is kept of a failed rule",
        "a b:\n\techo 1 > a; exit 3\n",
        "run -r 0 w.mf; ls makeflow.failed.0 > names",
        ours="1",
        why="it calls a failed run a success",
    ),
    Case(
        "empty files are failures",
        "out:\n\ttouch out\n",
        "run -r 0 -z w.mf",
        ours="1",
        why="it calls a failed run a success",
    ),
    Case("an empty directory is no empty file", "d:\n\tmkdir d\nout:\n\techo 1 > out\n", "run -z w.mf"),
    Case("sources are not looked for", "out: nosuch\n\techo 1 > out\n", "run --skip-file-check w.mf"),
    Case(
        "files that come late",
        "out:\n\t(sleep 0.2; echo 1 > out) > /dev/null 2>&1 &\n",
        "run --wait-for-files-upto 3 w.mf",
    ),
    # Garbage collection.
    Case("collection by reference counts", CHAIN, "run -g ref_cnt w.mf", files=IN),
    Case("collection of everything", CHAIN, "run --gc=all w.mf", files=IN),
    Case("collection on demand with few files", CHAIN, "run -g on_demand w.mf", files=IN),
    Case("collection on demand above a number of files", CHAIN, "run -g on_demand -G 1 w.mf", files=IN),
    Case("no collection", CHAIN, "run -g none w.mf", files=IN),
    Case("an unknown collection", CHAIN, "run -g sometimes w.mf", "1", files=IN),
    Case("collection keeps declared outputs", "MAKEFLOW_OUTPUTS=b\n" + CHAIN, "run -g ref_cnt w.mf", files=IN),
    Case("collection keeps declared inputs", "MAKEFLOW_INPUTS=b\n" + CHAIN, "run -g ref_cnt w.mf", files=IN),
    Case(
        "collection of a directory", "d: in\n\tmkdir d; cp in d/x\ne: d\n\tcp d/x e\n", "run -g ref_cnt w.mf", files=IN
    ),
    # Wrappers, sandbox and monitor.
    Case("a wrapper around the command", CHAIN, "run --wrapper 'echo x > w.%%; {}' w.mf", files=IN),
    Case("a wrapper in front of the command", CHAIN, "run --wrapper 'env A=1' w.mf", files=IN),
    Case("a wrapper with the command as one word", CHAIN, "run --wrapper 'echo x > w.%%; sh -c []' w.mf", files=IN),
    Case(
        "a wrapper around a command with quotes",
        "out:\n\techo \"a $HOME\" \\$HOME 'b  c' > out\n",
        "run --wrapper 'sh -c []' w.mf",
    ),
    Case("two wrappers", CHAIN, "run --wrapper '{} && touch w1.%%' --wrapper '{} && touch w2.%%' w.mf", files=IN),
    Case(
        "a wrapper with an input",
        CHAIN,
        "run --wrapper './wrap %%' --wrapper-input wrap w.mf",
        files={**IN, "wrap": '#!/bin/sh\nn=$1; shift\necho "$n" > wrapped.$n\nexec "$@"\n'},
    ),
    Case("a wrapper with an output", CHAIN, "run --wrapper '{}; echo x > o.%%' --wrapper-output o.%% w.mf", files=IN),
    Case(
        "a wrapper that does not make its output",
        CHAIN,
        "run -r 0 --wrapper '{}' --wrapper-output o.%% w.mf",
        ours="1",
        why="it calls a failed run a success",
        files=IN,
    ),
    Case("a sandbox", CHAIN, "run --sandbox w.mf; ls > names", files=IN, says_the_same=False),
    Case(
        "a sandbox has what the rule names",
        "out: in\n\tls > out; echo x >> in; echo y > more\n",
        "run --sandbox w.mf",
        files={**IN, "other": "2\n"},
        says_the_same=False,
    ),
    Case(
        "a sandbox with directories",
        "d: sub/in\n\tmkdir d; cp sub/in d/x\ne: d\n\tcat d/x > e\n",
        "run --sandbox w.mf",
        files={"sub/in": "1\n"},
        says_the_same=False,
    ),
    Case(
        "a sandbox lacks what the rule does not name",
        "out: in\n\tcat other > out\n",
        "run -r 0 --sandbox w.mf; rm -rf task_*",
        ours="1",
        why="it calls a failed run a success",
        files={**IN, "other": "2\n"},
        says_the_same=False,
    ),
    Case(
        "a monitor",
        "CATEGORY=big\nMEMORY=1000\n" + RULE,
        (
            "run --monitor=mon w.mf; ls mon > names; "
            'grep -ho \'"category":"[a-z]*"\' mon/*.summary > category; rm -r mon'
        ),
        files=IN,
        says_the_same=False,
    ),
    Case(
        "a monitor with series under other names",
        RULE,
        ("run --monitor=mon --monitor-with-time-series --monitor-log-fmt=r-%% w.mf; ls mon > names; rm -r mon"),
        files=IN,
        says_the_same=False,
    ),
]

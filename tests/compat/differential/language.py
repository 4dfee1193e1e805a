"""Workflows that use every part of the language; all of them are valid."""

from __future__ import annotations

from compat.differential.case import Case

IN = {"in": "1\n"}

CASES = [
    # Rules and their file lists.
    Case("lists that are empty", "a:\n\techo made > a\n: a\n\tcat a > b\n:\n\techo made > c\n"),
    Case(
        "rules written in unusual ways",
        (
            "# nothing\n\n   \na: b: c\n\tcat b c > a\nd:b\n\tcp b d\ne: b\n    cp b e\nf: b\n"
            " \t \n\n\tcp b f\ng g: b b\n\tcp b g\n"
        ),
        files={"b": "1\n", "c": "2\n"},
    ),
    Case(
        "names of files and directories",
        (
            "d: in\n\tmkdir d; cp in d/x\nout: d\n\tcat d/x > out\nsub/out: sub/in ./here\n"
            "\tcat sub/in here > sub/out\nabs: /etc/passwd\n\techo yes > abs\na+b,c~d@e%f: x[1]\n"
            "\techo 1 > a+b,c~d@e%f\n"
        ),
        files={**IN, "sub/in": "1\n", "here": "2\n", "x[1]": ""},
    ),
    Case("a chain of rules", "b: a\n\tcp a b\nc: b\n\tcat b b > c\nd: c\n\twc -c < c > d\n", files={"a": "x\n"}),
    Case("a chain written backwards", "c: b\n\tcat b b > c\nb: a\n\tcp a b\n", files={"a": "x\n"}),
    Case(
        "a diamond",
        ("l r: top\n\tcp top l; cp top r\nx: l\n\tcat l l > x\ny: r\n\twc r > y\nend: x y\n\tcat x y > end\n"),
        files={"top": "t\n"},
    ),
    Case("several outputs and inputs", "a b  c :  i j\n\tcat i j | tee a b > c\n", files={"i": "1\n", "j": "2\n"}),
    Case("an empty file", ""),
    Case("blank and comment lines inside a rule", "a: b # list\n\n# between\n\n\tcp b a # end\n\n", files={"b": "1\n"}),
    Case("two names of one file are two files", "./a:\n\techo 1 > a\nb: ./a\n\tcat a > b\n"),
    Case(
        "letters beyond ASCII", "größe.txt: 日本\n\tcat 日本 > größe.txt; echo ü >> größe.txt\n", files={"日本": "1\n"}
    ),
    Case(
        "a rule of twenty files",
        (
            "p0:\n\techo 0 > p0\np1:\n\techo 1 > p1\np2:\n\techo 2 > p2\np3:\n\techo 3 > p3\np4:\n"
            "\techo 4 > p4\np5:\n\techo 5 > p5\np6:\n\techo 6 > p6\np7:\n\techo 7 > p7\n"
            "sum: p0 p1 p2 p3 p4 p5 p6 p7\n\tcat p* > sum\n"
        ),
    ),
    # Quotes, escapes and continuation.
    Case(
        "quotes and escapes in names",
        (
            'N=x y\n"a b": in\n\tcp in "a b"\nout: "a b"\n\tcat "a b" > out\n\'c d\': in\n'
            "\tcp in 'c d'\ne\\ f: in\n\tcp in 'e f'\n\"g:h\": in\n\tcp in g:h\n\"i#j\": in\n"
            '\tcp in "i#j"\n"k $N"l: in\n\tcp in "k $N"l\n"m \'n  o\'": in\n\tcp in \'m n  o\'\n'
        ),
        files=IN,
    ),
    Case(
        "quotes in commands",
        (
            "a:\n\techo \"a   b\" \"it 'was' so\" > a\nb:\n\techo 'a   $b' 'say \"x\"' > b\nc:\n"
            "\tprintf \"%s\" \"a\\tb\" > c\nd:\n\tprintf '%s' 'a\\\\nb' > d\n"
        ),
    ),
    Case(
        "escapes in commands",
        ('a:\n\tX=1; echo \\$X \\$\\$X | cut -c1 > a\nb:\n\techo a\\\\b \\"q\\" > b\nc:\n\techo `expr 1 + 2` > c\n'),
    ),
    Case(
        "blanks and comments in commands",
        ("a:\n\t  echo   a \t  b    > a\nb:\n\techo abc > b#def\nc: in\n\tcat in \\\n\t  in \\\n   > c\n"),
        files=IN,
    ),
    Case(
        "what is left to the shell",
        (
            "a: in\n\t< in > a cat\nb: in\n\t{ cat in | tr 1 2; } > b && echo 1 >> b || exit 3\n"
            "c:\n\tls nosuch > c 2>&1 || true; echo done > c\n"
        ),
        files=IN,
    ),
    Case(
        "quotes, escapes and comments in values",
        ('A=one \\\n  two\nB="a   b" \'c   d\'\nC=one # two\n\nD=a\\tb\\\\c\nout:\n\techo $A $B $C "$D" > out\n'),
    ),
    Case(
        "blanks at the end of commands and inside of quotes that are continued",
        "X=a  \nY=b\nout:\n\tprintf '[%s]' $X $Y   \"c  \\\n  d\" 'e  \\\n  f' $X > out $Y \\\n  \n",
    ),
    Case("names with digits and dashes", "1a-b-: 2-c\n\tcp 2-c 1a-b-\n", files={"2-c": "1\n"}),
    Case("blanks behind an opening quote", 'A="  x"\n" out":\n\techo "  a  " $A > out\n'),
    # What only ours accepts.
    Case(
        "no newline at the end",
        "out:\n\techo 1 > out",
        status="143",
        ours="0",
        why="it refuses what is well meant",
        differs={"out": "1\n"},
        says_the_same=False,
    ),
    Case("a comment without newline at the end", "out:\n\techo 1 > out\n# end"),
    Case(
        "line ends of DOS",
        "out: in\r\n\tcat in > out\r\n",
        status="1",
        ours="0",
        why="it refuses what is well meant",
        files=IN,
        differs={"out": "1\n"},
        says_the_same=False,
    ),
    Case(
        "a continued file list",
        "out: a \\\n b\n\tcat a b > out\n",
        status="1",
        ours="0",
        why="it refuses what is well meant",
        files={"a": "1\n", "b": "2\n"},
        differs={"out": "1\n2\n"},
        says_the_same=False,
    ),
    Case(
        "a semicolon behind a variable",
        "A=1\nout:\n\techo $A; echo $A > out\n",
        status="143",
        ours="0",
        why="it refuses what is well meant",
        differs={"out": "1\n"},
        says_the_same=False,
    ),
    Case(
        "names that begin with a dash",
        "-a: in\n\tcp in ./-a\nb--c: -a\n\tcp ./-a b--c\n",
        status="143",
        ours="0",
        why="it refuses what is well meant",
        files=IN,
        differs={"-a": "1\n", "b--c": "1\n"},
        says_the_same=False,
    ),
    # Variables.
    Case("forms of reference", "A=x\nout:\n\techo $A $(A) ${A} $(A)b ${A}c $A/$A.$A-$A,$A:$A=$A+$A > out\n"),
    Case(
        "forms of assignment",
        ("A = x\nB =y\nC= z\nD=\n@E=1\nF=1\nF+=2\nF += 3\nG+=new\nout:\n\techo [$A][$B][$C][$D][$E] $F $G > out\n"),
    ),
    Case("when values are taken", "A=1\nB=$A$A\nC=$B-$B\nx:\n\techo $A $B $C > x\nA=2\ny:\n\techo $A $B $C > y\n"),
    Case(
        "names by variables",
        ("IN=a b\nOUT=c d\nN=7\n$OUT: $IN\n\tcat $IN | tee $OUT > log\nout.$N.x: in$(N)\n\tcp in$N out.$N.x\n"),
        files={"a": "1\n", "b": "2\n", "in7": "1\n"},
    ),
    Case("a variable of the environment", 'out:\n\techo "$FROM_OUTSIDE" > out\n'),
    Case("a variable of one rule", "A=all\nx:\nA=own\n\techo $A > x\ny:\n\techo $A > y\n"),
    Case("appending in a rule", "A=all\nx:\nA+=own\n\techo $A > x\ny:\n\techo $A > y\n"),
    Case("a whole command by a variable", "C=echo 1 > out\nout:\n\t$C\n"),
    # Categories and resources.
    Case("a variable of a category", "A=all\nCATEGORY=one\nA=1\nx:\n\techo $A > x\nCATEGORY=two\ny:\n\techo $A > y\n"),
    Case(
        "categories by directive",
        (".MAKEFLOW CATEGORY one\nA=1\n.MAKEFLOW CATEGORY two\nA=2\n.MAKEFLOW CATEGORY one\nx:\n\techo $A > x\n"),
    ),
    Case(
        "a category of one rule, and the old name of categories",
        "SYMBOL=d\nx:\nCATEGORY=c\n\techo \\$CATEGORY > x\ny:\n\techo \\$CATEGORY > y\n",
    ),
    Case(
        "resources of a category",
        ("CATEGORY=c\nCORES=1\nMEMORY=10\nDISK=20\nx:\n\techo \\$CATEGORY \\$CORES \\$MEMORY \\$DISK > x\n"),
    ),
    Case(
        "resources by directive",
        (
            ".MAKEFLOW CORES 1\n.MAKEFLOW MEMORY 10\n.MAKEFLOW DISK 1K\n.MAKEFLOW WALL_TIME 5\n"
            ".MAKEFLOW MPI_PROCESSES 1\n.MAKEFLOW MODE MAX_THROUGHPUT\nx:\n"
            "\techo \\$CORES \\$MEMORY \\$DISK \\$WALL_TIME \\$MPI_PROCESSES > x\n"
        ),
    ),
    Case(
        "resources of one rule",
        ("x:\nCORES=1\nMEMORY=5\n\techo \\$CORES \\$MEMORY > x\ny:\n\techo \\$CORES [\\$MEMORY] > y\n"),
    ),
    Case(
        "the number of threads",
        (
            "x:\n\techo \\$OMP_NUM_THREADS > x\ny:\nCORES=2\n"
            "\techo \\$OMP_NUM_THREADS \\$CORES > y\nOMP_NUM_THREADS=2\nexport OMP_NUM_THREADS\n"
            "z:\n\techo \\$OMP_NUM_THREADS \\$CORES > z\n"
        ),
    ),
    Case("resources from the environment", "x:\n\techo \\$MEMORY > x\n", "MEMORY=7 run w.mf"),
    Case("sizes of files", ".SIZE in 3M\n.SIZE out 1024\nout: in\n\tcp in out\n", files=IN),
    # Exports.
    Case(
        "exports of all kinds",
        (
            "A=one two\nexport A\nB=not\nexport C=one two\nD=1\nE=2\nexport D E FROM_OUTSIDE\n"
            'export F="x   y"\nout:\n'
            '\techo "\\$A" [\\$B] "\\$C" \\$D \\$E \\$FROM_OUTSIDE "\\$F" > out\n'
        ),
    ),
    Case("an export below the rule", "x:\n\techo [\\$A] > x\nA=1\nexport A\ny:\n\techo [\\$A] > y\n"),
    Case("an exported variable of one rule", "export A=all\nx:\nA=own\n\techo \\$A > x\ny:\n\techo \\$A > y\n"),
    Case(
        "an exported variable of a category",
        "export A=all\nCATEGORY=c\nA=c\nx:\n\techo \\$A > x\nCATEGORY=d\ny:\n\techo \\$A > y\n",
    ),
    # Modifiers.
    Case(
        "local rules",
        (
            "L=LOCAL\na: in\n\tLOCAL cp in a\nb: in\n\t$L cp in b\nc: in\nBATCH_LOCAL=1\n"
            "\tcp in c\nd:\n\techo LOCAL MAKEFLOW > d\n"
        ),
        files=IN,
    ),
    Case(
        "a sub-workflow",
        "b: a\n\tMAKEFLOW child.mf\nc: b\n\tcat b b > c\n",
        files={"a": "1\n", "child.mf": "b: a\n\tcat a a > b\n"},
        says_the_same=False,
    ),
    Case(
        "a local sub-workflow",
        "b: a\n\tLOCAL MAKEFLOW child.mf\n",
        files={"a": "1\n", "child.mf": "b: a\n\tcat a a > b\n"},
        says_the_same=False,
    ),
    Case(
        "outputs that are declared",
        "MAKEFLOW_INPUTS=in\nMAKEFLOW_OUTPUTS=a\na: in\n\tcp in a\nb: a\n\tcp a b\n",
        files=IN,
    ),
]

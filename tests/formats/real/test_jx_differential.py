"""JX as Debian's jx2json understands it: the same values and the same refusals, except where the original errs.

VALUES are evaluated in large batches, as items of one list; the others by themselves, for they end the evaluation or
would mean something else inside a list.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from shoal.errors import InputError
from shoal.execution.workflow_loader import LocalFiles, read_settings
from shoal.formats.jx import evaluate, parse_jx, to_json, to_jx
from support.command import SHOAL, environment

pytestmark = pytest.mark.skipif(shutil.which("jx2json") is None, reason="the original program is not installed")
REFUSED = "refused"
BATCH = 60


def original(text: bytes, *options: str, directory: Path | None = None) -> str:
    """What jx2json prints; it reports errors of evaluation as a value and with exit status 0."""
    done = subprocess.run(["jx2json", *options], input=text, capture_output=True, timeout=20, cwd=directory)
    printed = done.stdout.decode("utf-8", "surrogateescape")
    return REFUSED if done.returncode or re.match(r"\s*error\(", printed) else printed.removesuffix("\n")


def ours(text: bytes, *, pretty: bool = False, written: bool = False) -> str:
    try:
        document = parse_jx(text, "t")
        return to_jx(document) if written else to_json(evaluate(document, {}, LocalFiles()), pretty)
    except InputError:
        return REFUSED


def shoal_jx(text: bytes, *options: str, directory: Path) -> str:
    command = [*SHOAL, "jx", *options]
    done = subprocess.run(command, input=text, capture_output=True, timeout=60, cwd=directory, env=environment())
    assert b"Traceback" not in done.stderr
    assert done.returncode in (0, 1)
    assert bool(done.returncode) != bool(done.stdout), done
    return REFUSED if done.returncode else done.stdout.decode().removesuffix("\n")


def as_list(expressions: Sequence[str]) -> bytes:
    return ("[" + "\n,".join(expressions) + "\n]").encode()


def check(expressions: Sequence[str], *options: str) -> None:
    """Compares a batch, and if it differs says which expression does."""
    pretty = "--pretty" in options
    text = as_list(expressions)
    expected = original(text, *options)
    if expected != REFUSED and ours(text, pretty=pretty) == expected:
        return
    for expression in expressions:
        one = expression.encode()
        assert (expression, ours(one, pretty=pretty)) == (expression, original(one, *options))
    assert ours(text, pretty=pretty) == expected


VALUES = r"""
format("%g", 3)
format("%g", 3.0)
like(".es", "test")
like("es", "test")
like("test", ".es.*")
schema([{"a":1},{"a":"x","b":2.0}])
schema({"a":1})
10-3-2+1
100/10/5*2
7%4*2
1-2-3-4*5-6
[[x,y] for x in [1,2] for y in range(x)]
[x for x in [1,2,3] if x>1 for y in [1,2]]
[x for x in [1,2] for x in [3,4]]
[y for x in [y] for y in [1,2]]
[1,]
range(3,)
range(3)]
[1;,2]
{"a":1;}
{"a";:1}
[1]]
1 # c
"a\qb"
"\u0041"
"a\nb"
"\/"
007
.5
5.
1e5
1E5
1e-5
1e+5
1.5e3
123456789.0
1234567890123456.0
1.0e15
1.0e16
1.23456789012345678
0.1
1.0/3
100.0/3
1e-7*1.0
1.5e-10
-0.0
0.0*-1
1e400
-1e400
1e308*10-1e308*10
{"a":1,"b":[1,{"c":2}],"d":{"e":null},"f":{},"g":[]}
[1,2,{"a":1}]
[]
{}
1
"x"
{"a":{"b":{"c":1}}}
[[1,2],[{"a":[{"b":1}]}]]
[[],[{}]]
[1,2,3][-5:2]
[1,2,3][1:-1]
[1,2,3][-2:]
[1,2,3][5:9]
[1,2,3][2:1]
[1,2,3][:]
[1,2,3][-1]
[1]+[2]
[1]==[1.0]
[{"a":1}]==[{"a":1}]
[{"a":1,"b":2}]==[{"b":2,"a":1}]
[1]!=[1]
[[1]]==[[1]]
1==1.0
1==true
null==1
null!=1
"a"+true
true+"a"
"a"+1.5
1.5+"a"
9223372036854775807+1
-9223372036854775807-2
9223372036854775807*3
-9223372036854775808
-9223372036854775807/-1
7/2
-7/2
7%3
-7%3
7%-3
7.5%2
-7.5%2.9
7.9%1.9
"a"<"b"
"a"<"B"
true==false
+"a"
+1.5
{}==1
1=={}
[1]==1
[{"a":1,"a":2}["a"]]
keys({"a":1,"b":2,"a":3})
values({"a":1,"b":2})
items({})
range(5)
range(1,5)
range(1,10,3)
range(10,1,-3)
range(5,1)
range(1,5,-1)
range(0)
range(-3)
range(1,2,3,4)
range(3,3,-1)
format("a%db%sc%%", 1, "x")
format("%f %F %e %E %g %G", 1.5,1.5,1.5,1.5,1.5,1.5)
format("%f",1e400)
format("%F %G %E",1e400,1e400,1e400)
format("%i",7)
format("%g",1234567.0)
join(["a","b"])
join(["a","b"],",")
join([])
join([],",")
join(["a","b"],"")
ceil(1.2)
floor(1.8)
ceil(-1.5)
floor(-1.5)
ceil(3)
ceil(9007199254740993)
ceil(1e400)
floor(9223372036854775807)
basename("/a/b.c")
basename("/a/b.c",".c")
basename("/")
basename("")
basename("a/")
basename("a//")
basename("..")
basename("b.c","b.c")
basename("x","xyz")
basename("a.txt","")
dirname("/a/b")
dirname("a")
dirname("/")
dirname("")
dirname("a/b/")
dirname("a//b")
dirname("//a")
dirname("/a")
dirname("///a")
dirname("//")
dirname("a//b//c")
escape("a b")
escape("a'b\"c$d`e\\f!")
escape("")
escape("a\nb")
len([1,2])
len([])
len([1],[2])
schema([{"a":1,"b":"x"},{"c":1.5,"a":"z"},{"d":null,"e":true,"f":[],"g":{}}])
schema([])
schema([1])
like("a.c","xabcx")
like("a.c","ac")
like("^a$","a")
like("^a$","ab")
like("","a")
like("a","")
like("[","a")
like("a|b","b")
like("(a)(b)\\2","abb")
like("a{2}","aa")
like("\\d","5")
like("[[:digit:]]","5")
like("A","a")
like("\\bfoo\\b","a foo b")
like("\\w+","ab")
template("x {a} y",{"a":1})
template("{a}",{"a":1.5})
template("{a}",{"a":"s"})
template("{ a }",{"a":1})
template("{{a}}",{"a":1})
template("{_a1}",{"_a1":1})
template("}}{{",{})
template("{{{a}}}",{"a":1})
[template("{x}") for x in [1,2]]
[template("{x}",{"x":9}) for x in [1,2]]
select(a>1,[{"a":1},{"a":2}])
select(true,[{"a":1}])
project(a,[{"a":1},{"a":2}])
project({"x":a+1},[{"a":1},{"a":2}])
project([a,b],[{"a":1,"b":2}])
project(5,[{"a":1}])
project([1],[{"a":1}])
project([{"z":a}],[{"a":1}])
select(a==1 and b=="x",[{"a":1,"b":"x"},{"a":1,"b":"y"}])
[select(a==n,[{"a":1},{"a":2}]) for n in [1,2]]
[error("a") for x in []]
{"define":5,"a":1}
{"define":[1],"a":1}
[x for x in [1,2] if x>1]
[[x,y] for x in range(2) for y in range(2)]
[[x,y] for x in range(3) if x>0 for y in range(x)]
[x for x in [1,2], 7, y for y in [8,9]]
[x for x in []]
[x for x in [], 1]
join([x for x in ["a","b"]])
range(x for x in [3])
format("%d %d", x for x in [1,2])
[x for x in range(3) for x in range(x)]
[x for x in [1,2] if x==1 or x==2]
true and true and false
true or true and false
false and true or true
(false and true) or true
1+2*3
2*3+1
10-3-2
100/10/2
100/10*2
"a"+1+2
1+2+"a"
1<2
true==1<2
not true and false
not true or true
-1+2
-(1+2)*3
- -1
2*-3
2--3
2-+3
1 - -1
!true==false
"a"=="a"
"a"!="b"
"abc"<"abd"
"b">="a"
1.5<2
2>=2.0
1.5+1
2*1.5
3/2.0
{"a"+"b":1}
{("a"):1}
like("*a","a")
like("*a","*a")
like("a**","aa")
like("a+?","a")
like("^a+?$","")
like("a{1,2}b","aab")
like("a{,2}b","b")
like("a{2,}","a")
like("a{","a{")
like("a{x","a{x")
like("a{1","a{1")
like("{1}","{1}")
like("+a","+a")
like("?a","a")
like("()","a")
like("(a","a")
like("a)","a)")
like("a||b","c")
like("|a","b")
like("a|*b","b")
like("(*a)","a")
like("(+a)","a")
like("^*a","a")
like("^*","b")
like("a^b","a^b")
like("a$b","a$b")
like("[]a]","]")
like("[^]a]","]")
like("[a-c]","b")
like("[a-]","-")
like("[-a]","-")
like("[c-a]","b")
like("[a\\]","\\")
like("[\\d]","d")
like("[[:alpha:][:digit:]_]","_")
like("[[:foo:]]","f")
like("[^[:space:]]"," ")
like("[[.a.]]","a")
like("[[=a=]]","a")
like("[[:alpha:]","a")
like("\\","a")
like("\\.","a")
like("\\.",".")
like("\\(a\\)","(a)")
like("\\<foo","a foo")
like("foo\\>","foo")
like("\\`a","ba")
like("a\\'","ba")
like("\\W"," ")
like("\\s"," ")
like("\\S"," ")
like("\\Bo","foo")
like("\\1","a")
like("(a)\\1","aa")
like("(a|b)\\1","ab")
like("a.b","a\nb")
like("a$","a\n")
like("^b","a\nb")
like("(a|ab)(c|bcd)$","abcd")
like("a{0}","")
like("a{0}b","b")
like("a{32768}","a")
like("a{2,1}","aa")
like("(a{2}){2}","aaaa")
like("x{1}{2}","xx")
like("(","a")
like(")",")")
like("a-z","a-z")
like("#","#")
like("a b","a b")
like("a&b","a&b")
like("~","~")
like("(?:a)","a")
like("\\n","n")
like("\\t","t")
like("[a","a")
like("[]","a")
like("[^]","a")
like("a\\{1\\}","a{1}")
escape("a\tb")
escape("\\")
escape("$HOME `x` \"q\" 'r' \\n")
basename("/a/b/")
basename("///")
basename("a/b/c.tar.gz",".gz")
basename("a/.c",".c")
basename("./")
dirname("/a/b/c/")
dirname("a/")
dirname("//a/b")
dirname("///a/b")
dirname("/a//")
dirname("./a")
dirname("..")
dirname("a/b//c")
dirname("//a//")
format("%%")
format("%d%%",5)
format("%e",0.0)
format("%g",0.0001)
format("%g",100000.0)
format("%g",1000000.0)
format("%f",-1.5)
format("%f",1e20)
format("%d",-5)
format("%s %s","a","b")
format("%s","")
format("")
join(["a"])
ceil(0.0)
ceil(-0.5)
floor(-0.5)
floor(0.5)
floor(1e300)
ceil(-9223372036854775807)
range(0,10,20)
range(0,-10,-5)
range(3,0,-2)
range(1,true)
range(2,4,1,"x")
range(1,2,"x")
range(-2,2)
len([[1],[2]])
len(range(5))
keys({})
values({})
keys({"a":{"b":1}})
items({"x":[1],"y":{"z":null}})
schema([{"a":1},{"a":"x"}])
schema([{"b":1,"a":2}])
schema([[1]])
template("")
template("no braces")
template("{{}}")
template("{a}{a}",{"a":"x"})
template("{a}-{b}",{"a":1,"b":"y"})
template("{\ta\n}",{"a":1})
[template("{x}-{y}",{"y":x}) for x in [1,2]]
[format("%d/%d",i,j) for i in range(2) for j in range(2) if i!=j]
[[i,j] for i in [1,2] for j in [i,i*10]]
["a"+i for i in range(3)]
[i for i in range(10) if i%2==0 and i>3]
[i for i in range(10) if i%2==0 or i%3==0]
[{"k":k} for k in keys({"a":1,"b":2})]
{"a":[x for x in range(2)],"b":{"c":[y for y in ["p"]]}}
[x for x in [[1,2],[3,4]]][1][0]
[x[0] for x in [[1,2],[3,4]]]
[x["a"] for x in [{"a":1},{"a":2}]]
[x for x in [1,2,3]][-1]
[1,2,3,4][1:3][0]
[1,2,3][0:0]
[1,2,3][:-1]
[1,2,3][-100:100]
[1,2,3][1:][1:]
[[]][0]
"a"+"b"+"c"
"a"+1.0
"a"+0.1
1+"a"+1
1.5+1.5
1.5-1
1-1.5
3*1.5
0.1*3
1/3.0
2/4
-2/4
10%3.5
10.5%3
5.5/2
1e3+1
2147483647+1
4611686018427387904*2
1-2-3
1-(2-3)
(1-2)-3
2*3%4
2+3*4-5
8/4/2
(8/4)/2
1==1==true
1==1 and 2==2
1<2 and 2<3
not false
not not true
not (1==2)
!(1<2)
!false and true
not false or false
- - 1
-(-1)
-(1.5)
+(1)
+(+1)
-[1][0]
-{"a":1}["a"]
not [true][0]
true and (false or true)
true && false
true || false
false || false
false or false and true
true == true and false == false
"a" == "a" and "b" != "a"
null == null and null != 1
null != null
true != false
[1,[2,{"a":null}]] == [1,[2,{"a":null}]]
[1,2] != [2,1]
[] == []
[] + []
[[]] + [[1]]
[null] == [null]
["1"] == [1]
[true] == [1]
[0.5] == [0.5]
{"a":1} == [1]
"" == ""
"" < "a"
"Z" < "a"
"a" <= "a"
"ab" > "a"
"10" < "9"
1 <= 1
1 >= 2
1.0 == 1
0.1+0.2 == 0.3
1 != 1.5
{"a":1,"b":{"c":[1,2,{"d":"e"}]}}
{"a":null,"b":true,"c":false,"d":1.25,"e":-3}
[null,true,false,0,-1,1.5,"s",[],{}]
{"":1}
{"a b":1}
{"\"":1}
[ 1 , 2 ]
(1)
((1)+(2))
[(1),(2)]
[[[[1]]]]
{"a":{"b":{"c":{}}}}
"\t\n\r\b\f"
"\u0009"
"\u007f"
"\u0041\u0042"
"\"\\\/"
"tab\there"
"it's"
123456789012345678
9223372036854775807
9223372036854775808
0
-0
00
1.0
1.10
1e2
1e-2
1E+2
2.5e+3
1e22
1e15
1e16
1e17
123456.789
0.000001
0.0000001
1.7976931348623157e308
5e-324
3.141592653589793
0.30000000000000004
12345678901234567890.0
--1
1++2
1--2
1 + -2
[1 for x in [1,2,3]]
[[] for x in range(2)]
[{} for x in range(2)]
[{"n":n,"sq":n*n} for n in range(4)]
[x+y for x in ["a","b"] for y in ["c","d"]]
[x+y for x in ["a","b"] for y in ["c","d"] if x=="a"]
[[y for y in range(x)] for x in range(3)]
[x for x in range(3), x for x in range(3)]
[0, x for x in [1,2], 3, x for x in [4]]
{"define":{},"c":1}
{"define":null,"c":1}
{"define":{"x":"a"},"y":template("{x}",{"x":"b"})}
select(n>1,[{"n":1},{"n":2},{"n":3}])
select(n=="a" or n=="b",[{"n":"a"},{"n":"c"}])
select(false,[{"n":1}])
select(true,[])
select(not b,[{"b":true},{"b":false}])
project(n*2,[{"n":1},{"n":2}])
project(n,[])
project({"v":n},[{"n":1}])
project(n+m,[{"n":1,"m":2},{"n":3,"m":4}])
project("k",[{"n":1}])
project(n,select(n>1,[{"n":1},{"n":2}]))
project(template("{n}"),[{"n":1}])
[project(n+k,[{"n":1}]) for k in [10,20]]
like("$*","ab")
like("$+","ab")
like("${2}","a")
like("\\<+","-abab")
like("\\b{1,}",".ab")
like("(^)*a","ba")
""".strip().splitlines()

STANDALONE = r"""
1;2
1 2 $
0x10
"é">"z"
{"define":{"x":3,"s":"a"},"y":template("{x}{s}")}
{"define":{"x":y,"y":2},"z":x}
{"define":{"f":[x for x in range(3)]},"z":f}
{"define":{"n":3},"l":[i*n for i in range(n)]}
{"define":{"i":5,"g":i+1},"l":[g for i in range(3)]}
{"define":{"a":{"b":[1,2]}},"c":a["b"][1]}
{"define":{"x":1},"a":{"define":{"x":2},"b":x}}
{"define":{"x":1},"define":{"y":2},"a":x}
1 .5
"a" "b"
like("é","é")
like("^.$","é")
like("^..$","é")
{"define":{"a":1},"b":a}
{"define":{"a":1,"b":a+1,"c":b*2},"d":[a,b,c]}
{"define":{"c":b*2,"b":a+1,"a":1},"d":[a,b,c]}
{"define":{"l":[1,2,3]},"d":[x*2 for x in l]}
{"define":{"l":range(n),"n":3},"d":[[x,n] for x in l]}
{"define":{"o":{"k":"v"}},"d":o["k"]}
{"define":{"f":i*i,"i":0},"d":[f for i in range(4)]}
{"define":{"f":i*i,"i":0},"d":[f,[f for i in range(4)],f]}
{"define":{"f":g+1,"g":i,"i":5},"d":[[f for i in range(3)],f,[f for g in range(2)]]}
{"define":{"a":1},"b":{"define":{"a":2},"c":a}}
{"a":1,"define":{"b":2},"c":b}
{"define":{"select":1},"a":select}
{"define":{"x":1},"y":template("{x}")}
1 ! 2
1 not 2
1 in 2
1 for 2
""".strip().splitlines()

ERRORS = r"""
[,]
{"a"
(1
(
)
f(
range(3
1+
1+)
not
[1 for
[1 for x
[1 for x in
[1 for x in [1]
[1 for x in [1] if
;
[1;2]
1 $
1 "abc
# c
'a'
"\u00e9"
1.5.2
1e
1ee5
error("a")
[1,2,3][-4]
[1,2,3][3]
[1,2,3][1.0]
"abc"[0:1]
"abc"[0]
"abc"["a"]
[1,2,3][true:]
[1]<[2]
null+"a"
"a"+null
"a"+[1]
"a"+{}
7%0
7.0/0
0.0/0
7.0%0.5
"a"*2
"a"-"b"
true and 1
1 and 1
true<false
not 1
not null
!"a"
-true
+true
-null
+null
{}=={}
null<null
keys([])
keys()
range(1,5,0)
range(1.0)
range()
range("a")
range(0,0,0)
format("%d",1.5)
format("%f",1)
format("%s",1)
format("%5d",1)
format("%")
format("%d")
format("a",1)
format()
format(1)
format("%x",1)
join(["a"],1)
join(["a",1])
join("a")
join()
join(["a"],",","x")
floor("a")
ceil()
ceil(1,2)
basename(1)
basename("a",1)
basename()
basename("a","b","c")
dirname(1)
dirname()
escape(1)
escape()
len()
len(1)
schema(1)
schema()
like(1,"a")
like("a",1)
like("a")
template("{a}",{"a":true})
template("{a}",{"a":null})
template("{a}",{"a":[1]})
template("{a",{"a":1})
template("a}",{"a":1})
template("{}",{"a":1})
template("{1}",{"a":1})
template("{a b}",{"a":1})
template("{b}",{"a":1})
template(1)
template()
template("a",1)
template("a",{},1)
select(a,[{"a":1}])
select(true,[1])
select(true,1)
select(true)
select()
select(true,[],1)
project(a,1)
listdir(1)
listdir()
fetch("/nonexistent")
fetch(1)
fetch()
foo(1)
foo()
len
range
error(1)
error()
error("a","b")
error(x)
error(range(3))
error({"a":1})
error
error("a")["x"]
[1,error("a"),2]
{"a":error("b")}
{error("x"):1}
[x for x in error("a")]
[{"define":{"x":1},"a":x}]
[x for x in [1,2] if x]
[x for x in 5]
[x for x in {"a":1}]
[x for x in "abc"]
[x+1 for x in [[1],[2]]]
f(x for x in [1,2])
join(x for x in ["a","b"])
[for x in [1]]
[x for 5 in [1]]
[x for x of [1]]
7%4%2
1<2==true
1<2<3
not 1==2
1=1
1&1
1|1
&
a.b
{"a":1 "b":2}
{"a" 1}
[1 2]
{a}
{"a"}
é
@
$x
/* c */ 1
// c
True
None
nulll
_a
in
for
if
and
escape("a","b")
format("%d",true)
format("%s",null)
format("%s",[1])
format("%f","a")
format("%c",1)
format("%ld",1)
format("%s")
join(["a"],null)
ceil(true)
ceil(null)
floor([1])
range(null)
len({"a":1})
values([])
items([])
items({"a":1},{})
schema([{}],[])
template("{é}",{"é":1})
template("{a.b}",{"a":1})
template("{a}}",{"a":1})
template("{{a}",{"a":1})
template("}",{})
template("{",{})
template("{a}",{"a":{}})
template("x",null)
template(["x"])
[1,2,3][1.5:]
[1,2,3]["a"]
[1,2,3][null]
{"a":1}[0]
{"a":1}["b"]
{"a":1}[:]
1[0]
null[0]
true[0]
"a"<1
1<"a"
null<1
true<1
[1]+1
1+[1]
[1]+"a"
{}+1
null+null
null-1
true+true
true+1
""+null
""+true+false
-x
true and null
null or true
"a" or true
1 or 2
{"a":1} != {"a":1}
{} < {}
"a\u00ffb"
"\uzzzz"
"\uD83D"
1..2
1.2.3
1e5.5
1e+
a+b
[a]
{"a":b}
x["a"]
x[0:1]
foo(bar)
format("%d",x)
range(x)
[y for x in [1]]
[x for x in y]
[x for x in [1] if y]
[x for x in [1] if null]
[x for x in [1] if 1]
[x for x in null]
[x for x in [1], x]
{"a":1 for x in 5}
{"define":{"a":b},"c":1}
project(x,[{"n":1}])
project(n,[{"n":1},{}])
select(1,[{"n":1}])
select("x",[{"n":1}])
listdir("/nonexistent-directory")
fetch("/nonexistent-file")
fetch("a","b")
listdir("a","b")
error("boom")
[error("x")]
error("a")+1
nosuch("a")
Range(1)
true()
null()
"a"()
(1)()
1(2)
f(1
[1,2
{"a":1
{"a":1,"b"
"abc
"abc\"
]
}
,
:
.
..
...
=
==
< 1
* 2
/ 2
and true
1 and
1 ==
(1]
[1)
{1}
{:1}
{"a":}
{"a"::1}
{"a":1,,}
[1,,2]
[,1]
{,}
f(,)
f(1,)
range(1,,2)
[1:2]
x[
x[]
x[1
x[1:2:3]
x[:
for x in y
[for]
[x for]
[x for x]
[x for x in]
[x for in y]
[x for x y]
[x for "x" in y]
[x if true]
[x for x in y if]
-
+
!
!=
&&
||
1 && && 2
~1
^
`
?
1 @
[1 @]
""".strip().splitlines()

WITH_CONTROL_CHARACTERS = [
    b'"a\nb"',
    b'"a\tb"',
    b"\x01",
    b"\xff",
    b'"\x01\x7f"',
    b"1\r\n",
    b"[1,\r\n2]",
    b"# c\r1",
    b"[\n1,\n2,\n]",
    b'{\n"a":1,\n}',
    b"[1, # comment\n2]",
    b"# first\n1",
    b"1 # last\n",
    b'"abc\\',
    b"\\",
]

BETTER_THAN_THE_ORIGINAL = {
    # The text breaks off in the middle, and the original takes what it has got.
    "[1,": REFUSED,
    '{"a":': REFUSED,
    "range(3,": REFUSED,
    "[1+)]": REFUSED,
    # It wraps the index around, ends strings at zero bytes, and has keys that are no strings.
    "[1,2][4294967296]": REFUSED,
    r'"\u0000abc"': REFUSED,
    "{1:2}": REFUSED,
    # It does not look into definitions from templates.
    '{"define":{"x":1+2},"y":template("{x}")}': '{"define":{"x":3},"y":"3"}',
    # It ruins what is not ASCII.
    '"caf\u00e9"': '"caf\u00e9"',
    # Newer versions have these.
    "true or 1": "true",
    "false and nothing": "false",
    'where(a>1,[{"a":1},{"a":2}])': '[{"a":2}]',
    'select([{"a":1},{"a":2}],a>1)': '[{"a":2}]',
    'project([{"a":1},{"a":2}],a+1)': "[2,3]",
    "[1,2,3].len()": "3",
    '[{"a":1}].project(a).len()': "1",
    '"abc".like("^a")': "true",
    '{"k"+i:i for i in range(2)}': '{"k0":0,"k1":1}',
}


def test_enough_expressions_are_compared() -> None:
    assert len(VALUES) + len(STANDALONE) + len(ERRORS) >= 400
    assert len(set(VALUES) | set(STANDALONE) | set(ERRORS)) == len(VALUES) + len(STANDALONE) + len(ERRORS)


@pytest.mark.parametrize("start", range(0, len(VALUES), BATCH))
def test_values_are_those_of_the_original(start: int) -> None:
    check(VALUES[start : start + BATCH])


@pytest.mark.parametrize("start", range(0, len(VALUES), 4 * BATCH))
def test_pretty_values_are_laid_out_as_in_the_original(start: int) -> None:
    check(VALUES[start : start + 4 * BATCH], "--pretty")


def test_whole_documents_have_the_values_of_the_original() -> None:
    for text in [expression.encode() for expression in STANDALONE] + WITH_CONTROL_CHARACTERS:
        assert (text, ours(text)) == (text, original(text))


def test_what_the_original_refuses_is_refused() -> None:
    for expression in ERRORS:
        assert (expression, ours(expression.encode())) == (expression, REFUSED)
        assert (expression, original(expression.encode())) == (expression, REFUSED)


@pytest.mark.parametrize("expression", BETTER_THAN_THE_ORIGINAL)
def test_where_the_original_errs_we_do_not(expression: str) -> None:
    assert ours(expression.encode()) == BETTER_THAN_THE_ORIGINAL[expression] != original(expression.encode())


def test_expressions_are_written_as_the_original_writes_them() -> None:
    for expression in VALUES:
        if re.search(r"error|\)\s*[-+*/%=!<>]|-\(|\d\.|\d[eE]|not", expression):
            continue  # the original loses parentheses and decimal points: see test_jx_property
        one = expression.encode()
        assert (expression, ours(one, written=True)) == (expression, original(one, "--noeval"))


class Expressions:
    """Random expressions; operators whose right-hand side newer versions skip get only operands without errors."""

    def __init__(self, seed: int) -> None:
        self.picker = random.Random(seed)

    def any(self, depth: int) -> str:
        kinds = (self.number, self.number, self.text, self.truth, self.items, self.mixed)
        return self.picker.choice(kinds)(depth)

    def number(self, depth: int) -> str:
        if depth <= 0:
            return self.picker.choice(("0", "1", "2", "7", "-3", "1.5", "0.25", "10", "x", "-x"))
        left, right = self.number(depth - 1), self.number(depth - 1)
        shape = self.picker.choice(("{0}+{1}", "{0}-{1}", "{0}*{1}", "({0})/{1}", "len({2})", "-({0})", "floor({0})"))
        return shape.format(left, right, self.items(depth - 1))

    def text(self, depth: int) -> str:
        if depth <= 0:
            return self.picker.choice(('"a"', '"b c"', '""', '"/usr/lib/x.so"', '"q\\"\\n"'))
        left, right = self.text(depth - 1), self.picker.choice((self.number, self.text, self.items))(depth - 1)
        shape = self.picker.choice(
            (
                "{0}+{1}",
                "{1}+{0}",
                "basename({0})",
                "dirname({0})",
                "escape({0})",
                'format("%s!",{0})',
                "join([{0},{0}])",
            )
        )
        return shape.format(left, right)

    def truth(self, depth: int) -> str:
        if depth <= 0:
            return self.picker.choice(("true", "false", "1<2", '"a"=="b"', "not true"))
        left, right = self.truth(depth - 1), self.truth(depth - 1)
        return self.picker.choice(("{0} and {1}", "{0} or {1}", "({0}) == ({1})", "not ({0})")).format(left, right)

    def items(self, depth: int) -> str:
        if depth <= 0:
            return self.picker.choice(("[]", "[1,2,3]", "range(4)", '["a","b"]', "[[1],[2]]", "range(1,9,3)"))
        inner, items = self.any(depth - 1), self.items(depth - 1)
        condition = f" if {self.truth(depth - 1)}" if self.picker.random() < 0.5 else ""
        shape = self.picker.choice(("[{0}]", "{1}+{1}", "[{0} for x in {1}{2}]", "{1}[1:]", "[{0},{1}]", "{1}[:-1]"))
        return shape.format(inner, items, condition)

    def mixed(self, depth: int) -> str:
        left, right = self.any(depth - 1), self.any(depth - 1)
        shape = self.picker.choice(
            ("({0})==({1})", "({0})!=({1})", "({0})<({1})", '{{"k":{0},"l":{1}}}', "[{0},{1}][1]")
        )
        return shape.format(left, right)


@pytest.mark.parametrize("seed", range(4))
def test_random_expressions_mean_what_they_mean_to_the_original(seed: int) -> None:
    expressions = Expressions(seed)
    texts = [f'{{"define":{{"x":5}},"v":{expressions.any(3)}}}'.encode() for _ in range(100)]
    outcomes = [(text, ours(text)) for text in texts]
    assert sum(outcome != REFUSED for _, outcome in outcomes) > 30
    assert outcomes == [(text, original(text)) for text in texts]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("x", "-d x=1"),
        ("[x,y]", "-d x=1 -d y=x+1"),
        ("[x,y]", "-d y=x+1 -d x=1"),
        ("[x,y]", "-d x=1 -d x=2 -d y=x"),
        ("x", "-a args.jx"),
        ("[x,z]", "--args args.jx --define z=x*2"),
        ("x", "-d x=1 -a args.jx"),
        ("x", "-a args.jx -d x=1"),
        ("[x,y]", "-a args.jx -d x=1 -d y=x"),
        ("w", "-d x=4 -a uses.jx"),
        ("w", "-a uses.jx -d x=4"),
        ('{"define":{"x":1},"v":x}', "-d x=2"),
        ('{"define":{"x":1,"y":x},"v":y}', "-d x=2"),
        ('{"v":template("{x}")}', "-d x=1+1"),
        ("x", "--context args.jx"),
        ("1", "-d x"),
        ("1", "-d x="),
        ("1", "-d x=[1"),
        ("1", "-a missing.jx"),
        ("1", "-a broken.jx"),
        ("1", "missing.jx"),
        ("1", "one two"),
        ("1", "--nonsense"),
        ("ignored", "args.jx"),
        ("{}", "-p"),
        ('{"a":[1,{"b":2}]}', "-p -d x=1"),
        ("a+b*c", "-n"),
        ("", ""),
        ("[1", ""),
    ],
)
def test_the_command_takes_the_options_of_the_original(text: str, options: str, tmp_path: Path) -> None:
    (tmp_path / "args.jx").write_text('{"x":10}')
    (tmp_path / "uses.jx").write_text('{"w":x+1}')
    (tmp_path / "broken.jx").write_text("[1 2")
    words = options.split()
    expected = original(text.encode(), *words, directory=tmp_path)
    assert shoal_jx(text.encode(), *words, directory=tmp_path) == expected


def test_definitions_are_read_from_files_and_texts(tmp_path: Path) -> None:
    (tmp_path / "args.jx").write_text('{"n":4}')
    name = str(tmp_path / "args.jx")
    assert read_settings([("args", name), ("define", "n=1"), ("define", "m=n+1")]) == {"n": 1, "m": 2}
    assert read_settings([("define", "n=1"), ("args", name)]) == {"n": 4}
    with pytest.raises(InputError, match="No such file"):
        read_settings([("args", name + "x")])


def test_directories_are_listed_as_by_the_original(tmp_path: Path) -> None:
    for name in ("b", "a", "c d", "z.txt"):
        (tmp_path / name).write_text("")
    text = f'[listdir("{tmp_path}"), len(listdir("{tmp_path}"))]'.encode()
    assert ours(text) == original(text) != REFUSED


def test_files_are_fetched_as_by_the_original(tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text('{"a":[1,2,"x"]} # comment')
    text = f'[fetch("{tmp_path}/data.json")["a"], [n for n in fetch("{tmp_path}/data.json")["a"]]]'.encode()
    assert ours(text) == original(text) != REFUSED


@contextmanager
def served(content: bytes) -> Iterator[str]:
    """The address of a server on this machine that answers everything with the same content."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/data"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_address_is_fetched() -> None:
    with served(b'{"n":[1,2]}') as address:
        assert ours(f'fetch("{address}")["n"]'.encode()) == "[1,2]"
    assert ours(f'fetch("{address}")["n"]'.encode()) == REFUSED

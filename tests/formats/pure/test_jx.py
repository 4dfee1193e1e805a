"""JX: what expressions mean, where their errors are, and what they may cost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shoal.errors import InputError
from shoal.formats.jx import JxList, JxObject, Value, evaluate, parse_json, parse_jx, to_json, to_jx
from shoal.formats.jx.values import BUDGET, NESTING


class World:
    """An outside with one directory and one file."""

    def listdir(self, path: str) -> Sequence[str]:
        if path != "dir":
            raise FileNotFoundError(2, "No such file or directory", path)
        return ["b", "a"]

    def fetch(self, place: str) -> bytes:
        return {"data": b'{"a":[1,2]}', "broken": b"[1", "expression": b"[1+2]"}[place]


def value(text: str, **context: Value) -> Value:
    return evaluate(parse_jx(text, "t.jx"), context, World())


def error(text: str | bytes) -> InputError:
    with pytest.raises(InputError) as caught:
        evaluate(parse_jx(text, "t.jx"), {}, World())
    return caught.value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10-3-2", 9),
        ("100/10*2", 5),
        ('"a"+1+2', "a3"),
        ("true or true and false", False),
        ("-7/2", -3),
        ("-7%3", -1),
        ("9223372036854775807+1", -(2**63)),
        ("99999999999999999999", 2**63 - 1),
        ("[1,2,3][-2:]", [2, 3]),
        ("[x for x in [1,2], 7]", [1, 2, 7]),
        ('{"a":1,"a":2}["a"]', 1),
        ('keys({"a":1,"b":2})', ["b", "a"]),
        ("false and nothing", False),
        ("[1,2].len()", 2),
        ('{"k"+i:i for i in range(2)}', {"k0": 0, "k1": 1}),
        ('project([{"a":1}],a)', [1]),
        ('project(a,[{"a":1}])', [1]),
        ('project(select([{"a":1},{"a":2}],a>1),a*2)', [4]),
        ("select(" * 9 + '[{"a":1},{"a":2}]' + ",a>1)" * 9, [{"a": 2}]),
        ('project(a*2,select([{"a":1},{"a":2}],a>1))', [4]),
        ('project(a*2,select(a>1,[{"a":1},{"a":2}]))', [4]),
        ('[{"a":1},{"a":2}].select(a>1).project(a*2)', [4]),
        ('"abc".like("^a")', True),
        ('like("^a","abc")', True),
        ('listdir("dir")', ["b", "a"]),
        ('fetch("data")["a"][1]', 2),
        ("1 2 3", 1),
    ],
)
def test_expressions_have_their_values(text: str, expected: Value) -> None:
    found = value(text)
    assert found == expected
    assert type(found) is type(expected) or isinstance(found, (JxList, JxObject))


@pytest.mark.parametrize(
    ("text", "line", "column", "part"),
    [
        ("", 1, 1, "an expression is missing"),
        ("# only a comment\n", 2, 1, "an expression is missing"),
        ("[1,\n 2", 2, 3, "','"),
        ("[1,", 1, 4, "the end of the text"),
        ('{"a" 1}', 1, 6, "':'"),
        ("'a'", 1, 1, "double quotes"),
        ("1 = 2", 1, 3, "=="),
        ('"abc', 1, 1, "not closed"),
        ('["ok", "\\u00e9"]', 1, 9, "ASCII"),
        ("[1,\n\n  $]", 3, 3, "'$'"),
        ("1.2.3", 1, 1, "not a number"),
        ("[x for 5 in y]", 1, 8, "variable"),
        ('"f"(1)', 1, 4, "called"),
        ("\0", 1, 1, "zero byte"),
        ("[1,\n foo]", 2, 2, "'foo' is not defined"),
        ("[1,\n 2 + null]", 2, 4, "'+'"),
        ("1/0", 1, 2, "division by zero"),
        ("[1,2][5]", 1, 6, "index 5"),
        ('{"a":1}["b"]', 1, 8, "'b'"),
        ("1 +\n len(3)", 2, 2, "len: takes a list"),
        ("nosuch(1)", 1, 1, "unknown function"),
        ("[x for x in 5]", 1, 4, "needs a list"),
        ("[x for x in [1] if x]", 1, 20, "condition"),
        ('{1:"a"}', 1, 2, "key must be a string"),
        ('[1, error("boom")]', 1, 5, "boom"),
        ('listdir("nowhere")', 1, 1, "No such file or directory"),
        ('fetch("expression")', 1, 3, "plain data"),
        ('format("%d", "x")', 1, 1, "%d takes a whole number"),
        ('template("{x}")', 1, 1, "'x' is not defined"),
    ],
)
def test_errors_name_their_place(text: str, line: int, column: int, part: str) -> None:
    found = error(text)
    assert (found.line, found.column) == (line, column), str(found)
    assert part in str(found)


def test_an_error_shows_the_line_with_a_caret() -> None:
    assert str(error('{"a":1,\n "b": c}')) == "t.jx:2:7: 'c' is not defined\n     \"b\": c}\n          ^"


def test_an_error_in_a_fetched_file_names_that_file() -> None:
    assert error('fetch("broken")').file == "broken"


def test_without_external_access_nothing_can_be_listed_or_fetched() -> None:
    for text in ('listdir("dir")', 'fetch("data")'):
        with pytest.raises(InputError, match="other files cannot be read"):
            evaluate(parse_jx(text, "t"), {})


def test_objects_and_lists_know_their_position() -> None:
    found = value('{"define":{"n":2},\n "rules":[\n  {"i":i} for i in range(n)\n ],\n "o": range(1)+[2]}')
    assert isinstance(found, JxObject)
    rules, other = found["rules"], found["o"]
    assert isinstance(rules, JxList) and isinstance(other, JxList)
    assert [(rule.file, rule.line, rule.column) for rule in rules if isinstance(rule, JxObject)] == [("t.jx", 3, 3)] * 2
    assert (rules.line, rules.column) == (2, 10)
    assert (other.line, other.column) == (5, 15)


def test_the_context_has_precedence_over_definitions() -> None:
    text = '{"define":{"x":1,"y":x+1},"v":[x,y]}'
    assert value(text) == {"define": {"x": 1, "y": 2}, "v": [1, 2]}
    assert value(text, x=10) == {"define": {"x": 1, "y": 11}, "v": [10, 11]}


def test_only_the_outermost_define_defines() -> None:
    assert value('{"define":{"x":1},"a":{"define":{"x":2},"b":x}}') == {
        "define": {"x": 1},
        "a": {"define": {"x": 2}, "b": 1},
    }


def test_definitions_see_the_names_of_where_they_are_used() -> None:
    text = '{"define":{"i":5,"g":i+1,"h":[g]},"v":[h,[h for i in range(2)],h,[h for g in [0]]]}'
    found = value(text)
    assert isinstance(found, dict)
    assert found["v"] == [[6], [[1], [2]], [6], [[0]]]


def test_fields_of_objects_are_names_inside_of_select() -> None:
    text = '{"define":{"a":9,"b":a},"v":[project(b,[{"a":1},{}]),b]}'
    found = value(text)
    assert isinstance(found, dict)
    assert found["v"] == [[1, 9], 9]


def test_a_definition_is_evaluated_once_and_not_in_every_turn() -> None:
    class Counting(World):
        calls = 0

        def listdir(self, path: str) -> Sequence[str]:
            self.calls += 1
            return ["a"]

    counting = Counting()
    text = '{"define":{"files":listdir("dir")},"v":[files for i in range(100)]}'
    evaluate(parse_jx(text, "t"), {}, counting)
    assert counting.calls <= 2


@pytest.mark.parametrize(
    "text",
    [
        '{"define":{"x":x},"v":1}',
        '{"define":{"x":[y],"y":[x]},"v":1}',
        '{"define":{"x":len([select(x, [{}])])},"v":1}',
        '{"define":{"x":[x' + " for i in [1]" * 900 + ']},"v":1}',
        '{"define":{"x":select(x,x)},"v":1}',
        '{"define":{"x":{"a":-(1+template("{x}"))}},"v":1}',
    ],
)
def test_a_definition_that_uses_itself_is_an_error(text: str) -> None:
    assert "definitions that use themselves" in str(error(text))


@pytest.mark.parametrize(
    ("opening", "middle", "closing"),
    [
        ("[", "", "]"),
        ('{"a":', "1", "}"),
        ("(", "1", ")"),
        ("-", "x", ""),
        ("not ", "true", ""),
        ("len([", "", "])"),
        ("[x for x in ", "[1]", "]"),
        ("[1][", "0", "]"),
        ("", "[1]", "[0]"),
        ("", "[1", " for x in [1]"),
        ("", "x", ".f()"),
        ("[", "", ""),
    ],
)
def test_deep_nesting_is_an_error_with_a_place(opening: str, middle: str, closing: str) -> None:
    found = error(opening * 100_000 + middle + closing * 100_000)
    assert f"deeper than {NESTING}" in str(found)
    assert found.line == 1 and found.column is not None


def test_nesting_up_to_the_limit_works() -> None:
    levels = NESTING - 1
    text = "[" * levels + "1" + "]" * levels
    assert to_json(value(text)) == text
    assert to_jx(parse_jx(text, "t")) == text


def test_long_chains_of_operators_are_not_deep() -> None:
    assert value("+".join(["1"] * 20_000)) == 20_000
    assert to_jx(parse_jx("1" + "-1" * 20_000, "t")) == "1" + "-1" * 20_000


@pytest.mark.parametrize(
    "text",
    [
        "range(1000000000)",
        "range(-9223372036854775807,9223372036854775807)",
        '{"define":{"a":range(1000),"b":[a for i in range(1000)],"c":[b for i in range(1000)]},"v":[c,c]}',
        '{"define":{"a":"0123456789",'
        + ",".join(f'"{chr(98 + i)}":{"+".join([chr(97 + i)] * 10)}' for i in range(12))
        + '},"v":l}',
        "[[x,x] for x in [[x,x] for x in " * 30 + "[1]" + "]]" * 30,
    ],
)
def test_what_yields_too_much_is_an_error_before_memory_is_full(text: str) -> None:
    assert str(BUDGET) in str(error(text))


def test_a_large_list_may_be_used_often() -> None:
    found = value('{"define":{"files":range(20000)},"v":[[files[i], len(files)] for i in range(4000)]}')
    assert isinstance(found, dict) and isinstance(found["v"], list)
    assert found["v"][-1] == [3999, 20000]


def test_text_with_windows_line_ends_and_a_byte_order_mark_is_read() -> None:
    assert value("\ufeff[1,\r\n2] # end\r\n") == [1, 2]


def test_bytes_that_are_not_utf8_are_kept() -> None:
    assert to_json(evaluate(parse_jx(b'"\xff" + "\xc3\xa9"', "t"), {})) == '"\udcff\u00e9"'


def test_json_is_read_as_data() -> None:
    found = parse_json('# comment\n{"a":[1,-2.5,null,],\n "b":{"c":true};}', "w.json")
    assert found == {"a": [1, -2.5, None], "b": {"c": True}}
    assert isinstance(found, JxObject) and isinstance(found["b"], JxObject)
    assert (found["b"].file, found["b"].line, found["b"].column) == ("w.json", 3, 6)


@pytest.mark.parametrize("text", ["[1+2]", "[foo]", "[range(2)]", '["a" for x in [1]]', "[not true]", '{"a":x[0]}'])
def test_expressions_in_json_are_errors(text: str) -> None:
    with pytest.raises(InputError, match="expected plain data") as caught:
        parse_json(text, "w.json")
    assert caught.value.line == 1


def test_written_expressions_keep_their_grouping() -> None:
    for text in ("(10-3)-2", "10-3-2", "-(a+b)", "(a and b) or c", "a and b or c", "(-a)[1]", "(a+b).f(1)[0:-1]"):
        assert to_jx(parse_jx(text, "t")) == text


def test_values_print_as_in_the_original() -> None:
    printed = to_json({"a": [1.0, 0.1, 1e16, 1 / 3], "b'": 'x"\n\x01\u00e9', "c": None})
    assert printed == '{"a":[1,0.1,1e+16,0.3333333333333333],"b\\\'":"x\\"\\n\\u0001\u00e9","c":null}'


def test_pretty_values_stand_one_to_a_line() -> None:
    assert to_json(value('{"a":[1,{"b":[]}]}'), pretty=True).splitlines() == [
        "",
        "{",
        '  "a":',
        "    [",
        "      1,",
        "      ",
        "      {",
        '        "b":',
        "          [",
        "          ]",
        "      }",
        "    ]",
        "}",
    ]


def test_pairs_with_the_same_key_are_all_printed() -> None:
    assert to_json(value('{"a":1,"b":2,"a":3}')) == '{"a":1,"b":2,"a":3}'


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("a.c", "xabcx", True),
        ("^a+?$", "", True),
        ("[]a]", "]", True),
        ("[[:digit:]_]", "_", True),
        (r"(a|b)\1", "ab", False),
        (r"\d", "5", False),
        ("a$", "a\n", False),
        ("^..$", "\u00e9", True),
        ("[", "[", False),
        ("*a", "*a", False),
    ],
)
def test_patterns_are_posix_extended_regular_expressions_on_bytes(pattern: str, text: str, found: bool) -> None:
    assert value("like(p, t)", p=pattern, t=text) is found

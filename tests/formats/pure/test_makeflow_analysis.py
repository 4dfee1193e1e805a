"""What is said of a Makeflow without running it, and how it is drawn: text in, numbers, names and pictures out."""

from __future__ import annotations

import json
import time

import pytest

from shoal.errors import InputError
from shoal.formats.makeflow import Makeflow, parse_makeflow
from shoal.formats.makeflow.analysis import (
    MakeflowExtent,
    bundle_names,
    check_rules,
    input_files,
    listing_order,
    measure,
    output_files,
    rename_files,
)
from shoal.formats.makeflow.drawings import (
    DotOptions,
    by_level,
    draw_cytoscape,
    draw_dot,
    draw_json,
    draw_ppm,
    highlighting_file,
    plain,
    write_dax,
)

LARGE = 100_000


def parse(text: str) -> Makeflow:
    return parse_makeflow(text, source="w.mf", environment={})


def refused(text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        check_rules(parse(text))
    return caught.value


@pytest.mark.parametrize(
    ("text", "extent"),
    [
        ("", MakeflowExtent(0, 1, 0, 0)),
        ("a: b\n\tx\n", MakeflowExtent(1, 1, 1, 0)),
        ("b: a\n\tx\nc: b\n\tx\nd: c\n\tx\n", MakeflowExtent(3, 3, 1, 1)),
        ("d: c\n\tx\nc: b\n\tx\nb: a\n\tx\n", MakeflowExtent(3, 3, 1, 1)),
        ("l r: t\n\tx\nx: l\n\tx\ny: r\n\tx\nz: x y\n\tx\n", MakeflowExtent(4, 3, 2, 2)),
        ("a:\n\tx\nb:\n\tx\nc: a b\n\tx\nd: a b\n\tx\n", MakeflowExtent(4, 2, 2, 0)),
        ("a b:\n\tx\nc: a b a\n\tx\n", MakeflowExtent(2, 2, 1, 1)),
    ],
)
def test_depth_and_widths_are_counted_as_the_original_counts_them(text: str, extent: MakeflowExtent) -> None:
    assert measure(parse(text)) == extent


@pytest.mark.parametrize("step", [1, -1], ids=["forwards", "backwards"])
def test_a_long_chain_is_measured_in_linear_time_without_recursion(step: int) -> None:
    rules = [f"f{n}: f{n - 1}\n\tx\n" for n in range(LARGE)][::step]
    makeflow = parse("".join(rules))
    started = time.process_time()
    assert measure(makeflow) == MakeflowExtent(LARGE, LARGE, 1, 1)
    assert time.process_time() - started < 10


def test_files_are_split_into_those_that_rules_make_and_others() -> None:
    makeflow = parse(".SIZE big 3G\nb c: a\n\tx\nd: b other\n\tx\n")
    assert sorted(input_files(makeflow)) == ["a", "big", "other"]
    assert sorted(output_files(makeflow)) == ["b", "c", "d"]


def test_a_cycle_is_shown_by_its_files() -> None:
    error = refused("x:\n\tt\na: c x\n\tt\nb: a\n\tt\nc: b\n\tt\n")
    assert "cycle" in error.message
    assert {name for name in ("'a'", "'b'", "'c'") if name in error.message} == {"'a'", "'b'", "'c'"}
    assert "'x'" not in error.message
    assert error.line in (3, 5, 7)


def test_a_rule_that_reads_what_it_makes_is_a_cycle() -> None:
    assert refused("a: a\n\tx\n").line == 1


def test_a_long_cycle_is_shortened() -> None:
    error = refused("".join(f"f{n}: f{(n - 1) % 1000}\n\tx\n" for n in range(1000)))
    assert "more" in error.message
    assert len(error.message) < 200


def test_two_makers_of_one_file_are_named_by_their_lines() -> None:
    error = refused("a:\n\tx\nb:\n\tx\na:\n\tx\n")
    assert (error.line, "line 1" in error.message, "'a'" in error.message) == (5, True, True)


def test_the_same_output_twice_in_one_rule_is_fine() -> None:
    check_rules(parse("a a: b\n\tx\n"))


def test_names_are_listed_once_and_completely_however_many() -> None:
    names = [f"name{number}" for number in range(1000)]
    assert sorted(listing_order(names + names)) == sorted(names)


def test_names_are_listed_in_the_order_seen_of_the_original() -> None:
    assert listing_order(["a", "b", "c", "d", "e", "f", "c/x"]) == ["d", "f", "a", "c", "b", "c/x", "e"]


def test_absolute_inputs_get_free_names_in_a_bundle() -> None:
    makeflow = parse("out: /etc/hosts /x/hosts /y/out in\n\tcat /etc/hosts /etc/hosts.allow /x/hosts in > out\n")
    names = bundle_names(makeflow)
    assert names["in"] == "in"
    assert {names["/etc/hosts"], names["/x/hosts"]} == {"hosts", "hosts1"}
    assert names["/y/out"] == "out1"
    (rule,) = rename_files(makeflow, names).rules
    assert rule.inputs == (names["/etc/hosts"], names["/x/hosts"], "out1", "in")
    assert rule.command == f"cat {names['/etc/hosts']} /etc/hosts.allow {names['/x/hosts']} in > out"


def dot(text: str, options: DotOptions | None = None, sizes: dict[str, int] | None = None) -> str:
    return "".join(draw_dot(parse(text), options or DotOptions(), (sizes or {}).get))


def test_a_drawing_has_a_node_per_task_and_file_and_an_edge_per_use() -> None:
    drawn = dot("b: a a\n\tcp a b\n")
    assert 'N0 [label="cp"];' in drawn
    assert drawn.count("F0 -> N0;") == 2
    assert drawn.count("N0 -> F1;") == 1


def test_similar_tasks_are_merged_and_counted() -> None:
    drawn = dot("b: a\n\tcp a b\nc: b\n\tcp b c\nd: c\n\tmv c d\n", DotOptions(merge_similar=True))
    assert 'label="cp x2"' in drawn
    assert 'label="mv"' in drawn
    assert "N0" not in drawn


def test_names_with_quotes_and_backslashes_stay_within_their_quotes() -> None:
    assert r'label = "a\"b\\c"' in dot("'a\"b\\\\c':\n\tx\n")


def test_boxes_are_in_proportion_to_sizes() -> None:
    drawn = dot("o: big small\n\tx\n", DotOptions(proportional=True), {"big": 3000, "small": 1000})
    assert 'big\\nsize:3kb", style=filled, fillcolor=skyblue1, fixedsize=true, width=7.500000' in drawn
    assert "width=2.500000" in drawn
    assert 'label = "o", fixedsize = false' in drawn


def test_details_show_what_a_task_asks_for_and_sees() -> None:
    drawn = dot("o: i\nMEMORY=200\nGPUS=3\n\tx\n", DotOptions(details=True))
    assert "memory: 200 MB" in drawn and "gpus: 3" in drawn and "cores: -1.000" in drawn
    assert "F0 -> src_0_0;" in drawn and "src_0_0 -> N0;" in drawn


def test_json_says_what_the_document_says() -> None:
    text = ".MAKEFLOW CATEGORY big\nCORES=4\nb->there: a\nMEMORY=9\nX=y\n\tLOCAL cp a b\nc: b\n\tMAKEFLOW child.mf\n"
    drawn = json.loads("".join(draw_json(parse(text))))
    assert drawn["categories"]["big"] == {"resources": {"cores": 4}, "environment": {"CORES": "4"}}
    first, second = drawn["rules"]
    assert first["outputs"] == [{"dag_name": "b", "task_name": "there"}]
    assert first["resources"] == {"memory": 9}
    assert (first["command"], first["local_job"], first["category"]) == ("cp a b", True, "big")
    assert second["workflow"] == "child.mf"
    assert "command" not in second and "args" not in second


def picture(text: str, *, levels: bool = False, file: str | None = None) -> tuple[int, int, bytes]:
    colour = by_level if levels else highlighting_file(file) if file else plain
    header, size, most, pixels = b"".join(draw_ppm(parse(text), colour)).split(b"\n", 3)
    assert (header, most) == (b"P6", b"1")
    width, height = map(int, size.split())
    assert len(pixels) == 3 * width * height
    return width, height, pixels


def test_a_picture_has_a_row_per_level_and_a_cell_per_task() -> None:
    width, height, pixels = picture("a:\n\tx\nb: a\n\tx\nc: a\n\tx\n", levels=True)
    row = 3 * width
    assert (width, height) == (1200, 800)
    assert pixels[:row] == b"\1\1\1" * 300 + b"\1\0\0" * 600 + b"\1\1\1" * 300
    assert pixels[-row:] == b"\0\1\0" * 1200


def test_the_maker_of_a_file_is_marked() -> None:
    assert b"\1\0\1" in picture("a:\n\tx\n", file="a")[2]
    assert b"\1\0\1" not in picture("a:\n\tx\n", file="b")[2]


def test_drawing_a_workflow_without_rules_is_an_error_and_not_a_crash() -> None:
    with pytest.raises(InputError, match="no rules to draw"):
        picture("")


def test_xml_is_well_formed_whatever_the_names_are() -> None:
    from xml.etree.ElementTree import fromstring

    makeflow = parse("'<a>&\"': 'b\\'\\\\'\n\tcat '<' \"&\"\nc: '<a>&\"'\n\tx y\n")
    assert len(fromstring("".join(draw_cytoscape(makeflow, "today")))) > 4
    assert len(fromstring("".join(write_dax(makeflow, "w.mf", "today", "me")))) == 3


def test_a_command_with_two_redirections_has_no_dax() -> None:
    with pytest.raises(InputError, match="one redirection"):
        list(write_dax(parse("a:\n\tx > a 2> b\n"), "w.mf", "today", "me"))

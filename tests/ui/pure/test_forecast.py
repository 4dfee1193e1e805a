"""What is made of predictions: sizes of clusters, rates and times as users write them, advice, words and drawings."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InputError
from shoal.sim.cluster.result import SimulationResult
from shoal.sim.forecast import Prediction, advise
from shoal.ui.cli.predictions import policies_of, rate_of, recommend, seconds_of, show_makespan, speed_of
from shoal.ui.cli.scaling import draw, node_counts

SVG = "{http://www.w3.org/2000/svg}"


def predicted(nodes: int, makespan: float, policy: str = "flds", spread: float = 0.0) -> Prediction:
    played = SimulationResult(10, nodes, 2 * nodes, makespan, makespan, makespan, 0, 0, 0, 0, 0, 0, 0, 0, None, 0)
    if not spread:
        return Prediction(policy, nodes, played, makespan)
    return Prediction(policy, nodes, played, makespan, makespan * (1 - spread), makespan * (1 + spread), 5)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("8", [8]),
        ("1,4,2,4", [1, 2, 4]),
        ("1..64", [1, 2, 4, 8, 16, 32, 64]),
        ("1..50", [1, 2, 4, 8, 16, 32, 50]),
        ("3..20", [3, 6, 12, 20]),
        ("1..64:2x", [1, 2, 4, 8, 16, 32, 64]),
        ("1..64:4x", [1, 4, 16, 64]),
        ("10..50:10", [10, 20, 30, 40, 50]),
        ("1..5:2", [1, 3, 5]),
        ("1..4, 100", [1, 2, 4, 100]),
        ("7..7", [7]),
    ],
)
def test_numbers_of_nodes_are_written_as_lists_and_ranges(text: str, counts: list[int]) -> None:
    assert node_counts(text) == counts


@pytest.mark.parametrize(
    "text",
    ["", "0", "-1", "0..4", "8..1", "1..", "..8", "1-8", "1..8:1x", "1..8:0", "1..8:x", "a", "1..9:-1", "1..1000000",
     "1..5000:1", "1.5", "9" * 5000],
)  # fmt: skip
def test_what_is_no_number_of_nodes_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(InputError) as caught:
        node_counts(text)
    assert "\n" not in str(caught.value)


@given(st.text(alphabet="0123456789.,:x ", max_size=12))
def test_any_text_gives_numbers_of_nodes_or_is_refused(text: str) -> None:
    try:
        counts = node_counts(text)
    except InputError:
        return
    assert counts == sorted(set(counts))
    assert counts[0] >= 1


@pytest.mark.parametrize(
    ("text", "rate"),
    [("10Gb/s", 1.25e9), ("8 Mbit/s", 1e6), ("800kbps", 1e5), ("1M", 2**20), ("2MB/s", 2 * 2**20), ("500", 500.0)],
)
def test_rates_are_bits_or_bytes(text: str, rate: float) -> None:
    assert rate_of(text, "--bandwidth") == rate


@pytest.mark.parametrize("text", ["", "fast", "0", "0Gb/s", "-1M", "1..2Gb/s", "10Xb/s", "1Gb/h"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--bandwidth"):
        rate_of(text, "--bandwidth")


def test_times_and_speeds_are_read_with_their_units() -> None:
    assert seconds_of("0.2ms", "--latency") == pytest.approx(0.0002)
    assert seconds_of("5us", "--latency") == pytest.approx(5e-6)
    assert (seconds_of("2", "--latency"), seconds_of("1 s", "--latency"), speed_of("1.5")) == (2.0, 1.0, 1.5)
    for bad in ("", "-1", "1 h", "1.2.3"):
        with pytest.raises(InputError, match="is not a time"):
            seconds_of(bad, "--latency")
    for bad in ("0", "-2", "fast", "nan", "inf"):
        with pytest.raises(InputError, match="--speed must be a number above 0"):
            speed_of(bad)


def test_policies_are_named_once_each_and_must_exist() -> None:
    assert policies_of(None) == ["flds"]
    assert policies_of("mlb, flds,mlb") == ["mlb", "flds"]
    with pytest.raises(InputError, match="there is no policy 'x'; choose one of flds"):
        policies_of("flds,x")


def test_the_advice_is_the_fewest_nodes_that_are_nearly_as_fast_and_the_cheapest_of_the_patient() -> None:
    times = {1: 100.0, 2: 50.0, 4: 26.0, 8: 16.0, 16: 15.0}
    advice = advise([predicted(nodes, seconds) for nodes, seconds in times.items()])
    assert (advice.fastest.nodes, advice.near.nodes, advice.cheapest.nodes) == (16, 8, 4)
    assert recommend(advice) == (
        "take 8 nodes with flds: 16 s is within 10 % of the best time, 15 s on 16 nodes with flds; "
        "the cheapest within twice the best time is 4 nodes with flds, 0.0289 node hours in 26 s"
    )


def test_if_one_choice_is_best_in_all_respects_the_advice_is_short() -> None:
    advice = advise([predicted(2, 10.0, "mlb"), predicted(2, 10.0), predicted(4, 10.0)])
    assert recommend(advice) == (
        "take 2 nodes with mlb: with 10 s the fastest, and with 0.00556 node hours the cheapest within twice that time"
    )


def test_error_bars_stand_behind_the_time() -> None:
    assert show_makespan(predicted(1, 10.0)) == "10 s"
    assert show_makespan(predicted(1, 10.0, spread=0.1)) == "10 s (9 s to 11 s)"


def test_the_plot_has_a_line_per_policy_and_panel_and_the_lower_bound() -> None:
    counts = (1, 2, 4, 8)
    predictions = [predicted(n, 100 / n, policy, 0.1) for policy in ("flds", "<mlb>") for n in counts]
    root = ElementTree.fromstring(draw(predictions, [(n, 90 / n) for n in counts], "a & b"))
    in_legend = 3
    assert len(root.findall(f"{SVG}polyline")) == 2 * 2 + 1 + in_legend
    assert len(root.findall(f"{SVG}circle")) == 2 * 2 * len(counts)
    shown = [text.text for text in root.findall(f"{SVG}text")]
    assert {"a & b", "flds", "<mlb>", "lower bound", "makespan", "cost in node hours", "8"} <= set(shown)


@given(
    st.lists(st.integers(1, 100_000), min_size=1, max_size=8, unique=True),
    st.floats(1e-6, 1e9, allow_nan=False),
    st.floats(0.0, 0.9),
)
def test_all_points_of_a_plot_lie_inside_it(counts: list[int], seconds: float, spread: float) -> None:
    predictions = [predicted(n, seconds / n, spread=spread) for n in sorted(counts)]
    root = ElementTree.fromstring(draw(predictions, [(n, 0.0) for n in sorted(counts)], ""))
    for circle in root.findall(f"{SVG}circle"):
        assert 0 <= float(circle.get("cx", "-1")) <= float(root.get("width", "0"))
        assert 0 <= float(circle.get("cy", "-1")) <= float(root.get("height", "0"))

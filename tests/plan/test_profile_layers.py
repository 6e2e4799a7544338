"""Profiles by layer and by name, medians of several runs, and who was preempted."""

from __future__ import annotations

import random
from typing import Any

import pytest

from semel.plan.report.layers import Repeat, by_layer, by_name, common_origin, find_repeats
from semel.plan.report.profile import ProfileReport
from semel.plan.report.records import (
    ProfiledOp,
    RunInfo,
    find_preempted,
    merge_runs,
    middle,
)
from semel.runtime.measured import Event, MachineLimits, Span


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ("", []),
        ("a", [(0, 1, 1)]),
        ("abc", [(0, 3, 1)]),
        ("xababab", [(0, 1, 1), (1, 2, 3)]),
        ("xabcabcy", [(0, 1, 1), (1, 3, 2), (7, 1, 1)]),
        ("aab", [(0, 3, 1)]),  # twice the same is no layer
        ("aaaab", [(0, 1, 4), (4, 1, 1)]),
        ("abababcxyxyxyxyxy", [(0, 2, 3), (6, 1, 1), (7, 2, 5)]),
        ("ababab" * 2, [(0, 2, 6)]),  # the shortest part of what covers as much
    ],
)
def test_what_repeats_is_found(names: str, found: list[tuple[int, int, int]]) -> None:
    assert find_repeats(names) == [Repeat(*each) for each in found]


def test_repeats_cover_everything_once_and_are_true() -> None:
    rng = random.Random(0)
    for _ in range(50):
        names = [rng.choice("abc") for _ in range(rng.randrange(40))]
        at = 0
        for each in find_repeats(names):
            assert each.first == at
            at = each.end
            part = names[each.first : each.first + each.length]
            assert names[each.first : each.end] == part * each.count
        assert at == len(names)


def _op(index: int, name: str, origin: str = "") -> ProfiledOp:
    return ProfiledOp(
        kernel=None,
        device="cpu",
        num_buffers=1,
        name=name,
        kind="kernel",
        op_index=index,
        row=index,
        step=index,
        tiles=1,
        bytes=1000,
        flops=10,
        origins=(origin,) if origin else (),
    )


NAMES = ["embed", *["attend", "feed"] * 3, "head"]


def _runs(*slow: tuple[int, int]) -> list[list[Event]]:
    """Five runs in which every op takes 10 us, but 500 us for (run, op) of `slow`."""
    runs = []
    for run in range(5):
        at, events = 0, []
        for op in range(len(NAMES)):
            took = 500_000 if (run, op) in slow else 10_000 + 100 * run
            events.append(Event(op, Span(0, at, at + took, 1)))
            at += took
        runs.append(events)
    return runs


def _report(*slow: tuple[int, int], **more: Any) -> ProfileReport:
    ops = [_op(i, name, f"/model/layer.{(i - 1) // 2}/x/{name}") for i, name in enumerate(NAMES)]
    runs = _runs(*slow)
    limits = MachineLimits(1, 1e11, 1e7)
    return ProfileReport(merge_runs(ops, runs, limits), RunInfo("cpu", 1, runs=5, **more))


def test_layers_and_names_add_up() -> None:
    report = _report()
    before, layers, behind = report.layers
    assert (layers.label, layers.count, layers.length) == ("3 x attend, feed", 3, 2)
    assert (layers.first, layers.last) == (1, 6)
    assert layers.where == "/model/layer.*/x"
    assert (before.label, behind.label) == ("embed", "head")
    assert sum(layer.elapsed for layer in report.layers) == pytest.approx(report.sum_seconds)
    assert sum(name.elapsed for name in report.names) == pytest.approx(report.sum_seconds)
    assert {name.name: name.count for name in report.names}["feed"] == 3
    assert not by_layer([]) and not by_name([])


def test_a_preempted_op_is_marked_and_left_out_of_the_spread() -> None:
    report = _report((2, 3), makespans=(1e-4,) * 5)
    disturbed = report[3]
    assert disturbed.preempted == (2,)
    assert disturbed.elapsed == pytest.approx(1.02e-5, rel=0.02)
    assert disturbed.spread < 0.03 and max(disturbed.samples) == 5e-4
    assert all(not p.preempted for i, p in enumerate(report) if i != 3)
    text = report.table()
    assert "p1 2%" in text
    assert "p: 1 ops were preempted" in text
    assert "medians of 5 runs" in text
    # The run that is shown is not the one that was disturbed.
    assert report.makespan_seconds < 1e-3


def test_who_was_preempted_is_judged_by_the_median_and_by_the_system() -> None:
    assert find_preempted([1e-5, 9e-5]) == ()  # nobody knows
    assert find_preempted([1e-5, 1e-5, 9e-5]) == (2,)
    assert find_preempted([1e-5, 1e-5, 3e-5]) == ()
    assert find_preempted([1e-5, 1e-5, 3e-5], (0, 0, 1)) == (2,)
    assert find_preempted([1e-7, 1e-7, 1e-6]) == ()  # the clock knows no better
    assert [middle(x) for x in ([3.0], [2.0, 1.0], [3.0, 1.0, 2.0])] == [0, 1, 2]


def test_the_table_shows_layers_and_fits_a_terminal() -> None:
    lines = _report().table().splitlines()
    assert lines[0].split() == ["share", "us", "each", "ops", "what", "where"]
    assert any("75.0%" in line and "3 x attend, feed" in line for line in lines)
    for width in (60, 80, 120):
        tables = _report().table(width=width).split("sum ")[0].splitlines()
        assert max(map(len, tables)) <= width
        assert any("3 x attend" in line for line in tables)


def test_a_report_shows_itself_in_a_notebook_and_in_one_line() -> None:
    report = _report()
    assert repr(report).startswith("ProfileReport(8 ops on cpu, ")
    assert "median of 5 runs" in repr(report)
    page = report._repr_html_()
    assert "by layer" in page and "3 x attend, feed" in page
    data = report.json()
    assert data["layers"][1]["count"] == 3
    assert data["ops"][0]["samples"] and data["names"]


def test_origins_have_in_common_what_they_begin_with() -> None:
    assert common_origin([]) == ""
    assert common_origin(["a.py:3", "a.py:3"]) == "a.py:3"
    assert common_origin(["a.py:3", "a.py:17"]) == "a.py:*"
    assert common_origin(["/l.0/q", "/l.1/k"]) == "/l.*"
    assert common_origin(["x", "y"]) == ""

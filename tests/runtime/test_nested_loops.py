"""Loops inside loops in the op table: what changes where, and what may be read where."""

from __future__ import annotations

import pytest
from tests.runtime.tables import Sheet, cell, journal, noted

from semel.errors import InternalError
from semel.ir.abi import Code, Header, RowKind
from semel.ir.expr import Variable
from semel.runtime.optable import TableLoop, TableRow

N = Variable("n", 0, 100)
A, B, C = Variable("i", 0, 1 << 20), Variable("j", 0, 1 << 20), Variable("k", 0, 1 << 20)


def test_counters_of_two_loops_stand_in_one_expression() -> None:
    log, sheet = journal(), Sheet([N])
    sheet.loop(A, N)
    sheet.loop(B, 3)
    sheet.call("note", log, value=100 * A + 10 * B + N)
    sheet.end()
    sheet.call("note", log, value=-A)
    sheet.end()
    running = sheet.start()
    for n in (2, 0, 4):
        assert running.run(n) == Code.OK
        expected = [[*(100 * i + 10 * j + n for j in range(3)), -i] for i in range(n)]
        assert noted(log) == [value for turn in expected for value in turn]


def test_a_trip_may_depend_on_the_counter_outside() -> None:
    log, sheet = journal(), Sheet([N])
    sheet.loop(A, N)
    sheet.loop(B, A)
    sheet.loop(C, A - B)
    sheet.call("note", log, value=100 * A + 10 * B + C)
    sheet.end()
    sheet.end()
    sheet.end()
    running = sheet.start()
    for n in (5, 1, 3, 0):
        assert running.run(n) == Code.OK
        expected = [100 * i + 10 * j + k for i in range(n) for j in range(i) for k in range(i - j)]
        assert noted(log) == expected


def test_what_needs_the_outer_counter_alone_is_not_done_in_the_inner_loop() -> None:
    log, sheet = journal(), Sheet()
    sheet.loop(A, 4)
    sheet.loop(B, 5)
    sheet.call("note", log, value=A * A * A)
    sheet.end()
    sheet.end()
    running = sheet.start()
    program = running.table._program
    inner, outer = program.late
    assert (len(inner), len(outer)) == (0, 2)
    assert running.run() == Code.OK
    assert noted(log) == [i * i * i for i in range(4) for _ in range(5)]


def test_tiles_may_depend_on_counters() -> None:
    array, sheet = cell(), Sheet()
    sheet.loop(A, 3)
    sheet.loop(B, 2)
    sheet.call("add", array, value=1, tiles=A + 2 * B)
    sheet.end()
    sheet.end()
    assert sheet.start().run() == Code.OK
    assert array.tolist() == [5, 4, 2, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_failure_in_an_inner_loop_ends_all_of_them(threads: int) -> None:
    log, sheet = journal(), Sheet()
    sheet.loop(A, 10)
    sheet.loop(B, 10)
    sheet.call("note", log, value=10 * A + B)
    sheet.call("fail", value=10 * A + B, tiles=(A * B) // 6)
    sheet.end()
    sheet.call("note", log, value=-A)
    sheet.end()
    sheet.call("note", log, value=1000)
    running = sheet.start(threads)
    for _ in range(2):
        assert running.run() == Code.STATUS
        assert running.table.words[Header.STATUS_VALUE] == 16
        assert noted(log) == [*range(10), 0, *range(10, 17)]
        # Loops are kept in the order of their ends.
        assert [running.table.iteration(k) for k in (0, 1)] == [6, 1]


def test_a_run_comes_back_in_the_middle_of_nested_loops_and_goes_on() -> None:
    array, sheet = cell(), Sheet()
    sheet.loop(A, 30)
    sheet.loop(B, 40)
    sheet.call("add", array, value=A * B)
    sheet.end()
    sheet.end()
    running = sheet.start()
    running.table.words[Header.SLICE_TICKS] = 500
    assert running.run() == Code.OK
    assert running.codes.count(Code.AGAIN) > 3
    assert array[0] == sum(range(30)) * sum(range(40))


def test_a_profile_counts_what_was_run() -> None:
    log, sheet = journal(), Sheet()
    sheet.loop(A, 4)
    sheet.loop(B, A)
    sheet.call("note", log, value=B)
    sheet.end()
    sheet.end()
    running = sheet.start()
    profile = running.profile()
    assert len(profile.events()) == 6 and profile.dropped == 0
    assert profile.count_steps() == (1 + 4 + 6 + 4 + 1, 0, 0)


def test_work_of_all_iterations_of_all_loops_is_estimated() -> None:
    array, sheet = cell(), Sheet([N])
    sheet.loop(A, N)
    sheet.loop(B, 3)
    sheet.call("add", array, tiles=8, flops=50 * 40_000)
    sheet.end()
    sheet.end()
    sheet.call("add", array, tiles=8, flops=50 * 40_000)
    running = sheet.start(2)
    for n in (0, 7):
        running.bind(n)
        assert running.table.words[Header.LARGE_WORK] == 40_000 * (3 * n + 1)


# ---------------------------------------------------------------- refusals


def test_a_counter_is_refused_outside_its_loop() -> None:
    log, sheet = journal(), Sheet()
    sheet.loop(A, 4)
    sheet.end()
    sheet.call("note", log, value=A)
    with pytest.raises(InternalError, match="step 2 reads what only i says"):
        sheet.table()


def test_a_trip_over_the_loop_itself_is_refused() -> None:
    sheet = Sheet()
    sheet.loop(A, A + 1)
    sheet.end()
    with pytest.raises(InternalError, match="step 0 reads what only i says"):
        sheet.table()


def test_counters_of_loops_side_by_side_are_refused() -> None:
    log, sheet = journal(), Sheet()
    sheet.loop(A, 4)
    sheet.end()
    sheet.loop(B, 4)
    sheet.call("note", log, value=A + B)
    sheet.end()
    with pytest.raises(InternalError, match="i, j have no values at the same time"):
        sheet.table()


def test_a_guard_over_a_counter_is_refused() -> None:
    sheet = Sheet(guards=[A])
    sheet.loop(A, 4)
    sheet.end()
    with pytest.raises(InternalError, match="guard 0 holds the counter"):
        sheet.table()


def test_loops_that_cross_are_refused() -> None:
    sheet = Sheet()
    for kind in (RowKind.LOOP, RowKind.LOOP, RowKind.END, RowKind.END):
        sheet.add(TableRow(kind, 0, (), (), 1))
    sheet.loops = [TableLoop(A, 0, 2), TableLoop(B, 1, 3)]
    with pytest.raises(InternalError, match="loops of i and j must nest"):
        sheet.table()


def test_a_control_step_without_a_record_is_refused() -> None:
    sheet = Sheet()
    sheet.add(TableRow(RowKind.LOOP, 0, (), (), 1))
    with pytest.raises(InternalError, match=r"control steps are .*LOOP"):
        sheet.table()

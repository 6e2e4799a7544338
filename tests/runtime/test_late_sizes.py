"""Rebinds in the op table: variables whose values kernels write during the run."""

from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.tables import Sheet, cell, journal, noted

from semel.errors import InternalError
from semel.ir.abi import Code, Header, Segment
from semel.ir.expr import Variable, maximum

N = Variable("n", 0, 1000)
L, M = Variable("late", 0, 64), Variable("more", -5, 5)
A, B = Variable("i", 0, 1 << 40), Variable("j", 0, 1 << 40)


@pytest.mark.parametrize("threads", [1, 2])
def test_what_a_kernel_wrote_is_a_size_of_later_rows(threads: int) -> None:
    source, array, log, sheet = cell(), np.zeros(256, np.int64), journal(), Sheet([N])
    sheet.call("put", source, value=2 * N + 1)
    sheet.rebind({L: source})
    sheet.call("put", array, value=L * N, tiles=L)
    sheet.call("note", log, value=L + 1000 * N)
    running = sheet.start(threads)
    for n in (3, 0, 31, 4):
        array[:] = -1
        assert running.run(n) == Code.OK
        size = 2 * n + 1
        assert running.table.value(1) == size
        assert array.tolist() == [size * n] * size + [-1] * (256 - size)
        assert noted(log) == [size + 1000 * n]


def test_a_late_variable_may_be_a_trip() -> None:
    source, log, sheet = cell(), journal(), Sheet()
    sheet.rebind({L: source})
    sheet.loop(A, L)
    sheet.loop(B, L - A)
    sheet.call("note", log, value=100 * L + 10 * A + B)
    sheet.end()
    sheet.end()
    running = sheet.start()
    for size in (3, 0, 4):
        source[0] = size
        assert running.run() == Code.OK
        pairs = [(i, j) for i in range(size) for j in range(size - i)]
        assert noted(log) == [100 * size + 10 * i + j for i, j in pairs]


def test_a_rebind_in_a_loop_is_read_in_each_iteration() -> None:
    source, log, sheet = cell(), journal(), Sheet([N])
    sheet.loop(A, N)
    sheet.call("put", source, value=A * A)
    sheet.rebind({L: source})
    sheet.call("note", log, value=100 * L + A)
    sheet.loop(B, L)
    sheet.call("note", log, value=-B - 10 * L - 1000 * A)
    sheet.end()
    sheet.end()
    running = sheet.start()
    for n in (4, 2):
        assert running.run(n) == Code.OK
        expected = [
            [100 * i * i + i, *(-j - 10 * i * i - 1000 * i for j in range(i * i))] for i in range(n)
        ]
        assert noted(log) == [value for turn in expected for value in turn]


def test_two_rebinds_meet_in_one_expression() -> None:
    first, second, log, sheet = cell(7), cell(-2), journal(), Sheet()
    sheet.rebind({L: first})
    sheet.rebind({M: second})
    sheet.call("note", log, value=L * M)
    running = sheet.start()
    assert running.run() == Code.OK and noted(log) == [-14]


def test_one_rebind_takes_several_variables() -> None:
    first, second, log, sheet = cell(9), cell(-5), journal(), Sheet()
    sheet.rebind({L: first, M: second})
    sheet.call("note", log, value=L + 10 * M)
    running = sheet.start()
    assert running.run() == Code.OK and noted(log) == [-41]


# ---------------------------------------------------------------- refusals of a run


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("bad", [-1, 65, -(1 << 63)])
def test_a_value_out_of_bounds_ends_the_run(threads: int, bad: int) -> None:
    fine, source, log, sheet = cell(1), cell(), journal(), Sheet([N])
    sheet.call("note", log, value=N)
    sheet.rebind({M: fine, L: source})
    sheet.call("note", log, value=L)
    running = sheet.start(threads)
    source[0] = 5
    assert running.run(2) == Code.OK and noted(log) == [2, 5]
    source[0] = bad
    assert running.run() == Code.VARIABLE
    assert running.table.words[Header.ERROR_INDEX] == 2  # n, more, late
    assert running.table.value(2) == bad
    assert noted(log) == [2]
    source[0] = 64
    assert running.run() == Code.OK and noted(log) == [2, 64]


def test_a_guard_over_a_late_variable_is_checked_at_its_rebind() -> None:
    source, log = cell(), journal()
    sheet = Sheet([N], guards=[maximum(0, N - 50), maximum(0, L - N)])
    sheet.call("note", log, value=N)
    sheet.rebind({L: source})
    sheet.call("note", log, value=L)
    running = sheet.start()
    for n, size, code, expected in (
        (10, 10, Code.OK, [10, 10]),
        (10, 11, Code.GUARD, [10]),
        (12, 11, Code.OK, [12, 11]),
        (51, 0, Code.GUARD, []),
        (50, 0, Code.OK, [50, 0]),
    ):
        source[0] = size
        assert running.run(n) == code
        assert noted(log) == expected
        if code == Code.GUARD:
            assert running.table.words[Header.ERROR_INDEX] == (0 if n > 50 else 1)


def test_a_rebind_that_refuses_in_a_loop_ends_the_run() -> None:
    source, log, sheet = cell(), journal(), Sheet()
    sheet.loop(A, 100)
    sheet.call("put", source, value=20 * A)
    sheet.rebind({L: source})
    sheet.call("note", log, value=L)
    sheet.end()
    running = sheet.start()
    for _ in range(2):
        assert running.run() == Code.VARIABLE
        assert noted(log) == [0, 20, 40, 60] and running.table.iteration(0) == 4


def test_a_failure_before_a_rebind_is_what_is_reported() -> None:
    source, sheet = cell(-9), Sheet()
    sheet.call("fail", value=3)
    sheet.rebind({L: source})
    running = sheet.start()
    assert running.run() == Code.STATUS
    assert running.table.words[Header.STATUS_VALUE] == 3


def test_marks_keep_the_largest_late_value_that_was_used() -> None:
    source, sheet = cell(), Sheet()
    sheet.rebind({L: source})
    running = sheet.start(marks=[2 * L])
    for size, mark in ((5, 10), (3, 10), (65, 10), (40, 80)):
        source[0] = size
        running.run()
        assert running.table.marks == [mark]


# ---------------------------------------------------------------- chunks


@pytest.mark.parametrize("jitter", [False, True])
def test_chunks_are_cut_again_while_workers_look_for_some(jitter: bool) -> None:
    """Each iteration has another number of chunks: each tile is worked on exactly once.

    A worker that read the number of chunks in one iteration must not take one in the next.
    """
    rounds, found = 400, []
    sizes = [(2, 4, 2, 6)[i % 4] for i in range(rounds)]
    for threads in (1, 2):
        source, array = cell(), np.zeros(64, np.int64)
        sheet = Sheet([N])
        sheet.loop(A, N)
        sheet.call("put", source, value=2 + (A % 2) * (A % 4 + 1))
        sheet.rebind({L: source})
        sheet.call("add", array, value=A + 1, tiles=L, flops=50 * 200_000 * L)
        sheet.end()
        running = sheet.start(threads, jitter=jitter)
        running.table.words[Header.SLICE_TICKS] *= 1000  # no worker is too late to be waited for
        assert running.run(rounds) == Code.OK
        found.append(array.tolist())
    expected = np.zeros(64, np.int64)
    for i, size in enumerate(sizes):
        expected[:size] += i + 1
    assert found == [expected.tolist()] * 2


def test_chunks_follow_the_late_size() -> None:
    source, array, sheet = cell(), np.zeros(64, np.int64), Sheet()
    sheet.rebind({L: source})
    sheet.call("add", array, value=1, tiles=L, flops=50 * 20_000 * L)
    running = sheet.start(2)
    for size, chunks in ((64, 8), (3, 2), (0, 0), (1, 1), (5, 4)):
        source[0] = size
        assert running.run() == Code.OK
        segment = running.table.segments.reshape(-1, 8)[1]
        assert segment[Segment.NUM_CHUNKS] == chunks and segment[Segment.TILES] == size


def test_a_profile_has_every_call_of_late_chunks() -> None:
    source, array, sheet = cell(40), np.zeros(64, np.int64), Sheet()
    sheet.rebind({L: source})
    sheet.call("add", array, value=1, tiles=L, flops=50 * 20_000 * L)
    running = sheet.start(2)
    profile = running.profile()
    assert sum(event.span.tiles for event in profile.events()) == 40
    assert len(profile.events()) == 8 and profile.dropped == 0
    assert profile.count_steps() == (2, 1, 0)


# ---------------------------------------------------------------- refusals of a table


def test_a_late_variable_is_refused_before_its_rebind() -> None:
    source, log, sheet = cell(), journal(), Sheet()
    sheet.call("note", log, value=L)
    sheet.rebind({L: source})
    with pytest.raises(InternalError, match="step 0 reads what only late says"):
        sheet.table()


def test_a_late_variable_is_refused_behind_the_loop_it_is_of() -> None:
    source, log, sheet = cell(), journal(), Sheet()
    sheet.loop(A, 3)
    sheet.rebind({L: source})
    sheet.end()
    sheet.call("note", log, value=L)
    with pytest.raises(InternalError, match="step 3 reads what only late says"):
        sheet.table()


def test_a_late_variable_of_one_arm_is_refused_in_the_other() -> None:
    source, log, sheet = cell(), journal(), Sheet()
    branch = sheet.branch(source)
    sheet.rebind({L: source})
    sheet.call("note", log, value=L)
    jump = sheet.jump()
    sheet.lands(branch)
    sheet.call("note", log, value=L)
    sheet.lands(jump)
    with pytest.raises(InternalError, match="step 4 reads what only late says"):
        sheet.table()

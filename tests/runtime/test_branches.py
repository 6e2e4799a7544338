"""Branches, jumps and conditional loops in the op table."""

from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.tables import Array, Sheet, cell, journal, noted

from semel.errors import InternalError
from semel.ir.abi import Code, Header
from semel.ir.expr import Variable

N = Variable("n", 0, 1 << 40)
A, B = Variable("i", 0, 1 << 40), Variable("j", 0, 1 << 40)
FOREVER = 1 << 62


def flag(value: bool = False) -> Array:
    return np.full(8, value, np.bool_)


@pytest.mark.parametrize("threads", [1, 2])
def test_one_arm_of_two_is_run(threads: int) -> None:
    log, condition, sheet = journal(), flag(), Sheet()
    branch = sheet.branch(condition)
    sheet.call("note", log, value=1)
    sheet.call("note", log, value=2)
    jump = sheet.jump()
    sheet.lands(branch)
    sheet.call("note", log, value=3)
    sheet.lands(jump)
    sheet.call("note", log, value=4)
    running = sheet.start(threads)
    for taken in (True, False, True, False):
        condition[0] = taken
        condition[1:] = not taken
        assert running.run() == Code.OK
        assert noted(log) == ([1, 2, 4] if taken else [3, 4])


def test_any_byte_but_zero_is_true() -> None:
    log, condition, sheet = journal(), np.zeros(8, np.uint8), Sheet()
    branch = sheet.branch(condition)
    sheet.call("note", log, value=1)
    sheet.lands(branch)
    running = sheet.start()
    for byte, expected in ((0, []), (1, [1]), (128, [1]), (255, [1])):
        condition[0] = byte
        assert running.run() == Code.OK
        assert noted(log) == expected


def counting(trip: int | Variable = FOREVER) -> tuple[Sheet, Array, Array]:
    """while a < n: note i; a += 1. Then note -1."""
    log, a, condition, sheet = journal(), cell(), flag(), Sheet([N])
    sheet.call("put", a, value=0)
    sheet.loop(A, trip)
    sheet.call("less", condition, a, value=N)
    leave = sheet.branch(condition)
    sheet.call("note", log, value=A)
    sheet.call("add", a, value=1)
    sheet.end()
    sheet.lands(leave)
    sheet.call("note", log, value=-1)
    return sheet, log, a


@pytest.mark.parametrize("threads", [1, 2])
def test_a_conditional_loop_runs_while_its_condition_holds(threads: int) -> None:
    sheet, log, a = counting()
    running = sheet.start(threads)
    for n in (5, 0, 1, 100, 3):
        assert running.run(n) == Code.OK
        assert noted(log) == [*range(n), -1] and a[0] == n
        assert running.run() == Code.OK
        assert noted(log) == [*range(n), -1] and a[0] == n


def test_a_conditional_loop_ends_at_its_most_iterations() -> None:
    sheet, log, a = counting(trip=7)
    running = sheet.start()
    for n in (5, 7, 8, 1 << 30):
        assert running.run(n) == Code.OK
        assert noted(log) == [*range(min(n, 7)), -1] and a[0] == min(n, 7)


def test_an_inner_loop_that_was_left_begins_at_zero_again() -> None:
    log, a, condition, sheet = journal(), cell(), flag(), Sheet()
    sheet.loop(A, 4)
    sheet.call("put", a, value=0)
    sheet.loop(B, FOREVER)
    sheet.call("less", condition, a, value=A)
    leave = sheet.branch(condition)
    sheet.call("add", a, value=1)
    sheet.call("note", log, value=10 * A + B)
    sheet.end()
    sheet.lands(leave)
    sheet.end()
    running = sheet.start()
    for _ in range(2):
        assert running.run() == Code.OK
        assert noted(log) == [10, 20, 21, 30, 31, 32]


def test_a_branch_may_leave_two_loops_at_once() -> None:
    log, a, condition, sheet = journal(), cell(), flag(), Sheet()
    sheet.call("put", a, value=0)
    sheet.loop(A, 10)
    sheet.loop(B, 3)
    sheet.call("less", condition, a, value=5)
    leave = sheet.branch(condition)
    sheet.call("add", a, value=1)
    sheet.call("note", log, value=10 * A + B)
    sheet.end()
    sheet.end()
    sheet.lands(leave)
    running = sheet.start()
    for _ in range(2):
        assert running.run() == Code.OK
        assert noted(log) == [0, 1, 2, 10, 11]


def test_an_endless_loop_comes_back_to_python() -> None:
    condition, sheet = flag(True), Sheet()
    sheet.loop(A, FOREVER)
    leave = sheet.branch(condition)
    sheet.end()
    sheet.lands(leave)
    running = sheet.start()
    words = running.table.words
    words[Header.SLICE_TICKS] = 1000
    for _ in range(5):
        assert running.enter() == Code.AGAIN
        words[Header.RESUME] = words[Header.PARKED]
    went = running.table.iteration(0)
    assert went > 5
    condition[0] = False
    assert running.run() == Code.OK
    # A run that is given up begins again with nothing left of it.
    condition[0] = True
    assert running.enter() == Code.AGAIN
    running.table.reset()
    condition[0] = False
    assert running.run() == Code.OK and running.table.iteration(0) == 0


@pytest.mark.parametrize("in_test", [True, False])
def test_a_failure_stops_a_loop_whose_condition_never_fails(in_test: bool) -> None:
    log, condition, sheet = journal(), flag(True), Sheet([N])
    sheet.loop(A, FOREVER)
    if in_test:
        sheet.call("fail", value=A, tiles=(A + 1) // N)
    leave = sheet.branch(condition)
    sheet.call("note", log, value=A)
    if not in_test:
        sheet.call("fail", value=A, tiles=(A + 1) // N)
    sheet.end()
    sheet.lands(leave)
    sheet.call("note", log, value=-1)
    running = sheet.start()
    for n in (4, 2):
        assert running.run(n) == Code.STATUS
        assert running.table.words[Header.STATUS_VALUE] == n - 1
        assert noted(log) == list(range(n - 1 if in_test else n))


def test_a_failure_before_a_branch_ends_the_run() -> None:
    log, condition, sheet = journal(), flag(), Sheet()
    sheet.call("fail", value=7)
    branch = sheet.branch(condition)
    sheet.call("note", log, value=1)
    sheet.lands(branch)
    sheet.call("note", log, value=2)
    running = sheet.start()
    for value in (True, False):
        condition[0] = value
        assert running.run() == Code.STATUS
        assert running.table.words[Header.STATUS_VALUE] == 7 and noted(log) == []


def test_host_calls_in_an_arm_come_back_and_go_on() -> None:
    log, condition, sheet = journal(), flag(), Sheet()
    branch = sheet.branch(condition)
    host = sheet.host()
    sheet.call("note", log, value=1)
    sheet.lands(branch)
    running = sheet.start()
    assert running.run() == Code.OK
    condition[0] = True
    assert running.run() == Code.OK
    assert running.codes == [Code.OK, Code.HOST_CALL, Code.OK]
    assert running.table.words[Header.ERROR_INDEX] == host
    assert noted(log) == [1]


def test_a_profile_of_a_conditional_loop_says_what_it_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("semel.runtime.events.MAX_EVENTS", 10)
    sheet, log, _ = counting()
    running = sheet.start()
    assert running.run(50) == Code.OK
    noted(log)
    profile = running.profile()
    calls = 1 + 51 + 2 * 50 + 1
    assert len(profile.events()) == 10 and profile.dropped == calls - 10
    # The loop's two ends, each branch, and one step per call.
    assert profile.count_steps() == (2 + 51 + calls, 0, 0)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("target", [0, 1, 4])
def test_a_branch_goes_forward_to_a_step_that_is_there(target: int) -> None:
    log, condition, sheet = journal(), flag(), Sheet()
    sheet.call("note", log, value=1)
    branch = sheet.branch(condition)
    sheet.call("note", log, value=1)
    sheet.lands(branch, target)
    with pytest.raises(InternalError, match=f"step 1 must lead to a later one, got {target}"):
        sheet.table()


def test_a_jump_into_a_loop_is_refused() -> None:
    sheet = Sheet()
    jump = sheet.jump()
    sheet.loop(A, 3)
    sheet.lands(jump)
    sheet.end()
    with pytest.raises(InternalError, match="step 0 leads into the loop of i"):
        sheet.table()

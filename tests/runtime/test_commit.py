"""What a run that succeeds does for the next one: cursors go on, double buffers flip."""

from __future__ import annotations

import pytest
from tests.runtime.tables import Sheet, cell, journal, noted

from semel.errors import InternalError
from semel.ir.abi import Code, Header
from semel.ir.expr import Variable, maximum

P, N = Variable("position", 0, 100), Variable("n", 0, 9)
L = Variable("late", 0, 9)
A = Variable("i", 0, 1 << 20)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_cursor_goes_on_with_every_run(threads: int) -> None:
    log, sheet = journal(), Sheet([P, N])
    sheet.call("note", log, value=P)
    sheet.hold(P, P + N)
    running = sheet.start(threads)
    assert running.run(3, 2) == Code.OK
    assert (running.table.current[0], running.table.pending[0]) == (3, 5)
    for _ in range(3):
        assert running.run() == Code.OK
    assert noted(log) == [3, 5, 7, 9]
    assert running.run(50) == Code.OK and running.run() == Code.OK
    assert noted(log) == [50, 52]


def test_a_cursor_at_its_end_refuses_the_run_and_stays() -> None:
    log, sheet = journal(), Sheet([P, N], guards=[maximum(0, P + N - 10)])
    sheet.call("note", log, value=P)
    sheet.hold(P, P + N)
    running = sheet.start()
    assert [running.run(0, 4), running.run(), running.run()] == [Code.OK, Code.OK, Code.GUARD]
    assert running.run() == Code.GUARD and noted(log) == [0, 4]
    running.table.pending[1] = 2
    assert running.run() == Code.OK and noted(log) == [8]


def test_a_run_that_fails_moves_no_cursor() -> None:
    first, second, sheet = cell(), cell(), Sheet([P, N])
    bases = sheet.base(first), sheet.base(second)
    sheet.call("fail", value=7, tiles=N)
    sheet.hold(P, P + 1)
    sheet.flip(*bases)
    running = sheet.start()
    assert running.run(5, 1) == Code.STATUS
    assert running.table.pending[0] == 5
    assert running.table.base(bases[0]) == first.ctypes.data
    assert running.run(5, 0) == Code.OK
    assert running.table.pending[0] == 6
    assert running.table.base(bases[0]) == second.ctypes.data


def test_a_cursor_goes_on_by_what_the_run_found() -> None:
    source, log, sheet = cell(), journal(), Sheet([P])
    sheet.rebind({L: source})
    sheet.call("note", log, value=P)
    sheet.hold(P, P + L)
    running = sheet.start()
    source[0] = 4
    assert running.run(1) == Code.OK
    source[0] = 2
    assert running.run() == Code.OK
    source[0] = 10
    assert running.run() == Code.VARIABLE  # at the rebind: nothing is committed
    source[0] = 9
    assert running.run() == Code.OK and running.run() == Code.OK
    assert noted(log) == [1, 5, 7, 16]


def test_two_cursors_go_on_at_once() -> None:
    log, sheet = journal(), Sheet([P, N])
    sheet.call("note", log, value=10 * P + N)
    sheet.hold(P, N)
    sheet.hold(N, P)
    running = sheet.start()
    assert running.run(1, 2) == Code.OK and running.run() == Code.OK
    assert noted(log) == [12, 21]


def test_a_double_buffer_flips() -> None:
    """old -> new: new = old + 1 in the other half."""
    old, new, sheet = cell(), cell(), Sheet([N])
    bases = sheet.base(old), sheet.base(new)
    sheet.call("add", old, value=1)
    sheet.call("put", new, value=N)
    sheet.flip(*bases)
    running = sheet.start()
    assert running.run(5) == Code.OK
    assert (old[0], new[0]) == (1, 5)
    assert running.table.words[Header.DIRTY] and running.run() == Code.OK
    assert (old[0], new[0]) == (5, 6)
    assert running.run() == Code.OK
    assert (old[0], new[0]) == (6, 5)
    assert running.table.base(bases[0]) == new.ctypes.data


def test_a_half_that_is_set_is_what_flips() -> None:
    first, second, third, sheet = cell(), cell(), cell(), Sheet()
    bases = sheet.base(first), sheet.base(second)
    sheet.call("add", first, value=1)
    sheet.call("add", second, value=100)
    sheet.flip(*bases)
    running = sheet.start()
    assert running.run() == Code.OK
    running.table.set_base(bases[0], third.ctypes.data)
    assert running.run() == Code.OK and running.run() == Code.OK
    assert (first[0], second[0], third[0]) == (1 + 100 + 1, 100, 1 + 100)


def test_a_cursor_over_what_has_no_value_at_the_end_is_refused() -> None:
    sheet = Sheet([P])
    sheet.loop(A, 3)
    sheet.end()
    sheet.hold(P, A)
    with pytest.raises(InternalError, match="step 2 reads what only i says"):
        sheet.table()

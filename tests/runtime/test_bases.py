"""Bases of the op table: memory that lies elsewhere at the next run."""

from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.tables import Array, Sheet, cell, journal, noted

from semel.errors import InternalError
from semel.ir.abi import Code, Header, RowKind
from semel.ir.expr import Variable
from semel.runtime.bases import FIXED
from semel.runtime.optable import TableRow

N, L = Variable("n", 0, 100), Variable("late", 0, 100)


def at(array: Array) -> int:
    return int(array.ctypes.data)


def test_rows_follow_a_base_that_moved() -> None:
    first, second, still, sheet = cell(), cell(), cell(), Sheet([N])
    base = sheet.base(first)
    sheet.call("put", first, value=N)
    sheet.call("put", first[3:], value=N + 1)
    sheet.call("put", still, value=N + 2)
    running = sheet.start()
    assert running.run(5) == Code.OK
    assert (first[0], first[3], second[0], still[0]) == (5, 6, 0, 7)
    running.table.set_base(base, at(second))
    assert running.run(9) == Code.OK
    assert (first[0], first[3], second[0], second[3], still[0]) == (5, 6, 9, 10, 11)
    running.table.set_base(base, at(first))
    assert running.run() == Code.OK
    assert (first[0], first[3]) == (9, 10)


def test_only_the_words_of_bases_that_moved_are_written() -> None:
    first, second, sheet = cell(), cell(), Sheet()
    bases = sheet.base(first), sheet.base(second)
    sheet.call("put", first, value=1)
    sheet.call("put", second, value=2)
    running = sheet.start()
    buffers = running.table.buffer_words
    assert buffers.tolist() == [at(first), at(second), 0]
    assert running.run() == Code.OK
    buffers[0] = at(cell())  # nobody moved this base: the word stays what it is
    spare = cell()
    running.table.set_base(bases[1], at(spare))
    before = int(buffers[0])
    assert running.table.words[Header.DIRTY]
    running.bind()
    assert (int(buffers[0]), int(buffers[1])) == (before, at(spare))
    buffers[0] = at(first)


def test_a_move_binds_no_variable() -> None:
    array, log, sheet = cell(), journal(), Sheet([N])
    base = sheet.base(array)
    sheet.call("put", array, value=N)
    sheet.call("note", log, value=N)
    running = sheet.start()
    other = cell()
    running.table.set_base(base, at(other))
    assert running.run() == Code.VARIABLE  # n was never bound, moved or not
    assert running.run(4) == Code.OK and other[0] == 4
    running.table.pending[0] = 8  # pending, and nobody said so
    running.table.set_base(base, at(array))
    assert running.run() == Code.OK and array[0] == 4
    assert noted(log) == [4, 4]


def test_a_refused_bind_leaves_the_move_done() -> None:
    array, other, sheet = cell(), cell(), Sheet([N])
    base = sheet.base(array)
    sheet.call("put", array, value=N)
    running = sheet.start()
    assert running.run(1) == Code.OK
    running.table.set_base(base, at(other))
    assert running.run(101) == Code.VARIABLE
    assert running.run(3) == Code.OK
    assert (array[0], other[0]) == (1, 3)


def test_a_base_that_stays_makes_nothing_dirty() -> None:
    array, sheet = cell(), Sheet()
    base = sheet.base(array)
    sheet.call("put", array, value=1)
    running = sheet.start()
    assert running.run() == Code.OK
    running.table.set_base(base, at(array))
    assert running.table.words[Header.DIRTY] == 0


@pytest.mark.parametrize("threads", [1, 2])
def test_conditions_and_late_variables_follow_their_bases(threads: int) -> None:
    yes, no, five, six = cell(1), cell(0), cell(5), cell(6)
    log, sheet = journal(), Sheet()
    condition, source = sheet.base(yes), sheet.base(five)
    sheet.rebind({L: five})
    branch = sheet.branch(yes)
    sheet.call("note", log, value=L)
    sheet.lands(branch)
    sheet.call("note", log, value=-L)
    running = sheet.start(threads)
    assert running.run() == Code.OK and noted(log) == [5, -5]
    running.table.set_base(source, at(six))
    assert running.run() == Code.OK and noted(log) == [6, -6]
    running.table.set_base(condition, at(no))
    assert running.run() == Code.OK and noted(log) == [-6]


def test_bases_move_for_copies() -> None:
    source, target, other, sheet = np.arange(8), cell(), cell(), Sheet()
    base = sheet.base(target)
    sheet.add(
        TableRow(RowKind.COPY, 0, ((base, 0), (FIXED, at(source))), (), 1, size_bytes=64,
                 tile_bytes=64)
    )  # fmt: skip
    running = sheet.start()
    assert running.run() == Code.OK and target.tolist() == list(range(8))
    running.table.set_base(base, at(other))
    assert running.run() == Code.OK and other.tolist() == list(range(8))


def test_a_base_that_moves_while_a_run_is_parked_is_of_the_next_run() -> None:
    array, other, sheet = cell(), cell(), Sheet()
    base = sheet.base(array)
    sheet.host()
    sheet.call("put", array, value=1)
    running = sheet.start()
    words = running.table.words
    assert running.enter() == Code.HOST_CALL
    running.table.set_base(base, at(other))
    words[Header.RESUME] = words[Header.PARKED]
    assert running.enter() == Code.OK
    assert (array[0], other[0]) == (1, 0)
    assert running.run() == Code.OK and other[0] == 1


def test_a_base_that_is_not_there_is_refused() -> None:
    sheet = Sheet()
    sheet.add(TableRow(RowKind.KERNEL, 0, ((2, 0),), (), 0))
    with pytest.raises(InternalError, match=r"base must be in \[0, 0\), got 2"):
        sheet.table()

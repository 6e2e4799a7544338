"""Rows of a compiled program taken up earlier: what makes some values comes as soon as it can.

    Program, values  --hoisted-->  Program: the kernels behind these values before all that can wait

Kernels only move, and only across rows that share no value with them which one of the two writes;
nothing moves across a fence. What else a program says by positions, lives and notes, follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from semel.plan.program import Program, ProgramValue
from semel.plan.rows import PreparedKernel, PreparedOp
from semel.plan.tree import num_rows, walk


def hoisted(program: Program, values: Iterable[int]) -> Program:
    """The program with these values made as early as possible; it is one that was compiled."""
    rows = list(program.rows)
    makers = _makers(rows, values)
    for row in makers:
        at = next(i for i, other in enumerate(rows) if other is row)
        to = next((i + 1 for i in reversed(range(at)) if _must_follow(row, rows[i])), 0)
        rows.insert(to, rows.pop(at))
    if all(row is old for row, old in zip(rows, program.rows, strict=True)):
        return program
    return _reordered(program, rows, {row.id for row in makers})


def _makers(rows: Sequence[PreparedOp], values: Iterable[int]) -> list[PreparedKernel]:
    """The kernels that these values follow from, in order, up to rows that are none."""
    wanted, found = set(values), []
    for row in reversed(rows):
        if isinstance(row, PreparedKernel) and not wanted.isdisjoint(_written(row)):
            wanted.update(row.buffer_indices)
            found.append(row)
    return found[::-1]


def _written(row: PreparedOp) -> set[int]:
    if isinstance(row, PreparedKernel):
        return {row.buffer_indices[i] for i in row.output_indices}
    return set(row.buffer_indices)


def _must_follow(row: PreparedOp, other: PreparedOp) -> bool:
    """Whether a row cannot be taken up before another one."""
    if other.is_fence or not isinstance(other, PreparedKernel):
        return True
    if not _written(other).isdisjoint(row.buffer_indices):
        return True
    return not _written(row).isdisjoint(other.buffer_indices)


def _reordered(program: Program, rows: Sequence[PreparedOp], moved: set[int]) -> Program:
    """The program with its outermost rows in this order; all but those `moved` stay in theirs."""
    position: dict[int, int] = {}  # by what it was
    now = 0
    for row in rows:
        for inner in range(num_rows(row)):
            position[row.id + inner] = now
            now += 1
    touched: dict[int, list[int]] = {}
    for placed in walk(program.rows):
        for value in placed.row.buffer_indices:
            touched.setdefault(value, []).append(placed.position)
    return replace(
        program,
        rows=numbered(rows, 0),
        values=tuple(
            _with_life(value, touched.get(i, []), position, moved)
            for i, value in enumerate(program.values)
        ),
        nodes=tuple(
            replace(note, ops=tuple(position[op] for op in note.ops)) for note in program.nodes
        ),
    )


def _with_life(
    value: ProgramValue, rows: Sequence[int], position: Mapping[int, int], moved: set[int]
) -> ProgramValue:
    """The value, which lives as long as any row touches it, or a loop around such a row lasts."""
    ends = [end for end in (value.first, value.last) if end not in moved]
    lives = [position[row] for row in (*rows, *ends)]
    return replace(value, first=min(lives), last=max(lives)) if rows else value


def numbered(rows: Sequence[PreparedOp], first: int) -> tuple[PreparedOp, ...]:
    """The rows under the numbers of their positions."""
    made: list[PreparedOp] = []
    for row in rows:
        own, bodies = first, []
        first += 1
        for body in row.bodies:
            bodies.append(numbered(body, first))
            first += sum(map(num_rows, body))
        made.append(replace(row.with_bodies(bodies), id=own))
    return tuple(made)

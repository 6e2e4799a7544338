"""Networks of exchanges: rows sorted side by side, in the lanes of vectors.

    size  --sweeps_of-->  sweeps over a row in scratch  --sweep_loops-->  statements

An exchange puts the smaller of two elements first. A network does not look at data to know which
two come next, so that rows stand in the lanes of vectors. This is the bitonic one: two sorted
halves, one of them turned around, are merged by exchanges half of them apart, then a quarter, and
so on. What a few such stages touch fits the registers: a sweep loads a set of elements that only
exchange with each other, does its stages and stores them, in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from semel.ir.expr import Dim, Index
from semel.kernel import ir
from semel.kernel.ir import Buffer, Local, Statement, Value
from semel.lower.lowered import Names

#: A stage: in groups of how many, and whether the upper half is turned.
Stage = tuple[int, bool]
#: An element in registers: its key, and its place unless the key holds it.
Element = tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Sweep:
    """Stages that elements of groups of `reach` do at once, `count` in registers."""

    reach: int
    count: int
    stages: tuple[Stage, ...]  # of the elements in registers, as if they were a row

    @property
    def step(self) -> int:
        """How far apart the elements are."""
        return self.reach // self.count

    def places(self, group: Dim, i: Dim) -> list[Dim]:
        """Where the elements of set `i` of a group lie, in their order."""
        base, half = group * self.reach, self.count // 2
        lower = [base + i + j * self.step for j in range(half)]
        if self.stages[0][1] and self.step > 1:  # the upper half meets the lower one turned
            return lower + [base + (self.reach - 1 - j * self.step) - i for j in range(half)][::-1]
        return lower + [base + i + (half + j) * self.step for j in range(half)]


def sweeps_of(size: int, most: int) -> list[Sweep]:
    """The network for a row of `size` elements, a power of two, with `most` in registers."""
    if size < 2:
        return []
    first = min(size, most)
    sweeps = [Sweep(first, first, tuple(_bitonic(first)))]
    for merged in range(first.bit_length(), size.bit_length()):
        left, is_turned = merged, True
        while left:  # as many stages at once as leave none for a small sweep
            done = -(-left // -(-left // (most.bit_length() - 1)))
            stages = [(1 << done - k, is_turned and k == 0) for k in range(done)]
            sweeps.append(Sweep(1 << left, 1 << done, tuple(stages)))
            left, is_turned = left - done, False
    return sweeps


def _bitonic(size: int) -> list[Stage]:
    """The stages that sort so many."""
    found: list[Stage] = []
    for merged in range(1, size.bit_length()):
        found.append((1 << merged, True))
        found += [(1 << reach, False) for reach in range(merged - 1, 0, -1)]
    return found


def sweep_loops(
    sweep: Sweep, size: int, buffers: Sequence[Buffer], lanes: int, names: Names
) -> Statement:
    """The loops of a sweep over rows of `size` elements, `lanes` rows side by side."""
    group, i = Index(names("g"), size // sweep.reach), Index(names("i"), sweep.step)
    lane = Index(names("r"), lanes)
    at = [place * lanes + lane for place in sweep.places(group, i)]
    locals_ = [tuple(Local(names("x"), buffer.dtype) for buffer in buffers) for _ in at]
    steps: list[Statement] = [
        ir.Declare(each, ir.load(buffer, place))
        for place, found in zip(at, locals_, strict=True)
        for each, buffer in zip(found, buffers, strict=True)
    ]
    row: list[Element] = [tuple(ir.local(each) for each in found) for found in locals_]
    for reach, is_turned in sweep.stages:
        for low, high in _pairs(sweep.count, reach, is_turned):
            row[low], row[high] = _exchanged(row[low], row[high])
    steps += [
        ir.Store(buffer, place, value)
        for place, element in zip(at, row, strict=True)
        for buffer, value in zip(buffers, element, strict=True)
    ]
    vector = ir.Loop(lane, 0, lanes, tuple(steps), lanes)
    inner = ir.Loop(i, 0, sweep.step, (vector,))
    return ir.Loop(group, 0, size // sweep.reach, (inner,))


def _pairs(count: int, reach: int, is_turned: bool) -> list[tuple[int, int]]:
    return [
        (group + k, group + reach - 1 - k if is_turned else group + k + reach // 2)
        for group in range(0, count, reach)
        for k in range(reach // 2)
    ]


def _exchanged(a: Element, b: Element) -> tuple[Element, Element]:
    """The smaller first. Of two equal keys the one that stood first is the smaller."""
    if len(a) == 1:
        return (ir.op("min", *a, *b),), (ir.op("max", *a, *b),)
    swaps = (b[0] < a[0]) | (a[0].eq(b[0]) & (b[1] < a[1]))
    first = tuple(ir.select(swaps, two, one) for one, two in zip(a, b, strict=True))
    second = tuple(ir.select(swaps, one, two) for one, two in zip(a, b, strict=True))
    return first, second

"""Which part of each buffer a tile touches.

    Kernel --tile_strides--> {buffer name: elements per tile, or None}

If tile t of two kernels touches only elements [t*s, (t+1)*s) of the buffer that one
writes and the other reads, whoever runs tile t of the first may go on with tile t
of the second: no barrier is needed between them. A stride is given only where the
index arithmetic proves it; None is always safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from semel.ir.expr import (
    Dim,
    Fn,
    Index,
    Variable,
    is_nonnegative,
    linear_coefficient,
    substitute,
    terms,
)
from semel.kernel import ir
from semel.kernel.ir import Kernel, Statement, Value, walk_values

_Range: TypeAlias = "tuple[Dim | None, Dim | None]"


def tile_strides(kernel: Kernel) -> dict[str, Dim | None]:
    """For each buffer, how many elements lie between what tile t and tile t+1 touch."""
    accesses: dict[str, list[_Range]] = {b.name: [] for b in kernel.buffers}
    _collect(kernel.body, {kernel.tile: (kernel.tile, kernel.tile)}, accesses)
    return {name: _stride(ranges, kernel.tile) for name, ranges in accesses.items()}


def _collect(
    body: Sequence[Statement], ranges: dict[Index, _Range], accesses: dict[str, list[_Range]]
) -> None:
    for statement in body:
        for value in walk_values(ir.statement_values(statement)):
            _note(value, ranges, accesses)
        match statement:
            case ir.Store(buffer=buffer, at=at) if buffer.name in accesses:
                accesses[buffer.name].append((_bound(at, ranges, 0), _bound(at, ranges, 1)))
            case ir.BlockDot(left=left, right=right):
                for name in {left.buffer.name, right.buffer.name} & accesses.keys():
                    accesses[name].append((None, None))
            case ir.Loop(index=index, start=start, stop=stop, body=inner):
                low, high = _bound(start, ranges, 0), _bound(stop, ranges, 1)
                ranges[index] = (low, None if high is None else high - 1)
                _collect(inner, ranges, accesses)
            case ir.If(body=inner):
                _collect(inner, ranges, accesses)


def _note(value: Value, ranges: dict[Index, _Range], accesses: dict[str, list[_Range]]) -> None:
    if value.op in ("load", "word") and value.data[0].name in accesses:
        at = value.data[1]
        accesses[value.data[0].name].append((_bound(at, ranges, 0), _bound(at, ranges, 1)))


def _bound(dim: Dim, ranges: dict[Index, _Range], side: int) -> Dim | None:
    """The least (side 0) or greatest (side 1) value of `dim` as a function of the tile."""
    if isinstance(dim, int):
        return dim
    if isinstance(dim, Fn) and dim.kind == "min" and side == 1:
        return _bound(dim.args[0], ranges, 1)
    total: Dim = 0
    for monomial, coefficient in terms(dim):
        term: Dim = coefficient
        for atom in monomial:
            if isinstance(atom, Variable) and atom.min >= 0:  # else it may turn the ends around
                term = term * atom
                continue
            if not isinstance(atom, Index) or atom not in ranges:
                return None
            end = ranges[atom][side if coefficient > 0 else 1 - side]
            if end is None:
                return None
            term = term * end
        total = total + term
    return total


def _stride(ranges: list[_Range], tile: Index) -> Dim | None:
    strides: set[Dim] = set()
    for low, high in ranges:
        if low is None or high is None:
            return None
        stride = linear_coefficient(low, tile)
        if stride is None or stride == 0 or substitute(low, {tile: 0}) != 0:
            return None
        if not is_nonnegative(stride - 1 - (high - stride * tile)):
            return None
        strides.add(stride)
    return strides.pop() if len(strides) == 1 else None

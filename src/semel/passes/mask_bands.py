"""Masks that are bands along the diagonal: causal masks, sliding windows.

    bool node, or node added to scores --find_band--> Band: left <= column - row <= right

A mask made by comparing positions is followed through movement with symbolic indices: the
comparison says in terms of row and column what the band is. A mask that is a constant is
looked at. What depends on anything but row and column is no band.

The algebra knows no dtypes: a position counts only if all its values fit the dtype it is
computed in, so that nothing wraps; a truth value passes only casts that keep it; `and`, `or`
and `not` are logic for bools alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from semel.ir.expr import (
    Dim,
    Index,
    Variable,
    atoms,
    bounds,
    linear_coefficient,
    maximum,
    minimum,
    substitute,
)
from semel.ir.graph import Node
from semel.ir.types import BOOL, DType
from semel.ops.attrs import IotaAttrs
from semel.ops.index_maps import Indices, operand_index
from semel.passes.patterns import uniform

#: Larger constants are not looked at.
MAX_ELEMENTS = 1 << 22
#: What a length without a bound can be at most: no memory holds more.
LONGEST = 1 << 47
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_Table = np.ndarray[Any, np.dtype[Any]]
_Test = Callable[[_Table], _Table]
_OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


@dataclass(frozen=True, slots=True)
class Band:
    """Columns from row + left to row + right are inside; None: no limit on that side."""

    left: Dim | None = None
    right: Dim | None = None

    def __and__(self, other: Band) -> Band:
        left, right = self.left, self.right
        if other.left is not None:
            left = other.left if left is None else maximum(left, other.left)
        if other.right is not None:
            right = other.right if right is None else minimum(right, other.right)
        return Band(left, right)


def kept_band(mask: Node) -> Band | None:
    """The band where a bool mask over (..., rows, columns) is true."""
    return _Walk(mask).true()


def hidden_band(mask: Node) -> Band | None:
    """The band where a bool mask is false."""
    return _Walk(mask).false()


def added_band(mask: Node) -> Band | None:
    """The band where what is added to scores is 0; outside it is -inf."""
    return _Walk(mask).added()


class _Walk:
    """A mask at one symbolic element."""

    def __init__(self, mask: Node) -> None:
        shape = mask.type.shape
        self.row, self.column = Index("row", shape[-2]), Index("column", shape[-1])
        self.batch = tuple(Index(f"batch{n}", d) for n, d in enumerate(shape[:-2]))
        self.node, self.at = mask, (*self.batch, self.row, self.column)
        # A node that several others use is looked at once.
        self._bands: dict[tuple[Node, Indices, bool], Band | None] = {}
        self._positions: dict[tuple[Node, Indices], Dim | None] = {}

    def true(self) -> Band | None:
        return self._bool(self.node, self.at, wanted=True)

    def false(self) -> Band | None:
        return self._bool(self.node, self.at, wanted=False)

    def added(self) -> Band | None:
        node, at = _below_views(self.node, self.at)
        if node.op.name == "constant":
            return self._constant(node, at, lambda x: x == 0, np.isneginf)
        if node.op.name != "where":
            return None
        condition, a, b = node.inputs
        for wanted, kept, gone in ((True, a, b), (False, b, a)):
            zero, lowest = uniform(kept), uniform(gone)
            if zero is None or lowest is None or zero.value != 0:
                continue
            if lowest.value == float("-inf"):
                return self._bool(condition, at, wanted=wanted)
        return None

    # ------------------------------------------------------------ conditions

    def _bool(self, node: Node, at: Indices, *, wanted: bool) -> Band | None:
        key = *_below_views(node, at), wanted
        if key not in self._bands:
            self._bands[key] = self._new_bool(*key)
        return self._bands[key]

    def _new_bool(self, node: Node, at: Indices, wanted: bool) -> Band | None:
        name = node.op.name
        if name == "constant":
            return self._constant(
                node, at, lambda x: (x != 0) == wanted, lambda x: (x != 0) != wanted
            )
        if name == "cast" and _keeps_truth(node.inputs[0].type.dtype, node.type.dtype):
            return self._bool(node.inputs[0], at, wanted=wanted)
        if name == "not" and node.type.dtype == BOOL:
            return self._bool(node.inputs[0], at, wanted=not wanted)
        if name == ("and" if wanted else "or") and node.type.dtype == BOOL:
            parts = [self._bool(n, at, wanted=wanted) for n in node.inputs]
            return None if parts[0] is None or parts[1] is None else parts[0] & parts[1]
        if name == "where":
            return self._chosen(node, at, wanted)
        if name in ("eq", "ne"):
            return self._compared_to_number(node, at, wanted)
        if name in _OPPOSITE:
            return self._compared(name if wanted else _OPPOSITE[name], node, at)
        return None

    def _chosen(self, node: Node, at: Indices, wanted: bool) -> Band | None:
        """where(condition, 1, 0) and where(condition, 0, 1) as truth values."""
        condition, a, b = node.inputs
        values = uniform(a), uniform(b)
        if values[0] is None or values[1] is None:
            return None
        yes, no = bool(values[0].value), bool(values[1].value)
        return None if yes == no else self._bool(condition, at, wanted=wanted == yes)

    def _compared_to_number(self, node: Node, at: Indices, wanted: bool) -> Band | None:
        """mask == 0 and mask != 0."""
        is_equal = node.op.name == "eq"
        for mask, number in (node.inputs, node.inputs[::-1]):
            found = uniform(number)
            if found is not None and found.value == 0:
                return self._bool(mask, at, wanted=wanted != is_equal)
        return None

    def _compared(self, name: str, node: Node, at: Indices) -> Band | None:
        a, b = (self._position(n, at) for n in node.inputs)
        if a is None or b is None:
            return None
        difference = a - b
        by_row = linear_coefficient(difference, self.row)
        by_column = linear_coefficient(difference, self.column)
        if (by_row, by_column) not in ((1, -1), (-1, 1)):
            return None
        if by_column == -1:
            difference, name = -difference, _MIRRORED[name]
        rest = difference - self.column + self.row  # column - row + rest compared with 0
        if any(isinstance(a, Index) for a in atoms(rest)):
            return None
        match name:
            case "le":
                return Band(right=-rest)
            case "lt":
                return Band(right=-rest - 1)
            case "ge":
                return Band(left=-rest)
            case _:
                return Band(left=1 - rest)

    def _position(self, node: Node, at: Indices) -> Dim | None:
        """An integer node at `at` as an expression of row and column, if it never wraps."""
        node, at = key = _below_views(node, at)
        if key not in self._positions:
            found = self._unwrapped(node, at) if node.type.dtype.is_integer else None
            fits = found is not None and _fits(found, node.type.dtype)
            self._positions[key] = found if fits else None
        return self._positions[key]

    def _unwrapped(self, node: Node, at: Indices) -> Dim | None:
        """The value by the algebra, whatever the dtype holds."""
        operands = [self._position(n, at) for n in node.inputs]
        match node.op.name, operands:
            case "scalar", []:
                return int(node.attrs.value)
            case "iota", []:
                attrs: IotaAttrs = node.attrs
                return attrs.start + at[attrs.axis]
            case "cast", [a] if a is not None:
                return a
            case "neg", [a] if a is not None:
                return -a
            case "add", [a, b] if a is not None and b is not None:
                return a + b
            case "sub", [a, b] if a is not None and b is not None:
                return a - b
            case _:
                return None

    # ------------------------------------------------------------ constants

    def _constant(self, node: Node, at: Indices, keeps: _Test, hides: _Test) -> Band | None:
        """The band of a constant whose axes are row and column, if it is one."""
        shape = node.type.shape
        size = node.type.num_elements
        if not isinstance(size, int) or not 0 < size <= MAX_ELEMENTS:
            return None
        axes = [n for n, i in enumerate(at) if shape[n] != 1]
        if [at[n] for n in axes] != [self.row, self.column]:
            return None
        array = node.attrs.storage.array
        table: _Table = array.reshape([array.shape[n] for n in axes])
        inside, outside = keeps(table), hides(table)
        if not (inside | outside).all():
            return None
        return _band_of(inside)


def _fits(position: Dim, dtype: DType) -> bool:
    """Whether the dtype holds every value of the position."""
    return dtype.holds(*bounds(substitute(position, {a: _limited(a) for a in atoms(position)})))


def _limited(atom: Variable | Index) -> Dim:
    """The atom with an upper bound, if it has none."""
    if atom.range()[1] is not None:
        return atom
    if isinstance(atom, Index):
        return Index(atom.name, LONGEST)
    return Variable(atom.name, atom.min, LONGEST)


def _keeps_truth(source: DType, target: DType) -> bool:
    """Whether a cast keeps zero zero and everything else something else."""
    if BOOL in (source, target):
        return True
    if source.is_narrow or target.is_narrow:  # 0 may be none of its numbers
        return False
    if source.is_integer:
        return target.is_float or target.bits >= source.bits
    return target.is_float and target.bits > source.bits


def _band_of(inside: _Table) -> Band | None:
    rows, columns = inside.shape
    distance = np.arange(columns) - np.arange(rows)[:, None]
    if not inside.any():
        return None
    low, high = int(distance[inside].min()), int(distance[inside].max())
    if not np.array_equal(inside, (distance >= low) & (distance <= high)):
        return None
    left = None if low <= 1 - rows else low
    right = None if high >= columns - 1 else high
    return Band(left, right)


def _below_views(node: Node, at: Indices) -> tuple[Node, Indices]:
    while node.op.is_view:
        at, node = operand_index(node, 0, at, _never), node.inputs[0]
    return node, at


def _never(node: Node, at: Indices) -> Dim:
    raise AssertionError(f"{node!r} does not read indices from memory")

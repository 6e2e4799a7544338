"""Rotary positions: pairs of numbers, turned by angles that grow with the position.

    positions, base  --rope_angles-->  angles [.., size / 2]
    x, angles  --rotated-->  x with the pairs of its last axis turned

Two layouts of pairs are in use: element i with element i + size / 2 (Llama, GPT-NeoX), and
neighbours (`interleaved`: GPT-J, the paper). Only the first `size` elements of a row are turned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.errors import GraphError
from semel.ir.expr import Dim, is_positive
from semel.ir.types import FLOAT32, FLOAT64
from semel.tensor.elementwise import power
from semel.tensor.handle import TensorLike, convert, dim_value, lift, whole_number
from semel.tensor.indexing import iota
from semel.tensor.movement import broadcast_shapes, concat, stack
from semel.tensor.reduce import as_float, rounded_to

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor


def rope(
    x: TensorLike,
    positions: TensorLike | None = None,
    *,
    base: float = 10000.0,
    size: int | None = None,
    interleaved: bool = False,
    scale: float = 1.0,
    cos: TensorLike | None = None,
    sin: TensorLike | None = None,
) -> Tensor:
    """x [.., length, depth] with rotary positions: 0, 1, ... along the last axis but one.

    `positions` are others, of any shape that broadcasts with x without its last axis: a number
    for one token, (batch, 1, length) beside x [batch, heads, length, depth], (length, 1)
    beside x [length, heads, depth]. They are multiplied by `scale`. `size` is how many elements
    of a row are turned, all if it is not said.
    With tables `cos` and `sin` [positions, size / 2] of angles made before, positions are rows
    of these, integers; without positions the tables broadcast beside x themselves.
    """
    given, where = lift(x), "rope"
    x = as_float(given)
    if x.ndim < 2:
        raise GraphError(where, f"needs (..., length, depth), got {x.type}.")
    width = _turned_size(x, size)
    if (cos is None) != (sin is None):
        raise GraphError(where, "needs both tables, cos and sin, or neither.")
    if cos is not None and sin is not None:
        tables = [as_float(lift(t)) for t in (cos, sin)]
        if positions is not None:
            tables = [table.take(positions, 0) for table in tables]
        for name, table in zip(("cos", "sin"), tables, strict=True):
            _check_beside(x, table, width, name)
        factors = [convert(table, x.dtype) for table in tables]
    else:
        if positions is None:
            positions = iota(x.shape[-2:-1], 0)
        angles = rope_angles(positions, width, base=base, scale=scale)
        _check_beside(x, angles, width, "positions")
        factors = [convert(t, x.dtype) for t in (angles.cos(), angles.sin())]
    return rounded_to(rotated(x, factors[0], factors[1], width, interleaved), given.dtype)


def rope_angles(
    positions: TensorLike, size: Dim, *, base: float = 10000.0, scale: float = 1.0
) -> Tensor:
    """The angles [.., size / 2] of positions [..]: position * scale / base ** (2 * i / size).

    In float64 where positions are, else in float32, of rates that are made in float64.
    """
    place = lift(positions)
    half = size // 2
    step = iota((half,), 0).cast(FLOAT64) / dim_value(half, FLOAT64)
    rates = power(float(base), -step) * scale
    wanted = place.dtype if place.dtype == FLOAT64 else FLOAT32
    return convert(place, wanted).unsqueeze(-1) * convert(rates, wanted)


def rotated(x: Tensor, cos: Tensor, sin: Tensor, size: Dim, interleaved: bool) -> Tensor:
    """The first `size` of the last axis rotated in pairs; cos and sin [.., size / 2]."""
    depth, half = x.shape[-1], size // 2
    turned, rest = x.narrow(-1, 0, size), x.narrow(-1, size, depth - size)
    if interleaved:
        pairs = turned.unflatten(-1, (half, 2))
        a, b = pairs[..., 0], pairs[..., 1]
    else:
        a, b = turned.narrow(-1, 0, half), turned.narrow(-1, half, half)
    both = [cos * a - sin * b, sin * a + cos * b]
    made = stack(both, -1).flatten(-2, -1) if interleaved else concat(both, -1)
    return made if depth == size else concat([made, rest], -1)


def _turned_size(x: Tensor, size: int | None) -> Dim:
    """How many elements of a row are turned."""
    depth = x.shape[-1]
    width: Dim = depth if size is None else whole_number(size, "size", "rope")
    if (isinstance(width, int) and (width < 2 or width % 2)) or is_positive(width - depth):
        raise GraphError(
            "rope", f"size must be an even number in [2, {depth}] for {x.type}, got {width}."
        )
    return width


def _check_beside(x: Tensor, factor: Tensor, width: Dim, name: str) -> None:
    """Tables broadcast beside the pairs of x, and do not stretch it."""
    wanted = (*x.shape[:-1], width // 2)
    if factor.ndim > x.ndim or broadcast_shapes([wanted, factor.shape], "rope") != wanted:
        raise GraphError(
            "rope", f"{name} must broadcast with the pairs of {x.type}, got {factor.type}."
        )

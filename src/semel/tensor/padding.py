"""What stands around a tensor: a number, or what it has inside.

    x, widths, mode  --pad-->  x with more elements before and behind each axis

A number is the op `pad`, which the compiler turns into index arithmetic of whoever reads it. The
other modes are a gather along each axis: every place beside it is one on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from semel.errors import GraphError
from semel.ir.expr import Dim, is_positive, maximum
from semel.ir.types import Shape, as_shape
from semel.ops.attrs import GatherAttrs, PadAttrs
from semel.tensor.handle import TensorLike, apply, lift
from semel.tensor.indexing import certain_rows, check_index, iota
from semel.tensor.movement import fill_value
from semel.tensor.spelling import same_as, spelled

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

#: What repeats the inside, under NumPy's names and PyTorch's.
_MODES = {
    "edge": "edge", "replicate": "edge", "wrap": "wrap", "circular": "wrap", "reflect": "reflect",
    "symmetric": "symmetric",
}  # fmt: skip


@spelled(constant_values="value")
def pad(
    x: TensorLike,
    widths: Any,
    value: TensorLike | str = 0,
    *,
    mode: str = "constant",
    constant_values: TensorLike = same_as("value"),
) -> Tensor:
    """Add elements around: one width, (before, after), or one such pair per axis.

    They are `value`; or with `mode` the nearest element ("edge"), the tensor once more ("wrap"), or
    its mirror image, with the last element ("symmetric") or without ("reflect").

    >>> Tensor([1, 2]).pad((1, 2)).tolist()
    [0, 1, 2, 0, 0]
    >>> Tensor([1, 2, 3]).pad(2, mode="reflect").tolist()
    [3, 2, 1, 2, 3, 2, 1]
    """
    x = lift(x)
    if isinstance(value, str):  # the mode has this place in NumPy
        mode, value = value, 0
    before, after = _widths(widths, x.ndim)
    if mode not in ("constant", *_MODES):
        known = ", ".join(("constant", *_MODES))
        raise GraphError("pad", f"mode must be one of {known}, got {mode!r}.")
    if all(w == 0 for w in (*before, *after)):
        return x
    if mode == "constant":
        fill = fill_value(x, value, "pad")
        return apply("pad", x, fill, attrs=PadAttrs(before, after))
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        if low != 0 or high != 0:
            x = continued(x, axis, low, high, _MODES[mode], "pad")
    return x


def continued(x: Tensor, axis: int, before: Dim, after: Dim, mode: str, where: str) -> Tensor:
    """More elements on one axis: edge, wrap, reflect or symmetric ones."""
    length = x.shape[axis]
    if length == 0:
        raise GraphError(where, f"there is nothing to repeat on axis {axis} of {x.type}.")
    place = _inside(iota((before + length + after,), 0) - before, length, mode)
    if is_positive(length):
        return certain_rows(x, place, axis)
    return apply("gather", x, check_index(place, length, where), attrs=GatherAttrs(axis))


def _inside(place: Tensor, length: Dim, mode: str) -> Tensor:
    """Places beside an axis as places on it."""
    if mode == "edge":
        return place.clip(0, length - 1)
    if mode == "wrap":
        return place % length
    is_mirrored_whole = mode == "symmetric"
    period = 2 * length if is_mirrored_whole else maximum(2 * length - 2, 1)
    around = place % period
    return around.minimum(period - 1 - around if is_mirrored_whole else period - around)


def _widths(widths: Any, ndim: int) -> tuple[Shape, Shape]:
    """Before and after per axis from the three ways to write them."""
    if not isinstance(widths, (tuple, list, np.ndarray)):
        pairs: list[Any] = [(widths, widths)] * ndim
    elif len(widths) == 2 and not any(isinstance(w, (tuple, list, np.ndarray)) for w in widths):
        pairs = [tuple(widths)] * ndim
    else:
        pairs = [tuple(w) if isinstance(w, (tuple, list, np.ndarray)) else (w, w) for w in widths]
    if len(pairs) != ndim or any(len(p) != 2 for p in pairs):
        raise GraphError(
            "pad", f"needs a (before, after) pair for each of {ndim} axes, got {widths}."
        )
    return as_shape([p[0] for p in pairs], "pad"), as_shape([p[1] for p in pairs], "pad")

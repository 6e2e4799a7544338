"""How a window slides over the space of a tensor: the arguments of convolutions and pools.

    stride, padding, dilation as users write them  --windows-->  Windows: a number per axis

Space is what follows batch and channels. Every argument is one number for all axes or one
per axis; padding is also a (before, after) pair per axis, "valid", or "same": as much as
makes the result ceil(size / stride) long, the odd element behind ("same_lower": in front).
Sizes may be symbolic; paddings then are too where they depend on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from semel.errors import GraphError
from semel.ir.expr import Dim, ceildiv, maximum, minimum
from semel.ir.types import Shape
from semel.ops.attrs import GatherAttrs, WindowAttrs
from semel.tensor.handle import apply
from semel.tensor.indexing import iota
from semel.tensor.movement import is_negative

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

PerAxis: TypeAlias = "int | Sequence[int]"
Padding: TypeAlias = "str | int | Sequence[int | Sequence[int]]"
_SAME = ("same", "same_upper", "same_lower")


@dataclass(frozen=True, slots=True)
class Windows:
    """Window sizes, steps and gaps, and the padding before and after, per spatial axis."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: Shape
    after: Shape

    @property
    def spans(self) -> tuple[int, ...]:
        """How many neighbouring elements a window reaches over."""
        pairs = zip(self.sizes, self.dilations, strict=True)
        return tuple((size - 1) * dilation + 1 for size, dilation in pairs)

    @property
    def is_pointwise(self) -> bool:
        """Whether every window is one element of the data."""
        return all(n == 1 for n in self.sizes) and not self.is_padded

    @property
    def is_padded(self) -> bool:
        return any(p != 0 for p in (*self.before, *self.after))


def windows(
    where: str,
    space: Shape,
    sizes: PerAxis,
    stride: PerAxis = 1,
    padding: Padding = 0,
    dilation: PerAxis = 1,
) -> Windows:
    """The windows over axes of the sizes `space`, all arguments checked."""
    count = len(space)
    found = Windows(
        per_axis(where, "kernel size", sizes, count),
        per_axis(where, "stride", stride, count),
        per_axis(where, "dilation", dilation, count),
        (0,) * count,
        (0,) * count,
    )
    if not isinstance(padding, str):
        before, after = _explicit(where, padding, count)
    elif padding == "valid":
        return found
    elif padding in _SAME:
        before, after = _same(space, found, padding == "same_lower")
    else:
        raise GraphError(
            where, f"padding must be numbers, 'valid' or one of {_SAME}, got {padding!r}."
        )
    return replace(found, before=before, after=after)


def per_axis(where: str, name: str, value: Any, count: int, least: int = 1) -> tuple[int, ...]:
    """One number for each of `count` axes, none below `least`."""
    values = (value,) * count if isinstance(value, (int, np.integer)) else tuple(value)
    if len(values) != count or not all(_is_at_least(v, least) for v in values):
        raise GraphError(
            where, f"{name} must be one number >= {least} for each of {count} axes, got {value!r}."
        )
    return tuple(int(v) for v in values)


def _is_at_least(value: Any, least: int) -> bool:
    is_number = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return is_number and value >= least


def _explicit(where: str, padding: Any, count: int) -> tuple[Shape, Shape]:
    if not isinstance(padding, (int, np.integer)) and all(
        isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in padding
    ):
        before = per_axis(where, "padding", [pair[0] for pair in padding], count, 0)
        return before, per_axis(where, "padding", [pair[1] for pair in padding], count, 0)
    both = per_axis(where, "padding", padding, count, 0)
    return both, both


def _same(space: Shape, found: Windows, lower: bool) -> tuple[Shape, Shape]:
    before: list[Dim] = []
    after: list[Dim] = []
    for size, stride, span in zip(space, found.strides, found.spans, strict=True):
        total = maximum((ceildiv(size, stride) - 1) * stride + span - size, 0)
        less, more = total // 2, total - total // 2
        before.append(more if lower else less)
        after.append(less if lower else more)
    return tuple(before), tuple(after)


def rounded_up(space: Shape, found: Windows) -> Shape:
    """How much more padding behind lets the last, partial window of every axis fit.

    A window that would start behind the data and the padding before it is left out.
    """
    extra: list[Dim] = []
    rows = zip(space, found.strides, found.spans, found.before, found.after, strict=True)
    for size, stride, span, before, after in rows:
        padded = before + size + after
        count = minimum(ceildiv(padded - span, stride) + 1, ceildiv(before + size, stride))
        extra.append(maximum((count - 1) * stride + span - padded, 0))
    return tuple(extra)


def check_fits(where: str, space: Shape, found: Windows) -> None:
    """Windows that are surely larger than the padded axis are the caller's mistake."""
    rows = zip(space, found.spans, found.before, found.after, strict=True)
    for axis, (size, span, before, after) in enumerate(rows):
        if is_negative(before + size + after - span):
            raise GraphError(
                where,
                f"a window over {span} elements must fit the padded size {before + size + after} "
                f"of spatial axis {axis}.",
            )


def slid(x: Tensor, axis: int, size: Dim, stride: Dim = 1, dilation: Dim = 1) -> Tensor:
    """Windows of `size` elements along one axis, which stand along a new last axis.

    A view where all numbers are fixed; where a run decides them, what a window holds is gathered.
    """
    if isinstance(size, int) and isinstance(stride, int) and isinstance(dilation, int):
        return apply("window", x, attrs=WindowAttrs((axis,), (size,), (stride,), (dilation,)))
    span = (size - 1) * dilation + 1
    shape = ((x.shape[axis] - span) // stride + 1, size)
    index = iota(shape, 0) * stride + iota(shape, 1) * dilation
    return apply("gather", x, index, attrs=GatherAttrs(axis)).moveaxis(axis + 1, -1)

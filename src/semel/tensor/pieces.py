"""Tensors in pieces, and pieces as one tensor.

    split array_split hsplit vsplit dsplit chunk unbind
    hstack vstack dstack column_stack   atleast_1d atleast_2d atleast_3d broadcast_arrays

`split` takes what NumPy's does: a number of equal parts, or where to cut. What PyTorch's takes has
a name, `split_size`: how many elements a piece has, or each of them. Sizes may be symbolic; how
many pieces there are may not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from semel.errors import GraphError
from semel.ir.dims import equal
from semel.ir.expr import Dim, ceildiv, floordiv, is_positive, mod, sum_dims
from semel.tensor.handle import (
    TensorLike,
    lift,
    normalize_axis,
    whole_dims,
    whole_number,
)
from semel.tensor.movement import (
    agreeing,
    broadcast,
    concat,
    is_negative,
    of_shape,
    static_dim,
)
from semel.tensor.spelling import AXIS, same_as, spelled

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

# ------------------------------------------------------------ into pieces


@spelled(indices_or_sections="sections", dim="axis")
def split(
    x: TensorLike,
    sections: int | Sequence[Dim] | None = None,
    axis: int = 0,
    *,
    split_size: Dim | Sequence[Dim] | None = None,
    indices_or_sections: int | Sequence[Dim] = same_as("sections"),
    dim: int = AXIS,
) -> list[Tensor]:
    """Pieces of one axis: `sections` equal ones, or those between the places given.

    `x.split(3)` are three equal parts and `x.split([2, 5])` is `x[:2], x[2:5], x[5:]`, as in NumPy.
    By PyTorch's rule, `x.split(split_size=4)` are pieces of four elements, the last may be shorter,
    and `x.split(split_size=[2, 3, 1])` has a piece of each of these sizes.

    >>> [piece.tolist() for piece in semel.arange(6).split(3)]
    [[0, 1], [2, 3], [4, 5]]
    """
    x = lift(x)
    i = normalize_axis(axis, x.ndim, "split")
    if (sections is None) == (split_size is None):
        found = "neither" if sections is None else "both"
        raise GraphError("split", f"needs sections or split_size=, got {found}.")
    if split_size is not None:
        return _of_sizes(x, _sizes(x, split_size, i), i)
    if _is_sequence(sections):
        return _cut_at(x, sections, i)
    count = _section_count(sections, "split")
    width = floordiv(x.shape[i], count)
    if equal(width * count, x.shape[i]) == 0:
        raise GraphError(
            "split",
            f"{count} sections must be of one size, got {x.shape[i]} elements.",
            hint=f"Pieces of {count} elements are split_size={count}; array_split takes the rest.",
        )
    return _of_sizes(x, [width] * count, i)


@spelled(indices_or_sections="sections", dim="axis")
def array_split(
    x: TensorLike,
    sections: int | Sequence[Dim] = same_as("indices_or_sections"),
    axis: int = 0,
    *,
    indices_or_sections: int | Sequence[Dim] = same_as("sections"),
    dim: int = AXIS,
) -> list[Tensor]:
    """`split`, where the first sections may have an element more than the others."""
    x = lift(x)
    i = normalize_axis(axis, x.ndim, "array_split")
    if _is_sequence(sections):
        return _cut_at(x, sections, i)
    count = _section_count(sections, "array_split")
    length = x.shape[i]
    return _of_sizes(x, [floordiv(length + count - 1 - k, count) for k in range(count)], i)


def hsplit(x: TensorLike, sections: int | Sequence[Dim]) -> list[Tensor]:
    """`split` along the second axis, or the only one."""
    x = lift(x)
    return _split_of_rank(x, sections, 0 if x.ndim == 1 else 1, 1, "hsplit")


def vsplit(x: TensorLike, sections: int | Sequence[Dim]) -> list[Tensor]:
    """`split` along the first axis of at least two."""
    return _split_of_rank(lift(x), sections, 0, 2, "vsplit")


def dsplit(x: TensorLike, sections: int | Sequence[Dim]) -> list[Tensor]:
    """`split` along the third axis."""
    return _split_of_rank(lift(x), sections, 2, 3, "dsplit")


def _split_of_rank(
    x: Tensor, sections: int | Sequence[Dim], axis: int, least: int, where: str
) -> list[Tensor]:
    if x.ndim < least:
        raise GraphError(where, f"needs {least} axes or more, got {x.type}.")
    return split(x, sections, axis)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (Sequence, np.ndarray))


def _section_count(sections: Any, where: str) -> int:
    count = whole_number(sections, "the number of sections", where)
    if count <= 0:
        raise GraphError(where, f"the number of sections must be > 0, got {count}.")
    return count


def _cut_at(x: Tensor, places: Any, axis: int) -> list[Tensor]:
    """What lies before, between and after the places, which are bounds of slices."""
    bounds = whole_dims(places, "an index", "split")
    lead = (slice(None),) * axis
    pairs = zip((None, *bounds), (*bounds, None), strict=True)
    return [x[(*lead, slice(a if a is not None else 0, b))] for a, b in pairs]


def _sizes(x: Tensor, given: Any, axis: int) -> list[Dim]:
    """Sizes that may add up to the length; that they do is a guard."""
    length = x.shape[axis]
    if not _is_sequence(given):
        (width,) = whole_dims(given, "split_size", "split")
        if not is_positive(width):
            raise GraphError("split", f"split_size must be > 0, got {given}.")
        pieces = ceildiv(length, width)
        count = max(static_dim(pieces, "split", x, "a fixed number of pieces"), 1)
        return [*[width] * (count - 1), length - width * (count - 1)]
    sizes = list(whole_dims(given, "a size", "split"))
    if any(is_negative(size) for size in sizes) or equal(sum_dims(sizes), length) == 0:
        found = ", ".join(map(str, sizes))
        raise GraphError("split", f"sizes must add up to {length}, got [{found}].")
    return sizes


def _of_sizes(x: Tensor, sizes: Sequence[Dim], axis: int) -> list[Tensor]:
    whole = agreeing(x, (*x.shape[:axis], sum_dims(sizes), *x.shape[axis + 1 :]))
    starts = [sum_dims(sizes[:k]) for k in range(len(sizes))]
    return [whole.narrow(axis, at, size) for at, size in zip(starts, sizes, strict=True)]


@spelled(dim="axis")
def chunk(x: TensorLike, chunks: int, axis: int = 0, *, dim: int = AXIS) -> list[Tensor]:
    """At most `chunks` pieces of equal size; the last may be shorter."""
    x = lift(x)
    i = normalize_axis(axis, x.ndim, "chunk")
    if whole_number(chunks, "chunks", "chunk") <= 0:
        raise GraphError("chunk", f"the number of chunks must be > 0, got {chunks}.")
    length = x.shape[i]
    if not isinstance(length, int) and mod(length, chunks) == 0:
        return _of_sizes(x, [floordiv(length, chunks)] * chunks, i)
    width = max(-(-static_dim(length, "chunk", x) // chunks), 1)
    return _of_sizes(x, _sizes(x, width, i), i)


@spelled(dim="axis")
def unbind(
    x: TensorLike, axis: int = 0, count: int | None = None, *, dim: int = AXIS
) -> list[Tensor]:
    """The slices along one axis, which is dropped.

    `count` says how many there are, where the axis has a symbolic size; a guard holds it to that.
    """
    x = lift(x)
    i = normalize_axis(axis, x.ndim, "unbind")
    rest = x.shape[:i] + x.shape[i + 1 :]
    if count is not None:
        shape = (*x.shape[:i], whole_number(count, "count", "unbind"), *x.shape[i + 1 :])
        x = of_shape(x, shape, "unbind", "the tensor")
    length = static_dim(x.shape[i], "unbind", x)
    return [x.narrow(i, k, 1).reshape(rest) for k in range(length)]


# ------------------------------------------------------------ into one


def hstack(tensors: Sequence[TensorLike]) -> Tensor:
    """The tensors side by side: along the second axis, or the only one."""
    items = [atleast_1d(t) for t in tensors]
    return concat(items, 0 if items and items[0].ndim == 1 else 1)


def vstack(tensors: Sequence[TensorLike]) -> Tensor:
    """The tensors one below the other: those of one axis are rows."""
    return concat([atleast_2d(t) for t in tensors], 0)


def dstack(tensors: Sequence[TensorLike]) -> Tensor:
    """The tensors one behind the other, along the third axis."""
    return concat([atleast_3d(t) for t in tensors], 2)


def column_stack(tensors: Sequence[TensorLike]) -> Tensor:
    """The tensors side by side, those of one axis as columns."""
    items = [atleast_1d(t) for t in tensors]
    return concat([t.unsqueeze(1) if t.ndim == 1 else t for t in items], 1)


def broadcast_arrays(*tensors: TensorLike) -> tuple[Tensor, ...]:
    """The tensors, each stretched to the shape that they have together."""
    items = [lift(t) for t in tensors]
    return tuple(broadcast(items, "broadcast_arrays")) if items else ()


def atleast_1d(x: TensorLike) -> Tensor:
    """This tensor, with an axis of size 1 if it had none."""
    x = lift(x)
    return x if x.ndim else x.reshape(1)


def atleast_2d(x: TensorLike) -> Tensor:
    """This tensor, with axes of size 1 in front if it had less than two."""
    x = atleast_1d(x)
    return x if x.ndim > 1 else x.unsqueeze(0)


def atleast_3d(x: TensorLike) -> Tensor:
    """This tensor, with axes of size 1 if it had less than three; the last one behind."""
    x = atleast_2d(x)
    return x if x.ndim > 2 else x.unsqueeze(2)


# Second names.
broadcast_tensors = broadcast_arrays
row_stack = vstack
tensor_split = array_split

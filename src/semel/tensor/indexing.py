"""Reading by index.

    x[key]  take  gather  take_along_axis  index_select  embedding  one_hot

Index arrays are data: every index passes a `check_index` node, which wraps negative ones
once and turns one out of range into an IndexRangeError at run time, naming the operation.
Several index arrays become one flat index along merged axes, so that one gather does it all.
A computed mask stands for the positions where it is true, whose number a run finds out
(ops/late.py); they are in range, and not checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from semel.errors import GraphError
from semel.ir.expr import Dim, product
from semel.ir.types import INT64, Shape
from semel.ops.attrs import CheckIndexAttrs, GatherAttrs, IotaAttrs
from semel.ops.elementwise import check_indices, index_check
from semel.ops.late import positions, select
from semel.tensor.elementwise import choose
from semel.tensor.handle import (
    DTypeLike,
    TensorLike,
    apply,
    convert,
    known_value,
    lift,
    normalize_axis,
    scalar,
    weak_kind,
    whole_number,
    wrap,
)
from semel.tensor.movement import broadcast, broadcast_shapes, of_shape, slice_axes
from semel.tensor.origin import call_origin, user_origin
from semel.tensor.spelling import AXIS, DIM, NEEDED, same_as, spelled
from semel.tensor.subscript import Cut, Key, MaskAxis, is_computed_mask, parse_key, result_axes

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor


def getitem(x: Tensor, key: Any) -> Tensor:
    """x[key]."""
    if is_computed_mask(key) and key.ndim and key.shape == x.shape[: key.ndim]:
        return selected(x, key, 0)  # as what follows would say, of the most frequent case
    parsed = parse_key(key, x.shape, "getitem")
    cut = cut_out(x, parsed.cuts).reshape(parsed.cut_shape())
    return _pick(cut, parsed) if parsed.picks else cut


def cut_out(x: Tensor, cuts: Sequence[Cut]) -> Tensor:
    """The slices of a key."""
    starts, sizes = [c.start for c in cuts], [c.size for c in cuts]
    return slice_axes(x, starts, sizes, [c.step for c in cuts])


def _pick(x: Tensor, key: Key) -> Tensor:
    """Select by the key's index arrays; x is the cut tensor."""
    places = [place for place, _ in key.picks]
    if key.only_mask is not None:
        shape = tuple(x.shape[place] for place in places)
        return selected(x, of_shape(key.only_mask, shape, "getitem", "mask"), places[0])
    indices = merged_index(x, key, "getitem")
    if len(places) == 1:
        return apply("gather", x, indices, attrs=GatherAttrs(places[0]))
    picked = apply("gather", merge_axes(x, places), indices, attrs=GatherAttrs(0))
    return picked.permute(result_axes(key, indices.ndim))


def merge_axes(x: Tensor, places: Sequence[int]) -> Tensor:
    """The axes at `places` as one axis in front."""
    moved = x.moveaxis(places, range(len(places)))
    count = product(moved.shape[: len(places)])
    return moved.reshape(count, *moved.shape[len(places) :])


def merged_index(x: Tensor, key: Key, where: str) -> Tensor:
    """The checked index arrays of a key as one index into its merged axes."""
    if key.only_mask is not None:
        shape = tuple(x.shape[place] for place, _ in key.picks)
        return true_positions(of_shape(key.only_mask, shape, where, "mask"))
    checked = [_index(x, item, x.shape[place], where) for place, item in key.picks]
    indices = broadcast(checked, where)
    flat = indices[0]
    for (place, _), index in zip(key.picks[1:], indices[1:], strict=True):
        flat = flat * x.shape[place] + index
    return flat


def _index(x: Tensor, item: Any, size: Dim, where: str) -> Tensor:
    """One index array of a key, in [0, size)."""
    if not isinstance(item, MaskAxis):
        return check_index(lift(item), size, where)
    mask = item.mask
    shape = (*mask.shape[: item.axis], size, *mask.shape[item.axis + 1 :])
    return true_indices(of_shape(mask, shape, where, "mask"))[item.axis]


def selected(x: Tensor, mask: Tensor, axis: int) -> Tensor:
    """The elements where a mask of the axes from `axis` on is true, along one axis there."""
    line, function = call_origin()
    return wrap(select(x._node, mask._node, axis, origin=line, made_by=function))


def true_positions(x: Tensor) -> Tensor:
    """The flat positions where this mask is true, ascending."""
    return wrap(positions(x._node, origin=user_origin()))


def true_indices(x: Tensor) -> tuple[Tensor, ...]:
    """The positions where this mask is true, as one index for each axis."""
    found: list[Tensor] = []
    rest = true_positions(x)
    for dim in reversed(x.shape[1:]):
        found.append(rest % dim)
        rest = rest // dim
    return (rest, *reversed(found))


def check_index(x: Tensor, size: Dim, where: str, what: str = "index") -> Tensor:
    """These indices as int64 in [0, size): checked now if they are known, else at run time.

    What is no "index" (a length, a class) does not count from the end.
    """
    if not x.dtype.is_integer:
        rule = f"every {what} must be an integer"
        rule = "indices must be integers" if what == "index" else rule
        raise GraphError(where, f"{rule}, got {x.type}.")
    checked = apply("check_index", x, attrs=CheckIndexAttrs(size, where, what))
    known = known_value(x)
    if known is not None and isinstance(size, int):
        check_indices(known.array, size, index_check(checked.node))
    return checked


# ------------------------------------------------------------ named functions


@spelled(dim="axis")
def take(
    x: TensorLike,
    indices: TensorLike,
    axis: int | None = None,
    *,
    mode: str = "raise",
    dim: int | None = AXIS,
) -> Tensor:
    """np.take: rows of one axis, in the shape of `indices`; of the flat tensor without axis.

    Indices beyond the axis are errors of the run; with `mode="wrap"` they count on from the other
    end, with "clip" they are the nearest row, the first if they are negative.

    >>> Tensor([[1, 2], [3, 4], [5, 6]]).take([2, 0], axis=0).tolist()
    [[5, 6], [1, 2]]
    """
    given = lift(x) if axis is not None else lift(x).flatten()
    i = 0 if axis is None else normalize_axis(axis, given.ndim, "take")
    return _take(given, _in_mode(lift(indices), given.shape[i], mode), i, "take")


def _in_mode(indices: Tensor, length: Dim, mode: str) -> Tensor:
    """Indices as `take` has them, brought onto the axis."""
    if mode not in ("raise", "wrap", "clip"):
        raise GraphError("take", f"mode must be raise, wrap or clip, got {mode!r}.")
    if mode == "raise" or not indices.dtype.is_integer:
        return indices
    wide = convert(indices, INT64)
    return wide % length if mode == "wrap" else wide.clip(0, length - 1)


def _take(x: Tensor, indices: TensorLike, axis: int | None, where: str) -> Tensor:
    if axis is None:
        return _take(x.flatten(), indices, 0, where)
    i = normalize_axis(axis, x.ndim, where)
    checked = check_index(lift(indices), x.shape[i], where)
    return apply("gather", x, checked, attrs=GatherAttrs(i))


def certain_rows(x: Tensor, index: Tensor, axis: int) -> Tensor:
    """`take` by int64 indices that are made to lie on the axis: nothing checks them."""
    return apply("gather", x, index, attrs=GatherAttrs(axis))


@spelled(needs=3, dim="axis")
def index_select(
    x: TensorLike, axis: int = DIM, index: TensorLike = NEEDED, *, dim: int = AXIS
) -> Tensor:
    """`take` with a 1-D index, the axis first."""
    x = lift(x)
    lifted = lift(index)
    if lifted.ndim != 1:
        raise GraphError("index_select", f"index must be 1-D, got {lifted.type}.")
    return _take(x, lifted, axis, "index_select")


def embedding(x: TensorLike, weight: TensorLike) -> Tensor:
    """Rows of `weight` selected by these integers."""
    return _take(lift(weight), lift(x), 0, "embedding")


@spelled(needs=3, dim="axis")
def gather(
    x: TensorLike, axis: int = DIM, index: TensorLike = NEEDED, *, dim: int = AXIS
) -> Tensor:
    """out[.., i, ..] = x[.., index[.., i, ..], ..]; index may be smaller than x elsewhere.

    >>> Tensor([[1, 2], [3, 4]]).gather(1, Tensor([[1], [0]])).tolist()
    [[2], [3]]
    """
    x = lift(x)
    where, lifted = "gather", lift(index)
    i = normalize_axis(axis, x.ndim, where)
    if lifted.ndim != x.ndim:
        raise GraphError(where, f"index must have the rank of {x.type}, got {lifted.type}.")
    sizes = (*lifted.shape[:i], x.shape[i], *lifted.shape[i + 1 :])
    for have, want in zip(x.shape, sizes, strict=True):
        if isinstance(have, int) and isinstance(want, int) and want > have:
            raise GraphError(where, f"index {lifted.type} must not be larger than {x.type}.")
    zeros, ones = (0,) * x.ndim, (1,) * x.ndim
    return _take_along(slice_axes(x, zeros, sizes, ones), lifted, i, where)


def _take_along(x: Tensor, index: Tensor, axis: int, where: str) -> Tensor:
    checked = check_index(index, x.shape[axis], where)
    return apply("take_along", x, checked, attrs=GatherAttrs(axis))


@spelled(dim="axis")
def take_along_axis(
    x: TensorLike, indices: TensorLike, axis: int | None = -1, *, dim: int | None = AXIS
) -> Tensor:
    """np.take_along_axis: `gather` whose other axes broadcast; of the flat tensor if None."""
    x = lift(x)
    if axis is None:
        x, axis = x.flatten(), 0
    where, lifted = "take_along_axis", lift(indices)
    i = normalize_axis(axis, x.ndim, where)
    if lifted.ndim != x.ndim:
        raise GraphError(where, f"indices must have the rank of {x.type}, got {lifted.type}.")
    others = [t.shape[:i] + t.shape[i + 1 :] for t in (x, lifted)]
    rest = broadcast_shapes(others, where)

    def wide(t: Tensor) -> Tensor:
        return t.broadcast_to((*rest[:i], t.shape[i], *rest[i:]))

    return _take_along(wide(x), wide(lifted), i, where)


def one_hot(x: TensorLike, num_classes: Dim | None = None, dtype: DTypeLike = "int64") -> Tensor:
    """1 at each element's own number along a new last axis, else 0.

    >>> Tensor([2, 0]).one_hot(3).tolist()
    [[0, 0, 1], [1, 0, 0]]
    """
    x = lift(x)
    if not x.dtype.is_integer:
        raise GraphError("one_hot", f"needs integers, got {x.type}.")
    if num_classes is None:
        raise GraphError(
            "one_hot",
            "needs the number of classes: how many there are in the data only a run would tell.",
            hint="Write x.one_hot(num_classes).",
        )
    classes = iota((num_classes,), 0)
    return convert(x, INT64).unsqueeze(-1).eq(classes).cast(dtype)


def iota(shape: Shape, axis: int) -> Tensor:
    """Each element's own index along an axis, as int64."""
    return apply("iota", attrs=IotaAttrs(shape, axis, INT64))


# ------------------------------------------------------------ triangles and diagonals


def _distance(x: Tensor, offset: Dim, where: str) -> Tensor:
    """Column - row for the last two axes, to compare with `offset`."""
    if x.ndim < 2:
        raise GraphError(where, f"needs at least 2 axes, got {x.type}.")
    if weak_kind(offset) != "i":
        raise GraphError(where, f"offset must be an int or a Variable, got {offset!r}.")
    return iota(x.shape[-2:], 1) - iota(x.shape[-2:], 0)


@spelled(k="offset", diagonal="offset")
def tril(
    x: TensorLike,
    offset: Dim = 0,
    *,
    k: Dim = same_as("offset"),
    diagonal: Dim = same_as("offset"),
) -> Tensor:
    """Zero above the diagonal.

    >>> semel.ones(3, 3).tril().tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    """
    x = lift(x)
    kept = _distance(x, offset, "tril") <= offset
    return choose(kept, x, scalar(0, x.dtype))


@spelled(k="offset", diagonal="offset")
def triu(
    x: TensorLike,
    offset: Dim = 0,
    *,
    k: Dim = same_as("offset"),
    diagonal: Dim = same_as("offset"),
) -> Tensor:
    """Zero below the diagonal."""
    x = lift(x)
    gone = _distance(x, offset, "triu") < offset
    return choose(gone, scalar(0, x.dtype), x)


@spelled(k="offset", diagonal="offset")
def diag(
    x: TensorLike,
    offset: int = 0,
    *,
    k: int = same_as("offset"),
    diagonal: int = same_as("offset"),
) -> Tensor:
    """np.diag: the diagonal of a matrix, or a matrix with this diagonal."""
    x = lift(x)
    if x.ndim == 2:
        return x.diagonal(offset)
    if x.ndim != 1:
        raise GraphError("diag", f"needs 1 or 2 axes, got {x.type}.")
    offset = whole_number(offset, "offset", "diag")
    n = x.shape[0]
    on_diagonal = iota((n, n), 0).eq(iota((n, n), 1))
    square = choose(on_diagonal, x.unsqueeze(1), scalar(0, x.dtype))
    below, right = (-offset, 0) if offset < 0 else (0, offset)
    return square.pad(((below, right), (right, below)))


# Second names.
take_along_dim = take_along_axis

"""Writing by index, functionally.

    x[key] = v    -->    the handle gets a new node; other tensors keep their value

A slice is written without a copy of its own: the value is padded out to the whole shape and a
mask of index comparisons chooses between it and the old tensor, so that it fuses. Index
arrays go through `scatter` on rows; where an element is hit twice, the last write wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from semel.errors import GraphError
from semel.ir.expr import Dim, is_nonnegative, is_positive, maximum, minimum, product
from semel.ir.graph import is_from_outside
from semel.ir.types import BOOL, INT64, DType
from semel.ops.attrs import ScatterAttrs
from semel.tensor.elementwise import choose
from semel.tensor.handle import (
    TensorLike,
    apply,
    convert,
    lift,
    normalize_axis,
    scalar,
    weak_kind,
    weak_scalar,
)
from semel.tensor.indexing import (
    certain_rows,
    check_index,
    cut_out,
    iota,
    merge_axes,
    merged_index,
)
from semel.tensor.movement import fill_value, is_negative, of_shape, reach, slice_axes
from semel.tensor.spelling import AXIS, DIM, NEEDED, same_as, spelled
from semel.tensor.subscript import Cut, Key, is_computed_mask, parse_key, result_axes

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

#: What `scatter` calls a way to combine, and what the op does.
MODES = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min", "set": "set"}


def setitem(x: Tensor, key: Any, value: TensorLike) -> None:
    """x[key] = value: x stands in front of another node from now on."""
    if is_from_outside(x._node):
        raise GraphError(
            "setitem",
            f"a body must not write to a tensor from outside of it, got {x.type}.",
            hint="Write to one that is made inside, as `y = x * 1`, and return it.",
        )
    x._node = written(x, key, value, "set", "setitem")._node
    x._value = None


def written(x: Tensor, key: Any, value: TensorLike, mode: str, where: str) -> Tensor:
    """This tensor with `value` written (or combined) at `key`."""
    update = _in_my_dtype(x, value)
    if mode == "set" and is_computed_mask(key) and update.ndim <= x.ndim - key.ndim:
        return _masked(x, lift(key), update)
    parsed = parse_key(key, x.shape, where)
    if mode == "set" and not parsed.picks:
        return _place(x, parsed, _fit(update, parsed.cut_shape(), where))
    region = cut_out(x, parsed.cuts).reshape(parsed.cut_shape())
    if parsed.picks:
        return _place(x, parsed, _scatter_picked(region, parsed, update, mode, where))
    return _place(x, parsed, _combined(region, _fit(update, region.shape, where), mode))


def _in_my_dtype(x: Tensor, value: TensorLike) -> Tensor:
    weak = weak_kind(value)
    return weak_scalar(value, x.dtype) if weak else convert(lift(value), x.dtype)


def _fit(x: Tensor, shape: Sequence[Any], where: str) -> Tensor:
    """Broadcast to the region that is written; NumPy also drops leading axes of size 1."""
    extra = x.ndim - len(shape)
    lead = x.shape[: max(extra, 0)]
    x = x.reshape(x.shape[extra:]) if extra > 0 and all(d == 1 for d in lead) else x
    return reach(x, tuple(shape), where)


def _combined(x: Tensor, update: Tensor, mode: str) -> Tensor:
    match mode:
        case "add":
            return x + update
        case "mul":
            return x * update
        case "max":
            return x.maximum(update)
        case _:
            return x.minimum(update)


def _masked(x: Tensor, mask: Tensor, update: Tensor) -> Tensor:
    """One value for wherever a computed mask is true: a choice, which fuses."""
    mask = of_shape(mask, x.shape[: mask.ndim], "setitem", "mask")
    behind = x.shape[mask.ndim :]
    wide = mask.reshape(*mask.shape, *(1,) * len(behind))
    return choose(wide, reach(update, behind, "setitem"), x)


# ------------------------------------------------------------ slices


def _place(x: Tensor, key: Key, region: Tensor) -> Tensor:
    """This tensor with the cut region replaced."""
    if any(c.size == 0 for c in key.cuts):
        return x
    value = region.reshape(tuple(c.size for c in key.cuts))
    mask: Tensor | None = None
    for axis, cut in enumerate(key.cuts):
        if cut.start == 0 and cut.step == 1 and cut.size == x.shape[axis]:
            continue
        inside = _inside(x, axis, cut)
        mask = inside if mask is None else mask & inside
        value = _spread(value, axis, cut, x.shape[axis])
    if mask is None:
        return value
    return choose(mask, value, x)


def _inside(x: Tensor, axis: int, cut: Cut) -> Tensor:
    """Which positions of an axis the cut covers, shaped to broadcast."""
    step = abs(cut.step)
    offset: Tensor = iota((x.shape[axis],), 0) - _lowest(cut)
    covered = (offset >= 0) & (offset < cut.size * step)
    if step > 1:
        covered = covered & ((offset % step).eq(0))
    return covered.reshape(*(x.shape[axis],), *(1,) * (x.ndim - axis - 1))


def _spread(x: Tensor, axis: int, cut: Cut, length: Any) -> Tensor:
    """The cut's values at their positions along a whole axis, zeros between."""
    x = x.flip(axis) if cut.step < 0 else x
    step, first = abs(cut.step), _lowest(cut)
    pads = [(0, 0)] * x.ndim
    if step > 1:
        gaps = [*pads, (0, 0)]
        gaps[axis + 1] = (0, step - 1)
        x = x.unsqueeze(axis + 1).pad(gaps).flatten(axis, axis + 1)
    kept = minimum(cut.size * step, length - first)
    pads[axis] = (first, length - first - kept)
    return x.narrow(axis, 0, kept).pad(pads)


# ------------------------------------------------------------ index arrays


def _scatter_picked(x: Tensor, key: Key, update: Tensor, mode: str, where: str) -> Tensor:
    """This (cut) tensor with `update` written at the key's index arrays."""
    places = [place for place, _ in key.picks]
    index = merged_index(x, key, where)
    rest = tuple(d for i, d in enumerate(x.shape) if i not in places)
    order = result_axes(key, index.ndim)
    shape = (*index.shape, *rest)
    fitted = _fit(update, [shape[i] for i in order], where)
    back = fitted.permute([order.index(i) for i in range(len(shape))])
    rows = merge_axes(x, places)
    merged = _scatter_rows(rows, index.flatten(), back.reshape(index.size, *rest), mode)
    moved = merged.reshape(*(x.shape[p] for p in places), *rest)
    return moved.moveaxis(range(len(places)), places)


def _scatter_rows(x: Tensor, index: Tensor, update: Tensor, mode: str) -> Tensor:
    """Rows of this tensor updated in order of `index` (1-D, checked); one row each."""
    width = product(x.shape[1:])
    rows = x.reshape(x.shape[0], width)
    new = update.reshape(index.shape[0], width)
    result = apply("scatter", rows, index, new, attrs=ScatterAttrs(mode))
    return result.reshape(x.shape)


def index_put(
    x: TensorLike, indices: Sequence[TensorLike], values: TensorLike, accumulate: bool = False
) -> Tensor:
    """A copy with `values` written (or added) at x[indices].

    >>> semel.zeros(4).index_put([[1, 3]], [5.0, 6.0]).tolist()
    [0.0, 5.0, 0.0, 6.0]
    """
    return written(lift(x), tuple(indices), values, "add" if accumulate else "set", "index_put")


@spelled(needs=4, dim="axis")
def index_add(
    x: TensorLike,
    axis: int = DIM,
    index: TensorLike = NEEDED,
    source: TensorLike = NEEDED,
    *,
    alpha: float = 1,
    dim: int = AXIS,
) -> Tensor:
    """A copy with the slices of `source`, times `alpha`, added at the indices (1-D) of one axis.

    `source` has this tensor's shape, with one slice per index along the axis.

    >>> semel.zeros(3).index_add(0, [0, 2, 0], [1.0, 2.0, 3.0]).tolist()
    [4.0, 0.0, 2.0]
    """
    scaled = source if alpha == 1 else lift(source) * alpha
    return _slices(lift(x), axis, index, scaled, "add", "index_add")


@spelled(needs=4, dim="axis")
def index_copy(
    x: TensorLike,
    axis: int = DIM,
    index: TensorLike = NEEDED,
    source: TensorLike = NEEDED,
    *,
    dim: int = AXIS,
) -> Tensor:
    """A copy with the slices of `source` written at the indices (1-D) of one axis.

    `source` is that of `index_add`; where an index comes twice, the last slice stays.
    """
    return _slices(lift(x), axis, index, source, "set", "index_copy")


@spelled(needs=4, dim="axis")
def index_fill(
    x: TensorLike,
    axis: int = DIM,
    index: TensorLike = NEEDED,
    value: TensorLike = NEEDED,
    *,
    dim: int = AXIS,
) -> Tensor:
    """A copy with one number written to the slices at the indices (1-D) of one axis."""
    x, lifted = lift(x), lift(index)
    fill = fill_value(x, value, "index_fill")
    i = normalize_axis(axis, x.ndim, "index_fill")
    shape = (*x.shape[:i], *lifted.shape[:1], *x.shape[i + 1 :])
    return _slices(x, i, lifted, fill.broadcast_to(shape), "set", "index_fill")


def _slices(
    x: Tensor, axis: int, index: TensorLike, source: TensorLike, mode: str, where: str
) -> Tensor:
    """The slices of one axis that the index names, combined with those of the source."""
    lifted = lift(index)
    i = normalize_axis(axis, x.ndim, where)
    if lifted.ndim != 1:
        raise GraphError(where, f"index must be 1-D, got {lifted.type}.")
    shape = (*x.shape[:i], lifted.shape[0], *x.shape[i + 1 :])
    update = of_shape(_in_my_dtype(x, source), shape, where, "source")
    checked = check_index(lifted, x.shape[i], where)
    rows = _scatter_rows(x.moveaxis(i, 0), checked, update.moveaxis(i, 0), mode)
    return rows.moveaxis(0, i)


def masked_scatter(x: TensorLike, mask: TensorLike, source: TensorLike) -> Tensor:
    """A copy with the elements of `source`, in order, where the mask is true; the mask broadcasts.

    A source that is too short is an IndexRangeError.
    """
    x, where = lift(x), "masked_scatter"
    chosen, update = lift(mask), _in_my_dtype(x, source)
    if chosen.dtype != BOOL:
        raise GraphError(where, f"the mask must be bool, got {chosen.type}.")
    chosen = reach(chosen, x.shape, where)
    flat = chosen.flatten()
    number = choose(flat, flat.cumsum(0) - 1, scalar(0, INT64))
    # The element behind the last one is for masks that are true nowhere.
    size = maximum(update.size, 1)
    number = check_index(number, size, where, "source element")
    values = update.flatten().pad((0, 1))
    return choose(chosen, certain_rows(values, number, 0).reshape(x.shape), x)


@spelled(needs=4, dim="axis", src="source")
def scatter(
    x: TensorLike,
    axis: int = DIM,
    index: TensorLike = NEEDED,
    source: TensorLike = same_as("src"),
    reduce: str = "set",
    *,
    dim: int = AXIS,
    src: TensorLike = same_as("source"),
) -> Tensor:
    """out[.., index[.., i, ..], ..] = source[.., i, ..]; `reduce` combines instead.

    >>> x = semel.zeros(2, 2)
    >>> x.scatter(1, Tensor([[1], [0]]), Tensor([[5.0], [6.0]])).tolist()
    [[0.0, 5.0], [6.0, 0.0]]
    """
    x = lift(x)
    if reduce not in MODES:
        raise GraphError("scatter", f"reduce must be one of {', '.join(MODES)}, got {reduce!r}.")
    return _scatter(x, axis, index, source, MODES[reduce], "scatter")


@spelled(needs=4, dim="axis", src="source")
def scatter_add(
    x: TensorLike,
    axis: int = DIM,
    index: TensorLike = NEEDED,
    source: TensorLike = same_as("src"),
    *,
    dim: int = AXIS,
    src: TensorLike = same_as("source"),
) -> Tensor:
    """`scatter` that adds: updates of one element add up in their order."""
    return _scatter(lift(x), axis, index, source, MODES["sum"], "scatter_add")


@spelled(needs=5, dim="axis", src="source")
def scatter_reduce(
    x: TensorLike,
    axis: int = DIM,
    index: TensorLike = NEEDED,
    source: TensorLike = same_as("src"),
    reduce: str = NEEDED,
    *,
    include_self: bool = True,
    dim: int = AXIS,
    src: TensorLike = same_as("source"),
) -> Tensor:
    """`scatter` that combines: sum, prod, mean, amax or amin of all that an element is given.

    What it was before counts too, unless `include_self` is False. Means of integers round down.
    """
    x, where = lift(x), "scatter_reduce"
    known = ("sum", "prod", "mean", "amax", "amin")
    if reduce not in known:
        raise GraphError(where, f"reduce must be one of {', '.join(known)}, got {reduce!r}.")
    mode = "add" if reduce == "mean" else MODES[reduce]
    start = x
    if not include_self:
        is_hit = _scatter(
            scalar(False, BOOL).broadcast_to(x.shape), axis, index, True, "set", where
        )
        start = choose(is_hit, scalar(_neutral(x.dtype, reduce), x.dtype), x)
    found = _scatter(start, axis, index, source, mode, where)
    if reduce != "mean":
        return found
    own = scalar(int(include_self), INT64).broadcast_to(x.shape)
    count = _scatter(own, axis, index, 1, "add", where).maximum(1)
    if not x.dtype.is_float:
        return convert(found // convert(count, x.dtype), x.dtype)
    return found / convert(count, x.dtype)


def _neutral(dtype: DType, reduce: str) -> Any:
    """What changes no result of this way to combine."""
    if reduce in ("amax", "amin"):
        low, high = (-inf, inf) if dtype.is_float else (dtype.lowest, dtype.highest)
        return low if reduce == "amax" else high
    return 1 if reduce == "prod" else 0


def _scatter(
    x: Tensor, axis: int, index: TensorLike, source: TensorLike, mode: str, where: str
) -> Tensor:
    i = normalize_axis(axis, x.ndim, where)
    lifted = lift(index)
    if lifted.ndim != x.ndim:
        raise GraphError(where, f"index must have the rank of {x.type}, got {lifted.type}.")
    for k, (have, wanted) in enumerate(zip(x.shape, lifted.shape, strict=True)):
        if k != i and is_positive(wanted - have):
            raise GraphError(
                where,
                f"index must not be larger than {x.type} except along axis {i}, got {lifted.type}.",
            )
    update = _source(x, source, lifted, where)
    flat_index = _element_index(x, check_index(lifted, x.shape[i], where), i)
    flat = _scatter_rows(x.flatten(), flat_index.flatten(), update.flatten(), mode)
    return flat.reshape(x.shape)


def _source(x: Tensor, source: TensorLike, index: Tensor, where: str) -> Tensor:
    """The updates in the shape of the index; larger sources are cut."""
    update = _in_my_dtype(x, source)
    if update.ndim == 0:
        return update.broadcast_to(index.shape)
    if update.ndim != index.ndim:
        raise GraphError(where, f"source must have the rank of {index.type}, got {update.type}.")
    if any(is_negative(have - want) for have, want in zip(update.shape, index.shape, strict=True)):
        raise GraphError(where, f"source must not be smaller than {index.type}, got {update.type}.")
    return slice_axes(update, (0,) * index.ndim, index.shape, (1,) * index.ndim)


def _element_index(x: Tensor, index: Tensor, axis: int) -> Tensor:
    """The row-major position of each update's target element."""
    flat: Tensor | None = None
    for k, dim in enumerate(x.shape):
        here = index if k == axis else _places(dim, index, k)
        flat = here if flat is None else flat * dim + here
    return index if flat is None else flat


def _places(size: Dim, index: Tensor, axis: int) -> Tensor:
    """Each update's own place along an axis of this size, in the shape of the index."""
    count = index.shape[axis]
    if is_nonnegative(size - count):
        return iota(index.shape, axis)
    # Cut out of all places: a guard that there are so many.
    line = iota((size,), 0).narrow(0, 0, count)
    return line.reshape(count, *(1,) * (index.ndim - axis - 1)).broadcast_to(index.shape)


def _lowest(cut: Cut) -> Any:
    """The smallest position that a cut covers; of one that may be empty, some position."""
    if cut.step > 0:
        return cut.start
    return maximum(minimum(cut.start, cut.start + (cut.size - 1) * cut.step), 0)

"""Elements in other places, left out, put in, or chosen of several tensors.

    fliplr flipud rot90   delete insert append diagflat   put_along_axis
    select choose extract compress   block_diag cartesian_prod combinations vander

Places that are known when the graph is made cost nothing but index arithmetic. How many elements a
condition leaves is known to a run only (`extract`, `compress`, `delete` by a mask).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from semel.errors import GraphError
from semel.ir.expr import sum_dims
from semel.ir.types import BOOL, INT64
from semel.tensor import elementwise
from semel.tensor.assign import written
from semel.tensor.creation import meshgrid
from semel.tensor.handle import (
    SYMBOLIC,
    TensorLike,
    convert,
    known_value,
    lift,
    normalize_axis,
    promote,
    whole_number,
    whole_numbers,
)
from semel.tensor.indexing import check_index, iota, selected
from semel.tensor.movement import broadcast, concat, reach, stack, static_dim
from semel.tensor.order import cumprod
from semel.tensor.spelling import AXES, AXIS, same_as, spelled

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

# ------------------------------------------------------------ turned


def fliplr(x: TensorLike) -> Tensor:
    """The second axis in reverse order."""
    x = lift(x)
    if x.ndim < 2:
        raise GraphError("fliplr", f"needs at least 2 axes, got {x.type}.")
    return x.flip(1)


def flipud(x: TensorLike) -> Tensor:
    """The first axis in reverse order."""
    x = lift(x)
    if x.ndim < 1:
        raise GraphError("flipud", f"needs at least 1 axis, got {x.type}.")
    return x.flip(0)


@spelled(dims="axes")
def rot90(
    x: TensorLike, k: int = 1, axes: Sequence[int] = (0, 1), *, dims: Sequence[int] = AXES
) -> Tensor:
    """Turned by k quarters, from the first of the two axes to the second."""
    x = lift(x)
    plane = [normalize_axis(axis, x.ndim, "rot90") for axis in axes]
    if len(set(plane)) != 2:
        raise GraphError("rot90", f"axes must be two different ones, got {tuple(axes)}.")
    first, second = plane
    match whole_number(k, "k", "rot90") % 4:
        case 0:
            return x
        case 1:
            return x.flip(second).swapaxes(first, second)
        case 2:
            return x.flip(plane)
    return x.swapaxes(first, second).flip(second)


# ------------------------------------------------------------ left out and put in


@spelled(dim="axis")
def append(
    x: TensorLike, values: TensorLike, axis: int | None = None, *, dim: int | None = AXIS
) -> Tensor:
    """x, and `values` behind it along the axis; without one, both flat."""
    return concat([lift(x), lift(values)], axis)


@spelled(dim="axis")
def delete(x: TensorLike, obj: Any, axis: int | None = None, *, dim: int | None = AXIS) -> Tensor:
    """x without some places of an axis: an index, several, a slice, or where a mask is true.

    Without axis, of the flat tensor.
    """
    x, i = _line(x, axis, "delete")
    mask = obj if isinstance(obj, np.ndarray) else lift(obj) if _is_tensor(obj) else None
    if mask is not None and lift(mask).dtype == BOOL:
        return selected(x, reach(~lift(mask), (x.shape[i],), "delete"), i)
    length = x.shape[i]
    if not isinstance(length, int) and isinstance(obj, (int, np.integer)):
        return _without_one(x, int(obj), i)
    size = static_dim(length, "delete", x)
    places = _known_places(obj, size, "delete")
    return x.take(np.delete(np.arange(size), places), i)


def _without_one(x: Tensor, place: int, axis: int) -> Tensor:
    """A symbolic axis without one place, from either end."""
    start = place if place >= 0 else x.shape[axis] + place
    behind = x.narrow(axis, start + 1, x.shape[axis] - start - 1)
    return concat([x.narrow(axis, 0, start), behind], axis)


@spelled(dim="axis")
def insert(
    x: TensorLike,
    obj: Any,
    values: TensorLike,
    axis: int | None = None,
    *,
    dim: int | None = AXIS,
) -> Tensor:
    """x with `values` put in before places of an axis: an index, several, or a slice.

    Without axis, of the flat tensor.
    """
    x, i = _line(x, axis, "insert")
    new = promote((values, x))[0].cast(x.dtype)
    new = new.reshape((1,) * (x.ndim - new.ndim) + new.shape)
    if isinstance(obj, (int, np.integer, *SYMBOLIC)):
        return _insert_at(x, obj, new.moveaxis(0, i), i)
    size = static_dim(x.shape[i], "insert", x)
    places = _known_places(obj, size, "insert", beyond=1)
    if len(places) == 1:
        return _insert_at(x, int(places[0]), new, i)
    shape = (*x.shape[:i], len(places), *x.shape[i + 1 :])
    new = reach(new, shape, "insert")
    order = np.insert(np.arange(size), places, size + np.arange(len(places)))
    return concat([x, new], i).take(order, i)


def _insert_at(x: Tensor, place: Any, new: Tensor, axis: int) -> Tensor:
    """Something before one place, or at the end."""
    length = x.shape[axis]
    if isinstance(place, (int, np.integer)):
        if isinstance(length, int) and not -length <= place <= length:
            raise GraphError("insert", f"index must lie in [{-length}, {length}], got {place}.")
        place = int(place) if place >= 0 else length + int(place)
    shape = (*x.shape[:axis], new.shape[axis], *x.shape[axis + 1 :])
    parts = [x.narrow(axis, 0, place), reach(new, shape, "insert")]
    return concat([*parts, x.narrow(axis, place, length - place)], axis)


def _line(x: TensorLike, axis: int | None, where: str) -> tuple[Tensor, int]:
    x = lift(x)
    return (x.flatten(), 0) if axis is None else (x, normalize_axis(axis, x.ndim, where))


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "_node")


def _known_places(obj: Any, size: int, where: str, *, beyond: int = 0) -> np.ndarray[Any, Any]:
    """Places that are known now, counted from the front; `beyond` the last there may be some."""
    if isinstance(obj, slice):
        return np.arange(size)[obj]
    if _is_tensor(obj):
        known = known_value(obj)
        if known is None:
            raise GraphError(
                where,
                f"places must be known when the graph is made, got {obj.type}.",
                hint="Use x[mask].",
            )
        obj = known.array
    places = np.array(whole_numbers(np.asarray(obj).reshape(-1), "an index", where), np.int64)
    if ((places < -size) | (places >= size + beyond)).any():
        limits = f"[{-size}, {size + beyond})"
        raise GraphError(where, f"places must lie in {limits}, got {places.tolist()}.")
    return np.where(places < 0, places + size, places)


@spelled(k="offset")
def diagflat(x: TensorLike, offset: int = 0, *, k: int = same_as("offset")) -> Tensor:
    """A square matrix with the flat tensor on one of its diagonals, else 0."""
    return lift(x).flatten().diag(offset)


@spelled(dim="axis")
def put_along_axis(
    x: TensorLike,
    indices: TensorLike,
    values: TensorLike,
    axis: int | None = -1,
    *,
    dim: int | None = AXIS,
) -> Tensor:
    """A copy with `values` where `take_along_axis` with these indices would read.

    NumPy's writes into x itself; here `x = x.put_along_axis(...)` does.
    """
    x = lift(x)
    if axis is None:
        flat = put_along_axis(x.flatten(), lift(indices).flatten(), values, 0)
        return flat.reshape(x.shape)
    i = normalize_axis(axis, x.ndim, "put_along_axis")
    index = lift(indices)
    if index.ndim != x.ndim:
        raise GraphError(
            "put_along_axis", f"indices must have the rank of {x.type}, got {index.type}."
        )
    shape = (*x.shape[:i], index.shape[i], *x.shape[i + 1 :])
    index = reach(check_index(index, x.shape[i], "put_along_axis"), shape, "put_along_axis")
    places = [index if axis == i else iota(shape, axis) for axis in range(x.ndim)]
    return written(x, tuple(places), values, "set", "put_along_axis")


# ------------------------------------------------------------ one of several


def select(
    condlist: Sequence[TensorLike], choicelist: Sequence[TensorLike], default: TensorLike = 0
) -> Tensor:
    """Of each element the choice whose condition is the first that is true, else `default`."""
    if len(condlist) != len(choicelist) or not condlist:
        raise GraphError(
            "select",
            f"needs as many choices as conditions, got {len(choicelist)} and {len(condlist)}.",
        )
    *choices, result = promote([*choicelist, default])
    for condition, choice in zip(reversed(condlist), reversed(choices), strict=True):
        result = elementwise.choose(condition, choice, result)
    return result


def choose(x: TensorLike, choices: Sequence[TensorLike], mode: str = "raise") -> Tensor:
    """Of each place the element of choices[x]; all broadcast.

    Numbers beyond are errors of the run, or by `mode` brought to the ends ("clip") or counted
    round ("wrap").
    """
    index, *items = broadcast([lift(x), *promote(list(choices))], "choose")
    count = len(items)
    match mode:
        case "raise":
            index = check_index(index, count, "choose")
        case "clip":
            index = index.clip(0, count - 1)
        case "wrap":
            index = index % count
        case _:
            raise GraphError("choose", f"mode must be 'raise', 'clip' or 'wrap', got {mode!r}.")
    result = items[-1]
    for k in reversed(range(count - 1)):
        result = elementwise.choose(index.eq(k), items[k], result)
    return result


def extract(condition: TensorLike, x: TensorLike) -> Tensor:
    """The elements of x where the flat condition is true, along one axis."""
    return _where_true(lift(x).flatten(), lift(condition).flatten(), 0, "extract")


@spelled(dim="axis")
def compress(
    condition: TensorLike, x: TensorLike, axis: int | None = None, *, dim: int | None = AXIS
) -> Tensor:
    """The places of an axis where the condition, of one axis, is true; without axis, flat."""
    x, i = _line(x, axis, "compress")
    return _where_true(x, lift(condition), i, "compress")


def _where_true(x: Tensor, condition: Tensor, axis: int, where: str) -> Tensor:
    if condition.ndim != 1:
        raise GraphError(where, f"condition must have one axis, got {condition.type}.")
    count, length = condition.shape[0], x.shape[axis]
    if isinstance(count, int) and isinstance(length, int) and count < length:
        x = x.narrow(axis, 0, count)
    return selected(x, reach(convert(condition, BOOL), (x.shape[axis],), where), axis)


# ------------------------------------------------------------ put together


def block_diag(*tensors: TensorLike) -> Tensor:
    """Matrices along the diagonal of one, which is 0 elsewhere; a vector is one row.

    >>> semel.block_diag([[1, 2]], 3).tolist()
    [[1, 2, 0], [0, 0, 3]]
    """
    parts = [p.reshape(1, -1) if p.ndim < 2 else p for p in promote(tensors)] if tensors else []
    if not parts or any(part.ndim > 2 for part in parts):
        raise GraphError("block_diag", f"needs matrices, got {[str(p.type) for p in parts]}.")
    widths = [part.shape[1] for part in parts]
    rows = []
    for i, part in enumerate(parts):
        before, after = sum_dims(widths[:i]), sum_dims(widths[i + 1 :])
        rows.append(part.pad([(0, 0), (before, after)]))
    return concat(rows, 0)


def cartesian_prod(*tensors: TensorLike) -> Tensor:
    """All choices of one element of each vector, as rows; of a single vector that itself."""
    if len(tensors) == 1:
        return lift(tensors[0])
    return stack([grid.flatten() for grid in meshgrid(*promote(tensors), indexing="ij")], -1)


def combinations(x: TensorLike, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All choices of r elements of a vector in their order, as rows."""
    x = lift(x)
    if x.ndim != 1:
        raise GraphError("combinations", f"needs one axis, got {x.type}.")
    places = range(static_dim(x.shape[0], "combinations", x))
    choose_from = (
        itertools.combinations_with_replacement if with_replacement else itertools.combinations
    )
    chosen = [*choose_from(places, whole_number(r, "r", "combinations"))]
    return x.take(np.array(chosen, np.int64).reshape(len(chosen), r), 0)


@spelled(N="n")
def vander(
    x: TensorLike,
    n: int | None = None,
    increasing: bool = False,
    *,
    N: int | None = same_as("n"),  # noqa: N803  (NumPy's name)
) -> Tensor:
    """The powers of a vector's elements as rows: n of them, the 0th last unless `increasing`."""
    x = lift(x)
    if x.ndim != 1:
        raise GraphError("vander", f"needs one axis, got {x.type}.")
    x = convert(x, x.dtype if x.dtype.is_float else INT64)
    count = x.shape[0] if n is None else n
    powers = cumprod(x.unsqueeze(1).expand(-1, count), 1, exclusive=True)
    return powers if increasing else powers.flip(1)

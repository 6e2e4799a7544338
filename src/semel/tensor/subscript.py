"""What stands in the brackets of `x[...]`, brought into one form.

    key, shape  --parse_key-->  Key: one cut per axis, inserted axes, index arrays

A `Key` is applied in two steps: *cut* (slices with starts, sizes and steps; integers cut one
element) and *pick* (index arrays along axes of the cut tensor). Index arrays follow NumPy:
integers beside them are arrays of rank 0, and adjacent ones leave their result in place while
separated ones put it in front. What separates them is what stands between them in the brackets,
even an ellipsis for no axis. Bounds may be symbolic; sizes are clamped as Python's are.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from semel.errors import GraphError, UnsupportedError
from semel.ir.dims import less
from semel.ir.expr import Dim, add, ceildiv, is_nonnegative, is_positive, maximum, minimum
from semel.ir.types import BOOL, Shape
from semel.runtime.interop import read_array
from semel.tensor.handle import SYMBOLIC, tensor_class
from semel.tensor.movement import show

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

#: No axis has so many elements: bounds beyond it mean an end, also of axes of unknown size.
MAX_AXIS = 1 << 48


@dataclass(frozen=True, slots=True)
class Cut:
    """Elements start, start+step, ... of one axis; `drop` removes the axis (an integer)."""

    start: Dim
    size: Dim
    step: int = 1
    drop: bool = False


@dataclass(frozen=True, slots=True)
class MaskAxis:
    """The index along one of its axes of where a computed mask is true."""

    mask: Tensor
    axis: int


@dataclass(frozen=True, slots=True)
class Key:
    """`cuts` has one per axis; `layout` says where each result axis of the cut comes from.

    A layout entry is an axis number or None for an inserted axis. `picks` maps positions in
    the layout to index arrays (NumPy arrays, tensors, ints or axes of masks), in order.
    `is_adjacent`: they stand side by side in the brackets, so that their result stays in place.
    """

    cuts: tuple[Cut, ...]
    layout: tuple[int | None, ...]
    picks: tuple[tuple[int, Any], ...]
    is_adjacent: bool

    @property
    def only_mask(self) -> Tensor | None:
        """The computed mask whose axes are all that is picked by, in order."""
        items = [item for _, item in self.picks]
        first = items[0] if items else None
        if not isinstance(first, MaskAxis) or len(items) != first.mask.ndim:
            return None
        whole = [MaskAxis(first.mask, axis) for axis in range(first.mask.ndim)]
        return first.mask if items == whole else None

    def cut_shape(self) -> Shape:
        return tuple(1 if axis is None else self.cuts[axis].size for axis in self.layout)


def parse_key(key: Any, shape: Shape, where: str) -> Key:
    """Check and normalise a key for a tensor of this shape."""
    written = [_check_item(item, where) for item in _as_items(key, where)]
    items = _expand_masks(_expand_ellipsis(written, shape, where), shape, where)
    picking = any(_is_index_array(item) for item in items)
    cuts: list[Cut] = []
    layout: list[int | None] = []
    picks: list[tuple[int, Any]] = []
    for item in items:
        axis = len(cuts)
        if item is None:
            layout.append(None)
            continue
        dim = shape[axis]
        if isinstance(item, slice):
            cuts.append(_cut_slice(item, dim, where))
        elif picking or _is_uncertain(item, dim):
            picks.append((len(layout), item))
            cuts.append(Cut(0, dim))
        else:
            cuts.append(Cut(_certain_index(item, dim, axis, where), 1, drop=True))
            continue
        layout.append(axis)
    return Key(tuple(cuts), tuple(layout), tuple(picks), _are_adjacent(written))


# ---------------------------------------------------------------- items


def _as_items(key: Any, where: str) -> list[Any]:
    items = list(key) if isinstance(key, tuple) else [key]
    arrays = (list, range, np.ndarray)
    return [_index_array(i, where) if isinstance(i, arrays) else i for i in items]


def _index_array(item: Any, where: str) -> Any:
    return read_array(item, lambda sentence: GraphError(where, f"indices {sentence}"))


def is_mask(item: Any) -> bool:
    """Whether an item is a boolean array or tensor."""
    if isinstance(item, tensor_class()):
        return item.dtype == BOOL
    return isinstance(item, np.ndarray) and item.dtype == np.bool_


def is_computed_mask(item: Any) -> bool:
    """Whether an item is a mask whose elements only a run knows."""
    return isinstance(item, tensor_class()) and is_mask(item) and item.node.op.name != "constant"


def _is_index_array(item: Any) -> bool:
    return isinstance(item, (np.ndarray, tensor_class(), MaskAxis))


def _are_adjacent(items: list[Any]) -> bool:
    """Whether no slice, inserted axis or ellipsis stands between two indices."""
    places = [k for k, item in enumerate(items) if not _is_basic(item)]
    return not places or places[-1] - places[0] + 1 == len(places)


def _is_basic(item: Any) -> bool:
    return item is None or item is Ellipsis or isinstance(item, slice)


def _expand_masks(items: list[Any], shape: Shape, where: str) -> list[Any]:
    """Masks become the index arrays of their true elements, one for each of their axes."""
    result: list[Any] = []
    axis = 0
    for item in items:
        if is_mask(item):
            _check_mask(item, shape, axis, where)
            if isinstance(item, tensor_class()):
                result.extend(MaskAxis(item, k) for k in range(item.ndim))
            else:
                result.extend(np.nonzero(item))
        else:
            result.append(item)
        axis += _axes_of(item)
    return result


def _axes_of(item: Any) -> int:
    """How many axes an item speaks of."""
    if item is None or item is Ellipsis:
        return 0
    return int(item.ndim) if is_mask(item) else 1


def _check_mask(mask: Any, shape: Shape, axis: int, where: str) -> None:
    """A mask has the dims of the axes it speaks of: none stretches.

    Those that may be equal are left for a guard.
    """
    differ = [p for p in zip(mask.shape, shape[axis:], strict=False) if p[0] != p[1]]
    if any(have == 1 or isinstance(have - want, int) for have, want in differ):
        raise GraphError(
            where,
            f"a mask must have the shape of its axes, got {show(mask.shape)} of {show(shape)}.",
        )


def _mask(item: Any, where: str) -> Any:
    """A mask whose elements are known as an array, another one as it is."""
    if item.ndim == 0:
        raise UnsupportedError(where, f"a bool is not an index, got {item!r}.", hint="Use None.")
    if isinstance(item, tensor_class()) and item.node.op.name == "constant":
        return item.node.attrs.storage.array
    return item


def _check_item(item: Any, where: str) -> Any:
    if _is_basic(item) or isinstance(item, SYMBOLIC):
        return item
    if isinstance(item, (bool, np.bool_)):
        raise UnsupportedError(where, f"a bool is not an index, got {item!r}.", hint="Use None.")
    if is_mask(item):
        return _mask(item, where)
    if isinstance(item, tensor_class()):
        if not item.dtype.is_integer:
            raise GraphError(where, f"indices must be integers, got {item.type}.")
        return item
    if isinstance(item, np.ndarray):
        if item.size == 0 and item.dtype.kind == "f":
            return item.astype(np.int64)
        if item.dtype.kind not in "iu":
            raise GraphError(where, f"indices must be integers, got an array of {item.dtype}.")
        return item
    try:
        return operator.index(item)
    except TypeError:
        raise GraphError(
            where, f"an index must be an int, a slice, None, ... or an array, got {item!r}."
        ) from None


def _expand_ellipsis(items: list[Any], shape: Shape, where: str) -> list[Any]:
    used = sum(_axes_of(item) for item in items)
    dots = [k for k, i in enumerate(items) if i is Ellipsis]
    if len(dots) > 1:
        raise GraphError(where, "a key may hold one ellipsis (...), got several.")
    if used > len(shape):
        raise GraphError(where, f"got {used} indices for {len(shape)} axes of {show(shape)}.")
    at = dots[0] if dots else len(items)
    fill = [slice(None)] * (len(shape) - used)
    return items[:at] + fill + items[at + 1 :]


# ---------------------------------------------------------------- bounds


def _is_uncertain(item: Any, dim: Dim) -> bool:
    """A symbolic index that may leave the axis: it is checked at run time, as data is."""
    if isinstance(item, int) and isinstance(dim, int):
        return False
    if isinstance(item, int) and item < 0:
        return not is_nonnegative(dim + item)
    return not (is_nonnegative(item) and is_positive(dim - item))


def _certain_index(item: Dim, dim: Dim, axis: int, where: str) -> Dim:
    if not isinstance(item, int):
        return item
    if isinstance(dim, int) and not -dim <= item < dim:
        raise GraphError(
            where, f"index must lie in [{-dim}, {dim}) on axis {axis}, got {item}.", index=item
        )
    return dim + item if item < 0 else item


def _cut_slice(item: slice, dim: Dim, where: str) -> Cut:
    """Python's rules for slices, on dims that may be symbolic."""
    step = 1 if item.step is None else item.step
    if not isinstance(step, (int, np.integer)) or step == 0:
        raise GraphError(where, f"a slice's step must be a non-zero int, got {step!r}.")
    step = int(step)
    low, high = (0, dim) if step > 0 else (-1, add(dim, -1))
    start = _bound(item.start, dim, low, high, low if step > 0 else high, where)
    stop = _bound(item.stop, dim, low, high, high if step > 0 else low, where)
    length = stop - start if step > 0 else start - stop
    return Cut(start, maximum(ceildiv(length, abs(step)), 0), step)


def _bound(value: Any, dim: Dim, low: Dim, high: Dim, default: Dim, where: str) -> Dim:
    if value is None:
        return default
    if not isinstance(value, SYMBOLIC):
        value = _index_of(value, operator.index, where)
    if isinstance(value, int) and abs(value) >= MAX_AXIS:
        return low if value < 0 else high
    # What may be negative counts from the end where it is.
    value = value + dim * less(value, 0)
    return maximum(minimum(value, high), low)


def _index_of(value: Any, convert: Callable[[Any], int], where: str) -> int:
    try:
        return convert(value)
    except TypeError:
        raise GraphError(where, f"slice bounds must be ints or Variables, got {value!r}.") from None


def result_axes(key: Key, index_ndim: int) -> Sequence[int]:
    """The order that brings (index axes, other axes) to where NumPy puts them."""
    kept = len(key.layout) - len(key.picks)
    front = key.picks[0][0] if key.is_adjacent else 0
    others = list(range(index_ndim, index_ndim + kept))
    return others[:front] + list(range(index_ndim)) + others[front:]

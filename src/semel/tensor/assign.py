"""Tensor, layer 7: writing by index, functionally.

    x[key] = v    -->    the handle gets a new node; other tensors keep their value

A slice is written without a copy of its own: the value is padded out to the whole shape and a
mask of index comparisons chooses between it and the old tensor, so that it fuses. Index
arrays go through `scatter` on rows; where an element is hit twice, the last write wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from semel.errors import GraphError
from semel.ir.expr import is_nonnegative, minimum, product
from semel.ir.graph import is_from_outside
from semel.ops.attrs import ScatterAttrs
from semel.tensor.handle import TensorLike, normalize_axis, weak_kind
from semel.tensor.indexing import Indexing
from semel.tensor.key import Cut, Key, is_computed_mask, parse_key, result_axes
from semel.tensor.movement import is_negative

_MODES = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min", "set": "set"}


class Assign(Indexing):
    """Assignment and scatter."""

    __slots__ = ()

    def __setitem__(self, key: Any, value: TensorLike) -> None:
        if is_from_outside(self._node):
            raise GraphError(
                "setitem",
                f"a body must not write to a tensor from outside of it, got {self.type}.",
                hint="Write to one that is made inside, as `y = x * 1`, and return it.",
            )
        self._node = self._with(key, value, "set", "setitem")._node
        self._value = None

    def _with(self, key: Any, value: TensorLike, mode: str, where: str) -> Self:
        """This tensor with `value` written (or combined) at `key`."""
        update = self._in_my_dtype(value)
        if mode == "set" and is_computed_mask(key) and update.ndim <= self.ndim - key.ndim:
            return self._masked(self._lift(key), update)
        parsed = parse_key(key, self.shape, where)
        if mode == "set" and not parsed.picks:
            return self._place(parsed, update._fit(parsed.cut_shape(), where))
        region = self._cut(parsed.cuts).reshape(parsed.cut_shape())
        if parsed.picks:
            return self._place(parsed, region._scatter_picked(parsed, update, mode, where))
        return self._place(parsed, region._combined(update._fit(region.shape, where), mode))

    def _in_my_dtype(self, value: TensorLike) -> Self:
        weak = weak_kind(value)
        return self._weak(value, self.dtype) if weak else self._lift(value)._cast(self.dtype)

    def _fit(self, shape: Sequence[Any], where: str) -> Self:
        """Broadcast to the region that is written; NumPy also drops leading axes of size 1."""
        extra = self.ndim - len(shape)
        lead = self.shape[: max(extra, 0)]
        x = self.reshape(self.shape[extra:]) if extra > 0 and all(d == 1 for d in lead) else self
        return x._reach(tuple(shape), where)

    def _combined(self, update: Self, mode: str) -> Self:
        match mode:
            case "add":
                return self + update
            case "mul":
                return self * update
            case "max":
                return self.maximum(update)
            case _:
                return self.minimum(update)

    def _masked(self, mask: Self, update: Self) -> Self:
        """One value for wherever a computed mask is true: a choice, which fuses."""
        mask = mask._of_shape(self.shape[: mask.ndim], "setitem", "mask")
        behind = self.shape[mask.ndim :]
        wide = mask.reshape(*mask.shape, *(1,) * len(behind))
        return self._choose(wide, update._reach(behind, "setitem"), self)

    # ------------------------------------------------------------ slices

    def _place(self, key: Key, region: Self) -> Self:
        """This tensor with the cut region replaced."""
        if any(c.size == 0 for c in key.cuts):
            return self
        value = region.reshape(tuple(c.size for c in key.cuts))
        mask: Self | None = None
        for axis, cut in enumerate(key.cuts):
            if cut.start == 0 and cut.step == 1 and cut.size == self.shape[axis]:
                continue
            inside = self._inside(axis, cut)
            mask = inside if mask is None else mask & inside
            value = value._spread(axis, cut, self.shape[axis])
        if mask is None:
            return value
        return self._choose(mask, value, self)

    def _inside(self, axis: int, cut: Cut) -> Self:
        """Which positions of an axis the cut covers, shaped to broadcast."""
        step = abs(cut.step)
        offset: Self = self._iota((self.shape[axis],), 0) - _lowest(cut)
        covered = (offset >= 0) & (offset < cut.size * step)
        if step > 1:
            covered = covered & ((offset % step).eq(0))
        return covered.reshape(*(self.shape[axis],), *(1,) * (self.ndim - axis - 1))

    def _spread(self, axis: int, cut: Cut, length: Any) -> Self:
        """The cut's values at their positions along a whole axis, zeros between."""
        x = self.flip(axis) if cut.step < 0 else self
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

    def _scatter_picked(self, key: Key, update: Self, mode: str, where: str) -> Self:
        """This (cut) tensor with `update` written at the key's index arrays."""
        places = [place for place, _ in key.picks]
        index = self._flat_index(key, where)
        rest = tuple(d for i, d in enumerate(self.shape) if i not in places)
        order = result_axes(key, index.ndim)
        shape = (*index.shape, *rest)
        fitted = update._fit([shape[i] for i in order], where)
        back = fitted.permute([order.index(i) for i in range(len(shape))])
        rows = self._merged(places)
        merged = rows._scatter_rows(index.flatten(), back.reshape(index.size, *rest), mode)
        moved = merged.reshape(*(self.shape[p] for p in places), *rest)
        return moved.moveaxis(range(len(places)), places)

    def _scatter_rows(self, index: Self, update: Self, mode: str) -> Self:
        """Rows of this tensor updated in order of `index` (1-D, checked); one row each."""
        width = product(self.shape[1:])
        rows = self.reshape(self.shape[0], width)
        new = update.reshape(index.shape[0], width)
        result = self._apply("scatter", rows, index, new, attrs=ScatterAttrs(mode))
        return result.reshape(self.shape)

    def index_put(
        self, indices: Sequence[TensorLike], values: TensorLike, accumulate: bool = False
    ) -> Self:
        """A copy with `values` written (or added) at x[indices]."""
        return self._with(tuple(indices), values, "add" if accumulate else "set", "index_put")

    def index_add(self, axis: int, index: TensorLike, source: TensorLike) -> Self:
        """A copy with the slices of `source` added at the indices (1-D) of one axis.

        `source` has this tensor's shape, with one slice per index along the axis.
        """
        where, lifted = "index_add", self._lift(index)
        i = normalize_axis(axis, self.ndim, where)
        if lifted.ndim != 1:
            raise GraphError(where, f"index must be 1-D, got {lifted.type}.")
        shape = (*self.shape[:i], lifted.shape[0], *self.shape[i + 1 :])
        update = self._in_my_dtype(source)._of_shape(shape, where, "source")
        checked = lifted._checked(self.shape[i], where)
        rows = self.moveaxis(i, 0)._scatter_rows(checked, update.moveaxis(i, 0), "add")
        return rows.moveaxis(0, i)

    def scatter(
        self, axis: int, index: TensorLike, source: TensorLike, reduce: str = "set"
    ) -> Self:
        """out[.., index[.., i, ..], ..] = source[.., i, ..]; `reduce` combines instead."""
        if reduce not in _MODES:
            raise GraphError(
                "scatter", f"reduce must be one of {', '.join(_MODES)}, got {reduce!r}."
            )
        return self._scatter(axis, index, source, _MODES[reduce], "scatter")

    def scatter_add(self, axis: int, index: TensorLike, source: TensorLike) -> Self:
        """`scatter` that adds: updates of one element add up in their order."""
        return self._scatter(axis, index, source, _MODES["sum"], "scatter_add")

    def _scatter(
        self, axis: int, index: TensorLike, source: TensorLike, mode: str, where: str
    ) -> Self:
        i = normalize_axis(axis, self.ndim, where)
        lifted = self._lift(index)
        if lifted.ndim != self.ndim:
            raise GraphError(where, f"index must have the rank of {self.type}, got {lifted.type}.")
        for k, (have, wanted) in enumerate(zip(self.shape, lifted.shape, strict=True)):
            if k != i and not is_nonnegative(have - wanted):
                raise GraphError(
                    where,
                    f"index must not be larger than {self.type} except along axis {i}, "
                    f"got {lifted.type}.",
                )
        update = self._source(source, lifted, where)
        flat_index = self._element_index(lifted._checked(self.shape[i], where), i)
        flat = self.flatten()._scatter_rows(flat_index.flatten(), update.flatten(), mode)
        return flat.reshape(self.shape)

    def _source(self, source: TensorLike, index: Self, where: str) -> Self:
        """The updates in the shape of the index; larger sources are cut."""
        update = self._in_my_dtype(source)
        if update.ndim == 0:
            return update.broadcast_to(index.shape)
        if update.ndim != index.ndim:
            raise GraphError(
                where, f"source must have the rank of {index.type}, got {update.type}."
            )
        if any(
            is_negative(have - want) for have, want in zip(update.shape, index.shape, strict=True)
        ):
            raise GraphError(
                where, f"source must not be smaller than {index.type}, got {update.type}."
            )
        return update._slice((0,) * index.ndim, index.shape, (1,) * index.ndim)

    def _element_index(self, index: Self, axis: int) -> Self:
        """The row-major position of each update's target element."""
        flat: Self | None = None
        for k, dim in enumerate(self.shape):
            here = index if k == axis else self._iota(index.shape, k)
            flat = here if flat is None else flat * dim + here
        return index if flat is None else flat


def _lowest(cut: Cut) -> Any:
    """The smallest position that a cut covers."""
    return cut.start if cut.step > 0 else cut.start + (cut.size - 1) * cut.step

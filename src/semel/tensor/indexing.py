"""Tensor, layer 6: reading by index.

    x[key]  take  gather  take_along_axis  index_select  embedding  one_hot

Index arrays are data: every index passes a `check_index` node, which wraps negative ones
once and turns one out of range into an IndexRangeError at run time, naming the operation.
Several index arrays become one flat index along merged axes, so that one gather does it all.
A computed mask stands for the positions where it is true, whose number a run finds out
(ops/late.py); they are in range, and not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

from semel.errors import GraphError
from semel.ir.expr import Dim, product
from semel.ir.types import INT64, Shape
from semel.ops.attrs import CheckIndexAttrs, GatherAttrs, IotaAttrs
from semel.ops.elementwise import check_indices, index_check
from semel.ops.late import positions
from semel.tensor.contract import Contract
from semel.tensor.handle import DTypeLike, TensorLike, normalize_axis, weak_kind, whole_number
from semel.tensor.key import Cut, Key, MaskAxis, parse_key, result_axes
from semel.tensor.movement import broadcast_shapes
from semel.tensor.origin import user_origin


class Indexing(Contract):
    """Selection by position."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Self:
        parsed = parse_key(key, self.shape, "getitem")
        cut = self._cut(parsed.cuts).reshape(parsed.cut_shape())
        return cut._pick(parsed) if parsed.picks else cut

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError("len() of a 0-d tensor")
        if not isinstance(self.shape[0], int):
            raise GraphError("len", f"the first dim must be fixed, got {self.type}.")
        return self.shape[0]

    def __iter__(self) -> Iterator[Self]:
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d tensor")
        return iter(self.unbind(0))

    def _cut(self, cuts: Sequence[Cut]) -> Self:
        starts, sizes = [c.start for c in cuts], [c.size for c in cuts]
        return self._slice(starts, sizes, [c.step for c in cuts])

    def _pick(self, key: Key) -> Self:
        """Select by the key's index arrays; self is the cut tensor."""
        places = [place for place, _ in key.picks]
        flat, indices = self._merged(places), self._flat_index(key, "getitem")
        if len(places) == 1:
            return self._apply("gather", self, indices, attrs=GatherAttrs(places[0]))
        picked = self._apply("gather", flat, indices, attrs=GatherAttrs(0))
        return picked.permute(result_axes(key, indices.ndim))

    def _merged(self, places: Sequence[int]) -> Self:
        """The axes at `places` as one axis in front."""
        moved = self.moveaxis(places, range(len(places)))
        count = product(moved.shape[: len(places)])
        return moved.reshape(count, *moved.shape[len(places) :])

    def _flat_index(self, key: Key, where: str) -> Self:
        """The checked index arrays of a key as one index into its merged axes."""
        if key.only_mask is not None:
            mask, places = self._lift(key.only_mask), [place for place, _ in key.picks]
            return mask._of_shape(tuple(self.shape[p] for p in places), where, "mask")._positions()
        checked = [self._index(item, self.shape[place], where) for place, item in key.picks]
        indices = self._broadcast(checked, where)
        flat = indices[0]
        for (place, _), index in zip(key.picks[1:], indices[1:], strict=True):
            flat = flat * self.shape[place] + index
        return flat

    def _index(self, item: Any, size: Dim, where: str) -> Self:
        """One index array of a key, in [0, size)."""
        if not isinstance(item, MaskAxis):
            return self._lift(item)._checked(size, where)
        mask = self._lift(item.mask)
        shape = (*mask.shape[: item.axis], size, *mask.shape[item.axis + 1 :])
        return mask._of_shape(shape, where, "mask")._where()[item.axis]

    def _positions(self) -> Self:
        """The flat positions where this mask is true, ascending."""
        return self._wrap(positions(self._node, origin=user_origin()))

    def _where(self) -> tuple[Self, ...]:
        """The positions where this mask is true, as one index for each axis."""
        found: list[Self] = []
        rest = self._positions()
        for dim in reversed(self.shape[1:]):
            found.append(rest % dim)
            rest = rest // dim
        return (rest, *reversed(found))

    def _checked(self, size: Dim, where: str, what: str = "index") -> Self:
        """These indices as int64 in [0, size): checked now if they are known, else at run time.

        What is no "index" (a length, a class) does not count from the end.
        """
        if not self.dtype.is_integer:
            rule = f"every {what} must be an integer"
            rule = "indices must be integers" if what == "index" else rule
            raise GraphError(where, f"{rule}, got {self.type}.")
        checked = self._apply("check_index", self, attrs=CheckIndexAttrs(size, where, what))
        known = self._known()
        if known is not None and isinstance(size, int):
            check_indices(known.array, size, index_check(checked.node))
        return checked

    # ------------------------------------------------------------ named functions

    def take(self, indices: TensorLike, axis: int | None = None) -> Self:
        """np.take: rows of one axis, in the shape of `indices`; of the flat tensor without axis."""
        return self._take(indices, axis, "take")

    def _take(self, indices: TensorLike, axis: int | None, where: str) -> Self:
        if axis is None:
            return self.flatten()._take(indices, 0, where)
        i = normalize_axis(axis, self.ndim, where)
        checked = self._lift(indices)._checked(self.shape[i], where)
        return self._apply("gather", self, checked, attrs=GatherAttrs(i))

    def index_select(self, axis: int, index: TensorLike) -> Self:
        """`take` with a 1-D index, the axis first."""
        lifted = self._lift(index)
        if lifted.ndim != 1:
            raise GraphError("index_select", f"index must be 1-D, got {lifted.type}.")
        return self._take(lifted, axis, "index_select")

    def embedding(self, weight: TensorLike) -> Self:
        """Rows of `weight` selected by these integers."""
        return self._lift(weight)._take(self, 0, "embedding")

    def gather(self, axis: int, index: TensorLike) -> Self:
        """out[.., i, ..] = x[.., index[.., i, ..], ..]; index may be smaller than x elsewhere."""
        where, lifted = "gather", self._lift(index)
        i = normalize_axis(axis, self.ndim, where)
        if lifted.ndim != self.ndim:
            raise GraphError(where, f"index must have the rank of {self.type}, got {lifted.type}.")
        sizes = (*lifted.shape[:i], self.shape[i], *lifted.shape[i + 1 :])
        for have, want in zip(self.shape, sizes, strict=True):
            if isinstance(have, int) and isinstance(want, int) and want > have:
                raise GraphError(where, f"index {lifted.type} must not be larger than {self.type}.")
        zeros, ones = (0,) * self.ndim, (1,) * self.ndim
        return self._slice(zeros, sizes, ones)._take_along(lifted, i, where)

    def _take_along(self, index: Self, axis: int, where: str) -> Self:
        checked = index._checked(self.shape[axis], where)
        return self._apply("take_along", self, checked, attrs=GatherAttrs(axis))

    def take_along_axis(self, indices: TensorLike, axis: int) -> Self:
        """np.take_along_axis: `gather` whose other axes broadcast."""
        where, lifted = "take_along_axis", self._lift(indices)
        i = normalize_axis(axis, self.ndim, where)
        if lifted.ndim != self.ndim:
            raise GraphError(
                where, f"indices must have the rank of {self.type}, got {lifted.type}."
            )
        others = [t.shape[:i] + t.shape[i + 1 :] for t in (self, lifted)]
        rest = broadcast_shapes(others, where)

        def wide(t: Self) -> Self:
            return t.broadcast_to((*rest[:i], t.shape[i], *rest[i:]))

        return wide(self)._take_along(wide(lifted), i, where)

    def one_hot(self, num_classes: int, dtype: DTypeLike = "int64") -> Self:
        """1 at each element's own number along a new last axis, else 0."""
        if not self.dtype.is_integer:
            raise GraphError("one_hot", f"needs integers, got {self.type}.")
        classes = self._iota((num_classes,), 0)
        return self._cast(INT64).unsqueeze(-1).eq(classes).cast(dtype)

    @classmethod
    def _iota(cls, shape: Shape, axis: int) -> Self:
        """Each element's own index along an axis, as int64."""
        return cls._apply("iota", attrs=IotaAttrs(shape, axis, INT64))

    # ------------------------------------------------------------ triangles and diagonals

    def _distance(self, offset: Dim, where: str) -> Self:
        """Column - row for the last two axes, to compare with `offset`."""
        if self.ndim < 2:
            raise GraphError(where, f"needs at least 2 axes, got {self.type}.")
        if weak_kind(offset) != "i":
            raise GraphError(where, f"offset must be an int or a Variable, got {offset!r}.")
        return self._iota(self.shape[-2:], 1) - self._iota(self.shape[-2:], 0)

    def tril(self, offset: Dim = 0) -> Self:
        """Zero above the diagonal."""
        kept = self._distance(offset, "tril") <= offset
        return self._choose(kept, self, self._scalar(0, self.dtype))

    def triu(self, offset: Dim = 0) -> Self:
        """Zero below the diagonal."""
        gone = self._distance(offset, "triu") < offset
        return self._choose(gone, self._scalar(0, self.dtype), self)

    def diag(self, offset: int = 0) -> Self:
        """np.diag: the diagonal of a matrix, or a matrix with this diagonal."""
        if self.ndim == 2:
            return self.diagonal(offset)
        if self.ndim != 1:
            raise GraphError("diag", f"needs 1 or 2 axes, got {self.type}.")
        offset = whole_number(offset, "offset", "diag")
        n = self.shape[0]
        on_diagonal = self._iota((n, n), 0).eq(self._iota((n, n), 1))
        square = self._choose(on_diagonal, self.unsqueeze(1), self._scalar(0, self.dtype))
        below, right = (-offset, 0) if offset < 0 else (0, offset)
        return square.pad(((below, right), (right, below)))

    def __contains__(self, value: Any) -> bool:
        return bool(self.eq(value).any())

"""Tensor, layer 1: where elements stand. No arithmetic, no copies.

    reshape permute expand pad slice flip concat stack split repeat tile roll ...

All of these become the ops reshape, permute, expand, slice, pad and concat, which the
compiler turns into index arithmetic of whoever reads the result. Dims may be symbolic; only
a dim that is literally 1 stretches in a broadcast, never a variable that happens to be 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from semel.errors import GraphError
from semel.ir.expr import Dim, floordiv, maximum, mod, product, upper_bound
from semel.ir.graph import Node, make_node
from semel.ir.types import Shape, as_shape
from semel.ops.attrs import (
    ConcatAttrs,
    ExpandAttrs,
    PadAttrs,
    PermuteAttrs,
    ReshapeAttrs,
    SliceAttrs,
)
from semel.tensor.handle import (
    Handle,
    TensorLike,
    normalize_axes,
    normalize_axis,
    weak_kind,
    whole_number,
    whole_numbers,
)


class Movement(Handle):
    """Reshaping, reordering, stretching, cutting and joining."""

    __slots__ = ()

    # ------------------------------------------------------------ shape

    def reshape(self, *shape: Any) -> Self:
        """The same elements in another shape; one dim may be -1."""
        dims = _resolve(_flat(shape), self.size, self.shape)
        if dims == self.shape:
            return self
        return self._apply("reshape", self, attrs=ReshapeAttrs(dims))

    view = reshape

    def flatten(self, start: int = 0, end: int = -1) -> Self:
        """Merge the axes from `start` to `end`, both included."""
        if self.ndim == 0:
            return self.reshape(1)
        first = normalize_axis(start, self.ndim, "flatten")
        last = normalize_axis(end, self.ndim, "flatten")
        if last < first:
            raise GraphError("flatten", f"start must not follow end, got {start} and {end}.")
        merged = product(self.shape[first : last + 1])
        return self.reshape(*self.shape[:first], merged, *self.shape[last + 1 :])

    def ravel(self) -> Self:
        return self.flatten()

    def squeeze(self, axis: int | Sequence[int] | None = None) -> Self:
        """Drop axes of size 1: those named, or all of them."""
        if axis is None:
            return self.reshape(tuple(d for d in self.shape if d != 1))
        axes = normalize_axes(axis, self.ndim, "squeeze")
        if any(self.shape[i] != 1 for i in axes):
            raise GraphError("squeeze", f"axes must have size 1, got axes={axes} of {self.type}.")
        return self.reshape(tuple(d for i, d in enumerate(self.shape) if i not in axes))

    def unsqueeze(self, axis: int | Sequence[int]) -> Self:
        """Insert axes of size 1; `axis` counts in the result."""
        given = whole_numbers(axis, "axis", "unsqueeze")
        ndim = self.ndim + len(given)
        axes = normalize_axes(given, ndim, "unsqueeze")
        rest = iter(self.shape)
        return self.reshape(tuple(1 if i in axes else next(rest) for i in range(ndim)))

    expand_dims = unsqueeze

    def unflatten(self, axis: int, shape: Sequence[Dim]) -> Self:
        """Split one axis into several; one of them may be -1."""
        i = normalize_axis(axis, self.ndim, "unflatten")
        dims = _resolve(tuple(shape), self.shape[i], (self.shape[i],))
        return self.reshape(*self.shape[:i], *dims, *self.shape[i + 1 :])

    # ------------------------------------------------------------ order of axes

    def permute(self, *axes: Any) -> Self:
        """Result axis i is axis `axes[i]` of this tensor."""
        order = normalize_axes(_flat(axes), self.ndim, "permute")
        if len(order) != self.ndim:
            raise GraphError("permute", f"needs {self.ndim} axes for {self.type}, got {order}.")
        if order == tuple(range(self.ndim)):
            return self
        return self._apply("permute", self, attrs=PermuteAttrs(order))

    def transpose(self, *axes: Any) -> Self:
        """NumPy's transpose (no axes: reverse them); two axes of a larger tensor swap."""
        order = _flat(axes) if axes and axes[0] is not None else tuple(reversed(range(self.ndim)))
        if len(axes) == 2 and self.ndim != 2:
            return self.swapaxes(*axes)
        return self.permute(order)

    def swapaxes(self, a: int, b: int) -> Self:
        i, j = (normalize_axis(axis, self.ndim, "swapaxes") for axis in (a, b))
        order = list(range(self.ndim))
        order[i], order[j] = j, i
        return self.permute(order)

    def moveaxis(self, source: int | Sequence[int], destination: int | Sequence[int]) -> Self:
        """Move axes to new places; the others keep their order."""
        sources = normalize_axes(source, self.ndim, "moveaxis")
        targets = normalize_axes(destination, self.ndim, "moveaxis")
        if len(sources) != len(targets):
            raise GraphError("moveaxis", f"needs as many targets as sources: {sources}, {targets}.")
        order = [i for i in range(self.ndim) if i not in sources]
        for target, origin in sorted(zip(targets, sources, strict=True)):
            order.insert(target, origin)
        return self.permute(order)

    @property
    def T(self) -> Self:  # noqa: N802  (NumPy's name)
        """All axes reversed."""
        return self.transpose()

    @property
    def mT(self) -> Self:  # noqa: N802  (NumPy's name)
        """The last two axes swapped."""
        if self.ndim < 2:
            raise GraphError("mT", f"needs at least 2 axes, got {self.type}.")
        return self.swapaxes(-1, -2)

    # ------------------------------------------------------------ broadcasting

    def broadcast_to(self, *shape: Any) -> Self:
        """Stretch axes of literal size 1, and add axes in front, to reach `shape`."""
        return self._reach(as_shape(_flat(shape), "broadcast_to"), "broadcast_to")

    def _reach(self, dims: Shape, where: str) -> Self:
        if len(dims) < self.ndim:
            raise GraphError(where, f"{self.type} has more axes than shape {show(dims)}.")
        aligned = self.reshape((1,) * (len(dims) - self.ndim) + self.shape)
        for have, want in zip(aligned.shape, dims, strict=True):
            if have != want and have != 1 and isinstance(have, int) and isinstance(want, int):
                raise GraphError(
                    where, f"only dims of size 1 stretch, got {self.type} to {show(dims)}."
                )
        if dims == aligned.shape:
            return aligned
        return self._apply("expand", aligned, attrs=ExpandAttrs(dims))

    def _of_shape(self, shape: Shape, where: str, name: str) -> Self:
        """This tensor, whose shape must be `shape`: nothing stretches or is read in another way.

        Dims that may be equal are left for a guard.
        """
        differ = [(a, b) for a, b in zip(self.shape, shape, strict=False) if a != b]
        never = any(a == 1 or (isinstance(a, int) and isinstance(b, int)) for a, b in differ)
        if never or self.ndim != len(shape):
            raise GraphError(where, f"{name} must have shape {show(shape)}, got {self.type}.")
        return self.broadcast_to(shape)

    def expand(self, *shape: Any) -> Self:
        """`broadcast_to`, where -1 keeps an axis as it is."""
        wanted = _flat(shape)
        lead = len(wanted) - self.ndim
        kept = (1,) * max(lead, 0) + self.shape
        if lead < 0:
            raise GraphError("expand", f"{self.type} has more axes than shape {show(wanted)}.")
        pairs = zip(wanted, kept, strict=True)
        return self.broadcast_to(
            tuple(k if isinstance(w, int) and w == -1 else w for w, k in pairs)
        )

    @classmethod
    def _broadcast(cls, tensors: Sequence[Self], where: str) -> list[Self]:
        """The tensors in one shape; dims that differ symbolically are left for a guard."""
        if all(t.shape == tensors[0].shape for t in tensors):
            return list(tensors)
        shape = broadcast_shapes([t.shape for t in tensors], where)
        return [t if t.shape == shape else t._stretch(shape) for t in tensors]

    def _stretch(self, shape: Shape) -> Self:
        aligned, lead = self, len(shape) - self.ndim
        if lead == len(shape):
            return self._wrap(_filled(self._node, shape))
        if lead:
            aligned = self._apply("reshape", self, attrs=ReshapeAttrs((1,) * lead + self.shape))
        dims = tuple([w if d == 1 else d for d, w in zip(aligned.shape, shape, strict=True)])
        if dims == aligned.shape:
            return aligned
        return self._apply("expand", aligned, attrs=ExpandAttrs(dims))

    # ------------------------------------------------------------ cutting

    def _slice(self, starts: Sequence[Dim], sizes: Sequence[Dim], steps: Sequence[int]) -> Self:
        # An empty slice may start anywhere; 0 is always legal.
        starts = tuple(0 if n == 0 else s for s, n in zip(starts, sizes, strict=True))
        whole = all(s == 0 for s in starts) and all(s == 1 for s in steps)
        if whole and tuple(sizes) == self.shape:
            return self
        return self._apply("slice", self, attrs=SliceAttrs(starts, tuple(sizes), tuple(steps)))

    def narrow(self, axis: int, start: Dim, size: Dim) -> Self:
        """`size` elements of one axis, from `start` on."""
        i = normalize_axis(axis, self.ndim, "narrow")
        if is_negative(start) or is_negative(size):
            raise GraphError("narrow", f"start and size must be >= 0, got {start} and {size}.")
        if isinstance(past := start + size - self.shape[i], int) and past > 0:
            raise GraphError(
                "narrow", f"[{start}, {start + size}) must lie in axis {i} of {self.type}."
            )
        starts: list[Dim] = [0] * self.ndim
        sizes = list(self.shape)
        starts[i], sizes[i] = start, size
        return self._slice(starts, sizes, (1,) * self.ndim)

    def flip(self, axis: int | Sequence[int] | None = None) -> Self:
        """Reverse the order along the axes; all of them if None."""
        axes = normalize_axes(axis, self.ndim, "flip")
        starts = tuple(d - 1 if i in axes else 0 for i, d in enumerate(self.shape))
        steps = tuple(-1 if i in axes else 1 for i in range(self.ndim))
        return self._slice(starts, self.shape, steps)

    def split(self, sections: int | Sequence[int], axis: int = 0) -> list[Self]:
        """Pieces of `sections` elements each (the last may be shorter), or of the sizes given."""
        i = normalize_axis(axis, self.ndim, "split")
        if isinstance(sections, (int, np.integer)):
            length = _static(self.shape[i], "split", self)
            if sections <= 0:
                raise GraphError("split", f"the piece size must be > 0, got {sections}.")
            width = int(sections)
            sizes = [min(width, length - at) for at in range(0, max(length, 1), width)]
        else:
            sizes = [int(s) for s in sections]
            rest = self.shape[i] - sum(sizes)
            if min(sizes, default=0) < 0 or (isinstance(rest, int) and rest != 0):
                raise GraphError("split", f"sizes must add up to {self.shape[i]}, got {sizes}.")
        starts = [sum(sizes[:k]) for k in range(len(sizes))]
        return [self.narrow(i, at, size) for at, size in zip(starts, sizes, strict=True)]

    def chunk(self, chunks: int, axis: int = 0) -> list[Self]:
        """At most `chunks` pieces of equal size; the last may be shorter."""
        i = normalize_axis(axis, self.ndim, "chunk")
        length = _static(self.shape[i], "chunk", self)
        if whole_number(chunks, "chunks", "chunk") <= 0:
            raise GraphError("chunk", f"the number of chunks must be > 0, got {chunks}.")
        return self.split(max(-(-length // chunks), 1), i)

    def unbind(self, axis: int = 0) -> list[Self]:
        """The slices along one axis, which is dropped."""
        i = normalize_axis(axis, self.ndim, "unbind")
        length = _static(self.shape[i], "unbind", self)
        rest = self.shape[:i] + self.shape[i + 1 :]
        return [self.narrow(i, k, 1).reshape(rest) for k in range(length)]

    # ------------------------------------------------------------ joining and repeating

    def pad(self, widths: Any, value: TensorLike = 0) -> Self:
        """Add `value` around: one width, (before, after), or one such pair per axis."""
        before, after = _widths(widths, self.ndim)
        if all(w == 0 for w in (*before, *after)):
            return self
        fill = self._fill(value, "pad")
        return self._apply("pad", self, fill, attrs=PadAttrs(before, after))

    def _fill(self, value: TensorLike, where: str) -> Self:
        """A scalar of this tensor's dtype."""
        weak = weak_kind(value)
        fill = self._weak(value, self.dtype) if weak else self._lift(value)._cast(self.dtype)
        if fill.shape != ():
            raise GraphError(where, f"the fill value must be one number, got {fill.type}.")
        return fill

    @classmethod
    def concat(cls, tensors: Sequence[TensorLike], axis: int = 0) -> Self:
        """The tensors one after another along an existing axis, in their common dtype."""
        if not tensors:
            raise GraphError("concat", "needs at least one tensor.")
        items = cls._promote(tensors)
        if items[0].ndim == 0:
            raise GraphError("concat", "needs tensors with at least 1 axis, got a 0-d tensor.")
        attrs = ConcatAttrs(normalize_axis(axis, items[0].ndim, "concat"))
        return items[0] if len(items) == 1 else cls._apply("concat", *items, attrs=attrs)

    @classmethod
    def stack(cls, tensors: Sequence[TensorLike], axis: int = 0) -> Self:
        """The tensors one after another along a new axis."""
        items = [cls._lift(t) for t in tensors]
        if not items:
            raise GraphError("stack", "needs at least one tensor.")
        if len({t.ndim for t in items}) > 1:
            raise GraphError(
                "stack", f"shapes must agree, got {', '.join(str(t.type) for t in items)}."
            )
        i = normalize_axis(axis, items[0].ndim + 1, "stack")
        return cls.concat([t.unsqueeze(i) for t in items], i)

    def repeat(self, repeats: int | Dim, axis: int | None = None) -> Self:
        """Each element `repeats` times in a row, as np.repeat; without axis, of the flat tensor."""
        if axis is None:
            return self.flatten().repeat(repeats, 0)
        i = normalize_axis(axis, self.ndim, "repeat")
        (count,) = as_shape((repeats,), "repeat")
        wide = self.unsqueeze(i + 1)
        shape = (*wide.shape[: i + 1], count, *wide.shape[i + 2 :])
        return wide.broadcast_to(shape).flatten(i, i + 1)

    repeat_interleave = repeat

    def tile(self, *repeats: Any) -> Self:
        """The whole tensor repeated along each axis, as np.tile."""
        counts = as_shape(_flat(repeats), "tile")
        ndim = max(len(counts), self.ndim)
        counts = (1,) * (ndim - len(counts)) + counts
        shape = (1,) * (ndim - self.ndim) + self.shape
        pairs = self.reshape(tuple(d for s in shape for d in (1, s)))
        both = list(zip(counts, shape, strict=True))
        wide = pairs.broadcast_to(tuple(d for c, s in both for d in (c, s)))
        return wide.reshape(tuple(c * s for c, s in both))

    def roll(self, shift: int | Sequence[int], axis: int | Sequence[int] | None = None) -> Self:
        """Rotate elements along axes; those pushed out come in on the other side."""
        if axis is None:
            flat: Self = self.flatten()
            return flat.roll(sum(whole_numbers(shift, "shift", "roll")), 0).reshape(self.shape)
        axes, shifts = whole_numbers(axis, "axis", "roll"), whole_numbers(shift, "shift", "roll")
        if isinstance(shift, (int, np.integer)):
            shifts = shifts * len(axes)
        if len(shifts) != len(axes):
            raise GraphError("roll", f"needs one shift per axis, got {shifts} for axes {axes}.")
        result = self
        for amount, one in zip(shifts, axes, strict=True):
            result = result._roll(amount, normalize_axis(one, self.ndim, "roll"))
        return result

    def _roll(self, shift: int, axis: int) -> Self:
        length = self.shape[axis]
        if length == 0 or shift == 0:
            return self
        cut = mod(length - shift, length) if isinstance(length, int) else _cut(shift, length)
        if cut == 0:
            return self
        head, tail = self.narrow(axis, 0, cut), self.narrow(axis, cut, length - cut)
        return self.concat([tail, head], axis)


def _filled(number: Node, shape: Shape) -> Node:
    """A tensor of one repeated number, without an origin: that of the op that uses it will do."""
    ones = (1,) * len(shape)
    if ones:
        number = make_node("reshape", (number,), ReshapeAttrs(ones))
    return number if shape == ones else make_node("expand", (number,), ExpandAttrs(shape))


def broadcast_shapes(shapes: Sequence[Shape], where: str) -> Shape:
    """The common shape by NumPy's rules; of two symbolic dims the first stands for both."""
    longest = max(shapes, key=len)
    if all(longest[len(longest) - len(s) :] == s for s in shapes):
        return longest
    ndim = len(longest)
    padded = [(1,) * (ndim - len(s)) + s for s in shapes]
    result: list[Dim] = []
    for dims in zip(*padded, strict=True):
        wide = [d for d in dims if d != 1]
        sizes = {d for d in wide if isinstance(d, int)}
        if len(sizes) > 1:
            raise GraphError(
                where, f"shapes must broadcast, got {' and '.join(show(s) for s in shapes)}."
            )
        result.append(wide[0] if wide else 1)
    return tuple(result)


def show(shape: Sequence[Any]) -> str:
    """A shape for messages: symbolic dims by name."""
    return f"[{','.join(str(d) for d in shape)}]"


def _flat(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """`f(2, 3)` and `f((2, 3))` are the same call."""
    if len(values) == 1 and isinstance(values[0], (tuple, list)):
        return tuple(values[0])
    return values


def _resolve(dims: tuple[Any, ...], size: Dim, old: Shape) -> Shape:
    """The dims with -1 worked out so that their product is `size`."""
    unknown = [i for i, d in enumerate(dims) if isinstance(d, (int, np.integer)) and d == -1]
    if not unknown:
        return as_shape(dims, "reshape")
    rest = as_shape([d for i, d in enumerate(dims) if i not in unknown], "reshape")
    known = product(rest)
    exact = len(unknown) == 1 and known != 0
    if not exact or (isinstance(size, int) and isinstance(known, int) and size % known):
        raise GraphError("reshape", f"cannot turn {show(old)} into {show(dims)}.")
    values = list(rest)
    values.insert(unknown[0], floordiv(size, known))
    return tuple(values)


def _static(dim: Dim, where: str, tensor: Handle) -> int:
    if not isinstance(dim, int):
        raise GraphError(where, f"needs an axis of fixed size, got {dim} of {tensor.type}.")
    return dim


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


def is_negative(dim: Dim) -> bool:
    """Whether dim < 0 is certain."""
    high = upper_bound(dim)
    return high is not None and high < 0


def _cut(shift: int, length: Dim) -> Dim:
    """Where to cut a symbolic axis, once the shift is brought into [0, length)."""
    some = maximum(length, 1)
    return mod(length - mod(shift, some), some)

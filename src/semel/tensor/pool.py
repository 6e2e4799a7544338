"""Tensor, layer 11: pooling, as reductions over windows.

    x [N, C, space...], kernel  --max, mean, norm-->  [N, C, space...]

Inside, channels come last, so that one vector holds neighbouring channels of one place. The
sums of half floats are taken in float32. Averages divide by how many elements of the
window lie inside what counts: the data, or with `count_include_pad` the padding too, but
never what `ceil_mode` adds for a last window that is only partly there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from semel.errors import GraphError, UnsupportedError
from semel.ir.expr import Dim, product
from semel.ir.types import FLOAT32, INT64, Shape
from semel.ops.attrs import WindowAttrs
from semel.tensor.conv import Conv
from semel.tensor.window import Padding, PerAxis, Windows, check_fits, per_axis, rounded_up, windows


class Pool(Conv):
    """Maxima, means and norms over windows."""

    __slots__ = ()

    def max_pool(
        self,
        kernel: PerAxis,
        stride: PerAxis | None = None,
        padding: Padding = 0,
        dilation: PerAxis = 1,
        ceil_mode: bool = False,
    ) -> Self:
        """The largest element of every window; padding never wins. NaN does."""
        found = self._pooled("max_pool", kernel, stride, padding, dilation)
        view = self._max_windows(found, ceil_mode, "max_pool")
        return view._reduce("reduce_max", found_axes(found), False)._channels_first()

    def max_pool_with_indices(
        self,
        kernel: PerAxis,
        stride: PerAxis | None = None,
        padding: Padding = 0,
        dilation: PerAxis = 1,
        ceil_mode: bool = False,
        *,
        column_major: bool = False,
    ) -> tuple[Self, Self]:
        """`max_pool`, and where each maximum stands in the flat input (int64), as ONNX counts.

        Of equal elements the first of the window counts, and a place in the padding never
        does. `column_major` counts space with its first axis running fastest.
        """
        where = "max_pool_with_indices"
        found = self._pooled(where, kernel, stride, padding, dilation)
        _check_reaches_data(where, found)
        view = self._max_windows(found, ceil_mode, where)
        axes = found_axes(found)
        top = view._reduce("reduce_max", axes, True)
        lead, places = view.shape[: axes[0]], view.shape[1 : axes[0]]
        merged = view.reshape(*lead, product(found.sizes), view.shape[-1])
        chosen = merged.argmax(axes[0])
        # Data may be as low as padding is: then the first element inside is meant.
        inside = self._first_inside(found, places)
        low = top._drop(axes).eq(self._scalar(_lowest(self), self.dtype))
        chosen = self._choose(low, inside, chosen)
        flat = self._flat_places(found, chosen, column_major)
        return top._drop(axes)._channels_first(), flat._channels_first()

    def _max_windows(self, found: Windows, ceil_mode: bool, where: str) -> Self:
        """[N, places..., window..., C], padded with what never wins."""
        return self._channels_last()._pool_windows(found, ceil_mode, where, _lowest(self))

    def _first_inside(self, found: Windows, places: Shape) -> Self:
        """Of each window the number of its first element that is not padding: [places..., 1]."""
        result = self._scalar(0, INT64)
        for axis, inner in enumerate(_inner(found.sizes)):
            # before - place*stride elements are missing in front: that many steps, rounded up.
            start = self._iota(places, axis) * found.strides[axis]
            missing = (-(start - found.before[axis])).maximum(0)
            skipped = (missing + (found.dilations[axis] - 1)) // found.dilations[axis]
            result = result + skipped * inner
        return result.reshape(*places, 1)

    def _flat_places(self, found: Windows, chosen: Self, column_major: bool) -> Self:
        """The flat index in [N, C, space...] of element `chosen` of every window."""
        shape, space = chosen.shape, self.shape[2:]
        inner = _inner(found.sizes)
        flat = self._iota(shape, 0) * self.shape[1] + self._iota(shape, len(shape) - 1)
        flat = flat * product(space)
        strides = _inner(space[::-1])[::-1] if column_major else _inner(space)
        for axis, size in enumerate(found.sizes):
            step = chosen // inner[axis] % size * found.dilations[axis]
            start = self._iota(shape, axis + 1) * found.strides[axis] - found.before[axis]
            flat = flat + (start + step) * strides[axis]
        return flat

    def avg_pool(
        self,
        kernel: PerAxis,
        stride: PerAxis | None = None,
        padding: Padding = 0,
        dilation: PerAxis = 1,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor: int | None = None,
    ) -> Self:
        """The mean of every window; `divisor` stands in for the count."""
        found = self._pooled("avg_pool", kernel, stride, padding, dilation)
        x = self._channels_last()._as_float()
        total = x._pool_windows(found, ceil_mode, "avg_pool").sum(found_axes(found))
        if divisor is not None:
            (count,) = per_axis("avg_pool", "divisor", divisor, 1)
            return (total * (1 / count))._channels_first()._back(self.dtype)
        scale = x._reciprocal_counts(found, ceil_mode, count_include_pad)
        return (total * scale)._channels_first()._back(self.dtype)

    def lp_pool(
        self,
        kernel: PerAxis,
        p: float = 2.0,
        stride: PerAxis | None = None,
        padding: Padding = 0,
        dilation: PerAxis = 1,
        ceil_mode: bool = False,
    ) -> Self:
        """The p-norm of every window."""
        if p <= 0:
            raise GraphError("lp_pool", f"p must be > 0, got {p}.")
        found = self._pooled("lp_pool", kernel, stride, padding, dilation)
        x = self._channels_last()._as_float()
        view = x._pool_windows(found, ceil_mode, "lp_pool")
        return view.norm(p, found_axes(found))._channels_first()._back(self.dtype)

    # ------------------------------------------------------------ over all of space

    def global_max_pool(self) -> Self:
        """The largest element of every channel; space stays with size 1."""
        return self.max(self._space("global_max_pool"), keepdims=True)

    def global_avg_pool(self) -> Self:
        """The mean of every channel; space stays with size 1."""
        return self.mean(self._space("global_avg_pool"), keepdims=True)

    def global_lp_pool(self, p: float = 2.0) -> Self:
        """The p-norm of every channel; space stays with size 1."""
        return self.norm(p, self._space("global_lp_pool"), keepdims=True)

    def adaptive_avg_pool(self, output: PerAxis = 1) -> Self:
        """Means over equal parts of space, `output` of them along each axis."""
        space = [self.shape[axis] for axis in self._space("adaptive_avg_pool")]
        parts = per_axis("adaptive_avg_pool", "output", output, len(space))
        if all(n == 1 for n in parts):
            return self.global_avg_pool()
        if not all(isinstance(d, int) and d % n == 0 for d, n in zip(space, parts, strict=True)):
            raise UnsupportedError(
                "adaptive_avg_pool", f"output must divide the sizes {space}, got {parts}."
            )
        return self.avg_pool([int(d) // n for d, n in zip(space, parts, strict=True)])  # type: ignore[arg-type]

    def _space(self, where: str) -> tuple[int, ...]:
        if self.ndim < 3:
            raise GraphError(where, f"needs (batch, channels, space...), got {self.type}.")
        return tuple(range(2, self.ndim))

    # ------------------------------------------------------------ windows

    def _pooled(
        self,
        where: str,
        kernel: PerAxis,
        stride: PerAxis | None,
        padding: Padding,
        dilation: PerAxis,
    ) -> Windows:
        self._space(where)
        step = kernel if stride is None else stride
        return windows(where, self.shape[2:], kernel, step, padding, dilation)

    def _pool_windows(self, found: Windows, ceil_mode: bool, where: str, fill: Any = 0) -> Self:
        """[N, space..., C] as [N, places..., window..., C]."""
        space = self.shape[1:-1]
        check_fits(where, space, found)
        after = _behind(found, rounded_up(space, found)) if ceil_mode else found.after
        return self._pad_space(found.before, after, fill)._slide(found)

    def _reciprocal_counts(self, found: Windows, ceil_mode: bool, include_pad: bool) -> Self:
        """1 / elements that count, for every place of channels-last x, shaped to broadcast."""
        space = self.shape[1:-1]
        extra = rounded_up(space, found) if ceil_mode else (0,) * len(space)
        is_whole = all(e == 0 for e in extra) and (include_pad or not found.is_padded)
        if is_whole:
            return self._lift(1 / product(found.sizes))._cast(self.dtype)  # type: ignore[operator]
        result: Self | None = None
        for axis in range(len(space)):
            counts = self._axis_counts(axis, found, extra[axis], include_pad)
            counts = counts.reshape(-1, *(1,) * (len(space) - axis))
            result = counts if result is None else result * counts
        assert result is not None
        return result.reciprocal()._cast(self.dtype)

    def _axis_counts(self, axis: int, found: Windows, extra: Dim, include_pad: bool) -> Self:
        """How many elements of each window along one axis count."""
        before, after, size = found.before[axis], found.after[axis], self.shape[axis + 1]
        counted = before + size + after if include_pad else size
        one = self._scalar(1.0, FLOAT32).reshape(1)
        line = one._stretch((counted,))
        line = line.pad([(0, extra)] if include_pad else [(before, after + extra)])
        attrs = WindowAttrs(
            (0,), (found.sizes[axis],), (found.strides[axis],), (found.dilations[axis],)
        )
        return self._apply("window", line, attrs=attrs).sum(1)


def found_axes(found: Windows) -> tuple[int, ...]:
    """Where the window's axes stand in [N, places..., window..., C]."""
    count = len(found.sizes)
    return tuple(range(count + 1, 2 * count + 1))


def _check_reaches_data(where: str, found: Windows) -> None:
    """A window of nothing but padding would have no place in the input."""
    for before, after, span in zip(found.before, found.after, found.spans, strict=True):
        for pad in (before, after):
            if isinstance(pad, int) and pad >= span:
                raise GraphError(
                    where, f"padding must be smaller than the window of {span} elements, got {pad}."
                )


def _lowest(x: Pool) -> Any:
    """What no element of the dtype is below."""
    return -float("inf") if x.dtype.is_float else x.dtype.lowest


def _inner(sizes: Sequence[Any]) -> list[Any]:
    """How many elements one step along each axis passes, the last axis running fastest."""
    return [product(sizes[axis + 1 :]) for axis in range(len(sizes))]


def _behind(found: Windows, extra: tuple[Dim, ...]) -> tuple[Dim, ...]:
    return tuple(a + e for a, e in zip(found.after, extra, strict=True))

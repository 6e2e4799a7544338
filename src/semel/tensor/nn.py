"""Tensor, layer 9: what neural networks are made of, as compositions.

    softmax log_softmax layer_norm rms_norm group_norm batch_norm
    grouped_matmul cross_entropy

Half floats are taken through float32 and rounded once at the end. Every row's divisor is
inverted on the row-sized tensor, so that the wide pass multiplies. Variances take two passes.
"""

from __future__ import annotations

from typing import Self

import numpy as np

from semel.errors import GraphError
from semel.ir.expr import Dim, product, upper_bound
from semel.ops.attrs import GatherAttrs, GroupedMatmulAttrs, GroupRowsAttrs
from semel.tensor.attention import Attention
from semel.tensor.handle import TensorLike, normalize_axis
from semel.tensor.reduce import Axis

#: What the rows of one tile of a grouped matmul may hold: they stay in the second-level cache.
#: A whole number of blocks of every machine's registers, and few enough for a long table.
LINE_ELEMENTS = 1 << 16
LINE_ROWS = (24, 96)


class NN(Attention):
    """Normalisation, losses."""

    __slots__ = ()

    # ------------------------------------------------------------ softmax

    def softmax(self, axis: Axis = -1) -> Self:
        """exp(x) over its sum along the axes, without overflow."""
        x = self._as_float()
        # A NaN that max skips comes back through exp, so the cheaper max serves.
        top = x._reduce("reduce_max", axis, True, propagate_nan=False)
        weights = (x - top).exp()
        return (weights * weights.sum(axis, keepdims=True).reciprocal())._back(self.dtype)

    def log_softmax(self, axis: Axis = -1) -> Self:
        """log(softmax(x)), exact where softmax underflows."""
        x = self._as_float()
        shifted = x - x._reduce("reduce_max", axis, True, propagate_nan=False)
        return (shifted - shifted.exp().sum(axis, keepdims=True).log())._back(self.dtype)

    # ------------------------------------------------------------ normalisation

    def _normalized(self, axes: Axis, eps: float) -> Self:
        """(x - mean) / sqrt(var + eps) over the axes, in float."""
        x = self._as_float()
        distance = x - x.mean(axes, keepdims=True)
        variance = (distance * distance).mean(axes, keepdims=True)
        return distance * (variance + eps).rsqrt()

    def _affine(self, weight: TensorLike | None, bias: TensorLike | None) -> Self:
        result = self if weight is None else self * weight
        return result if bias is None else result + bias

    def layer_norm(
        self,
        weight: TensorLike | None = None,
        bias: TensorLike | None = None,
        *,
        axis: Axis = -1,
        eps: float = 1e-5,
    ) -> Self:
        """Each row with mean 0 and variance 1, then scaled and shifted."""
        return self._normalized(axis, eps)._affine(weight, bias)._back(self.dtype)

    def rms_norm(
        self, weight: TensorLike | None = None, *, axis: Axis = -1, eps: float = 1e-6
    ) -> Self:
        """Each row with mean square 1, then scaled."""
        x = self._as_float()
        scale = ((x * x).mean(axis, keepdims=True) + eps).rsqrt()
        return (x * scale)._affine(weight, None)._back(self.dtype)

    def group_norm(
        self,
        groups: int,
        weight: TensorLike | None = None,
        bias: TensorLike | None = None,
        *,
        eps: float = 1e-5,
    ) -> Self:
        """Axis 1 in groups, each normalised with all that follows; weight and bias per channel."""
        if self.ndim < 2:
            raise GraphError("group_norm", f"needs (batch, channels, ...), got {self.type}.")
        channels = self.shape[1]
        if groups <= 0 or (isinstance(channels, int) and channels % groups):
            raise GraphError(
                "group_norm", f"{channels} channels do not form {groups} equal groups."
            )
        grouped = self.reshape(self.shape[0], groups, channels // groups, *self.shape[2:])
        result = grouped._normalized(tuple(range(2, grouped.ndim)), eps).reshape(self.shape)
        scale, shift = self._per_channel(weight), self._per_channel(bias)
        return result._affine(scale, shift)._back(self.dtype)

    def instance_norm(
        self,
        weight: TensorLike | None = None,
        bias: TensorLike | None = None,
        *,
        eps: float = 1e-5,
    ) -> Self:
        """Each channel of each sample normalised over its space."""
        if self.ndim < 3:
            raise GraphError(
                "instance_norm", f"needs (batch, channels, space...), got {self.type}."
            )
        scale, shift = self._per_channel(weight), self._per_channel(bias)
        result = self._normalized(tuple(range(2, self.ndim)), eps)
        return result._affine(scale, shift)._back(self.dtype)

    def batch_norm(
        self,
        mean: TensorLike,
        variance: TensorLike,
        weight: TensorLike | None = None,
        bias: TensorLike | None = None,
        *,
        eps: float = 1e-5,
    ) -> Self:
        """Inference: channels (axis 1) normalised with the statistics given."""
        if self.ndim < 2:
            raise GraphError("batch_norm", f"needs (batch, channels, ...), got {self.type}.")
        scale = (self._lift(variance) + eps).rsqrt()
        scale = scale if weight is None else scale * weight
        shift = -self._lift(mean) * scale
        shift = shift if bias is None else shift + bias
        result = self._as_float() * self._channels(scale) + self._channels(shift)
        return result._back(self.dtype)

    def _per_channel(self, value: TensorLike | None) -> Self | None:
        return None if value is None else self._channels(self._lift(value))

    def _channels(self, value: Self) -> Self:
        """A vector over channels, shaped to broadcast along axis 1."""
        return value.reshape(-1, *(1,) * (self.ndim - 2))

    # ------------------------------------------------------------ experts

    def grouped_matmul(self, weight: TensorLike, expert: TensorLike) -> Self:
        """Each row times the matrix of its own expert: out[i] = x[i] @ weight[expert[i]].

        `weight` is (experts, K, N); `expert` has one integer per row of x, in any order, or
        several in one more axis, each of which gives a row of the result:
        (T, K) with ids (T, k) gives (T, k, N). One kernel serves all experts; matrices
        that no id names are not read. An id out of range is an IndexRangeError.
        """
        where = "grouped_matmul"
        x, w = self._promote((self, weight))
        ids = self._lift(expert)
        if x.ndim < 1 or w.ndim != 3:
            raise GraphError(
                where, f"needs x (..., K) and weight (experts, K, N), got {x.type} and {w.type}."
            )
        repeat = ids.shape[-1] if ids.ndim == x.ndim else 1
        if ids.ndim not in (x.ndim - 1, x.ndim) or not isinstance(repeat, int):
            raise GraphError(
                where,
                f"needs one id per row of {x.type}, or a fixed number of them in one more axis, "
                f"got {ids.type}.",
            )
        experts, columns = w.shape[0], w.shape[2]
        if repeat == 0:
            return self._scalar(0, x.dtype)._stretch((*ids.shape, columns))
        x._check_ids(ids)
        count = product(ids.shape)
        block = _rows_per_line(count, x.shape[-1])
        lines = ids.reshape(count)._checked(experts, where)
        lines = self._apply("group_rows", lines, attrs=GroupRowsAttrs(experts, block))
        rows = x.reshape(product(x.shape[:-1]), x.shape[-1])
        attrs = GroupedMatmulAttrs(repeat, count)
        result = self._apply("grouped_matmul", rows, w, lines, attrs=attrs)
        return result.reshape(*ids.shape, columns)

    def _check_ids(self, ids: Self) -> None:
        """Every leading dim that is known is that of the ids."""
        for a, b in zip(self.shape[:-1], ids.shape, strict=False):
            if isinstance(a, int) and isinstance(b, int) and a != b:
                raise GraphError(
                    "grouped_matmul", f"needs one id per row of {self.type}, got {ids.type}."
                )

    # ------------------------------------------------------------ losses

    def cross_entropy(
        self,
        target: TensorLike,
        *,
        axis: int = -1,
        reduction: str = "mean",
        ignore_index: int = -100,
    ) -> Self:
        """-log_softmax at the target classes; `reduction` is mean, sum or none.

        Targets equal to `ignore_index` give 0 and do not count in the mean (NaN if none is
        left). Any other class out of range is an IndexRangeError: none counts from the end.
        """
        where = "cross_entropy"
        i = normalize_axis(axis, self.ndim, where)
        classes = self._lift(target)
        classes = classes._of_shape((*self.shape[:i], *self.shape[i + 1 :]), where, "target")
        if isinstance(ignore_index, bool) or not isinstance(ignore_index, (int, np.integer)):
            raise GraphError(where, f"ignore_index must be an int, got {ignore_index!r}.")
        counts = classes.ne(ignore_index)
        chosen = self._choose(counts, classes, self._scalar(0, classes.dtype))
        chosen = chosen.unsqueeze(i)._checked(self.shape[i], where, "class")
        logits = self._as_float().log_softmax(i)
        found = -self._apply("take_along", logits, chosen, attrs=GatherAttrs(i))._drop((i,))
        losses = self._choose(counts, found, self._scalar(0, found.dtype))
        match reduction:
            case "none":
                return losses._back(self.dtype)
            case "sum":
                return losses.sum()._back(self.dtype)
            case "mean":
                return (losses.sum() / counts.sum()._cast(losses.dtype))._back(self.dtype)
        raise GraphError(where, f"reduction must be mean, sum or none, got {reduction!r}.")

    def normalize(self, axis: Axis = -1, eps: float = 1e-12) -> Self:
        """Each row divided by its length, at least `eps`."""
        x = self._as_float()
        return (x * x.norm(2, axis, keepdims=True).maximum(eps).reciprocal())._back(self.dtype)

    def glu(self, axis: int = -1) -> Self:
        """The first half of the axis times the sigmoid of the second."""
        i = normalize_axis(axis, self.ndim, "glu")
        length = self.shape[i]
        if isinstance(length, int) and length % 2:
            raise GraphError("glu", f"axis {i} must have an even size, got {self.type}.")
        half = length // 2
        return self.narrow(i, 0, half) * self.narrow(i, half, half).sigmoid()


def _rows_per_line(count: Dim, depth: Dim) -> int:
    """How many rows of one expert a grouped matmul takes at once.

    What is read of a matrix serves all of them, so that more are better while they fit the
    cache. Fewer than there are rows at all would be padding only.
    """
    least, most = LINE_ROWS
    fits = LINE_ELEMENTS // max(upper_bound(depth) or LINE_ELEMENTS, 1)
    wanted = min(fits, upper_bound(count) or most, most)
    return max(wanted // least * least, least)

"""What neural networks are made of, as compositions.

    softmax log_softmax layer_norm rms_norm group_norm batch_norm
    grouped_matmul normalize glu

Half floats are taken through float32 and rounded once at the end. Every row's divisor is
inverted on the row-sized tensor, so that the wide pass multiplies. Variances take two passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from semel.errors import GraphError
from semel.ir.expr import Dim, product, upper_bound
from semel.ir.types import Shape, as_shape
from semel.ops.attrs import GroupedMatmulAttrs, GroupRowsAttrs
from semel.tensor.handle import (
    TensorLike,
    apply,
    lift,
    normalize_axis,
    promote,
    scalar,
    weak_kind,
    whole_number,
)
from semel.tensor.indexing import check_index, iota
from semel.tensor.movement import broadcast_shapes, may_agree, of_shape, show, stretch
from semel.tensor.reduce import Axis, as_float, reduce_axes, rounded_to
from semel.tensor.spelling import AXIS, spelled

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

#: What the rows of one tile of a grouped matmul may hold: they stay in the second-level cache.
#: A whole number of blocks of every machine's registers, and few enough for a long table.
LINE_ELEMENTS = 1 << 16
LINE_ROWS = (24, 96)


# ------------------------------------------------------------ softmax


@spelled(dim="axis")
def softmax(x: TensorLike, axis: Axis = -1, *, dim: Axis = AXIS) -> Tensor:
    """exp(x) over its sum along the axes, without overflow.

    >>> Tensor([0.0, 0.0]).softmax().tolist()
    [0.5, 0.5]
    """
    given = lift(x)
    x = as_float(given)
    # A NaN that max skips comes back through exp, so the cheaper max serves.
    top = reduce_axes(x, "reduce_max", axis, True, propagate_nan=False)
    weights = (x - top).exp()
    return rounded_to(weights * weights.sum(axis, keepdims=True).reciprocal(), given.dtype)


@spelled(dim="axis")
def log_softmax(x: TensorLike, axis: Axis = -1, *, dim: Axis = AXIS) -> Tensor:
    """log(softmax(x)), exact where softmax underflows."""
    given = lift(x)
    x = as_float(given)
    shifted = x - reduce_axes(x, "reduce_max", axis, True, propagate_nan=False)
    return rounded_to(shifted - shifted.exp().sum(axis, keepdims=True).log(), given.dtype)


@spelled(dim="axis")
def softmin(x: TensorLike, axis: Axis = -1, *, dim: Axis = AXIS) -> Tensor:
    """softmax(-x): the smallest element weighs most."""
    return softmax(-lift(x), axis)


# ------------------------------------------------------------ normalisation


def _normalized(x: Tensor, axes: Axis, eps: float) -> Tensor:
    """(x - mean) / sqrt(var + eps) over the axes, in float."""
    x = as_float(x)
    distance = x - x.mean(axes, keepdims=True)
    variance = (distance * distance).mean(axes, keepdims=True)
    return distance * (variance + eps).rsqrt()


def _affine(x: Tensor, weight: TensorLike | None, bias: TensorLike | None, where: str) -> Tensor:
    scale, shift = _beside(x.shape, weight, where, "weight"), _beside(x.shape, bias, where, "bias")
    result = x if scale is None else x * scale
    return result if shift is None else result + shift


def _beside(shape: Shape, value: TensorLike | None, where: str, name: str) -> TensorLike | None:
    """The value, which must broadcast with this shape: numbers do."""
    if value is None or weak_kind(value):
        return value
    lifted = lift(value)
    try:
        broadcast_shapes([shape, lifted.shape], where)
    except GraphError:
        message = f"{name} must broadcast with {show(shape)}, got {lifted.type}."
        raise GraphError(where, message) from None
    return lifted


def layer_norm(
    x: TensorLike,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    *more: Any,
    axis: Axis = -1,
    eps: float = 1e-5,
    normalized_shape: Sequence[Dim] | Dim | None = None,
) -> Tensor:
    """Each row with mean 0 and variance 1, then scaled and shifted.

    `normalized_shape`, the last dims of x, says the axes by their sizes; a tuple may stand before
    the weight, as in PyTorch: `layer_norm(x, (384,), weight, bias, 1e-6)`.

    >>> Tensor([[1.0, 3.0]]).layer_norm(eps=0.0).tolist()
    [[-1.0, 1.0]]
    """
    x = lift(x)
    if isinstance(weight, tuple) and normalized_shape is None:
        normalized_shape, weight, bias, more = weight, bias, more[0] if more else None, more[1:]
    if len(more) > 1:
        raise GraphError("layer_norm", f"takes weight, bias and eps, got {len(more) - 1} more.")
    if normalized_shape is not None:
        axis = _last_axes(x, normalized_shape)
    eps = more[0] if more else eps
    return rounded_to(_affine(_normalized(x, axis, eps), weight, bias, "layer_norm"), x.dtype)


def _last_axes(x: Tensor, shape: Sequence[Dim] | Dim) -> tuple[int, ...]:
    """The last axes, which have these sizes."""
    sizes = as_shape(shape if isinstance(shape, Sequence) else (shape,), "layer_norm")
    if not sizes or not may_agree(x.shape[-len(sizes) :], sizes):
        raise GraphError(
            "layer_norm", f"normalized_shape must be the last dims of {x.type}, got {show(sizes)}."
        )
    return tuple(range(-len(sizes), 0))


def rms_norm(
    x: TensorLike, weight: TensorLike | None = None, *, axis: Axis = -1, eps: float = 1e-6
) -> Tensor:
    """Each row with mean square 1, then scaled."""
    given = lift(x)
    x = as_float(given)
    scale = ((x * x).mean(axis, keepdims=True) + eps).rsqrt()
    return rounded_to(_affine(x * scale, weight, None, "rms_norm"), given.dtype)


def group_norm(
    x: TensorLike,
    groups: int,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    *,
    eps: float = 1e-5,
) -> Tensor:
    """Axis 1 in groups, each normalised with all that follows; weight and bias per channel."""
    x = lift(x)
    if x.ndim < 2:
        raise GraphError("group_norm", f"needs (batch, channels, ...), got {x.type}.")
    channels = x.shape[1]
    if groups <= 0 or (isinstance(channels, int) and channels % groups):
        raise GraphError("group_norm", f"{channels} channels do not form {groups} equal groups.")
    grouped = x.reshape(x.shape[0], groups, channels // groups, *x.shape[2:])
    result = _normalized(grouped, tuple(range(2, grouped.ndim)), eps).reshape(x.shape)
    scale, shift = _per_channel(x, weight), _per_channel(x, bias)
    return rounded_to(_affine(result, scale, shift, "group_norm"), x.dtype)


def instance_norm(
    x: TensorLike,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    *,
    eps: float = 1e-5,
) -> Tensor:
    """Each channel of each sample normalised over its space."""
    x = lift(x)
    if x.ndim < 3:
        raise GraphError("instance_norm", f"needs (batch, channels, space...), got {x.type}.")
    scale, shift = _per_channel(x, weight), _per_channel(x, bias)
    result = _normalized(x, tuple(range(2, x.ndim)), eps)
    return rounded_to(_affine(result, scale, shift, "instance_norm"), x.dtype)


def batch_norm(
    x: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    *,
    eps: float = 1e-5,
) -> Tensor:
    """Inference: channels (axis 1) normalised with the statistics given."""
    x = lift(x)
    if x.ndim < 2:
        raise GraphError("batch_norm", f"needs (batch, channels, ...), got {x.type}.")
    given = {"mean": mean, "variance": variance, "weight": weight, "bias": bias}
    known: dict[str, Any] = {
        k: _beside(x.shape[1:2], value, "batch_norm", k) for k, value in given.items()
    }
    scale = (lift(known["variance"]) + eps).rsqrt()
    scale = scale if known["weight"] is None else scale * known["weight"]
    shift = -lift(known["mean"]) * scale
    shift = shift if known["bias"] is None else shift + known["bias"]
    result = as_float(x) * over_channels(x, scale) + over_channels(x, shift)
    return rounded_to(result, x.dtype)


def local_response_norm(
    x: TensorLike, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """Each element over a power of the mean square of its `size` neighbours along axis 1.

    x / (k + alpha * mean) ** beta; of an even size, one more channel before than behind.
    """
    return over_neighbours(x, size, alpha, beta, k, size // 2)


def over_neighbours(
    x: TensorLike, size: int, alpha: float, beta: float, k: float, before: int
) -> Tensor:
    """`local_response_norm` with so many of the neighbours in front."""
    given, where = lift(x), "local_response_norm"
    if given.ndim < 2:
        raise GraphError(where, f"needs (batch, channels, ...), got {given.type}.")
    if whole_number(size, "size", where) < 1:
        raise GraphError(where, f"size must be > 0, got {size}.")
    x, channels = as_float(given), given.shape[1]
    edges = [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)]
    squares = (x * x).pad(edges)
    total = squares.narrow(1, 0, channels)
    for offset in range(1, size):
        total = total + squares.narrow(1, offset, channels)
    return rounded_to(x / (total * (alpha / size) + k).pow(beta), given.dtype)


def _per_channel(x: Tensor, value: TensorLike | None) -> Tensor | None:
    return None if value is None else over_channels(x, lift(value))


def over_channels(x: Tensor, value: Tensor) -> Tensor:
    """A vector over channels, shaped to broadcast along axis 1."""
    return value.reshape(-1, *(1,) * (x.ndim - 2))


# ------------------------------------------------------------ experts


def grouped_matmul(
    x: TensorLike, weight: TensorLike, expert: TensorLike, *, layer: int | None = None
) -> Tensor:
    """Each row times the matrix of its own expert: out[i] = x[i] @ weight[expert[i]].

    `weight` is (experts, K, N); `expert` has one integer per row of x, in any order, or
    several in one more axis, each of which gives a row of the result:
    (T, K) with ids (T, k) gives (T, k, N). One kernel serves all experts; matrices
    that no id names are not read. An id out of range is an IndexRangeError.

    `layer` is the number under which a compiled graph tells what was routed here; without it,
    layers are numbered in order.
    """
    where = "grouped_matmul"
    if layer is not None and whole_number(layer, "layer", where) < 0:
        raise GraphError(where, f"layer must be at least 0, got {layer}.")
    x, w = promote((lift(x), weight))
    ids = lift(expert)
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
        return stretch(scalar(0, x.dtype), (*ids.shape, columns))
    _check_ids(x, ids)
    count = product(ids.shape)
    block = _rows_per_line(count, x.shape[-1])
    lines = check_index(ids.reshape(count), experts, where)
    lines = apply("group_rows", lines, attrs=GroupRowsAttrs(experts, block, layer))
    rows = x.reshape(product(x.shape[:-1]), x.shape[-1])
    attrs = GroupedMatmulAttrs(repeat, count)
    result = apply("grouped_matmul", rows, w, lines, attrs=attrs)
    return result.reshape(*ids.shape, columns)


def _check_ids(x: Tensor, ids: Tensor) -> None:
    """Every leading dim that is known is that of the ids."""
    for a, b in zip(x.shape[:-1], ids.shape, strict=False):
        if isinstance(a, int) and isinstance(b, int) and a != b:
            raise GraphError("grouped_matmul", f"needs one id per row of {x.type}, got {ids.type}.")


# ------------------------------------------------------------ bags of rows


def embedding_bag(
    x: TensorLike,
    weight: TensorLike,
    offsets: TensorLike | None = None,
    *,
    mode: str = "mean",
    per_sample_weights: TensorLike | None = None,
) -> Tensor:
    """Rows of `weight` by the integers of x, and the mean, sum or max of each bag of them.

    A bag is a row of x [bags, n]; or with x [n] what lies between one of the `offsets`, which
    ascend from 0, and the next. The mean and the max of an empty bag are 0.
    """
    x, where = lift(x), "embedding_bag"
    if mode not in ("mean", "sum", "max"):
        raise GraphError(where, f"mode must be mean, sum or max, got {mode!r}.")
    if x.ndim != (2 if offsets is None else 1):
        raise GraphError(where, f"needs x [bags, n], or x [n] and offsets, got {x.type}.")
    rows = x.embedding(weight)
    if per_sample_weights is not None:
        if mode != "sum":
            raise GraphError(where, f"per_sample_weights go with mode='sum', got {mode!r}.")
        rows = rows * of_shape(
            lift(per_sample_weights), x.shape, where, "per_sample_weights"
        ).unsqueeze(-1)
    if offsets is None:
        return _bag(rows, mode)
    starts = lift(offsets)
    if starts.ndim != 1:
        raise GraphError(where, f"offsets must be 1-D, got {starts.type}.")
    place = iota((x.shape[0],), 0)
    bag = (starts <= place.unsqueeze(1)).sum(1) - 1
    empty = stretch(scalar(0, rows.dtype), (starts.shape[0], rows.shape[1]))
    index = bag.unsqueeze(1).broadcast_to(rows.shape)
    how = {"sum": "sum", "mean": "mean", "max": "amax"}[mode]
    return empty.scatter_reduce(0, index, rows, how, include_self=False)


def _bag(rows: Tensor, mode: str) -> Tensor:
    if mode == "max":
        return rows.max(1)
    return rows.mean(1) if mode == "mean" else rows.sum(1)


# ------------------------------------------------------------ lengths and gates


@spelled(dim="axis")
def normalize(
    x: TensorLike, axis: Axis = -1, eps: float = 1e-12, *, p: float = 2, dim: Axis = AXIS
) -> Tensor:
    """Each row divided by its length, the norm of order `p`, at least `eps`."""
    given = lift(x)
    x = as_float(given)
    return rounded_to(x * x.norm(p, axis, keepdims=True).maximum(eps).reciprocal(), given.dtype)


@spelled(dim="axis")
def glu(x: TensorLike, axis: int = -1, *, dim: int = AXIS) -> Tensor:
    """The first half of the axis times the sigmoid of the second."""
    x = lift(x)
    i = normalize_axis(axis, x.ndim, "glu")
    length = x.shape[i]
    if isinstance(length, int) and length % 2:
        raise GraphError("glu", f"axis {i} must have an even size, got {x.type}.")
    half = length // 2
    return x.narrow(i, 0, half) * x.narrow(i, half, half).sigmoid()


def _rows_per_line(count: Dim, depth: Dim) -> int:
    """How many rows of one expert a grouped matmul takes at once.

    What is read of a matrix serves all of them, so that more are better while they fit the
    cache. Fewer than there are rows at all would be padding only.
    """
    least, most = LINE_ROWS
    fits = LINE_ELEMENTS // max(upper_bound(depth) or LINE_ELEMENTS, 1)
    wanted = min(fits, upper_bound(count) or most, most)
    return max(wanted // least * least, least)

"""Normalisation, softmax and dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from semel.frontends.onnx.node import Converter, Node
from semel.ir.expr import product
from semel.ir.types import BOOL, FLOAT32
from semel.tensor.tensor import Tensor


def _epsilon(node: Node) -> float:
    return node.number("epsilon", 1e-5)


# ---------------------------------------------------------------- over a batch


def _batch_norm(node: Node) -> Any:
    x, scale, bias, mean, variance = (node.tensor(i) for i in range(5))
    if not node.attr("spatial", 1):  # version 7: one statistic for every place, too
        shape, places = x.shape, product(x.shape[1:])
        flat = (t.reshape(places) for t in (scale, bias, mean, variance))
        return _batch_normalised(node, x.reshape(shape[0], places), *flat)[0].reshape(shape)
    return _batch_normalised(node, x, scale, bias, mean, variance)


def _batch_normalised(
    node: Node, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor
) -> list[Tensor]:
    """y and, in training, the statistics: those of all batches so far and those of this one."""
    is_training = node.flag("training_mode") if node.version >= 14 else node.wants(1)
    if not is_training:
        return [x.batch_norm(mean, variance, scale, bias, eps=_epsilon(node)).cast(x.dtype)]
    wide = _wide(x)
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    own = wide.mean(axes), wide.var(axes)
    y = x.batch_norm(*own, scale, bias, eps=_epsilon(node)).cast(x.dtype)
    kept = node.number("momentum", 0.9)
    running = [
        (before * kept + now * (1 - kept)).cast(before.dtype)
        for before, now in zip((mean, variance), own, strict=True)
    ]
    return [y, *running, *own]


def _wide(x: Tensor) -> Tensor:
    """In the dtype in which sums are taken."""
    return x.cast(FLOAT32) if x.dtype.is_half else x


# ---------------------------------------------------------------- over axes


def _instance_norm(node: Node) -> Tensor:
    x, scale, bias = (node.tensor(i) for i in range(3))
    return x.instance_norm(scale, bias, eps=_epsilon(node)).cast(x.dtype)


def _group_norm(node: Node) -> Tensor:
    x, scale, bias = (node.tensor(i) for i in range(3))
    groups = node.attr("num_groups")
    if node.version < 21:  # one number for each group
        size = x.shape[1] // groups
        scale, bias = (t.unsqueeze(1).expand(groups, size).reshape(-1) for t in (scale, bias))
    return x.group_norm(groups, scale, bias, eps=_epsilon(node)).cast(x.dtype)


def last_axes(node: Node, x: Tensor) -> tuple[int, ...]:
    """From the axis that a node names to the last."""
    return tuple(range(node.axis(x.ndim, -1), x.ndim))


def _layer_norm(node: Node) -> list[Tensor]:
    x = node.tensor()
    axes, eps = last_axes(node, x), _epsilon(node)
    outputs = [x.layer_norm(node.tensor(1), node.optional(2), axis=axes, eps=eps).cast(x.dtype)]
    if node.wants(1) or node.wants(2):
        stash, wide = node.dtype_attr("stash_type", FLOAT32), _wide(x)
        deviation = (wide.var(axes, keepdims=True) + eps).rsqrt()
        outputs += [wide.mean(axes, keepdims=True).cast(stash), deviation.cast(stash)]
    return outputs


def _rms_norm(node: Node) -> Tensor:
    x, scale = node.tensor(0), node.tensor(1)
    return x.rms_norm(scale, axis=last_axes(node, x), eps=_epsilon(node)).cast(scale.dtype)


def _lp_norm(node: Node) -> Tensor:
    x = node.tensor()
    length = x.norm(node.attr("p", 2), node.attr("axis", -1), keepdims=True)
    return length.eq(0).where(0.0, x / length).cast(x.dtype)


def _mean_variance(node: Node) -> Tensor:
    x, axes = node.tensor(), tuple(node.attr("axes", [0, 2, 3]))
    distance = x - x.mean(axes, keepdims=True)
    return distance / ((distance * distance).mean(axes, keepdims=True).sqrt() + 1e-9)


def _softmax(function: Callable[[Tensor, int], Tensor]) -> Converter:
    def convert(node: Node) -> Tensor:
        x = node.tensor()
        if node.version >= 13:
            return function(x, node.attr("axis", -1))
        axis = node.attr("axis", 1) % max(x.ndim, 1)  # all that follows is one axis
        flat = x.reshape(product(x.shape[:axis]), product(x.shape[axis:]))
        return function(flat, 1).reshape(x.shape)

    return convert


# ---------------------------------------------------------------- dropout


def _dropout(node: Node) -> list[Tensor]:
    x = node.tensor()
    if not _is_training(node):
        return [x, Tensor(True).broadcast_to(x.shape).cast(BOOL if node.version >= 10 else x.dtype)]
    ratio = node.tensor(1).cast(FLOAT32) if node.has(1) else Tensor(0.5)
    seed = node.attr("seed")
    key = None if seed is None else Tensor.key(int(seed))
    kept = Tensor.rand(*x.shape, key=key) >= ratio
    scale = (1 - ratio).reciprocal()
    return [kept.where(_wide(x) * scale, 0.0).cast(x.dtype), kept]


def _is_training(node: Node) -> bool:
    if node.version < 12 or not node.has(2):
        return False
    return bool(node.numbers(2).reshape(())) and not _is_certain(node)


def _is_certain(node: Node) -> bool:
    """Whether nothing is dropped, as far as it is known now."""
    ratio = node.value(1).known if node.has(1) else None
    return ratio is not None and not ratio.any()


CONVERTERS: dict[str, Converter] = {
    "BatchNormalization": _batch_norm,
    "Dropout": _dropout,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "LogSoftmax": _softmax(Tensor.log_softmax),
    "LpNormalization": _lp_norm,
    "MeanVarianceNormalization": _mean_variance,
    "RMSNormalization": _rms_norm,
    "Softmax": _softmax(Tensor.softmax),
}

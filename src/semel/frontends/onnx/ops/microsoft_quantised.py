"""Operators of `com.microsoft` on quantised tensors: integers with a scale and a zero point.

Activations take the values of integers, compute, and round again: QuantizeLinear's own rounding,
which is to even. Products of two 8-bit tensors are exact in 32 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from semel.frontends.onnx.node import Converter, Node
from semel.frontends.onnx.ops.microsoft import activation
from semel.ir.expr import ceildiv
from semel.ir.types import FLOAT32, INT32, UINT2, UINT4, UINT8
from semel.tensor.tensor import Tensor

DOMAIN = "com.microsoft"


def _real(node: Node, x: int, scale: int, zero: int) -> Tensor:
    """An input as the numbers that it stands for."""
    return node.tensor(x).dequantize_linear(node.tensor(scale), node.optional(zero))


def _again(node: Node, x: Tensor, scale: int, zero: int, like: Tensor) -> Tensor:
    """Numbers as integers again."""
    return x.quantize_linear(node.tensor(scale), node.optional(zero), dtype=like.dtype)


def _binary(node: Node) -> Tensor:
    a, b = _real(node, 0, 1, 2), _real(node, 3, 4, 5)
    return _again(node, a + b if node.op == "QLinearAdd" else a * b, 6, 7, node.tensor(0))


def _unary(node: Node) -> Tensor:
    x = _real(node, 0, 1, 2)
    y = x.sigmoid() if node.op == "QLinearSigmoid" else x.leaky_relu(node.number("alpha", 0.01))
    return _again(node, y, 3, 4, node.tensor(0))


def _softmax(node: Node) -> Tensor:
    x = _real(node, 0, 1, 2)
    axis = node.axis(x.ndim, -1)
    if node.attr("opset", 13) >= 13:
        y = x.softmax(axis)
    else:
        y = x.flatten(axis, -1).softmax(-1).reshape(x.shape)
    return _again(node, y, 3, 4, node.tensor(0))


def _concat(node: Node) -> Tensor:
    parts = [_real(node, i, i + 1, i + 2) for i in range(2, len(node.inputs), 3)]
    joined = Tensor.concat(parts, node.attr("axis", 1))
    return _again(node, joined, 0, 1, node.tensor(2))


def _where(node: Node) -> Tensor:
    x, y = _real(node, 1, 2, 3), _real(node, 4, 5, 6)
    return _again(node, node.tensor(0).where(x, y), 7, 8, node.tensor(1))


def _pool(node: Node) -> Tensor:
    x = _real(node, 0, 1, 2)
    is_last = node.flag("channels_last")
    x = x.moveaxis(-1, 1) if is_last else x
    if node.op == "QLinearGlobalAveragePool":
        y = x.global_avg_pool()
    else:
        y = node.walk.convert("AveragePool", node, inputs=[x])
    return _again(node, y.moveaxis(1, -1) if is_last else y, 3, 4, node.tensor(0))


def _reduce_mean(node: Node) -> Tensor:
    x = _real(node, 0, 1, 2)
    axes = node.attr("axes") or range(x.ndim)
    y = x.mean(tuple(axes), keepdims=node.flag("keepdims", True))
    return _again(node, y, 3, 4, node.tensor(0))


# ---------------------------------------------------------------- products


def _gemm(node: Node) -> Tensor:
    """a (M, K) times b (K, N), per tensor or per column, plus an int32 bias of their scales."""
    a, b = node.tensor(0), node.tensor(3)
    a = a.T if node.flag("transA") else a
    b = b.T if node.flag("transB") else b
    total = a.matmul_integer(b, node.optional(2), node.optional(5))
    if node.has(6):
        total = total + node.tensor(6)
    factor = node.tensor(1) * node.tensor(4) * node.number("alpha", 1.0)
    y = total.cast(FLOAT32) * factor
    return y if not node.has(7) else _again(node, y, 7, 8, node.tensor(0))


def _dynamic_matmul(node: Node) -> Tensor:
    """Floats by a quantised matrix: they are quantised by their own range."""
    a, scale, zero = node.tensor(0).dynamic_quantize_linear()
    total = a.matmul_integer(node.tensor(1), zero, node.optional(3))
    y = total.cast(FLOAT32) * (scale * node.tensor(2))
    return y + node.tensor(4) if node.has(4) else y


def _integer_to_float(node: Node) -> Tensor:
    total = node.tensor(0).matmul_integer(node.tensor(1), node.optional(4), node.optional(5))
    y = total.cast(FLOAT32) * (node.tensor(2) * node.tensor(3))
    return y + node.tensor(6) if node.has(6) else y


def _dynamic_lstm(node: Node) -> Any:
    """An LSTM with quantised weights [directions, in, 4 * hidden], as floats."""

    def weight(at: int, scale: int, zero: int) -> Tensor:
        w = node.tensor(at)
        axis = 2 if node.tensor(scale).ndim == 2 else 0
        factors, zeros = node.tensor(scale), node.tensor(zero)
        shape = (w.shape[0], 1, -1) if axis == 2 else (-1, 1, 1)
        wide = w.cast(INT32) - zeros.cast(INT32).reshape(*shape)
        return (wide.cast(FLOAT32) * factors.reshape(*shape)).mT

    inputs = [node.inputs[0], weight(1, 8, 9), weight(2, 10, 11), *node.inputs[3:8]]
    return node.walk.convert("LSTM", node, inputs=inputs)


def _quantize(node: Node) -> Tensor:
    axis = node.attr("axis", 1)
    return node.tensor(0).quantize_linear(node.tensor(1), node.optional(2), axis)


def _dequantize(node: Node) -> Tensor:
    return node.tensor(0).dequantize_linear(node.tensor(1), node.optional(2), node.attr("axis", 1))


# ---------------------------------------------------------------- few bits


#: The dtypes of numbers of so many bits, which are weights that stay as narrow as they are.
_OF_BITS = {2: UINT2, 4: UINT4, 8: UINT8}


def unpacked(packed: Tensor, bits: int, count: Any) -> Tensor:
    """The numbers in the bytes of the last axis, the lowest bits first, in the dtype of so many."""
    if bits == 8:
        return packed
    shifts = Tensor(np.arange(0, 8, bits, dtype=np.uint8))
    numbers = (packed.unsqueeze(-1) >> shifts).flatten(-2, -1).narrow(-1, 0, count)
    return numbers.cast(_OF_BITS[bits])


def _bits(node: Node, name: str) -> int:
    """How many bits a number has."""
    bits = int(node.attr(name, 4))
    if bits not in _OF_BITS:
        raise node.refuse(f"{name} must be 2, 4 or 8, got {bits}.")
    return bits


def _matmul_bits(node: Node) -> Tensor:
    """x (.., K) times a matrix (N, K) in blocks of few bits, in float32."""
    x, packed, scales = (node.tensor(i) for i in range(3))
    bits, size = _bits(node, "bits"), node.attr("block_size")
    depth, rows = node.attr("K"), node.attr("N")
    blocks = ceildiv(depth, size)
    wide = x.cast(FLOAT32)
    if node.has(4):
        wide, packed = _in_order_of_blocks(node, wide, bits)
    elif blocks * size != depth:  # the numbers of the last block are there, and count nothing
        wide = wide.pad([(0, 0)] * (x.ndim - 1) + [(0, blocks * size - depth)])
    numbers = unpacked(packed.reshape(rows, blocks, -1), bits, size)
    factors = scales.reshape(rows, blocks, 1).cast(FLOAT32)
    weight = (numbers.cast(FLOAT32) - _zero_points(node, 3, rows, blocks, bits)) * factors
    y = (wide @ weight.reshape(rows, blocks * size).T).cast(x.dtype)
    return y + node.tensor(5) if node.has(5) else y


def _in_order_of_blocks(node: Node, x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """x and the packed matrix with the columns of each block side by side (`g_idx` names it)."""
    depth, size = node.attr("K"), node.attr("block_size")
    blocks = np.asarray(node.numbers(4), np.int64).reshape(-1)[:depth]
    counts = np.bincount(blocks, minlength=depth // size) if blocks.min() >= 0 else blocks
    if len(counts) != depth // size or (counts != size).any():
        raise node.refuse("g_idx must give every block block_size columns.")
    order = np.argsort(blocks, kind="stable")
    if (order == np.arange(depth)).all():
        return x, node.tensor(1)
    packed = node.numbers(1).reshape(node.attr("N"), -1)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    mask = np.uint8((1 << bits) - 1)
    numbers = ((packed[:, :, None] >> shifts) & mask).reshape(len(packed), -1)[:, order]
    parts = numbers.reshape(len(packed), -1, len(shifts)) << shifts
    return x.take(Tensor(order), -1), Tensor(np.bitwise_or.reduce(parts, -1).astype(np.uint8))


def _zero_points(node: Node, at: int, rows: Any, blocks: Any, bits: int) -> Tensor:
    """What stands for zero in each block, in float32: numbers, or packed like the weights."""
    if not node.has(at):
        return Tensor(np.float32(1 << (bits - 1)))
    zeros = node.tensor(at)
    if zeros.dtype != UINT8:
        return zeros.reshape(rows, blocks, 1).cast(FLOAT32)
    numbers = unpacked(zeros.reshape(rows, -1), bits, blocks).cast(UINT8)
    return numbers.unsqueeze(-1).cast(FLOAT32)


def _gather_blocks(node: Node) -> Tensor:
    """Rows of a table that is quantised in blocks along one axis."""
    data, indices, scales = (node.tensor(i) for i in range(3))
    axis, along = node.attr("gather_axis", 0), node.attr("quantize_axis", 1)
    size, bits = node.attr("block_size", 128), _bits(node, "bits")
    axis, along = axis % data.ndim, along % data.ndim
    rows, factors = data.take(indices, axis), scales.take(indices, axis)
    zeros = node.tensor(3).take(indices, axis) if node.has(3) else None
    along = along + indices.ndim - 1 if along > axis else along
    if data.dtype == UINT8 and bits < 8:
        if along != rows.ndim - 1:
            raise node.refuse("numbers of few bits must be packed along the last axis.")
        rows = unpacked(rows, bits, rows.shape[-1] * (8 // bits))
        zeros = None if zeros is None else unpacked(zeros, bits, factors.shape[-1])
    count = rows.shape[along]
    numbers, spread = rows.cast(INT32), factors.repeat(size, along).narrow(along, 0, count)
    if zeros is not None:
        numbers = numbers - zeros.cast(INT32).repeat(size, along).narrow(along, 0, count)
    elif data.dtype == UINT8:
        numbers = numbers - (1 << (bits - 1))
    return numbers.cast(factors.dtype) * spread


# ---------------------------------------------------------------- experts


def _moe(node: Node) -> Tensor:
    """Each row through the experts with the largest logits, weighted by their softmax."""
    weights = [node.tensor(at) if node.has(at) else None for at in (2, 4, 6)]
    biases = [node.optional(at) for at in (3, 5, 7)]
    return _experts(node, weights, biases)


def _quantised_moe(node: Node) -> Tensor:
    bits = _bits(node, "expert_weight_bits")
    weights = [_expert_weight(node, at, bits) if node.has(at) else None for at in (2, 5, 8)]
    return _experts(node, weights, [node.optional(at) for at in (4, 7, 10)])


def _expert_weight(node: Node, at: int, bits: int) -> Tensor:
    packed, scales = node.tensor(at), node.tensor(at + 1)
    experts, rows, width = packed.shape
    depth = width * (8 // bits)
    numbers = unpacked(packed, bits, depth).cast(FLOAT32) - float(1 << (bits - 1))
    if scales.ndim == 2:
        return numbers * scales.unsqueeze(-1)
    size = depth // scales.shape[-1]
    return (numbers.reshape(experts, rows, -1, size) * scales.unsqueeze(-1)).reshape(
        experts, rows, depth
    )


def _experts(node: Node, weights: list[Tensor | None], biases: list[Tensor | None]) -> Tensor:
    x, logits = node.tensor(0), node.tensor(1)
    up, down, beside = weights
    assert up is not None and down is not None
    rows = x.reshape(-1, x.shape[-1])
    k = node.attr("k", 1)
    if node.op == "QMoE" or node.flag("normalize_routing_weights"):
        best, ids = logits.topk(k, -1)
        shares = best.softmax(-1)
    else:
        shares, ids = logits.softmax(-1).topk(k, -1)
    hidden = _expert_rows(rows, up, biases[0], ids)
    kind = node.attr("activation_type", "relu")
    hidden = _swiglu(node, hidden) if kind == "swiglu" else activation(kind)(hidden)
    if beside is not None:
        hidden = hidden * _expert_rows(rows, beside, biases[2], ids)
    parts = _expert_rows(hidden.flatten(0, 1), down, biases[1], ids.flatten())
    parts = parts.reshape(ids.shape[0], k, parts.shape[-1])
    return (parts * shares.unsqueeze(-1)).sum(1).cast(x.dtype).reshape(x.shape)


def _expert_rows(x: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor) -> Tensor:
    made = x.grouped_matmul(weight.mT, ids)
    return made if bias is None else made + bias.take(ids, 0)


def _swiglu(node: Node, x: Tensor) -> Tensor:
    """Gate and value side by side, or in turn, in one row."""
    half = x.shape[-1] // 2
    if node.attr("swiglu_fusion", 0) == 1:
        gate, value = x[..., 0::2], x[..., 1::2]
    else:
        gate, value = x.narrow(-1, 0, half), x.narrow(-1, half, half)
    limit = node.attr("swiglu_limit")
    if limit is not None:
        gate, value = gate.clip(None, limit), value.clip(-limit, limit)
    alpha, beta = node.number("activation_alpha", 1.0), node.number("activation_beta", 0.0)
    return gate * (gate * alpha).sigmoid() * (value + beta)


CONVERTERS: dict[str, Converter] = {
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLSTM": _dynamic_lstm,
    "DynamicQuantizeMatMul": _dynamic_matmul,
    "GatherBlockQuantized": _gather_blocks,
    "MatMulIntegerToFloat": _integer_to_float,
    "MatMulNBits": _matmul_bits,
    "MoE": _moe,
    "QGemm": _gemm,
    "QLinearAdd": _binary,
    "QLinearAveragePool": _pool,
    "QLinearConcat": _concat,
    "QLinearGlobalAveragePool": _pool,
    "QLinearLeakyRelu": _unary,
    "QLinearMul": _binary,
    "QLinearReduceMean": _reduce_mean,
    "QLinearSigmoid": _unary,
    "QLinearSoftmax": _softmax,
    "QLinearWhere": _where,
    "QMoE": _quantised_moe,
    "QuantizeLinear": _quantize,
}

"""Operators of `com.microsoft` against ONNX Runtime, whose own they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import semel

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

rng = np.random.default_rng(7)


def f(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def u8(*shape: int) -> np.ndarray:
    return rng.integers(0, 256, shape, dtype=np.uint8)


def i8(*shape: int) -> np.ndarray:
    """Of 7 bits: with 8, sums of ONNX Runtime saturate on machines without VNNI."""
    return rng.integers(-64, 64, shape, dtype=np.int8)


def one(number: float, dtype: Any = np.float32) -> np.ndarray:
    return np.asarray(number, dtype)


def make(op: str, inputs: list[Any], outputs: int, attrs: dict[str, Any], weights: int) -> Any:
    """A model of one node; the last `weights` of its inputs are initializers."""
    helper = onnx.helper
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    made = [f"y{i}" for i in range(outputs)]
    domain = "" if op == "SimplifiedLayerNormalization" else "com.microsoft"
    node = helper.make_node(op, names, made, "the_node", domain=domain, **attrs)
    split = len(inputs) - weights
    given = [
        helper.make_tensor_value_info(
            names[i], helper.np_dtype_to_tensor_dtype(x.dtype), dims_of(x)
        )
        for i, x in enumerate(inputs[:split])
        if x is not None
    ]
    tensors = [
        onnx.numpy_helper.from_array(x, names[split + i])
        for i, x in enumerate(inputs[split:])
        if x is not None
    ]
    graph = helper.make_graph(
        [node], "g", given, [onnx.ValueInfoProto(name=n) for n in made], tensors
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def dims_of(x: np.ndarray) -> list[int | None]:
    """Rows are of any number, and so are batches; of few there are as many as there are."""
    is_any = x.ndim >= 3 and min(x.shape[:2]) > 1
    return [None if is_any and axis < 2 else size for axis, size in enumerate(x.shape)]


B, S, H, N = 2, 5, 64, 4
D = H // N
CASES: dict[str, tuple[str, list[Any], int, dict[str, Any], int]] = {
    "bias_gelu": ("BiasGelu", [f(3, 8), f(8)], 1, {}, 1),
    "fast_gelu": ("FastGelu", [f(3, 8), f(8)], 1, {}, 1),
    "quick_gelu": ("QuickGelu", [f(3, 8)], 1, {"alpha": 1.5}, 0),
    "gelu": ("Gelu", [f(3, 8)], 1, {}, 0),
    "skip_layer_norm": (
        "SkipLayerNormalization",
        [f(B, S, H), f(B, S, H), f(H), f(H), f(H)],
        4,
        {"epsilon": 1e-5},
        3,
    ),
    "skip_rms_norm": (
        "SkipSimplifiedLayerNormalization",
        [f(B, S, H), f(B, S, H), f(H)],
        1,
        {"epsilon": 1e-5},
        1,
    ),
    "rms_norm": ("SimplifiedLayerNormalization", [f(B, S, H), f(H)], 1, {"epsilon": 1e-5}, 1),
    "embed": (
        "EmbedLayerNormalization",
        [
            rng.integers(0, 20, (B, S), dtype=np.int32),
            rng.integers(0, 2, (B, S), dtype=np.int32),
            *(f(20, H), f(9, H), f(2, H), f(H), f(H)),
        ],
        2,
        {"epsilon": 1e-6},
        5,
    ),
    "rotary": (
        "RotaryEmbedding",
        [f(B, S, H), np.tile(np.arange(S), (B, 1)), f(9, D // 2), f(9, D // 2)],
        1,
        {},
        2,
    ),
    "rotary_by_head": (
        "RotaryEmbedding",
        [f(B, N, S, D), np.array([2]), f(9, D // 2), f(9, D // 2)],
        1,
        {"interleaved": 1},
        2,
    ),
    "fused_matmul": (
        "FusedMatMul",
        [f(2, 4, 3), f(2, 5, 4)],
        1,
        {"transA": 1, "transB": 1, "alpha": 0.5},
        0,
    ),
    "fused_gemm": ("FusedGemm", [f(3, 4), f(4, 5), f(5)], 1, {"activation": "Relu"}, 2),
    "fused_conv": (
        "FusedConv",
        [f(1, 3, 6, 6), f(4, 3, 3, 3), f(4)],
        1,
        {"activation": "LeakyRelu", "activation_params": [0.2], "pads": [1, 1, 1, 1]},
        2,
    ),
    "attention": ("Attention", [f(B, S, H), f(H, 3 * H), f(3 * H)], 1, {"num_heads": N}, 2),
    "attention_mask": (
        "Attention",
        [
            f(B, S, H),
            f(H, 3 * H),
            f(3 * H),
            np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32),
        ],
        1,
        {"num_heads": N},
        0,
    ),
    "attention_lengths": (
        "Attention",
        [f(B, S, H), f(H, 3 * H), f(3 * H), np.array([3, 5], np.int32)],
        1,
        {"num_heads": N},
        0,
    ),
    "attention_past": (
        "Attention",
        [f(B, 1, H), f(H, 3 * H), f(3 * H), None, f(2, B, N, 3, D)],
        2,
        {"num_heads": N, "unidirectional": 1},
        0,
    ),
    "multi_head": (
        "MultiHeadAttention",
        [f(B, S, H), f(B, 7, H), f(B, 7, H), f(3 * H)],
        1,
        {"num_heads": N},
        1,
    ),
    "multi_head_bias": (
        "MultiHeadAttention",
        [f(B, S, H), f(B, 7, H), f(B, 7, H), None, None, f(1, N, S, 7)],
        1,
        {"num_heads": N, "scale": 0.3},
        0,
    ),
    "grouped_query": (
        "GroupQueryAttention",
        [
            *(f(B, S, H), f(B, S, H // 2), f(B, S, H // 2), None, None),
            *(np.array([S - 1] * B, np.int32), np.array(S, np.int32)),
        ],
        3,
        {"num_heads": N, "kv_num_heads": N // 2},
        0,
    ),
    "grouped_query_rotary_past": (
        "GroupQueryAttention",
        [
            *(f(B, 1, H), f(B, 1, H // 2), f(B, 1, H // 2)),
            *(f(B, N // 2, 4, D), f(B, N // 2, 4, D)),
            *(np.array([4, 4], np.int32), np.array(5, np.int32), f(9, D // 2), f(9, D // 2)),
        ],
        3,
        {"num_heads": N, "kv_num_heads": N // 2, "do_rotary": 1},
        0,
    ),
    "matmul_4_bits": (
        "MatMulNBits",
        [f(3, 64), u8(16, 2, 16), f(32, scale=0.1), u8(16)],
        1,
        {"K": 64, "N": 16, "bits": 4, "block_size": 32},
        3,
    ),
    "matmul_8_bits": (
        "MatMulNBits",
        [f(3, 64), u8(16, 2, 32), f(32, scale=0.1)],
        1,
        {"K": 64, "N": 16, "bits": 8, "block_size": 32},
        2,
    ),
    "gather_blocks": (
        "GatherBlockQuantized",
        [u8(10, 16), np.array([[1, 9], [0, 4]]), f(10, 2, scale=0.1)],
        1,
        {"block_size": 16, "bits": 4, "quantize_axis": 1},
        0,
    ),
    "q_gemm": (
        "QGemm",
        [
            *(u8(3, 8), one(0.1), one(120, np.uint8), i8(8, 5), one(0.2), one(0, np.int8)),
            *(rng.integers(-99, 99, 5, dtype=np.int32), one(0.7), one(100, np.uint8)),
        ],
        1,
        {},
        8,
    ),
    "q_add": (
        "QLinearAdd",
        [
            *(u8(3, 8), one(0.1), one(120, np.uint8)),
            *(u8(3, 8), one(0.2), one(7, np.uint8), one(0.3), one(100, np.uint8)),
        ],
        1,
        {},
        0,
    ),
    "q_mul": (
        "QLinearMul",
        [
            *(u8(3, 8), one(0.1), one(120, np.uint8)),
            *(u8(3, 8), one(0.2), one(7, np.uint8), one(3.0), one(100, np.uint8)),
        ],
        1,
        {},
        0,
    ),
    "q_sigmoid": (
        "QLinearSigmoid",
        [u8(3, 8), one(0.05), one(120, np.uint8), one(1 / 256), one(0, np.uint8)],
        1,
        {},
        4,
    ),
    "q_leaky_relu": (
        "QLinearLeakyRelu",
        [u8(3, 8), one(0.05), one(120, np.uint8), one(0.05), one(60, np.uint8)],
        1,
        {"alpha": 0.1},
        4,
    ),
    "q_softmax": (
        "QLinearSoftmax",
        [u8(3, 8), one(0.05), one(120, np.uint8), one(1 / 256), one(0, np.uint8)],
        1,
        {"axis": -1, "opset": 13},
        4,
    ),
    "q_concat": (
        "QLinearConcat",
        [
            *(one(0.2), one(100, np.uint8), u8(3, 8), one(0.1), one(120, np.uint8)),
            *(u8(3, 8), one(0.3), one(90, np.uint8)),
        ],
        1,
        {"axis": 1},
        0,
    ),
    "q_average_pool": (
        "QLinearAveragePool",
        [u8(1, 2, 6, 6), one(0.1), one(120, np.uint8), one(0.1), one(110, np.uint8)],
        1,
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        4,
    ),
    "q_global_average_pool": (
        "QLinearGlobalAveragePool",
        [u8(1, 2, 6, 6), one(0.1), one(120, np.uint8), one(0.1), one(110, np.uint8)],
        1,
        {},
        4,
    ),
    "q_where": (
        "QLinearWhere",
        [
            *(rng.random((3, 8)) < 0.5, u8(3, 8), one(0.1), one(120, np.uint8)),
            *(u8(3, 8), one(0.2), one(90, np.uint8), one(0.2), one(100, np.uint8)),
        ],
        1,
        {},
        0,
    ),
    "dynamic_matmul": ("DynamicQuantizeMatMul", [f(3, 8), i8(8, 5), one(0.1)], 1, {}, 2),
    "integer_to_float": (
        "MatMulIntegerToFloat",
        [u8(3, 8), i8(8, 5), one(0.1), one(0.2), one(120, np.uint8)],
        1,
        {},
        0,
    ),
    "q_attention": (
        "QAttention",
        [
            *(u8(B, S, H), i8(H, 3 * H), f(3 * H), one(0.01), one(0.01)),
            *(None, one(128, np.uint8), one(0, np.int8)),
        ],
        1,
        {"num_heads": N},
        0,
    ),
    "dynamic_lstm": (
        "DynamicQuantizeLSTM",
        [
            *(f(4, 2, 3), i8(1, 3, 32), i8(1, 8, 32), f(1, 64), None, None, None, None),
            *(f(1, 1, scale=0.01)[0], np.zeros(1, np.int8)),
            *(f(1, 1, scale=0.01)[0], np.zeros(1, np.int8)),
        ],
        3,
        {"hidden_size": 8},
        11,
    ),
    "q_moe": (
        "QMoE",
        [
            *(f(6, 32), f(6, 4), u8(4, 16, 16), np.abs(f(4, 16, scale=0.1)), None),
            *(u8(4, 32, 8), np.abs(f(4, 32, scale=0.1)), None),
        ],
        1,
        {"k": 2, "activation_type": "silu", "expert_weight_bits": 4},
        6,
    ),
    "matmul_4_bits_of_many": (
        "MatMulNBits",
        [f(5, 256), u8(160, 8, 16), f(1280, scale=0.1), u8(640), None, f(160)],
        1,
        {"K": 256, "N": 160, "bits": 4, "block_size": 32},
        5,
    ),
    "matmul_float_zeros": (
        "MatMulNBits",
        [f(5, 256), u8(160, 8, 16), f(1280, scale=0.1), f(1280)],
        1,
        {"K": 256, "N": 160, "bits": 4, "block_size": 32},
        3,
    ),
    "matmul_4_bits_past_the_last": (
        "MatMulNBits",
        [f(2, 5, 200), u8(160, 7, 16), f(1120, scale=0.1)],
        1,
        {"K": 200, "N": 160, "bits": 4, "block_size": 32},
        2,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_what_onnx_runtime_computes(name: str) -> None:
    op, inputs, outputs, attrs, weights = CASES[name]
    model = make(op, inputs, outputs, attrs, weights)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    feed = {f"x{i}": x for i, x in enumerate(inputs[: len(inputs) - weights]) if x is not None}
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    expected = session.run(None, feed)
    found = semel.load(model, threads=1).run(feed)
    for i, want in enumerate(expected):
        ours = found[f"y{i}"]
        assert (ours.dtype, ours.shape) == (want.dtype, want.shape)
        if want.dtype.kind in "iu":  # a step where both round a half
            np.testing.assert_allclose(ours.astype(int), want.astype(int), atol=1)
        else:
            # An LSTM of quantised weights: it quantises what goes in, and we do not.
            atol = 2e-3 if "q" in name or name == "dynamic_lstm" else 1e-4
            np.testing.assert_allclose(ours, want, rtol=1e-3, atol=atol)


def test_blocks_in_an_order() -> None:
    """Against NumPy: with packed zero points ONNX Runtime takes those of other blocks."""
    x, q = f(5, 256), rng.integers(0, 16, (160, 256), dtype=np.uint8)
    zeros, scales = rng.integers(0, 16, (160, 8), dtype=np.uint8), f(160, 8, scale=0.1)
    block = rng.permutation(np.arange(256, dtype=np.int32) // 32)
    q_bytes, zero_bytes = (a[:, ::2] | a[:, 1::2] << 4 for a in (q, zeros))
    inputs = [x, q_bytes.reshape(160, 8, 16), scales.reshape(-1), zero_bytes.reshape(-1), block]
    attrs = {"K": 256, "N": 160, "bits": 4, "block_size": 32}
    found = semel.load(make("MatMulNBits", inputs, 1, attrs, 4)).run({"x0": x})["y0"]
    wide = (q.astype(np.float32) - zeros[:, block]) * scales[:, block]
    np.testing.assert_allclose(found, x @ wide.T, rtol=1e-3, atol=1e-4)


def test_weights_of_few_bits_are_held_as_they_are() -> None:
    inputs = [f(1, 512), u8(256, 4, 64), f(1024, scale=0.1)]
    attrs = {"K": 512, "N": 256, "bits": 4, "block_size": 128}
    compiled = semel.load(make("MatMulNBits", inputs, 1, attrs, 2))
    compiled.run({"x0": inputs[0]})
    assert compiled.plan.memory.weights_bytes < 512 * 256 * 4 / 7


def test_tables_and_experts_of_few_bits_are_held_as_they_are() -> None:
    table = [u8(1000, 128), np.array([[1, 999], [0, 4]]), f(1000, 2, scale=0.1)]
    attrs: dict[str, Any] = {"block_size": 128, "bits": 4, "quantize_axis": 1}
    model = make("GatherBlockQuantized", [table[1], table[0], table[2]], 1, attrs, 0)
    node, (data, indices, scales) = model.graph.node[0], ("x1", "x0", "x2")
    node.input[:] = [data, indices, scales]
    for name, array in ((data, table[0]), (scales, table[2])):
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    del model.graph.input[1:]
    compiled = semel.load(model)
    compiled.run({"x0": table[1]})
    assert compiled.plan.memory.weights_bytes < 1000 * 256
    experts = [
        *(f(6, 128), f(6, 4), u8(4, 256, 64), np.abs(f(4, 256, scale=0.1)), None),
        *(u8(4, 128, 128), np.abs(f(4, 128, scale=0.1)), None),
    ]
    attrs = {"k": 2, "activation_type": "silu", "expert_weight_bits": 4}
    compiled = semel.load(make("QMoE", experts, 1, attrs, 6))
    compiled.run({"x0": experts[0], "x1": experts[1]})
    assert compiled.plan.memory.weights_bytes < 2 * 4 * 128 * 256


@pytest.mark.parametrize(
    ("op", "attrs", "inputs", "message"),
    [
        (
            "MatMulNBits",
            {"K": 64, "N": 16, "bits": 3, "block_size": 32},
            [f(3, 64), u8(16, 2, 12), f(32)],
            "bits must be 2, 4 or 8, got 3",
        ),
        (
            "MatMulNBits",
            {"K": 64, "N": 16, "bits": 4, "block_size": 32},
            [f(3, 64), u8(16, 2, 16), f(32), None, np.zeros(64, np.int32)],
            "g_idx must give every block block_size columns",
        ),
    ],
)
def test_what_few_bits_are_not(op: str, attrs: Any, inputs: list[Any], message: str) -> None:
    with pytest.raises(semel.errors.UnsupportedError, match=message):
        semel.load(make(op, inputs, 1, attrs, len(inputs) - 1))

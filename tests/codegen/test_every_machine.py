"""The same bits on every machine: one text, one order of addition, whatever the registers.

x86-64-v2 has no fma and computes it from exact products and sums; v3 and AArch64 differ in width
and number of registers. Machines that this one can neither be nor emulate are compared by the
lanes in their kernels' text, which decide the order (`semel.kernel.shared_lanes`). A NaN is a NaN:
its sign and payload are the processor's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import methodcaller

import numpy as np
import pytest
from tests.codegen.emulate import can_emulate, emulator
from tests.codegen.lowering import (
    lower_graph,
    lower_with_weights,
    run_by_interpreter,
    run_by_machine,
    run_kernels,
)
from tests.codegen.machine import Array, runs_here

import semel
from semel import Tensor, Variable
from semel.ir.graph import Graph
from semel.ir.target import AVX512, Target, target_for
from semel.kernel import ir
from semel.kernel.ir import walk_statements
from semel.kernel.shared_lanes import ordered_totals, sum_lanes
from semel.lower.lowered import Lowered
from semel.models.minilm import EncoderSize, build_minilm, minilm_weights, sentence_embedding

Case = tuple[Callable[[Tensor], Tensor], tuple[int, ...], str]

_V2 = ("cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
V3 = target_for("x86_64", _V3)
MACHINES = {
    "x86-64-v2": target_for("x86_64", _V2),
    "x86-64-v3": V3,
    "x86-64-v4": target_for("x86_64", (*_V3, *AVX512)),
    "aarch64": target_for("aarch64", ("fp-armv8", "neon")),
}
#: Machines to compare with the interpreter, and what runs them.
OTHERS = [name for name in MACHINES if name != "x86-64-v3"]
N = Variable("n", 1, 100_000)


def attention(x: Tensor) -> Tensor:
    return x.scaled_dot_product_attention(x * 0.5, x + 1, is_causal=True)


def conv(x: Tensor) -> Tensor:
    weight = np.linspace(-1, 1, 8 * 3 * 9, dtype=np.float32).reshape(8, 3, 3, 3)
    return x.conv2d(Tensor(weight), padding=1).relu()


def conv_groups(x: Tensor) -> Tensor:
    weight = np.linspace(-1, 1, 48 * 3 * 9, dtype=np.float32).reshape(48, 3, 3, 3)
    return x.conv2d(Tensor(weight), padding=1, groups=2).relu()


def stored_across(x: Tensor) -> Tensor:
    """40 columns of a product, each of so many rows, side by side."""
    return (x[:-40] @ x.T[:, -40:]).T + 1


def depthwise(x: Tensor) -> Tensor:
    weight = np.linspace(-1, 1, 3 * 9, dtype=np.float32).reshape(3, 1, 3, 3)
    return x.conv2d(Tensor(weight), padding=1, groups=3)


def strided(x: Tensor) -> Tensor:
    weight = np.linspace(-1, 1, 3 * 9, dtype=np.float32).reshape(3, 1, 3, 3)
    return x.conv2d(Tensor(weight), stride=2, padding=1, groups=3).relu()


def whole(low: int, high: int, *shape: int) -> Array:
    return np.random.default_rng(high).integers(low, high, shape)


def in_blocks(dtype: str, low: int, high: int) -> Tensor:
    """A weight whose blocks of 32 numbers share a scale; too large to be folded."""
    numbers = Tensor(whole(low, high, 128, 160).astype(np.int8)).cast(dtype)
    scales = np.linspace(0.01, 0.02, 4 * 160, dtype=np.float32).reshape(4, 160)
    return Tensor(numbers.numpy()).dequantize_linear(scales, axis=0, block_size=32)


def quantised(x: Tensor) -> Tensor:
    """A layer of a quantised model: bytes in, products of bytes, bytes out."""
    weight = Tensor(whole(-100, 100, 150, 40).astype(np.int8)).dequantize_linear(0.01)
    given = x.quantize_linear(0.05, Tensor(np.int8(3))).dequantize_linear(0.05, np.int8(3))
    return (given @ weight).relu().quantize_linear(0.1, Tensor(np.uint8(7)))


def conv_transposed(x: Tensor) -> Tensor:
    weight = np.linspace(-1, 1, 3 * 8 * 9, dtype=np.float32).reshape(3, 8, 3, 3)
    return x.conv_transpose2d(Tensor(weight), stride=2, padding=1)


def conv_quantised(x: Tensor) -> Tensor:
    weight = Tensor(whole(-90, 90, 8, 3, 3, 3).astype(np.int8)).dequantize_linear(0.01)
    given = x.quantize_linear(0.05, Tensor(np.uint8(128))).dequantize_linear(0.05, np.uint8(128))
    return given.conv2d(weight, padding=1).quantize_linear(0.1, Tensor(np.uint8(7)))


def positive(x: Tensor) -> Tensor:
    rows = x.shape[0]
    assert isinstance(rows, int)
    return x @ x.T + Tensor(8 * np.eye(rows, dtype=np.float32))


#: Row lengths around the lanes of a sum: none, some, all of them, and what is left of each.
LENGTHS = (1, 5, 15, 16, 17, 33, 63, 64, 65, 80, 100, 129, 200)
CASES: dict[str, Case] = {
    **{f"sum{n}": (lambda x: x.sum(1), (3, n), "float32") for n in LENGTHS},
    "squares": (lambda x: (x * x).sum(1), (3, 150), "float32"),
    "sum_and_squares": (lambda x: x.sum(1) + (x * x).sum(1), (3, 150), "float32"),
    "float8": (lambda x: x.cast("float8_e4m3fn").cast("float32"), (3, 150), "float32"),
    "float4": (lambda x: x.cast("float4_e2m1fn").T.cast("int4") + x.T, (3, 150), "float32"),
    "product": (lambda x: x.prod(1), (3, 150), "float32"),
    "everything": (lambda x: x.sum(), (37, 41), "float32"),
    "runs": (lambda x: x.sum(), (40_000,), "float32"),
    "mean": (lambda x: x.mean(1), (3, 150), "float64"),
    "halves": (lambda x: x.sum(1), (3, 150), "float16"),
    "brain_halves": (lambda x: x.softmax(-1), (3, 150), "bfloat16"),
    "var": (lambda x: x.var(1), (3, 150), "float32"),
    "columns": (lambda x: x.sum(0), (70, 33), "float32"),
    "many_columns": (lambda x: x.sum(0), (70, 300), "float32"),
    "maxima": (lambda x: x.max(1), (3, 150), "float32"),
    "places": (lambda x: x.argmax(1), (3, 150), "float32"),
    "gelu_sum": (lambda x: x.gelu().sum(1), (3, 150), "float32"),
    "sine_sum": (lambda x: x.sin().sum(1), (3, 150), "float32"),
    "softmax": (lambda x: x.softmax(-1), (3, 197), "float32"),
    "softmax64": (lambda x: x.softmax(-1), (3, 70), "float64"),
    "softmax_columns": (lambda x: x.softmax(0), (30, 20), "float32"),
    "layer_norm": (lambda x: x.layer_norm(), (3, 100), "float32"),
    "layer_norm16": (lambda x: x.layer_norm(), (3, 100), "float16"),
    "matmul": (lambda x: x @ x.T, (21, 50), "float32"),
    "matmul64": (lambda x: x @ x.T, (13, 50), "float64"),
    "matmul16": (lambda x: (x @ x.T).tanh(), (13, 50), "float16"),
    "attention": (attention, (2, 70, 24), "float32"),
    "attention64": (attention, (1, 20, 8), "float64"),
    "conv": (conv, (1, 3, 9, 9), "float32"),
    "depthwise": (depthwise, (1, 3, 9, 9), "float32"),
    "depthwise_strided": (strided, (1, 3, 11, 37), "float32"),
    "bytes": (lambda x: x + x.roll(1, 1), (3, 255), "int8"),
    "running": (lambda x: x.cumsum(1), (3, 50), "float32"),
    **{
        name: (methodcaller(name), (501,), "float32")
        for name in ("exp", "log", "sin", "tan", "tanh", "erf", "sigmoid", "gelu")
    },
    "log64": (lambda x: x.abs().log(), (200,), "float64"),
    "power": (lambda x: x.abs() ** x, (300,), "float32"),
}
#: Those with weights, as plans have them: panels of words, of bytes, of floats.
WITH_WEIGHTS: dict[str, Case] = {
    "four_bits": (lambda x: x @ in_blocks("int4", -8, 8), (3, 128), "float32"),
    "four_bits_of_one_row": (lambda x: x @ in_blocks("uint4", 0, 16), (1, 128), "float32"),
    "two_bits": (lambda x: (x @ in_blocks("int2", -2, 2)).relu(), (7, 128), "float32"),
    "bytes_in_blocks": (lambda x: x @ in_blocks("int8", -128, 128), (3, 128), "float32"),
    "quantised": (quantised, (7, 150), "float32"),
    "conv_quantised": (conv_quantised, (1, 3, 9, 9), "float32"),
    "conv_packed": (conv, (1, 3, 9, 9), "float32"),
    "conv_of_images": (conv, (3, 3, 5, 7), "float32"),
    "conv_groups": (conv_groups, (1, 6, 7, 7), "float32"),
    **{f"stored_across{n}": (stored_across, (n + 40, 20), "float32") for n in (3, 5, 6, 7, 11)},
    "conv_transposed": (conv_transposed, (1, 3, 7, 7), "float32"),
    "one_column": (lambda x: x @ Tensor(np.linspace(-1, 1, 50)), (21, 50), "float64"),
    "one_column_of_a_product": (lambda x: (x @ x.T) @ x[:, :1], (21, 50), "float32"),
    "group_norm": (lambda x: x.group_norm(4).silu(), (2, 24, 5, 5), "float32"),
    "permuted_sum": (lambda x: x.permute(0, 2, 3, 1).mean((1, 2)), (2, 24, 5, 7), "float32"),
    "merged_rows": (lambda x: x.permute(0, 2, 1).reshape(24, 12).sum(1), (2, 12, 12), "float32"),
    "rfft": (semel.fft.rfft, (3, 64), "float32"),
    "fft_of_a_prime": (semel.fft.rfft, (2, 97), "float32"),
    "cholesky": (lambda x: semel.linalg.cholesky(positive(x)), (4, 5), "float32"),
    "solve": (lambda x: semel.linalg.solve(positive(x), x), (4, 5), "float32"),
    "eigh": (lambda x: semel.linalg.eigh(positive(x))[1], (2, 4), "float32"),
    "qr": (lambda x: semel.linalg.qr(x)[1], (5, 4), "float64"),
}
CASES |= WITH_WEIGHTS
#: The interpreter takes a moment for each element.
SLOW = (
    *("runs", "attention", "many_columns", "conv", "conv_packed", "conv_quantised"),
    *("four_bits", "two_bits", "bytes_in_blocks", "conv_transposed", "group_norm", "quantised"),
    *("fft_of_a_prime", "four_bits_of_one_row", "conv_of_images", "conv_groups"),
)


def inputs(name: str) -> Array:
    _, shape, dtype = CASES[name]
    drawn = np.random.default_rng(len(name)).standard_normal(shape) * 2
    return drawn.astype(Tensor.input("x", shape, dtype).dtype.numpy)


def run(name: str, target: Target) -> Array:
    graph, kernels = lowered(name, target)
    return run_kernels(graph, kernels, {"x": inputs(name)}, {}, run_by_machine(target))[0]


def lowered(name: str, target: Target) -> tuple[Graph, tuple[Lowered, ...]]:
    function, shape, dtype = CASES[name]
    lower = lower_with_weights if name in WITH_WEIGHTS else lower_graph
    return lower([function(Tensor.input("x", shape, dtype))], target)


@cache
def expected(name: str) -> bytes:
    return bits(run(name, V3))


def bits(array: Array) -> bytes:
    if array.dtype.kind not in "iub":
        array = np.where(array != array, np.array(np.nan, array.dtype), array)
    return array.tobytes()


@pytest.mark.parametrize("machine", OTHERS)
@pytest.mark.parametrize("name", CASES)
def test_machines_agree(name: str, machine: str) -> None:
    target = MACHINES[machine]
    if not runs_here(target) and not can_emulate(target):
        pytest.skip(emulator(target))
    assert bits(run(name, target)) == expected(name)


@pytest.mark.parametrize("name", [n for n in CASES if n not in SLOW])
def test_the_interpreter_agrees(name: str) -> None:
    graph, kernels = lowered(name, V3)
    found = run_kernels(graph, kernels, {"x": inputs(name)}, {}, run_by_interpreter)[0]
    assert bits(found) == expected(name)


@pytest.mark.parametrize("machine", MACHINES)
def test_weights_lie_as_in_plans(machine: str) -> None:
    """Else the cases would say nothing about the kernels that read them."""
    found = {
        name: {str(node.type.dtype) for node in graph.nodes if node.op.name == "stored"}
        for name in ("four_bits", "two_bits", "quantised", "conv_packed")
        for graph, _ in [lowered(name, MACHINES[machine])]
    }
    assert all("int32" in found[name] for name in ("four_bits", "two_bits"))
    assert found["conv_packed"] == {"float32"}
    assert found["quantised"], found


def encoder() -> tuple[Tensor, dict[str, Array]]:
    """A whole model: embeddings, attention under a mask, norms, gelu; and what it is given."""
    size = EncoderSize(layers=1, width=48, heads=3, hidden=80, vocabulary=30, positions=40)
    given = {
        "ids": np.arange(2 * 37, dtype=np.int64).reshape(2, 37) % 30,
        "mask": (np.arange(2 * 37).reshape(2, 37) % 37 < 30).astype(np.int64),
    }
    ids, mask = (Tensor.input(name, array.shape, "int64") for name, array in given.items())
    hidden = build_minilm(ids, mask, minilm_weights(size), size)
    return sentence_embedding(hidden, mask), given


@cache
def run_encoder(machine: str) -> bytes:
    output, given = encoder()
    graph, kernels = lower_graph([output], MACHINES[machine])
    found = run_kernels(graph, kernels, given, {}, run_by_machine(MACHINES[machine]))
    return bits(found[0])


@pytest.mark.parametrize("machine", OTHERS)
def test_a_model_has_the_same_bits(machine: str) -> None:
    target = MACHINES[machine]
    if not runs_here(target) and not can_emulate(target):
        pytest.skip(emulator(target))
    assert run_encoder(machine) == run_encoder("x86-64-v3")


def shared_lanes(name: str, target: Target) -> list[tuple[int, str]]:
    """The lanes of every loop in which lanes share a sum."""
    _, kernels = lowered(name, target)
    loops = [s for k in kernels for s in walk_statements(k.kernel.body) if isinstance(s, ir.Loop)]
    return [
        (loop.lanes, combine)
        for loop in loops
        if loop.lanes > 1
        for combine in ordered_totals(loop).values()
    ]


@pytest.mark.parametrize("machine", OTHERS)
@pytest.mark.parametrize("name", CASES)
def test_the_lanes_of_a_sum_are_those_of_every_machine(name: str, machine: str) -> None:
    """Whatever runs here: the text of a kernel says the order, and no target has a say in it."""
    assert sorted(set(shared_lanes(name, MACHINES[machine]))) == sorted(set(shared_lanes(name, V3)))


def test_lanes_are_some_and_follow_the_width_of_the_elements() -> None:
    assert shared_lanes("sum200", V3) == [(sum_lanes(32), "add")] == [(64, "add")]
    assert shared_lanes("mean", V3) == [(sum_lanes(64), "add")] == [(32, "add")]
    assert shared_lanes("gelu_sum", V3) == shared_lanes("sum200", V3)  # whatever the body does


@pytest.mark.parametrize("machine", MACHINES)
def test_a_variable_gives_the_bits_of_a_number(machine: str) -> None:
    target = MACHINES[machine]
    if not runs_here(target) and not can_emulate(target):
        pytest.skip(emulator(target))
    graph, kernels = lower_graph([Tensor.input("x", (2, N)).softmax(-1)], target)
    for size in (1, 70, 197):
        x = np.random.default_rng(size).standard_normal((2, size)).astype(np.float32)
        fixed, fixed_kernels = lower_graph([Tensor.input("x", (2, size)).softmax(-1)], V3)
        wanted = run_kernels(fixed, fixed_kernels, {"x": x}, {}, run_by_machine(V3))[0]
        found = run_kernels(graph, kernels, {"x": x}, {"n": size}, run_by_machine(target))[0]
        assert bits(found) == bits(wanted), size

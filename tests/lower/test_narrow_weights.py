"""Constant weights that are stored narrow are read narrow, and give the bits of wide ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from semel import Tensor, Variable, load_plan
from semel.ir.narrow import to_narrow
from semel.ir.types import NARROW, as_dtype

Array = np.ndarray[Any, np.dtype[Any]]
RNG = np.random.default_rng(3)
K, N = 192, 160
Q = RNG.integers(-128, 128, (K, N)).astype(np.int8)
COLUMN = np.asarray(RNG.random(N) + 0.5, np.float32) / 100
ROW = np.asarray(RNG.random(K) + 0.5, np.float32) / 100
BLOCK = np.asarray(RNG.random((K // 32, N)) + 0.5, np.float32) / 100
ZERO = RNG.integers(-9, 9, N).astype(np.int8)

STORED = {d.name: to_narrow(Q / 16, d) for d in NARROW}
POWERS = to_narrow(BLOCK * 3, as_dtype("float8_e8m0fnu"))

FORMS: dict[str, Callable[[], Tensor]] = {
    "one scale": lambda: (Tensor(Q).cast("float32") - 3) * 0.01,
    "unsigned": lambda: (Tensor(Q.view(np.uint8)).cast("float32") - 128) * 0.01,
    "a scale per column": lambda: Tensor(Q).dequantize_linear(COLUMN),
    "scales and zero points": lambda: Tensor(Q).dequantize_linear(COLUMN, ZERO),
    "a scale per row": lambda: Tensor(Q).dequantize_linear(ROW, axis=0),
    "a scale per block": lambda: Tensor(Q).dequantize_linear(BLOCK, axis=0, block_size=32),
    "transposed": lambda: Tensor(Q.T.copy()).dequantize_linear(COLUMN, ZERO, axis=0).mT,
    "float16": lambda: Tensor(Q.astype(np.float16)).cast("float32"),
    "float8": lambda: Tensor(STORED["float8_e4m3fn"]).dequantize_linear(COLUMN),
    "float8 of more range": lambda: Tensor(STORED["float8_e5m2"]).dequantize_linear(COLUMN),
    "int4 in blocks": lambda: Tensor(STORED["int4"]).dequantize_linear(
        BLOCK, axis=0, block_size=32
    ),
    "float4 with powers of two": lambda: Tensor(STORED["float4_e2m1fn"]).dequantize_linear(
        POWERS, axis=0, block_size=32
    ),
    "bfloat16": lambda: Tensor(Q.astype(np.float32)).cast("bfloat16").realize().cast("float32"),
}


@pytest.mark.parametrize("name", FORMS)
def test_narrow_weights_give_the_bits_of_wide_ones(name: str) -> None:
    m = Variable("m", 1, 64)
    x = Tensor.input("x", (m, K))
    narrow = (x @ FORMS[name]() + 1).relu().prepare(threads=2)
    wide = (x @ Tensor(FORMS[name]().numpy()) + 1).relu().prepare(threads=1)
    assert len(narrow.steps) == 1
    assert narrow.memory.weights_bytes < 0.6 * wide.memory.weights_bytes
    for rows in (1, 2, 4, 5, 13, 30, 64):
        data = RNG.standard_normal((rows, K)).astype(np.float32)
        np.testing.assert_array_equal(narrow(x=data), wide(x=data))


def test_weights_for_a_batch_are_read_narrow_too() -> None:
    data = RNG.standard_normal((3, 7, K)).astype(np.float32)
    x = Tensor.input("x", data.shape)
    weights = FORMS["a scale per column"]
    plan = (x @ weights()).prepare()
    np.testing.assert_array_equal(plan(x=data), (x @ Tensor(weights().numpy())).prepare()(x=data))
    assert plan.memory.arena_bytes < K * N * 4


def test_two_products_share_narrow_weights_without_storing_wide_ones() -> None:
    x, y = Tensor.input("x", (5, K)), Tensor.input("y", (6, K))
    weights = FORMS["scales and zero points"]()
    plan = Tensor.concat([(x @ weights).exp(), (y @ weights).sin()]).prepare()
    assert plan.memory.arena_bytes < K * N * 4
    a, b = (RNG.standard_normal((n, K)).astype(np.float32) / 50 for n in (5, 6))
    wide = Tensor(weights.numpy())
    np.testing.assert_array_equal(plan(x=a, y=b)[:5], (x @ wide).exp().prepare()(x=a))


def test_loops_read_narrow_weights_through_any_view() -> None:
    """Scales that are stretched for all of a stack stay few numbers where one matrix is taken."""
    stack = RNG.integers(-128, 128, (2, 3 * K, K)).astype(np.int8)
    scales = Tensor.param("s", np.array([0.01, 0.02], np.float32))
    wide = (Tensor(stack).cast("float32") * scales.reshape(2, 1, 1)).mT
    right = [wide[k].reshape(K, 3 * K) for k in range(2)]
    x, n = Tensor.input("x", (1, K)), Variable("n", 0, 9)

    def step(_: Any, states: tuple[Tensor, ...]) -> Any:
        y = (states[0] @ right[0] + states[0] @ right[1]).tanh()
        return [y[:, :K] + y[:, K : 2 * K] - y[:, 2 * K :]], []

    (y,), _ = Tensor.loop(n, [x], step)
    plan = y.prepare(threads=1)
    assert plan.memory.weights_bytes < 1.1 * stack.nbytes
    data = RNG.standard_normal((1, K)).astype(np.float32)
    expected = data
    matrices = stack.astype(np.float32) * np.array([0.01, 0.02], np.float32).reshape(2, 1, 1)
    for _ in range(3):
        z = np.tanh(sum(expected @ matrix.T for matrix in matrices))
        expected = z[:, :K] + z[:, K : 2 * K] - z[:, 2 * K :]
    given = plan.buffer(x)
    assert given is not None
    given.copyin(data)
    plan.execute_with_vars(n=3)
    np.testing.assert_allclose(plan.output_buffer.numpy(), expected, atol=1e-3)


def test_small_weights_are_folded() -> None:
    x = Tensor.input("x", (4, 16))
    plan = (x @ ((Tensor(Q[:16, :40]).cast("float32") - 3) * 0.5)).prepare()
    assert plan.memory.weights_bytes >= 16 * 40 * 4


def test_narrow_weights_survive_a_saved_plan(tmp_path: Any) -> None:
    data = RNG.standard_normal((3, K)).astype(np.float32)
    plan = (Tensor.input("x", (3, K)) @ FORMS["a scale per block"]()).prepare()
    plan.save(tmp_path / "narrow.plan")
    np.testing.assert_array_equal(load_plan(tmp_path / "narrow.plan")(x=data), plan(x=data))


@pytest.mark.parametrize("block", [0, 64])
def test_deep_contractions_of_narrow_weights_run_in_parts(block: int) -> None:
    depth = 8192
    q = RNG.integers(-128, 128, (depth, 64)).astype(np.int8)
    scale: Any = np.float32(0.01)
    if block:
        scale = np.asarray(RNG.random((depth // block, 64)), np.float32)
    weights = Tensor(q).dequantize_linear(scale, axis=0, block_size=block)
    x = Tensor.input("x", (9, depth))
    data = RNG.standard_normal((9, depth)).astype(np.float32)
    narrow = ((x * 0.5) @ weights).prepare()
    wide = ((x * 0.5) @ Tensor(weights.numpy())).prepare()
    np.testing.assert_array_equal(narrow(x=data), wide(x=data))

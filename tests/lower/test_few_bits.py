"""Weights of 4 and 2 bits are held as their bits, and give the bits of wide ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from semel import Tensor, Variable, load_plan
from semel.devices import lacking
from semel.ir.target import named_target
from semel.ir.types import as_dtype

Array = np.ndarray[Any, np.dtype[Any]]
RNG = np.random.default_rng(4)
K, N, BLOCK = 256, 160, 32
SCALES = np.asarray(RNG.random((K // BLOCK, N)) + 0.5, np.float32) / 100
ZEROS = RNG.integers(0, 256, (N, K // BLOCK // 2), dtype=np.uint8)
#: What the host can run, from little to much.
LESSER = [
    name
    for name in ("x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64")
    if not lacking("cpu", named_target(name))
]


def numbers(dtype: str, depth: int = K, columns: int = N) -> Array:
    kind = as_dtype(dtype)
    low = -(1 << kind.bits - 1) if kind.kind == "i" else 0
    return RNG.integers(low, low + (1 << kind.bits), (depth, columns)).astype(kind.numpy)


def packed(bits: int) -> Array:
    return RNG.integers(0, 256, (N, K // BLOCK, BLOCK * bits // 8), dtype=np.uint8)


def in_blocks(data: Array) -> Tensor:
    return Tensor(data).dequantize_linear(SCALES, axis=0, block_size=BLOCK)


def unpacked(data: Tensor, bits: int) -> Tensor:
    shifts = Tensor(np.arange(0, 8, bits, dtype=np.uint8))
    return (data.unsqueeze(-1) >> shifts).flatten(-2, -1).cast(f"uint{bits}")


def exported(data: Tensor, bits: int = 4) -> Tensor:
    """As a file has it: a row of blocks for each column, zero points packed too."""
    zeros = Tensor(ZEROS if bits == 4 else ZEROS[:, :2])
    zero = unpacked(zeros, bits).unsqueeze(-1).cast("uint8").cast("float32")
    scale = Tensor(np.ascontiguousarray(SCALES.T)).unsqueeze(-1)
    return ((unpacked(data, bits).cast("float32") - zero) * scale).reshape(N, K).T


FOUR, TWO = packed(4), packed(2)
FORMS: dict[str, Callable[[], Tensor]] = {
    **{
        f"{dtype} in blocks": partial(in_blocks, numbers(dtype))
        for dtype in ("int4", "uint4", "int2", "uint2")
    },
    "a scale per column": partial(Tensor(numbers("int4")).dequantize_linear, SCALES[0]),
    "packed bytes": lambda: exported(Tensor(FOUR)),
    "packed twos": lambda: exported(Tensor(TWO), 2),
}


@pytest.mark.parametrize("name", FORMS)
def test_they_give_the_bits_of_wide_ones(name: str) -> None:
    x = Tensor.input("x", (Variable("m", 1, 64), K))
    few = (x @ FORMS[name]() + 1).relu().prepare(threads=2)
    wide = (x @ Tensor(FORMS[name]().numpy()) + 1).relu().prepare(threads=1)
    assert len(few.steps) == 1
    assert few.memory.weights_bytes < wide.memory.weights_bytes / 5
    for rows in (1, 2, 4, 5, 13, 64):
        data = RNG.standard_normal((rows, K)).astype(np.float32)
        np.testing.assert_array_equal(few(x=data), wide(x=data))


@pytest.mark.parametrize("block", [0, 32])
def test_experts_of_few_bits_are_read_so(block: int) -> None:
    experts, depth, columns = 3, 128, 96
    q = np.stack([numbers("uint4", columns, depth) for _ in range(experts)])
    size = block or depth
    numbers_of = (Tensor(q).cast("float32") - 8).reshape(experts, columns, -1, size)
    scale = np.asarray(RNG.random((experts, columns, depth // size, 1)), np.float32)
    weights = (numbers_of * Tensor(scale)).reshape(experts, columns, depth).mT
    m = Variable("m", 1, 64)
    x, ids = Tensor.input("x", (m, depth)), Tensor.input("ids", (m,), "int64")
    few = x.grouped_matmul(weights, ids).relu().prepare()
    wide = x.grouped_matmul(Tensor(weights.numpy()), ids).relu().prepare()
    assert few.memory.weights_bytes < wide.memory.weights_bytes / 5
    for rows in (1, 7, 64):
        data = RNG.standard_normal((rows, depth)).astype(np.float32)
        chosen = RNG.integers(0, experts, rows)
        np.testing.assert_array_equal(few(x=data, ids=chosen), wide(x=data, ids=chosen))


def test_memory_is_a_seventh() -> None:
    q, scales = numbers("uint4", 1024, 256), np.ones((8, 256), np.float32)
    weights = Tensor(q).dequantize_linear(scales, axis=0, block_size=128)
    plan = (Tensor.input("x", (1, 1024)) @ weights).prepare()
    assert plan.memory.weights_bytes < 1024 * 256 * 4 / 7
    assert plan.memory.arena_bytes == 0


@pytest.mark.parametrize("target", LESSER)
def test_every_machine_computes_the_same(target: str) -> None:
    weights, data = FORMS["int4 in blocks"](), RNG.standard_normal((7, K)).astype(np.float32)
    x = Tensor.input("x", (7, K))
    few = (x @ weights).prepare(target=target)
    wide = (x @ Tensor(weights.numpy())).prepare(target=target)
    np.testing.assert_array_equal(few(x=data), wide(x=data))


@pytest.mark.parametrize("block", [32, 1024])
def test_deep_ones_are_widened_part_by_part(block: int) -> None:
    depth = 8192
    scale = np.asarray(RNG.random((depth // block, 70)), np.float32)
    weights = Tensor(numbers("uint4", depth, 70)).dequantize_linear(scale, axis=0, block_size=block)
    x = Tensor.input("x", (9, depth))
    data = RNG.standard_normal((9, depth)).astype(np.float32)
    few, wide = (x @ weights).prepare(), (x @ Tensor(weights.numpy())).prepare()
    np.testing.assert_array_equal(few(x=data), wide(x=data))


def test_params_are_replaced(tmp_path: Any) -> None:
    x = Tensor.input("x", (3, K))
    plan = (x @ exported(Tensor.param("w", FOUR))).prepare()
    assert plan.memory.weights_bytes < K * N  # bytes would be as many
    data, other = RNG.standard_normal((3, K)).astype(np.float32), packed(4)
    plan.set_param("w", other)
    wanted = (x @ Tensor(exported(Tensor(other)).numpy())).prepare()(x=data)
    np.testing.assert_array_equal(plan(x=data), wanted)
    plan.save(tmp_path / "few.plan")
    np.testing.assert_array_equal(load_plan(tmp_path / "few.plan")(x=data), wanted)


def test_numbers_that_fill_no_words_stay_bytes() -> None:
    weights = Tensor(numbers("int4", 252, 300)).dequantize_linear(SCALES[0, 0])
    x, data = Tensor.input("x", (2, 252)), RNG.standard_normal((2, 252)).astype(np.float32)
    plan = (x @ weights).prepare()
    assert plan.memory.weights_bytes < 252 * 300 * 2
    np.testing.assert_array_equal(plan(x=data), (x @ Tensor(weights.numpy())).prepare()(x=data))

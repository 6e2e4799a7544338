"""Products of bytes on every kind of target: the instructions, and the exact integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.codegen.lowering import run_by_interpreter, run_by_machine, run_kernels

from semel import Tensor
from semel.codegen.emit import emit_kernel
from semel.devices.cpu.toolchain import assembly
from semel.errors import InternalError
from semel.ir.expr import Index
from semel.ir.graph import Graph
from semel.ir.target import AVX2, AVX512, Target, target_for
from semel.ir.types import INT32, UINT8
from semel.kernel.encode import decode_kernel, encode_kernel
from semel.kernel.interpret import interpret
from semel.kernel.ir import Block, BlockDot, Buffer, Kernel, Loop, Store, const, load
from semel.kernel.text import format_kernel
from semel.kernel.verify import verify_kernel
from semel.lower import lower_schedule
from semel.lower.lowered import Lowered
from semel.lower.register_tiles import panel_width
from semel.passes import all_passes, run_passes
from semel.schedule.groups import build_schedule

V3 = ("avx", *AVX2)
V4 = (*V3, *AVX512)
TARGETS = {
    "sse2": target_for("x86_64", ()),
    "avx2": target_for("x86_64", V3),
    "avxvnni": target_for("x86_64", (*V3, "avxvnni")),
    "avx512": target_for("x86_64", V4),
    "avx512vnni": target_for("x86_64", (*V4, "avx512vnni")),
    "amx": target_for("x86_64", (*V4, "avx512vnni", "amx-int8", "amx-tile")),
    "neon": target_for("aarch64", ("neon",)),
    "dotprod": target_for("aarch64", ("neon", "dotprod")),
    "i8mm": target_for("aarch64", ("neon", "dotprod", "i8mm")),
}
INSTRUCTIONS = {
    "sse2": "pmaddwd",
    "avx2": "vpmaddwd",
    "avxvnni": "vpdpbusd",
    "avx512": "vpmaddwd",
    "avx512vnni": "vpdpbusd",
    "amx": "tdpbusd",
    "neon": "mla",
    "dotprod": "sdot",
    "i8mm": "usdot",
}


def kernels_for(output: Tensor, target: Target) -> tuple[Graph, tuple[Lowered, ...]]:
    """The graph and its kernels as the pipeline makes them, for any target."""
    panel = panel_width(target)
    passes = all_passes(target, panel, verify=True)
    graph = run_passes(Graph((output.node,)), passes, verify=True)
    schedule = build_schedule(graph, panel=panel)
    return schedule.graph, lower_schedule(schedule, target)


def product(a_dtype: str, rows: int, depth: int, columns: int) -> tuple[Tensor, Any, Any]:
    rng = np.random.default_rng(0)
    low, high = (-128, 127) if a_dtype == "int8" else (0, 255)
    a = rng.integers(low, high, (rows, depth), endpoint=True).astype(a_dtype)
    b = rng.integers(-128, 127, (depth, columns), endpoint=True).astype(np.int8)
    output = Tensor.input("a", a.shape, a_dtype).matmul_integer(Tensor(b), 3) + 1
    return output, a, (a.astype(np.int64) - 3) @ b.astype(np.int64) + 1


@pytest.mark.parametrize("name", TARGETS)
def test_the_target_uses_its_instruction(name: str) -> None:
    target = TARGETS[name]
    output, _, _ = product("uint8", 40, 70, 96)
    _, kernels = kernels_for(output, target)
    texts = [assembly(emit_kernel(k.kernel, target, "f"), target) for k in kernels]
    assert any(INSTRUCTIONS[name] in text for text in texts)
    assert not any("pmaddubsw" in text for text in texts), "it saturates"


@pytest.mark.parametrize("name", TARGETS)
def test_a_batch_of_computed_operands_uses_the_instruction_too(name: str) -> None:
    """The words of each matrix are put together in whole panels, the columns past the end too."""
    target = TARGETS[name]
    rng = np.random.default_rng(1)
    a = rng.integers(0, 255, (2, 9, 21), endpoint=True).astype(np.uint8)
    b = rng.integers(-128, 127, (2, 21, 19), endpoint=True).astype(np.int8)
    output = Tensor.input("a", a.shape, "uint8").matmul_integer(Tensor.input("b", b.shape, "int8"))
    graph, kernels = kernels_for(output, target)
    texts = [assembly(emit_kernel(k.kernel, target, "f"), target) for k in kernels]
    assert any(INSTRUCTIONS[name] in text for text in texts)
    (got,) = run_kernels(graph, kernels, {"a": a, "b": b}, {}, run_by_interpreter)
    np.testing.assert_array_equal(got, a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("a_dtype", ["uint8", "int8"])
def test_kernels_are_sound_and_mean_the_exact_product(name: str, a_dtype: str) -> None:
    output, a, expected = product(a_dtype, 7, 11, 9)
    graph, kernels = kernels_for(output, TARGETS[name])
    for lowered in kernels:
        assert not verify_kernel(lowered.kernel)
        assert decode_kernel(encode_kernel(lowered.kernel)) == lowered.kernel
        assert format_kernel(lowered.kernel)
    (got,) = run_kernels(graph, kernels, {"a": a}, {}, run_by_interpreter)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("a_dtype", ["uint8", "int8"])
@pytest.mark.parametrize("shape", [(1, 5, 3), (4, 64, 40), (37, 66, 70), (64, 128, 64)])
def test_the_machine_computes_the_exact_product(
    name: str, a_dtype: str, shape: tuple[int, int, int]
) -> None:
    target = TARGETS[name]
    output, a, expected = product(a_dtype, *shape)
    graph, kernels = kernels_for(output, target)
    (got,) = run_kernels(graph, kernels, {"a": a}, {}, run_by_machine(target))
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("largest", [64, 65])
def test_only_small_weights_are_multiplied_as_bytes_where_sums_of_two_saturate(
    name: str, largest: int
) -> None:
    target = TARGETS[name]
    rng = np.random.default_rng(2)
    a = rng.choice([0, 255, 254], (9, 23)).astype(np.uint8)
    b = rng.choice([-64, largest, 63], (23, 35)).astype(np.int8)
    output = Tensor.input("a", a.shape, "uint8").matmul_integer(Tensor(b), 3)
    graph, kernels = kernels_for(output, target)
    texts = [assembly(emit_kernel(k.kernel, target, "f"), target) for k in kernels]
    is_small = largest == 64 and name in ("avx2", "avx512")
    assert any("pmaddubsw" in text for text in texts) == is_small
    (got,) = run_kernels(graph, kernels, {"a": a}, {}, run_by_interpreter)
    np.testing.assert_array_equal(got, (a.astype(np.int64) - 3) @ b.astype(np.int64))


@pytest.mark.parametrize("a_dtype", ["uint8", "int8"])
@pytest.mark.parametrize("is_constant", [True, False])
def test_small_weights_are_exact_at_their_extremes(a_dtype: str, is_constant: bool) -> None:
    """Constants are looked at; a param, which any other may replace, is not."""
    rng, info = np.random.default_rng(3), np.iinfo(a_dtype)
    x = Tensor.input("a", (37, 67), a_dtype)
    b = rng.choice([-64, 64], (67, 70)).astype(np.int8)
    plan = x.matmul_integer(Tensor(b) if is_constant else Tensor.param("b", b), 3, 1).prepare()
    a = rng.choice([info.min, info.max], (37, 67)).astype(a_dtype)
    left = a.astype(np.int64) - 3
    np.testing.assert_array_equal(plan(a=a), left @ (b.astype(np.int64) - 1))
    if not is_constant:
        wide = rng.choice([-128, 127], (67, 70)).astype(np.int8)
        plan.set_param("b", wide)
        np.testing.assert_array_equal(plan(a=a), left @ (wide.astype(np.int64) - 1))


def block(words: int, size: int) -> Kernel:
    """A kernel of one block of sums, into scratch of `size` elements."""
    bytes_, sums = Buffer("s0", UINT8, 16 * 64, "s"), Buffer("s1", INT32, size, "s")
    right, out = Buffer("b1", INT32, 16 * 16, "r"), Buffer("b0", INT32, 1, "w")
    k, tile = Index("k", 16 * 64), Index("tile", 1)
    fill = Loop(k, 0, 16 * 64, (Store(bytes_, k, const(UINT8, 1)),))
    dots = BlockDot(
        Block(sums, 0, 16), Block(bytes_, 0, 64), Block(right, 0, 16), words, 16, 16, 16
    )
    body = (fill, dots, Store(out, 0, load(sums, 255)))
    return Kernel("block", (out, right), (bytes_, sums), (), tile, 1, body)


def test_a_block_is_checked_against_its_buffers() -> None:
    assert not verify_kernel(block(16, 256))
    assert any("outside" in p for p in verify_kernel(block(16, 255)))
    assert any("multiple of 16" in p for p in verify_kernel(block(8, 256)))
    right = np.full(256, 0x02020202, np.int32)
    out = np.zeros(1, np.int32)
    interpret(block(16, 256), [out, right], {})
    assert out[0] == 64 * 2


def test_a_target_without_tile_registers_refuses_blocks() -> None:
    with pytest.raises(InternalError, match="needs tiles"):
        emit_kernel(block(16, 256), TARGETS["avx512vnni"], "f")

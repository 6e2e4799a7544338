"""Contractions in assembly, for targets that this machine need not be.

The innermost loop must multiply and add what its register tile says, in registers of the
full width, and touch no stack: a tile that spills is slower than a smaller one.
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
from tests.codegen.lowering import lower_graph

from semel import Tensor, Variable
from semel.codegen.emit import emit_kernel
from semel.devices.cpu.toolchain import assembly, compile_ir
from semel.ir.expr import Dim, evaluate
from semel.ir.graph import Graph
from semel.ir.target import AVX2, AVX512, target_for
from semel.ir.types import as_dtype
from semel.lower import lower_schedule
from semel.lower.register_tiles import RegisterTile, cut_rows, panel_width, register_tile
from semel.passes import all_passes, run_passes
from semel.schedule.groups import build_schedule

_V2 = ("cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_FMA3 = ("avx", "f16c", "fma")
_V3 = (*_V2, *_FMA3, *AVX2, "bmi", "bmi2", "lzcnt", "movbe", "xsave")
TARGETS = {
    "avx2": target_for("x86_64", _V3),
    "avx512": target_for("x86_64", (*_V3, *AVX512)),
    "neon": target_for("aarch64", ("neon",)),
}
#: Without fma: what one instruction does takes tens of them, and their registers.
PLAIN = target_for("x86_64", _V2)
#: A multiply-add, and the registers that it must use, by target.
_FMA = {
    "avx2": r"vfn?m(?:add|sub)\d+p[sd]\s.*%ymm",
    "avx512": r"vfn?m(?:add|sub)\d+p[sd]\s.*%zmm",
    "neon": r"fmla\s+v\d+\.(?:4s|2d)",
}
_STACK = {"x86_64": r"%rsp", "aarch64": r"\[sp"}
#: A vector that passes through the stack; a number that does costs little.
_SPILL = {"x86_64": r"%[xyz]mm\d+.*\(%rsp\)|\(%rsp\).*%[xyz]mm", "aarch64": r"[qv]\d+.*\[sp"}
COLUMNS = 256
DTYPES = ("float32", "float64", "float16", "bfloat16")
CASES = [(t, d) for t in TARGETS for d in DTYPES]


@cache
def matmul_assembly(target: str, dtype: str, rows: int | None = None) -> str:
    """A matmul of a variable number of rows, or of `rows`."""
    machine = TARGETS.get(target, PLAIN)
    size = Variable("n", 5, 512) if rows is None else rows
    x, w = Tensor.input("x", (size, 64), dtype), Tensor.input("w", (64, COLUMNS), dtype)
    _, (lowered,) = lower_graph([x @ w], machine)
    text = emit_kernel(lowered.kernel, machine, "matmul")
    compile_ir(text, machine)  # refuses calls
    return assembly(text, machine)


def innermost_loops(text: str) -> list[list[str]]:
    """The lines of each loop without a loop or a label inside."""
    loops: list[list[str]] = []
    label = ""
    body: list[str] = []
    for line in text.splitlines():
        if line.startswith(".L") and ":" in line:
            label, body = line.partition(":")[0], []
        elif line.startswith("\t") and not line.startswith("\t."):
            body.append(line.strip())
            if label and re.match(
                rf"(j\w+|b\.?\w*|cbn?z|tbn?z)\b.*{re.escape(label)}$", line.strip()
            ):
                loops.append([*body])
    return loops


def main_loop(target: str, dtype: str, rows: int | None = None) -> list[str]:
    """The loop with the most multiply-adds: that of the tallest block of rows."""
    loops = innermost_loops(matmul_assembly(target, dtype, rows))
    return max(loops, key=lambda body: count(target, body))


def count(target: str, body: list[str]) -> int:
    return sum(1 for line in body if re.search(_FMA[target], line))


def block(target: str, dtype: str) -> tuple[int, int]:
    """Rows and vectors of the register tile."""
    bits = as_dtype(dtype).compute.bits
    tile = register_tile(TARGETS[target], bits, COLUMNS)
    return tile.height, tile.lanes * bits // TARGETS[target].vector_bits


@pytest.mark.parametrize(("target", "dtype"), CASES)
def test_the_inner_loop_multiplies_what_its_tile_holds(target: str, dtype: str) -> None:
    height, vectors = block(target, dtype)
    found = count(target, main_loop(target, dtype))
    assert found > 0 and found % (height * vectors) == 0


@pytest.mark.parametrize(("target", "dtype"), CASES)
def test_no_inner_loop_spills(target: str, dtype: str) -> None:
    stack = _STACK[TARGETS[target].arch]
    for body in innermost_loops(matmul_assembly(target, dtype)):
        if count(target, body):
            assert not [line for line in body if re.search(stack, line)]


@pytest.mark.parametrize(("target", "dtype"), CASES)
def test_a_known_number_of_rows_does_not_spill_either(target: str, dtype: str) -> None:
    height, vectors = block(target, dtype)
    body = main_loop(target, dtype, height)
    assert count(target, body) % (height * vectors) == 0
    assert not [line for line in body if re.search(_STACK[TARGETS[target].arch], line)]


@pytest.mark.parametrize("dtype", ("float32", "float64"))
@pytest.mark.parametrize("target", TARGETS)
def test_one_row_reads_two_lines_a_step_without_hints(target: str, dtype: str) -> None:
    """A stream of its own for every panel: what a core can read takes more than one."""
    body = main_loop(target, dtype, rows=1)
    _, vectors = block(target, dtype)
    wide = TARGETS[target].vector_bits // 8 * vectors
    assert count(target, body) == vectors * max(1, 128 // wide)
    assert not [line for line in body if "prefetch" in line or "prfm" in line]
    assert not [line for line in body if re.search(_STACK[TARGETS[target].arch], line)]


@pytest.mark.parametrize("dtype", ("float32", "float64"))
@pytest.mark.parametrize("target", TARGETS)
def test_the_right_operand_is_loaded_once_for_all_rows(target: str, dtype: str) -> None:
    register = {"avx2": "%ymm", "avx512": "%zmm", "neon": ""}[target]
    load = r"^ldp?r?\s+q" if target == "neon" else rf"^v?movu?a?p[sd]\s.*\(.*\), {register}"
    body = main_loop(target, dtype)
    height, vectors = block(target, dtype)
    steps = count(target, body) // (height * vectors)
    loads = [line for line in body if re.search(load, line)]
    assert sum(2 if line.startswith("ldp") else 1 for line in loads) == vectors * steps


def test_tiles_fill_the_registers_of_each_target() -> None:
    for name, target in TARGETS.items():
        height, vectors = block(name, "float32")
        # Beside accumulators and vectors of the right operand one at least is left.
        assert 1 <= target.vector_registers - (height + 1) * vectors <= 6


@cache
def conv_loops(target: str, channels: int, outputs: int, side: Dim) -> list[list[str]]:
    """The loops over k of a 3x3 convolution with packed filters, for any number of images."""
    machine = TARGETS[target]
    x = Tensor.input("x", (Variable("b", 0, 64), side, side, channels))
    weight = np.ones((outputs, channels, 3, 3), np.float32)
    y = x.permute(0, 3, 1, 2).conv2d(weight, padding=1).permute(0, 2, 3, 1)
    panel = panel_width(machine)
    graph = run_passes(Graph((y.node,)), all_passes(machine, panel))
    _, lowered = lower_schedule(build_schedule(graph, panel=panel), machine)
    text = assembly(emit_kernel(lowered.kernel, machine, "conv"), machine)
    return [body for body in innermost_loops(text) if count(target, body)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("channels", "outputs", "side"),
    [(48, 96, 20), (128, 256, 10), (24, 24, 28), (16, 16, 56), (64, 64, Variable("s", 1, 64))],
)
def test_convolutions_of_many_images_keep_their_sums_in_registers(
    target: str, channels: int, outputs: int, side: Dim
) -> None:
    """Each row has an address of its own: taller blocks, and more hints, run out of registers."""
    stack = _SPILL[TARGETS[target].arch]
    loops = conv_loops(target, channels, outputs, side)
    assert not [line for body in loops for line in body if re.search(stack, line)]
    # The main loop is multiply-adds, and one load for each row and each vector of a step.
    main = max(loops, key=lambda body: count(target, body))
    assert count(target, main) >= 0.4 * len(main)


@pytest.mark.parametrize(
    ("columns", "avx2", "avx512", "neon"),
    [
        (8, (8, 8), (8, 16), (6, 8)),
        (16, (6, 16), (8, 16), (6, 16)),
        (24, (4, 24), (6, 32), (6, 12)),
        (40, (4, 24), (6, 48), (6, 16)),
        (48, (6, 16), (6, 48), (6, 16)),
        (96, (6, 16), (6, 48), (6, 16)),
        (257, (6, 16), (6, 48), (6, 16)),
        (512, (6, 16), (6, 64), (6, 16)),
    ],
)
def test_panels_are_as_wide_as_the_columns_want(
    columns: int, avx2: tuple[int, int], avx512: tuple[int, int], neon: tuple[int, int]
) -> None:
    found = {name: register_tile(target, 32, columns) for name, target in TARGETS.items()}
    wanted = {"avx2": avx2, "avx512": avx512, "neon": neon}
    assert {name: (tile.height, tile.lanes) for name, tile in found.items()} == wanted


@pytest.mark.parametrize("least", [0, 5, 30])
@pytest.mark.parametrize("height", [1, 4, 6, 8])
def test_a_variable_number_of_rows_is_cut_as_evenly_as_a_known_one(height: int, least: int) -> None:
    rows, tile = Variable("n", 0, 99), Variable("t", 0, 99)
    shape = RegisterTile(height, 16, 24, 1)
    blocks = cut_rows(shape, rows, least)
    levels = list(blocks.of_tile(tile))
    for n in range(max(least, 1), 100):
        heights: list[int] = []
        for t in range(evaluate(blocks.tiles, {"n": n})):
            at = {"n": n, "t": t}
            assert evaluate(blocks.first_row(tile), at) == sum(heights)
            for level in levels:
                first, last = (evaluate(d, at) for d in (level.first, level.last))
                for block in range(first, last):
                    assert block * level.height + evaluate(level.offset, at) == sum(heights)
                    heights.append(level.height)
        assert sum(heights) == n and len(heights) == -(-n // height)
        assert max(heights) - min(heights) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_fma_and_without_casts_of_float16_nobody_is_called(dtype: str) -> None:
    assert "call" not in matmul_assembly("plain", dtype)


def test_loops_are_found() -> None:
    text = ".LBB0_1:\n\tmovq %rax, %rbx\n.LBB0_2:\n\tincq %rax\n\tjl\t.LBB0_2\n\tjl\t.LBB0_1\n"
    assert innermost_loops(text) == [["incq %rax", "jl\t.LBB0_2"]]

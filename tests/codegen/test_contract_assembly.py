"""Contractions in assembly, for targets that this machine need not be.

The innermost loop must multiply and add what its register tile says, in registers of the
full width, and touch no stack: a tile that spills is slower than a smaller one.
"""

from __future__ import annotations

import re
from functools import cache

import pytest
from tests.codegen.lowering import lower_graph

from semel import Tensor, Variable
from semel.codegen.emit import emit_kernel
from semel.devices.cpu.toolchain import assembly, compile_ir
from semel.ir.target import AVX2, AVX512, target_for
from semel.ir.types import as_dtype
from semel.lower.register_tiles import register_tile

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
    return tile.heights[0], tile.lanes * bits // TARGETS[target].vector_bits


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


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_fma_and_without_casts_of_float16_nobody_is_called(dtype: str) -> None:
    assert "call" not in matmul_assembly("plain", dtype)


def test_loops_are_found() -> None:
    text = ".LBB0_1:\n\tmovq %rax, %rbx\n.LBB0_2:\n\tincq %rax\n\tjl\t.LBB0_2\n\tjl\t.LBB0_1\n"
    assert innermost_loops(text) == [["incq %rax", "jl\t.LBB0_2"]]

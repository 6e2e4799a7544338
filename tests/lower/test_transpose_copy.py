"""Copies that turn axes around: every element arrives, whatever blocks leave over."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.codegen.lowering import (
    lower_graph,
    lower_with_weights,
    run_by_interpreter,
    run_by_machine,
    run_kernels,
)
from tests.codegen.machine import every_target

import semel
from semel import Tensor, Variable
from semel.codegen.emit import emit_kernel
from semel.devices.cpu.toolchain import host_target
from semel.ir.expr import Dim, linear_coefficient
from semel.ir.graph import Graph
from semel.ir.target import named_target
from semel.ir.types import as_dtype
from semel.kernel import ir
from semel.kernel.ir import Kernel, walk_statements
from semel.lower import lower_schedule
from semel.schedule.groups import build_schedule

TARGETS = every_target()
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint16", "int64", "bool")
RARELY = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def numbered(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    """Every element another number, as far as the dtype has them."""
    count = np.arange(int(np.prod(shape))).reshape(shape)
    return (count % 251 if dtype != "float64" else count).astype(as_dtype(dtype).numpy)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(16, 16), (17, 33), (130, 5), (3, 200), (64, 129), (1, 40)])
def test_a_matrix_of_any_dtype(shape: tuple[int, int], dtype: str) -> None:
    x = numbered(shape, dtype)
    with semel.config.override(debug=frozenset({"poison"})):
        got = Tensor.input("x", shape, dtype).T.prepare()(x=x)
    np.testing.assert_array_equal(got, x.T)


#: Less than a block, one, some and a rest; more than a tile.
SIZES = [(1, 1), (8, 8), (7, 300), (300, 7), (16, 9), (261, 70), (33, 1030), (0, 5), (5, 0)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes_that_vary(dtype: str) -> None:
    n, m = Variable("n", 0, 2000), Variable("m", 0, 2000)
    x = Tensor.input("x", (n, m), dtype)
    widths = [(0, 0), (3, 2)]
    with semel.config.override(debug=frozenset({"poison"})):
        turned, padded = x.T.prepare(), x.T.pad(widths).prepare()
        for shape in SIZES:
            data = numbered(shape, dtype)
            np.testing.assert_array_equal(turned(x=data), data.T)
            np.testing.assert_array_equal(padded(x=data), np.pad(data.T, widths))


@RARELY
@given(st.data())
def test_any_order_of_axes(choose: Any) -> None:
    rank = choose.draw(st.integers(2, 4))
    sizes = [choose.draw(st.sampled_from((1, 2, 3, 5, 16, 17, 21, 40))) for _ in range(rank)]
    while np.prod(sizes) > 20_000:
        sizes[int(np.argmax(sizes))] = 2
    axes = choose.draw(st.permutations(range(rank)))
    widths = [choose.draw(st.sampled_from(((0, 0), (0, 0), (1, 2)))) for _ in range(rank)]
    x = numbered(tuple(sizes))
    want = np.pad(x.transpose(axes), widths, constant_values=-1) * 2
    names = [Variable(f"n{i}", 0 if n != 1 else 1, 64) for i, n in enumerate(sizes)]
    for shape in (x.shape, tuple(names)):
        t = Tensor.input("x", shape).permute(*axes).pad(widths, -1) * 2
        for threads in (1, 2):
            np.testing.assert_array_equal(t.prepare(threads=threads)(x=x), want)


CASES: dict[str, tuple[Callable[[Tensor], Any], Callable[[np.ndarray], Any]]] = {
    "image": (lambda x: x.permute(0, 2, 3, 1), lambda x: x.transpose(0, 2, 3, 1)),
    "image, padded": (
        lambda x: x.permute(0, 2, 3, 1).pad([(0, 0), (3, 3), (2, 1), (0, 0)]),
        lambda x: np.pad(x.transpose(0, 2, 3, 1), [(0, 0), (3, 3), (2, 1), (0, 0)]),
    ),
    "back": (lambda x: x.permute(0, 3, 1, 2), lambda x: x.transpose(0, 3, 1, 2)),
    "and arithmetic": (lambda x: x.permute(3, 2, 1, 0) * 2 + 1, lambda x: x.transpose() * 2 + 1),
    "two outputs": (
        lambda x: [x.permute(0, 2, 3, 1) + 1, x.permute(0, 2, 3, 1) * 3],
        lambda x: [x.transpose(0, 2, 3, 1) + 1, x.transpose(0, 2, 3, 1) * 3],
    ),
    "beside itself": (lambda x: x + x.permute(0, 1, 3, 2), lambda x: x + x.transpose(0, 1, 3, 2)),
    "a part of it": (
        lambda x: x.permute(0, 2, 3, 1)[:, 1:, ::2], lambda x: x.transpose(0, 2, 3, 1)[:, 1:, ::2]
    ),
}  # fmt: skip


@pytest.mark.parametrize("executor", ["interpreter", *TARGETS])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("channels", [2, 3, 5, 18])
def test_blocks_on_every_vector_width(name: str, channels: int, executor: str) -> None:
    build, reference = CASES[name]
    x = numbered((1, channels, 19, 19))
    built = build(Tensor.input("x", x.shape))
    outputs = built if isinstance(built, list) else [built]
    want = reference(x)
    target = TARGETS.get(executor)
    graph, kernels = lower_graph(outputs, target)
    run = run_by_machine(target) if target else run_by_interpreter
    got = run_kernels(graph, kernels, {"x": x}, {}, run)
    for g, w in zip(got, want if isinstance(built, list) else [want], strict=True):
        np.testing.assert_array_equal(g, w)


def kernel_of(y: Tensor) -> Kernel:
    (lowered,) = lower_schedule(build_schedule(Graph((y.node,))), host_target())
    return lowered.kernel


def code_of(y: Tensor) -> str:
    return emit_kernel(kernel_of(y), host_target(), "turned")


@pytest.mark.parametrize("shape", [(256, 300), (3, 300), (45, 47)])
def test_nothing_is_gathered_or_scattered(shape: tuple[int, int]) -> None:
    code = code_of(Tensor.input("x", shape).T)
    assert "gather" not in code and "scatter" not in code and "masked" not in code


def test_nothing_is_gathered_or_scattered_where_sizes_vary() -> None:
    turned = Tensor.input("x", (Variable("n", 0), Variable("m", 0))).T
    code = code_of(turned)
    assert "gather" not in code and "scatter" not in code and "masked" not in code
    # Beside padding there are masks, and a block without.
    code = code_of(turned.pad([(0, 0), (0, 3)]))
    assert "gather" not in code and "scatter" not in code
    lines = code.splitlines()
    masked = [line for line in lines if "call" in line and "masked.load" in line]
    assert len(masked) == len([line for line in lines if " load <" in line]) > 0


def test_blocks_follow_each_other_as_they_are_stored() -> None:
    """Stores that run through memory are faster by half than stores that come back to a line."""
    inside = list(walk_statements(kernel_of(Tensor.input("x", (320, 400)).T).body))
    *_, block, vector = (s for s in inside if isinstance(s, ir.Loop) and not s.unroll)
    (copies,) = (s for s in inside if isinstance(s, ir.Loop) and s.unroll)
    (store,) = (s for s in inside if isinstance(s, ir.Store))
    assert vector.lanes > 1 and linear_coefficient(store.at, vector.index) == 320
    assert linear_coefficient(store.at, copies.index) == 1
    assert linear_coefficient(store.at, block.index) == copies.stop


def test_dear_arithmetic_is_not_repeated_for_every_column() -> None:
    """The operand is turned into scratch, and read from there by vectors along the last axis."""
    kernel = kernel_of(Tensor.input("x", (256, 300)).T.gelu())
    assert len(kernel.scratch) == 1
    *_, last = (s for s in walk_statements(kernel.body) if isinstance(s, ir.Loop))
    (store,) = last.body
    assert isinstance(store, ir.Store) and linear_coefficient(store.at, last.index) == 1


def scaled(x: Tensor, scale: Tensor) -> Tensor:
    """Each row over its scale, turned: a quotient and a root that no column changes."""
    return (x / (scale / 3.0 + 1e-5).sqrt()).T


def test_what_no_column_changes_is_computed_before_them() -> None:
    x, scale = Tensor.input("x", (300, 256)), Tensor.input("s", (1, 256))
    inside = list(walk_statements(kernel_of(scaled(x, scale)).body))
    (vector,) = (s for s in inside if isinstance(s, ir.Loop) and s.lanes > 1)
    declared, columns = vector.body
    assert isinstance(declared, ir.Declare) and isinstance(columns, ir.Loop)
    ops = [v.op for s in walk_statements([columns]) for v in ir.walk_values(ir.statement_values(s))]
    assert ops.count("sqrt") == 0 and ops.count("div") == 1


@pytest.mark.parametrize("sizes", [(7, 8), (16, 16), (33, 40), (300, 261), (5, 3), (1, 64)])
@pytest.mark.parametrize("executor", ["interpreter", *TARGETS])
def test_rows_over_their_scale(executor: str, sizes: tuple[int, int]) -> None:
    x = numbered(sizes) - 100
    scale = numbered((1, sizes[1])) + 1
    want = (x / np.sqrt(scale / np.float32(3) + np.float32(1e-5))).T
    target = TARGETS.get(executor)
    tensors = (Tensor.input("x", sizes), Tensor.input("s", (1, sizes[1])))
    graph, kernels = lower_graph([scaled(*tensors)], target)
    run = run_by_machine(target) if target else run_by_interpreter
    (got,) = run_kernels(graph, kernels, {"x": x, "s": scale}, {}, run)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("sizes", [(256, 300), (9, 40), (40, 9), (Variable("n", 0), 300)])
def test_an_operand_that_lies_across_another_is_not_gathered(level: str, sizes: Any) -> None:
    x, y = Tensor.input("x", sizes), Tensor.input("y", sizes[::-1])
    (lowered,) = lower_schedule(build_schedule(Graph(((x.T + y).node,))), named_target(level))
    code = emit_kernel(lowered.kernel, named_target(level), "turned")
    assert "gather" not in code and "scatter" not in code


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("sizes", [(100_000, 12), (12, 100_000), (100_000, 9), (8, 77)])
def test_few_rows_or_columns_fill_half_a_register(level: str, sizes: tuple[int, int]) -> None:
    turned = Tensor.input("x", sizes).T
    (lowered,) = lower_schedule(build_schedule(Graph((turned.node,))), named_target(level))
    code = emit_kernel(lowered.kernel, named_target(level), "turned")
    assert "gather" not in code and "scatter" not in code


@pytest.mark.parametrize("dtype", DTYPES)
def test_operands_across_each_other(dtype: str) -> None:
    n, m = Variable("n", 0, 200), Variable("m", 0, 200)
    names, shapes = (n, 3, m), [(1, 3, 9), (70, 3, 131), (16, 3, 64), (40, 3, 8), (9, 3, 0)]
    x = Tensor.input("x", names, dtype)
    y = Tensor.input("y", (m, 3, n), dtype)
    with semel.config.override(debug=frozenset({"poison"})):
        plan = (x.permute(2, 1, 0) == y).prepare(threads=2)
        for shape in shapes:
            one = numbered(shape, dtype)
            other = numbered(shape[::-1], dtype)
            want = one.transpose(2, 1, 0) == other
            np.testing.assert_array_equal(plan(x=one, y=other), want)
            x2, y2 = Tensor.input("x", shape, dtype), Tensor.input("y", shape[::-1], dtype)
            fixed = (x2.permute(2, 1, 0) == y2).prepare()
            np.testing.assert_array_equal(fixed(x=one, y=other), want)


@pytest.mark.parametrize(("level", "rows"), [("x86-64-v3", 8), ("x86-64-v4", 16)])
def test_a_square_is_turned_by_halves_where_it_is_one_run_of_memory(level: str, rows: int) -> None:
    """Copy by copy it would be as many shuffles for every vector as there are copies."""
    target = named_target(level)
    _, (lowered,) = lower_graph([Tensor.input("x", (rows, 100 * rows)).T], target)
    code = emit_kernel(lowered.kernel, target, "k")
    squares = code.count(f"store <{rows} x float>") // rows
    assert squares > 0
    per_square = code.count("shufflevector") // squares
    assert rows * math.log2(rows) <= per_square <= 1.5 * rows * math.log2(rows)


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("outputs", [16, 24, 32, 40, 48, 64, 96])
@pytest.mark.parametrize(
    ("images", "side"), [(1, 28), (3, 28), (1, Variable("s", 8, 64)), (Variable("b", 1, 64), 28)]
)
def test_rows_of_a_contraction_are_turned_before_they_are_stored(
    level: str, outputs: int, images: Dim, side: Dim
) -> None:
    """Five or six rows, that is: no square, and a panel of three vectors, the last one cut."""
    target = named_target(level)
    weight = np.ones((outputs, 16, 3, 3), np.float32)
    y = Tensor.input("x", (images, 16, side, side)).conv2d(weight, padding=1)
    _, kernels = lower_with_weights([y], target)
    code = emit_kernel(kernels[-1].kernel, target, "k")
    assert "fma" in code and "scatter" not in code

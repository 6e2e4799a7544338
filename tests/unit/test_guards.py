"""Guards: the one expression that is zero exactly where a graph makes sense."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import semel
from semel import Tensor
from semel.errors import PlanError, VariableError
from semel.ir.expr import Variable, ceildiv, evaluate, floordiv, maximum, minimum, mod
from semel.ir.graph import Graph, Node, make_node
from semel.ir.types import FLOAT32, TensorType
from semel.ops.attrs import (
    ConcatAttrs,
    ExpandAttrs,
    InputAttrs,
    ReduceAttrs,
    ReshapeAttrs,
    SliceAttrs,
)
from semel.ops.guards import guards
from semel.ops.shapes import at_most

N = Variable("n", 0, 100)
M = Variable("m", 1, 100)


def f32(name: str, *shape: Any) -> Node:
    return make_node("input", (), InputAttrs(name, TensorType(shape, FLOAT32)))


def guard_of(op: str, operands: list[Node], attrs: Any = None) -> list[tuple[Any, str]]:
    return list(guards(Graph((make_node(op, operands, attrs),))))


# (op, operands, attrs, values that are legal, values that are not)
CASES: list[tuple[str, list[Node], Any, dict[str, int], dict[str, int]]] = [
    ("add", [f32("x", N), f32("y", M)], None, {"n": 7, "m": 7}, {"n": 7, "m": 8}),
    ("add", [f32("x", N), f32("y", 4)], None, {"n": 4}, {"n": 3}),
    ("concat", [f32("x", 2, N), f32("y", 2, M)], ConcatAttrs(0),
     {"n": 3, "m": 3}, {"n": 1, "m": 3}),
    ("matmul", [f32("x", 2, N), f32("y", M, 2)], None, {"n": 3, "m": 3}, {"n": 1, "m": 3}),
    ("expand", [f32("x", N)], ExpandAttrs((M,)), {"n": 3, "m": 3}, {"n": 1, "m": 3}),
    ("stretch", [f32("x", N)], ExpandAttrs((M,)), {"n": 1, "m": 3}, {"n": 2, "m": 3}),
    ("agree", [f32("x", 1)], ExpandAttrs((M,)), {"m": 1, "n": 1}, {"m": 3, "n": 1}),
    ("reshape", [f32("x", N)], ReshapeAttrs((N // 4, 4)), {"n": 12}, {"n": 13}),
    ("reshape", [f32("x", N, 4)], ReshapeAttrs((2, M)), {"n": 5, "m": 10}, {"n": 5, "m": 9}),
    ("slice", [f32("x", N)], SliceAttrs((0,), (16,), (1,)), {"n": 16}, {"n": 15}),
    ("slice", [f32("x", 50)], SliceAttrs((N,), (4,), (1,)), {"n": 46}, {"n": 47}),
    ("slice", [f32("x", 50)], SliceAttrs((N,), (4,), (-2,)), {"n": 6}, {"n": 5}),
    ("slice", [f32("x", N)], SliceAttrs((4,), (N - 4,), (1,)), {"n": 4}, {"n": 3}),
    ("reduce_max", [f32("x", 3, N)], ReduceAttrs((1,)), {"n": 1}, {"n": 0}),
    ("reduce_argmin", [f32("x", 3, N)], ReduceAttrs((1,)), {"n": 1}, {"n": 0}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "operands", "attrs", "legal", "illegal"),
    CASES,
    ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)],
)
def test_guard_is_zero_exactly_where_the_op_is_legal(
    op: str, operands: list[Node], attrs: Any, legal: dict[str, int], illegal: dict[str, int]
) -> None:
    found = guard_of(op, operands, attrs)
    assert found and all(text.startswith(f"{op.removeprefix('reduce_')}: ") for _, text in found)
    assert all(evaluate(dim, legal) == 0 for dim, _ in found)
    assert any(evaluate(dim, illegal) != 0 for dim, _ in found)


FREE: list[tuple[str, list[Node], Any]] = [
    ("add", [f32("x", N), f32("y", N)], None),
    ("reshape", [f32("x", N, 4)], ReshapeAttrs((2 * N, 2))),
    ("expand", [f32("x", 1)], ExpandAttrs((N,))),
    ("slice", [f32("x", N)], SliceAttrs((0,), (N,), (1,))),
    ("slice", [f32("x", N)], SliceAttrs((N - 1,), (N,), (-1,))),
    ("slice", [f32("x", N)], SliceAttrs((0,), (ceildiv(N, 2),), (2,))),
    ("reduce_max", [f32("x", 3, M)], ReduceAttrs((1,))),
    ("reduce_max", [f32("x", 3, N)], ReduceAttrs((1,), propagate_nan=False)),
    ("reduce_sum", [f32("x", 3, N)], ReduceAttrs((1,))),
]


@pytest.mark.parametrize(
    ("op", "operands", "attrs"), FREE, ids=[f"{c[0]}-{i}" for i, c in enumerate(FREE)]
)
def test_what_always_holds_has_no_guard(op: str, operands: list[Node], attrs: Any) -> None:
    assert guard_of(op, operands, attrs) == []


def test_max_over_a_variable_axis_is_legal_while_there_is_nothing_to_fill() -> None:
    ((dim, _),) = guard_of("reduce_max", [f32("x", N, N)], ReduceAttrs((1,)))
    assert evaluate(dim, {"n": 0}) == 0


def test_sentence_names_both_dims_and_the_origin() -> None:
    node = make_node("add", [f32("x", N, 2), f32("y", M, 2)], origin="model.py:7")
    ((_, text),) = guards(Graph((node,)))
    assert text == ("add: dims 0 must agree, got n in f32[n,2] and m in f32[m,2] (model.py:7).")


def test_the_same_guard_is_kept_once() -> None:
    x, y = f32("x", N), f32("y", M)
    graph = Graph((make_node("add", [x, y]), make_node("mul", [x, y])))
    assert len(guards(graph)) == 1


@pytest.mark.parametrize("low", range(1, 9))
def test_quotients_are_bounded_as_closely_as_can_be(low: int) -> None:
    """c * (e // d) lies between c/d * (e - d + 1) and c/d * e, and both ends are reached."""
    n = Variable("n", low)
    for divisor in (2, 3, 5):
        for factor in (1, 2):
            up = factor * divisor * ((n + 1) // divisor)
            most = factor * (n + 1)
            assert at_most(up, most, "").always_holds
            assert not at_most(up, most - 1, "").always_holds
            rest = n - factor * divisor * (n // divisor) + (factor - 1) * n
            assert at_most(rest, factor * (divisor - 1), "").always_holds
            assert not at_most(rest, factor * (divisor - 1) - 1, "").always_holds


@pytest.mark.parametrize("name", ["quotient", "remainder", "nested", "shape", "start"])
def test_a_divisor_that_may_be_zero_is_guarded(name: str) -> None:
    """What the processor would stop at is refused at the bind."""
    n, d = Variable("n", 1, 8), Variable("d", -2, 8)
    x = Tensor.input("x", (n,), "int64")
    made = {
        "quotient": lambda: x + floordiv(n, d),
        "remainder": lambda: x + mod(n, d),
        "nested": lambda: x + maximum(2 * floordiv(n * 7, d + 1), 3) * n,
        "shape": lambda: x.sum() + Tensor.zeros((minimum(floordiv(n, d), 9),), dtype="int64"),
        "start": lambda: x[maximum(mod(n, d), 0) :],
    }[name]()
    text = "a divisor must be >= 1, got d|must divide by at least 1"
    plan = semel.prepare(made, threads=1)
    given = plan.buffer(x)
    assert given is not None
    given.copyin(np.arange(6))
    plan.execute_with_vars(n=6, d=3)
    for value in (-1, -2) if name == "nested" else (0, -1):
        with pytest.raises(VariableError, match=f"({text}).* Found d={value}"):
            plan.execute_with_vars(n=6, d=value)


def test_a_divisor_that_is_always_positive_is_not_guarded() -> None:
    n, d = Variable("n", 1, 8), Variable("d", 1, 8)
    assert guards(Graph(((Tensor.input("x", (n,)) + floordiv(n, d)).node,))) == ()


def test_a_size_without_a_bound_is_refused() -> None:
    n, d = Variable("n", 1, 8), Variable("d", 0, 8)
    with pytest.raises(PlanError, match=r"i64\[\(n // d\)\] has no largest size.*minimum of 1"):
        semel.prepare(Tensor.zeros((floordiv(n, d),), dtype="int64") + 1, threads=1)

"""Whole kernels, from graphs to machine code, on every vector width this machine can run.

The named cases are graphs that were once scheduled or lowered wrongly. The interpreter
takes part because it sees accesses outside a buffer, which the machine may survive.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from tests.codegen.lowering import lower_graph, run_by_interpreter, run_by_machine, run_kernels
from tests.codegen.machine import Array, every_target
from tests.fuzz.checking import _compare, _compare_closely, _used
from tests.fuzz.programs import make_program

from semel import Tensor
from semel.ir.graph import Graph
from semel.ops.evaluate import evaluate

TARGETS = every_target()
Build = Callable[..., Any]


def spread(*shape: int) -> Array:
    return np.random.default_rng(len(shape) + sum(shape)).normal(size=shape).astype(np.float32)


def reshapes(count: int) -> Build:
    def build(x: Tensor) -> Tensor:
        for _ in range(count):
            x = x.reshape(4, 3).T
        return x

    return build


def first_row_elsewhere(rows: Tensor) -> Tensor:
    result = rows + 0
    result[np.array([1, 1])] = rows[0] * 2
    return result


def kept_for_two(x: Tensor) -> list[Tensor]:
    total = x.clip(-9, 9).logsumexp((2,), keepdims=True)
    return [total.square().sum((2,), keepdims=True).max((1, 2)), total.tanh()]


CASES: dict[str, tuple[Build, tuple[Array, ...]]] = {
    "a reduction is wanted with its rows transposed":
        (lambda x, y: y + x.sum(-1).T, (spread(5, 4, 70), spread(4, 5))),
    "two orders of the rows of one reduction":
        (lambda x: x.sum(2) + x.sum(2).T, (spread(5, 5, 70),)),
    "a kept value is wanted in two orders of rows":
        (lambda x: x.exp().sin() + x.exp().sin().permute(1, 0, 2).sum(2).T[..., None],
         (spread(5, 5, 20),)),
    "a reduction is the first part of a concatenation":
        (lambda x, y: Tensor.concat([x.sum(1), y]), (spread(5, 70), spread(6))),
    "a reduction is padded at the end":
        (lambda x: x.sum(1).pad(((0, 9),)) * 2, (spread(5, 70),)),
    "the reduced axis of a reduction is padded":
        (lambda x: x.sum(1, keepdims=True).pad(((0, 0), (1, 2))) + 1, (spread(5, 70),)),
    "a reduction is stored whole though only a part is used here":
        (lambda x: [x.sum(1)[:3] * 2, x.sum(1)], (spread(5, 70),)),
    "a reduction is stored whole though only its first row is used here":
        (lambda x: first_row_elsewhere(x.cumsum(1).var(1)), (spread(5, 70),)),
    "a contraction is the first part of a concatenation":
        (lambda x, y, z: Tensor.concat([x @ y, z]), (spread(5, 7), spread(7, 9), spread(6, 9))),
    "a contraction is padded at the end":
        (lambda x, y: (x @ y).pad(((0, 3), (0, 0))), (spread(5, 7), spread(7, 9))),
    "a contraction has no rows":
        (lambda x, y: x @ y, (spread(0, 7), spread(7, 9))),
    "a contraction has nothing to add up":
        (lambda x, y: x @ y, (spread(4, 0), spread(0, 9))),
    "a reduction keeps no columns":
        (lambda x: x.sum(1), (spread(5, 3, 0),)),
    "the root lends its room to a value that another output is made of":
        (kept_for_two, (np.arange(25, dtype=np.int8).reshape(5, 5, 1) - 9,)),
    "an axis without elements is split":
        (lambda x: [x.sum((0, 1, 2)), (x + 1).reshape(0) * 2], (spread(0, 2, 0),)),
    "a reduction without results is summed up":
        (lambda x: x.unsqueeze(0).avg_pool(2, 2, 1).sum((0, 1, 2)), (spread(0, 1),)),
    "indices without elements are followed":
        (lambda x: x.sort(-1).sum((0, 1)), (spread(0, 3),)),
    "a number and a loop of one vector name the same address":
        (lambda x: x.take(np.array([0]), 0) + x, (np.arange(4, dtype=np.int8).reshape(4, 1),)),
    "an index doubles at every step":
        (reshapes(40), (spread(3, 4),)),
}  # fmt: skip


@pytest.mark.parametrize("executor", ["interpreter", *TARGETS])
@pytest.mark.parametrize("name", CASES)
def test_known_troublemakers(name: str, executor: str) -> None:
    build, arrays = CASES[name]
    inputs = [Tensor.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
    built = build(*inputs)
    outputs = built if isinstance(built, list) else [built]
    data = {f"x{i}": a for i, a in enumerate(arrays)}
    want = evaluate(Graph(tuple(t.node for t in outputs)), data)
    target = TARGETS.get(executor)
    graph, kernels = lower_graph(outputs, target)
    run = run_by_machine(target) if target else run_by_interpreter
    for g, w in zip(run_kernels(graph, kernels, data, {}, run), want, strict=True):
        _compare_closely(name, g, w, 1e-5)


@pytest.mark.parametrize("target_name", list(TARGETS)[1:] or list(TARGETS))
@pytest.mark.parametrize("seed", range(100, 115))
def test_random_programs_on_narrow_vectors(seed: int, target_name: str) -> None:
    """Plans run on the host's own width; this is how the others are executed."""
    rng = Random(seed)
    program = make_program(rng, 8)
    outputs, target = program.build(), TARGETS[target_name]
    asked = Graph(tuple(t.node for t in outputs))
    graph, kernels = lower_graph(outputs, target)
    for values in program.bindings(rng):
        data = _used(asked, program.data(values))
        bound = {v.name: values[v.name] for v in asked.variables}
        got = run_kernels(graph, kernels, data, bound, run_by_machine(target))
        noise = [program.noise[i] for i in program.outputs]
        _compare(str(program), got, evaluate(asked, data, bound), noise)


@pytest.mark.parametrize("target_name", TARGETS)
def test_softmax_reads_past_nothing_at_every_tail(target_name: str) -> None:
    target = TARGETS[target_name]
    for columns in (1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 65, 127, 129):
        x = spread(3, columns)
        t = Tensor.input("x", x.shape)
        graph, kernels = lower_graph([t.softmax(-1), t.layer_norm(), t.argmax(1)], target)
        got = run_kernels(graph, kernels, {"x": x}, {}, run_by_machine(target))
        want = run_kernels(graph, kernels, {"x": x}, {}, run_by_interpreter)
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g, w, rtol=2e-6, atol=1e-6)

"""Kernels of what has a late size, run by the interpreter in the order of the schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from semel import Tensor, Variable
from semel.devices.cpu.toolchain import host_target
from semel.ir.expr import evaluate
from semel.ir.graph import Graph
from semel.ir.late import with_counts
from semel.kernel.interpret import interpret
from semel.kernel.verify import verify_kernel
from semel.lower import lower_schedule
from semel.lower.lowered import nodes_of
from semel.ops import late
from semel.ops.outputs import copy_leaf_outputs
from semel.passes import run_passes
from semel.schedule.groups import build_schedule

Array = np.ndarray[Any, np.dtype[Any]]
N = Variable("n", 0, 40)


def by_kernels(tensors: list[Tensor], **inputs: Array) -> list[Array]:
    """The tensors by interpreted kernels, every one of which must find its sizes known."""
    graph, _ = with_counts(Graph(tuple(t.node for t in tensors)))
    schedule = build_schedule(copy_leaf_outputs(run_passes(graph, verify=True)))
    graph = schedule.graph
    env = {"n": next(iter(inputs.values())).shape[0]}
    memory = {node: np.ravel(inputs[node.attrs.name]) for node in graph.inputs}
    for lowered in lower_schedule(schedule, host_target()):
        assert verify_kernel(lowered.kernel) == []
        for node in nodes_of(lowered):
            if node not in memory and node.op.name == "constant":
                memory[node] = np.ravel(node.attrs.storage.array)
            elif node not in memory:
                size = evaluate(node.type.num_elements, env)
                memory[node] = np.zeros(size, node.type.dtype.numpy)
        values = {v.name: env[v.name] for v in lowered.kernel.variables}
        assert interpret(lowered.kernel, [memory[n] for n in nodes_of(lowered)], values) == []
        for node, variables in graph.counts.items():
            if node in lowered.group.outputs:
                env.update({v.name: int(memory[node][0]) for v in variables})
    return [
        memory[node].reshape([evaluate(d, env) for d in node.type.shape])
        for _, node in graph.results
    ]


@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("rows", [0, 1, 13, 40])
def test_positions_of_several_tiles(
    monkeypatch: pytest.MonkeyPatch, rows: int, density: float
) -> None:
    monkeypatch.setattr(late, "TILE", 7)
    mask = np.random.default_rng(rows).random((rows, 3)) < density
    m = Tensor.input("m", (N, 3), "bool")
    first, second = m.nonzero()
    got = by_kernels([first, second, m.argwhere()], m=mask)
    for one, want in zip(got, (*np.nonzero(mask), np.argwhere(mask)), strict=True):
        np.testing.assert_array_equal(one, want)


def test_sizes_of_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "TILE", 4)
    x = Tensor.input("x", (N,), "int64")
    positive = x[x > 0]
    even = positive[(positive % 2).eq(0)]
    ones = Tensor.ones(*even.shape)
    data = np.random.default_rng(0).integers(-9, 9, 40)
    above = data[data > 0]
    got = by_kernels([ones, even.unique(), even.sum()], x=data)
    assert got[0].shape == above[above % 2 == 0].shape
    np.testing.assert_array_equal(got[1], np.unique(above[above % 2 == 0]))
    assert got[2] == above[above % 2 == 0].sum()

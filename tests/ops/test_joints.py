"""Concatenations of more parts than a kernel has nests for are made in steps."""

from __future__ import annotations

import numpy as np
import pytest

import semel
from semel import Tensor, Variable
from semel.ir.graph import Graph, Node
from semel.ops.movement import MAX_PARTS
from semel.passes.joints import join_in_steps


def _parts(count: int, rows: int) -> list[np.ndarray]:
    rng = np.random.default_rng(count)
    return [rng.standard_normal((rows, 1 + k % 3), dtype=np.float32) for k in range(count)]


@pytest.mark.parametrize("count", [MAX_PARTS, MAX_PARTS + 1, 1000])
@pytest.mark.parametrize("axis", [0, 1])
def test_any_number_of_parts(count: int, axis: int) -> None:
    """Few kernels, which are few different ones, and the same elements."""
    parts = [np.ascontiguousarray(p if axis else p.T) for p in _parts(count, 3)]
    inputs = [Tensor.input(f"x{k}", p.shape) for k, p in enumerate(parts)]
    plan = (semel.concat(inputs, axis) * 2).prepare(threads=1)
    got = plan(**{f"x{k}": p for k, p in enumerate(parts)})
    np.testing.assert_array_equal(got, np.concatenate(parts, axis) * 2)
    assert len(plan.kernels) <= (1 if count <= MAX_PARTS else 8)


def test_steps_of_steps() -> None:
    """More parts than two levels hold: each has few, and all are there in their order."""
    parts = [Tensor.input(f"x{k}", (1,)) for k in range(MAX_PARTS * 64 + 1)]
    graph = join_in_steps(Graph((semel.concat(parts).node,), ("y",)))

    def leaves(node: Node) -> list[Node]:
        if node.op.name != "concat":
            return [node]
        assert len(node.inputs) <= MAX_PARTS
        return [leaf for operand in node.inputs for leaf in leaves(operand)]

    assert leaves(graph.outputs[0]) == [part.node for part in parts]


def test_sizes_of_the_run() -> None:
    n = Variable("n", 0, 5)
    x, y = Tensor.input("x", (n, 2)), Tensor.input("y", (2, 2))
    plan = semel.concat([x, y] * 100).prepare(threads=1)
    for size in (0, 1, 5):
        a, b = np.ones((size, 2), np.float32), np.zeros((2, 2), np.float32)
        np.testing.assert_array_equal(plan(x=a, y=b), np.concatenate([a, b] * 100))

"""Norms over groups of channels: one kernel that reads its input alone, in either order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from semel import Tensor, Variable
from semel.devices.cpu.toolchain import host_target
from semel.ir.expr import evaluate
from semel.kernel import ir
from semel.lower import lower_schedule
from semel.lower.lowered import Lowered
from semel.passes import run_passes
from semel.schedule.groups import build_schedule
from semel.tensor.realize import build_graph

RNG = np.random.default_rng(5)
N, H = Variable("n", 1, 4), Variable("h", 1, 12)


def first(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)


def lowered(y: Tensor) -> tuple[Lowered, ...]:
    return lower_schedule(build_schedule(run_passes(build_graph(y))), host_target())


NORMS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "plain": lambda x, w, b: x.group_norm(4),
    "with weights": lambda x, w, b: x.group_norm(4, w, b),
    "and an activation": lambda x, w, b: x.group_norm(4, w, b).silu(),
    "and a residual": lambda x, w, b: x.group_norm(4, w, b) + x,
    "of what is computed": lambda x, w, b: (x * w.reshape(24, 1, 1)).group_norm(4),
    "a group for each channel": lambda x, w, b: x.group_norm(24, w, b),
}


@pytest.mark.parametrize("size", [(2, 24, 9, 8), (N, 24, H, H + 1)], ids=["fixed", "variables"])
@pytest.mark.parametrize("name", NORMS)
def test_one_kernel_reads_the_input_and_stores_the_result(name: str, size: tuple[int, ...]) -> None:
    w, b = Tensor.input("w", (24,)), Tensor.input("b", (24,))
    (only,) = lowered(NORMS[name](Tensor.input("x", size), w, b))
    assert len(only.group.reduces) == 2
    assert only.kernel.num_outputs == 1
    loads = [v for s in ir.walk_statements(only.kernel.body) for v in _loads(s)]
    assert not any(v.data[0].access == "rw" for v in loads)


def _loads(statement: ir.Statement) -> list[ir.Value]:
    return [v for v in ir.walk_values(ir.statement_values(statement)) if v.op == "load"]


@pytest.mark.parametrize("turned", [False, True])
def test_channels_that_lie_last_are_added_as_columns(turned: bool) -> None:
    """No vector runs along the few channels of a group, nor across what lies side by side."""
    y = first(Tensor.input("x", (1, 24, 24, 64))).group_norm(8)
    kernels = lowered(y.permute(0, 2, 3, 1) if turned else y)
    large = [
        k.group for k in kernels if k.group.reduces and evaluate(k.kernel.flops, {}) >= 24 * 24 * 64
    ]
    assert len(large) == 2
    for group in large:
        (node,) = group.reduces
        assert node.attrs.axes == (1,)
        assert node.inputs[0].type.shape == (1, 576, 8, 8)


def expected(data: np.ndarray, groups: int, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    n, c, *space = data.shape
    x = data.astype(np.float64).reshape(n, groups, -1)
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    per_channel = (1, c, *(1 for _ in space))
    return x.reshape(data.shape) * w.reshape(per_channel) + b.reshape(per_channel)


def test_numbers_and_bits() -> None:
    w, b = RNG.standard_normal((2, 24)).astype(np.float32)
    data = (RNG.standard_normal((2, 24, 9, 10)) + 3).astype(np.float32)
    for groups in (1, 4, 24):
        exact = expected(data, groups, w, b)
        found = [
            Tensor.input("x", size).group_norm(groups, w, b).prepare(threads=threads)(x=data)
            for size, threads in ((data.shape, 1), (data.shape, 2), ((N, 24, H, H + 1), 2))
        ]
        np.testing.assert_allclose(found[0], exact, rtol=1e-4, atol=1e-5)
        assert all(each.tobytes() == found[0].tobytes() for each in found)
    last = data.transpose(0, 2, 3, 1).copy()
    exact = expected(data, 4, w, b)
    for turned in (False, True):
        results = []
        for size, threads in ((last.shape, 1), (last.shape, 2), ((N, H, H + 1, 24), 2)):
            y = first(Tensor.input("x", size)).group_norm(4, w, b)
            plan = (y.permute(0, 2, 3, 1) if turned else y).prepare(threads=threads)
            results.append(plan(x=last))
        wanted = exact.transpose(0, 2, 3, 1) if turned else exact
        np.testing.assert_allclose(results[0], wanted, rtol=1e-4, atol=1e-5)
        assert all(each.tobytes() == results[0].tobytes() for each in results)


def test_several_that_want_the_same_norm() -> None:
    """The walk in a finer shape, and others in the shape as it is: the same elements."""
    data = RNG.standard_normal((2, 24, 6, 5)).astype(np.float32)
    ones, zeros = np.ones(24, np.float32), np.zeros(24, np.float32)
    y = Tensor.input("x", data.shape).group_norm(4)
    for z, wanted in (
        (y + y.reshape(2, 4, 6, 30).reshape(2, 24, 6, 5), lambda e: 2 * e),
        (y.reshape(2, 4, 180) * 2, lambda e: 2 * e.reshape(2, 4, 180)),
        (y.flip(1), lambda e: e[:, ::-1]),
        (y.sum((2, 3)), lambda e: e.sum((2, 3))),
    ):
        found = z.prepare()(x=data)
        np.testing.assert_allclose(found, wanted(expected(data, 4, ones, zeros)), atol=2e-4)

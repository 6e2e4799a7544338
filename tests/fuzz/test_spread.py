"""Random graphs over two and three devices: the bits of one, whatever the lanes do meanwhile."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from tests.fuzz.long import long, search

import semel
from semel import ExecutionPlan, Tensor, Variable, config

pytestmark = pytest.mark.timeout(300)

DEVICES = ("cpu", "cpu:0", "cpu:1")
N = Variable("n", 1, 12)
RNG = np.random.default_rng(0)
W = [RNG.standard_normal((8, 8), dtype=np.float32) / 3 for _ in range(3)]
ARRAYS = [RNG.standard_normal((12, 8), dtype=np.float32) for _ in range(4)]
BATCH = 50


def draw(seed: int, is_spread: bool) -> list[Tensor]:
    """The tensors of a seed, on several devices or with every move to one."""
    rng = Random(seed)
    used = rng.sample(DEVICES, rng.choice((2, 2, 3)))

    def name(device: str) -> str:
        return device if is_spread else "cpu"

    def at(value: tuple[Tensor, str], device: str) -> Tensor:
        return value[0] if value[1] == device else value[0].to(name(device))

    values: list[tuple[Tensor, str]] = []
    for i in range(rng.choice((1, 2))):
        home = rng.choice(used)
        values.append((Tensor.input(f"x{i}", (N, 8), device=name(home)), home))
    for _ in range(rng.randint(2, 9)):
        device = rng.choice(used)
        x = at(rng.choice(values[-4:]), device)
        match rng.randrange(8):
            case 0 | 1:
                y = x @ Tensor(W[rng.randrange(3)])
            case 2:
                y = x + at(rng.choice(values), device)
            case 3:
                y = x * at(rng.choice(values), device)
            case 4:
                y = x.relu()
            case 5:
                y = x.softmax(-1)
            case 6:
                y = x - x.sum(-1, keepdims=True)
            case _:
                y = x * semel.arange(8).cast("float32")
        values.append((y, device))
    tensors = [y for y, _ in values]
    return list(dict.fromkeys([tensors[-1], rng.choice(tensors), rng.choice(tensors)]))


def prepare(tensors: list[Tensor], seed: int, **options: Any) -> ExecutionPlan:
    return semel.prepare(tensors, fusion=seed % 16 == 0, **options)


def results(plan: ExecutionPlan, seed: int, turn: int) -> list[Any]:
    rows = 1 + (seed + 5 * turn) % 12
    found = plan(**{name: ARRAYS[i + turn][:rows] for i, name in enumerate(plan.inputs)})
    return list(found) if isinstance(found, tuple) else [found]


def num_fused_softmax(plan: ExecutionPlan) -> int:
    """How many softmaxes are one kernel with the matmul that reads them."""
    return sum("attention" in kernel.kernel.name for kernel in plan.prepared_kernels)


def check(seed: int) -> None:
    one = prepare(draw(seed, is_spread=False), seed)
    with config.override(debug=frozenset({"jitter"})):
        several = prepare(draw(seed, is_spread=True), seed)
        # A softmax that others read too is not fused with its matmul. On several devices each may
        # compute one of its own: another graph, whose last bits are others (1 of 40,000 seeds).
        rtol = 0 if num_fused_softmax(one) == num_fused_softmax(several) else 1e-5
        for turn in range(2):
            for a, b in zip(results(one, seed, turn), results(several, seed, turn), strict=True):
                np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol, err_msg=f"seed {seed}")


@pytest.mark.parametrize("seed", [5070336, 5075458])
def test_a_softmax_of_each_device_is_a_graph_of_its_own(seed: int) -> None:
    plans = [prepare(draw(seed, is_spread=is_spread), seed) for is_spread in (False, True)]
    assert [num_fused_softmax(plan) for plan in plans] == [0, 1]
    check(seed)


@pytest.mark.parametrize("batch", range(20))
def test_several_devices_have_the_bits_of_one(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        check(seed)


@long
def test_new_graphs_have_the_bits_of_one_device() -> None:
    search(check)

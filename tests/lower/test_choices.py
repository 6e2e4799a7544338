"""Every choice that lowering has gives the bits of the default, on every vector width."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from tests.codegen.lowering import Run, lower_graph, run_kernels
from tests.codegen.machine import Native, runnable_targets

from semel import Tensor, Variable
from semel.ir.target import Target
from semel.kernel.ir import Kernel
from semel.kernel.text import format_kernel
from semel.kernel.verify import verify_kernel
from semel.lower import lower_group
from semel.lower.choices import Choice, candidate_choices, default_choice
from semel.lower.lowered import Lowered

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(11)
N = Variable("n", 0, 100)


def random(*shape: int) -> Array:
    return RNG.standard_normal(shape)


def weight(rows: int, columns: int, dtype: str) -> Tensor:
    return Tensor(random(rows, columns).astype(np.float32)).cast(dtype)


FUNCTIONS: dict[str, Callable[[Tensor], list[Tensor]]] = {
    "matmul": lambda x: [x @ weight(40, 100, x.dtype.name)],
    "matmul with an epilogue": lambda x: [(x @ weight(40, 70, x.dtype.name) + 1).gelu()],
    "gram": lambda x: [x @ x.T],
    "transposed": lambda x: [x.T @ x],
    "batched": lambda x: [x.reshape(x.shape[0], 4, 10).permute(1, 0, 2) @ random_batch(x)],
    "two outputs": lambda x: two_outputs(x @ weight(40, 33, x.dtype.name)),
    "elementwise": lambda x: [(x * 3 + 1).exp().tanh()],
    "transposing": lambda x: [x.T + 1],
}


def random_batch(x: Tensor) -> Tensor:
    return Tensor(random(4, 10, 50).astype(np.float32)).cast(x.dtype.name)


def two_outputs(y: Tensor) -> list[Tensor]:
    return [y, y.relu()]


HOST, *NARROWER = runnable_targets()
CASES = [
    *((name, "float32", HOST) for name in FUNCTIONS),
    *(("two outputs", dtype, HOST) for dtype in ("float64", "float16", "bfloat16", "int32")),
    *(("two outputs", "float32", target) for target in NARROWER),
]


@pytest.mark.parametrize(("name", "dtype", "target"), CASES)
def test_choices_agree_bit_for_bit(name: str, dtype: str, target: str) -> None:
    machine = runnable_targets()[target]
    x = Tensor.input("x", (N, 40), dtype)
    graph, kernels = lower_graph(FUNCTIONS[name](x), machine)
    data = {rows: random(rows, 40).astype(x.dtype.numpy) for rows in (0, 3, 51)}
    run = each_compiled_once(machine)

    def bits(chosen: Sequence[Lowered]) -> list[bytes]:
        results = [run_kernels(graph, chosen, {"x": a}, {"n": n}, run) for n, a in data.items()]
        return [array.tobytes() for arrays in results for array in arrays]

    expected = bits(kernels)
    for position, lowered in enumerate(kernels):
        for choice in candidate_choices(lowered.group, machine)[1:]:
            other = lower_group(lowered.group, machine, choice)
            verify_kernel(other.kernel)
            assert other.args == lowered.args
            assert bits([*kernels[:position], other, *kernels[position + 1 :]]) == expected, choice


def each_compiled_once(target: Target) -> Run:
    known: dict[str, Native] = {}

    def run(kernel: Kernel, buffers: list[Array], values: Mapping[str, int]) -> Any:
        text = format_kernel(kernel)
        if text not in known:
            known[text] = Native(kernel, target)
        return known[text].run(buffers, values)

    return run


def test_candidates_are_few_distinct_and_start_with_the_default() -> None:
    for machine in runnable_targets().values():
        _, (lowered,) = lower_graph(
            [Tensor.input("x", (N, 40)) @ weight(40, 99, "float32")], machine
        )
        found = candidate_choices(lowered.group, machine)
        assert found[0] == default_choice(lowered.group, machine)
        assert 3 <= len(found) <= 8
        assert len({c.name for c in found}) == len(found)
        assert len({c.tile.lanes for c in found if c.tile is not None}) == 1


def test_the_default_named_or_not_is_one_kernel() -> None:
    _, (lowered,) = lower_graph([Tensor.input("x", (N, 40)) @ weight(40, 99, "float32")])
    machine = next(iter(runnable_targets().values()))
    again = lower_group(lowered.group, machine, default_choice(lowered.group, machine))
    assert again.kernel == lowered.kernel


@pytest.mark.parametrize("outputs", ["sum", "attention", "nothing", "sorted"])
def test_where_the_order_of_a_sum_would_change_there_is_no_choice(outputs: str) -> None:
    x = Tensor.input("x", (N, 40))
    heads = x.reshape(N, 5, 8).permute(1, 0, 2)
    made = {
        "sum": lambda: x.sum(-1),
        "attention": lambda: heads.scaled_dot_product_attention(heads, heads),
        "nothing": lambda: x[0:0],
        "sorted": lambda: x.sort(-1)[0],
    }[outputs]()
    machine = next(iter(runnable_targets().values()))
    for lowered in lower_graph([made])[1]:
        if lowered.group.reduces or lowered.group.kind == "opaque" or outputs == "nothing":
            assert candidate_choices(lowered.group, machine) == (Choice(),)

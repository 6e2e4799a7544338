"""One kernel on buffers of its own, to be timed.

    Lowered x values of the variables x threads --make_trial--> Trial (an ExecutionPlan inside)

A trial is a program of one op, so that it runs the way it will run: by the native runner, on
as many threads. All variables are fixed to the values it is measured at. What the kernel
reads is shared by the trials of one group: constants as they are, numbers around 0
for floats, zeros for the rest, which is a legal index everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from semel.ir.expr import Variable, evaluate
from semel.ir.graph import Node
from semel.ir.types import TensorType
from semel.lower.lowered import Lowered, nodes_of
from semel.plan.instantiate import instantiate
from semel.plan.plan import ExecutionPlan
from semel.plan.program import PlanIO, PlanVariable, Program, ProgramValue
from semel.plan.rows import PreparedKernel
from semel.plan.weights import Weight
from semel.runtime.kernel import CachedKernel

_SEED = 20
_PATTERN = 1 << 14  # numbers drawn; larger arrays repeat them

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Trial:
    """A candidate that is ready to run, under the name of its choice."""

    name: str
    plan: ExecutionPlan


def make_trial(
    name: str,
    lowered: Lowered,
    kernel: CachedKernel,
    data: Mapping[Node, Array],
    values: Mapping[str, int],
    threads: int,
    device: str,
) -> Trial:
    """A plan that runs `kernel` on `data`; its outputs are its own."""
    nodes = nodes_of(lowered)
    outputs = [n for n in nodes if n not in data]
    variables = [_fixed(v, values) for v in lowered.kernel.variables]
    tensors = tuple(
        ProgramValue(
            n.op.name,
            _fixed_type(n, values),
            "constant" if n in data else "io",
            Weight(data[n]) if n in data else None,
        )
        for n in nodes
    )
    results = tuple(nodes.index(n) for n in outputs)
    program = Program(
        values=tensors,
        rows=(PreparedKernel.call(0, kernel, range(len(nodes)), variables, device=device),),
        inputs=(),
        outputs=tuple(PlanIO(f"output{k}", i, tensors[i].type) for k, i in enumerate(results)),
        results=results,
        variables=tuple(PlanVariable(v) for v in variables),
        device=device,
    )
    return Trial(name, instantiate(program, threads=threads))


def make_data(nodes: Sequence[Node], values: Mapping[str, int]) -> dict[Node, Array]:
    """An array for each node that a kernel reads, at these values of the variables."""
    rng = np.random.default_rng(_SEED)
    pattern = rng.uniform(-1, 1, _PATTERN).astype(np.float32)
    return {node: _array(node, _fixed_type(node, values), pattern) for node in nodes}


def time_runs(trial: Trial, runs: int) -> float:
    """Seconds of the fastest of `runs` executes, after one that does not count."""
    execute, clock = trial.plan.execute, time.perf_counter_ns
    execute()
    best = 1 << 62
    for _ in range(runs):
        start = clock()
        execute()
        best = min(best, clock() - start)
    return best / 1e9


def _fixed(variable: Variable, values: Mapping[str, int]) -> Variable:
    value = values[variable.name]
    return Variable(variable.name, value, value)


def _fixed_type(node: Node, values: Mapping[str, int]) -> TensorType:
    return TensorType(tuple(evaluate(d, values) for d in node.type.shape), node.type.dtype)


def _array(node: Node, kind: TensorType, pattern: Array) -> Array:
    if node.op.name in ("constant", "param") and not node.attrs.storage.is_missing:
        array: Array = node.attrs.storage.array
        return array
    shape = tuple(evaluate(d, {}) for d in kind.shape)
    if kind.dtype.kind != "f":
        return np.zeros(shape, kind.dtype.numpy)
    return np.resize(pattern.astype(kind.dtype.numpy), shape)

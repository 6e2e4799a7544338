"""What must hold for every program: all executors agree.

Program --check_program--> nothing, or an AssertionError that says what differs
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
from tests.codegen.lowering import run_by_interpreter, run_kernels
from tests.fuzz.programs import TOLERANCE, Program

import semel
from semel import Tensor, config
from semel.compiler import programs_on_disk
from semel.compiler.programs import forget_programs
from semel.devices.cpu.toolchain import host_target
from semel.ir.expr import evaluate as evaluate_dim
from semel.ir.graph import Graph
from semel.ir.types import as_dtype
from semel.lower import lower_schedule
from semel.ops.evaluate import evaluate
from semel.ops.outputs import copy_leaf_outputs
from semel.passes import run_passes
from semel.plan.plan import ExecutionPlan
from semel.schedule.groups import build_schedule

Arrays = Sequence[np.ndarray]
#: The interpreter takes microseconds per element, so only small programs go through it.
INTERPRET_ELEMENTS = 600


def check_program(program: Program, rng: Random, *, interpreted: bool = True) -> None:
    """Run everywhere and compare; the message of a failure has the program in it."""
    try:
        _check(program, rng, interpreted)
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}\n{program}") from error


def _check(program: Program, rng: Random, interpreted: bool) -> None:
    graph = _graph(program.build())
    noise = [program.noise[i] for i in program.outputs]
    with config.override(debug=frozenset({"poison"}), verify=True):
        fused = semel.prepare(program.build(), threads=1)
        with config.override(debug=frozenset({"poison", "jitter"})):
            shared = semel.prepare(program.build(), threads=2)
        with config.override(arena=False):
            apart = semel.prepare(program.build(), threads=1)
        single = semel.prepare(program.build(), threads=1, fusion=False)
        with patch.object(programs_on_disk, "MIN_NODES", 1):
            for _ in range(2):  # kept, and found
                forget_programs()
                found = semel.prepare(program.build(), threads=1)
        compiled = fused.compile_count  # 0 for a program that was drawn before
        bindings = program.bindings(rng)
        for values in [*bindings, bindings[0]]:
            data = _used(graph, program.data(values))
            bound = {v.name: values[v.name] for v in graph.variables}
            want = evaluate(graph, data, bound)
            got = _run(fused, data, bound)
            _compare("fused", got, want, noise, program.slack)
            unfused = _run(single, data, bound)
            _compare("not fused", unfused, want, noise, program.slack)
            _same_numbers("not fused", unfused, got)
            _same_bits("the second run", _run(fused, data, bound), got)
            _same_bits("found on disk", _run(found, data, bound), got)
            _same_bits("two threads", _run(shared, data, bound), got)
            _same_bits("no shared bytes", _run(apart, data, bound), got)
            if program.variables:
                fixed_graph = program.build(values)
                fixed = _run(semel.prepare(fixed_graph, threads=1), data, {})
                _compare("fixed sizes", fixed, want, noise, program.slack)
                if not _shrinks_to_one(graph, bound):
                    _same_bits("fixed sizes", fixed, got)
            if interpreted and _size(graph, bound) <= INTERPRET_ELEMENTS:
                for fusion in (True, False):
                    result = run_interpreted(graph, data, bound, fusion=fusion)
                    _compare(f"interpreted, fusion {fusion}", result, want, noise, program.slack)
        assert fused.compile_count == compiled


def check_known(program: Program, rng: Random) -> None:
    """Inputs, constants and params of the same data: the same bits, fused or not."""
    values = program.bindings(rng)[-1]
    data = program.data(values)
    graph = _graph(program.build(values))
    want = _run(semel.prepare(program.build(values), threads=1), _used(graph, data), {})
    some = {name: array for name, array in data.items() if rng.random() < 0.6}
    kinds = {
        "constants": {name: Tensor(array) for name, array in data.items()},
        "params": {name: Tensor.param(name, array) for name, array in data.items()},
        "some constants": {name: Tensor(array) for name, array in some.items()},
    }
    for what, known in kinds.items():
        built = program.build(values, known)
        rest = _used(_graph(built), data)
        for fusion in (True, False):
            plan = semel.prepare(program.build(values, known), threads=1, fusion=fusion)
            message = f"{what}, fusion {fusion}\n{program}"
            _same_numbers(message, _run(plan, rest, {}), want)


def _graph(tensors: Sequence[Tensor]) -> Graph:
    return Graph(tuple(t.node for t in tensors))


def _shrinks_to_one(graph: Graph, bound: Mapping[str, int]) -> bool:
    """A size fixed at 1 leaves another axis innermost, along which sums add in lanes."""
    dims = {d for node in graph.nodes for d in node.type.shape if not isinstance(d, int)}
    return any(evaluate_dim(d, bound) == 1 for d in dims)


def _used(graph: Graph, data: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = {node.attrs.name for node in graph.inputs}
    return {name: array for name, array in data.items() if name in names}


def _run(plan: ExecutionPlan, data: Mapping[str, Any], bound: Mapping[str, int]) -> Arrays:
    unknown = {name: value for name, value in bound.items() if name in plan.variables}
    for name, array in data.items():
        node_buffer = plan.buffers[plan.engine.state.inputs[name].index]
        node_buffer.copyin(array)
    plan.execute_with_vars(unknown)
    return [buffer.numpy() for buffer in plan.output_buffers]


def _size(graph: Graph, bound: Mapping[str, int]) -> int:
    return sum(evaluate_dim(node.type.num_elements, bound) for node in graph.nodes)


def _same_bits(what: str, got: Arrays, want: Arrays) -> None:
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        assert g.shape == w.shape, f"{what}: output {i} has shape {g.shape}, not {w.shape}"
        equal = g.tobytes() == w.tobytes()
        assert equal, f"{what}: output {i} has other bits:\n{g}\nand\n{w}"


def _same_numbers(what: str, got: Arrays, want: Arrays) -> None:
    """The same bits, but for the sign and the payload of a NaN, which are the processor's."""
    _same_bits(what, [_one_nan(g) for g in got], [_one_nan(w) for w in want])


def _one_nan(array: np.ndarray) -> np.ndarray:
    if not as_dtype(array.dtype).is_float:
        return array
    return np.where(np.isnan(array), np.asarray(np.nan, array.dtype), array)


def _compare(
    what: str, got: Arrays, want: Arrays, noise: Sequence[str | None], slack: float = 1.0
) -> None:
    for i, (g, w, n) in enumerate(zip(got, want, noise, strict=True)):
        assert g.dtype == w.dtype and g.shape == w.shape, (
            f"{what}: output {i} is {g.dtype}{g.shape}, not {w.dtype}{w.shape}"
        )
        if n is None:
            _compare_exactly(f"{what}: output {i}", g, w)
        else:
            _compare_closely(f"{what}: output {i} ({n})", g, w, slack * TOLERANCE[n])


def _compare_exactly(what: str, got: np.ndarray, want: np.ndarray) -> None:
    if as_dtype(want.dtype).is_float:
        got, want = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(got, want, err_msg=what)


def _compare_closely(what: str, got: np.ndarray, want: np.ndarray, rtol: float) -> None:
    got, want = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(want)
    largest = float(np.max(np.abs(want[finite]), initial=1.0))
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * largest, err_msg=what)


def run_interpreted(
    graph: Graph, data: Mapping[str, np.ndarray], bound: Mapping[str, int], *, fusion: bool = True
) -> Arrays:
    """The kernels of a graph, run one after another by the interpreter.

    It raises where the machine would silently read outside a buffer.
    """
    graph = copy_leaf_outputs(run_passes(graph, verify=True))
    schedule = build_schedule(graph, fusion=fusion)
    kernels = lower_schedule(schedule, host_target())
    return run_kernels(schedule.graph, kernels, data, bound, run_by_interpreter)

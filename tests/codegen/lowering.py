"""Tensors to lowered kernels, and kernels run one after another without a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from tests.codegen.machine import Array, Native

from semel import Tensor
from semel.compiler.once import store_known
from semel.devices import choose_target
from semel.ir.expr import evaluate
from semel.ir.graph import Graph, Node
from semel.ir.target import Target
from semel.kernel.interpret import interpret
from semel.kernel.ir import Kernel
from semel.lower import lower_schedule
from semel.lower.lowered import Argument, Arm, LoopRegion, Lowered, Region, regions_around
from semel.lower.register_tiles import panel_width
from semel.ops.outputs import copy_leaf_outputs
from semel.ops.stored import WEIGHTS
from semel.passes import all_passes, run_passes
from semel.schedule.group import Schedule
from semel.schedule.groups import build_schedule

Run = Callable[[Kernel, list[Array], Mapping[str, int]], Any]


def lower_graph(
    outputs: Sequence[Tensor], target: Target | None = None, *, fusion: bool = True
) -> tuple[Graph, tuple[Lowered, ...]]:
    """The graph as it was scheduled, and its kernels."""
    graph = copy_leaf_outputs(run_passes(Graph(tuple(t.node for t in outputs)), verify=True))
    schedule = build_schedule(graph, fusion=fusion)
    return schedule.graph, lower_schedule(schedule, target or choose_target("cpu"))


def lower_with_weights(
    outputs: Sequence[Tensor], target: Target
) -> tuple[Graph, tuple[Lowered, ...]]:
    """The same as a plan has it: weights in the order in which the target's kernels read them."""
    panel = panel_width(target)

    def scheduled(graph: Graph) -> Schedule:
        return build_schedule(run_passes(graph, all_passes(target, panel), True), panel=panel)

    schedule = scheduled(Graph(tuple(t.node for t in outputs)))
    known = store_known(schedule)
    if known is not schedule.graph:
        schedule = scheduled(known)
    return schedule.graph, lower_schedule(schedule, target)


def run_kernels(
    graph: Graph,
    kernels: Sequence[Lowered],
    data: Mapping[str, Array],
    values: Mapping[str, int],
    run: Run,
) -> list[Array]:
    """The outputs, with `run` called for every kernel; fresh memory is poison."""
    memory: dict[Argument, Array] = {}
    for node in graph.nodes:
        if node.op.name == "input":
            memory[node] = np.array(data[node.attrs.name], order="C").reshape(-1)
    for arg in (arg for lowered in kernels for arg in _used(lowered)):
        if isinstance(arg, Node) and arg.op.name in WEIGHTS:
            memory[arg] = np.array(arg.op.reference(arg, (), {}), order="C").reshape(-1)
        elif arg not in memory:
            size = evaluate(arg.type.num_elements, values)
            memory[arg] = _poison(size, arg.type.dtype.numpy)
    for lowered, bound in in_order(kernels, values, memory):
        assert not run(lowered.kernel, [memory[a] for a in lowered.args], bound)
    shapes = [tuple(evaluate(d, values) for d in n.type.shape) for n in graph.outputs]
    return [memory[n].reshape(s) for n, s in zip(graph.outputs, shapes, strict=True)]


def _used(lowered: Lowered) -> Iterator[Argument]:
    """What a kernel reads and writes, and what decides whether it runs."""
    yield from lowered.args
    for region in regions_around(lowered.region):
        if isinstance(region, Arm):
            yield region.branch.condition


def in_order(
    kernels: Sequence[Lowered],
    values: Mapping[str, int],
    memory: Mapping[Argument, Array],
    around: Region | None = None,
) -> Iterator[tuple[Lowered, Mapping[str, int]]]:
    """The kernels as they run, with their variables: those of a loop in every iteration, those
    of the arm of a branch that `memory` chooses."""
    for region, several in groupby(kernels, key=lambda it: _below(it.region, around)):
        inside = list(several)
        match region:
            case None:
                yield from ((lowered, values) for lowered in inside)
            case LoopRegion():
                for step in range(evaluate(region.trip, values)):
                    if region.condition is not None and not memory[region.condition][0]:
                        break
                    bound = {**values, region.counter.name: step}
                    yield from in_order(inside, bound, memory, region)
            case Arm():
                if bool(memory[region.branch.condition][0]) == region.is_then:
                    yield from in_order(inside, values, memory, region)


def _below(region: Region | None, around: Region | None) -> Region | None:
    """The region right below `around` that holds `region`; None for `around` itself."""
    chain = [*regions_around(region), None]
    place = chain.index(around)
    return chain[place - 1] if place else None


def _poison(size: int, dtype: Any) -> Array:
    return np.frombuffer(bytearray(b"\xff" * (size * np.dtype(dtype).itemsize)), dtype)


def run_by_interpreter(kernel: Kernel, buffers: list[Array], values: Mapping[str, int]) -> Any:
    return interpret(kernel, buffers, values)


def run_by_machine(target: Target) -> Run:
    def run(kernel: Kernel, buffers: list[Array], values: Mapping[str, int]) -> Any:
        return Native(kernel, target).run(buffers, values)

    return run

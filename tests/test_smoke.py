"""One graph through every stage, each product against the NumPy reference: some seconds.

If this fails, start here: the first stage whose test fails is the one to look at.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from semel import Tensor, Variable
from semel.codegen.emit import emit_kernel
from semel.compiler.pipeline import compile_graph, prepare_graph
from semel.devices.cpu.elf import load_object
from semel.devices.cpu.toolchain import compile_ir, host_target
from semel.ir import expr
from semel.ir.graph import Graph, Node
from semel.ir.text import format_graph, parse_graph
from semel.kernel.interpret import interpret
from semel.kernel.text import format_kernel
from semel.kernel.verify import verify_kernel
from semel.lower import lower_schedule
from semel.lower.lowered import Lowered, nodes_of
from semel.ops.evaluate import evaluate
from semel.passes import run_passes
from semel.plan.instantiate import instantiate
from semel.schedule.group import Schedule
from semel.schedule.groups import build_schedule
from semel.tensor.realize import build_graph

WIDTH = 24
LENGTHS = (1, 5, 17)


@cache
def graph() -> Graph:
    """Elementwise, broadcast, reduction, contraction, movement and gather over a variable."""
    rng = np.random.default_rng(3)
    n = Variable("n", 1, 32)
    x = Tensor.input("x", (n, WIDTH))
    picks = Tensor.input("picks", (n,), "int64")
    w = Tensor(rng.standard_normal((WIDTH, WIDTH), dtype=np.float32))
    y = (x.layer_norm() @ w + 1.0).gelu()
    z = y.take(picks, 0)[:, ::-1].softmax(-1)
    return build_graph({"y": y, "z": z, "total": z.sum(0)})


def inputs(n: int) -> dict[str, Any]:
    rng = np.random.default_rng(n)
    return {
        "x": rng.standard_normal((n, WIDTH), dtype=np.float32),
        "picks": rng.integers(0, n, n),
    }


def assert_close(found: list[Any], wanted: list[Any]) -> None:
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@cache
def schedule() -> Schedule:
    return build_schedule(run_passes(graph(), verify=True))


@cache
def kernels() -> tuple[Lowered, ...]:
    return lower_schedule(schedule(), host_target())


def test_the_graph_prints_and_reads_back_as_itself() -> None:
    text = format_graph(graph())
    again = parse_graph(text)
    assert format_graph(again) == text
    assert [node.type for node in again.outputs] == [node.type for node in graph().outputs]


@pytest.mark.parametrize("n", LENGTHS)
def test_passes_keep_the_meaning(n: int) -> None:
    assert_close(
        evaluate(run_passes(graph(), verify=True), inputs(n)), evaluate(graph(), inputs(n))
    )


def test_the_schedule_fuses_and_says_why_it_does_not() -> None:
    fused = len(schedule().groups)
    assert fused <= 6
    assert fused < len(build_schedule(schedule().graph, fusion=False).groups)
    assert len(schedule().log) >= fused - 1


@pytest.mark.parametrize("n", LENGTHS)
def test_the_interpreter_of_kernels_agrees(n: int) -> None:
    values = inputs(n)
    memory: dict[Node, Any] = {}
    for node in schedule().graph.nodes:
        if node.op.name == "input":
            memory[node] = values[node.attrs.name].reshape(-1).copy()
        elif node.op.name == "constant":
            memory[node] = node.attrs.storage.array.reshape(-1).copy()
    for lowered in kernels():
        verify_kernel(lowered.kernel)
        for node in nodes_of(lowered):
            size = expr.evaluate(node.type.num_elements, {"n": n})
            memory.setdefault(node, np.zeros(size, node.type.dtype.numpy))
        assert not interpret(lowered.kernel, [memory[a] for a in nodes_of(lowered)], {"n": n})
    wanted = evaluate(graph(), values)
    outputs = schedule().graph.outputs
    found = [memory[o].reshape(w.shape) for o, w in zip(outputs, wanted, strict=True)]
    assert_close(found, wanted)


def test_kernels_print_and_become_native_code() -> None:
    target = host_target()
    for lowered in kernels():
        assert "tiles" in format_kernel(lowered.kernel)
        code = emit_kernel(lowered.kernel, target, "smoke")
        assert "define" in code
        assert load_object(compile_ir(code, target)).address("smoke") > 0


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("fusion", [True, False])
def test_the_plan_agrees_at_every_length(threads: int, fusion: bool) -> None:
    plan = prepare_graph(graph(), threads=threads, fusion=fusion)
    for n in (*LENGTHS, *LENGTHS):
        assert_close(list(plan(**inputs(n))), evaluate(graph(), inputs(n)))
    assert plan.compile_count == 1


def test_a_program_gives_any_number_of_plans() -> None:
    program = compile_graph(graph(), host_target())
    assert set(program.stage_seconds) >= {"graph", "schedule", "kernels", "artefacts"}
    first, second = instantiate(program), instantiate(program)
    before = first(**inputs(5))
    second(**inputs(17))
    assert_close([b.numpy() for b in first.output_buffers], list(before))

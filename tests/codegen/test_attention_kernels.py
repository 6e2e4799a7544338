"""Attention's kernels on every vector width: as the interpreter says, and inside their buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.codegen.lowering import lower_graph, run_by_interpreter, run_by_machine, run_kernels
from tests.codegen.machine import Array, every_target, runnable_targets
from tests.codegen.test_contract_assembly import TARGETS
from tests.codegen.test_stray_accesses import run

from semel import Tensor, Variable
from semel.codegen.emit import emit_kernel
from semel.devices.cpu.toolchain import compile_ir
from semel.ir.expr import Index
from semel.ir.graph import Graph
from semel.ir.target import target_for
from semel.ir.types import as_dtype
from semel.kernel.ir import Loop, statement_values, walk_statements, walk_values
from semel.kernel.verify import verify_kernel
from semel.ops.evaluate import evaluate

Case = tuple[Tensor, dict[str, Array], dict[str, int]]


def data(seed: int, *shape: int, dtype: str = "float32") -> Array:
    drawn = np.random.default_rng(seed).standard_normal(shape)
    return drawn.astype(as_dtype(dtype).numpy)


def attend(q: Array, k: Array, v: Array, **options: Any) -> Case:
    arrays = {"q": q, "k": k, "v": v}
    arrays.update({n: x for n, x in options.items() if isinstance(x, np.ndarray)})
    inputs = {n: Tensor.input(n, x.shape, x.dtype) for n, x in arrays.items()}
    given = {n: inputs.get(n, x) for n, x in options.items()}
    query, key, value = (inputs[n] for n in "qkv")
    return query.scaled_dot_product_attention(key, value, **given), arrays, {}


def symbolic() -> Case:
    s, t = Variable("s", 1, 64), Variable("t", 1, 256)
    q, k, v = (Tensor.input(n, (2, d, 17)) for n, d in zip("qkv", (s, t, t), strict=True))
    arrays = {"q": data(1, 2, 3, 17), "k": data(2, 2, 66, 17), "v": data(3, 2, 66, 17)}
    return q.scaled_dot_product_attention(k, v, is_causal=True), arrays, {"s": 3, "t": 66}


def concatenated() -> Case:
    n = Variable("n", 1, 256)
    old, new = Tensor.input("old", (2, n, 20)), Tensor.input("new", (2, 1, 20))
    both = Tensor.concat([old, new], 1)
    arrays = {"q": data(1, 2, 1, 20), "old": data(2, 2, 70, 20), "new": data(3, 2, 1, 20)}
    return Tensor.input("q", (2, 1, 20)).scaled_dot_product_attention(both, both), arrays, {"n": 70}


def paged() -> Case:
    options = {"key_lengths": np.array([21, 3]), "block_table": np.array([[0, 5, 2], [4, 9, 9]])}
    return attend(data(1, 2, 4, 2, 8), data(2, 6, 8, 2, 8), data(3, 6, 8, 2, 8), **options)


def turned_storage() -> Case:
    k = Tensor.input("k", (2, 16, 40))
    q, v = Tensor.input("q", (2, 3, 16)), Tensor.input("v", (2, 40, 16))
    arrays = {"q": data(1, 2, 3, 16), "k": data(2, 2, 16, 40), "v": data(3, 2, 40, 16)}
    return q.scaled_dot_product_attention(k.mT, v), arrays, {}


CASES: dict[str, Callable[[], Case]] = {
    "plain": lambda: attend(data(1, 1, 5, 16), data(2, 1, 70, 16), data(3, 1, 70, 20)),
    "causal": lambda: attend(*(data(i, 1, 15, 18) for i in range(3)), is_causal=True),
    "window": lambda: attend(data(1, 3, 4), data(2, 70, 4), data(3, 70, 4), window=(66, 1)),
    "heads": lambda: attend(data(1, 6, 2, 16), data(2, 2, 20, 16), data(3, 2, 20, 16)),
    "mask": lambda: attend(*(data(i, 2, 13, 16) for i in range(3)), mask=data(4, 13, 13) > 0),
    "lengths": lambda: attend(
        *(data(i, 3, 2, 5, 16) for i in range(3)), key_lengths=np.array([5, 0, 2])
    ),
    "half": lambda: attend(*(data(i, 2, 9, 16, dtype="float16") for i in range(3))),
    "double": lambda: attend(*(data(i, 2, 9, 19, dtype="float64") for i in range(3))),
    "one": lambda: attend(data(1, 1, 1, 1), data(2, 1, 1, 1), data(3, 1, 1, 1)),
    "symbolic": symbolic,
    "concatenated": concatenated,
    "paged": paged,
    "turned_storage": turned_storage,
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("width", every_target())
def test_the_machine_does_what_the_interpreter_says(name: str, width: str) -> None:
    tensor, arrays, values = CASES[name]()
    target = every_target()[width]
    graph, kernels = lower_graph([tensor], target)
    assert [found for k in kernels for found in verify_kernel(k.kernel)] == []
    (said,) = run_kernels(graph, kernels, arrays, values, run_by_interpreter)
    (done,) = run_kernels(graph, kernels, arrays, values, run_by_machine(target))
    near = 2e-3 if name == "half" else 2e-6  # two roundings to float16 of values up to 2
    # The interpreter adds the weights of a row one after the other, the machine lane by lane.
    np.testing.assert_allclose(done.astype(np.float64), said.astype(np.float64), atol=near)
    reference = evaluate(Graph((tensor.node,)), arrays)[0].astype(np.float64)
    np.testing.assert_allclose(done.astype(np.float64), reference, atol=near)


@pytest.mark.parametrize("name", ["plain", "causal", "half", "symbolic", "concatenated"])
def test_rows_of_keys_are_turned_and_not_gathered(name: str) -> None:
    tensor, _, _ = CASES[name]()
    for target in runnable_targets().values():
        _, (lowered,) = lower_graph([tensor], target)
        depth = lowered.group.scores.inputs[0].type.shape[-1]  # type: ignore[union-attr]
        text = emit_kernel(lowered.kernel, target, "attention")
        lanes = target.vector_bits // 32
        assert "shufflevector" in text
        assert ("gather" in text) == (depth % lanes != 0)  # what is left of a row


@pytest.mark.parametrize(
    ("name", "depth"), [("heads", 16), ("lengths", 16), ("turned_storage", 16)]
)
def test_scores_add_over_the_depth(name: str, depth: int) -> None:
    tensor, _, _ = CASES[name]()
    _, (lowered,) = lower_graph([tensor], next(iter(runnable_targets().values())))
    index = lowered.group.depth
    assert isinstance(index, Index)
    assert index.extent == depth


@pytest.mark.parametrize("name", ["causal", "half", "symbolic", "concatenated"])
def test_other_machines_get_code(name: str) -> None:
    tensor, _, _ = CASES[name]()
    target = target_for("aarch64", ("neon", "fp-armv8"))
    _, kernels = lower_graph([tensor], target)
    for lowered in kernels:
        assert compile_ir(emit_kernel(lowered.kernel, target, "attention"), target)


FENCED = """
from tests.codegen.guarded import run_fenced
from tests.codegen.lowering import lower_graph, run_kernels
from tests.codegen.machine import runnable_targets
from tests.codegen.test_attention_kernels import CASES

for target in runnable_targets().values():
    for name in ("plain", "causal", "half", "symbolic", "concatenated", "paged"):
        tensor, arrays, values = CASES[name]()
        graph, kernels = lower_graph([tensor], target)
        for at_end in (True, False):
            run_kernels(graph, kernels, arrays, values, run_fenced(target, at_end=at_end))
"""


@pytest.mark.parametrize(("width", "lanes"), [(64, 64), (96, 64), (32, 32), (16, 16)])
def test_one_query_adds_values_in_rows_as_wide_as_they_lie(width: int, lanes: int) -> None:
    """In half rows, a pass for each half, memory would be read at half its speed."""
    q, k = (Tensor.input(name, (2, size, 48)) for name, size in (("q", 1), ("k", 100)))
    values = q.scaled_dot_product_attention(k, Tensor.input("v", (2, 100, width)))
    _, (lowered,) = lower_graph([values], TARGETS["avx2"])
    (buffer,) = [b for b in lowered.kernel.buffers if b.size == 200 * width]
    reading = [
        loop.lanes
        for loop in walk_statements(lowered.kernel.body)
        if isinstance(loop, Loop) and loop.lanes > 1
        for inner in walk_statements(loop.body)
        for value in walk_values(statement_values(inner))
        if value.op == "load" and value.data[0] == buffer
    ]
    assert set(reading) == {lanes}


def test_attention_stays_inside_its_buffers() -> None:
    done = run("-c", FENCED)
    assert done.returncode == 0, done.stderr[-2000:]

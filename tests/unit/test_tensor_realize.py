"""From lazy to computed: once, kept on the handle, never behind the user's back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import semel
from semel import Tensor, Variable
from semel.compiler import eager, pipeline


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every graph that is compiled, in order."""
    seen: list[Any] = []
    compile_graph = pipeline.compile_graph

    def counting(graph: Any, *args: Any, **options: Any) -> Any:
        seen.append(graph)
        return compile_graph(graph, *args, **options)

    for module in (pipeline, eager):
        monkeypatch.setattr(module, "compile_graph", counting)
    return seen


def test_asking_twice_computes_once(compilations: list[Any]) -> None:
    t = Tensor([1.0, 2.0]) + 1
    assert t.numpy().tolist() == t.numpy().tolist() == [2, 3]
    assert float(t[0]) == 2
    assert len(compilations) == 2  # t, and its first element


def test_known_values_are_not_computed(compilations: list[Any]) -> None:
    assert Tensor([1.0, 2.0]).numpy().tolist() == [1, 2]
    assert Tensor(3).item() == 3
    assert Tensor.param("w", [4.0]).numpy().tolist() == [4]
    assert repr(Tensor([1.0]) + 1) == "<Tensor float32[1] add>"
    assert not compilations


def test_realize_gives_a_constant(compilations: list[Any]) -> None:
    done = (Tensor([1.0, 2.0]) * 2).realize()
    assert done.node.op.name == "constant"
    assert done.numpy().tolist() == [2, 4]
    assert len(compilations) == 1


def test_realize_keeps_shape_and_dtype() -> None:
    for shape in ((), (0, 3), (2, 1)):
        for dtype in ("bool", "int8", "bfloat16", "float64"):
            done = Tensor.ones(shape, dtype=dtype).maximum(False).realize()
            assert (done.shape, done.dtype.name) == (shape, dtype)


def test_assignment_forgets_the_computed_value() -> None:
    t = Tensor([1.0, 2.0]) + 1
    assert t.tolist() == [2, 3]
    t[0] = 9
    assert t.tolist() == [9, 3]


def test_prepare_several_outputs_in_order_and_by_name() -> None:
    x = Tensor.input("x", (3,), "float32")
    data = np.array([1, 2, 3], np.float32)
    doubled, total = semel.prepare([x * 2, x.sum()])(x=data)
    assert doubled.tolist() == [2, 4, 6] and total == 6
    plan = semel.prepare({"mean": x.mean(), "max": x.max()})
    mean, top = plan(x=data)
    assert (mean, top) == (2, 3)


def test_one_plan_serves_every_size() -> None:
    n = Variable("n", 1, 64)
    x = Tensor.input("x", (n, 3), "float32")
    plan = (x.sum(0) / n).prepare()
    with semel.no_recompiles():
        for size in (1, 7, 64):
            assert plan(x=np.ones((size, 3), np.float32)).tolist() == [1, 1, 1]
    assert plan.compile_count == 1


def test_results_of_earlier_runs_stay() -> None:
    x = Tensor.input("x", (2,), "float32")
    plan = (x + 1).prepare()
    first = plan(x=np.zeros(2, np.float32))
    plan(x=np.ones(2, np.float32))
    assert first.tolist() == [1, 1]


def test_values_decide_python_branches() -> None:
    t = Tensor([1.0, 2.0])
    assert bool((t > 0).all())
    assert 2.0 in t and 5.0 not in t
    assert [float(v) for v in t] == [1, 2]
    assert (t + 1).tolist() == [2, 3]


def test_an_index_out_of_range_names_op_index_and_size() -> None:
    table = Tensor.input("table", (4, 2), "float32")
    ids = Tensor.input("ids", (2,), "int64")
    plan = ids.embedding(table).prepare()
    rows = np.zeros((4, 2), np.float32)
    with pytest.raises(semel.IndexRangeError, match="got 7") as caught:
        plan(table=rows, ids=np.array([1, 7]))
    assert "embedding" in str(caught.value) and "7" in str(caught.value)
    assert plan(table=rows, ids=np.array([1, -4])).shape == (2, 2)

"""Grouped matmul: every row has the bits of an ordinary product with its expert's matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.lowering import lower_graph, run_kernels
from tests.codegen.machine import Native, every_target

from semel import GraphError, IndexRangeError, Tensor, Variable
from semel.errors import VariableError
from semel.ir.graph import Graph
from semel.ir.types import as_dtype
from semel.kernel.interpret import interpret
from semel.kernel.verify import verify_kernel
from semel.ops.attrs import GroupedMatmulAttrs
from semel.ops.evaluate import evaluate
from semel.plan.plan import ExecutionPlan
from semel.tensor.handle import apply

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(19)
FLOATS = ["float32", "float64", "float16", "bfloat16"]


def normal(*shape: int, dtype: str = "float32") -> Array:
    return RNG.standard_normal(shape).astype(as_dtype(dtype).numpy)


def truth(x: Array, w: Array, ids: Array) -> Array:
    """Row by row in float64, in the shape that ids give."""
    repeat = ids.size // max(len(x), 1)
    flat = ids.reshape(-1)
    wide = [
        x[i // repeat].astype(np.float64) @ w[flat[i]].astype(np.float64) for i in range(len(flat))
    ]
    return np.array(wide).reshape(*ids.shape, w.shape[2])


def prepare(x: Array, w: Array | Tensor, ids: Array, **options: Any) -> ExecutionPlan:
    rows = Tensor.input("x", x.shape, as_dtype(x.dtype))
    choice = Tensor.input("ids", ids.shape, as_dtype(ids.dtype))
    return rows.grouped_matmul(w, choice).prepare(**options)


def computed(plan: ExecutionPlan) -> list[set[str]]:
    """The ops of each kernel."""
    return [{n.split()[1] for n in op.notes.nodes} for op in plan.prepared_kernels]


def row_by_row(x: Array, w: Array, ids: Array) -> bytes:
    """What ordinary matmuls of single rows give."""
    plan = Tensor.input("x", (1, x.shape[1]), x.dtype) @ Tensor.input("w", w.shape[1:], w.dtype)
    product = plan.prepare(threads=1)
    return b"".join(product(x=x[i : i + 1], w=w[e]).tobytes() for i, e in enumerate(ids))


# ---------------------------------------------------------------- bits


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_has_the_bits_of_its_own_product(dtype: str, threads: int) -> None:
    x, w = normal(61, 70, dtype=dtype), normal(5, 70, 90, dtype=dtype)
    ids = RNG.integers(0, 5, 61)
    expected = row_by_row(x, w, ids)
    for order in (np.arange(61), np.argsort(ids, kind="stable"), RNG.permutation(61)):
        plan = prepare(x, Tensor(w), ids, threads=threads)
        got = np.empty((61, 90), x.dtype)
        got[order] = plan(x=x[order], ids=ids[order])
        assert got.tobytes() == expected


def test_weights_that_are_inputs_give_the_same_bits() -> None:
    x, w, ids = normal(30, 33), normal(4, 33, 70), RNG.integers(0, 4, 30)
    constant = prepare(x, Tensor(w), ids)(x=x, ids=ids)
    given_w = prepare(x, Tensor.input("w", w.shape), ids)(x=x, ids=ids, w=w)
    turned = np.ascontiguousarray(w.swapaxes(1, 2))
    transposed = prepare(x, Tensor.input("w", turned.shape).mT, ids)(x=x, ids=ids, w=turned)
    packed = prepare(x, Tensor(turned).mT, ids)(x=x, ids=ids)
    assert constant.tobytes() == given_w.tobytes() == transposed.tobytes() == packed.tobytes()


@pytest.mark.parametrize("dtype", ["int32", "int8", "uint8", "bool"])
def test_integers_wrap_as_they_do_in_matmul(dtype: str) -> None:
    x = RNG.integers(0, 2 if dtype == "bool" else 100, (9, 20)).astype(dtype)
    w = RNG.integers(0, 2 if dtype == "bool" else 100, (3, 20, 40)).astype(dtype)
    ids = RNG.integers(0, 3, 9)
    assert prepare(x, Tensor(w), ids)(x=x, ids=ids).tobytes() == row_by_row(x, w, ids)


# ---------------------------------------------------------------- shapes


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(0, 130),
    experts=st.integers(1, 9),
    depth=st.integers(0, 40),
    columns=st.integers(0, 70),
    skew=st.sampled_from(["uniform", "one", "sorted", "two"]),
    seed=st.integers(0, 1 << 20),
)
def test_any_shape_and_any_ids(
    rows: int, experts: int, depth: int, columns: int, skew: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, depth)).astype(np.float32)
    w = rng.standard_normal((experts, depth, columns)).astype(np.float32)
    choices = {"one": 1, "two": min(2, experts)}.get(skew, experts)
    ids = rng.integers(experts - choices, experts, rows)
    ids = np.sort(ids) if skew == "sorted" else ids
    got = prepare(x, Tensor(w), ids)(x=x, ids=ids)
    np.testing.assert_allclose(got, truth(x, w, ids), rtol=1e-5, atol=1e-4)


def test_one_plan_serves_every_number_of_rows_and_experts() -> None:
    t, e = Variable("t", 0, 300), Variable("e", 0, 9)
    x, ids = Tensor.input("x", (t, 24)), Tensor.input("ids", (t,), "int32")
    plans = [
        x.grouped_matmul(Tensor.input("w", (e, 24, 50)), ids).prepare(threads=n) for n in (1, 2)
    ]
    for rows, experts in ((1, 1), (0, 0), (0, 3), (8, 4), (3, 9), (97, 2), (300, 9), (5, 1)):
        a, w = normal(rows, 24), normal(experts, 24, 50)
        chosen = RNG.integers(0, max(experts, 1), rows).astype(np.int32)
        got = [plan(x=a, w=w, ids=chosen) for plan in plans]
        np.testing.assert_allclose(got[0], truth(a, w, chosen), rtol=1e-5, atol=1e-4)
        fixed = prepare(a, Tensor.input("w", w.shape), chosen)(x=a, w=w, ids=chosen)
        assert got[0].tobytes() == got[1].tobytes() == fixed.tobytes()
    assert [plan.compile_count for plan in plans] == [1, 0]


def test_several_experts_per_row_give_a_row_each() -> None:
    n = Variable("n", 1, 64)
    x, w = normal(13, 20), normal(6, 20, 36)
    ids = RNG.integers(-6, 6, (13, 3))
    plan = Tensor.input("x", (n, 20)).grouped_matmul(w, Tensor.input("ids", (n, 3), "int64"))
    got = plan.prepare()(x=x, ids=ids)
    assert got.shape == (13, 3, 36)
    np.testing.assert_allclose(got, truth(x, w, ids), rtol=1e-5, atol=1e-4)
    copied = np.repeat(x, 3, 0)
    flat = prepare(copied, Tensor(w), ids.reshape(-1))(x=copied, ids=ids.reshape(-1))
    assert flat.tobytes() == got.tobytes()


def test_leading_axes_are_rows() -> None:
    x, w, ids = normal(2, 5, 8), normal(3, 8, 4), RNG.integers(0, 3, (2, 5))
    got = Tensor(x).grouped_matmul(w, ids).numpy()
    np.testing.assert_allclose(got, truth(x.reshape(10, 8), w, ids.reshape(10)).reshape(2, 5, 4),
                               rtol=1e-5, atol=1e-5)  # fmt: skip
    assert Tensor(x[0, 0]).grouped_matmul(w, 2).shape == (4,)
    assert Tensor(x).grouped_matmul(w, np.zeros((2, 5, 0), np.int64)).shape == (2, 5, 0, 4)


# ---------------------------------------------------------------- kernels


def test_all_experts_are_one_kernel_with_what_follows() -> None:
    x, w, bias = normal(40, 64), normal(16, 64, 96), normal(16, 96)
    rows, ids = Tensor.input("x", x.shape), Tensor.input("ids", (40,), "int64")
    residual = Tensor.input("r", (40, 96))
    y = (rows.grouped_matmul(w, ids) + Tensor(bias)[ids]).gelu() + residual
    plan = y.prepare()
    kernels = computed(plan)
    assert sum("grouped_matmul" in ops for ops in kernels) == 1 and len(kernels) <= 3
    chosen, r = RNG.integers(0, 16, 40), normal(40, 96)
    got = plan(x=x, ids=chosen, r=r)
    plain = truth(x, w, chosen) + bias[chosen]
    wide = Tensor(plain.astype(np.float32)).gelu().numpy() + r
    np.testing.assert_allclose(got, wide, rtol=1e-4, atol=1e-4)


def test_layers_with_the_same_ids_list_their_rows_once() -> None:
    x, ids = Tensor.input("x", (40, 64)), Tensor.input("ids", (40,), "int64")
    y = x.grouped_matmul(normal(4, 64, 64), ids).relu().grouped_matmul(normal(4, 64, 64), ids)
    assert sum("group_rows" in ops for ops in computed(y.prepare())) == 1


@pytest.mark.parametrize("target", every_target())
@pytest.mark.parametrize("dtype", FLOATS)
def test_interpreter_and_every_vector_width_agree(target: str, dtype: str) -> None:
    machine = every_target()[target]
    t = Variable("t", 0, 40)
    x = Tensor.input("x", (t, 5), dtype)
    y = x.grouped_matmul(Tensor.input("w", (3, 5, 35), dtype), Tensor.input("ids", (t,), "int64"))
    graph, kernels = lower_graph([y + 1], machine)
    assert not [bug for k in kernels for bug in verify_kernel(k.kernel)]
    data = {"x": normal(17, 5, dtype=dtype), "w": normal(3, 5, 35, dtype=dtype),
            "ids": RNG.integers(0, 3, 17)}  # fmt: skip
    oracle = evaluate(Graph((graph.outputs[0],)), data)[0].astype(np.float64)
    slack = 5e-2 if as_dtype(dtype).is_half else 1e-5
    native = run_kernels(
        graph, kernels, data, {"t": 17}, lambda k, b, v: Native(k, machine).run(b, v)
    )[0]
    interpreted = run_kernels(graph, kernels, data, {"t": 17}, interpret)[0]
    np.testing.assert_allclose(native.astype(np.float64), oracle, atol=slack, rtol=slack)
    np.testing.assert_allclose(interpreted.astype(np.float64), oracle, atol=slack, rtol=slack)


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("place", [0, 30, 59])
@pytest.mark.parametrize("fusion", [True, False])
def test_an_id_out_of_range_is_named(place: int, fusion: bool) -> None:
    x, w, ids = normal(60, 8), normal(4, 8, 40), RNG.integers(0, 4, 60)
    plan = prepare(x, Tensor(w), ids, fusion=fusion)
    good = plan(x=x, ids=ids)
    for bad in (4, -5, 1 << 62):
        wrong = ids.copy()
        wrong[place] = bad
        with pytest.raises(IndexRangeError, match=r"\[grouped_matmul\]") as caught:
            plan(x=x, ids=wrong)
        assert caught.value.index == bad and caught.value.size == 4  # type: ignore[attr-defined]
    assert plan(x=x, ids=ids).tobytes() == good.tobytes()
    assert plan(x=x, ids=ids - 4).tobytes() == good.tobytes()


def test_no_experts_means_no_legal_id() -> None:
    e = Variable("e", 0, 4)
    w = Tensor.input("w", (e, 8, 40))
    plan = prepare(normal(60, 8), w, np.zeros(60, np.int64))
    with pytest.raises(IndexRangeError, match=r"must lie in \[0, 0\), got 0"):
        plan(x=normal(60, 8), ids=np.zeros(60, np.int64), w=normal(0, 8, 40))


def test_rows_and_ids_of_different_variables_must_agree_at_run_time() -> None:
    n, m = Variable("n", 1, 9), Variable("m", 1, 9)
    x, ids = Tensor.input("x", (n, 4)), Tensor.input("ids", (m,), "int64")
    plan = x.grouped_matmul(normal(3, 4, 5), ids).prepare()
    assert plan(x=normal(3, 4), ids=np.zeros(3, np.int64)).shape == (3, 5)
    with pytest.raises(VariableError, match="one group per row"):
        plan(x=normal(3, 4), ids=np.zeros(4, np.int64))


X, W = Tensor.input("x", (6, 4)), Tensor.input("w", (3, 4, 5))
IDS = Tensor.input("ids", (6,), "int64")
REFUSED = [
    (lambda: X.grouped_matmul(W[0], IDS),
     "needs x (..., K) and weight (experts, K, N), got f32[6,4] and f32[4,5]."),
    (lambda: X.grouped_matmul(W, IDS.cast("float32")), "indices must be integers, got f32[6]."),
    (lambda: X.grouped_matmul(W, IDS[:5]), "needs one id per row of f32[6,4], got i64[5]."),
    (lambda: X.grouped_matmul(W, IDS.reshape(3, 2)),
     "needs one id per row of f32[6,4], got i64[3,2]."),
    (lambda: X.grouped_matmul(W, IDS.reshape(6, 1, 1)),
     "needs one id per row of f32[6,4], or a fixed number of them in one more axis, "
     "got i64[6,1,1]."),
    (lambda: X[:, :3].grouped_matmul(W, IDS),
     "inner dims must agree, got 3, the last of f32[6,3], and 4, the last but one of f32[3,4,5]."),
]  # fmt: skip


@pytest.mark.parametrize(("build", "message"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_malformed_calls_are_refused(build: Any, message: str) -> None:
    with pytest.raises(GraphError, match=r"^\[grouped_matmul\]") as caught:
        build()
    assert str(caught.value) == f"[grouped_matmul] {message}"


@pytest.mark.parametrize("unused", [(), (0,), (1,), (2,), (0, 1), (1, 2), (0, 2)])
def test_lines_of_no_rows_are_passed_over_wherever_they_stand(unused: tuple[int, ...]) -> None:
    x, w = normal(4, 5), normal(3, 5, 7)
    lines = np.array([[1, 2, 0, 2], [0, 1, 1, 1], [2, 1, 3, 3]])
    lines[list(unused), 1] = 0
    want = np.zeros((4, 7), np.float32)
    for group, count, *places in lines:
        for place in places[:count]:
            want[place] = x[place] @ w[group]
    rows = Tensor.input("lines", lines.shape, "int64")
    attrs = GroupedMatmulAttrs(1, 4)
    y = apply("grouped_matmul", Tensor(x), Tensor(w), rows, attrs=attrs)
    (got,) = evaluate(Graph((y.node,)), {"lines": lines})
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)

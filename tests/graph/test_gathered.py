"""Products with matrices that were gathered for each row become products by groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from semel import ExpertResidency, Graph, IndexRangeError, Session, Tensor

Array = np.ndarray[Any, Any]
EXPERTS, WIDE, INNER, K = 6, 24, 32, 2
STACK = np.random.default_rng(1).standard_normal((EXPERTS, WIDE, INNER)).astype(np.float32)
#: What a graph makes of rows (tokens, WIDE), ids (tokens, K) and its stack.
Written = Callable[[Tensor, Tensor, Tensor], Tensor]


def build(written: Written, stack: Array = STACK, extra: tuple[str, ...] = ()) -> Graph:
    g = Graph("model")
    x, ids = g.input("x", ("tokens", WIDE)), g.input("ids", ("tokens", K), "int64")
    g.output("y", written(x, ids, g.param("w", stack)))
    return g


def ops(g: Graph) -> list[str]:
    return [node.op.name for node in g.build().nodes]


def each(x: Tensor, ids: Tensor, w: Tensor) -> Tensor:
    return (x.reshape(-1, 1, 1, WIDE) @ w.take(ids, 0)).reshape(-1, K, INNER)


def turned(x: Tensor, ids: Tensor, w: Tensor) -> Tensor:
    return (x.reshape(-1, 1, 1, WIDE) @ w.mT.take(ids, 0).mT).reshape(-1, K, INNER)


def repeated(x: Tensor, ids: Tensor, w: Tensor) -> Tensor:
    rows = x.reshape(-1, 1, WIDE).expand(x.shape[0], K, WIDE).reshape(-1, 1, WIDE)
    return (rows @ w.take(ids.reshape(-1), 0)).reshape(-1, K, INNER)


def columns(x: Tensor, ids: Tensor, w: Tensor) -> Tensor:
    """Matrices on the left, which have their columns first."""
    return (w.mT.take(ids, 0) @ x.reshape(-1, 1, WIDE, 1)).reshape(-1, K, INNER)


def side_by_side(x: Tensor, ids: Tensor, w: Tensor) -> Tensor:
    matrices = w.take(ids, 0).transpose(0, 2, 1, 3).reshape(-1, WIDE, K * INNER)
    return (x.reshape(-1, 1, WIDE) @ matrices).reshape(-1, K, INNER)


def with_batches(x: Tensor, ids: Tensor, w: Tensor) -> Tensor:
    rows = x.reshape(1, -1, 1, 1, WIDE)
    return (rows @ w.take(ids.reshape(1, -1, K), 0)).reshape(-1, K, INNER)


@pytest.mark.parametrize(
    "written",
    [each, turned, repeated, columns, side_by_side, with_batches],
    ids=lambda f: f.__name__,
)
def test_each_row_is_multiplied_by_the_matrices_of_its_ids(written: Written) -> None:
    g = build(written)
    assert ops(g).count("grouped_matmul") == 1 and "matmul" not in ops(g)
    c = Session().compile(g)
    (router,) = c.routers
    assert (router.num_experts, router.k) == (EXPERTS, K)
    c.enable_moe_topk_capture()
    moving = Session().compile(build(written), experts=ExpertResidency(budget=1, policy="lru"))
    rng = np.random.default_rng(2)
    for tokens in (1, 5, 3):
        x = rng.standard_normal((tokens, WIDE)).astype(np.float32)
        ids = rng.integers(-EXPERTS, EXPERTS, (tokens, K))  # which count from the end, too
        (y,) = c.run(x, ids)
        np.testing.assert_allclose(
            y, np.einsum("tw,tkwi->tki", x, STACK[ids]), rtol=1e-4, atol=1e-5
        )
        assert moving.run(x, ids)[0].tobytes() == y.tobytes()
        captured = c.take_moe_topk_capture()
        assert captured is not None
        np.testing.assert_array_equal(captured[0].ids, ids % EXPERTS)


def test_products_that_are_added_up() -> None:
    def added(x: Tensor, ids: Tensor, w: Tensor) -> Tensor:
        rows = (x.unsqueeze(1) * Tensor([[1.0], [2.0]])).reshape(-1, 1, K * WIDE)
        return (rows @ w.take(ids, 0).reshape(-1, K * WIDE, INNER)).reshape(-1, INNER)

    g = build(added)
    assert ops(g).count("grouped_matmul") == 1 and "matmul" not in ops(g)
    rng = np.random.default_rng(3)
    x, ids = rng.standard_normal((4, WIDE)).astype(np.float32), rng.integers(0, EXPERTS, (4, K))
    expected = np.einsum("tw,tkwi,k->ti", x, STACK[ids], [1.0, 2.0])
    np.testing.assert_allclose(g.prepare()(x=x, ids=ids), expected, rtol=1e-4, atol=1e-4)


def test_an_id_out_of_range_is_told_by_who_gathers() -> None:
    with pytest.raises(IndexRangeError, match="take"):
        build(each).prepare()(x=np.zeros((1, WIDE), np.float32), ids=np.array([[0, EXPERTS]]))


def test_gathered_matrices_take_no_memory() -> None:
    plan = build(each).prepare(dims={"tokens": (1, 64)})
    assert plan.memory.arena_bytes < 64 * K * WIDE * INNER * 4 / 8


def several_rows(x: Tensor, ids: Tensor, w: Tensor) -> Tensor:
    return x.reshape(-1, 1, 2, WIDE // 2) @ w.reshape(-1, WIDE // 2, INNER * 2).take(ids, 0)


def parts_of_matrices(x: Tensor, ids: Tensor, w: Tensor) -> Tensor:
    return x.reshape(-1, 1, 1, WIDE) @ w.take(ids, 0)[..., : INNER // 2]


def other_columns(x: Tensor, ids: Tensor, w: Tensor) -> Tensor:
    return x.reshape(-1, 1, 1, WIDE) @ w.take(ids, 0).flip(-1)


def other_rows(x: Tensor, ids: Tensor, w: Tensor) -> Tensor:
    return x.reshape(-1, 1, 1, WIDE) @ w.take(ids, 0).flip(1)


def known_ids(x: Tensor, ids: Tensor, w: Tensor) -> Tensor:
    return x.reshape(-1, 1, 1, WIDE) @ w.take(Tensor([[1, 4]]), 0)


def matrices_of_the_data(x: Tensor, ids: Tensor, w: Tensor) -> Tensor:
    return x.reshape(-1, 1, 1, WIDE) @ (w * x.sum()).take(ids, 0)


def one_matrix(x: Tensor, ids: Tensor, w: Tensor) -> Tensor:
    return x.reshape(-1, 1, WIDE) @ w.take(ids[0, 0], 0)


def rows_of_all(x: Tensor, ids: Tensor, w: Tensor) -> Tensor:
    """Every row meets the matrices of every other."""
    return x.reshape(-1, 1, 1, 1, WIDE) @ w.take(ids, 0)


@pytest.mark.parametrize(
    "written",
    [
        several_rows,
        parts_of_matrices,
        other_columns,
        other_rows,
        known_ids,
        matrices_of_the_data,
        one_matrix,
        rows_of_all,
    ],
    ids=lambda f: f.__name__,
)
def test_other_products_stay_what_they_are(written: Written) -> None:
    assert "grouped_matmul" not in ops(build(written))


@pytest.mark.parametrize("is_gather", [False, True])
def test_what_is_kept_is_found_by_what_it_became(is_gather: bool) -> None:
    g = Graph("model")
    x, ids = g.input("x", ("tokens", WIDE)), g.input("ids", ("tokens", K), "int64")
    gathered = g.param("w", STACK).take(ids, 0)
    made = x.reshape(-1, 1, 1, WIDE) @ gathered
    g.output("y", made.relu())
    plan = g.prepare(keep={"made": made, **({"gathered": gathered} if is_gather else {})})
    given = {"x": np.ones((2, WIDE), np.float32), "ids": np.array([[0, 1], [5, 5]])}
    y = plan(**given)
    kernels = {row.name for row in plan.prepared_ops}
    assert any("group_rows" in name for name in kernels) == (not is_gather)
    np.testing.assert_array_equal(np.maximum(plan.kept["made"].numpy(), 0), y)
    if is_gather:
        np.testing.assert_array_equal(plan.kept["gathered"].numpy(), STACK[given["ids"]])


def test_as_many_rows_as_a_run_finds_out() -> None:
    g = Graph("model")
    x, ids = g.input("x", (16, WIDE)), g.input("ids", (16, K), "int64")
    some = x.sum(-1) > 0
    rows, chosen = x[some], ids[some]
    g.output("y", each(rows, chosen, g.param("w", STACK)))
    assert "grouped_matmul" in ops(g)
    c = Session().compile(g)
    rng = np.random.default_rng(4)
    given = rng.standard_normal((16, WIDE)).astype(np.float32), rng.integers(0, EXPERTS, (16, K))
    there = given[0].sum(-1) > 0
    expected = np.einsum("tw,tkwi->tki", given[0][there], STACK[given[1][there]])
    np.testing.assert_allclose(c.run(*given)[0], expected, rtol=1e-4, atol=1e-5)


def test_extents_are_those_of_the_rows() -> None:
    plan = build(each).prepare(dims={"tokens": (1, 8)}, extent="tokens")
    x = np.random.default_rng(5).standard_normal((8, WIDE)).astype(np.float32)
    ids = np.full((8, K), 3)
    plan.set_extent("tokens", 3)
    y = plan(x=x, ids=ids)
    expected = np.einsum("tw,tkwi->tki", x, STACK[ids])
    np.testing.assert_allclose(y[:3], expected[:3], rtol=1e-4, atol=1e-5)

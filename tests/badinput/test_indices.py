"""Indices out of range, wherever they stand: an error with op, index and size, never a stray read.

After the error the plan works with good data, and its old outputs cannot be read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import semel
from semel import IndexRangeError, SemelError, Tensor, Variable

ROWS = 5
Build = Callable[[Tensor, Tensor], Any]
#: name -> (the op in the message, graph over x: float32[5, 4] and i: int64[33]).
SELECTIONS: dict[str, tuple[str, Build]] = {
    "take, vector position": ("take", lambda x, i: x.take(i, 0)),
    "take of the inner axis": ("take", lambda x, i: x.T.take(i, 1)),
    "take from a flat view": ("take", lambda x, i: x[:, 0].take(i)),
    "embedding": ("embedding", lambda x, i: i.embedding(x)),
    "index_select": ("index_select", lambda x, i: x.index_select(0, i)),
    "advanced indexing": ("getitem", lambda x, i: x[i]),
    "two index tensors": ("getitem", lambda x, i: x[i, i * 0]),
    "take_along_axis": (
        "take_along_axis",
        lambda x, i: x[:, :1].take_along_axis(i.unsqueeze(1), 0),
    ),
    "gather": ("gather", lambda x, i: x[:, :1].gather(0, i.unsqueeze(1))),
    "index_put": ("index_put", lambda x, i: x.index_put((i,), Tensor.ones(33, 4))),
    "index_add": ("index_add", lambda x, i: x.index_add(0, i, Tensor.ones(33, 4))),
    "scatter_add": ("scatter_add", lambda x, i: x[:, 0].scatter_add(0, i, Tensor.ones(33))),
    "fused below math": ("take", lambda x, i: (x.exp().take(i, 0) + 1).sum(1)),
    "fused below softmax": ("take", lambda x, i: x.take(i, 0).softmax(-1)),
    "fused below a contraction": ("take", lambda x, i: x.take(i, 0) @ x.T),
    "scalar position": ("take", lambda x, i: x.take(i[17], 0)),
    "one row broadcast": ("take", lambda x, i: x.take(i[17], 0) + x),
    "inside padding": ("take", lambda x, i: x.take(i, 0).pad(((2, 3), (1, 0))) * 2),
    "inside a concatenation": (
        "take",
        lambda x, i: Tensor.concat([x, x.take(i, 0), x]) * 2,
    ),
    "grouped matmul": (
        "grouped_matmul",
        lambda x, i: Tensor.ones(33, 1).grouped_matmul(x.unsqueeze(1), i),
    ),
    "computed index": ("take", lambda x, i: x.take(i * 2 - i, 0)),
}


def make(build: Build, **options: Any) -> Any:
    x, i = Tensor.input("x", (ROWS, 4)), Tensor.input("i", (33,), "int64")
    return build(x, i).prepare(**options)


def data(index: int, place: int = 17) -> dict[str, np.ndarray]:
    i = np.arange(33) % ROWS
    i[place] = index
    return {"x": np.arange(20, dtype=np.float32).reshape(ROWS, 4) / 10, "i": i}


@pytest.mark.parametrize("fusion", [True, False], ids=["fused", "single"])
@pytest.mark.parametrize("name", SELECTIONS)
def test_a_bad_index_is_reported_and_the_plan_survives(name: str, fusion: bool) -> None:
    op, build = SELECTIONS[name]
    plan = make(build, fusion=fusion, threads=1)
    good = plan(**data(1))
    for index in (ROWS, -ROWS - 1, 1 << 40, -(1 << 63), (1 << 63) - 1):
        with pytest.raises(IndexRangeError, match=rf"\[{op}\]") as caught:
            plan(**data(index))
        assert caught.value.index == index and caught.value.size == ROWS  # type: ignore[attr-defined]
        with pytest.raises(SemelError, match="the last execute failed"):
            plan.output_buffer.numpy()
    np.testing.assert_array_equal(plan(**data(1)), good)
    np.testing.assert_array_equal(plan(**data(1 - ROWS)), good)


@pytest.mark.parametrize("place", [0, 15, 16, 31, 32])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_bad_index_is_seen_in_every_lane(place: int, threads: int) -> None:
    plan = make(lambda x, i: x[:, 0].take(i) + 1, threads=threads)
    with pytest.raises(IndexRangeError, match="77"):
        plan(**data(77, place))


def test_indices_that_padding_cuts_off_are_checked_all_the_same() -> None:
    """A slice that drops the bad element drops its check, too: the element is never selected."""
    x, i = Tensor.input("x", (ROWS, 4)), Tensor.input("i", (33,), "int64")
    plan = x.take(i, 0)[:10].prepare()
    assert plan(**data(99, place=20)).shape == (10, 4)
    with pytest.raises(IndexRangeError, match="got 99"):
        plan(**data(99, place=9))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64"])
def test_every_index_dtype_is_checked(dtype: str) -> None:
    x, i = Tensor.input("x", (ROWS,)), Tensor.input("i", (20,), dtype)
    plan = x.take(i).prepare()
    index = np.zeros(20, dtype)
    low = 0 if dtype.startswith("u") else -ROWS
    index[7] = np.iinfo(dtype).max
    with pytest.raises(IndexRangeError, match=rf"must lie in \[{low}, 5\), got"):
        plan(x=np.zeros(ROWS, np.float32), i=index)
    index[7] = 4
    assert plan(x=np.arange(ROWS, dtype=np.float32), i=index)[7] == 4


def test_a_symbolic_axis_is_checked_against_its_size_now() -> None:
    n = Variable("n", 1, 50)
    x, i = Tensor.input("x", (n,)), Tensor.input("i", (3,), "int64")
    plan = x.take(i).prepare()
    big, small = np.arange(40, dtype=np.float32), np.arange(5, dtype=np.float32)
    index = np.array([0, 4, 30])
    assert plan(x=big, i=index).tolist() == [0, 4, 30]
    with pytest.raises(IndexRangeError, match="got 30") as caught:
        plan(x=small, i=index)
    assert caught.value.size == 5  # type: ignore[attr-defined]


def test_selecting_from_an_empty_axis_is_an_error_unless_nothing_is_selected() -> None:
    n, m = Variable("n", 0, 9), Variable("m", 0, 9)
    x, i = Tensor.input("x", (n,)), Tensor.input("i", (m,), "int64")
    plan = x.take(i).prepare()
    none, zero = np.zeros(0, np.float32), np.zeros(1, np.int64)
    with pytest.raises(IndexRangeError, match=r"must lie in \[0, 0\), got 0"):
        plan(x=none, i=zero)
    assert plan(x=none, i=np.zeros(0, np.int64)).shape == (0,)


def test_a_good_output_next_to_a_bad_one_is_not_handed_out() -> None:
    x, i = Tensor.input("x", (ROWS, 4)), Tensor.input("i", (33,), "int64")
    plan = semel.prepare([x + 1, x.take(i, 0)])
    with pytest.raises(IndexRangeError, match="got 9"):
        plan(**data(9))
    with pytest.raises(SemelError, match="the last execute failed"):
        plan.output_buffers[0].numpy()


def test_an_index_tensor_larger_than_its_target_is_refused() -> None:
    """Its places along the other axes have no bounds check: they must be right by shape."""
    x = Tensor.zeros(2, 3)
    with pytest.raises(semel.GraphError, match="must not be larger"):
        x.scatter(1, np.zeros((5, 1), np.int64), 1.0)
    with pytest.raises(semel.GraphError, match="must not be larger"):
        x.scatter_add(0, np.zeros((1, 4), np.int64), 1.0)
    assert x.scatter(1, np.array([[2], [0]]), 1.0).tolist() == [[0, 0, 1], [1, 0, 0]]


def line_here() -> int:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


def test_an_index_error_names_the_op_and_the_line_it_was_written_in(tmp_path: Path) -> None:
    """Two equal kernels are one piece of code and still belong to two lines."""
    x, i = Tensor.input("x", (ROWS, 7)), Tensor.input("i", (3,), "int64")
    j = Tensor.input("j", (3,), "int64")
    first = line_here() + 1
    a = x.take(i, 0).softmax(-1)
    b = x.take(j, 0).softmax(-1)
    plan = semel.prepare([a, b])
    plan.save(tmp_path / "p.plan")
    good, bad = np.array([0, 1, 2]), np.array([0, 9, 2])
    rows = np.zeros((ROWS, 7), np.float32)
    for runs in (plan, plan.clone(), semel.load_plan(tmp_path / "p.plan", trust=True)):
        for line, data in ((first, {"i": bad, "j": good}), (first + 1, {"i": good, "j": bad})):
            place = rf"\[take\] index must lie in \[-5, 5\), got 9 \(.*test_indices.py:{line}\)"
            with pytest.raises(IndexRangeError, match=place) as caught:
                runs(x=rows, **data)
            assert caught.value.origin.endswith(f"test_indices.py:{line}")  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [2**63, 2**64 - 1, 2**64 - 5, 5])
def test_an_unsigned_index_is_reported_as_the_number_it_is(value: int) -> None:
    x, i = Tensor.input("x", (ROWS,)), Tensor.input("i", (3,), "uint64")
    plan = x.take(i).prepare()
    with pytest.raises(
        IndexRangeError, match=rf"index must lie in \[0, 5\), got {value} "
    ) as caught:
        plan(x=np.zeros(ROWS, np.float32), i=np.array([0, value, 1], np.uint64))
    assert caught.value.index == value  # type: ignore[attr-defined]


@pytest.mark.parametrize("index", [[0, 5], [-6, 0], np.array([2**64 - 1], np.uint64), Tensor(7)])
def test_a_known_index_is_refused_where_it_is_written(index: Any) -> None:
    x = Tensor.input("x", (ROWS, 4))
    with pytest.raises(IndexRangeError, match=r"\[take\] index must lie in .* got (5|-6|7|18446)"):
        x.take(index, 0)
    with pytest.raises(IndexRangeError, match=r"\[setitem\] index must lie in"):
        x[index] = 0


def test_a_param_used_as_an_index_is_checked_when_it_runs() -> None:
    """Its data may be replaced, so that what it holds now proves nothing."""
    index = Tensor.param("index", [0, 9])
    plan = Tensor.input("x", (ROWS,)).take(index).prepare()
    with pytest.raises(IndexRangeError, match="got 9"):
        plan(x=np.zeros(ROWS, np.float32))

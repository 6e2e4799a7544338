"""Surprising but intended: one test, one sentence each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import semel
from semel import IndexRangeError, Tensor, Variable
from semel.ir.graph import Graph
from semel.ops.evaluate import evaluate


def reference(tensor: Tensor, **inputs: Any) -> np.ndarray:
    return evaluate(Graph((tensor.node,)), inputs)[0]


def test_assignment_leaves_tensors_made_earlier_alone() -> None:
    t = Tensor([1.0, 2.0, 3.0])
    doubled = t * 2
    t[0] = 9
    assert reference(t).tolist() == [9, 2, 3]
    assert reference(doubled).tolist() == [2, 4, 6]


def test_two_names_of_one_handle_see_an_assignment_both() -> None:
    """Python gives one object two names; `Tensor(t)` makes a handle of its own."""
    t = Tensor([1.0, 2.0])
    same, other = t, Tensor(t)
    t[0] = 9
    assert reference(same).tolist() == [9, 2]
    assert reference(other).tolist() == [1, 2]


def test_in_place_operators_rebind_the_name() -> None:
    t = Tensor([1.0, 2.0])
    before = t
    t += 1
    assert reference(before).tolist() == [1, 2]
    assert reference(t).tolist() == [2, 3]


def test_a_view_does_not_write_through() -> None:
    t = Tensor([[1.0, 2.0], [3.0, 4.0]])
    row = t[0]
    row[0] = 9
    assert reference(t).tolist() == [[1, 2], [3, 4]]


def test_assignment_after_the_value_was_read_is_seen() -> None:
    t = Tensor([1.0, 2.0])
    assert t.tolist() == [1, 2]
    t[:] = 5
    assert reference(t).tolist() == [5, 5]


def test_changing_the_source_array_changes_nothing() -> None:
    array = np.ones(3, np.float32)
    t = Tensor(array) * 2
    array[:] = 0
    assert reference(t).tolist() == [2, 2, 2]


def test_a_variable_that_is_one_broadcasts_in_that_run() -> None:
    n, m = Variable("n", 1, 4), Variable("m", 1, 4)
    both = Tensor.input("x", (n,)) + Tensor.input("y", (m,))
    assert reference(both, x=np.ones(1, np.float32), y=np.ones(4, np.float32)).shape == (4,)
    with pytest.raises(semel.VariableError, match="Found m=4, n=2"):
        reference(both, x=np.ones(2, np.float32), y=np.ones(4, np.float32))


def test_uint64_and_signed_integers_compare_by_value_and_do_not_mix() -> None:
    big, small = Tensor(np.array([2**63, 2**64 - 1], np.uint64)), Tensor([-1, 5])
    assert reference(big > small).tolist() == [True, True]
    with pytest.raises(semel.GraphError, match="uint64 and int64 have no integer dtype in common"):
        big + small


def test_classes_do_not_count_from_the_end() -> None:
    """As in torch, and unlike an index: -1 is no class, and -100 stands for none."""
    logits = Tensor(np.zeros((2, 3), np.float32))
    with pytest.raises(IndexRangeError, match=r"class must lie in \[0, 3\), got -1"):
        logits.cross_entropy([0, -1]).numpy()
    assert logits.cross_entropy([0, -100]).item() == pytest.approx(np.log(3))


def test_a_python_number_is_part_of_the_graph_and_a_variable_is_not() -> None:
    n = Variable("n", 1, 8)
    x = Tensor.input("x", (n,))
    mean = x.sum() / n
    for size in (2, 5):
        assert reference(mean, x=np.ones(size, np.float32)) == 1


def test_the_same_key_draws_the_same_numbers_in_every_run() -> None:
    x = Tensor.input("x", (3,))
    noisy = x + semel.rand(3, key=semel.key(1))
    zeros = np.zeros(3, np.float32)
    assert np.array_equal(reference(noisy, x=zeros), reference(noisy, x=zeros))


def test_a_key_that_is_an_input_draws_anew() -> None:
    key = Tensor.input("key", (2,), "uint32")
    noise = semel.rand(3, key=key)
    first = reference(noise, key=np.array([1, 0], np.uint32))
    assert not np.array_equal(first, reference(noise, key=np.array([2, 0], np.uint32)))


def test_an_index_out_of_range_is_an_error_at_run_time() -> None:
    x = Tensor.input("x", (3,))
    index = Tensor.input("i", (2,), "int64")
    picked = x[index]
    data = np.ones(3, np.float32)
    with pytest.raises(IndexRangeError, match=r"must lie in \[-3, 3\), got 3") as caught:
        reference(picked, x=data, i=np.array([0, 3]))
    assert (caught.value.index, caught.value.size) == (3, 3)  # type: ignore[attr-defined]
    assert reference(picked, x=data, i=np.array([-3, 2])).tolist() == [1, 1]


def test_a_symbolic_index_that_may_leave_the_axis_is_checked_at_run_time() -> None:
    n = Variable("n", 0, 8)
    x = Tensor.input("x", (4,)) + 0 * Tensor.input("y", (n,)).sum()
    data = np.arange(4, dtype=np.float32)
    assert reference(x[n], x=data, y=np.ones(3, np.float32)) == 3
    with pytest.raises(IndexRangeError, match=r"must lie in \[-4, 4\), got 4"):
        reference(x[n], x=data, y=np.ones(4, np.float32))


def test_equality_is_by_element_so_in_asks_for_values() -> None:
    t = Tensor([1.0, 2.0])
    assert reference(t == [1.0, 3.0]).tolist() == [True, False]


def test_the_last_of_two_writes_to_one_place_wins() -> None:
    t = Tensor([0.0, 0.0])
    t[[1, 1, 1]] = np.array([1, 2, 3], np.float32)
    assert reference(t).tolist() == [0, 3]


def test_masks_with_nan_do_not_poison_the_other_side() -> None:
    x = Tensor([0.0, 4.0])
    safe = semel.where(x > 0, x.log(), 0.0)
    assert reference(safe)[0] == 0

"""Nodes: equal ones are one as long as somebody holds it, and numbers are kept for a while."""

from __future__ import annotations

import gc
import threading
from typing import Any
from weakref import ref

import numpy as np

from semel import Tensor, Variable, full
from semel.ir.graph import Node, make_node
from semel.ir.types import FLOAT32, INT64
from semel.ir.weak import WeakTable
from semel.ops.attrs import ReduceAttrs
from semel.tensor.handle import scalar


class Thing:
    """Something that can be referred to weakly."""


# ---------------------------------------------------------------- tables


def test_a_table_holds_what_others_hold() -> None:
    table: WeakTable[Thing] = WeakTable()
    first, second = Thing(), Thing()
    assert table.get("a") is None
    assert table.setdefault("a", first) is first
    assert table.setdefault("a", second) is first
    assert table.get("a") is first and len(table) == 1
    del first
    assert table.get("a") is None and len(table) == 0
    assert table.setdefault("a", second) is second


def test_what_is_told_late_takes_nobody_elses_place() -> None:
    table: WeakTable[Thing] = WeakTable()
    first, second = Thing(), Thing()
    table.setdefault("a", first)
    entry = table._entries["a"]
    del first
    table.setdefault("a", second)
    table._forget(entry)  # as another thread may do, by the time that the key is another one's
    assert table.get("a") is second


def test_equal_nodes_of_many_threads_are_one() -> None:
    x = Tensor.input("x", (64,)).node
    made: list[Node] = []

    def make() -> None:
        made.extend(
            make_node("reduce_sum", (x,), ReduceAttrs((0,), bool(k % 2))) for k in range(50)
        )

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 2


def test_a_node_goes_with_whoever_holds_it() -> None:
    x = Tensor.input("x", (64,))
    gone = ref((x * 2 + 1).node)
    gc.collect()
    assert gone() is None


def test_leaves_of_a_type_share_what_follows_from_it() -> None:
    a, b = (Tensor(np.full(3, k, np.float32)) for k in range(2))
    assert a.node is not b.node and a.node.rule is b.node.rule
    assert a.node.rule is not Tensor(np.ones(4, np.float32)).node.rule
    assert a.node.rule is not Tensor.input("x", (3,)).node.rule
    y, z = Tensor.input("y", (3,)), Tensor.input("z", (3,))
    assert y.node is not z.node and y.node.rule is z.node.rule
    assert Tensor.input("y", (3,)).node is y.node


# ---------------------------------------------------------------- numbers


def test_numbers_are_told_apart_by_their_bits() -> None:
    values: list[Any] = [0.0, -0.0, 1.0, float("nan"), float("inf")]
    nodes = [scalar(v, FLOAT32).node for v in values]
    assert len(set(nodes)) == len(values)
    assert [np.signbit(n.attrs.value) for n in nodes[:2]] == [False, True]
    assert scalar(0, FLOAT32).node is nodes[0] and scalar(True, FLOAT32).node is nodes[2]
    assert scalar(float("nan"), FLOAT32).node is nodes[3]
    assert scalar(1, INT64).node is not nodes[2]
    x = Tensor(np.ones(3, np.float32))
    for zero in (0.0, -0.0, 0.0, np.float32(-0.0)):
        np.testing.assert_array_equal(np.signbit((x * zero).numpy()), [np.signbit(zero)] * 3)


def test_which_nodes_are_numbers() -> None:
    x = Tensor.input("x", (2, 3))
    (_, two) = (x * 2).node.inputs
    assert two.is_number and not x.node.is_number and not x.reshape(3, 2).node.is_number
    assert Tensor(2.0).broadcast_to((2, 3)).transpose().node.is_number
    assert not (Tensor(2.0) + 1).node.is_number


def test_a_number_is_one_node_whatever_its_shape() -> None:
    x = Tensor.input("x", (7, 2))
    for k in range(10):
        number = (x * k).node.inputs[1]
        assert number is (x + k).node.inputs[1] is full((7, 2), float(k)).node
        assert number.op.is_literal and number.type == x.type and not number.inputs
    assert (x * 2).node.inputs[1] is not (x.transpose() * 2).node.inputs[1]


def test_a_number_of_symbolic_size_is_seen_through_views() -> None:
    n = Variable("n", 1, 8)
    number = (Tensor.input("x", (n, 2)) * 3).node.inputs[1]
    assert number.is_number and number.op.name == "expand" and number.rule.variables == {n}


def test_repeated_tensors_of_one_element_are_not_kept() -> None:
    data = np.ones(9, np.float32)
    total = Tensor(data).sum()
    (_, wide) = (Tensor.input("x", (3,)) * total).node.inputs
    gone = ref(total.node)
    del total, wide
    assert gone() is None


def test_a_kept_number_says_nothing_of_another_graph() -> None:
    x = Tensor.input("x", (11,))
    zeros = (x + 0).node.inputs[1]
    zeros.origins = ("elsewhere.py:1",)  # as a pass does, which finds that all of it is zero
    assert (x - 0).node.inputs[1] is zeros and not zeros.origins


def test_a_number_that_has_a_late_size_keeps_nothing_alive() -> None:
    x = Tensor(np.ones(9, np.float32)) * 2
    mask = x > 0
    gone = ref(mask.node)
    assert (x[mask] * 3).sum().item() == 54
    del x, mask
    gc.collect()
    assert gone() is None


def test_numbers_of_a_body_are_its_own() -> None:
    x = Tensor.input("x", (5,))
    outside = (x * 3).node.inputs[1]
    seen: list[Node] = []

    def body(step: Any, states: Any) -> Any:
        made = states[0] * 3
        seen.append(made.node.inputs[1])
        return [made], []

    (y,), _ = Tensor.loop(2, [x], body)
    assert seen and seen[0] is not outside
    np.testing.assert_array_equal(y.prepare()(x=np.ones(5, np.float32)), np.full(5, 9))

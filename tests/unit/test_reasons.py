"""Why nodes start kernels: records with a code each, for every group, in loops too."""

from __future__ import annotations

from typing import Any

import numpy as np

from semel import Tensor
from semel.ir.graph import Graph
from semel.ops.outputs import copy_leaf_outputs
from semel.schedule import reasons
from semel.schedule.group import Schedule
from semel.schedule.groups import build_schedule
from semel.schedule.reasons import Why


def _schedule(*outputs: Tensor, **options: Any) -> Schedule:
    return build_schedule(copy_leaf_outputs(Graph(tuple(t.node for t in outputs))), **options)


def _codes(schedule: Schedule) -> list[str]:
    return [group.reason.why.code for group in schedule.groups]


def test_codes_name_one_rule_each() -> None:
    fixed = [value for value in vars(reasons).values() if isinstance(value, Why)]
    assert len(fixed) > 20
    assert len({why.code for why in fixed}) == len(fixed)


def test_a_group_knows_its_root_and_why() -> None:
    x = Tensor.input("x", (64, 64))
    schedule = _schedule(x.cumsum(0) @ x)
    assert all(group.reason.node is group.root for group in schedule.groups)
    assert _codes(schedule)[-1] == "output"
    assert {group.reason for group in schedule.groups} == set(schedule.reasons)


def test_without_fusion_all_say_so() -> None:
    x = Tensor.input("x", (8,))
    assert _codes(_schedule(x.exp().sqrt(), fusion=False)) == ["fusion_off", "output"]


def test_what_one_group_takes_and_another_refuses_has_a_reason() -> None:
    x, y = Tensor.input("x", (64, 64)), Tensor.input("y", (64, 2048))
    shared = x.exp()
    schedule = _schedule(shared[1:].exp(), shared @ y)
    stored = next(group for group in schedule.groups if group.root.op.name == "exp")
    assert stored.reason.why in (reasons.OPERAND, reasons.many_kernels(2))


def test_a_contraction_stores_what_several_read_in_another_shape() -> None:
    """Were the other shape stored, what follows the contraction would be a kernel of its own."""
    x, w, b = Tensor.input("x", (8, 64)), Tensor.input("w", (64, 96)), Tensor.input("b", (96,))
    first, second, third = (x @ w + b).reshape(8, 3, 4, 8).unbind(1)
    schedule = _schedule(first.exp(), second.sum(-1), third.sin())
    (stored,) = [group for group in schedule.groups if group.contract is not None]
    assert stored.root.op.name == "add"
    assert len(schedule.groups) == 4
    assert stored.reason.why is reasons.FOLLOWS_CONTRACTION


def test_what_one_of_several_readers_can_store_in_another_shape_it_does() -> None:
    x, y = Tensor.input("x", (8, 64)), Tensor.input("y", (8, 64))
    turned = (x + y).reshape(4, 128)
    schedule = _schedule(turned.sum(-1), turned.exp())
    assert len(schedule.groups) == 2


def test_who_joins_another_says_whom() -> None:
    x = Tensor.input("x", (64, 64))
    schedule = _schedule(x.sin(), x.cos())
    (joined,) = [reason for reason in schedule.reasons if reason.joins is not None]
    assert joined.why is reasons.SAME_READS
    assert joined.joins is schedule.groups[0].root


def test_a_loop_has_the_reasons_of_its_body() -> None:
    def body(step: Any, states: tuple[Tensor, ...]) -> tuple[list[Tensor], list[Tensor]]:
        return [states[0].cumsum(0) * 2], []

    (last,), _ = Tensor.loop(3, [Tensor(np.ones(8, np.float32))], body)
    schedule = _schedule(last)
    (loop,) = [group for group in schedule.groups if group.body is not None]
    assert loop.body is not None
    ((_, inner),) = loop.bodies
    assert "iteration" in _codes(inner)
    assert all(f"in a loop: {reason}" in schedule.log for reason in inner.reasons)
    assert len(schedule.log) == len(schedule.reasons) + len(inner.reasons)

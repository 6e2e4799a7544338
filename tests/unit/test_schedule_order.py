"""The order of groups: dependencies first, ties by rank, a cycle is reported and named."""

from __future__ import annotations

from itertools import pairwise

import pytest

from semel.errors import InternalError
from semel.ir.graph import Node, make_node
from semel.ir.types import FLOAT32
from semel.ops.attrs import ScalarAttrs
from semel.schedule.group import Group
from semel.schedule.group_order import order_groups
from semel.schedule.reasons import IS_OUTPUT, Reason


def _group(root: Node) -> Group:
    return Group(root, "loops", (), Reason(root, IS_OUTPUT))


A, B, C, D = (_group(make_node("scalar", (), ScalarAttrs(float(n), FLOAT32))) for n in range(4))
RANK = {A: 0, B: 1, C: 2, D: 3}


def test_groups_come_after_what_they_need() -> None:
    assert order_groups({A: {D}, B: {A}, C: set(), D: set()}, RANK) == [D, A, B, C]
    assert order_groups({D: {A, B, C}, A: {C, B}, B: set(), C: set()}, RANK) == [B, C, A, D]
    assert order_groups({C: set(), A: set(), B: set()}, RANK) == [A, B, C]


def test_a_group_may_be_needed_on_several_ways() -> None:
    assert order_groups({A: {B, C}, B: {C, D}, C: {D}, D: set()}, RANK) == [D, C, B, A]


def test_a_long_chain_needs_no_recursion() -> None:
    groups = [_group(A.root) for _ in range(5000)]
    depends = {g: {h} for g, h in pairwise(groups)} | {groups[-1]: set()}
    rank = {g: n for n, g in enumerate(groups)}
    assert order_groups(depends, rank) == groups[::-1]


def test_a_cycle_is_named() -> None:
    depends = {A: {B}, B: {C}, C: {D}, D: {B}}
    names = " needs ".join(repr(g.root) for g in (B, C, D, B))
    with pytest.raises(InternalError, match="must not need themselves") as caught:
        order_groups(depends, RANK)
    assert names in str(caught.value)
    with pytest.raises(InternalError, match="must not need themselves"):
        order_groups({A: {A}}, RANK)

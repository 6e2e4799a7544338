"""Kernels of groups that another graph had: found again, on the new graph's tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import semel
import semel.lower
from semel import IndexRangeError, Tensor
from semel.compiler import known_kernels as known_module
from semel.compiler import pipeline
from semel.compiler.known_kernels import KnownKernels
from semel.compiler.programs import forget_programs
from semel.lower import share_kernels

X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The groups that were lowered, not found."""
    found: list[Any] = []
    lower = semel.lower.lower_group

    def seen(group: Any, *rest: Any) -> Any:
        found.append(group)
        return lower(group, *rest)

    monkeypatch.setattr(semel.lower, "lower_group", seen)
    return found


def a(name: str = "x", shape: Any = (3, 4)) -> Tensor:
    return Tensor.input(name, shape)


def test_a_group_of_another_graph_is_found(lowered: list[Any]) -> None:
    first = (a() * 2 + 1).sum(1).prepare()
    (one,) = lowered
    again = {"y": (a("z") * 2 + 1).sum(1), "more": a("z").T @ a("z")}
    plan = semel.prepare(again)
    assert one is lowered[0] and len(lowered) == 2  # the product
    np.testing.assert_array_equal(first(x=X), (X * 2 + 1).sum(1))
    got = plan(z=X)
    np.testing.assert_array_equal(got[0], (X * 2 + 1).sum(1))
    np.testing.assert_array_equal(got[1], X.T @ X)
    assert "more" in plan.outputs and plan.prepared_kernels[0].origins


def test_roles_are_kept_whatever_the_order_of_the_operands(lowered: list[Any]) -> None:
    (a("p") - a("q") * 3).prepare()
    plan = (a("q") - a("p") * 3).prepare()
    assert len(lowered) == 1
    np.testing.assert_array_equal(plan(p=X, q=X + 1), X + 1 - X * 3)


@pytest.mark.parametrize(
    "other",
    [
        lambda: (a() * 3 + 1).sum(1),
        lambda: (a() * 2 + 1).sum(0),
        lambda: (a(shape=(4, 3)) * 2 + 1).sum(1),
        lambda: (a().cast("float64") * 2 + 1).sum(1),
        lambda: (a() * 2 + 1).max(1),
        lambda: (a().T * 2 + 1).sum(1),
    ],
)
def test_another_computation_is_another_kernel(lowered: list[Any], other: Any) -> None:
    (a() * 2 + 1).sum(1).prepare()
    other().prepare()
    assert len(lowered) == 2


def test_an_error_names_the_line_of_its_own_graph(lowered: list[Any]) -> None:
    index = Tensor.input("i", (2,), "int64")
    first = a().take(index, 0).prepare()
    forget_programs()
    second = a().take(index, 0).prepare()
    assert len(lowered) == 2  # kernels with checks are not kept
    for plan in (first, second):
        with pytest.raises(IndexRangeError, match="index must lie in"):
            plan(x=X, i=np.array([0, 7]))


def test_the_latest_are_known(monkeypatch: pytest.MonkeyPatch, lowered: list[Any]) -> None:
    known = KnownKernels()
    monkeypatch.setattr(pipeline, "known_kernels", known)
    monkeypatch.setattr(known_module, "MAX_KNOWN", 2)
    for name, k in (("p", 2), ("q", 3), ("r", 4), ("s", 2)):
        (a(name) * k).prepare()
    assert len(known._known) == 2 and len(lowered) == 4
    (a("y") * 2).prepare()
    assert len(lowered) == 4
    known.forget()
    (a("z") * 2).prepare()
    assert len(lowered) == 5


def test_large_groups_are_not_kept(monkeypatch: pytest.MonkeyPatch, lowered: list[Any]) -> None:
    monkeypatch.setattr(share_kernels, "MAX_NODES", 2)
    for name in ("x", "y"):
        (a(name) * 2 + 1).exp().prepare()
    assert len(lowered) == 2

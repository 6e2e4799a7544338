"""How many functions Python calls on ways that must stay short: no clock, so no noise.

The bounds leave a quarter of room. Whoever needs more of it has made something slower.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from semel import Tensor
from semel.compiler.eager import forget_eager

DATA = np.linspace(-1, 1, 64, dtype=np.float32)


def count_calls(action: Callable[[], Any]) -> int:
    """The calls of functions, Python's and others, of the third time that it is done."""
    count = 0

    def see(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    for _ in range(2):
        action()
    before = sys.getprofile()
    sys.setprofile(see)
    try:
        action()
    finally:
        sys.setprofile(before)
    return count


def a_sum() -> Any:
    return (Tensor(DATA) * 2).sum().item()


def a_selection() -> Any:
    x = Tensor(DATA)
    return x[x > 0].numpy()


def a_new_form() -> Any:
    forget_eager()
    return a_sum()


@pytest.mark.parametrize(("action", "most"), [(a_sum, 420), (a_selection, 650), (a_new_form, 3600)])
def test_values_without_a_plan(action: Callable[[], Any], most: int) -> None:
    assert count_calls(action) <= most


def test_arrays_that_take_turns() -> None:
    plan = (Tensor.input("x", (64,)) * 2).prepare(threads=1)
    arrays = [DATA.copy() for _ in range(8)]
    bind = iter(arrays)
    assert count_calls(lambda: plan.bind_input("x", next(bind))) <= 17
    turns = [arrays[0], arrays[1]] * 2
    bind = iter(turns)
    assert count_calls(lambda: plan.bind_input("x", next(bind))) <= 12

"""Destructors that come back to a plan which the collector is about to free.

The collector calls the destructors of a whole cycle first, and frees it after that: until then
all that belongs to the plan must be there, its place in the runner and its code too.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.plan.test_code_life import forget_code

from semel import Tensor, Variable
from semel.devices.cpu.codespace import code_space
from semel.errors import ReleasedError, SemelError
from semel.plan.plan import ExecutionPlan
from semel.runtime.device import find_device
from semel.runtime.freed import when_freed

X = np.arange(12, dtype=np.int32).reshape(3, 4)
MORE = np.arange(400, dtype=np.int32).reshape(100, 4)  # than the first capacity


def _plan(number: int) -> ExecutionPlan:
    """A kernel that no other number has."""
    x = Tensor.input("x", (Variable("n", 1), 4), "int32")
    plan = (x * 3 + number).prepare(threads=1)
    plan(x=X)
    return plan


class Speaker:
    """Part of a cycle with a plan; has the last word."""

    def __init__(self, words: Callable[[], Any], heard: list[Any]) -> None:
        self.words, self.heard, self.me = words, heard, self

    def __del__(self) -> None:
        try:
            self.heard.append(self.words())
        except SemelError as error:
            self.heard.append(error)


def _speak(words: Callable[[ExecutionPlan], Any], number: int, *, is_first: bool) -> Any:
    """What `words(plan)` gives in a destructor, with nobody left who holds the plan or its code."""
    heard: list[Any] = []
    if is_first:  # the collector goes by age
        speaker = Speaker(lambda: None, heard)
        plan = _plan(number)
        speaker.words = partial(words, plan)
        del speaker
    else:
        plan = _plan(number)
        Speaker(partial(words, plan), heard)
    del plan
    forget_code()
    gc.collect()
    (found,) = heard
    return found


def _run(plan: ExecutionPlan) -> Any:
    plan.execute()
    return plan.output_buffer.numpy()


def _run_beside_another(plan: ExecutionPlan) -> Any:
    """The place and the pages of the plan would be taken by then."""
    others = [_plan(k) for k in range(500, 505)]
    found = plan(x=X)
    for k, other in enumerate(others, 500):
        np.testing.assert_array_equal(other(x=X), X * 3 + k)
    return found


LAST_WORDS: dict[str, tuple[Callable[[ExecutionPlan], Any], np.ndarray]] = {
    "execute": (_run, X),
    "call": (lambda plan: plan(x=X), X),
    "grow": (lambda plan: plan(x=MORE), MORE),
    "clone": (lambda plan: plan.clone()(x=X), X),
    "profile": (lambda plan: plan.execute_profiled(limits=False) and _run(plan), X),
    "beside another": (_run_beside_another, X),
}


@pytest.mark.parametrize("is_first", [True, False], ids=["older", "younger"])
@pytest.mark.parametrize("words", LAST_WORDS)
def test_a_destructor_in_the_same_cycle_runs_the_plan(words: str, is_first: bool) -> None:
    action, array = LAST_WORDS[words]
    found = _speak(action, 40, is_first=is_first)
    np.testing.assert_array_equal(found, array * 3 + 40)


@pytest.mark.usefixtures("settled")
def test_everything_goes_after_the_last_words() -> None:
    device: Any = find_device("cpu")
    _plan(0)
    forget_code()
    gc.collect()
    before = code_space.used_bytes, len(device._free)
    _speak(_run, 41, is_first=True)
    assert (code_space.used_bytes, len(device._free)) == before


def test_a_plan_that_a_destructor_saves_goes_on() -> None:
    saved: list[ExecutionPlan] = []
    _speak(saved.append, 42, is_first=True)
    (plan,) = saved
    others = [_plan(k) for k in range(500, 505)]
    np.testing.assert_array_equal(plan(x=X), X * 3 + 42)
    np.testing.assert_array_equal(plan(x=MORE), MORE * 3 + 42)
    np.testing.assert_array_equal(others[0](x=X), X * 3 + 500)


def test_an_input_that_outlives_its_plan_does_not_grow_into_the_output() -> None:
    plan = _plan(43)
    given, result = plan.buffers[plan.engine.state.inputs["x"].index], plan.output_buffer
    del plan
    given.copyin(X + 1)
    with pytest.raises(ReleasedError, match=r"'n' is 100, there is room for 64 .* is gone"):
        given.copyin(MORE)
    np.testing.assert_array_equal(given.numpy(), X + 1)
    np.testing.assert_array_equal(result.numpy(), X * 3 + 43)


def test_a_token_is_nothing_that_the_collector_sees() -> None:
    freed: list[str] = []
    token = when_freed(freed.append, "freed")
    assert not gc.is_tracked(token)
    held: list[Any] = [token]
    held.append(held)
    del token, held
    assert not freed
    gc.collect()
    assert freed == ["freed"]


def test_an_entry_that_points_nowhere_is_a_released_plan() -> None:
    """As an interruption leaves it that comes before the plan could say so."""
    plan = _plan(44)
    plan.engine.executable.stop()
    with pytest.raises(ReleasedError, match="interrupted"):
        plan.execute()
    with pytest.raises(ReleasedError, match="interrupted"):
        plan(x=X)

"""What is done to plans while a signal comes, and what must hold afterwards.

    World: plans, and arrays that they may have been given
    ACTIONS x HANDLERS  --check-->  right numbers, or errors of ours; nothing locked for ever

A handler raises, uses everything that there is, collects garbage with destructors that do so, or
forks. Then the action either goes on to its end, and what it gives is right, or it is over. In
both cases every plan gives right numbers after it, or says that it cannot be used.
"""

from __future__ import annotations

import gc
import itertools
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import numpy as np

from semel import SemelError, Tensor, Variable
from semel.errors import BusyError, ReleasedError
from semel.plan.plan import ExecutionPlan

Array = np.ndarray[Any, Any]

A = np.arange(12, dtype=np.int32).reshape(3, 4)
B = A[::-1] + 100  # the same shape
C = np.arange(20, dtype=np.int32).reshape(5, 4) - 7
MORE = np.arange(400, dtype=np.int32).reshape(100, 4)  # than the first capacity
WAIT_S = 30

_numbers = itertools.count(1000)


class StopError(Exception):
    """What a handler raises."""


def graph(factor: int) -> Tensor:
    """A computation that is exact, and another one for each factor."""
    x = Tensor.input("x", (Variable("n", 1), 4), "int32")
    return (x * factor).sum(1, keepdims=True) + x


def wanted(factor: int, x: Array) -> Array:
    return (x * factor).sum(1, keepdims=True) + x


def expect(found: Any, factor: int, x: Array) -> None:
    right = wanted(factor, x)
    # Not `np.array_equal`, which takes what a handler raises inside it for a difference.
    if found.shape != right.shape or not (found == right).all():
        raise AssertionError(f"{found!r} is not {right!r}")


def is_one_of(found: Array, known: Iterable[Array]) -> bool:
    return any(found.shape == each.shape and bool((found == each).all()) for each in known)


class World:
    """A plan that something is done to, one that is only there, and values of both forms."""

    def __init__(self, threads: int = 1) -> None:
        self.plan: ExecutionPlan = graph(5).prepare(threads=threads)
        self.other: ExecutionPlan = graph(-7).prepare(threads=threads)
        for plan in (self.plan, self.other):
            plan(x=A)
        self.given = [A]  #: what the plan's input may hold
        self.input = self.plan.buffers[self.plan.engine.state.inputs["x"].index]

    def call(self, x: Array) -> None:
        self.given.append(x)
        expect(self.plan(x=x), 5, x)

    def write(self, x: Array) -> None:
        self.given.append(x)
        self.input.copyin(x)

    def bind_input(self) -> None:
        x = B.copy()
        self.given.append(x)
        self.plan.bind_input("x", x)
        self.plan.execute()
        expect(self.plan.output_buffer.numpy(), 5, x)
        self.plan.unbind()

    def bind_output(self) -> None:
        y = np.zeros_like(wanted(5, A))
        self.plan.bind_output("output0", y)
        self.plan.execute()
        expect(y, 5, A)
        self.plan.unbind()

    def run(self) -> None:
        self.plan.execute()
        expect(self.plan.output_buffer.numpy(), 5, A)

    def run_with(self) -> None:
        self.plan.execute_with_vars(n=3)
        expect(self.plan.output_buffer.numpy(), 5, A)

    def refused(self) -> None:
        with suppress(SemelError):
            self.plan.execute_with_vars(n=7)

    def profile(self) -> None:
        self.plan.execute_profiled(limits=False)
        expect(self.plan.output_buffer.numpy(), 5, A)

    # ------------------------------------------------------------ what must hold

    def use(self) -> None:
        """Everything, from inside of an action: the plan may be in the middle of something."""
        with suppress(BusyError, ReleasedError):
            self.plan.clone()
        with suppress(SemelError):
            self.plan.execute()
        use_others(self.other)

    def check(self) -> None:
        """From outside: no part of it may be held, and nothing may be torn."""
        try:
            self._check_contents()
            self.plan.unbind()
            expect(self.plan(x=C), 5, C)
            expect(self.plan(x=MORE), 5, MORE)
        except ReleasedError:
            pass
        use_others(self.other)
        in_time(lambda: use_others(self.other))

    def _check_contents(self) -> None:
        """Outputs are those of something that was given, and so is the input."""
        with suppress(SemelError):
            found = self.plan.output_buffer.numpy()
            right = [wanted(5, x) for x in self.given]
            assert is_one_of(found, right), f"the output was {found!r}"
        try:
            x = self.input.numpy()
            assert is_one_of(x, self.given), f"the input was {x!r}"
            self.plan.execute()
        except BusyError:
            raise
        except SemelError:
            return
        expect(self.plan.output_buffer.numpy(), 5, x)


def use_others(plan: ExecutionPlan) -> None:
    """A plan that nothing was done to, and what is made anew."""
    expect(plan(x=B), -7, B)
    expect(plan(x=C), -7, C)
    expect(graph(5).prepare(threads=1)(x=B), 5, B)
    use_eager(B)


def use_eager(x: Array, factor: int = 3) -> None:
    expect(((Tensor(x) * factor).sum(1, keepdims=True) + Tensor(x)).numpy(), factor, x)


def in_time(action: Callable[[], object]) -> None:
    """On another thread, which must not wait for ever."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive(), "something is locked for ever"
    for failure in failures:
        raise failure


# ---------------------------------------------------------------- actions


def _prepare_anew() -> None:
    factor = next(_numbers)
    expect(graph(factor).prepare(threads=1)(x=A), factor, A)


def _eager_anew() -> None:
    width = next(_numbers)
    use_eager(np.ones((2, width), np.int32))


ACTIONS: dict[str, Callable[[World], object]] = {
    "call again": lambda world: world.call(B),
    "call": lambda world: world.call(C),
    "grow": lambda world: world.call(MORE),
    "execute": World.run,
    "execute with": World.run_with,
    "refused": World.refused,
    "write": lambda world: world.write(B),
    "write another shape": lambda world: world.write(C),
    "write more": lambda world: world.write(MORE),
    "bind input": World.bind_input,
    "bind output": World.bind_output,
    "clone": lambda world: expect(world.plan.clone()(x=C), 5, C),
    "profile": World.profile,
    "release intermediates": lambda world: world.plan.release_intermediate_buffers(),
    "release": lambda world: world.plan.release_all_buffers(),
    "save": lambda world: world.plan.pack(),
    "find again": lambda world: expect(graph(5).prepare(threads=1)(x=B), 5, B),
    "prepare": lambda world: _prepare_anew(),
    "value": lambda world: use_eager(B),
    "value of another number": lambda world: use_eager(B, next(_numbers)),
    "value of another form": lambda world: _eager_anew(),
}

# ---------------------------------------------------------------- handlers


class Speaker:
    """Garbage that comes back to a plan, which is part of it, and to what is not."""

    def __init__(self, world: World, failures: list[BaseException]) -> None:
        self.world, self.failures, self.me = world, failures, self
        self.plan: ExecutionPlan = graph(5).prepare(threads=1)

    def __del__(self) -> None:
        try:
            expect(self.plan(x=C), 5, C)
            self.world.use()
        except BaseException as error:
            self.failures.append(error)


def _raise(world: World) -> None:
    raise StopError("enough")


def _collect(world: World) -> None:
    failures: list[BaseException] = []
    Speaker(world, failures)
    gc.collect()
    for failure in failures:
        raise failure


def _fork(world: World) -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            world.use()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "a child failed"


HANDLERS: dict[str, Callable[[World], None]] = {
    "raises": _raise,
    "uses": World.use,
    "collects": _collect,
    "forks": _fork,
}

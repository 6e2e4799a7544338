"""A process in which everything happens at once; `test_storms` runs it.

    python -m tests.fuzz.storms SEED SECONDS

Two threads prepare fresh plans and run one that they share. The main thread does the same while a
timer sends signals at random moments, whose handler uses the plan that may be running, collects
garbage with destructors that do so, or raises. Now and then it forks, and the child prepares and
runs plans with timers of its own. A result is right, or the error is one of ours: anything
else ends the process with a traceback. What hangs is shown by `faulthandler`, and ended.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import numpy as np

from semel import SemelError, Tensor, Variable, config
from semel.plan.plan import ExecutionPlan

CHILD_SECONDS, HANG_SECONDS = 40, 90


class StormError(Exception):
    """What the handler raises."""


class Case:
    """A plan, and what it must give: exactly, for it computes with integers."""

    def __init__(self, rng: Random) -> None:
        self.width, self.factor = rng.randrange(1, 40), rng.randrange(-9, 9)
        n = Variable("n", 1, rng.choice([64, None]))
        x = Tensor.input("x", (n, self.width), "int32")
        y = (x * self.factor).sum(1, keepdims=True) + x
        self.plan: ExecutionPlan = y.prepare(threads=rng.choice([1, 2]))

    def array(self, rng: Random) -> np.ndarray:
        rows = rng.choice([1, 3, 17, 64])
        return np.full((rows, self.width), rng.randrange(-99, 99), np.int32)

    def run(self, rng: Random) -> None:
        """Once; the error is one of ours if it is refused."""
        array = self.array(rng)
        want = (array * self.factor).sum(1, keepdims=True) + array
        got = self.plan(x=array)
        # Not `np.array_equal`, which takes what a handler raises inside it for a difference.
        if got.shape != want.shape or not (got == want).all():
            found, asked = (f"{a.shape} {a.ravel()[:6]}" for a in (got, want))
            raise AssertionError(f"wrong: {found} is not {asked}, {self.plan.threads} threads")

    def bind(self, array: Any) -> None:
        self.plan.bind_input("x", array)
        self.plan.unbind()

    def meddle(self, rng: Random) -> None:
        """Anything that would change a run: accepted between runs, refused inside one."""
        plan, array = self.plan, self.array(rng)
        choices: list[Callable[[], Any]] = [
            plan.execute,
            plan.clone,
            plan.release_intermediate_buffers,
            lambda: plan.execute_with_vars(n=rng.randrange(1, 64)),
            lambda: plan.buffers[plan.engine.state.inputs["x"].index].copyin(array),
            plan.output_buffer.numpy,
            lambda: self.bind(array),
        ]
        rng.choice(choices)()


class Garbage:
    """Comes back to a plan when it is collected: a cycle, so that the collector decides when."""

    def __init__(self, case: Case, rng: Random) -> None:
        self.case, self.rng, self.me = case, rng, self

    def __del__(self) -> None:
        with suppress(SemelError):
            self.case.meddle(self.rng)


class Storm:
    """The main thread's part; `case` is what the handler and destructors come back to."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.case = Case(self.rng)
        self.failures: list[BaseException] = []
        self.stop = threading.Event()
        self.may_raise = False
        self.counts = dict.fromkeys(("runs", "refused", "interrupted", "forks", "signals"), 0)

    def handle(self, *_: object) -> None:
        """One signal; the next one comes a while after this is over."""
        self.counts["signals"] += 1
        action = self.rng.randrange(4)
        if action == 0 and self.may_raise:
            self.may_raise = False
            self.arm()
            raise StormError
        if action == 1:
            gc.collect()
        elif action == 2:
            Garbage(self.case, self.rng)
        with suppress(SemelError):
            self.case.meddle(self.rng)
        self.arm()

    def arm(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self.rng.uniform(1e-4, 5e-3))

    def weather(self, seconds: float) -> None:
        """Runs, changes and prepares under signals."""
        signal.signal(signal.SIGALRM, self.handle)
        self.arm()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.failures:
            try:
                self.attempt()
                self.counts["runs"] += 1
            except SemelError:
                self.counts["refused"] += 1
                self.case = Case(self.rng)  # it may have been interrupted for good
            except StormError:
                self.counts["interrupted"] += 1
        self.calm()

    def attempt(self) -> None:
        """What may be interrupted, once."""
        try:
            self.may_raise = True
            self.act()
        finally:
            self.may_raise = False

    def act(self) -> None:
        for _ in range(20):
            self.case.run(self.rng)
        if self.rng.random() < 0.05:
            self.case = Case(self.rng)
        if self.rng.random() < 0.3:
            self.case.meddle(self.rng)

    def calm(self) -> None:
        """No signal from here on: one that is on its way is heard and ignored."""
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)

    def fork(self, shared: Case) -> None:
        """A child that works under signals, while the threads of the parent go on."""
        self.counts["forks"] += 1
        seed = self.rng.randrange(1 << 30)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for case in (shared, Case(Random(seed))):
                    case.run(Random(seed))
                inside = Storm(seed)
                inside.weather(0.05)
                status = 0
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(_wait(child))
        if status != 0:
            raise AssertionError(f"a child ended with {status}")

    def background(self, shared: Case, seed: int) -> None:
        """Another thread: fresh plans, and one that is shared."""
        rng = Random(seed)
        try:
            while not self.stop.is_set():
                Case(rng).run(rng)
                for _ in range(20):
                    shared.run(rng)
        except BaseException as error:
            self.failures.append(error)

    def run(self, seconds: float) -> None:
        shared = Case(self.rng)
        seeds = [self.rng.randrange(1 << 30) for _ in range(2)]
        threads = [threading.Thread(target=self.background, args=(shared, seed)) for seed in seeds]
        for thread in threads:
            thread.start()
        try:
            end = time.monotonic() + seconds
            while time.monotonic() < end and not self.failures:
                self.weather(self.rng.uniform(0.02, 0.4))
                self.fork(shared)
        finally:
            self.calm()
            self.stop.set()
            for thread in threads:
                thread.join()
        for error in self.failures:
            raise error


def _wait(child: int) -> int:
    """Its status; a child that hangs is made to show where, and ends by that."""
    until = time.monotonic() + CHILD_SECONDS
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.002)
    os.kill(child, signal.SIGABRT)
    return os.waitpid(child, 0)[1]


def main(seed: int, seconds: float) -> None:
    """One storm; prints what happened."""
    faulthandler.enable()
    faulthandler.dump_traceback_later(HANG_SECONDS + seconds, exit=True)
    with config.override(cache=False):
        storm = Storm(seed)
        storm.run(seconds)
    sys.stdout.write(" ".join(f"{name}={count}" for name, count in storm.counts.items()))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))

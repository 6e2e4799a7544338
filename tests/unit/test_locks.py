"""Locks that survive a fork: all are known, all are taken, nobody waits for ever."""

from __future__ import annotations

import dis
import gc
import os
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import semel
from semel import locks
from semel.locks import Changed, make_lock

SRC = Path(semel.__file__).parent
#: Where a lock may be made in another way: the registry itself, the lock of a plan, which a fork
#: does not wait for, the end of a thread's work, which a child does not wait for, and the bell of a
#: lane's thread, which a child has anew.
OWN_WAYS = {
    "locks.py",
    "runtime/hold.py",
    "runtime/job.py",
    "runtime/lane.py",
}
MAKER = re.compile(r"\b(R?Lock|Condition|(Bounded)?Semaphore|allocate_lock)\(|@cached_property")


def test_every_lock_is_known_to_a_fork() -> None:
    found = {
        str(path.relative_to(SRC)) for path in SRC.rglob("*.py") if MAKER.search(path.read_text())
    }
    assert found == OWN_WAYS, "use semel.locks.make_lock()"


def test_only_plans_lanes_and_the_pool_have_something_else_to_do_at_a_fork() -> None:
    found = {
        str(path.relative_to(SRC))
        for path in SRC.rglob("*.py")
        if "register_at_fork" in path.read_text()
    }
    lanes = {"runtime/lane.py", "runtime/native_lane.py"}
    assert found == {"locks.py", "plan/engine.py", "runtime/pool.py", *lanes}


@pytest.mark.usefixtures("settled")
def test_a_lock_that_is_dropped_is_forgotten() -> None:
    before = len(locks._known)
    lock = make_lock()
    gone = weakref.ref(lock)
    assert len(locks._known) == before + 1
    del lock
    gc.collect()
    assert gone() is None and len(locks._known) == before


def _in_child(check: Callable[[], bool]) -> bool:
    """Whether `check` holds in a forked child; a child that hangs is ended."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _hold(*held: threading.RLock, until: threading.Event) -> threading.Thread:
    """A thread that has all these locks, taken in this order, until it is told to go on."""
    ready = threading.Event()

    def body() -> None:
        for lock in held:
            lock.acquire()
        ready.set()
        until.wait(100)
        for lock in reversed(held):
            lock.release()

    thread = threading.Thread(target=body)
    thread.start()
    assert ready.wait(100)
    return thread


def _is_free(lock: threading.RLock) -> bool:
    free = lock.acquire(timeout=2)
    if free:
        lock.release()
    return free


def _is_free_elsewhere(lock: threading.RLock) -> bool:
    """Asked by another thread, since whoever has a lock may have it again."""
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(lock.acquire(timeout=0.1)))
    thread.start()
    thread.join()
    return found[0]


def test_a_fork_waits_for_every_lock_and_frees_it_on_both_sides() -> None:
    mine = [make_lock(), make_lock()]
    go = threading.Event()
    thread = _hold(*mine, until=go)
    threading.Timer(0.05, go.set).start()
    assert _in_child(lambda: go.is_set() and all(_is_free_elsewhere(lock) for lock in mine))
    thread.join()
    assert all(_is_free_elsewhere(lock) for lock in mine)


def test_a_lock_of_the_forking_thread_stays_its_own() -> None:
    lock = make_lock()
    with lock:
        assert _in_child(lambda: lock._is_owned() and not _is_free_elsewhere(lock))  # type: ignore[attr-defined]
        assert not _is_free_elsewhere(lock)
    assert _is_free_elsewhere(lock)


def test_threads_that_nest_locks_in_any_order_do_not_stop_a_fork() -> None:
    a, b, stop = make_lock(), make_lock(), threading.Event()

    def nest(first: threading.RLock, second: threading.RLock) -> None:
        while not stop.is_set():
            with first:
                if second.acquire(timeout=0.001):
                    second.release()

    threads = [threading.Thread(target=nest, args=pair) for pair in ((a, b), (b, a))]
    for thread in threads:
        thread.start()
    try:
        assert all(_in_child(lambda: _is_free(a) and _is_free(b)) for _ in range(10))
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_thread_that_waits_for_the_forking_one_does_not_stop_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A handler forks inside lock `a`; another thread has `b` and wants `a`."""
    monkeypatch.setattr(locks, "_PATIENCE_S", 0.05)
    a, b, go = make_lock(), make_lock(), threading.Event()
    with a:
        thread = _hold(b, until=go)
        assert _in_child(lambda: _is_free(b) and a._is_owned())  # type: ignore[attr-defined]
    go.set()
    thread.join()
    assert _is_free(a) and _is_free(b)


def test_a_handler_that_raises_during_a_fork_leaves_nothing_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = [make_lock() for _ in range(3)]

    class Interrupting:
        """Stands in the list of locks; its turn is when the signal comes."""

        def _is_owned(self) -> bool:
            return False

        def acquire(self, **options: object) -> bool:
            raise KeyboardInterrupt

    odd = Interrupting()
    monkeypatch.setattr(locks, "_known", [weakref.ref(x) for x in (*made, odd)])
    with pytest.raises(KeyboardInterrupt):
        locks._before_fork()
    assert all(_is_free_elsewhere(lock) for lock in made)


_IMPORTS = """
import sys
import numpy as np
import llvmlite.binding as llvm
import semel
from semel import locks
from semel.devices import find_backend

llvm.initialize_all_targets()
find_backend("cpu")


class Watch:  # asked for each module that is imported from here on
    def find_spec(self, name, path=None, target=None):
        assert locks.importing._is_owned(), name


sys.meta_path.insert(0, Watch())
x = semel.Tensor.input("x", (semel.Variable("n", 1), 4), "float32")
plan = (x @ semel.Tensor(np.ones((4, 4), np.float32))).softmax(-1).prepare(threads=2)
plan(x=[[1.0, 2.0, 3.0, 4.0]])
plan(x=np.ones((200, 4), np.float32))
str(plan.clone().explain())
(semel.Tensor([1.0, 2.0]) * 2).numpy()
graph = semel.Graph("g")
graph.output("y", graph.input("x", (3,)) + 1)
graph.prepare()
semel.ExecutionPlanBuilder, semel.load_plan
assert "semel.compiler.eager" in sys.modules
"""


def test_what_is_imported_late_is_imported_in_a_lock() -> None:
    """A module that another thread is importing at a fork is half imported in the child.

    So a fork waits for imports: those of LLVM and of devices are inside locks of their own.
    """
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTS], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


_STORM = """
import os, sys, threading, time
import numpy as np
from semel import Tensor, config
from semel.compiler import artefacts

sizes = iter(range(3, 10**6))
turn = threading.Lock()

def fresh():
    with turn:
        n = next(sizes)
    x = Tensor.input("x", (n,), "float32")
    return n, (x * 2 + 1).prepare(threads=2)

def check(n, plan):
    got = plan(x=np.full(n, 3, np.float32))
    assert np.array_equal(got, np.full(n, 7, np.float32)), got

stop = threading.Event()
def compiling():
    while not stop.is_set():
        check(*fresh())

shared_n, shared = fresh()
def executing():
    while not stop.is_set():
        check(shared_n, shared)

{start}

with config.override(cache=False):
    threads = [threading.Thread(target=f) for f in (compiling, compiling, executing)]
    for t in threads:
        t.start()
    try:
        for number in range({forks}):
            time.sleep(0.003 * (number % 7))
            fork_one(number)
    finally:
        stop.set()
        for t in threads:
            t.join()
"""

_BY_FORK = """
def fork_one(number):
    turn.acquire()  # our own lock must not hang the child either
    child = os.fork()
    turn.release()
    if child == 0:
        try:
            n, plan = 10**6 + number, None
            x = Tensor.input("x", (n,), "float32")
            check(n, (x * 2 + 1).prepare(threads=2))
            check(shared_n, shared)
            os._exit(0)
        except BaseException:
            import traceback; traceback.print_exc()
        finally:
            os._exit(1)
    until = time.monotonic() + 100
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert status == 0, f"child {number} ended with {status}"
            return
        time.sleep(0.002)
    os.kill(child, 9)
    raise AssertionError(f"child {number} hangs")
"""

_BY_MULTIPROCESSING = """
import multiprocessing
ways = multiprocessing.get_context("fork")

def work(number):
    x = Tensor.input("x", (10**6 + number,), "float32")
    check(10**6 + number, (x * 2 + 1).prepare(threads=2))
    check(shared_n, shared)

def fork_one(number):
    with turn:
        process = ways.Process(target=work, args=(number,))
        process.start()
    process.join(100)
    if process.exitcode is None:
        process.kill()
    assert process.exitcode == 0, f"child {number}: {process.exitcode}"
"""


@pytest.mark.parametrize(("start", "forks"), [(_BY_FORK, 20), (_BY_MULTIPROCESSING, 6)])
def test_children_work_while_threads_of_the_parent_compile_and_run(start: str, forks: int) -> None:
    code = _STORM.replace("{start}", start).replace("{forks}", str(forks))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


class Stop(Exception):  # noqa: N818 - what a signal handler raises
    pass


def _raise_at(number: int, code: Any) -> Callable[..., Any]:
    """A trace function that raises where a signal handler could: behind calls, for one of them."""
    seen, before = 0, ""

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal seen, before
        if frame.f_code is not code:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            seen += before.startswith(("CALL", "RESUME"))
            is_here = before.startswith(("CALL", "RESUME")) and seen == number
            before = dis.opname[code.co_code[frame.f_lasti]]
            if is_here:
                raise Stop
        return trace

    return trace


@pytest.mark.parametrize("depth", [1, 2])
def test_a_wait_that_is_interrupted_anywhere_ends_with_the_lock(depth: int) -> None:
    lock = make_lock()
    changed = Changed(lock)
    for number in count(1):
        before = sys.gettrace()
        try:
            with lock:
                if depth == 2:
                    lock.acquire()
                # From Python 3.12 on, instructions are traced if a frame asked for it before.
                sys._getframe().f_trace_opcodes = True
                sys.settrace(_raise_at(number, Changed.wait.__code__))
                try:
                    changed.wait(0)
                    break
                finally:
                    sys.settrace(before)
                    if depth == 2:
                        lock.release()  # raises if this thread does not have it
        except Stop:
            continue
    assert number > 5
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(lock.acquire(blocking=False)))
    thread.start()
    thread.join()
    assert found == [True]


def test_who_waits_for_a_change_goes_on_with_the_lock() -> None:
    lock, order = make_lock(), list[str]()
    changed = Changed(lock)

    def wait() -> None:
        with lock:
            order.append("waits")
            while "changed" not in order:
                changed.wait(100)
            order.append("goes on")

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    while order.count("waits") < 3:
        threading.Event().wait(0.001)
    with lock:
        order.append("changed")
        changed.notify_all()
    for thread in threads:
        thread.join()
    assert order == [*["waits"] * 3, "changed", *["goes on"] * 3]

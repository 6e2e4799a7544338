"""LLVM is left alone by signal handlers: it runs where none is called."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import pytest
from tests.fuzz.interrupts import find_places, interrupt

from semel.devices.cpu import apart, toolchain
from semel.devices.cpu.apart import run_apart, run_side_by_side
from semel.devices.cpu.toolchain import assembly, compile_ir, host_target
from semel.errors import CompileError
from semel.runtime import job

TEXT = "define i64 @f(i64 %x) nounwind { %y = add i64 %x, 1\n ret i64 %y }"


class StopError(Exception):
    """What a handler raises."""


@contextmanager
def _seen(modules: set[str]) -> Iterator[None]:
    """The modules whose code runs on this thread, where a handler may interrupt it."""

    def see(frame: FrameType, event: str, arg: object) -> None:
        modules.add(frame.f_globals.get("__name__", ""))

    before = sys.gettrace()
    sys.settrace(see)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def _handling(handle: Any) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def _interrupt_main() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


@pytest.mark.parametrize("passes", ["none", "light"])
def test_no_handler_is_called_inside_llvm(passes: str) -> None:
    modules: set[str] = set()
    with _seen(modules):
        code = compile_ir(TEXT, host_target(), passes=passes)
        text = assembly(TEXT, host_target(), passes=passes)
    assert code and "f:" in text
    assert "semel.devices.cpu.toolchain" in modules
    assert not [name for name in modules if name.startswith("llvmlite")]


def test_errors_of_llvm_arrive() -> None:
    with pytest.raises(CompileError, match="must be valid"):
        compile_ir("define nothing", host_target())


def test_results_and_errors_are_those_of_the_work() -> None:
    assert run_apart(threading.get_ident) != threading.get_ident()
    nothing: dict[str, int] = {}
    with pytest.raises(KeyError, match="gone"):
        run_apart(lambda: nothing["gone"])
    found: list[bool] = []
    elsewhere = threading.Thread(
        target=lambda: found.append(run_apart(threading.get_ident) == threading.get_ident())
    )
    elsewhere.start()
    elsewhere.join()
    assert found == [True]  # there is no need


def test_an_exception_of_a_handler_leaves_the_work_to_itself() -> None:
    ended = threading.Event()

    def fail(*_: object) -> None:
        raise StopError("enough")

    def work() -> None:
        _interrupt_main()
        go_on.wait(100)
        ended.set()

    go_on = threading.Event()
    with _handling(fail), pytest.raises(StopError, match="enough"):
        run_apart(work)
    assert not ended.is_set()
    go_on.set()
    assert ended.wait(100)


def test_a_handler_may_compile_in_the_middle_of_a_compile() -> None:
    found: list[bytes] = []
    wanted = compile_ir(TEXT, host_target())

    def compile_again(*_: object) -> None:
        found.append(compile_ir(TEXT, host_target()))

    def work() -> bytes:
        _interrupt_main()
        return compile_ir(TEXT, host_target())

    with _handling(compile_again):
        assert run_apart(work) == wanted
    assert found == [wanted]


def test_the_child_of_a_fork_that_a_handler_makes_does_the_work_again() -> None:
    children: list[int] = []
    parent = os.getpid()

    def fork(*_: object) -> None:
        child = os.fork()
        if child:
            children.append(child)

    def work() -> int:
        if os.getpid() == parent:
            _interrupt_main()
            forked.wait(100)
        return os.getpid()

    forked = threading.Event()
    os.register_at_fork(after_in_parent=forked.set)
    with _handling(fork):
        status = 1
        try:
            found = run_apart(work)
            status = 0 if found == os.getpid() else 2
        finally:
            if os.getpid() != parent:
                os._exit(status)
    assert found == parent
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0


def test_a_handler_may_raise_while_a_thread_starts() -> None:
    """At any place; what it raises is what comes out, and the next work is done."""

    def fail() -> None:
        raise StopError("enough")

    def action() -> None:
        assert run_apart(threading.get_ident) != threading.get_ident()

    ours = (apart.__file__, job.__file__)
    places = [place for place in find_places(action) if place[0].co_filename in ours]
    assert len(places) > 5  # how many there are is for each version of Python to say
    for place in places:
        with pytest.raises(StopError, match="enough"):
            interrupt(action, place, fail)
        action()


def test_without_a_thread_it_works_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(job, "start_new_thread", refuse)
    assert run_apart(threading.get_ident) == threading.get_ident()


def test_an_error_of_a_handler_is_not_taken_for_a_lack_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a handler's own")

    monkeypatch.setattr(job, "start_new_thread", fail)
    with pytest.raises(RuntimeError, match="own"):
        run_apart(threading.get_ident)


# ---------------------------------------------------------------- several at a time


def test_works_run_side_by_side_and_come_in_order() -> None:
    """Two wait for each other; what makes the next one runs here, and never three at a time."""
    both = threading.Barrier(2)
    running: list[int] = []
    most: list[int] = []
    made_on: set[int] = set()

    def work(number: int) -> int:
        running.append(number)
        most.append(len(running))
        both.wait(100)
        running.remove(number)
        return number

    def works() -> Iterator[Any]:
        for number in range(12):
            made_on.add(threading.get_ident())
            yield partial(work, number)

    assert list(run_side_by_side(works(), 2)) == list(range(12))
    assert made_on == {threading.get_ident()}
    assert max(most) == 2
    assert list(run_side_by_side([], 2)) == []


def test_an_error_comes_in_its_place_and_what_has_not_begun_is_left() -> None:
    begun: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        if number == 1:
            raise StopError("this one")
        return number

    def works() -> Iterator[Any]:
        for number in range(100):
            yield partial(work, number)
            if number == 1:
                while 1 not in begun:
                    time.sleep(0.001)

    results = run_side_by_side(works(), 1)
    assert next(results) == 0
    with pytest.raises(StopError, match="this one"):
        list(results)
    assert len(begun) < 100


def test_works_go_on_in_the_child_of_a_fork() -> None:
    """Its parent's threads are not there: what was not done is done again."""
    results = run_side_by_side((partial(lambda n: n, number) for number in range(8)), 2)
    assert next(results) == 0
    child = os.fork()
    if child == 0:
        os._exit(0 if list(results) == list(range(1, 8)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert list(results) == list(range(1, 8))


def test_a_work_under_way_at_a_fork_is_done_again_in_the_child() -> None:
    parent, forked = os.getpid(), threading.Event()

    def work() -> int:
        if os.getpid() == parent:
            forked.wait(100)
        return os.getpid()

    def works() -> Iterator[Any]:
        yield work
        children.append(os.fork())
        yield work

    children: list[int] = []
    found = []
    results = run_side_by_side(works(), 1)
    try:
        os.register_at_fork(after_in_parent=forked.set)
        found = list(results)
    finally:
        if os.getpid() != parent:
            os._exit(0 if found == [os.getpid()] * 2 else 1)
    assert found == [parent] * 2
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0


def test_without_threads_works_are_done_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(job, "start_new_thread", refuse)
    here = threading.get_ident()
    assert list(run_side_by_side([threading.get_ident] * 3, 2)) == [here] * 3


def test_llvm_works_at_several_benches() -> None:
    """Whoever has one keeps nobody from the others, and all make the same bytes."""
    texts = [TEXT.replace("1", str(number)) for number in range(12)]
    wanted = [compile_ir(text, host_target()) for text in texts]
    works = [partial(compile_ir, text, host_target()) for text in texts]
    taken, done = threading.Event(), threading.Event()

    def take() -> None:
        with toolchain._benches[0].lock:
            taken.set()
            done.wait(100)

    holder = threading.Thread(target=take)
    holder.start()
    try:
        assert taken.wait(100)
        assert list(run_side_by_side(works, 3)) == wanted
    finally:
        done.set()
        holder.join()

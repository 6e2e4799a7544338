"""LLVM is left alone by signal handlers: it runs where none is called."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from tests.fuzz.interrupts import find_places, interrupt

from semel.devices.cpu import apart
from semel.devices.cpu.apart import run_apart
from semel.devices.cpu.toolchain import assembly, compile_ir, host_target
from semel.errors import CompileError

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
        go_on.wait(30)
        ended.set()

    go_on = threading.Event()
    with _handling(fail), pytest.raises(StopError, match="enough"):
        run_apart(work)
    assert not ended.is_set()
    go_on.set()
    assert ended.wait(30)


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
            forked.wait(30)
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

    places = [place for place in find_places(action) if place[0].co_filename == apart.__file__]
    assert len(places) > 8
    for place in places:
        with pytest.raises(StopError, match="enough"):
            interrupt(action, place, fail)
        action()


def test_without_a_thread_it_works_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(apart, "start_new_thread", refuse)
    assert run_apart(threading.get_ident) == threading.get_ident()


def test_an_error_of_a_handler_is_not_taken_for_a_lack_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a handler's own")

    monkeypatch.setattr(apart, "start_new_thread", fail)
    with pytest.raises(RuntimeError, match="own"):
        run_apart(threading.get_ident)

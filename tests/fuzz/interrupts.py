"""Signals at chosen moments: a handler that runs exactly where Python would run one.

    find_places(action)                -->  every place of it where a handler may run
    interrupt(action, place, handle)   -->  what `action()` gives, if `handle()` runs there

CPython looks for signals after calls, at the start of functions, and where it jumps back. A trace
function sees an instruction before it is executed. At the chosen one the trace function is
`PyErr_SetInterrupt`, a function of C: no instruction of Python stands between it and what is
traced, so the interpreter looks for signals where it always does, and what the handler raises
is raised there. An exception of the trace function itself would come at places where none can.
"""

from __future__ import annotations

import ctypes
import dis
import gc
import signal
import sys
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any

Place = tuple[CodeType, int]  #: an instruction by its offset; -1 is the start of the function

#: Beside those that look for signals, those that may call a function of Python, which looks.
_KINDS = ("CALL", "JUMP_BACKWARD", "POP_JUMP_BACKWARD", "FOR_ITER", "BEFORE_WITH", "LOAD_ATTR")
_OURS = ("/semel/", "/weakref.py", "/contextlib.py", "/functools.py")
_arguments = (ctypes.py_object,) * 3
_poke: Any = ctypes.PYFUNCTYPE(None, *_arguments)(("PyErr_SetInterrupt", ctypes.pythonapi))


@cache
def _offsets(code: CodeType) -> frozenset[int]:
    if not any(part in code.co_filename for part in _OURS):
        return frozenset()
    found = {
        i.offset
        for i in dis.get_instructions(code)
        if i.opname.startswith(_KINDS) and not i.opname.startswith("CALL_INTRINSIC")
    }
    return frozenset({*found, -1})


def find_places(action: Callable[[], object]) -> list[Place]:
    """The places that `action()` comes through, in order."""
    found: dict[Place, None] = {}

    def local(frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode" and frame.f_lasti in _offsets(frame.f_code):
            found[frame.f_code, frame.f_lasti] = None
        return local

    def enter(frame: FrameType, event: str, arg: object) -> Any:
        if not _offsets(frame.f_code):
            return None
        found[frame.f_code, -1] = None
        frame.f_trace_opcodes = True
        return local

    _traced(action, enter)
    return list(found)


def interrupt(action: Callable[[], object], place: Place, handle: Callable[[], object]) -> bool:
    """Run `action()` with a signal at its first time at `place`; whether the signal came."""
    code, offset = place
    came = False

    def local(frame: FrameType, event: str, arg: object) -> Any:
        # The tracer of this frame is the poke from the instruction before on.
        return local if offset not in _following(code, frame.f_lasti) else _poke

    def enter(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code is not code:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return _poke if offset <= 0 else local

    def on_signal(*_: object) -> None:
        nonlocal came
        if not came:
            came = True
            sys.settrace(None)
            handle()

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        _traced(action, enter)
    finally:
        signal.signal(signal.SIGINT, before)
    return came


@cache
def _following(code: CodeType, offset: int) -> frozenset[int]:
    """Where execution may go on after the instruction at `offset`."""
    instructions = list(dis.get_instructions(code))
    for this, after in pairwise(instructions):
        if this.offset == offset:
            jumps = {this.argval} if this.opcode in dis.hasjrel + dis.hasjabs else set()
            return frozenset({after.offset, *jumps})
    return frozenset()


def _traced(action: Callable[[], object], trace: Any) -> None:
    before, was_enabled = sys.gettrace(), gc.isenabled()
    gc.disable()  # the same places each time
    # From Python 3.12 on, instructions are traced if a frame asked for it before.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
        if was_enabled:
            gc.enable()


def where(place: Place) -> str:
    """For people: file, function and line."""
    code, offset = place
    starts = [line for start, end, line in code.co_lines() if start <= max(offset, 0) < end]
    line = starts[0] if starts else code.co_firstlineno
    return f"{code.co_filename.rpartition('/')[2]}:{line} {code.co_qualname} +{offset}"

"""The program of a process that compiles kernels for another one: see `crew`.

    target, then kernels, as frames on stdin  -->  who compiles, then code, as frames on stdout

An answer is `+` and the code, or `-` where this process could not make it; the other one will
try, and say why not. It ends when its input does.
"""

from __future__ import annotations

import json
import os
import sys
from typing import IO

from semel.codegen.emit import emit_kernel
from semel.devices.cpu.crew import LENGTH, who_compiles, write_frame
from semel.devices.cpu.toolchain import compile_ir
from semel.ir.target import Target
from semel.kernel.encode import decode_kernel


def serve() -> None:
    """Compile until the input ends."""
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    setup = _frame(source)
    if setup is not None:
        told = json.loads(setup)
        target = Target(**{**told, "features": tuple(told["features"])})
        write_frame(sink, who_compiles().encode())
        while (asked := _frame(source)) is not None:
            write_frame(sink, _answer(asked, target))
    os._exit(0)  # nothing is left to be put in order


def _answer(asked: bytes, target: Target) -> bytes:
    entry, _, form = asked.partition(b"\0")
    try:
        text = emit_kernel(decode_kernel(form), target, entry.decode())
        return b"+" + compile_ir(text, target)
    except Exception:
        return b"-"


def _frame(source: IO[bytes]) -> bytes | None:
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    data = source.read(length)
    return data if len(data) == length else None

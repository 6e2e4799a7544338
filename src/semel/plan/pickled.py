"""Plans and programs as pickles: the contents of their files; and files of programs.

    pickle  --__reduce__-->  bytes of a plan file  --restore_plan, restore_program-->  pickle

Reading files is the work of a layer above, so that it is named as text and imported by whoever
unpickles something.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from semel.ir.fields import MemoryLimit
from semel.runtime.device import find_device

if TYPE_CHECKING:
    from semel.plan.plan import ExecutionPlan
    from semel.plan.program import Program

_READER = "semel.loading"
_WRITER = "semel.plan.file.write"  # which needs programs itself


def restore_plan(data: bytes, threads: int | None, memory_limit: MemoryLimit) -> ExecutionPlan:
    """The plan whose file has these contents."""
    reader: Any = import_module(_READER)
    plan: ExecutionPlan = reader.plan_from_bytes(data, threads, memory_limit)
    return plan


def pack_program(program: Program) -> bytes:
    """The contents of the plan file of a program."""
    writer: Any = import_module(_WRITER)
    code = find_device(program.device).device_code(program.target)
    packed: bytes = writer.pack_plan(program, code)
    return packed


def reduce_program(program: Program) -> tuple[Any, ...]:
    """What pickle keeps of a program."""
    return restore_program, (pack_program(program),)


def save_program(program: Program, path: str | os.PathLike[str]) -> None:
    """Write a plan file of a program."""
    writer: Any = import_module(_WRITER)
    code = find_device(program.device).device_code(program.target)
    writer.save_plan(program, code, path)


def restore_program(data: bytes) -> Program:
    """The program in a file with these contents."""
    reader: Any = import_module(_READER)
    program: Program = reader.program_from_bytes(data)
    return program

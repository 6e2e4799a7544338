"""Kernel IR as text: for people, and as the content that cache keys are made of.

    Kernel --format_kernel--> str

    for a kernel that doubles its input:

    vals v0 in [1, 128]
    b0: f32[v0] w
    b1: f32[v0] r
    tiles i0:v0 < v0
      %0 = load b1[i0]
      %1 = mul f32 %0, f32:2.0
      b0[i0] = %1

Invariant: two kernels have the same text exactly when they mean the same code. Names do
not count: buffers, locals, indices and variables are numbered in order of appearance, so
that the same kernel of another layer has the same text. A temporary `%n` names an
expression and is written once, before the statement that uses it first; each statement
evaluates its expressions anew.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

from semel.ir.expr import Dim, Fn, Index, Variable, atoms, renamed
from semel.kernel.ir import (
    Assign,
    Bind,
    BlockDot,
    Buffer,
    Check,
    Declare,
    If,
    Kernel,
    Local,
    Loop,
    Prefetch,
    Reduce,
    Statement,
    Store,
    Value,
    statement_values,
    walk_values,
)


def format_kernel(kernel: Kernel, *, name: bool = False) -> str:
    """The complete text; with `name`, a first line gives the kernel's own name."""
    writer = _Writer(kernel)
    writer.kernel(kernel)
    header = [f"kernel {kernel.name}"] if name else []
    return "\n".join([*header, *writer.lines, ""])


def kernel_text(kernel: Kernel) -> str:
    """`format_kernel`, written once for each kernel: it says what a kernel is known by."""
    known: str | None = kernel.__dict__.get("_text")
    if known is None:
        known = kernel.__dict__["_text"] = format_kernel(kernel)
    return known


class _Writer:
    """Hands out numbers in order of appearance and collects lines."""

    def __init__(self, kernel: Kernel) -> None:
        self.lines: list[str] = []
        self.temporaries = 0
        self.values: dict[Value, str] = {}
        self.locals: dict[Local, str] = {}
        self.atoms: dict[Any, Dim] = {}
        self.functions: dict[Fn, Fn] = {}
        self.dims: dict[Dim, str] = {}
        self.buffers = {b: f"b{i}" for i, b in enumerate(kernel.buffers)}
        self.buffers |= {b: f"s{i}" for i, b in enumerate(kernel.scratch)}

    # ------------------------------------------------------------ header

    def kernel(self, kernel: Kernel) -> None:
        for i, variable in enumerate(kernel.variables):
            self.atoms[variable] = Variable(f"v{i}", variable.min, variable.max)
            high = "inf" if variable.max is None else variable.max
            self.lines.append(f"vals v{i} in [{variable.min}, {high}]")
        for buffer in (*kernel.buffers, *kernel.scratch):
            size = self.dim(buffer.size)
            self.lines.append(
                f"{self.buffers[buffer]}: {buffer.dtype.short}[{size}] {buffer.access}"
            )
        for i, check in enumerate(kernel.checks, start=1):
            sign = "unsigned " if check.unsigned else ""
            self.lines.append(f"check {i}: {check.op} {sign}{check.what} < {self.dim(check.size)}")
        self.lines.append(f"tiles {self.define(kernel.tile)} < {self.dim(kernel.tiles)}")
        self.body(kernel.body, 1)

    # ------------------------------------------------------------ names

    def define(self, index: Index) -> str:
        """The number of an index, and its extent where the index is met first."""
        if index not in self.atoms:
            self._number(index)
            extent = self.atoms[index].extent  # type: ignore[union-attr]
            return f"{self.atoms[index]}:{extent}"
        return str(self.atoms[index])

    def _number(self, index: Index) -> None:
        extent = self._renamed(index.extent)
        count = sum(isinstance(known, Index) for known in self.atoms)
        self.atoms[index] = Index(f"i{count}", extent)

    def _renamed(self, dim: Dim) -> Dim:
        unknown = (a for a in atoms(dim) if isinstance(a, Index) and a not in self.atoms)
        for index in sorted(unknown, key=lambda a: a._key()):
            self._number(index)
        return renamed(dim, self.atoms, self.functions)

    def dim(self, dim: Dim) -> str:
        if isinstance(dim, int):
            return str(dim)
        if dim not in self.dims:
            self.dims[dim] = str(self._renamed(dim))
        return self.dims[dim]

    def buffer(self, buffer: Buffer) -> str:
        return self.buffers.get(buffer, buffer.name)

    def local(self, local: Local, at: tuple[Dim, ...] = ()) -> str:
        name = self.locals.setdefault(local, f"l{len(self.locals)}")
        return f"{name}[{', '.join(self.dim(d) for d in at)}]" if at else name

    # ------------------------------------------------------------ statements

    def body(self, body: Sequence[Statement], depth: int) -> None:
        for statement in body:
            for value in walk_values(statement_values(statement)):
                self._define_value(value, depth)
            self._line(depth, self._head(statement))
            if isinstance(statement, (Loop, If)):
                self.body(statement.body, depth + 1)

    def _line(self, depth: int, text: str) -> None:
        self.lines.append("  " * depth + text)

    def _head(self, statement: Statement) -> str:
        match statement:
            case Loop():
                start, stop = self.dim(statement.start), self.dim(statement.stop)
                marks = f" lanes={statement.lanes}" if statement.lanes > 1 else ""
                marks += " unroll" if statement.unroll else ""
                return f"for {self.define(statement.index)} in [{start}, {stop}){marks}"
            case Declare(local=local, init=init):
                copies = f"{list(local.copies)}" if local.copies else ""
                return f"var {self.local(local)}: {local.dtype.short}{copies} = {self.values[init]}"
            case Assign(local=local, value=value, at=at):
                return f"{self.local(local, at)} = {self.values[value]}"
            case Reduce(locals=targets, combine=combine, values=values, at=at):
                left = ", ".join(self.local(local, at) for local in targets)
                return f"{left} <- {combine} {', '.join(self.values[v] for v in values)}"
            case Bind(index=index, value=value):
                return f"bind {self.define(index)} = {self.values[value]}"
            case Store(buffer=buffer, at=place, value=value, guard=guard):
                where = "" if guard is None else f" where {self.values[guard]}"
                return f"{self.buffer(buffer)}[{self.dim(place)}] = {self.values[value]}{where}"
            case Prefetch(buffer=buffer, at=place):
                return f"prefetch {self.buffer(buffer)}[{self.dim(place)}]"
            case BlockDot():
                into, left, right = (
                    f"{self.buffer(b.buffer)}[{self.dim(b.at)}, pitch {self.dim(b.pitch)}]"
                    for b in (statement.into, statement.left, statement.right)
                )
                size = f"{statement.rows}x{statement.columns}x{self.dim(statement.words)}"
                live = self.dim(statement.live)
                return f"{into} = dots {size} {left}, {right} live {live}"
            case Check(ok=ok, code=code, value=value):
                return f"check {self.values[ok]} else {code}, {self.values[value]}"
            case If(condition=condition):
                return f"if {self.values[condition]}"

    # ------------------------------------------------------------ values

    def _define_value(self, value: Value, depth: int) -> None:
        if value in self.values:
            return
        if value.op == "const":
            self.values[value] = f"{value.dtype.short}:{_constant(value)}"
            return
        temporary = f"%{self.temporaries}"
        self.temporaries += 1
        self._line(depth, f"{temporary} = {self._expression(value)}")
        self.values[value] = temporary

    def _expression(self, value: Value) -> str:
        args = ", ".join(self.values[a] for a in value.args)
        match value.op:
            case "index":
                return f"index {self.dim(value.data)}"
            case "load":
                buffer, at = value.data
                place = f"{self.buffer(buffer)}[{self.dim(at)}]"
                if not value.args:
                    return f"load {place}"
                guard, other = (self.values[a] for a in value.args)
                return f"load {place} where {guard} else {other}"
            case "word":
                buffer, at = value.data
                return f"word {self.buffer(buffer)}[{self.dim(at)}]"
            case "local":
                return f"local {self.local(*value.data)}"
        return f"{value.op} {value.dtype.short} {args}"


def _constant(value: Value) -> str:
    if value.dtype.is_float and math.isnan(value.data):
        return f"nan({struct.pack('>d', value.data).hex()})"
    return repr(value.data)

"""Kernel IR as bytes that can be read again: what a plan file keeps to rebuild code from.

    Kernel --encode_kernel--> bytes (JSON) --decode_kernel--> an equal Kernel

The text of a kernel (`kernel.text`) is for people and drops names; this form drops nothing.
Values are a table in which operands come before their users, so sharing survives; dims,
buffers and locals are tables too. Floats are stored by their bits: -0.0 and NaN are
themselves. Decoding checks the form (`GraphError`); whether the kernel makes sense is
for `kernel.verify` to say.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any, TypeVar

from semel.errors import GraphError
from semel.ir.encode import (
    DimReader,
    DimWriter,
    as_access,
    as_index,
    as_int,
    as_known_dtype,
    as_list,
    as_name,
    as_text,
    decode_check,
    encode_check,
)
from semel.ir.types import INT64, DType
from semel.kernel.ir import (
    ARITHMETIC,
    COMPARISONS,
    MATH,
    Assign,
    Bind,
    Block,
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
    const,
    statement_values,
    walk_values,
    word_dtype,
)
from semel.kernel.values import _make

T = TypeVar("T")
_PLAIN = frozenset((*ARITHMETIC, *COMPARISONS, *MATH, "select", "cast", "bitcast"))


def encode_kernel(kernel: Kernel) -> bytes:
    """Everything about the kernel; equal kernels give equal bytes."""
    writer = _Writer(kernel)
    form = {
        "name": kernel.name,
        "buffers": len(kernel.buffers),
        "variables": writer.dim.all(kernel.variables),
        "tile": writer.dim(kernel.tile),
        "tiles": writer.dim(kernel.tiles),
        "body": writer.body(kernel.body),
        "checks": [encode_check(c, writer.dim) for c in kernel.checks],
        "flops": writer.dim(kernel.flops),
        "bytes": writer.dim(kernel.bytes),
        "notes": list(kernel.notes),
        "memory": [
            [b.name, b.dtype.name, writer.dim(b.size), b.access]
            for b in (*kernel.buffers, *kernel.scratch)
        ],
        "locals": [[v.name, v.dtype.name, *v.copies] for v in writer.locals],
        "values": writer.values,
        "dims": writer.dim.entries,
    }
    return json.dumps(form, separators=(",", ":")).encode()


def decode_kernel(data: bytes) -> Kernel:
    """The kernel that `encode_kernel` wrote."""
    try:
        form = json.loads(data)
        return _Reader(form).kernel(form)
    except (KeyError, TypeError, ValueError, RecursionError, struct.error) as error:
        raise GraphError("decode", f"a kernel must have its known form: {error!r:.120}.") from error


# ---------------------------------------------------------------- writing


class _Writer:
    """Numbers values, locals and dims as they are met."""

    def __init__(self, kernel: Kernel) -> None:
        self.dim = DimWriter()
        self.values: list[list[Any]] = []
        self.locals: dict[Local, int] = {}
        self._numbers: dict[Value, int] = {}
        self._memory = {b: i for i, b in enumerate((*kernel.buffers, *kernel.scratch))}

    def body(self, body: Sequence[Statement]) -> list[Any]:
        return [self._statement(statement) for statement in body]

    def _statement(self, statement: Statement) -> list[Any]:
        for value in walk_values(statement_values(statement)):
            if value not in self._numbers:
                entry = self._value(value)
                self._numbers[value] = len(self.values)
                self.values.append(entry)
        number = self._numbers
        match statement:
            case Loop(index, start, stop, body, lanes, unroll):
                head = [*self.dim.all((index, start, stop)), lanes, int(unroll)]
                return ["loop", *head, self.body(body)]
            case Declare(variable, init):
                return ["declare", self._local(variable), number[init]]
            case Assign(variable, value, at):
                return ["assign", self._local(variable), number[value], *self.dim.all(at)]
            case Reduce(variables, combine, values, at):
                targets = [self._local(v) for v in variables]
                return [
                    "reduce", combine, targets, [number[v] for v in values], *self.dim.all(at)
                ]  # fmt: skip
            case Bind(index, value):
                return ["bind", self.dim(index), number[value]]
            case Store(buffer, place, value, guard):
                where = None if guard is None else number[guard]
                return ["store", self._memory[buffer], self.dim(place), number[value], where]
            case Prefetch(buffer, place):
                return ["prefetch", self._memory[buffer], self.dim(place)]
            case BlockDot(into, left, right, words, rows, columns, live):
                blocks = [
                    [self._memory[b.buffer], self.dim(b.at), self.dim(b.pitch)]
                    for b in (into, left, right)
                ]
                return ["dots", *blocks, self.dim(words), rows, columns, self.dim(live)]
            case Check(ok, code, value):
                return ["check", number[ok], code, number[value]]
            case If(condition, body):
                return ["if", number[condition], self.body(body)]

    def _local(self, variable: Local) -> int:
        return self.locals.setdefault(variable, len(self.locals))

    def _value(self, value: Value) -> list[Any]:
        args = [self._numbers[a] for a in value.args]
        match value.op:
            case "const":
                return ["const", value.dtype.name, _encode_scalar(value)]
            case "index":
                return ["index", self.dim(value.data)]
            case "load":
                buffer, at = value.data
                return ["load", self._memory[buffer], self.dim(at), *args]
            case "word":
                buffer, at = value.data
                return ["word", self._memory[buffer], self.dim(at)]
            case "local":
                variable, copies = value.data
                return ["local", self._local(variable), *self.dim.all(copies)]
        return [value.op, value.dtype.name, *args]


def _encode_scalar(value: Value) -> str | int:
    if value.dtype.is_float:
        return struct.pack("<d", value.data).hex()
    return int(value.data)


# ---------------------------------------------------------------- reading


class _Reader:
    """Reads the tables first, then statements that refer to them."""

    def __init__(self, form: Any) -> None:
        self.dim = DimReader(form["dims"])
        self.memory = [self._buffer(as_list(entry, 4)) for entry in as_list(form["memory"])]
        self._locals = [_read_local(as_list(entry)) for entry in as_list(form["locals"])]
        self._values: list[Value] = []
        for entry in as_list(form["values"]):
            self._values.append(self._value(*as_list(entry)))

    def kernel(self, form: Any) -> Kernel:
        count = as_int(form["buffers"])
        return Kernel(
            name=as_text(form["name"]),
            buffers=tuple(self.memory[:count]),
            scratch=tuple(self.memory[count:]),
            variables=tuple(self.dim.variable(v) for v in as_list(form["variables"])),
            tile=self.dim.index(form["tile"]),
            tiles=self.dim(form["tiles"]),
            body=self._body(form["body"]),
            checks=tuple(decode_check(c, self.dim) for c in as_list(form["checks"])),
            flops=self.dim(form["flops"]),
            bytes=self.dim(form["bytes"]),
            notes=tuple(as_text(n) for n in as_list(form["notes"])),
        )

    def _buffer(self, entry: list[Any]) -> Buffer:
        name, dtype, size, access = entry
        return Buffer(as_name(name), as_known_dtype(dtype), self.dim(size), as_access(access))

    def _body(self, body: Any) -> tuple[Statement, ...]:
        return tuple(self._statement(*as_list(entry)) for entry in as_list(body))

    def _statement(self, kind: Any, *rest: Any) -> Statement:
        dim, value, variable = self.dim, self._used, self._local
        match kind, rest:
            case "loop", (index, start, stop, lanes, unroll, body):
                ends = dim(start), dim(stop)
                inner = self._body(body)
                return Loop(dim.index(index), *ends, inner, as_int(lanes), bool(as_int(unroll)))
            case "declare", (target, init):
                return Declare(variable(target), value(init))
            case "assign", (target, source, *at):
                return Assign(variable(target), value(source), dim.all(at))
            case "reduce", (combine, targets, sources, *at):
                return Reduce(
                    tuple(variable(t) for t in as_list(targets)),
                    as_text(combine),
                    tuple(value(s) for s in as_list(sources)),
                    dim.all(at),
                )
            case "bind", (index, source):
                return Bind(dim.index(index), value(source))
            case "store", (buffer, at, source, guard):
                where = None if guard is None else value(guard)
                return Store(_pick(self.memory, buffer), dim(at), value(source), where)
            case "prefetch", (buffer, at):
                return Prefetch(_pick(self.memory, buffer), dim(at))
            case "dots", (into, left, right, words, rows, columns, live):
                target, a, b = (self._block(*as_list(entry, 3)) for entry in (into, left, right))
                size = (as_int(rows), as_int(columns))
                return BlockDot(target, a, b, dim(words), *size, dim(live))
            case "check", (ok, code, source):
                return Check(value(ok), as_int(code), value(source))
            case "if", (condition, body):
                return If(value(condition), self._body(body))
        raise GraphError("decode", f"a statement must be of a known kind, got {kind!r:.40}.")

    def _block(self, buffer: Any, at: Any, pitch: Any) -> Block:
        return Block(_pick(self.memory, buffer), self.dim(at), self.dim(pitch))

    def _used(self, number: Any) -> Value:
        return _pick(self._values, number)

    def _local(self, number: Any) -> Local:
        return _pick(self._locals, number)

    def _value(self, op: Any, *rest: Any) -> Value:
        # Made as they were, without the simplifications of `kernel.ir`'s functions.
        match op, rest:
            case "const", (dtype, scalar):
                return _read_scalar(as_known_dtype(dtype), scalar)
            case "index", (at,):
                return _make("index", INT64, (), self.dim(at))
            case "load", (buffer, at, *args):
                memory = _pick(self.memory, buffer)
                return _make("load", memory.dtype, self._args(args), (memory, self.dim(at)))
            case "word", (buffer, at):
                memory = _pick(self.memory, buffer)
                return _make("word", word_dtype(memory.dtype), (), (memory, self.dim(at)))
            case "local", (number, *at):
                variable = self._local(number)
                return _make("local", variable.dtype, (), (variable, self.dim.all(at)))
            case str(), (dtype, *args) if op in _PLAIN:
                return _make(op, as_known_dtype(dtype), self._args(args))
        raise GraphError("decode", f"a value must be of a known op, got {op!r:.40}.")

    def _args(self, numbers: Sequence[Any]) -> tuple[Value, ...]:
        return tuple(self._used(n) for n in numbers)


def _pick(table: Sequence[T], number: Any) -> T:
    return table[as_index(number, len(table), "an entry")]


def _read_local(entry: list[Any]) -> Local:
    name, dtype, *copies = entry
    return Local(as_name(name), as_known_dtype(dtype), tuple(as_int(c) for c in copies))


def _read_scalar(dtype: DType, scalar: Any) -> Value:
    if dtype.is_float:
        (number,) = struct.unpack("<d", bytes.fromhex(as_text(scalar)))
        return const(dtype, number)
    return const(dtype, as_int(scalar))

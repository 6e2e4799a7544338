"""Scalar expressions: each value once, in the outermost scope that knows its operands.

    Value --value--> SSA value

A value that reads locals or memory that changes is known only while these keep what
they held; its key says so.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from semel.codegen.scalar.conversions import Conversions
from semel.codegen.scalar.frame import Frame, Ref, constants
from semel.codegen.scalar.indices import Indices
from semel.codegen.scalar.instructions import Instructions
from semel.codegen.scalar.llvm_types import element_type, literal
from semel.codegen.scalar.scalar_memory import Memory
from semel.codegen.scalar.scalars import Scalars
from semel.codegen.scalar.single_lane import Lanes
from semel.ir.types import INT32, INT64
from semel.kernel.ir import Buffer, Local, Value, walk_values

#: What is folded, of numbers so small that nothing wraps.
_FOLDED: dict[str, Callable[..., int]] = {
    "cast": lambda a: a,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
}
_SMALL = 1 << 15


class Lookups(Protocol):
    """Values that a machine looks up in a table of its registers."""

    def find(self, value: Value, lanes: int | None) -> tuple[Value, tuple[float, ...]] | None:
        """The words that decide about a value in so many lanes, and what it is for their codes."""

    def lookup(self, lines: list[str], table: tuple[float, ...], words: str, lanes: int) -> str:
        """The number of each lane's word."""


class Operands(Protocol):
    """Constants that a machine reads where they are used."""

    def operand(self, value: Value, lanes: int) -> str | None:
        """A constant in every lane; None if it belongs into a register."""


class Values:
    """Values of the kernel IR; `changing` are the buffers that the kernel writes."""

    def __init__(
        self,
        frame: Frame,
        out: Instructions,
        scalars: Scalars,
        conversions: Conversions,
        indices: Indices,
        lanes: Lanes,
        memory: Memory,
        changing: Sequence[Buffer],
        lookups: Lookups | None = None,
        operands: Operands | None = None,
    ) -> None:
        self.frame, self.out, self.scalars, self.conversions = frame, out, scalars, conversions
        self.indices, self.lanes, self.memory = indices, lanes, memory
        self._changing, self.lookups, self.operands = changing, lookups, operands
        self._reads: dict[Value, frozenset[Local | Buffer]] = {}
        self._numbers: dict[Value, int | None] = {}

    def value(self, value: Value) -> Ref:
        """Emit what is missing of `value`, operands first; returns its SSA value."""
        fresh: dict[Value, Ref] = {}
        for v in self._pending(value, fresh):
            fresh[v] = self._emit(v, fresh)
        return fresh[value]

    def _pending(self, root: Value, fresh: dict[Value, Ref]) -> list[Value]:
        """Values still to emit, operands first; known ones go straight to `fresh`."""
        order: list[Value] = []
        seen: set[Value] = set()
        stack: list[tuple[Value, bool]] = [(root, False)]
        while stack:
            value, ready = stack.pop()
            if ready:
                order.append(value)
                continue
            if value in seen:
                continue
            seen.add(value)
            known = self._find(value) or self._looked_up(value)
            if known is not None:
                fresh[value] = known
                continue
            stack.append((value, True))
            if not self._is_small_index(value):
                stack.extend((a, False) for a in value.args)
        return order

    def _looked_up(self, value: Value) -> Ref | None:
        """What is a function of a few bits, where the machine has tables for that."""
        lanes = self.lanes.count
        if self.lookups is None or lanes is None:
            return None
        found = self.lookups.find(value, lanes)
        words = None if found is None else self.value(found[0])
        if found is None or words is None or not words.is_vector:
            return None
        lines = self.frame.scopes[words.level].lines
        text = self.lookups.lookup(lines, found[1], words.text, lanes)
        return self._remember(value, Ref(text, True, words.level))

    def _find(self, value: Value) -> Ref | None:
        if value.op == "const":
            return Ref(literal(value.dtype, value.data), False, 0)
        number = self._number(value)
        if number is not None:
            return Ref(literal(value.dtype, number), False, 0)
        if value.op == "local":
            return self.frame.locals[value.data[0], constants(value.data[1])]
        return self.frame.find(self._key(value))

    def _number(self, value: Value, depth: int = 4) -> int | None:
        """What cheap arithmetic on unrolled indices is: a shift by a number costs less."""
        if value.op == "index":
            return value.data if isinstance(value.data, int) else None
        if value.op == "const":
            return value.data if type(value.data) is int else None
        if value.op not in _FOLDED or value.dtype not in (INT32, INT64) or not depth:
            return None
        if value not in self._numbers:
            parts = [self._number(a, depth - 1) for a in value.args]
            known = [p for p in parts if p is not None and abs(p) < _SMALL]
            is_known = len(known) == len(parts)
            self._numbers[value] = _FOLDED[value.op](*known) if is_known else None
        return self._numbers[value]

    def _key(self, value: Value) -> Any:
        """Identity of a value now: itself, its locals, and the state of memory it reads."""
        reads = self._read_by(value)
        if not reads:
            return value
        locals_, stores = self.frame.locals, self.frame.stores
        texts = tuple(locals_[k].text for k in locals_ if k[0] in reads)
        return (value, texts, tuple(stores.get(b, 0) for b in self._changing if b in reads))

    def _read_by(self, value: Value) -> frozenset[Local | Buffer]:
        """The locals and the changing memory that a value depends on."""
        if value not in self._reads:
            for v in walk_values([value]):
                if v not in self._reads:
                    found: set[Local | Buffer] = {v.data[0]} if v.op == "local" else set()
                    if v.op in ("load", "word") and v.data[0].access != "r":
                        found.add(v.data[0])
                    for a in v.args:
                        found |= self._reads[a]
                    self._reads[v] = frozenset(found)
        return self._reads[value]

    def _emit(self, value: Value, fresh: dict[Value, Ref]) -> Ref:
        if value.op == "load":
            guard, other = [fresh.get(a) for a in value.args] or [None, None]
            return self._loaded(value, self.memory.load(value, guard, other))
        if value.op == "word":
            return self._loaded(value, self.memory.word(value))
        if value.op == "index":
            return self._remember(value, self._index(value))
        if self._is_small_index(value):
            small = self.lanes.small_index(value.args[0].data)
            return self._remember(value, Ref(small, True, self.frame.level))
        args = [fresh[a] for a in value.args]
        level = max((a.level for a in args), default=0)
        is_vector = any(a.is_vector for a in args)
        lanes = self.lanes.count if is_vector else None
        if value.op == "select" and lanes:
            lines = self.frame.scopes[level].lines
            return self._remember(
                value, Ref(self.lanes.choose(lines, value.dtype, *args), True, level)
            )
        is_inside = lanes is not None and level == self.frame.level
        texts = [
            (is_inside and self._operand(a)) or (self.lanes.spread(r, a.dtype) if lanes else r.text)
            for r, a in zip(args, value.args, strict=True)
        ]
        text = self._instruction(self.frame.scopes[level].lines, value, texts, lanes)
        return self._remember(value, Ref(text, is_vector, level))

    def _operand(self, value: Value) -> str | None:
        """A constant as an operand in memory, if it is one."""
        if self.operands is None or value.op != "const" or self.lanes.count is None:
            return None
        return self.operands.operand(value, self.lanes.count)

    def _instruction(
        self, lines: list[str], value: Value, texts: list[str], lanes: int | None
    ) -> str:
        source = value.args[0].dtype
        match value.op:
            case "cast":
                return self.conversions.cast(lines, source, value.dtype, texts[0], lanes)
            case "bitcast":
                return self.conversions.bitcast(lines, source, value.dtype, texts[0], lanes)
            case "select":
                return self.out.select(lines, element_type(value.dtype), lanes, *texts)
            case _:
                constant = tuple(a.op == "const" and a.data == a.data for a in value.args)
                return self.scalars.apply(lines, value.op, source, texts, lanes, constant)

    def _loaded(self, value: Value, ref: Ref) -> Ref:
        """What was read is the same next time if only this tile writes there: its key says when."""
        return self._remember(value, ref) if value.data[0].access in ("r", "s") else ref

    def _remember(self, value: Value, ref: Ref) -> Ref:
        return self.frame.keep(self._key(value), ref)

    def _is_small_index(self, value: Value) -> bool:
        """Whether it is an index as an int32 that differs from lane to lane."""
        if value.op != "cast" or value.dtype != INT32 or value.args[0].op != "index":
            return False
        return self.lanes.is_varying(value.args[0].data)

    def _index(self, value: Value) -> Ref:
        dim = value.data
        if self.lanes.is_varying(dim):
            return Ref(self.lanes.index(dim), True, self.frame.level)
        return self.indices.dim(dim)

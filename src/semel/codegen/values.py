"""Scalar expressions: each value once, in the outermost scope that knows its operands.

    Value --_value--> SSA value

A value that reads locals or memory that changes is known only while these keep what
they held; its key says so.
"""

from __future__ import annotations

from typing import Any

from semel.codegen.indices import Indices
from semel.codegen.scalars import element_type, literal
from semel.codegen.scope import Ref, constants
from semel.kernel.ir import Buffer, Local, Value, walk_values


class Values(Indices):
    """Values of the kernel IR; loads come from the layer above."""

    def _value(self, value: Value) -> Ref:
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
            known = self._find(value)
            if known is not None:
                fresh[value] = known
                continue
            stack.append((value, True))
            stack.extend((a, False) for a in value.args)
        return order

    def _find(self, value: Value) -> Ref | None:
        if value.op == "const":
            return Ref(literal(value.dtype, value.data), False, 0)
        if value.op == "local":
            return self.locals[value.data[0], constants(value.data[1])]
        key = self._key(value)
        for scope in reversed(self.scopes):
            if key in scope.memo:
                return scope.memo[key]
        return None

    def _key(self, value: Value) -> Any:
        """Identity of a value now: itself, its locals, and the state of memory it reads."""
        reads = self._read_by(value)
        if not reads:
            return value
        texts = tuple(self.locals[k].text for k in self.locals if k[0] in reads)
        return (value, texts, tuple(self._stores.get(b, 0) for b in self._memory if b in reads))

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
            return self._load(value, fresh)
        if value.op == "word":
            return self._word(value)
        if value.op == "index":
            return self._index_value(value)
        args = [fresh[a] for a in value.args]
        level = max((a.level for a in args), default=0)
        is_vector = any(a.is_vector for a in args)
        lines = self.scopes[level].lines
        lanes = self.vector.lanes if is_vector and self.vector else None
        texts = [
            self._as_vector(r, a.dtype) if lanes else r.text
            for r, a in zip(args, value.args, strict=True)
        ]
        text = self._instruction(lines, value, texts, lanes)
        return self._remember(value, Ref(text, is_vector, level))

    def _instruction(
        self, lines: list[str], value: Value, texts: list[str], lanes: int | None
    ) -> str:
        source = value.args[0].dtype
        match value.op:
            case "cast":
                return self.scalars.cast(lines, source, value.dtype, texts[0], lanes)
            case "bitcast":
                return self.scalars.bitcast(lines, source, value.dtype, texts[0], lanes)
            case "select":
                return self.scalars.select(lines, element_type(value.dtype), lanes, *texts)
            case _:
                constant = tuple(a.op == "const" and a.data == a.data for a in value.args)
                return self.scalars.apply(lines, value.op, source, texts, lanes, constant)

    def _remember(self, value: Value, ref: Ref) -> Ref:
        self.scopes[ref.level].memo[self._key(value)] = ref
        return ref

    def _index_value(self, value: Value) -> Ref:
        dim = value.data
        if self._is_varying(dim):
            return self._remember(value, Ref(self._dim_vector(dim), True, self.level))
        return self._remember(value, self._dim(dim))

    def _load(self, value: Value, fresh: dict[Value, Ref]) -> Ref:
        raise NotImplementedError

    def _word(self, value: Value) -> Ref:
        raise NotImplementedError

"""Kernel IR to LLVM IR text: one function per kernel.

    Kernel x Target --emit_kernel--> LLVM module text

The emitter keeps a stack of *scopes*, one per open loop. A value is emitted in
the outermost scope in which its operands are known, so that loop invariants
leave their loops, and a memo per scope makes common subexpressions common: the
middle-end passes of LLVM have nothing left to do and are not run.

A loop with lanes becomes a main loop over vectors of `lanes` elements, which LLVM
splits into independent registers, and a masked loop of one register's width for
the rest. Which lane an element falls into depends on its index alone, so a
reduction adds in one order whatever the number of threads or tiles.

Invariant: kernels are emitted after `lower.math`; no math op reaches this file.
"""

from __future__ import annotations

from collections.abc import Iterable

from semel.codegen.scalars import element_type
from semel.codegen.scope import Ref, Scope, constants
from semel.codegen.tiles import Tiles
from semel.errors import InternalError
from semel.ir.expr import Dim
from semel.ir.target import Target
from semel.ir.types import BOOL
from semel.kernel import ir
from semel.kernel.ir import Buffer, Kernel, Statement

_LANE_SCRATCH, _LANE_ROW, _LANE_CODE = 8, 16, 24
_LANE_STATUS_ROW, _LANE_STATUS_VALUE = 32, 40


def emit_kernel(kernel: Kernel, target: Target, symbol: str) -> str:
    """The LLVM module of one kernel, whose function is named `symbol`."""
    return Emitter(kernel, target, symbol).module()


class Emitter(Tiles):
    """Statements, and the function around them."""

    def module(self) -> str:
        self._prologue()
        body = ir.Loop(self.kernel.tile, 0, 0, self.kernel.body)
        self._configure_tiles()
        self._counted_loop(body, "%t0", "%t1", 1, self.kernel.body)
        self._release_tiles()
        lines = "\n".join(self.scopes[0].lines)
        declarations = "\n".join(self.sink.declarations.values())
        width = self.target.vector_bits
        return (
            f"define void @{self.symbol}(ptr %lane, ptr %buffers, ptr %vals, i64 %t0, i64 %t1) #0 "
            f"{{\nentry:\n{lines}\n  ret void\n}}\n{declarations}\n"
            f'attributes #0 = {{ nounwind "prefer-vector-width"="{width}" '
            f'"min-legal-vector-width"="{width}" }}\n'
            "!0 = !{}\n"
        )

    def _prologue(self) -> None:
        entry = self.scopes[0].lines
        for i, buffer in enumerate(self.kernel.buffers):
            slot = self.sink.emit(entry, f"getelementptr ptr, ptr %buffers, i64 {i}")
            load = f"load ptr, ptr {slot}, !invariant.load !0"
            self.pointers[buffer] = self.sink.emit(entry, load)
        for i, variable in enumerate(self.kernel.variables):
            slot = self.sink.emit(entry, f"getelementptr i64, ptr %vals, i64 {i}")
            text = self.sink.emit(entry, f"load i64, ptr {slot}, !invariant.load !0")
            self.env[variable] = Ref(text, False, 0)
        if self.kernel.scratch:
            slot = self.sink.emit(entry, f"getelementptr i8, ptr %lane, i64 {_LANE_SCRATCH}")
            base = self.sink.emit(entry, f"load ptr, ptr {slot}, !invariant.load !0")
            for buffer, offset in scratch_offsets(self.kernel):
                at = self._dim(offset)
                self.pointers[buffer] = self.sink.emit(
                    entry, f"getelementptr i8, ptr {base}, i64 {at.text}"
                )

    def _body(self, body: Iterable[Statement]) -> None:
        for statement in body:
            match statement:
                case ir.Loop():
                    self._loop(statement)
                case ir.Declare():
                    self._declare(statement)
                case ir.Assign():
                    self._assign(statement)
                case ir.Reduce():
                    self._reduce(statement)
                case ir.Bind():
                    self.env[statement.index] = self._value(statement.value)
                case ir.Store():
                    self._store(statement)
                case ir.Prefetch():
                    self._prefetch(statement)
                case ir.BlockDot():
                    self._block_dot(statement)
                case ir.Check():
                    self._check(statement)
                case ir.If():
                    self._if(statement)

    def _declare(self, statement: ir.Declare) -> None:
        local = statement.local
        ref = self._value(statement.init)
        text = self._as_vector(ref, local.dtype) if self.vector is not None else ref.text
        # Inside a vector loop the text depends on the lanes, so it must not leave the loop.
        level = max(ref.level, self.vector.level) if self.vector else ref.level
        ref = Ref(text, self.vector is not None, level)
        for at in _positions(local.copies):
            self.locals[local, at] = ref

    def _assign(self, statement: ir.Assign) -> None:
        key = (statement.local, constants(statement.at))
        old = self.locals[key]
        ref = self._value(statement.value)
        text = self._as_vector(ref, statement.local.dtype) if old.is_vector else ref.text
        self.locals[key] = Ref(text, old.is_vector, self.level)

    def _reduce(self, statement: ir.Reduce) -> None:
        at = constants(statement.at)
        keys = [(local, at) for local in statement.locals]
        olds = [self.locals[k] for k in keys]
        is_vector = olds[0].is_vector
        lanes = self.vector.lanes if is_vector and self.vector else None
        values = [self._value(v) for v in statement.values]
        texts = [
            self._as_vector(r, v.dtype) if lanes else r.text
            for r, v in zip(values, statement.values, strict=True)
        ]
        lines = self.scope.lines
        dtypes = [local.dtype for local in statement.locals]
        if statement.combine == "dot":
            signs = [v.dtype.kind for v in statement.values]
            news = [self.dots.add(lines, olds[0].text, texts, signs, lanes)]
        else:
            news = self._combine(lines, statement.combine, dtypes, olds, texts, lanes)
        mask = self.vector.mask if self.vector else None
        for key, old, text in zip(keys, olds, news, strict=True):
            kept = text
            # Locals of the loop itself need no mask: what idle lanes hold is never stored. LLVM
            # would also merge it with that of a load, and may then load the lanes unmasked.
            if mask and lanes and key in self._lane_totals:
                element = element_type(key[0].dtype)
                kept = self.scalars.select(lines, element, lanes, mask, text, old.text)
            self.locals[key] = Ref(kept, is_vector, self.level)

    def _if(self, statement: ir.If) -> None:
        if self.vector is not None:
            raise InternalError("emit", "If inside a vector loop.")
        condition = self._value(statement.condition)
        then, after = self.sink.name("then"), self.sink.name("after")
        parent = self.scope
        changed = self._changed(statement.body)
        before = {k: self.locals[k] for k in changed}
        child = Scope(then, is_conditional=True)
        self.scopes.append(child)
        outer = set(self.locals)
        self._body(statement.body)
        self.scopes.pop()
        for key in self.locals.keys() - outer:
            del self.locals[key]
        entry_label = parent.label
        parent.lines.append(f"  br i1 {condition.text}, label %{then}, label %{after}")
        parent.lines.append(f"{then}:")
        parent.lines += child.lines
        parent.lines.append(f"  br label %{after}")
        self._label(parent, after)
        for key, old in before.items():
            kind = element_type(key[0].dtype)
            new = self.locals[key].text
            pairs = f"[{old.text}, %{entry_label}], [{new}, %{child.label}]"
            text = self.sink.emit(parent.lines, f"phi {kind} {pairs}")
            self.locals[key] = Ref(text, False, self.level)

    def _check(self, statement: ir.Check) -> None:
        ok, value = self._value(statement.ok), self._value(statement.value)
        lines = self.scope.lines
        lanes = self.vector.lanes if self.vector and ok.is_vector else None
        bad = self.scalars.apply(lines, "not", BOOL, [ok.text], lanes)
        if lanes and self.vector and self.vector.mask:
            bad = self.scalars.binary(lines, "and", "i1", lanes, bad, self.vector.mask)
        text = value.text
        if lanes:
            bits = self.sink.emit(lines, f"bitcast <{lanes} x i1> {bad} to i{lanes}")
            bad = self.sink.emit(lines, f"icmp ne i{lanes} {bits}, 0")
        cold, report, after = (self.sink.name(n) for n in ("cold", "report", "after"))
        lines.append(f"  br i1 {bad}, label %{cold}, label %{after}")
        self._label(self.scope, cold)
        if lanes and value.is_vector:
            first = self.sink.call(
                lines, f"i{lanes}", f"llvm.cttz.i{lanes}", (f"i{lanes}", bits), ("i1", "true")
            )
            text = self.sink.emit(lines, f"extractelement <{lanes} x i64> {text}, i{lanes} {first}")
        pointer = {
            offset: self.sink.emit(lines, f"getelementptr i8, ptr %lane, i64 {offset}")
            for offset in (_LANE_CODE, _LANE_ROW, _LANE_STATUS_ROW, _LANE_STATUS_VALUE)
        }
        seen = self.sink.emit(lines, f"load i64, ptr {pointer[_LANE_CODE]}")
        fresh = self.sink.emit(lines, f"icmp eq i64 {seen}, 0")
        lines.append(f"  br i1 {fresh}, label %{report}, label %{after}")
        self._label(self.scope, report)
        row = self.sink.emit(lines, f"load i64, ptr {pointer[_LANE_ROW]}")
        lines.append(f"  store i64 {statement.code}, ptr {pointer[_LANE_CODE]}")
        lines.append(f"  store i64 {row}, ptr {pointer[_LANE_STATUS_ROW]}")
        lines.append(f"  store i64 {text}, ptr {pointer[_LANE_STATUS_VALUE]}")
        lines.append(f"  br label %{after}")
        self._label(self.scope, after)


def scratch_offsets(kernel: Kernel) -> list[tuple[Buffer, Dim]]:
    """Where each scratch buffer starts in a thread's scratch, in bytes, 64-byte aligned."""
    result: list[tuple[Buffer, Dim]] = []
    offset: Dim = 0
    for buffer in kernel.scratch:
        result.append((buffer, offset))
        size = buffer.size * buffer.dtype.size_bytes
        offset = offset + (size + 127) // 64 * 64
    return result


def scratch_bytes(kernel: Kernel) -> Dim:
    """The scratch one thread needs."""
    offsets = scratch_offsets(kernel)
    if not offsets:
        return 0
    buffer, offset = offsets[-1]
    return offset + (buffer.size * buffer.dtype.size_bytes + 127) // 64 * 64


def _positions(copies: tuple[int, ...]) -> list[tuple[int, ...]]:
    result: list[tuple[int, ...]] = [()]
    for n in copies:
        result = [(*r, i) for r in result for i in range(n)]
    return result

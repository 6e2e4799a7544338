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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from semel.codegen.scalars import (
    Instructions,
    Scalars,
    element_type,
    identity,
    literal,
    memory_type,
    vector_of,
)
from semel.errors import InternalError
from semel.ir.expr import (
    Dim,
    Fn,
    Index,
    Variable,
    atoms,
    is_nonnegative,
    linear_coefficient,
    terms,
    upper_bound,
)
from semel.ir.target import Target
from semel.ir.types import BOOL, INT64, DType
from semel.kernel import ir
from semel.kernel.ir import Buffer, Kernel, Local, Statement, Value, walk_statements, walk_values
from semel.kernel.rewrite import substitute_indices

CACHE_LINE_BYTES = 64

_LANE_SCRATCH, _LANE_ROW, _LANE_CODE = 8, 16, 24
_LANE_STATUS_ROW, _LANE_STATUS_VALUE = 32, 40


@dataclass(slots=True)
class _Scope:
    """The straight-line code of one loop body (or of the function) under construction."""

    label: str
    lines: list[str] = field(default_factory=list)
    memo: dict[Any, _Ref] = field(default_factory=dict)
    is_conditional: bool = False


@dataclass(frozen=True, slots=True)
class _Ref:
    """An SSA value: its text, whether it has lanes, and the scope that defines it."""

    text: str
    is_vector: bool
    level: int


@dataclass(frozen=True, slots=True)
class _Vector:
    """The vector loop that is open: its index, lanes and mask (None: all lanes)."""

    index: Index
    lanes: int
    mask: str | None
    level: int


def emit_kernel(kernel: Kernel, target: Target, symbol: str) -> str:
    """The LLVM module of one kernel, whose function is named `symbol`."""
    return _Emitter(kernel, target, symbol).module()


class _Emitter:
    def __init__(self, kernel: Kernel, target: Target, symbol: str) -> None:
        self.kernel, self.target, self.symbol = kernel, target, symbol
        self.sink = Instructions()
        has_scale = target.arch == "x86_64" and target.vector_bits == 512
        self.scalars = Scalars(self.sink, has_scale=has_scale)
        self.scopes: list[_Scope] = [_Scope("entry")]
        self.env: dict[Variable | Index, _Ref] = {}
        self.pointers: dict[Buffer, str] = {}
        self.locals: dict[tuple[Local, tuple[int, ...]], _Ref] = {}
        self.vector: _Vector | None = None
        #: Locals of outer scopes that the open vector loop accumulates lane by lane.
        self._lane_totals: frozenset[tuple[Local, tuple[int, ...]]] = frozenset()
        self._memory = [b for b in (*kernel.buffers, *kernel.scratch) if b.access != "r"]
        self._reads: dict[Value, frozenset[Local | Buffer]] = {}
        #: How often each buffer that is read back was stored to, in the order of the code.
        self._stores: dict[Buffer, int] = {}

    # ------------------------------------------------------------ the function

    def module(self) -> str:
        self._prologue()
        body = ir.Loop(self.kernel.tile, 0, 0, self.kernel.body)
        self._counted_loop(body, "%t0", "%t1", 1, self.kernel.body)
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
            self.env[variable] = _Ref(text, False, 0)
        if self.kernel.scratch:
            slot = self.sink.emit(entry, f"getelementptr i8, ptr %lane, i64 {_LANE_SCRATCH}")
            base = self.sink.emit(entry, f"load ptr, ptr {slot}, !invariant.load !0")
            for buffer, offset in scratch_offsets(self.kernel):
                at = self._dim(offset)
                self.pointers[buffer] = self.sink.emit(
                    entry, f"getelementptr i8, ptr {base}, i64 {at.text}"
                )

    @property
    def scope(self) -> _Scope:
        return self.scopes[-1]

    @property
    def level(self) -> int:
        return len(self.scopes) - 1

    def _label(self, scope: _Scope, name: str) -> None:
        scope.lines.append(f"{name}:")
        scope.label = name

    # ------------------------------------------------------------ statements

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
        ref = _Ref(text, self.vector is not None, level)
        for at in _positions(local.copies):
            self.locals[local, at] = ref

    def _assign(self, statement: ir.Assign) -> None:
        key = (statement.local, _constants(statement.at))
        old = self.locals[key]
        ref = self._value(statement.value)
        text = self._as_vector(ref, statement.local.dtype) if old.is_vector else ref.text
        self.locals[key] = _Ref(text, old.is_vector, self.level)

    def _reduce(self, statement: ir.Reduce) -> None:
        at = _constants(statement.at)
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
        news = self._combine(lines, statement.combine, dtypes, olds, texts, lanes)
        mask = self.vector.mask if self.vector else None
        for key, old, text in zip(keys, olds, news, strict=True):
            kept = text
            # Locals of the loop itself need no mask: what idle lanes hold is never stored. LLVM
            # would also merge it with that of a load, and may then load the lanes unmasked.
            if mask and lanes and key in self._lane_totals:
                element = element_type(key[0].dtype)
                kept = self.scalars.select(lines, element, lanes, mask, text, old.text)
            self.locals[key] = _Ref(kept, is_vector, self.level)

    def _combine(
        self,
        lines: list[str],
        kind: str,
        dtypes: list[DType],
        olds: Sequence[_Ref],
        texts: list[str],
        lanes: int | None,
    ) -> list[str]:
        dtype = dtypes[0]
        if kind in ("argmax", "argmin"):
            best = (olds[0].text, olds[1].text)
            better = self.scalars.better(lines, kind, dtype, lanes, (texts[0], texts[1]), best)
            return [
                self.scalars.select(lines, element_type(d), lanes, better, new, old.text)
                for d, new, old in zip(dtypes, texts, olds, strict=True)
            ]
        if kind == "fma":
            return [self.scalars.apply(lines, "fma", dtype, [*texts, olds[0].text], lanes)]
        return [self.scalars.combine(lines, kind, dtype, olds[0].text, texts[0], lanes)]

    def _if(self, statement: ir.If) -> None:
        if self.vector is not None:
            raise InternalError("emit", "If inside a vector loop.")
        condition = self._value(statement.condition)
        then, after = self.sink.name("then"), self.sink.name("after")
        parent = self.scope
        changed = self._changed(statement.body)
        before = {k: self.locals[k] for k in changed}
        child = _Scope(then, is_conditional=True)
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
            self.locals[key] = _Ref(text, False, self.level)

    def _prefetch(self, statement: ir.Prefetch) -> None:
        """One hint per cache line of a full vector; none for the rest of a row."""
        if self.vector is None or self.vector.mask is not None:
            return
        pointer = self._pointer(statement.buffer, statement.at, self.level)
        size_bytes = self.vector.lanes * statement.buffer.dtype.size_bytes
        for offset in range(0, size_bytes, CACHE_LINE_BYTES):
            line = self.sink.emit(
                self.scope.lines, f"getelementptr i8, ptr {pointer}, i64 {offset}"
            )
            hint = (("ptr", line), ("i32", "0"), ("i32", "3"), ("i32", "1"))
            self.sink.call(self.scope.lines, "void", "llvm.prefetch.p0", *hint)

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

    # ------------------------------------------------------------ loops

    def _loop(self, loop: ir.Loop) -> None:
        if loop.unroll:
            if not (isinstance(loop.start, int) and isinstance(loop.stop, int)):
                raise InternalError("emit", f"unrolled loop {loop.index} has symbolic bounds.")
            bound = [s.index for s in walk_statements(loop.body) if isinstance(s, ir.Bind)]
            for i in range(loop.start, loop.stop):
                # Every copy binds indices of its own: values of one must not serve another.
                own: dict[Index, Dim] = {b: Index(f"{b.name}_{i}", b.extent) for b in bound}
                self._body(substitute_indices(loop.body, {**own, loop.index: i}))
        elif loop.lanes > 1:
            self._vector_loop(loop)
        else:
            start, stop = self._dim(loop.start), self._dim(loop.stop)
            known = isinstance(loop.start, int) and isinstance(loop.stop, int)
            if known and loop.start >= loop.stop:  # type: ignore[operator]
                return
            self._counted_loop(loop, start.text, stop.text, 1, loop.body, runs=known)

    def _changed(self, body: Sequence[Statement]) -> list[tuple[Local, tuple[int, ...]]]:
        """The locals of outer scopes that the body assigns, in a fixed order."""
        names: dict[Local, None] = {}
        for statement in walk_statements(body):
            match statement:
                case ir.Assign(local=local):
                    names[local] = None
                case ir.Reduce(locals=several):
                    names.update(dict.fromkeys(several))
        return [key for key in self.locals if key[0] in names]

    def _counted_loop(
        self,
        loop: ir.Loop,
        start: str,
        stop: str,
        step: int,
        body: Sequence[Statement],
        *,
        runs: bool = False,
        mask_lanes: int = 0,
    ) -> None:
        """for index in range(start, stop, step); `runs` says that it runs at least once.

        With `mask_lanes`, lanes past `stop` are masked off in the body.
        """
        if runs and start.isdecimal() and stop.isdecimal() and int(stop) - int(start) <= step:
            self._run_once(loop, start, stop, step, body, mask_lanes)
            return
        parent = self.scope
        head, after = self.sink.name("loop"), self.sink.name("after")
        index = f"%{self.sink.name(loop.index.name.replace('.', '_'))}"
        changed = self._changed(body)
        before = {key: self.locals[key] for key in changed}
        for statement in walk_statements(body):
            if isinstance(statement, ir.Store):
                self._touch(statement.buffer)  # by an earlier iteration
        outer = set(self.locals)
        child = _Scope(head)
        self.scopes.append(child)
        self.env[loop.index] = _Ref(index, False, self.level)
        phis: dict[tuple[Local, tuple[int, ...]], str] = {}
        for key in changed:
            phis[key] = f"%{self.sink.name('acc')}"
            self.locals[key] = _Ref(phis[key], before[key].is_vector, self.level)
        if step > 1:
            mask = self._mask(index, stop, mask_lanes) if mask_lanes else None
            self.vector = _Vector(loop.index, mask_lanes or step, mask, self.level)
        self._body(body)
        following = self.sink.emit(child.lines, f"add nsw i64 {index}, {step}")
        again = self.sink.emit(child.lines, f"icmp slt i64 {following}, {stop}")
        self.scopes.pop()

        entry_label = parent.label
        if runs:
            parent.lines.append(f"  br label %{head}")
        else:
            enter = self.sink.emit(parent.lines, f"icmp slt i64 {start}, {stop}")
            parent.lines.append(f"  br i1 {enter}, label %{head}, label %{after}")
        parent.lines.append(f"{head}:")
        pairs = f"[{start}, %{entry_label}], [{following}, %{child.label}]"
        parent.lines.append(f"  {index} = phi i64 {pairs}")
        finals = {key: self.locals[key] for key in changed}
        for key in changed:
            kind = self._local_type(key[0], before[key])
            pairs = f"[{before[key].text}, %{entry_label}], [{finals[key].text}, %{child.label}]"
            parent.lines.append(f"  {phis[key]} = phi {kind} {pairs}")
        parent.lines += child.lines
        parent.lines.append(f"  br i1 {again}, label %{head}, label %{after}")
        self._label(parent, after)
        for key in changed:
            text = finals[key].text
            if not runs:
                kind = self._local_type(key[0], before[key])
                pairs = f"[{before[key].text}, %{entry_label}], [{text}, %{child.label}]"
                text = self.sink.emit(parent.lines, f"phi {kind} {pairs}")
            self.locals[key] = _Ref(text, before[key].is_vector, self.level)
        for key in self.locals.keys() - outer:
            del self.locals[key]
        if step > 1:
            self.vector = None

    def _run_once(
        self,
        loop: ir.Loop,
        start: str,
        stop: str,
        step: int,
        body: Sequence[Statement],
        mask_lanes: int,
    ) -> None:
        """A loop of one iteration is its body, in a scope of its own for names and memory."""
        parent, outer = self.scope, set(self.locals)
        child = _Scope(parent.label)
        self.scopes.append(child)
        self.env[loop.index] = _Ref(start, False, self.level)
        if step > 1:
            mask = self._mask(start, stop, mask_lanes) if mask_lanes else None
            self.vector = _Vector(loop.index, mask_lanes or step, mask, self.level)
        self._body(body)
        self.scopes.pop()
        parent.lines += child.lines
        parent.label = child.label
        for key in self.locals.keys() - outer:
            del self.locals[key]
        for key, ref in self.locals.items():
            self.locals[key] = _Ref(ref.text, ref.is_vector, min(ref.level, self.level))
        if step > 1:
            self.vector = None

    def _local_type(self, local: Local, ref: _Ref) -> str:
        lanes = self.vector.lanes if ref.is_vector and self.vector else None
        return vector_of(element_type(local.dtype), lanes)

    def _mask(self, index: str, stop: str, lanes: int) -> str:
        """Lanes whose element lies before `stop`."""
        lines = self.scope.lines
        left = self.sink.emit(lines, f"sub nsw i64 {stop}, {index}")
        small = self.sink.call(lines, "i64", "llvm.smin.i64", ("i64", left), ("i64", str(lanes)))
        word = self.sink.emit(lines, f"trunc i64 {small} to i32")
        limit = self.scalars.splat(lines, "i32", word, lanes)
        return self.sink.emit(lines, f"icmp slt <{lanes} x i32> {_iota('i32', lanes)}, {limit}")

    def _vector_loop(self, loop: ir.Loop) -> None:
        if self.vector is not None:
            raise InternalError("emit", f"vector loop {loop.index} inside another.")
        narrow = min(self.target.vector_bits // 32, loop.lanes)
        wide = loop.lanes
        start, stop = self._dim(loop.start), self._dim(loop.stop)
        count = loop.stop - loop.start
        middle: str
        if isinstance(count, int):
            if count <= 0:
                return
            if count < wide:
                wide = narrow
            main = count // wide * wide
            middle = self._dim(loop.start + main).text
            rest = count - main
        else:
            main = rest = -1
            lines = self.scope.lines
            length = self.sink.emit(lines, f"sub nsw i64 {stop.text}, {start.text}")
            whole = self.sink.emit(lines, f"and i64 {length}, {-wide}")
            middle = self.sink.emit(lines, f"add nsw i64 {start.text}, {whole}")
        reductions = self._reductions(loop.body)
        scalars = {key: self.locals[key] for key in reductions}
        lanes = wide if main else narrow
        self._lane_totals = frozenset(reductions)
        for key, kind in reductions.items():
            self.locals[key] = self._start(key[0], kind, lanes)
        if main:
            self._counted_loop(loop, start.text, middle, wide, loop.body, runs=main > 0)
            self._narrow(reductions, wide, narrow if rest else 1)
        if rest:
            self._counted_loop(
                loop, middle, stop.text, narrow, loop.body, runs=rest > 0, mask_lanes=narrow
            )
            self._narrow(reductions, narrow, 1)
        self._finish(reductions, scalars)

    def _start(self, local: Local, kind: _Reduction, lanes: int) -> _Ref:
        value = (1 << 63) - 1 if kind.is_position else identity(kind.combine, local.dtype)
        return _Ref(self.scalars.constant(local.dtype, value, lanes), True, 0)

    def _reductions(
        self, body: Sequence[Statement]
    ) -> dict[tuple[Local, tuple[int, ...]], _Reduction]:
        """Outer locals that the vector loop reduces into."""
        outer = {key[0] for key in self.locals}
        found: dict[tuple[Local, tuple[int, ...]], _Reduction] = {}
        for statement in walk_statements(body):
            match statement:
                case ir.Reduce(locals=several, combine=combine, at=at):
                    for i, local in enumerate(several):
                        if local in outer and not self.locals[local, _constants(at)].is_vector:
                            found[local, _constants(at)] = _Reduction(combine, several, i == 1)
                case ir.Assign(local=local) if local in outer:
                    raise InternalError("emit", f"{local.name} is assigned in a vector loop.")
        return found

    def _narrow(
        self, keys: dict[tuple[Local, tuple[int, ...]], _Reduction], lanes: int, to: int
    ) -> None:
        """Fold vector accumulators by halves until `to` lanes are left; 1 means a scalar."""
        lines = self.scope.lines
        for key, kind in keys.items():
            if kind.is_position:
                continue
            group = [(local, key[1]) for local in kind.locals]
            width = lanes
            parts = [self.locals[k].text for k in group]
            while width > to:
                half = width // 2
                lows: list[str] = []
                highs: list[str] = []
                for (local, _), text in zip(group, parts, strict=True):
                    vector = vector_of(element_type(local.dtype), width)
                    for side, offset in ((lows, 0), (highs, half)):
                        picks = ", ".join(f"i32 {offset + i}" for i in range(half))
                        side.append(
                            self.sink.emit(
                                lines,
                                f"shufflevector {vector} {text}, {vector} poison, "
                                f"<{half} x i32> <{picks}>",
                            )
                        )
                combine = "add" if kind.combine == "fma" else kind.combine
                olds = [_Ref(t, True, self.level) for t in lows]
                dtypes = [local.dtype for local, _ in group]
                parts = self._combine(lines, combine, dtypes, olds, highs, half)
                width = half
            for k, part in zip(group, parts, strict=True):
                text = part
                if to == 1:
                    vector = vector_of(element_type(k[0].dtype), 1)
                    text = self.sink.emit(lines, f"extractelement {vector} {part}, i32 0")
                self.locals[k] = _Ref(text, to > 1, self.level)

    def _finish(
        self,
        keys: dict[tuple[Local, tuple[int, ...]], _Reduction],
        scalars: dict[tuple[Local, tuple[int, ...]], _Ref],
    ) -> None:
        """Combine what the lanes found with what the accumulator held before the loop."""
        for key, kind in keys.items():
            if kind.is_position:
                continue
            group = [(local, key[1]) for local in kind.locals]
            combine = "add" if kind.combine == "fma" else kind.combine
            texts = [self.locals[k].text for k in group]
            olds = [scalars[k] for k in group]
            dtypes = [local.dtype for local, _ in group]
            news = self._combine(self.scope.lines, combine, dtypes, olds, texts, None)
            for k, text in zip(group, news, strict=True):
                self.locals[k] = _Ref(text, False, self.level)

    # ------------------------------------------------------------ values

    def _value(self, value: Value) -> _Ref:
        """Emit what is missing of `value`, operands first; returns its SSA value."""
        fresh: dict[Value, _Ref] = {}
        for v in self._pending(value, fresh):
            fresh[v] = self._emit(v, fresh)
        return fresh[value]

    def _pending(self, root: Value, fresh: dict[Value, _Ref]) -> list[Value]:
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

    def _find(self, value: Value) -> _Ref | None:
        if value.op == "const":
            return _Ref(literal(value.dtype, value.data), False, 0)
        if value.op == "local":
            return self.locals[value.data[0], _constants(value.data[1])]
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
                    if v.op == "load" and v.data[0].access != "r":
                        found.add(v.data[0])
                    for a in v.args:
                        found |= self._reads[a]
                    self._reads[v] = frozenset(found)
        return self._reads[value]

    def _emit(self, value: Value, fresh: dict[Value, _Ref]) -> _Ref:
        if value.op == "load":
            return self._load(value, fresh)
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
        return self._remember(value, _Ref(text, is_vector, level))

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

    def _remember(self, value: Value, ref: _Ref) -> _Ref:
        self.scopes[ref.level].memo[self._key(value)] = ref
        return ref

    def _as_vector(self, ref: _Ref, dtype: DType) -> str:
        """The value in every lane; splats of outer values are made in the outer scope."""
        if ref.is_vector:
            return ref.text
        assert self.vector is not None
        if not ref.text.startswith("%"):
            return self.scalars.raw(element_type(dtype), ref.text, self.vector.lanes)
        key = ("splat", ref.text, self.vector.lanes)
        for scope in reversed(self.scopes):
            if key in scope.memo:
                return scope.memo[key].text
        home = self.scopes[ref.level]
        text = self.scalars.splat(home.lines, element_type(dtype), ref.text, self.vector.lanes)
        home.memo[key] = _Ref(text, True, ref.level)
        return text

    # ------------------------------------------------------------ memory

    def _load(self, value: Value, fresh: dict[Value, _Ref]) -> _Ref:
        buffer, at = value.data
        guard = fresh[value.args[0]] if value.args else None
        other = fresh[value.args[1]] if value.args else None
        is_stable = buffer.access == "r"
        if self._is_varying(at) or (guard is not None and guard.is_vector):
            ref = self._vector_load(buffer, at, guard, other, value)
        else:
            ref = self._scalar_load(buffer, at, guard, other, value, is_stable)
        return self._remember(value, ref) if is_stable else ref

    def _home(self, level: int, *, is_stable: bool) -> int:
        """The scope where memory may be read: not above a condition, not before a store."""
        if not is_stable:
            return self.level
        for i in range(self.level, level, -1):
            if self.scopes[i].is_conditional:
                return i
        return level

    def _scalar_load(
        self,
        buffer: Buffer,
        at: Dim,
        guard: _Ref | None,
        other: _Ref | None,
        value: Value,
        is_stable: bool,
    ) -> _Ref:
        kind = memory_type(buffer.dtype)
        offset = self._dim(at)
        level = max(offset.level, guard.level if guard else 0, other.level if other else 0)
        home = self._home(level, is_stable=is_stable)
        lines = self.scopes[home].lines
        if guard is None:
            pointer = self._pointer(buffer, at, home)
        else:
            # A false guard must not touch memory outside: read element 0 instead.
            safe = self.sink.emit(lines, f"select i1 {guard.text}, i64 {offset.text}, i64 0")
            pointer = self.sink.emit(
                lines, f"getelementptr {kind}, ptr {self.pointers[buffer]}, i64 {safe}"
            )
        raw = self.sink.emit(lines, f"load {kind}, ptr {pointer}, align {buffer.dtype.size_bytes}")
        text = self.scalars.from_memory(lines, buffer.dtype, raw, None)
        if guard is not None and other is not None:
            element = element_type(value.dtype)
            text = self.scalars.select(lines, element, None, guard.text, text, other.text)
        return _Ref(text, False, home)

    def _vector_load(
        self, buffer: Buffer, at: Dim, guard: _Ref | None, other: _Ref | None, value: Value
    ) -> _Ref:
        assert self.vector is not None
        lanes, lines = self.vector.lanes, self.scope.lines
        mask = self._lane_mask(guard)
        kind = vector_of(memory_type(buffer.dtype), lanes)
        align = buffer.dtype.size_bytes
        stride = self._stride(at)
        if stride in (1, -1):
            pointer = self._pointer(buffer, at, self.level)
            if stride == -1:
                pointer = self._back(buffer, pointer)
                mask = self._reverse(mask, "i1") if mask else None
            raw = self._contiguous_load(kind, pointer, align, mask, lanes)
            if stride == -1:
                raw = self._reverse(raw, memory_type(buffer.dtype))
        else:
            raw = self._gather(buffer, at, mask, kind, lanes)
        text = self.scalars.from_memory(lines, buffer.dtype, raw, lanes)
        if guard is not None and other is not None:
            keep = self._as_vector(guard, BOOL)
            fill = self._as_vector(other, value.dtype)
            element = element_type(value.dtype)
            text = self.scalars.select(lines, element, lanes, keep, text, fill)
        return _Ref(text, True, self.level)

    def _contiguous_load(
        self, kind: str, pointer: str, align: int, mask: str | None, lanes: int
    ) -> str:
        lines = self.scope.lines
        if mask is None:
            return self.sink.emit(lines, f"load {kind}, ptr {pointer}, align {align}")
        name = f"llvm.masked.load.{_mangle(kind)}.p0"
        self.sink.declarations[name] = f"declare {kind} @{name}(ptr, <{lanes} x i1>, {kind})"
        return self.sink.emit(
            lines,
            f"call {kind} @{name}(ptr align {align} {pointer}, <{lanes} x i1> {mask}, "
            f"{kind} zeroinitializer)",
        )

    def _gather(self, buffer: Buffer, at: Dim, mask: str | None, kind: str, lanes: int) -> str:
        lines = self.scope.lines
        pointers = self._lane_pointers(buffer, at, lanes)
        everywhere = self.scalars.raw("i1", "true", lanes)
        name = f"llvm.masked.gather.{_mangle(kind)}.v{lanes}p0"
        self.sink.declarations[name] = (
            f"declare {kind} @{name}(<{lanes} x ptr>, <{lanes} x i1>, {kind})"
        )
        return self.sink.emit(
            lines,
            f"call {kind} @{name}(<{lanes} x ptr> align {buffer.dtype.size_bytes} {pointers}, "
            f"<{lanes} x i1> {mask or everywhere}, {kind} zeroinitializer)",
        )

    def _lane_pointers(self, buffer: Buffer, at: Dim, lanes: int) -> str:
        offsets = self._dim_vector(at)
        return self.sink.emit(
            self.scope.lines,
            f"getelementptr {memory_type(buffer.dtype)}, ptr {self.pointers[buffer]}, "
            f"<{lanes} x i64> {offsets}",
        )

    def _lane_mask(self, guard: _Ref | None) -> str | None:
        """The lanes that may touch memory: those of the loop's mask and of the guard."""
        assert self.vector is not None
        mask = self.vector.mask
        if guard is None:
            return mask
        keep = self._as_vector(guard, BOOL)
        if mask is None:
            return keep
        return self.scalars.binary(self.scope.lines, "and", "i1", self.vector.lanes, keep, mask)

    def _back(self, buffer: Buffer, pointer: str) -> str:
        """The address of the last lane of a vector that runs backwards."""
        assert self.vector is not None
        kind = memory_type(buffer.dtype)
        return self.sink.emit(
            self.scope.lines, f"getelementptr {kind}, ptr {pointer}, i64 {1 - self.vector.lanes}"
        )

    def _reverse(self, text: str, element: str) -> str:
        assert self.vector is not None
        lanes = self.vector.lanes
        vector = vector_of(element, lanes)
        picks = ", ".join(f"i32 {lanes - 1 - i}" for i in range(lanes))
        return self.sink.emit(
            self.scope.lines,
            f"shufflevector {vector} {text}, {vector} poison, <{lanes} x i32> <{picks}>",
        )

    def _store(self, statement: ir.Store) -> None:
        buffer, at = statement.buffer, statement.at
        ref = self._value(statement.value)
        guard = None if statement.guard is None else self._value(statement.guard)
        self._touch(buffer)
        lines = self.scope.lines
        align = buffer.dtype.size_bytes
        if self.vector is None:
            self._scalar_store(buffer, at, ref, guard)
            return
        lanes = self.vector.lanes
        stride = self._stride(at) if self._is_varying(at) else None
        if stride is None and not self._is_varying(at):
            raise InternalError("emit", f"lanes of {self.kernel.name} store to one address.")
        value = self._as_vector(ref, buffer.dtype)
        text = self.scalars.to_memory(lines, buffer.dtype, value, lanes)
        kind = vector_of(memory_type(buffer.dtype), lanes)
        mask = self._lane_mask(guard)
        if stride in (1, -1):
            pointer = self._pointer(buffer, at, self.level)
            if stride == -1:
                pointer = self._back(buffer, pointer)
                text = self._reverse(text, memory_type(buffer.dtype))
                mask = self._reverse(mask, "i1") if mask else None
            if mask is None:
                lines.append(f"  store {kind} {text}, ptr {pointer}, align {align}")
                return
            name = f"llvm.masked.store.{_mangle(kind)}.p0"
            self.sink.declarations[name] = f"declare void @{name}({kind}, ptr, <{lanes} x i1>)"
            lines.append(
                f"  call void @{name}({kind} {text}, ptr align {align} {pointer}, "
                f"<{lanes} x i1> {mask})"
            )
            return
        pointers = self._lane_pointers(buffer, at, lanes)
        everywhere = self.scalars.raw("i1", "true", lanes)
        name = f"llvm.masked.scatter.{_mangle(kind)}.v{lanes}p0"
        types = f"{kind}, <{lanes} x ptr>, <{lanes} x i1>"
        self.sink.declarations[name] = f"declare void @{name}({types})"
        lines.append(
            f"  call void @{name}({kind} {text}, <{lanes} x ptr> align {align} {pointers}, "
            f"<{lanes} x i1> {mask or everywhere})"
        )

    def _touch(self, buffer: Buffer) -> None:
        """Forget what was computed from the buffer's old contents."""
        self._stores[buffer] = self._stores.get(buffer, 0) + 1

    def _scalar_store(self, buffer: Buffer, at: Dim, ref: _Ref, guard: _Ref | None) -> None:
        lines = self.scope.lines
        text = self.scalars.to_memory(lines, buffer.dtype, ref.text, None)
        kind, align = memory_type(buffer.dtype), buffer.dtype.size_bytes
        if guard is None:
            pointer = self._pointer(buffer, at, self.level)
            lines.append(f"  store {kind} {text}, ptr {pointer}, align {align}")
            return
        pointer = self._pointer(buffer, at, self.level)
        then, after = self.sink.name("then"), self.sink.name("after")
        lines.append(f"  br i1 {guard.text}, label %{then}, label %{after}")
        self._label(self.scope, then)
        lines.append(f"  store {kind} {text}, ptr {pointer}, align {align}")
        lines.append(f"  br label %{after}")
        self._label(self.scope, after)

    # ------------------------------------------------------------ indices

    def _is_varying(self, at: Dim) -> bool:
        if self.vector is None:
            return False
        return any(a == self.vector.index or self.env[a].is_vector for a in atoms(at))

    def _stride(self, at: Dim) -> int | None:
        """The distance between neighbouring lanes if it is a known constant."""
        assert self.vector is not None
        if any(self.env[a].is_vector for a in atoms(at)):
            return None
        coefficient = linear_coefficient(at, self.vector.index)
        return coefficient if isinstance(coefficient, int) else None

    def _dim(self, dim: Dim) -> _Ref:
        """An index as a scalar (lane 0 of an open vector loop), hoisted term by term."""
        if isinstance(dim, int):
            return _Ref(str(dim), False, 0)
        return self._sum(sorted(terms(dim), key=lambda t: self._term_level(t[0])))

    def _term_level(self, monomial: tuple[Any, ...]) -> int:
        levels = [self.env[a].level for atom in monomial for a in atoms(atom)]
        return max(levels, default=-1)

    def _sum(self, parts: list[tuple[tuple[Any, ...], int]]) -> _Ref:
        """Add terms from the outermost scope inwards; constants last, for address modes."""
        constant = 0
        total: _Ref | None = None
        for monomial, coefficient in parts:
            if not monomial:
                constant = coefficient
                continue
            total = self._plus(total, self._product(monomial, coefficient))
        if total is None:
            return _Ref(str(constant), False, 0)
        return self._plus(total, _Ref(str(constant), False, 0)) if constant else total

    def _plus(self, a: _Ref | None, b: _Ref) -> _Ref:
        return b if a is None else self._memo_binary("add nsw", a, b)

    def _memo_binary(self, word: str, a: _Ref, b: _Ref) -> _Ref:
        key = (word, a.text, b.text)
        for scope in reversed(self.scopes):
            if key in scope.memo:
                return scope.memo[key]
        level = max(a.level, b.level)
        text = self.sink.emit(self.scopes[level].lines, f"{word} i64 {a.text}, {b.text}")
        ref = self.scopes[level].memo[key] = _Ref(text, False, level)
        return ref

    def _product(self, monomial: tuple[Any, ...], coefficient: int) -> _Ref:
        factors = sorted((self._atom(a) for a in monomial), key=lambda r: r.level)
        total = factors[0]
        for factor in factors[1:]:
            total = self._memo_binary("mul nsw", total, factor)
        if coefficient == 1:
            return total
        return self._memo_binary("mul nsw", total, _Ref(str(coefficient), False, 0))

    def _atom(self, atom: Any) -> _Ref:
        if not isinstance(atom, Fn):
            return self.env[atom]
        a, b = (self._dim(x) for x in atom.args)
        if atom.kind in ("min", "max"):
            key = (atom.kind, a.text, b.text)
            for scope in reversed(self.scopes):
                if key in scope.memo:
                    return scope.memo[key]
            level = max(a.level, b.level)
            name = f"llvm.s{atom.kind}.i64"
            text = self.sink.call(
                self.scopes[level].lines, "i64", name, ("i64", a.text), ("i64", b.text)
            )
            ref = self.scopes[level].memo[key] = _Ref(text, False, level)
            return ref
        if is_nonnegative(atom.args[0]) and is_nonnegative(atom.args[1]):
            return self._memo_binary("udiv" if atom.kind == "floordiv" else "urem", a, b)
        op = "idiv" if atom.kind == "floordiv" else "imod"
        key = (op, a.text, b.text)
        for scope in reversed(self.scopes):
            if key in scope.memo:
                return scope.memo[key]
        level = max(a.level, b.level)
        text = self.scalars.apply(self.scopes[level].lines, op, INT64, [a.text, b.text], None)
        ref = self.scopes[level].memo[key] = _Ref(text, False, level)
        return ref

    def _pointer(self, buffer: Buffer, at: Dim, level: int) -> str:
        """The address of an element: what is known outside is added outside."""
        kind = memory_type(buffer.dtype)
        base = _Ref(self.pointers[buffer], False, 0)
        parts = terms(at) if not isinstance(at, int) else (((), at),)
        by_level: dict[int, list[tuple[tuple[Any, ...], int]]] = {}
        for monomial, coefficient in parts:
            by_level.setdefault(self._term_level(monomial), []).append((monomial, coefficient))
        constants = by_level.pop(-1, [])
        for step_level in sorted(by_level):
            offset = self._sum(by_level[step_level])
            base = self._memo_gep(kind, base, offset)
        if constants and constants[0][1]:
            base = self._memo_gep(kind, base, _Ref(str(constants[0][1]), False, 0))
        return base.text

    def _memo_gep(self, kind: str, base: _Ref, offset: _Ref) -> _Ref:
        key = ("gep", kind, base.text, offset.text)
        for scope in reversed(self.scopes):
            if key in scope.memo:
                return scope.memo[key]
        level = max(base.level, offset.level)
        text = self.sink.emit(
            self.scopes[level].lines, f"getelementptr {kind}, ptr {base.text}, i64 {offset.text}"
        )
        ref = self.scopes[level].memo[key] = _Ref(text, False, level)
        return ref

    def _index_value(self, value: Value) -> _Ref:
        dim = value.data
        if self._is_varying(dim):
            return self._remember(value, _Ref(self._dim_vector(dim), True, self.level))
        return self._remember(value, self._dim(dim))

    def _dim_vector(self, dim: Dim) -> str:
        """An index that differs from lane to lane, as a vector of int64."""
        assert self.vector is not None
        lanes, lines = self.vector.lanes, self.scope.lines
        key = ("lanes", dim)
        if key in self.scope.memo:
            return self.scope.memo[key].text
        if not self._is_varying(dim):
            return self._as_vector(self._dim(dim), INT64)
        text = self._affine_vector(dim)
        if text is None:
            total: str | None = None
            for monomial, coefficient in terms(dim):
                term = self._term_vector(monomial, coefficient)
                total = term if total is None else self.scalars.binary(
                    lines, "add", "i64", lanes, total, term
                )
            text = total or self.scalars.raw("i64", "0", lanes)
        self.scope.memo[key] = _Ref(text, True, self.level)
        return text

    def _affine_vector(self, dim: Dim) -> str | None:
        """lane 0 + stride * lane, where the index is affine in the vector index."""
        assert self.vector is not None
        if any(self.env[a].is_vector for a in atoms(dim)):
            return None
        coefficient = linear_coefficient(dim, self.vector.index)
        if coefficient is None:
            return None
        lanes, lines = self.vector.lanes, self.scope.lines
        base = self._as_vector(self._dim(dim), INT64)
        steps = _iota("i64", lanes)
        if coefficient != 1:
            scale = self._as_vector(self._dim(coefficient), INT64)
            steps = self.scalars.binary(lines, "mul", "i64", lanes, steps, scale)
        return self.scalars.binary(lines, "add", "i64", lanes, base, steps)

    def _term_vector(self, monomial: tuple[Any, ...], coefficient: int) -> str:
        assert self.vector is not None
        lanes, lines = self.vector.lanes, self.scope.lines
        text = self.scalars.raw("i64", str(coefficient), lanes)
        first = coefficient == 1
        for atom in monomial:
            factor = self._atom_vector(atom)
            if first:
                text, first = factor, False
            else:
                text = self.scalars.binary(lines, "mul", "i64", lanes, text, factor)
        return text

    def _atom_vector(self, atom: Any) -> str:
        assert self.vector is not None
        lanes, lines = self.vector.lanes, self.scope.lines
        if not isinstance(atom, Fn):
            if atom == self.vector.index:
                base = self._as_vector(self.env[atom], INT64)
                return self.scalars.binary(lines, "add", "i64", lanes, base, _iota("i64", lanes))
            return self._as_vector(self.env[atom], INT64)
        if not self._is_varying(atom):
            return self._as_vector(self._atom(atom), INT64)
        args = [self._dim_vector(a) for a in atom.args]
        if atom.kind in ("min", "max"):
            return self.scalars.apply(lines, atom.kind, INT64, args, lanes)
        op = "idiv" if atom.kind == "floordiv" else "imod"
        high = upper_bound(atom.args[0])
        positive = all(is_nonnegative(a) for a in atom.args)
        if positive and isinstance(atom.args[1], int) and high is not None and high < 1 << 31:
            # 32-bit division by a constant is a multiplication that vectors have.
            word = "udiv" if op == "idiv" else "urem"
            small = self.scalars.convert(lines, "trunc", "i64", "i32", lanes, args[0])
            divisor = self.scalars.raw("i32", str(atom.args[1]), lanes)
            result = self.scalars.binary(lines, word, "i32", lanes, small, divisor)
            return self.scalars.convert(lines, "zext", "i32", "i64", lanes, result)
        return self.scalars.apply(lines, op, INT64, args, lanes)


@dataclass(frozen=True, slots=True)
class _Reduction:
    """How a vector accumulator is folded; the second local of argmax is its position."""

    combine: str
    locals: tuple[Local, ...]
    is_position: bool


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


def _constants(at: tuple[Dim, ...]) -> tuple[int, ...]:
    if not all(isinstance(d, int) for d in at):
        raise InternalError("emit", f"a copy of a local is indexed by {at}, not by constants.")
    return tuple(int(d) for d in at)  # type: ignore[arg-type]


def _iota(element: str, lanes: int) -> str:
    return "<" + ", ".join(f"{element} {i}" for i in range(lanes)) + ">"


def _mangle(vector: str) -> str:
    lanes, element = vector.strip("<>").split(" x ")
    return f"v{lanes}" + {"float": "f32", "double": "f64", "half": "f16"}.get(element, element)

"""Loops: counted, vector with a masked rest, unrolled; accumulators that lanes share.

    Loop --> blocks with phis; vector accumulators folded by halves

A vector loop is a main loop over `lanes` elements and a masked loop of one register's
width for the rest. Which lane an element falls into depends on its index alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from semel.codegen.scalars import element_type, identity, vector_of
from semel.codegen.scope import LocalKey, Ref, Scope, Vector, constants, iota
from semel.codegen.transpose import Transpose
from semel.errors import InternalError
from semel.ir.expr import Dim, Index
from semel.ir.types import DType
from semel.kernel import ir
from semel.kernel.ir import Local, Statement, walk_statements
from semel.kernel.rewrite import substitute_indices


@dataclass(frozen=True, slots=True)
class _Reduction:
    """How a vector accumulator is folded; the second local of argmax is its position."""

    combine: str
    locals: tuple[Local, ...]
    is_position: bool


class Loops(Transpose):
    """Loop statements; their bodies come from the layer above."""

    def _body(self, body: Iterable[Statement]) -> None:
        raise NotImplementedError

    def _loop(self, loop: ir.Loop) -> None:
        if loop.unroll:
            if not (isinstance(loop.start, int) and isinstance(loop.stop, int)):
                raise InternalError("emit", f"unrolled loop {loop.index} has symbolic bounds.")
            if self._store_turned(loop) or self._load_turned(loop):
                return
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

    def _changed(self, body: Sequence[Statement]) -> list[LocalKey]:
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
            elif isinstance(statement, ir.BlockDot):
                self._touch(statement.into.buffer)
        outer = set(self.locals)
        child = Scope(head)
        self.scopes.append(child)
        self.env[loop.index] = Ref(index, False, self.level)
        phis: dict[LocalKey, str] = {}
        for key in changed:
            phis[key] = f"%{self.sink.name('acc')}"
            self.locals[key] = Ref(phis[key], before[key].is_vector, self.level)
        if step > 1:
            mask = self._mask(index, stop, mask_lanes) if mask_lanes else None
            self.vector = Vector(loop.index, mask_lanes or step, mask, self.level)
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
            self.locals[key] = Ref(text, before[key].is_vector, self.level)
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
        child = Scope(parent.label)
        self.scopes.append(child)
        # A number is known everywhere: another index with this value finds the same address.
        self.env[loop.index] = Ref(start, False, 0)
        if step > 1:
            mask = self._mask(start, stop, mask_lanes) if mask_lanes else None
            single = bool(mask_lanes) and int(stop) - int(start) == 1
            self.vector = Vector(loop.index, mask_lanes or step, mask, self.level, single)
        self._body(body)
        self.scopes.pop()
        parent.lines += child.lines
        parent.label = child.label
        for key in self.locals.keys() - outer:
            del self.locals[key]
        for key, ref in self.locals.items():
            self.locals[key] = Ref(ref.text, ref.is_vector, min(ref.level, self.level))
        if step > 1:
            self.vector = None

    def _local_type(self, local: Local, ref: Ref) -> str:
        lanes = self.vector.lanes if ref.is_vector and self.vector else None
        return vector_of(element_type(local.dtype), lanes)

    def _mask(self, index: str, stop: str, lanes: int) -> str:
        """Lanes whose element lies before `stop`."""
        lines = self.scope.lines
        left = self.sink.emit(lines, f"sub nsw i64 {stop}, {index}")
        small = self.sink.call(lines, "i64", "llvm.smin.i64", ("i64", left), ("i64", str(lanes)))
        word = self.sink.emit(lines, f"trunc i64 {small} to i32")
        limit = self.scalars.splat(lines, "i32", word, lanes)
        return self.sink.emit(lines, f"icmp slt <{lanes} x i32> {iota('i32', lanes)}, {limit}")

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

    def _start(self, local: Local, kind: _Reduction, lanes: int) -> Ref:
        value = (1 << 63) - 1 if kind.is_position else identity(kind.combine, local.dtype)
        return Ref(self.scalars.constant(local.dtype, value, lanes), True, 0)

    def _reductions(self, body: Sequence[Statement]) -> dict[LocalKey, _Reduction]:
        """Outer locals that the vector loop reduces into."""
        outer = {key[0] for key in self.locals}
        found: dict[LocalKey, _Reduction] = {}
        for statement in walk_statements(body):
            match statement:
                case ir.Reduce(locals=several, combine=combine, at=at):
                    for i, local in enumerate(several):
                        if local in outer and not self.locals[local, constants(at)].is_vector:
                            found[local, constants(at)] = _Reduction(combine, several, i == 1)
                case ir.Assign(local=local) if local in outer:
                    raise InternalError("emit", f"{local.name} is assigned in a vector loop.")
        return found

    def _combine(
        self,
        lines: list[str],
        kind: str,
        dtypes: list[DType],
        olds: Sequence[Ref],
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
            return [self.scalars.add_product(lines, dtype, [*texts, olds[0].text], lanes)]
        return [self.scalars.combine(lines, kind, dtype, olds[0].text, texts[0], lanes)]

    def _narrow(self, keys: dict[LocalKey, _Reduction], lanes: int, to: int) -> None:
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
                combine = "add" if kind.combine in ("fma", "dot") else kind.combine
                olds = [Ref(t, True, self.level) for t in lows]
                dtypes = [local.dtype for local, _ in group]
                parts = self._combine(lines, combine, dtypes, olds, highs, half)
                width = half
            for k, part in zip(group, parts, strict=True):
                text = part
                if to == 1:
                    vector = vector_of(element_type(k[0].dtype), 1)
                    text = self.sink.emit(lines, f"extractelement {vector} {part}, i32 0")
                self.locals[k] = Ref(text, to > 1, self.level)

    def _finish(
        self,
        keys: dict[LocalKey, _Reduction],
        scalars: dict[LocalKey, Ref],
    ) -> None:
        """Combine what the lanes found with what the accumulator held before the loop."""
        for key, kind in keys.items():
            if kind.is_position:
                continue
            group = [(local, key[1]) for local in kind.locals]
            combine = "add" if kind.combine in ("fma", "dot") else kind.combine
            texts = [self.locals[k].text for k in group]
            olds = [scalars[k] for k in group]
            dtypes = [local.dtype for local, _ in group]
            news = self._combine(self.scope.lines, combine, dtypes, olds, texts, None)
            for k, text in zip(group, news, strict=True):
                self.locals[k] = Ref(text, False, self.level)

"""Kernels from strangers: every access lies inside its buffer, by proof or by a check.

    Kernel  --confine_kernel-->  Confined (kernel, what has no proof, what is now checked)

`kernel.verify` finds what is certainly wrong, for kernels of our own; this accepts only what is
certainly right. An access is inside if that follows from the bounds of loops and variables, from
the conditions around it and from its own guard. Some of what is true of our kernels does not
follow from their text. It is made true instead, at the price of an instruction or two, so that
nothing changes for a kernel that keeps its word:

- an index that is read from memory (`Bind`) is clamped to [0, extent), and loops to their extent;
- a divisor that may be 0 is at least 1;
- a guard that does not imply that its access is inside also asks just that;
- an access that has neither gets a guard, and a `Check` that fails the run. If it depends on
  loops of known length alone, all its places are looked at, and one outside is refused.

Index arithmetic is that of integers only as long as it fits 64 bits, so this is asked for too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from semel.ir.expr import Dim, Fn, Index, atoms, floordiv, maximum, minimum, mod, terms
from semel.ir.prove import Budget, Knowledge, Range
from semel.ir.signature import CheckInfo
from semel.ir.types import INT64
from semel.kernel import ir
from semel.kernel.conditions import Conditions
from semel.kernel.enumerate import all_values
from semel.kernel.ir import Buffer, Kernel, Statement, Value, walk_values
from semel.kernel.limits import MAX_NUMBER, excesses, magnitude
from semel.kernel.rewrite import ValueMap
from semel.kernel.values import word_elements


@dataclass(frozen=True, slots=True)
class Confined:
    """`kernel` touches its buffers only if `found` is empty; `checked` says what it does for it."""

    kernel: Kernel
    found: tuple[str, ...]
    checked: tuple[str, ...]


def confine_kernel(kernel: Kernel) -> Confined:
    """Confine a verified kernel to its buffers."""
    found = excesses(kernel)
    if found:
        return Confined(kernel, tuple(found), ())
    walk = _Walk(kernel)
    body = walk.kernel()
    safe = replace(kernel, body=body, checks=tuple(walk.checks))
    return Confined(safe, tuple(walk.found), tuple(walk.checked))


@dataclass(slots=True)
class _Scope:
    """A loop or condition that is open; `index` is None for a condition.

    `is_skipped`: nothing is emitted for it.
    """

    index: Index | None
    known: Knowledge
    is_skipped: bool = False


class _Walk:
    """Walks a kernel with what is known in each open scope."""

    def __init__(self, kernel: Kernel) -> None:
        self.root = kernel
        self.found: list[str] = []
        self.checked: list[str] = []
        self.checks = list(kernel.checks)
        self._conditions = Conditions()
        self._ranges: dict[Index, Range] = {}
        self._order: dict[Index, int] = {}
        self._levels: dict[Index, int] = {}
        self._scopes = [_Scope(None, Knowledge(self._ranges, self._order, Budget()))]
        self._safe_dims: dict[Dim, Dim] = {}
        self._pending: list[Statement] = []
        self._loops: dict[Index, tuple[Dim, Dim]] = {}

    @property
    def _known(self) -> Knowledge:
        return self._scopes[-1].known

    def _require(self, condition: bool, message: str) -> None:
        if not condition:
            self.found.append(message)

    def kernel(self) -> tuple[Statement, ...]:
        """The body, confined."""
        kernel = self.root
        for buffer in kernel.scratch:
            size, where = buffer.size, f"scratch '{buffer.name}'"
            self._require(self._dim(size) == size, f"{where}: {size} must divide by positive sizes")
            self._require(self._known.proves(size), f"{where}: size {size} must be >= 0")
        tile, tiles = kernel.tile, kernel.tiles
        self._require(self._dim(tiles) == tiles, f"tiles: {tiles} must divide by positive sizes")
        self._fits(tiles)
        known = self._known.with_facts([tiles - 1])
        self._require(known.proves(tile.extent - tiles), f"tiles: {tiles} must be <= {tile.extent}")
        with self._loop(tile, 0, tiles):
            return self._body(kernel.body)

    # ------------------------------------------------------------ scopes

    @contextmanager
    def _loop(self, index: Index, start: Dim, stop: Dim) -> Iterator[None]:
        bounds = ((start, 0), (stop - 1, index.extent - 1))
        self._define(index, bounds, len(self._scopes))
        skipped = isinstance(start, int) and isinstance(stop, int) and start >= stop
        known = self._known.with_facts([stop - 1 - start])
        self._scopes.append(_Scope(index, known, skipped))
        self._loops[index] = (start, stop)
        yield
        del self._loops[index]
        self._scopes.pop()

    def _define(self, index: Index, bounds: Range, level: int) -> None:
        self._order[index] = len(self._order)
        self._ranges[index] = bounds
        self._levels[index] = level

    def _at_level(self, level: int) -> Knowledge:
        """What holds where code is emitted that needs the indices of the first `level` scopes.

        Code leaves loops that it does not depend on, but no condition.
        """
        for number in range(len(self._scopes) - 1, level, -1):
            if self._scopes[number].index is None:
                return self._scopes[number].known
        return self._scopes[level].known

    def _level(self, dims: Sequence[Dim]) -> int:
        used = {a for dim in dims for a in atoms(dim) if isinstance(a, Index)}
        return max((self._levels.get(a, 0) for a in used), default=0)

    # ------------------------------------------------------------ statements

    def _body(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        result: list[Statement] = []
        for statement in body:
            safe = self._statement(statement)
            result += [*self._pending, safe]
            self._pending.clear()
        return tuple(result)

    def _statement(self, statement: Statement) -> Statement:
        safe = ValueMap(self._value)
        match statement:
            case ir.Loop():
                return self._confined_loop(statement)
            case ir.If(condition=condition, body=body):
                condition = safe(condition)
                before, self._pending = self._pending, []
                known = self._known.with_facts(self._conditions.lasting_facts(condition))
                self._scopes.append(_Scope(None, known))
                inner = ir.If(condition, self._body(body))
                self._scopes.pop()
                self._pending = before
                return inner
            case ir.Declare(local=local, init=init):
                return ir.Declare(local, safe(init))
            case ir.Assign(value=value):
                return replace(statement, value=safe(value))
            case ir.Reduce(values=values):
                return replace(statement, values=tuple(safe(v) for v in values))
            case ir.Bind(index=index, value=value):
                return ir.Bind(index, self._bound(index, safe(value)))
            case ir.Store(buffer=buffer, at=at, value=value, guard=guard):
                guard = None if guard is None else safe(guard)
                at = self._dim(at)
                guard = self._access(f"store to '{buffer.name}'", buffer, at, guard, self._known)
                return ir.Store(buffer, at, safe(value), guard)
            case ir.BlockDot():
                return self._block_dot(statement)
            case ir.Check(ok=ok, value=value):
                return ir.Check(safe(ok), statement.code, safe(value))
            case ir.Prefetch(buffer=buffer, at=at):
                return ir.Prefetch(buffer, self._dim(at))

    def _confined_loop(self, loop: ir.Loop) -> ir.Loop:
        start, stop, extent = self._dim(loop.start), self._dim(loop.stop), loop.index.extent
        self._fits(start, stop)
        runs = self._known.with_facts([stop - 1 - start])
        if not runs.proves(start):
            self.checked.append(f"loop {loop.index}: from {start}")
            start = maximum(start, 0)
        if not runs.proves(extent - stop):
            self.checked.append(f"loop {loop.index}: to {stop}, at most {extent}")
            stop = minimum(stop, self._dim(extent))
        with self._loop(loop.index, start, stop):
            return replace(loop, start=start, stop=stop, body=self._body(loop.body))

    def _bound(self, index: Index, value: Value) -> Value:
        """The value of an index from memory, clamped unless it needs no clamp."""
        extent = self._dim(index.extent)
        level = len(self._scopes) - 1
        if all(v.op != "local" for v in walk_values([value])):
            level = self._level(_dims_in([value]))
        known, last = self._at_level(level), extent - 1
        if not self._in_range(value, extent, known):
            self.checked.append(f"index {index}: a value from memory")
            last = extent - 1 if known.proves(extent - 1) else maximum(extent - 1, 0)
            limit = ir.op("min", ir.cast(value, INT64), ir.index(last))
            value = ir.op("max", limit, ir.const(INT64, 0))
        self._define(index, ((0,), (last,)), level)
        return value

    def _in_range(self, value: Value, extent: Dim, known: Knowledge) -> bool:
        """Whether the value certainly lies in [0, extent)."""
        if value.op == "select":
            condition, then, otherwise = value.args
            where = self._conditions.facts(condition)
            elsewhere = self._conditions.facts(condition, holds=False)
            return self._in_range(then, extent, known.with_facts(where)) and self._in_range(
                otherwise, extent, known.with_facts(elsewhere)
            )
        number = self._conditions.dim(value)
        return known.proves(number) and known.proves(extent - 1 - number)

    def _block_dot(self, dots: ir.BlockDot) -> ir.BlockDot:
        into, left, right = (
            ir.Block(b.buffer, self._dim(b.at), self._dim(b.pitch))
            for b in (dots.into, dots.left, dots.right)
        )
        words, live = self._dim(dots.words), self._dim(dots.live)
        runs = self._known.with_facts([words - 1])
        for block, rows, columns, known in (
            (into, dots.rows, dots.columns, self._known),
            (left, dots.rows, 4 * words, runs),
            (right, words, dots.columns, runs),
        ):
            where, last = f"dots: '{block.buffer.name}'", (rows - 1) * block.pitch + columns - 1
            inside = (block.pitch, block.at, block.buffer.size - 1 - block.at - last)
            for value in inside:
                self._require(known.proves(value), f"{where}: {value} must be >= 0")
        return ir.BlockDot(into, left, right, words, dots.rows, dots.columns, live)

    # ------------------------------------------------------------ values

    def _value(self, value: Value) -> Value:
        """The value, with accesses that stay inside."""
        match value.op:
            case "index":
                return ir.index(self._dim(value.data))
            case "local":
                return value
            case "load":
                buffer, at = value.data
                guard, *other = value.args or (None, ir.const(buffer.dtype, 0))
                at, where = self._dim(at), f"load from '{buffer.name}'"
                known = self._reading(buffer, at, value.args)
                guard = self._access(where, buffer, at, guard, known)
                return ir.load(buffer, at, guard, *other)
            case "word":
                buffer, at = value.data
                return ir.word(buffer, self._word_place(buffer, self._dim(at)))
        return value

    def _word_place(self, buffer: Buffer, at: Dim) -> Dim:
        """Where a word is read, which has no guard: a place that is inside in any case."""
        known, last = (
            self._reading(buffer, at, ()),
            self._dim(buffer.size) - word_elements(buffer.dtype),
        )
        where = f"word of '{buffer.name}'"
        if (known.proves(at) and known.proves(last - at)) or self._looked_at(
            where, buffer, at, last + 1
        ):
            return at
        self._require(
            known.proves(last), f"{where}: it must have 4 bytes, got {buffer.size} elements"
        )
        self._check(where, buffer, at, last + 1)
        return maximum(minimum(at, last), 0)

    def _reading(self, buffer: Buffer, at: Dim, args: Sequence[Value]) -> Knowledge:
        """What holds where memory is read: what never changes is read outside of loops."""
        if buffer.access != "r" or any(scope.is_skipped for scope in self._scopes):
            return self._known
        return self._at_level(self._level([at, *_dims_in(args)]))

    def _access(
        self, where: str, buffer: Buffer, at: Dim, guard: Value | None, known: Knowledge
    ) -> Value | None:
        """The guard that keeps an access inside."""
        if guard is not None:
            known = known.with_facts(self._conditions.facts(guard))
        if known.proves(at) and known.proves(buffer.size - 1 - at):
            return guard
        if guard is None:
            if self._looked_at(where, buffer, at, buffer.size):
                return None
            return self._check(where, buffer, at, self._dim(buffer.size))
        self.checked.append(f"{where}: guard of {at}")
        return ir.op("and", guard, _inside(at, self._dim(buffer.size)))

    def _looked_at(self, where: str, buffer: Buffer, at: Dim, end: Dim) -> bool:
        """Whether all places of an access are known and inside; one outside is refused."""
        places = all_values(at, self._loops) if isinstance(end, int) else None
        if places is None:
            return False
        if not places.size or (places.min() >= 0 and places.max() < end):
            return True
        if all(scope.index is not None for scope in self._scopes[1:]):
            self.found.append(f"{where}: index {at} must be inside [0, {buffer.size})")
        return False

    def _check(self, where: str, buffer: Buffer, at: Dim, end: Dim) -> Value:
        """Let the run fail unless the access is inside; the condition for it."""
        self.checked.append(f"{where}: {at} in {end}")
        inside = _inside(at, end)
        self.checks.append(CheckInfo(self.root.name, f"index into '{buffer.name}'", buffer.size))
        self._pending.append(ir.Check(inside, len(self.checks), ir.index(at)))
        return inside

    # ------------------------------------------------------------ arithmetic

    def _dim(self, dim: Dim) -> Dim:
        """The expression with divisors that are positive."""
        if isinstance(dim, int):
            return dim
        found = self._safe_dims.get(dim)
        if found is None:
            found = 0
            for monomial, coefficient in terms(dim):
                term: Dim = coefficient
                for atom in monomial:
                    term = term * (self._function(atom) if isinstance(atom, Fn) else atom)
                found = found + term
            self._safe_dims[dim] = found
        return found

    def _fits(self, *dims: Dim) -> None:
        for dim in dims:
            self._require(magnitude(dim) < MAX_NUMBER, f"{dim} must fit 62 bits")

    def _function(self, atom: Fn) -> Dim:
        a, b = (self._dim(arg) for arg in atom.args)
        self._fits(a, b)
        if atom.kind in ("floordiv", "mod") and not self._scopes[0].known.proves(b - 1):
            self.checked.append(f"divisor {b}")
            b = maximum(b, 1)
        if (a, b) == atom.args:
            return atom
        return {"floordiv": floordiv, "mod": mod, "min": minimum, "max": maximum}[atom.kind](a, b)


def _inside(at: Dim, end: Dim) -> Value:
    place = ir.index(at)
    return ir.op("and", place >= ir.const(INT64, 0), place < ir.index(end))


def _dims_in(values: Sequence[Value]) -> list[Dim]:
    """The index expressions of values and their operands."""
    found: list[Dim] = []
    for value in walk_values(values):
        if value.op == "index":
            found.append(value.data)
        elif value.op in ("load", "word"):
            found.append(value.data[1])
    return found

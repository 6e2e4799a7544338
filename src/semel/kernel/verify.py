"""What must hold in every kernel; run after lowering in debug mode and by tests.

    Kernel --verify_kernel--> list of violations (empty: none found)

Reports only what is certainly wrong: an index that may or may not leave its buffer is not
reported (the interpreter finds it when it does), one whose reachable maximum lies past the
end for all variable values is. Code that never runs (no tiles, an empty loop) may have any
index. Checked: names defined before use and in scope, dtypes and
operand counts of every op, access modes, what vector and unrolled loops may hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from semel.ir.expr import (
    Dim,
    Fn,
    Index,
    Variable,
    atoms,
    bounds,
    is_nonnegative,
    is_positive,
    symbolic_max,
    symbolic_min,
    terms,
    upper_bound,
)
from semel.ir.types import BOOL, INT16, INT32, INT64, UINT32, DType
from semel.kernel.ir import (
    ARITHMETIC,
    COMBINES,
    COMPARISONS,
    MATH,
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
from semel.kernel.values import word_elements

_ANY = "biuf"
_NUMBERS = "iuf"
#: Kinds of dtypes each op is defined for, where not all numbers.
_KINDS = {
    "add": _ANY, "mul": _ANY, "min": _ANY, "max": _ANY,
    "div": "f", "ldexp": "f", "scale": "f", "sqrt": "f",
    "floor": "f", "ceil": "f", "trunc": "f", "rint": "f",
    "idiv": "iu", "imod": "iu", "shl": "iu", "shr": "iu",
    "and": "biu", "or": "biu", "xor": "biu", "not": "biu",
} | dict.fromkeys(MATH, "f") | dict.fromkeys(COMPARISONS, _ANY)  # fmt: skip
_COUNTS = ARITHMETIC | MATH | dict.fromkeys(COMPARISONS, 2) | {"select": 3, "cast": 1, "bitcast": 1}


def verify_kernel(kernel: Kernel) -> list[str]:
    """Every violation found, in program order."""
    verifier = _Verifier(kernel)
    verifier.kernel()
    return verifier.found


class _Verifier:
    """Walks a kernel with the indices, locals and stores seen so far."""

    def __init__(self, kernel: Kernel) -> None:
        self.root = kernel
        self.found: list[str] = []
        self.indices: dict[Index, Loop | None] = {kernel.tile: None}
        self.locals: dict[Local, Loop | None] = {}
        self.stored: set[Buffer] = set()
        self.vector: Loop | None = None
        self.conditional = False
        self.dead = _is_surely_below(kernel.tiles, 1)
        self.checked: set[Value] = set()

    def report(self, condition: object, message: str) -> bool:
        """Note a violation unless the condition holds."""
        if not condition:
            self.found.append(message)
        return bool(condition)

    # ------------------------------------------------------------ header

    def kernel(self) -> None:
        kernel = self.root
        names = [b.name for b in (*kernel.buffers, *kernel.scratch)]
        for name in sorted({n for n in names if names.count(n) > 1}):
            self.report(False, f"buffer '{name}' is declared twice")
        for buffer in kernel.buffers:
            self.report(
                buffer.access in ("r", "w", "rw"),
                f"buffer '{buffer.name}': access must be r, w or rw, got {buffer.access!r}",
            )
        for buffer in kernel.scratch:
            self.report(
                buffer.access == "s",
                f"scratch '{buffer.name}': access must be s, got {buffer.access!r}",
            )
        written = ["w" in b.access for b in kernel.buffers]
        self.report(
            written == sorted(written, reverse=True), "written buffers must come before read ones"
        )
        sizes = [(f"size of '{b.name}'", b.size) for b in (*kernel.buffers, *kernel.scratch)]
        for what, dim in [*sizes, ("tiles", kernel.tiles)]:
            self._dim(what, dim, indices=False)
        self.body(kernel.body)

    # ------------------------------------------------------------ statements

    def body(self, body: Sequence[Statement]) -> None:
        for statement in body:
            for value in walk_values(statement_values(statement)):
                self._value(value)
            self._statement(statement)

    def _statement(self, statement: Statement) -> None:
        match statement:
            case Loop():
                self._loop(statement)
            case Declare(local=local, init=init):
                self._same_dtype(f"declaration of '{local.name}'", local.dtype, init)
                self.locals[local] = self.vector
            case Assign():
                self._assign(statement)
            case Reduce():
                self._reduce(statement)
            case Bind(index=index, value=value):
                self.report(value.dtype.is_integer, f"bind of '{index}' to a {value.dtype} value")
                self.report(index not in self.indices, f"index '{index}' is defined twice")
                self.indices[index] = None
            case Store():
                self._store(statement)
            case Prefetch(buffer=buffer, at=at):
                self._declared(buffer)
                self._dim(f"prefetch of '{buffer.name}'", at)
            case BlockDot():
                self._block_dot(statement)
            case Check(ok=ok, code=code, value=value):
                self.report(ok.dtype == BOOL, f"check {code}: condition is {ok.dtype}, not bool")
                self.report(value.dtype.is_integer, f"check {code}: reports a {value.dtype} value")
                self.report(
                    1 <= code <= len(self.root.checks), f"check {code} has no entry in checks"
                )
            case If(condition=condition, body=body):
                self.report(condition.dtype == BOOL, f"if: condition is {condition.dtype}")
                self.report(self.vector is None, "if inside a vector loop")
                with self._scope(conditional=True):
                    self.body(body)

    @contextmanager
    def _scope(self, vector: Loop | None = None, *, conditional: bool = False) -> Iterator[None]:
        saved = (dict(self.indices), dict(self.locals), self.vector, self.conditional, self.dead)
        self.vector = vector or self.vector
        self.conditional = conditional or self.conditional
        yield
        self.indices, self.locals, self.vector, self.conditional, self.dead = saved
        # What was checked in the inner scope may be out of scope from here on.
        self.checked.clear()

    def _loop(self, loop: Loop) -> None:
        where = f"loop '{loop.index}'"
        self._dim(f"{where}: start", loop.start)
        self._dim(f"{where}: stop", loop.stop)
        self.report(loop.index not in self.indices, f"index '{loop.index}' is defined twice")
        self.report(not _is_surely_below(loop.start, 0), f"{where} starts below 0")
        past = is_positive(loop.stop - loop.index.extent)
        self.report(self.dead or not past, f"{where} runs past its extent {loop.index.extent}")
        is_power = loop.lanes >= 1 and loop.lanes & (loop.lanes - 1) == 0
        self.report(is_power, f"{where}: lanes must be a power of 2, got {loop.lanes}")
        if loop.unroll:
            trips = loop.stop - loop.start
            self.report(
                isinstance(trips, int), f"{where} is unrolled, but its trip count is {trips}"
            )
        if loop.lanes > 1:
            self.report(self.vector is None, f"{where} is a vector loop inside a vector loop")
        with self._scope(loop if loop.lanes > 1 else None):
            self.dead = self.dead or _is_surely_below(loop.stop - loop.start, 1)
            self.indices[loop.index] = loop
            self.body(loop.body)

    def _assign(self, assign: Assign) -> None:
        local = assign.local
        self._local(local, assign.at)
        self._same_dtype(f"assignment to '{local.name}'", local.dtype, assign.value)
        self.report(
            self.locals.get(local, self.vector) is self.vector,
            f"assignment to '{local.name}' from several vector lanes; only reduce may",
        )

    def _reduce(self, reduce: Reduce) -> None:
        combine = COMBINES.get(reduce.combine)
        self.report(combine is not None, f"reduce: unknown combine '{reduce.combine}'")
        if combine is None:
            return
        counts = (combine.num_locals, combine.num_values)
        got = (len(reduce.locals), len(reduce.values))
        if not self.report(
            got == counts, f"reduce {reduce.combine} takes (locals, values) {counts}, got {got}"
        ):
            return
        for local in reduce.locals:
            self._local(local, reduce.at)
        if reduce.combine in ("dot", "small_dot", "pairs"):
            dtypes = [v.dtype for v in reduce.values]
            legal = reduce.locals[0].dtype == INT32 and set(dtypes) <= {INT32, UINT32}
            self.report(
                legal, f"reduce {reduce.combine} takes words into an int32, got {_list(dtypes)}"
            )
            return
        targets = reduce.locals if len(reduce.locals) == 2 else reduce.locals * len(reduce.values)
        for local, value in zip(targets, reduce.values, strict=True):
            self._same_dtype(f"reduce into '{local.name}'", local.dtype, value)

    def _store(self, store: Store) -> None:
        buffer = store.buffer
        self._declared(buffer)
        self.report(buffer.access != "r", f"store to '{buffer.name}', which is read-only")
        self._same_dtype(f"store to '{buffer.name}'", buffer.dtype, store.value)
        if store.guard is not None:
            self.report(store.guard.dtype == BOOL, f"store to '{buffer.name}': guard is not bool")
        self._index(f"store to '{buffer.name}'", buffer, store.at, guarded=store.guard is not None)
        self.stored.add(buffer)

    def _block_dot(self, dots: BlockDot) -> None:
        self.report(self.vector is None, "dots inside a vector loop")
        for size in (dots.rows, dots.columns):
            self.report(size in (16, 32), f"dots: a side must be 16 or 32, got {size}")
        self.report(dots.words % 16 == 0, f"dots: words must be a multiple of 16, got {dots.words}")
        into, left, right = dots.into, dots.left, dots.right
        bits = [b.buffer.dtype.bits for b in (into, left, right)]
        self.report(bits == [32, 8, 32], f"dots: operands must have 32, 8, 32 bits, got {bits}")
        self.report(into.buffer.access == "s", f"dots into '{into.buffer.name}', no scratch")
        self.report(
            left.buffer.access != "s" or left.buffer in self.stored,
            f"dots of '{left.buffer.name}', which holds nothing yet",
        )
        for dim in dots.dims:
            self._dim("dots", dim)
        ends = ((into, dots.rows, dots.columns), (left, dots.rows, 4 * dots.words))
        for block, rows, columns in (*ends, (right, dots.words, dots.columns)):
            where = f"dots: '{block.buffer.name}'"
            self._declared(block.buffer)
            last = block.at + (rows - 1) * block.pitch + columns - 1
            for at in (block.at, last):
                self._index(where, block.buffer, at, guarded=dots.words == 0)
        self.stored.add(into.buffer)

    # ------------------------------------------------------------ operands

    def _same_dtype(self, where: str, dtype: DType, value: Value) -> None:
        self.report(value.dtype == dtype, f"{where}: must be {dtype}, got {value.dtype}")

    def _declared(self, buffer: Buffer) -> None:
        known = (*self.root.buffers, *self.root.scratch)
        self.report(buffer in known, f"buffer '{buffer.name}' is not declared")

    def _local(self, local: Local, at: tuple[Dim, ...]) -> None:
        where = f"local '{local.name}'"
        self.report(local in self.locals, f"{where} is used before it is declared")
        if not self.report(
            len(at) == len(local.copies), f"{where} has copies {local.copies}, is used with {at}"
        ):
            return
        for position, count in zip(at, local.copies, strict=True):
            self._dim(f"{where}: copy", position)
            low, high = bounds(position)
            inside = (high is None or high >= 0) and (low is None or low < count)
            self.report(inside, f"{where}: copy {position} is outside [0, {count})")
            for atom in atoms(position):
                loop = self.indices.get(atom) if isinstance(atom, Index) else None
                self.report(
                    loop is not None and loop.unroll,
                    f"{where}: copy {position} depends on '{atom}', which is not unrolled",
                )

    def _dim(self, where: str, dim: Dim, *, indices: bool = True) -> None:
        for atom in sorted(atoms(dim), key=lambda a: a._key()):
            if isinstance(atom, Variable):
                self.report(
                    atom in self.root.variables, f"{where}: '{atom}' is no variable of the kernel"
                )
            else:
                known = indices and atom in self.indices
                self.report(known, f"{where}: index '{atom}' is not in scope")

    def _index(self, where: str, buffer: Buffer, at: Dim, *, guarded: bool) -> None:
        self._dim(where, at)
        if self.dead:
            return
        outside = f"{where}: index {at} is outside [0, {buffer.size})"
        if _is_surely_below(at, 0) or is_nonnegative(symbolic_min(at - buffer.size)):
            self.report(guarded or self.conditional, outside)
        elif not guarded and not self.conditional and self._reaches_all(at):
            past = is_nonnegative(symbolic_max(at) - buffer.size)
            self.report(not past and not _is_surely_below(symbolic_min(at), 0), outside)

    def _reaches_all(self, at: Dim) -> bool:
        """Whether `at` surely takes its symbolic minimum and maximum."""
        signs: dict[Index, bool] = {}
        for monomial, coefficient in terms(at):
            indices = [atom for atom in monomial if isinstance(atom, Index)]
            if len(indices) > 1 or any(isinstance(atom, Fn) for atom in monomial):
                return False
            for index in indices:
                if signs.setdefault(index, coefficient > 0) != (coefficient > 0):
                    return False
        return all(self._runs_fully(index) for index in signs)

    def _runs_fully(self, index: Index) -> bool:
        if index == self.root.tile:
            return is_positive(self.root.tiles) and self.root.tiles == index.extent
        loop = self.indices.get(index)
        full = loop is not None and loop.start == 0 and loop.stop == index.extent
        return full and is_positive(index.extent)

    # ------------------------------------------------------------ values

    def _value(self, value: Value) -> None:
        if value in self.checked:
            return
        self.checked.add(value)
        match value.op:
            case "const":
                pass
            case "index":
                self.report(value.dtype == INT64, f"index value is {value.dtype}, not int64")
                self._dim("index value", value.data)
            case "load":
                self._load(value)
            case "word":
                self._word(value)
            case "local":
                local, at = value.data
                self._local(local, at)
                self.checked.discard(value)
            case _:
                self._operation(value)

    def _load(self, value: Value) -> None:
        buffer, at = value.data
        where = f"load from '{buffer.name}'"
        self._declared(buffer)
        # A guard may keep the first turn of a loop from reading what a later one finds stored.
        readable = "r" in buffer.access or buffer in self.stored or bool(value.args)
        self.report(readable, f"{where}, which holds nothing yet")
        if value.args:
            shape = [a.dtype for a in value.args]
            self.report(
                shape == [BOOL, buffer.dtype], f"{where}: guard and other have dtypes {shape}"
            )
        self._index(where, buffer, at, guarded=bool(value.args))

    def _word(self, value: Value) -> None:
        buffer, at = value.data
        where = f"word of '{buffer.name}'"
        self._declared(buffer)
        is_legal = buffer.dtype.bits == 8 or buffer.dtype == INT16
        self.report(is_legal, f"{where}: elements must be bytes or int16, got {buffer.dtype}")
        readable = "r" in buffer.access or buffer in self.stored
        self.report(readable, f"{where}, which holds nothing yet")
        for element in (at, at + word_elements(buffer.dtype) - 1):
            self._index(where, buffer, element, guarded=False)

    def _operation(self, value: Value) -> None:
        count = _COUNTS.get(value.op)
        if not self.report(count is not None, f"unknown op '{value.op}'"):
            return
        if not self.report(
            len(value.args) == count, f"{value.op} takes {count} operands, got {len(value.args)}"
        ):
            return
        dtypes = [a.dtype for a in value.args]
        match value.op:
            case "cast":
                return
            case "bitcast":
                self.report(
                    dtypes[0].pattern_bits == value.dtype.pattern_bits,
                    f"bitcast of {dtypes[0]} to {value.dtype}",
                )
            case "select":
                expected = [BOOL, value.dtype, value.dtype]
                self.report(dtypes == expected, f"select of {_list(dtypes)} gives {value.dtype}")
            case _:
                self._arithmetic(value, dtypes)

    def _arithmetic(self, value: Value, dtypes: list[DType]) -> None:
        result = BOOL if value.op in COMPARISONS else dtypes[0]
        same = all(d == dtypes[0] for d in dtypes) and value.dtype == result
        self.report(same, f"{value.op} of {_list(dtypes)} gives {value.dtype}")
        kinds = "" if dtypes[0].is_narrow else _KINDS.get(value.op, _NUMBERS)
        self.report(dtypes[0].kind in kinds, f"{value.op} is not defined for {dtypes[0]}")


def _is_surely_below(value: Dim, limit: int) -> bool:
    high = upper_bound(value)
    return high is not None and high < limit


def _list(dtypes: Sequence[DType]) -> str:
    return f"[{', '.join(map(str, dtypes))}]"

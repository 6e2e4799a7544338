"""The rows of a program: what a plan does, as a tree of plain records.

    PreparedKernel | PreparedCopy | PreparedBufferView | PreparedCustomFunction
    | PreparedLoop, PreparedBranch (with bodies of rows) | PreparedRebind
    | PreparedSignal | PreparedWait  --link-->  steps

Compiled plans and plans built by hand consist of the same records. A row names its buffers by
index into the program's values, its predecessors by id. Ids need not be unique: in a list with
repeated ids a dependency means the latest earlier row of that id. Byte-range hazards are found
from what rows touch (`uses`); a dependency is needed only for an order that no buffer shows.

A record takes what it is given when it is made: values of the wrong type are refused there, lists
and dicts are copied into tuples and read-only mappings, so that what was checked is what
runs. It knows what it touches, what is inside it (`bodies`), what it is called, and its form in
a file; so a new kind of row is a record here, and steps where `plan.link` writes them.

A row with bodies is a fence, and so is a rebind: nothing around it on the same lane moves in, out
or across. A row names the device that it runs on, if that is not the plan's, and a lane of it:
rows of different lanes run side by side as far as bytes and dependencies allow. Rows
are numbered as `walk` of `plan.tree` meets them, a loop before what is inside it: these numbers
are *positions*.

One idea: the table of row kinds, one record after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, get_args

from semel.errors import GraphError, PlanError, VariableError
from semel.ir.encode import as_int, as_list, as_text
from semel.ir.expr import Dim, Variable
from semel.ir.fields import (
    NO_LIMIT,
    set_fields,
    take,
    take_dim,
    take_int,
    take_ints,
    take_items,
    take_value,
    take_values,
)
from semel.ir.types import BOOL, INT64, TensorType
from semel.plan.row import (
    COMPUTE,
    NO_NOTES,
    KernelNotes,
    Row,
    RowReader,
    RowWriter,
    RuntimeVar,
    Scope,
    Use,
)
from semel.runtime.custom import find_custom_function
from semel.runtime.kernel import CachedKernel
from semel.runtime.timeline import TimelineSignal

#: Names for people, from here and from `semel`.
__all__ = [
    "PreparedBranch",
    "PreparedBufferView",
    "PreparedCopy",
    "PreparedCustomFunction",
    "PreparedKernel",
    "PreparedLoop",
    "PreparedOp",
    "PreparedRebind",
    "PreparedSignal",
    "PreparedWait",
]
#: The custom function whose attributes are a plan.
GRAPH = "graph"
#: Loops and branches inside each other; trees are walked by functions that call themselves.
MOST_DEPTH = 64

# ---------------------------------------------------------------- rows


@dataclass(frozen=True, slots=True)
class PreparedKernel(Row):
    """One call of a kernel.

    `buffer_indices` are in the kernel's argument order; `output_indices` are the positions
    among them that are written. `runtime_vars[i]` is the plan variable behind the kernel's
    i-th variable, which may have another name there. `vals` are initial values of those
    variables (empty: unbound); `fixedvars` win over everything. `build()` fills `runtime_vars` if
    empty. A plan's `prepared_ops` are records of the moment: `vals` are the current values, and
    `buffer_ptrs` and `buffer_ids` the addresses and storages of the buffers.
    """

    kind = "kernel"

    id: int  #: its number in the plan, which dependencies name
    ast: Any  #: where it comes from: source lines, or what whoever built the plan says
    kernel: CachedKernel  #: the code that it calls
    device: str  #: where it runs; empty: on the plan's own device
    buffer_indices: tuple[int, ...]  #: its buffers, in the kernel's order
    output_indices: tuple[int, ...]  #: positions among them that it writes
    vals: tuple[int, ...] = ()  #: values of its variables; empty: unbound
    #: values that nothing changes, by name
    fixedvars: Mapping[str, int] = field(default_factory=dict)
    dependencies: tuple[int, ...] = ()  #: rows that must be done before
    buffer_ptrs: tuple[int, ...] = ()  #: addresses of the buffers, of a record of the moment
    buffer_ids: tuple[int, ...] = ()  #: storages of the buffers, of a record of the moment
    runtime_vars: tuple[RuntimeVar, ...] = ()  #: the plan's variables behind the kernel's
    notes: KernelNotes = field(default=NO_NOTES, repr=False)  #: for reports and errors
    lane: str = COMPUTE  #: which queue of the device runs it

    def __post_init__(self) -> None:
        where = _take_common(self)
        take(where, "kernel", CachedKernel, self.kernel)
        take(where, "notes", KernelNotes, self.notes)
        vals = take_ints(where, "vals", self.vals)
        set_fields(
            self,
            output_indices=take_ints(where, "output_indices", self.output_indices),
            vals=tuple(take_value(where, "vals", value) for value in vals),
            fixedvars=take_values(where, "fixedvars", self.fixedvars),
            buffer_ptrs=take_ints(where, "buffer_ptrs", self.buffer_ptrs),
            buffer_ids=take_ints(where, "buffer_ids", self.buffer_ids),
            runtime_vars=take_items(where, "runtime_vars", RuntimeVar, self.runtime_vars),
        )

    @staticmethod
    def call(
        id: int,
        kernel: CachedKernel,
        args: Sequence[int],
        variables: Sequence[Variable] = (),
        *,
        device: str = "",
        origins: tuple[str, ...] = (),
        notes: KernelNotes = NO_NOTES,
    ) -> PreparedKernel:
        """A call as the compiler makes it: written is what the kernel's signature says."""
        written = [i for i, spec in enumerate(kernel.signature.buffers) if "w" in spec.access]
        return PreparedKernel(
            id=id,
            ast=origins,
            kernel=kernel,
            device=device,
            buffer_indices=tuple(args),
            output_indices=tuple(written),
            runtime_vars=tuple(RuntimeVar.of(v) for v in variables),
            notes=notes,
        )

    @property
    def name(self) -> str:
        return self.notes.name or self.kernel.name

    @property
    def kernels(self) -> tuple[CachedKernel, ...]:
        return (self.kernel,)

    @property
    def origins(self) -> tuple[str, ...]:
        """The source lines of what a compiled kernel computes."""
        ast = self.ast
        return ast if isinstance(ast, tuple) and all(isinstance(o, str) for o in ast) else ()

    def uses(self, scope: Scope) -> tuple[Use, ...]:
        bound = scope.bind(self)
        return tuple(
            # Who says that a kernel writes what its signature does not may write any part of it.
            Use(
                index,
                spec.access if "w" in spec.access or i not in self.output_indices else "rw",
                bound.sizes_bytes[i],
                bound.tile_bytes[i],
            )
            for i, (index, spec) in enumerate(
                zip(self.buffer_indices, self.kernel.signature.buffers, strict=True)
            )
        )

    def encode(self, to: RowWriter) -> dict[str, Any]:
        record = Row.encode(self, to)
        record["kernel"] = to.kernel(self.kernel)
        optional = {
            "ast": to.plain("ast", self.ast),
            "outputs": list(self.output_indices),
            "vals": list(self.vals),
            "fixed": dict(self.fixedvars),
            "variables": [to.dim(v.as_variable()) for v in self.runtime_vars],
            "check_origins": list(self.notes.check_origins),
            "nodes": list(self.notes.nodes),
            "reason": self.notes.reason,
            "choice": self.notes.choice,
            "name": self.notes.name,
            "template": self.notes.template,
            "where": self.notes.where,
        }
        return record | {key: value for key, value in optional.items() if value}

    @staticmethod
    def decode(record: Mapping[str, Any], source: RowReader) -> PreparedKernel:
        """The row that a record of a file says."""
        common = _read_common(record)
        return PreparedKernel(
            kernel=source.kernel(record["kernel"]),
            ast=source.plain(record.get("ast")),
            output_indices=_ints(record.get("outputs", [])),
            vals=_ints(record.get("vals", [])),
            fixedvars=_read_fixed(record),
            runtime_vars=_read_vars(record, source),
            notes=KernelNotes(
                _texts(record.get("check_origins", [])),
                _texts(record.get("nodes", [])),
                as_text(record.get("reason", "")),
                as_text(record.get("choice", "")),
                as_text(record.get("name", "")),
                as_text(record.get("template", "")),
                as_text(record.get("where", "")),
            ),
            **{**common, "device": common["device"] or source.device},
        )


@dataclass(frozen=True, slots=True)
class PreparedCopy(Row):
    """Copy one buffer to another of the same size: `buffer_indices = (dst, src)`.

    All of it, or the first `size` bytes, an expression over the plan's variables.
    """

    kind = "copy"

    id: int  #: its number in the plan, which dependencies name
    buffer_indices: tuple[int, ...]  #: where to, and where from
    dependencies: tuple[int, ...] = ()  #: rows that must be done before
    device: str = ""  #: where it runs; empty: on the plan's own device
    lane: str = COMPUTE  #: which queue of the device runs it
    size: Dim | None = None  #: so many bytes; None: all

    def __post_init__(self) -> None:
        where = _take_common(self)
        if self.size is not None:
            set_fields(self, size=take_dim(where, "size", self.size))

    @property
    def amounts(self) -> tuple[tuple[str, Dim], ...]:
        return () if self.size is None else (("value", self.size),)

    def uses(self, scope: Scope) -> tuple[Use, ...]:
        target, source = self.buffer_indices
        size = scope.size_bytes(target) if self.size is None else scope.dim(self.size)
        return Use(target, "w", size), Use(source, "r", size)

    def encode(self, to: RowWriter) -> dict[str, Any]:
        record = Row.encode(self, to)
        return record if self.size is None else {**record, "size": to.dim(self.size)}

    @staticmethod
    def decode(record: Mapping[str, Any], source: RowReader) -> PreparedCopy:
        """The row that a record of a file says."""
        size = source.dim(record["size"]) if "size" in record else None
        return PreparedCopy(size=size, **_read_common(record))


@dataclass(frozen=True, slots=True)
class PreparedBufferView(Row):
    """States that buffer `out` is a slice of `base`: `buffer_indices = (out, base)`. No work."""

    kind = "view"

    id: int  #: its number in the plan, which dependencies name
    buffer_indices: tuple[int, ...]  #: the slice, and what it is a slice of
    byte_offset: int  #: where it begins in `base`
    byte_size: int  #: how long it is
    dependencies: tuple[int, ...] = ()  #: rows that must be done before
    device: str = ""  #: where it runs; empty: on the plan's own device
    lane: str = COMPUTE  #: which queue of the device runs it

    def __post_init__(self) -> None:
        where = _take_common(self)
        set_fields(
            self,
            byte_offset=take_int(where, "byte_offset", self.byte_offset),
            byte_size=take_int(where, "byte_size", self.byte_size),
        )

    @property
    def has_work(self) -> bool:
        return False

    def encode(self, to: RowWriter) -> dict[str, Any]:
        return {**Row.encode(self, to), "bytes": [self.byte_offset, self.byte_size]}

    @staticmethod
    def decode(record: Mapping[str, Any], source: RowReader) -> PreparedBufferView:
        """The row that a record of a file says."""
        offset, size = _ints(as_list(record["bytes"], 2))
        return PreparedBufferView(byte_offset=offset, byte_size=size, **_read_common(record))


@dataclass(frozen=True, slots=True)
class PreparedCustomFunction(Row):
    """A call of the registered custom function `kind`.

    It is given the current values of all variables of the plan, `fixedvars` before them; a
    native one those of its `runtime_vars`, in order.
    """

    id: int  #: its number in the plan, which dependencies name
    #: what it was registered as
    kind: str  # type: ignore[misc]  # the seeds' name; the record's own kind is "function"
    attrs: Any  #: what the function is told beside its buffers
    buffer_indices: tuple[int, ...]  #: the buffers it uses, in order
    #: values that nothing changes, by name
    fixedvars: Mapping[str, int] = field(default_factory=dict)
    dependencies: tuple[int, ...] = ()  #: rows that must be done before
    #: the plan's variables that a native function is given
    runtime_vars: tuple[RuntimeVar, ...] = ()
    device: str = ""  #: where it runs; empty: on the plan's own device
    lane: str = COMPUTE  #: which queue of the device runs it

    def __post_init__(self) -> None:
        where = _take_common(self)
        take(where, "kind", str, self.kind)
        set_fields(
            self,
            fixedvars=take_values(where, "fixedvars", self.fixedvars),
            runtime_vars=take_items(where, "runtime_vars", RuntimeVar, self.runtime_vars),
        )

    @property
    def is_fence(self) -> bool:
        found = find_custom_function(self.kind)
        return found is not None and found.is_fence

    def uses(self, scope: Scope) -> tuple[Use, ...]:
        # It writes what it likes of what it may write: nothing is sure.
        how = scope.function(self).access(len(self.buffer_indices), self.attrs)
        return tuple(
            Use(index, "rw" if "w" in letters else letters, scope.size_bytes(index))
            for index, letters in zip(self.buffer_indices, how, strict=True)
        )

    def encode(self, to: RowWriter) -> dict[str, Any]:
        return {
            **Row.encode(self, to),
            "kind": "function",
            "function": self.kind,
            "attrs": to.attrs(self),
            "fixed": dict(self.fixedvars),
            "variables": [to.dim(v.as_variable()) for v in self.runtime_vars],
        }

    @staticmethod
    def decode(record: Mapping[str, Any], source: RowReader) -> PreparedCustomFunction:
        """The row that a record of a file says."""
        kind = as_text(record["function"])
        return PreparedCustomFunction(
            kind=kind,
            attrs=source.attrs(kind, record["attrs"]),
            fixedvars=_read_fixed(record),
            runtime_vars=_read_vars(record, source),
            **_read_common(record),
        )


@dataclass(frozen=True, slots=True)
class PreparedLoop(Row):
    """The rows of `body` run `trip` times, for counter = 0, 1, ...

    `trip` is an expression over the plan's variables; at 0, nothing runs. `counter` is a
    variable that rows inside see by its name and that nobody binds: the runner writes it.

    With a bool in `buffer_indices` the loop is conditional: each iteration begins with the rows of
    `test`, and is the last one, without its body, if the bool is false after them. With `NO_LIMIT`
    as its `trip` nothing else ends it.
    """

    kind = "loop"

    id: int  #: its number in the plan, which dependencies name
    counter: str  #: the variable that counts the iterations
    trip: Dim  #: how many there are at most
    body: tuple[PreparedOp, ...]  #: the rows of an iteration
    dependencies: tuple[int, ...] = ()  #: rows that must be done before
    buffer_indices: tuple[int, ...] = ()  #: none, or the bool that ends a conditional loop
    test: tuple[PreparedOp, ...] = ()  #: rows that decide whether there is another
    device: str = ""  #: where it runs; empty: on the plan's own device
    lane: str = COMPUTE  #: which queue of the device runs it

    def __post_init__(self) -> None:
        where = _take_common(self)
        take(where, "counter", str, self.counter)
        set_fields(
            self,
            trip=take_dim(where, "trip", self.trip),
            body=_take_rows(where, "body", self.body),
            test=_take_rows(where, "test", self.test),
        )
        _check_depth(where, self)

    @property
    def amounts(self) -> tuple[tuple[str, Dim], ...]:
        return (("trip", self.trip),)

    @property
    def bodies(self) -> tuple[tuple[PreparedOp, ...], ...]:
        return self.test, self.body

    def with_bodies(self, bodies: Sequence[tuple[PreparedOp, ...]]) -> PreparedOp:
        return replace(self, test=bodies[0], body=bodies[1])

    def check(self, where: str, types: Sequence[TensorType]) -> None:
        if types:
            _check_condition(f"{where} (loop)", self, types)
        elif self.test:
            raise PlanError(where, "a loop with a test must have a bool too.", op=self.id)

    def uses(self, scope: Scope) -> tuple[Use, ...]:
        return tuple(Use(index, "r", 1) for index in self.buffer_indices)

    @property
    def is_open(self) -> bool:
        """Whether only its condition ends it: `trip` says nothing about how often it runs."""
        return self.trip == NO_LIMIT

    @property
    def counter_variable(self) -> Variable:
        """The counter as a variable of expressions."""
        return Variable(self.counter, 0)

    def encode(self, to: RowWriter) -> dict[str, Any]:
        return {
            **Row.encode(self, to),
            "counter": self.counter,
            "trip": to.dim(self.trip),
            "test": [row.encode(to) for row in self.test],
            "body": [row.encode(to) for row in self.body],
        }

    @staticmethod
    def decode(record: Mapping[str, Any], source: RowReader) -> PreparedLoop:
        """The row that a record of a file says."""
        return PreparedLoop(
            counter=as_text(record["counter"]),
            trip=source.dim(record["trip"]),
            test=decode_rows(record["test"], source),
            body=decode_rows(record["body"], source),
            **_read_common(record),
        )


@dataclass(frozen=True, slots=True)
class PreparedBranch(Row):
    """The rows of `then` run if the bool in buffer `buffer_indices[0]` is true, else `orelse`.

    The bool is read when the run comes here, so that rows before may compute it.
    """

    kind = "branch"

    id: int  #: its number in the plan, which dependencies name
    buffer_indices: tuple[int, ...]  #: the bool that decides
    then: tuple[PreparedOp, ...]  #: the rows that run if it is true
    orelse: tuple[PreparedOp, ...] = ()  #: the rows that run if it is not
    dependencies: tuple[int, ...] = ()  #: rows that must be done before
    device: str = ""  #: where it runs; empty: on the plan's own device
    lane: str = COMPUTE  #: which queue of the device runs it

    def __post_init__(self) -> None:
        where = _take_common(self)
        set_fields(
            self,
            then=_take_rows(where, "then", self.then),
            orelse=_take_rows(where, "orelse", self.orelse),
        )
        _check_depth(where, self)

    @property
    def bodies(self) -> tuple[tuple[PreparedOp, ...], ...]:
        return self.then, self.orelse

    def with_bodies(self, bodies: Sequence[tuple[PreparedOp, ...]]) -> PreparedOp:
        return replace(self, then=bodies[0], orelse=bodies[1])

    def check(self, where: str, types: Sequence[TensorType]) -> None:
        _check_condition(f"{where} (branch)", self, types)

    def uses(self, scope: Scope) -> tuple[Use, ...]:
        return (Use(self.buffer_indices[0], "r", 1),)

    def encode(self, to: RowWriter) -> dict[str, Any]:
        return {
            **Row.encode(self, to),
            "then": [row.encode(to) for row in self.then],
            "orelse": [row.encode(to) for row in self.orelse],
        }

    @staticmethod
    def decode(record: Mapping[str, Any], source: RowReader) -> PreparedBranch:
        """The row that a record of a file says."""
        return PreparedBranch(
            then=decode_rows(record["then"], source),
            orelse=decode_rows(record["orelse"], source),
            **_read_common(record),
        )


@dataclass(frozen=True, slots=True)
class PreparedRebind(Row):
    """Late variables get their values: `variables[i]` that of the int64 at `buffer_indices[i]`.

    Nobody binds them; rows behind this one see them by their names, up to the end of the list
    that it is in. Each is at most `limits[i]`, an expression over variables that are known
    before, and lies in its own bounds; that, and the guards that hold one of them, is
    checked here, and a run in which something does not hold is over before any later row.
    `guards` are checked here too, and only if the run comes here: pairs of an expression that must
    be 0 and a sentence that says why. A rebind of no variables does nothing else.
    """

    kind = "rebind"

    id: int  #: its number in the plan, which dependencies name
    variables: tuple[RuntimeVar, ...]  #: what gets a value
    buffer_indices: tuple[int, ...]  #: where the value of each is computed
    limits: tuple[Dim, ...] = ()  #: what each must not exceed
    dependencies: tuple[int, ...] = ()  #: rows that must be done before
    device: str = ""  #: where it runs; empty: on the plan's own device
    lane: str = COMPUTE  #: which queue of the device runs it
    guards: tuple[tuple[Dim, str], ...] = ()  #: what must be 0, and what is said if not

    def __post_init__(self) -> None:
        where = _take_common(self)
        found = take_items(where, "variables", RuntimeVar, self.variables)
        given: tuple[Dim | None, ...] = self.limits or tuple(v.max_val for v in found)
        guards = tuple(_take_guard(where, guard) for guard in self.guards)
        is_empty = not found and not guards
        if not len(found) == len(self.buffer_indices) == len(given) or is_empty:
            raise PlanError(
                where,
                f"a rebind needs one buffer and one limit for each variable, got {len(found)} "
                f"variables, {len(self.buffer_indices)} buffers and {len(given)} limits.",
            )
        loose = [v.name for v, limit in zip(found, given, strict=True) if limit is None]
        if loose:
            raise VariableError(
                where, f"'{loose[0]}' must have a maximum or a limit.", variable=loose[0]
            )
        limits = tuple(take_dim(where, "limits", limit) for limit in given if limit is not None)
        set_fields(self, variables=found, limits=limits, guards=guards)

    @property
    def late(self) -> tuple[tuple[RuntimeVar, Dim], ...]:
        return tuple(zip(self.variables, self.limits, strict=True))

    @property
    def amounts(self) -> tuple[tuple[str, Dim], ...]:
        guards = ((f"guard ({text})", amount) for amount, text in self.guards)
        return (*(("limit", limit) for limit in self.limits), *guards)

    @property
    def is_fence(self) -> bool:
        return True

    @property
    def name(self) -> str:
        if not self.variables:
            return f"check {', '.join(str(amount) for amount, _ in self.guards)}"
        return f"rebind {', '.join(v.name for v in self.variables)}"

    def uses(self, scope: Scope) -> tuple[Use, ...]:
        return tuple(Use(index, "r", INT64.size_bytes) for index in self.buffer_indices)

    def encode(self, to: RowWriter) -> dict[str, Any]:
        return {
            **Row.encode(self, to),
            "variables": [to.dim(v.as_variable()) for v in self.variables],
            "limits": [to.dim(limit) for limit in self.limits],
            "guards": [[to.dim(amount), text] for amount, text in self.guards],
        }

    @staticmethod
    def decode(record: Mapping[str, Any], source: RowReader) -> PreparedRebind:
        """The row that a record of a file says."""
        return PreparedRebind(
            variables=_read_vars(record, source),
            limits=tuple(source.dim(limit) for limit in as_list(record["limits"])),
            guards=tuple(
                (source.dim(amount), as_text(text))
                for amount, text in (as_list(guard, 2) for guard in as_list(record["guards"]))
            ),
            **_read_common(record),
        )


@dataclass(frozen=True, slots=True)
class _Timed(Row):
    """A row at a value of a timeline, an expression over the plan's variables; a fence."""

    id: int
    signal: TimelineSignal
    value: Dim
    dependencies: tuple[int, ...] = ()
    buffer_indices: tuple[int, ...] = ()
    device: str = ""
    lane: str = COMPUTE

    def __post_init__(self) -> None:
        where = _take_common(self)  # type: ignore[arg-type]  # the two records below are rows
        take(where, "signal", TimelineSignal, self.signal)
        set_fields(self, value=take_dim(where, "value", self.value))

    @property
    def name(self) -> str:
        return f"{self.kind} {self.signal.name} {self.value}"

    @property
    def is_fence(self) -> bool:
        return True

    @property
    def amounts(self) -> tuple[tuple[str, Dim], ...]:
        return (("value", self.value),)

    def encode(self, to: RowWriter) -> dict[str, Any]:
        return {
            **Row.encode(self, to),
            "signal": [self.signal.name, self.signal.value],
            "value": to.dim(self.value),
        }


class PreparedSignal(_Timed):
    """When all rows before it on its lane are done, `signal` reaches `value`.

    A file holds the signal by its name, and where it stands.
    """

    __slots__ = ()
    kind = "signal"

    @staticmethod
    def decode(record: Mapping[str, Any], source: RowReader) -> PreparedSignal:
        """The row that a record of a file says."""
        return PreparedSignal(**_read_timed(record, source))


class PreparedWait(_Timed):
    """No row after it on its lane begins before `signal` has reached `value`: that waits for it.

    Who interrupts the run, by ctrl-C say, ends the wait.
    """

    __slots__ = ()
    kind = "wait"

    @staticmethod
    def decode(record: Mapping[str, Any], source: RowReader) -> PreparedWait:
        """The row that a record of a file says."""
        return PreparedWait(**_read_timed(record, source))


PreparedOp: TypeAlias = (
    PreparedKernel
    | PreparedCopy
    | PreparedBufferView
    | PreparedCustomFunction
    | PreparedLoop
    | PreparedBranch
    | PreparedRebind
    | PreparedSignal
    | PreparedWait
)


def is_row(value: object) -> bool:
    """Whether it is one of the records above."""
    return isinstance(value, PreparedOp)


def _record_of(kind: str) -> Any:
    """The class of the rows that files call so; None if there is none."""
    if kind == "function":  # whose own `kind` is the function
        return PreparedCustomFunction
    others = (cls for cls in get_args(PreparedOp) if cls is not PreparedCustomFunction)
    return next((cls for cls in others if cls.kind == kind), None)


# ---------------------------------------------------------------- reading


def decode_rows(records: Any, source: RowReader) -> tuple[PreparedOp, ...]:
    """The rows of a list of records from a file, of which nothing is trusted."""
    found: list[PreparedOp] = []
    for record in as_list(records):
        cls = _record_of(as_text(record["kind"]))
        if cls is None:
            raise GraphError(
                "decode", f"a row must be of a known kind, got {record['kind']!r:.40}."
            )
        found.append(cls.decode(record, source))
    return tuple(found)


def _read_common(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": as_int(record["id"]),
        "buffer_indices": _ints(record.get("buffers", [])),
        "dependencies": _ints(record.get("dependencies", [])),
        "device": as_text(record.get("device", "")),
        "lane": as_text(record.get("lane", COMPUTE)),
    }


def _read_timed(record: Mapping[str, Any], source: RowReader) -> dict[str, Any]:
    name, at = as_list(record["signal"], 2)
    return {
        **_read_common(record),
        "signal": source.signal(as_text(name), as_int(at)),
        "value": source.dim(record["value"]),
    }


def _read_fixed(record: Mapping[str, Any]) -> dict[str, int]:
    return {as_text(n): as_int(value) for n, value in dict(record.get("fixed", {})).items()}


def _take_guard(where: str, guard: Any) -> tuple[Dim, str]:
    if not isinstance(guard, (tuple, list)) or len(guard) != 2:
        raise PlanError(
            where, f"a guard must be a pair of a dim and a sentence, got {guard!r:.80}."
        )
    return take_dim(where, "guards", guard[0]), take(where, "guards", str, guard[1])


def _read_vars(record: Mapping[str, Any], source: RowReader) -> tuple[RuntimeVar, ...]:
    entries = as_list(record.get("variables", []))
    return tuple(RuntimeVar.of(source.variable(entry)) for entry in entries)


def _ints(entries: Any) -> tuple[int, ...]:
    return tuple(map(as_int, as_list(entries)))


def _texts(entries: Any) -> tuple[str, ...]:
    return tuple(map(as_text, as_list(entries)))


# ---------------------------------------------------------------- checking


def _take_common(op: PreparedOp) -> str:
    """Check and freeze the fields that every row has; how to call it in messages."""
    number = take_int(type(op).__name__, "id", op.id)
    where = f"op {number}"
    take(where, "device", str, op.device)
    take(where, "lane", str, op.lane)
    set_fields(
        op,
        id=number,
        buffer_indices=take_ints(where, "buffer_indices", op.buffer_indices),
        dependencies=take_ints(where, "dependencies", op.dependencies),
    )
    return where


def _take_rows(where: str, what: str, rows: Any) -> tuple[PreparedOp, ...]:
    return take_items(where, what, PreparedOp, rows, "Prepared*")


def _check_condition(where: str, row: PreparedOp, types: Sequence[TensorType]) -> None:
    """One bool, which says where the run goes on."""
    if len(types) != 1 or types[0].dtype != BOOL or types[0].num_elements != 1:
        found = ", ".join(map(str, types)) or "none"
        raise PlanError(where, f"must have one buffer of one bool, got {found}.", op=row.id)


def _check_depth(where: str, row: PreparedOp) -> None:
    if _depth(row) > MOST_DEPTH:
        message = f"there must be at most {MOST_DEPTH} loops and branches inside each other."
        raise PlanError(where, message, op=row.id)


def _depth(row: PreparedOp) -> int:
    insides = [_depth(inner) for body in row.bodies for inner in body]
    return 1 + max(insides, default=0) if row.bodies else 0

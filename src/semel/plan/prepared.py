"""The operations of a plan before they become rows.

    PreparedKernel | PreparedCopy | PreparedBufferView | PreparedCustomFunction
    | PreparedLoop | PreparedEnd  --build()-->  rows

Each is a plain record. An operation names its buffers by index into the plan's list, its
predecessors by id. Ids need not be unique: in a plan with repeated ids a dependency means
the latest earlier operation of that id. Byte-range hazards are found by the builder; a
dependency is needed only for an order that no buffer shows.

A record takes what it is given when it is made: values of the wrong type are refused there, lists
and dicts are copied into tuples and read-only mappings, so that what `build()` checked is what
runs.

A loop is what was added between its PreparedLoop and the next PreparedEnd. Both are fences:
no operation moves across them, whatever it touches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from semel.errors import VariableError
from semel.ir.expr import Dim, Variable
from semel.ir.fields import (
    set_fields,
    take,
    take_dim,
    take_int,
    take_ints,
    take_items,
    take_value,
    take_values,
)
from semel.runtime.buffer import Buffer
from semel.runtime.kernel import CachedKernel


@dataclass(frozen=True, slots=True)
class RuntimeVar:
    """A variable as one operation sees it; `max_val=None` means no upper bound."""

    name: str
    min_val: int
    max_val: int | None = None

    def __post_init__(self) -> None:
        take("RuntimeVar", "name", str, self.name)
        where = f"variable '{self.name}'"
        low = take_value(where, "min_val", self.min_val)
        high = None if self.max_val is None else take_value(where, "max_val", self.max_val)
        if high is not None and high < low:
            raise VariableError(where, f"must have min_val <= max_val, got [{low}, {high}].")
        set_fields(self, min_val=low, max_val=high)

    @staticmethod
    def of(variable: Variable) -> RuntimeVar:
        """The record for a graph variable."""
        return RuntimeVar(variable.name, variable.min, variable.max)


@dataclass(frozen=True, slots=True)
class PreparedKernel:
    """One call of a kernel.

    `buffer_indices` are in the kernel's argument order; `output_indices` are the positions
    among them that are written. `runtime_vars[i]` is the plan variable behind the kernel's
    i-th variable, which may have another name there. `vals` are initial values of those
    variables (empty: unbound); `fixedvars` win over everything. `build()` fills `runtime_vars` if
    empty. A plan's `prepared_ops` are records of the moment: `vals` are the current values, and
    `buffer_ptrs` and `buffer_ids` the addresses and storages of the buffers.
    """

    id: int
    ast: Any
    kernel: CachedKernel
    device: str
    buffer_indices: tuple[int, ...]
    output_indices: tuple[int, ...]
    vals: tuple[int, ...] = ()
    fixedvars: Mapping[str, int] = field(default_factory=dict)
    dependencies: tuple[int, ...] = ()
    buffer_ptrs: tuple[int, ...] = ()
    buffer_ids: tuple[int, ...] = ()
    runtime_vars: tuple[RuntimeVar, ...] = ()

    def __post_init__(self) -> None:
        where = _take_common(self)
        take(where, "kernel", CachedKernel, self.kernel)
        take(where, "device", str, self.device)
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


@dataclass(frozen=True, slots=True)
class PreparedCopy:
    """Copy one buffer to another of the same size: `buffer_indices = (dst, src)`."""

    id: int
    buffer_indices: tuple[int, ...]
    dependencies: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _take_common(self)


@dataclass(frozen=True, slots=True)
class PreparedBufferView:
    """States that buffer `out` is a slice of `base`: `buffer_indices = (out, base)`. No work."""

    id: int
    buffer_indices: tuple[int, ...]
    byte_offset: int
    byte_size: int
    dependencies: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        where = _take_common(self)
        set_fields(
            self,
            byte_offset=take_int(where, "byte_offset", self.byte_offset),
            byte_size=take_int(where, "byte_size", self.byte_size),
        )


@dataclass(frozen=True, slots=True)
class PreparedCustomFunction:
    """A call of the registered custom function `kind`.

    It is given the current values of all variables of the plan, `fixedvars` before them; a
    native one those of its `runtime_vars`, in order.
    """

    id: int
    kind: str
    attrs: Any
    buffer_indices: tuple[int, ...]
    fixedvars: Mapping[str, int] = field(default_factory=dict)
    dependencies: tuple[int, ...] = ()
    runtime_vars: tuple[RuntimeVar, ...] = ()

    def __post_init__(self) -> None:
        where = _take_common(self)
        take(where, "kind", str, self.kind)
        set_fields(
            self,
            fixedvars=take_values(where, "fixedvars", self.fixedvars),
            runtime_vars=take_items(where, "runtime_vars", RuntimeVar, self.runtime_vars),
        )


@dataclass(frozen=True, slots=True)
class PreparedLoop:
    """The operations up to the next PreparedEnd run `trip` times, for counter = 0, 1, ...

    `trip` is an expression over the plan's variables; at 0, nothing runs. `counter` is a
    variable that kernels inside see by its name and that nobody binds: the runner writes it.
    """

    id: int
    counter: str
    trip: Dim
    dependencies: tuple[int, ...] = ()
    buffer_indices: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        where = _take_common(self)
        take(where, "counter", str, self.counter)
        set_fields(self, trip=take_dim(where, "trip", self.trip))


@dataclass(frozen=True, slots=True)
class PreparedEnd:
    """The end of the loop that began last."""

    id: int
    dependencies: tuple[int, ...] = ()
    buffer_indices: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _take_common(self)


PreparedOp: TypeAlias = (
    PreparedKernel
    | PreparedCopy
    | PreparedBufferView
    | PreparedCustomFunction
    | PreparedLoop
    | PreparedEnd
)


def as_it_is(op: PreparedOp, buffers: Sequence[Buffer], values: Mapping[str, int]) -> PreparedOp:
    """The operation with these values of variables, and with where its buffers lie now.

    Without any buffers: they are gone, and so are their addresses.
    """
    if not isinstance(op, PreparedKernel):
        return op
    known = {**values, **op.fixedvars}
    names = [var.name for var in op.runtime_vars]
    own = [buffers[i] for i in op.buffer_indices] if buffers else []
    return replace(
        op,
        vals=tuple(known[name] for name in names) if known.keys() >= set(names) else (),
        buffer_ptrs=tuple(b.address for b in own),
        buffer_ids=tuple(b.storage_id for b in own),
    )


def _take_common(op: PreparedOp) -> str:
    """Check and freeze the fields that every operation has; how to call it in messages."""
    number = take_int(type(op).__name__, "id", op.id)
    where = f"op {number}"
    set_fields(
        op,
        id=number,
        buffer_indices=take_ints(where, "buffer_indices", op.buffer_indices),
        dependencies=take_ints(where, "dependencies", op.dependencies),
    )
    return where

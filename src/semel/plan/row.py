"""What every row of a program needs and says; the records themselves are in `plan.rows`.

    Row x Scope --uses-->  Use: which buffers a row reads and writes, and how much of them
    Row x RowWriter --encode-->  its record in a file, RowReader for the way back

A row refers to variables, functions and buffers and holds none of them: a `Scope` knows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from semel.errors import VariableError
from semel.ir.expr import Dim, Variable
from semel.ir.fields import set_fields, take, take_value
from semel.ir.types import TensorType
from semel.runtime.custom import CustomFunction
from semel.runtime.kernel import CachedKernel
from semel.runtime.timeline import TimelineSignal

if TYPE_CHECKING:
    from semel.plan.rows import PreparedCustomFunction, PreparedKernel, PreparedOp


#: The lane of rows that say nothing else.
COMPUTE = "compute"
COPY = "copy"
#: What a device does side by side: kernels, and copies beside them.
LANES = (COMPUTE, COPY)
#: A device, and a lane of it.
LaneKey: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Use:
    """One argument of a row: which buffer, whether it is read (r), written (w) or both.

    `size` are the bytes that may be touched, from the buffer's first on; what is written and not
    read is written whole. Tile t stays within its own `tile_bytes`, where that is known.
    """

    index: int
    access: str
    size: Dim
    tile_bytes: Dim | None = None


@dataclass(frozen=True, slots=True)
class BoundKernel:
    """A kernel's symbolic quantities in the plan's variables."""

    values: tuple[Dim, ...]
    tiles: Dim
    flops: Dim
    bytes: Dim
    tile_bytes: tuple[Dim | None, ...]
    sizes_bytes: tuple[Dim, ...]
    scratch_bytes: Dim


class Scope(Protocol):
    """What rows refer to and do not hold: variables, functions, the sizes of buffers."""

    def bind(self, row: PreparedKernel) -> BoundKernel: ...
    def function(self, row: PreparedCustomFunction) -> CustomFunction: ...
    def size_bytes(self, index: int) -> int: ...
    def dim(self, value: Dim) -> Dim: ...


class RowWriter(Protocol):
    """How a row says what is stored elsewhere in a file."""

    @property
    def device(self) -> str: ...
    def dim(self, value: Dim) -> Any: ...
    def kernel(self, kernel: CachedKernel) -> int: ...
    def plain(self, where: str, value: Any) -> Any: ...
    def attrs(self, row: PreparedCustomFunction) -> Any: ...


class RowReader(Protocol):
    """The same on the way back."""

    @property
    def device(self) -> str: ...
    def dim(self, record: Any) -> Dim: ...
    def variable(self, record: Any) -> Variable: ...
    def kernel(self, record: Any) -> CachedKernel: ...
    def plain(self, record: Any) -> Any: ...
    def attrs(self, kind: str, record: Any) -> Any: ...
    def signal(self, name: str, value: int) -> TimelineSignal: ...


@dataclass(frozen=True, slots=True)
class RuntimeVar:
    """A variable as one row sees it; `max_val=None` means no upper bound."""

    name: str  #: that of a variable of the plan
    min_val: int  #: the least value that may be bound
    max_val: int | None = None  #: the largest; None: there is no bound

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

    def as_variable(self) -> Variable:
        """The graph variable of that name and range."""
        return Variable(self.name, self.min_val, self.max_val)


@dataclass(frozen=True, slots=True)
class KernelNotes:
    """What the compiler tells people about a kernel call.

    The source line of each of its checks, the graph `nodes` it computes, the `reason` why its
    result is not computed inside the kernel that wants it, the `choice` of how it is cut, the
    `name` of what it computes, which other calls of the kernel may give other names, the
    `template` that it was made by, and why it is `where` it is, of several devices.
    """

    check_origins: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    reason: str = ""
    choice: str = ""
    name: str = ""
    template: str = ""
    where: str = ""


#: Of what the compiler says nothing.
NO_NOTES = KernelNotes()


class Row:
    """What all rows have; the records are in `plan.rows`.

    A row runs on a `device`, the plan's own if it names none, and on a `lane` of it.
    """

    __slots__ = ()
    kind: ClassVar[str]  #: which sort of row it is, in files and reports
    id: int  #: what dependencies of other rows call it by; need not be unique
    buffer_indices: tuple[int, ...]  #: what it touches, as indices into the plan's buffers
    dependencies: tuple[int, ...]  #: ids of rows that it must follow whatever they touch
    device: str
    lane: str

    @property
    def name(self) -> str:
        """What it is called in reports."""
        return self.kind

    @property
    def bodies(self) -> tuple[tuple[PreparedOp, ...], ...]:
        """The lists of rows inside."""
        return ()

    @property
    def has_work(self) -> bool:
        """Whether a run does anything for it; else it only says where bytes lie."""
        return True

    @property
    def notes(self) -> KernelNotes:
        """What the compiler tells people about it."""
        return NO_NOTES

    @property
    def origins(self) -> tuple[str, ...]:
        """The source lines of what it computes."""
        return ()

    @property
    def is_fence(self) -> bool:
        """Whether nothing may move across it."""
        return bool(self.bodies)

    @property
    def runtime_vars(self) -> tuple[RuntimeVar, ...]:
        """The variables that it takes the values of."""
        return ()

    @property
    def kernels(self) -> tuple[CachedKernel, ...]:
        """What it calls itself."""
        return ()

    @property
    def late(self) -> tuple[tuple[RuntimeVar, Dim], ...]:
        """The variables that it gives values, and the most that each may be."""
        return ()

    @property
    def amounts(self) -> tuple[tuple[str, Dim], ...]:
        """The expressions over variables that it has itself, and what each is."""
        return ()

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The expressions over variables that it has itself."""
        return tuple(dim for _, dim in self.amounts)

    def with_bodies(self, bodies: Sequence[tuple[PreparedOp, ...]]) -> PreparedOp:
        """The same row with other lists of rows inside."""
        return self  # type: ignore[return-value]  # only the records of `plan.rows` are rows

    def lane_on(self, device: str) -> LaneKey:
        """Where it runs in a plan on this device."""
        return self.device or device, self.lane

    def check(self, where: str, types: Sequence[TensorType]) -> None:
        """Raise a PlanError that begins with `where` if its buffers, of these types, do not do."""

    def uses(self, scope: Scope) -> tuple[Use, ...]:
        """What it touches itself, without what is inside."""
        return ()

    def encode(self, to: RowWriter) -> dict[str, Any]:
        """Its form in a file; what is as usual is left out."""
        record: dict[str, Any] = {"kind": self.kind, "id": self.id}
        if self.buffer_indices:
            record["buffers"] = list(self.buffer_indices)
        if self.dependencies:
            record["dependencies"] = list(self.dependencies)
        if self.device not in ("", to.device):
            record["device"] = self.device
        if self.lane != COMPUTE:
            record["lane"] = self.lane
        return record

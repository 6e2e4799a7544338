"""The attributes of ops: what an op is told beside its operands.

    (op name, operand nodes, attrs) --make_node--> Node

Every class is frozen and compares by value, because attrs are part of a node's
identity: equal attrs on equal operands are one computation. What compares by
object is a constant's storage, since comparing weights would cost more than it
saves. Attrs hold plain data only; what must hold of them is checked by the op's
`infer`, where the operand types are known.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from semel.errors import GraphError
from semel.ir.expr import Dim, Index
from semel.ir.graph import Graph, Storage
from semel.ir.narrow import to_narrow
from semel.ir.types import BOOL, FLOAT32, DType, Shape, TensorType, one_of


@dataclass(frozen=True, slots=True)
class InputAttrs:
    """A tensor the caller passes at every run, known by `name`; if it does not, the `default`.

    If only a `part` of it is read, from 0 on along each axis, that is how large the part is.
    It lies on a `device`, the plan's own if it names none.
    """

    name: str
    type: TensorType
    default: Storage | None = None
    part: tuple[Dim, ...] = ()
    device: str = ""


@dataclass(frozen=True, slots=True)
class FrameAttrs:
    """The memory of the output called `name`, with what the runs before have left there."""

    name: str
    type: TensorType


@dataclass(frozen=True, slots=True)
class ConstantAttrs:
    """Sealed data: `storage` never changes, so it may be folded and packed."""

    storage: Storage
    type: TensorType


@dataclass(frozen=True, slots=True)
class ParamAttrs:
    """Data that the owner of a plan may replace, known by `name`: never folded."""

    name: str
    storage: Storage
    type: TensorType


@dataclass(frozen=True, slots=True)
class StoredAttrs:
    """A value that is made of constants and params before any run: the output of `value`."""

    value: Graph


@dataclass(frozen=True, slots=True)
class StateAttrs:
    """A tensor that is kept between runs, known by `name`; `init` is its first value, or zeros.

    It lies on a `device`, the plan's own if it names none.
    """

    name: str
    type: TensorType
    init: Storage | None = None
    #: Whether the next value is always made in a second buffer: a run that fails leaves the old.
    is_exchanged: bool = False
    device: str = ""


@dataclass(frozen=True, slots=True)
class MoveAttrs:
    """The device that a tensor goes to."""

    device: str


@dataclass(frozen=True, slots=True)
class UpdateAttrs:
    """Where the new elements begin along each axis of the state, or of the frame.

    If they come in another shape, `shape` is what they have there, in the same order.
    """

    starts: tuple[Dim, ...]
    shape: tuple[Dim, ...] = ()


@dataclass(frozen=True, slots=True)
class UpdateRowsAttrs:
    """Rows of a state along `axis`, each at a place of its own, behind those that are valid.

    How many are is what the state `lengths` says of each sequence, which grows by `grows` rows or,
    if the input `counts` is told, by as many as that says. If rows are found through a table of
    blocks, that is the state `table`, and a block has `block_rows`.
    """

    axis: int
    lengths: str
    grows: Dim
    counts: str = ""
    table: str = ""
    block_rows: int = 0


@dataclass(frozen=True, slots=True)
class ScalarAttrs:
    """One number, for all elements of `shape`, rounded to `dtype` when it is made.

    `key` holds its bits: two scalars are equal if these are, so that -0.0 differs from
    0.0 and NaN equals itself. `value` is a plain bool, int or float.
    """

    value: Any = field(compare=False)
    dtype: DType
    shape: Shape = ()  #: of numbers
    key: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        value = round_to(self.value, self.dtype)
        object.__setattr__(self, "value", value)
        packed = struct.pack("<d", value) if self.dtype.is_float else str(value).encode()
        object.__setattr__(self, "key", packed)


def round_to(value: Any, dtype: DType) -> Any:
    """`value` as the plain Python number that `dtype` stores for it; integers wrap."""
    if dtype == FLOAT32:
        return ctypes.c_float(float(value)).value
    if dtype.is_float and dtype.is_narrow:
        return float(to_narrow(float(value), dtype))
    if dtype.is_float:
        with np.errstate(all="ignore"):
            return float(np.asarray(float(value)).astype(dtype.numpy))
    if dtype == BOOL:
        return bool(value)
    if isinstance(value, (float, np.floating)) and not float(value).is_integer():
        raise GraphError("scalar", f"{one_of(dtype)} must be a whole number, got {value!r}.")
    wrapped = int(value) & ((1 << dtype.bits) - 1)
    negative = dtype.kind == "i" and wrapped >> (dtype.bits - 1)
    return wrapped - (1 << dtype.bits) if negative else wrapped


@dataclass(frozen=True, slots=True)
class CastAttrs:
    """The dtype that a `cast` converts to, or that a `bitcast` reads the bits as."""

    dtype: DType


@dataclass(frozen=True, slots=True)
class IotaAttrs:
    """A tensor of `shape` whose elements are their own index along `axis`, from `start` on.

    With one element it is the number `start`, which may be symbolic and negative.
    """

    shape: Shape
    axis: int
    dtype: DType
    start: Dim = 0


@dataclass(frozen=True, slots=True)
class RandomBitsAttrs:
    """The shape of the random words; each depends on its row-major index and the key only."""

    shape: Shape


@dataclass(frozen=True, slots=True)
class CheckIndexAttrs:
    """Indices must lie in [-size, size); `where` names the op on whose behalf they are checked.

    What is no "index" (a length, the number of a block) does not count from the end: it must
    lie in [0, size).
    """

    size: Dim
    where: str
    what: str = "index"


@dataclass(frozen=True, slots=True)
class ReshapeAttrs:
    """The new shape, of as many elements, in row-major order."""

    shape: Shape


@dataclass(frozen=True, slots=True)
class PermuteAttrs:
    """Result axis i is operand axis `axes[i]`."""

    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ExpandAttrs:
    """The new shape, of the same rank: dims of size 1 stretch, the others stay."""

    shape: Shape


@dataclass(frozen=True, slots=True)
class SliceAttrs:
    """Result index i reads operand index `start + i*step` along each axis; steps may be < 0."""

    starts: tuple[Dim, ...]
    sizes: tuple[Dim, ...]
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WindowAttrs:
    """Windows that slide over `axes`: `sizes` elements, `dilations` apart, every `strides`."""

    axes: tuple[int, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PadAttrs:
    """How many fill elements stand before and after each axis; never negative."""

    before: tuple[Dim, ...]
    after: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class ConcatAttrs:
    """The axis along which the operands stand one after another."""

    axis: int


@dataclass(frozen=True, slots=True)
class GatherAttrs:
    """The axis that the indices of `gather` and `take_along` select from."""

    axis: int


@dataclass(frozen=True, slots=True)
class ReduceAttrs:
    """The reduced axes, ascending; they stay with size 1, reduced in one run (no `chunk`).

    `propagate_nan=False` allows max and min to skip NaN, where the result is used in a
    way that brings the NaN back anyhow (softmax).
    """

    axes: tuple[int, ...]
    propagate_nan: bool = True

    chunk: ClassVar[int | None] = None


@dataclass(frozen=True, slots=True)
class ReducePartialAttrs:
    """Runs of `chunk` elements along `axis` collapse to one each; the last may be short.

    `combine` is a name in `ops.reduce.COMBINERS`.
    """

    axis: int
    chunk: int
    combine: str
    propagate_nan: bool = True

    @property
    def axes(self) -> tuple[int, ...]:
        return (self.axis,)


@dataclass(frozen=True, slots=True)
class ScanAttrs:
    """Running `combine` (sum, prod, max, min) along `axis`.

    An exclusive scan leaves out the element itself and starts with the identity.
    """

    axis: int
    combine: str
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class ArgsortAttrs:
    """The axis to order, and the direction."""

    axis: int
    descending: bool = False


@dataclass(frozen=True, slots=True)
class ScatterAttrs:
    """What an update does to the row it hits: set, add, mul, max or min."""

    mode: str


@dataclass(frozen=True, slots=True)
class CompactAttrs:
    """The size of the result, which a run finds out, and how many elements one tile looks at."""

    size: Dim
    tile: int


@dataclass(frozen=True, slots=True)
class PositionsAttrs:
    """The size of the result, which a run finds out."""

    size: Dim


@dataclass(frozen=True, slots=True)
class SelectAttrs:
    """The same, and the axis that takes the place of those that a mask speaks of."""

    size: Dim
    axis: int


@dataclass(frozen=True, slots=True)
class GroupRowsAttrs:
    """How many groups there are, and how many positions a line of the result holds.

    `layer` says which layer of experts they are, for those who want to know what was routed where.
    """

    groups: Dim
    block: int
    layer: int | None = None


@dataclass(frozen=True, slots=True)
class GroupedMatmulAttrs:
    """Each row of x serves `repeat` rows of the result, of which there are `count`."""

    repeat: int
    count: Dim


@dataclass(frozen=True, slots=True)
class AttentionAttrs:
    """Which keys a query sees: query i those in [i + left, i + right], None without that end.

    With `from_length` both ends move by the length of the query's batch entry. A query that
    sees no key gives NaN, as its softmax does, or 0 with `zero_if_none`; with `zero_if_nan`
    every query whose weights are NaN gives 0.
    """

    left: Dim | None = None
    right: Dim | None = None
    from_length: bool = False
    zero_if_none: bool = False
    zero_if_nan: bool = False


@dataclass(frozen=True, slots=True)
class LoopAttrs:
    """`body` runs `trip` times; this node is result `output` of all that the loop computes.

    The body's inputs are named by the operands they stand for: "0", "1", ... The first
    `num_states` are states, the others captured values. Its outputs are the next states and then
    one value per stacked result, which goes to row `step`, or, where `backward` says so, to
    row `trip - 1 - step`. Results are the final states, then the stacked ones.

    With `has_condition` iterations run until the condition is false. The first condition is the
    operand behind the states, which no body reads; the next ones are the last output of the
    body. In that place among the results stands the number of iterations that ran. Rows of
    stacked results that no iteration came to are 0.

    Loops that stand in the body, at any depth, have a lower `level`: steps have names by level.
    """

    trip: Dim
    body: Graph
    num_states: int
    backward: tuple[bool, ...]
    output: int
    level: int = 0
    has_condition: bool = False

    @property
    def step(self) -> Index:
        """The number of the iteration, as the body's attributes name it."""
        return loop_step(self.trip, self.level)

    @property
    def num_values(self) -> int:
        """States and stacked results together: the place of the condition in the body's outputs."""
        return self.num_states + len(self.backward)

    @property
    def first_captured(self) -> int:
        """The place of the first captured value among the operands."""
        return self.num_states + self.has_condition


def loop_step(trip: Dim, level: int = 0) -> Index:
    """The counter of a loop of `trip` iterations."""
    return Index(step_name(level), trip)


def step_name(level: int) -> str:
    """What the counter of a loop is called, in bodies and kernels."""
    return f"_step{level}" if level else "_step"


def late_name(*numbers: int) -> str:
    """What a late variable is called in the body that makes it, by depth and number there."""
    return f"_late{'_'.join(map(str, numbers))}"


@dataclass(frozen=True, slots=True)
class CondAttrs:
    """Operand 0 says which body runs; this node is its result `output`.

    The bodies' inputs are named by the operands they stand for: "1", "2", ... Their outputs are
    of the same types.
    """

    then: Graph
    orelse: Graph
    output: int

"""What lowering makes of a group, and the vocabulary its rules share.

    Group --lower--> Lowered (a Kernel, and the node behind each of its buffers)
    a loop or a branch --lower--> Lowered of its regions, and those that run before and after it

Buffers are named by position, loop indices by counters, so that two groups that
compute the same thing on other tensors give equal kernels: six identical layers
compile once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from semel.ir.expr import Dim, Index, Variable, atoms, linear_coefficient, variables
from semel.ir.graph import Graph, Node
from semel.ir.signature import CheckInfo
from semel.ir.types import BOOL, TensorType
from semel.kernel import ir
from semel.kernel.ir import Buffer, Kernel, Statement, Value, statement_values, walk_values
from semel.kernel.rewrite import ValueMap, map_statements, substitute_indices
from semel.schedule.group import Group

#: A loop of so few steps is joined with the one around it, though tests then differ by lane.
SHORT_LOOP = 4


@dataclass(frozen=True, eq=False)
class LoopRegion:
    """A loop: its kernels run `trip` times, with `counter` as one of their variables.

    `body` is what an iteration computes, demands and finds out.
    With `has_condition`, only while the byte at `condition` is true.
    """

    counter: Variable
    trip: Dim
    has_condition: bool = False
    parent: Region | None = None
    body: Graph | None = None

    @property
    def condition(self) -> Slot | None:
        kind = TensorType((), BOOL)
        return Slot(self, "condition", kind, is_state=True) if self.has_condition else None


@dataclass(frozen=True, eq=False)
class Branch:
    """Two arms, of which one runs, as the byte at `condition` says."""

    condition: Argument


@dataclass(frozen=True, eq=False)
class Arm:
    """One arm of a branch; `body` is what it computes, demands and finds out."""

    branch: Branch
    is_then: bool
    parent: Region | None = None
    body: Graph | None = None


#: What kernels run in; regions are trees, and what is in none is part of the plan itself.
Region: TypeAlias = "LoopRegion | Arm"


@dataclass(frozen=True)
class Slot:
    """Memory that holds no node of the graph: a state, or a value of a body.

    A state lives as long as the loop (`is_state`), others for one run of their body at most.
    """

    region: Region
    name: str
    type: TensorType
    is_state: bool = False
    node: Node | None = None

    @property
    def owner(self) -> Region | None:
        """The region whose run begins before the value is first written and ends after its last
        use."""
        return self.region.parent if self.is_state else self.region


@dataclass(frozen=True)
class Elsewhere:
    """A weight as kernels on another device than the plan's own read it."""

    leaf: Node
    device: str

    @property
    def type(self) -> TensorType:
        return self.leaf.type


@dataclass(frozen=True)
class OtherHalf:
    """The second buffer of a state, in which its next value is made."""

    state: Node

    @property
    def type(self) -> TensorType:
        return self.state.type


#: What a kernel's buffer is: the value of a node, memory of a loop or a branch, or of a state.
Argument: TypeAlias = "Node | Slot | OtherHalf | Elsewhere"


@dataclass(frozen=True)
class Moved:
    """The kernel of a body before its buffers were moved, and how to move another in its place."""

    source: Lowered
    move: Callable[[Lowered], Lowered]


@dataclass(frozen=True)
class Lowered:
    """One kernel of a group; `args` say what its buffers are, in order.

    `choice` says, for people, how the kernel is cut and why so, if there was a choice.
    `text` is the kernel's, once somebody needed it: writing it takes a while.
    `has_lanes`: the rule has chosen how many lanes every vector loop has.
    In a body, `region` is the innermost one, and `moved` what the kernel was made from. `device` is
    where it runs, "" if that is the plan's own. What goes to another device `is_copy`: nothing is
    in the kernel then but its two buffers.
    """

    kernel: Kernel
    args: tuple[Argument, ...]
    group: Group
    choice: str = ""
    text: str = field(default="", compare=False, repr=False)
    has_lanes: bool = False
    region: Region | None = None
    moved: Moved | None = field(default=None, compare=False, repr=False)
    device: str = ""

    @property
    def is_copy(self) -> bool:
        return self.group.root.op.moves


def regions_around(region: Region | None) -> Iterator[Region]:
    """The region and those it is in, innermost first."""
    while region is not None:
        yield region
        region = region.parent


def nodes_of(lowered: Lowered) -> tuple[Node, ...]:
    """The arguments of a kernel that is in no body."""
    return tuple(arg for arg in lowered.args if isinstance(arg, Node))


@dataclass
class Names:
    """Fresh names: `i0, i1, ...`, the same for the same sequence of requests."""

    _counts: dict[str, int] = field(default_factory=dict)

    def __call__(self, prefix: str) -> str:
        number = self._counts.get(prefix, 0)
        self._counts[prefix] = number + 1
        return f"{prefix}{number}"

    def index(self, prefix: str, extent: Dim) -> Dim:
        """A loop index, or 0 where there is one element only."""
        return 0 if extent == 1 else Index(self(prefix), extent)


def make_buffers(outputs: Sequence[Node], reads: Sequence[Node]) -> dict[Node, Buffer]:
    """Buffers for a kernel's nodes, outputs first, named by position."""
    result: dict[Node, Buffer] = {}
    for access, nodes in (("w", outputs), ("r", reads)):
        for node in nodes:
            name = f"b{len(result)}"
            result[node] = Buffer(name, node.type.dtype, node.type.num_elements, access)
    return result


def kernel_variables(kernel_dims: Sequence[Dim], body: Sequence[Statement]) -> tuple[Variable, ...]:
    """All variables that a kernel's sizes and statements mention, sorted by name."""
    found: set[Variable] = set()
    for dim in (*kernel_dims, *all_dims(body)):
        found.update(variables(dim))
        for atom in atoms(dim):
            if isinstance(atom, Index):
                found.update(variables(atom.extent))
    return tuple(sorted(found, key=lambda v: v.name))


def all_dims(body: Sequence[Statement]) -> list[Dim]:
    """Every index expression in the statements: addresses, index values, loop bounds."""
    dims: dict[Dim, None] = {}
    roots: list[Value] = []
    for statement in ir.walk_statements(body):
        roots += statement_values(statement)
        match statement:
            case ir.Loop():
                dims[statement.start] = dims[statement.stop] = None
            case ir.Store():
                dims[statement.at] = None
            case ir.BlockDot():
                dims.update(dict.fromkeys(statement.dims))
    for value in walk_values(roots):
        if value.op == "index":
            dims[value.data] = None
        elif value.op in ("load", "word"):
            dims[value.data[1]] = None
    return [d for d in dims if not isinstance(d, int)]


def merge_loops(
    loops: Sequence[Index], body: Sequence[Statement], names: Names
) -> tuple[list[Index], tuple[Statement, ...]]:
    """Join neighbouring loops that walk memory as one; the statements use the new indices.

    Loops over (i, j) join where every address has i*extent(j) + j in it and nothing else
    of i and j, so that contiguous data of any rank is one loop. Tests of i alone (of a pad) hold
    for runs of the joined loop: where j is short, that is less work than a loop over it for each i.
    """
    result = list(loops)
    statements = tuple(body)
    position = len(result) - 2
    while position >= 0:
        a, b = result[position], result[position + 1]
        is_short = isinstance(b.extent, int) and b.extent <= SHORT_LOOP
        tested = _with_joined_tests(statements, a, b) if is_short else statements
        if all(_joins(dim, a, b) for dim in all_dims(tested)):
            joined = Index(names("j"), a.extent * b.extent)
            statements = substitute_indices(tested, {a: 0, b: joined})
            result[position : position + 2] = [joined]
        position -= 1
    return result, statements


def _with_joined_tests(body: Sequence[Statement], a: Index, b: Index) -> tuple[Statement, ...]:
    """The statements with tests of a alone said of a * extent(b) + b, which hold for the same."""

    def leaf(value: Value) -> Value:
        if value.op not in ("ge", "lt") or not all(v.op in ("index", "const") for v in value.args):
            return value
        if not all(v.dtype.is_integer for v in value.args):
            return value
        left, right = (v.data for v in value.args)
        difference: Dim = left - right
        if linear_coefficient(difference, a) != 1 or b in atoms(difference):
            return value
        # i + rest >= 0 where (i + rest) * extent + j >= 0, since 0 <= j < extent
        here, zero = ir.index(difference * b.extent + b), ir.index(0)
        return here >= zero if value.op == "ge" else here < zero

    return map_statements(body, ValueMap(leaf))


def _joins(dim: Dim, a: Index, b: Index) -> bool:
    found = atoms(dim)
    if a not in found and b not in found:
        return True
    first, second = linear_coefficient(dim, a), linear_coefficient(dim, b)
    if first is None or second is None:
        return False
    return first == second * b.extent


def split_rows(row: Dim, loops: Sequence[Index]) -> dict[Index, Dim]:
    """Each loop's index as a function of one flat row number."""
    result: dict[Index, Dim] = {}
    rest = row
    for position in range(len(loops) - 1, -1, -1):
        loop = loops[position]
        if position == 0:
            result[loop] = rest
        else:
            result[loop] = rest % loop.extent
            rest = rest // loop.extent
    return result


def finish_kernel(
    name: str,
    buffers: Sequence[Buffer],
    scratch: Sequence[Buffer],
    tile: Index,
    body: Sequence[Statement],
    checks: Sequence[CheckInfo],
    *,
    flops: Dim,
    notes: Sequence[str] = (),
) -> Kernel:
    """A Kernel with its variables and the bytes it must move."""
    if tile.extent == 1:
        body = substitute_indices(body, {tile: 0})
    moved: Dim = 0
    for buffer in buffers:
        moved = moved + buffer.size * buffer.dtype.size_bytes
    dims = [
        tile.extent, flops, moved, *(b.size for b in scratch), *(c.size for c in checks)
    ]  # fmt: skip
    return Kernel(
        name=name,
        buffers=tuple(buffers),
        scratch=tuple(scratch),
        variables=kernel_variables(dims, body),
        tile=tile,
        tiles=tile.extent,
        body=tuple(body),
        checks=tuple(checks),
        flops=flops,
        bytes=moved,
        notes=tuple(notes),
    )

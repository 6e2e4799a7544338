"""A group of nodes that one kernel computes, and the schedule made of groups.

    Graph --groups.build_schedule--> Schedule --lower--> kernels

Plain data: what decides is in `groups` and `siblings`, what reads it is in `lower`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from semel.ir.expr import Dim, Index, Variable
from semel.ir.graph import Graph, Node
from semel.ir.opdef import Contraction
from semel.ir.types import Shape
from semel.ops.index_maps import Indices, reshape_index
from semel.ops.state import stored_shape
from semel.schedule.reasons import Reason, Why

#: Terms of an index above which computing it costs more than storing what it selects from;
#: a chain of reshapes and permutes doubles them at every step.
MAX_INDEX_TERMS = 24
#: Scalar work above which an expression is kept rather than computed twice.
DEAR = 8
#: Far more than a fused kernel wants to read, store or compute per element.
MAX_INPUTS = 24
MAX_OUTPUTS = 8
MAX_WORK = 400
_WHERE = {"": "a loop", "then.": "a branch", "else.": "the other branch"}
#: Up to so many rows a contraction is bound by memory, not by arithmetic.
SKINNY_ROWS = 4


@dataclass(eq=False)
class Group:
    """Nodes computed by one kernel. `kind` is loops, contract or opaque.

    `reason` says why the root is not computed inside a kernel that wants it.
    `outputs` are stored to memory (the root first); `inside` is everything computed
    here; `reads` are the materialised nodes and leaves it loads. `loops` are the
    root's loop indices by axis (0 where the axis has size 1), or those of `walk`: the same elements
    in a shape with axes split; `outer` are those
    that fused reductions keep: the others run inside, once per phase. `rows` says at
    which index, in terms of the loops, each reduction is wanted. `device` is where all of it is
    computed, "" if that is the plan's own.
    """

    root: Node
    kind: str
    loops: Indices
    reason: Reason
    outputs: list[Node] = field(default_factory=list)
    inside: list[Node] = field(default_factory=list)
    reads: list[Node] = field(default_factory=list)
    reduces: list[Node] = field(default_factory=list)
    contract: Node | None = None
    scores: Node | None = None  # the contraction that makes an attention's scores
    keys: Dim = 0  # the loop over an attention's keys
    depth: Dim = 0  # the loop over which its scores add
    score_at: Indices = ()
    columns: Dim = 0  # the loop along the contraction's contiguous axis
    outer: frozenset[Index] | None = None
    rows: dict[Node, Indices] = field(default_factory=dict)
    work: int = 0
    body: LoopBody | BranchBody | None = None  # what a loop repeats, a branch chooses from
    device: str = ""
    walk: Shape | None = None

    @property
    def shape(self) -> Shape:
        """The shape of what is computed: of the update of a state, its new elements."""
        return stored_shape(self.root) if self.walk is None else self.walk

    def place(self, node: Node, at: Indices) -> Indices:
        """The index into an output of the element that the loops are at."""
        shape = stored_shape(node)
        if self.walk is None or shape == self.walk:
            return at
        return reshape_index(at, self.walk, shape)

    @property
    def bodies(self) -> tuple[tuple[str, Schedule], ...]:
        """The schedules of a loop's or a branch's bodies, and what each is called in numbers."""
        match self.body:
            case LoopBody(schedule):
                return (("", schedule),)
            case BranchBody(then, orelse):
                return (("then.", then), ("else.", orelse))
        return ()

    @property
    def is_attention(self) -> bool:
        """Whether the contraction is one of weights that are a softmax."""
        return self.contraction is not None and self.contraction.is_attention

    @property
    def contraction(self) -> Contraction | None:
        """What the op of the contraction says of itself."""
        return None if self.contract is None else self.contract.op.contraction


@dataclass(frozen=True)
class LoopBody:
    """A loop's body, scheduled. Its graph's outputs are the outputs `kept` of the loop's.

    In the body the number of the iteration is the variable `counter`. If the loop has a condition,
    one more output is the number of iterations that have run.
    """

    schedule: Schedule
    kept: tuple[int, ...]
    counter: Variable


@dataclass(frozen=True)
class BranchBody:
    """The two bodies of a branch, scheduled; their outputs are the results `kept` of it."""

    then: Schedule
    orelse: Schedule
    kept: tuple[int, ...]


@dataclass(frozen=True)
class StateRule:
    """How a state is updated: `versions` are the leaf and its updates, in order.

    If it `is_double`, the next value is made in a second buffer, and the two change places when a
    run succeeds; else all versions lie in one. `why` says why that is.
    """

    name: str
    versions: tuple[Node, ...]
    is_double: bool
    why: Why


@dataclass(frozen=True)
class Schedule:
    """Groups in execution order, and `reasons` in the order in which they were found.

    Reasons of the bodies of loops and branches are those of their own schedules. `states` are those
    that are updated.
    """

    graph: Graph
    groups: tuple[Group, ...]
    reasons: tuple[Reason, ...]
    states: tuple[StateRule, ...] = ()

    @property
    def log(self) -> tuple[str, ...]:
        """The reasons for people, those of bodies last."""
        bodies = [pair for group in self.groups for pair in group.bodies]
        inner = [f"in {_WHERE[name]}: {line}" for name, body in bodies for line in body.log]
        return (*map(str, self.reasons), *inner)

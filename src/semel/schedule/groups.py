"""Graph to Schedule: which nodes are computed together, in one kernel each.

    Graph --build_schedule--> Schedule (groups in an order that can run)

One sweep over the graph, users before operands. Every node learns which groups
want it and *at which index of their loops*, by the index maps of `ops`. It is then
either **inlined** (computed where it is wanted), **fused** as a reduction or a
contraction inside the one group that wants it, **hosted** (fused, and also stored
because others want it), or **materialised**: it becomes the root of a new group.

    softmax: the root e/s loops over (row, col). s is wanted at (row,), which names
    loops of the root only, so its sum becomes a loop inside each row; so does max.

Invariants: a group never depends on itself through others; every element of a
fused reduction or contraction is computed once; groups are in topological order.
`Group.reason` says for every root why it was not computed in a group that wants it.

One idea: one sweep that decides for each node where it is computed; the questions it asks of a node
share what it has found so far.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any, TypeAlias

from semel.ir.expr import (
    Dim,
    Index,
    LateVariable,
    Variable,
    atoms,
    ceildiv,
    evaluate,
    is_nonnegative,
    linear_coefficient,
    product,
    substitute,
    upper_bound,
    variables,
)
from semel.ir.graph import Graph, Node, attr_dims, make_node, users
from semel.ir.types import INT64, Shape
from semel.ops.attrs import IotaAttrs, LoopAttrs, ReshapeAttrs, step_name
from semel.ops.bodies import replace_steps, result_key, some_outputs
from semel.ops.contract import PanelWidth, one_width
from semel.ops.filled import spread_numbers
from semel.ops.index_maps import Indices, flat_index, no_gather, operand_index, reshape_runs
from semel.ops.loop import live_loop
from semel.ops.movement import MANY_PARTS
from semel.ops.narrow_weights import is_widened
from semel.ops.outputs import copy_leaf_outputs
from semel.ops.state import has_places, stored_shape
from semel.schedule import reasons as why
from semel.schedule.group import (
    DEAR,
    MAX_INDEX_TERMS,
    MAX_INPUTS,
    MAX_OUTPUTS,
    MAX_WORK,
    SKINNY_ROWS,
    BranchBody,
    Group,
    LoopBody,
    Schedule,
)
from semel.schedule.group_order import order_groups
from semel.schedule.products import count_terms, summed_product, views_below
from semel.schedule.reasons import Reason, Why
from semel.schedule.siblings import merge_siblings
from semel.schedule.states import Conflict, order_states, resolve_conflict

#: Columns up to which a matmul computes its left operand itself, row by row: two tiles.
STAGED_COLUMNS = 256
#: A reduction to few rows is only worth fusing while one thread can do it quickly.
SERIAL_ELEMENTS = 1 << 18

#: From how many uses of an element on it is worth a thought to store it, and how much work, beside
#: what windows do anyway, is worth a kernel of its own.
OFTEN, DEAR_WINDOW = 1.5, 24

#: Nodes above a reduction, up to which it is looked for.
MAX_ABOVE = 32
#: Elements of a last axis from which on vectors along it are worth loops of their own.
SHORTEST_WALK = 16

#: Elements that neighbouring lanes may lie apart and still share cache lines.
NEAR = 4
#: The value of a variable where costs are compared.
_USUAL = 64

#: Finds the device of each node of a graph.
FindDevices: TypeAlias = Callable[[Graph], Mapping[Node, str]]

_ANY_WIDTH = one_width(32)
_NO_OTHERS: Mapping[str, PanelWidth] = MappingProxyType({})


def build_schedule(
    graph: Graph,
    *,
    fusion: bool = True,
    panel: PanelWidth = _ANY_WIDTH,
    stored: Why = why.IS_OUTPUT,
    kept: Collection[str] = (),
    devices: FindDevices | None = None,
    panels: Mapping[str, PanelWidth] = _NO_OTHERS,
) -> Schedule:
    """Decide what is computed together; without fusion every node is a kernel of its own.

    `panel` says how many columns of a contraction lowering takes at once, `stored` why the
    graph's outputs are wanted in memory; those named in `kept` are because they are kept.
    `devices` finds the device of each node, if they are not all on the plan's own; `panels` are
    those of devices that take other numbers of columns.
    """
    forced: dict[Node, Why] = {}
    graph = spread_numbers(graph)
    while True:
        whys = [why.TELLS_SIZE] * len(graph.late)
        names = graph.names[len(graph.late) :]
        whys += [why.IS_KEPT if name in kept else stored for name in names]
        try:
            places = {} if devices is None else devices(graph)
            return _Scheduler(graph, fusion, panel, whys, forced, places, panels).run()
        except Conflict as conflict:
            graph, forced = resolve_conflict(graph, conflict, forced)


def _number(dim: Dim, loop: Node) -> Node:
    """A dim as data, for a loop."""
    by = loop.made_by or loop.op.name
    counted = make_node("iota", (), IotaAttrs((1,), 0, INT64, dim), made_by=by)
    return make_node("reshape", (counted,), ReshapeAttrs(()), made_by=by)


@dataclass(eq=False)
class _Wanted:
    """What the sweep knows of a node: who wants it, at which indices, and how."""

    by: dict[Group, dict[Indices, None]] = field(default_factory=dict)
    is_forced: bool = False
    why: Why | None = None


class _Scheduler:
    """One idea: the state of one sweep, and a method for each question about a node."""

    def __init__(
        self,
        graph: Graph,
        fusion: bool,
        panel: PanelWidth,
        whys: Sequence[Why],
        forced: Mapping[Node, Why],
        devices: Mapping[Node, str],
        panels: Mapping[str, PanelWidth],
    ) -> None:
        self.devices, self.panels = devices, panels
        self.graph, self.fusion, self.panel, self.whys = graph, fusion, panel, whys
        self.forced = forced
        self.wanted: dict[Node, _Wanted] = {n: _Wanted() for n in graph.nodes}
        self.users = users(graph.nodes)
        self.home: dict[Node, Group] = {}
        self.groups: list[Group] = []
        self.depends: dict[Group, set[Group]] = {}
        self.reasons: list[Reason] = []
        self.weight = _weights(graph)
        self.epilogues = _epilogues(graph, self.users)
        self.bodied: dict[Any, Group] = {}
        self.counts = graph.counts
        self.sized: dict[LateVariable, dict[Group, None]] = {v: {} for v in graph.late}
        #: Products that groups add up, and views of them, with the indices that sums want.
        self.summed: dict[Node, dict[Group, dict[Indices, None]]] = {}
        self._counter = 0

    def run(self) -> Schedule:
        for node, reason in zip(self.graph.outputs, self.whys, strict=True):
            self.wanted[node].is_forced = True
            self.wanted[node].why = self.wanted[node].why or reason
        versions = self.graph.versions
        updates = dict.fromkeys((n for v in versions.values() for n in v[1:]), why.UPDATES_STATE)
        for node, cause in (*self.forced.items(), *updates.items()):
            self.wanted[node].is_forced, self.wanted[node].why = True, cause
        for node in reversed(self.graph.nodes):
            self._visit(node)
        states = order_states(
            versions, self.home, self.depends, self._reaches, self._read_at, self.forced
        )
        for group in self.groups:
            group.inside.reverse()
            group.reduces.reverse()
        if self.fusion:
            for kept, gone, cause in merge_siblings(self.groups, self.depends):
                self.reasons.append(Reason(gone.root, cause, joins=kept.root))
        for group in self.bodied.values():
            group.body = self._body(group)
        return Schedule(self.graph, self._order(), tuple(self.reasons), states)

    def _read_at(self, version: Node) -> dict[Group, list[Indices]]:
        """The groups that read a version of a state, and at which indices."""
        return {group: list(at) for group, at in self.wanted[version].by.items()}

    # ------------------------------------------------------------ one node

    def _visit(self, node: Node) -> None:
        if node.op.kind == "leaf":
            for group in self.wanted[node].by:
                if not node.op.is_literal:
                    group.reads.append(node)
            return
        wanted = self.wanted[node]
        if not wanted.is_forced and not wanted.by:
            return
        if node.op.has_bodies:
            self._visit_bodied(node)
            return
        host = None if node in self.forced else self._choose_host(node, wanted)
        is_shared = len(wanted.by) > 1
        if wanted.is_forced or host is None or (is_shared and not self._recompute(node)):
            if host is not None and self._may_host(node, host):
                self._place(node, host)
                self._leave_to_sums(node, host)
                self._materialise(node, host)
                return
            self._leave_to_sums(node)
            if wanted.is_forced or wanted.by:
                self._materialise(node, self._new_group(node))
            return
        for group in wanted.by:
            self._place(node, group)

    # ------------------------------------------------------------ loops and branches

    def _visit_bodied(self, node: Node) -> None:
        """Results of one loop or branch are one group, since they have the same operands."""
        group = self.bodied.get(result_key(node))
        if group is None:
            self.wanted[node].why = self.wanted[node].why or why.own_group(node.op.name)
            group = self.bodied[result_key(node)] = self._new_group(node)
        else:
            group.inside.append(node)
        self._materialise(node, group)

    def _body(self, group: Group) -> LoopBody | BranchBody:
        wanted = tuple(sorted(n.attrs.output for n in group.outputs))
        attrs = group.root.attrs
        if isinstance(attrs, LoopAttrs):
            return self._loop_body(group, attrs, wanted)
        then, orelse = (
            self._inner(some_outputs(body, wanted), why.RESULT_OF_BRANCH, group)
            for body in (attrs.then, attrs.orelse)
        )
        return BranchBody(then, orelse, wanted)

    def _loop_body(self, group: Group, attrs: LoopAttrs, wanted: tuple[int, ...]) -> LoopBody:
        body, kept = live_loop(attrs, wanted)
        last = upper_bound(attrs.trip)
        counter = Variable(step_name(attrs.level), 0, None if last is None else max(last - 1, 0))
        body = replace_steps(body, {attrs.step: counter})
        if attrs.has_condition:
            body = body.with_values((*body.values, _number(counter + 1, group.root)))
        return LoopBody(self._inner(body, why.LEFT_BY_ITERATION, group), kept, counter)

    def _inner(self, body: Graph, stored: Why, group: Group) -> Schedule:
        panel = self._panel(group)
        return build_schedule(
            copy_leaf_outputs(body), fusion=self.fusion, panel=panel, stored=stored
        )

    def _panel(self, group: Group) -> PanelWidth:
        """How many columns a contraction takes at once where the group is computed."""
        return self.panels.get(group.device, self.panel)

    def _choose_host(self, node: Node, wanted: _Wanted) -> Group | None:
        """A group inside which the node can be computed, or None with the reason noted."""
        if not self.fusion:
            wanted.why = wanted.why or why.FUSION_OFF
            return None
        refusal: Why | None = why.UNWANTED
        for group, indices in wanted.by.items():
            refusal = self._why_not(node, group, list(indices))
            if refusal is None:
                return group
        wanted.why = wanted.why or refusal
        return None

    def _why_not(self, node: Node, group: Group, indices: list[Indices]) -> Why | None:
        """None if `node` may be computed inside `group`, else the reason it may not."""
        if node.op.moves:
            return why.GOES_ELSEWHERE
        if node.op.kind in ("opaque", "update"):
            return why.own_kernel(node.op.name)
        if group.kind == "opaque":
            return why.whole_operand(group.root.op.name)
        if len(group.reads) >= MAX_INPUTS or group.work > MAX_WORK:
            return why.TOO_LARGE
        if self._is_joined_again(node):
            return why.JOINED_AGAIN
        if any(count_terms(i) > MAX_INDEX_TERMS for at in indices for i in at):
            return why.DEAR_INDEX
        if node.op.kind == "reduce":
            return self._why_not_reduce(node, group, indices)
        if node.op.kind == "contract":
            return self._why_not_contract(node, group, indices)
        if group.contract is not None and self._is_operand(node, group, indices):
            return self._why_not_operand(node, group, indices)
        if group.outer is not None and node in self.epilogues:
            return why.FOLLOWS_CONTRACTION
        if self.weight[node] >= DEAR and len(indices) > 3:
            return why.many_indices(len(indices))
        is_dear = self.weight[node] >= DEAR or _repeats_side_by_side(node)
        if is_dear and self._is_repeated(group, indices[0]):
            return why.REPEATED
        if node.op.kind == "elementwise" and self._is_asked_often(node, indices):
            return why.ASKED_OFTEN
        return None

    def _is_joined_again(self, node: Node) -> bool:
        """Whether it is a step of a concatenation: one kernel for all of its parts is too much."""
        if node.op.parts is None or len(node.inputs) <= MANY_PARTS:
            return False
        return any(user.op.parts is not None for user in self.users[node])

    def _is_asked_often(self, node: Node, indices: list[Indices]) -> bool:
        """Whether windows ask for each element again and again, and to store it costs less.

        A contraction that it follows stores something in any case.
        """
        often = max(_times_asked(at, node) for at in indices)
        if often < OFTEN or self._loads(node) == 0:
            return False
        return self.weight[node] * (often - 1) >= DEAR_WINDOW or self._follows_kernel(node)

    def _is_repeated(self, group: Group, at: Indices) -> bool:
        """Whether loops that the value does not depend on lie outside those it does."""
        used = frozenset().union(*(atoms(i) for i in at))
        loops = [i for i in group.loops if isinstance(i, Index)]
        if not used or any(a not in loops for a in used if isinstance(a, Index)):
            return False
        last_used = max((n for n, i in enumerate(loops) if i in used), default=-1)
        return any(i not in used and (upper_bound(i.extent) or 2) > 1 for i in loops[:last_used])

    # ------------------------------------------------------------ reductions

    def _why_not_reduce(self, node: Node, group: Group, indices: list[Indices]) -> Why | None:
        if any(n.attrs.chunk is not None for n in (node, *group.reduces)):
            return why.PARTIAL
        if group.contract is not None:
            return why.BESIDE_CONTRACTION
        if len(indices) != 1:
            return why.many_indices(len(indices))
        kept = [i for d, i in enumerate(indices[0]) if d not in node.attrs.axes]
        names = [i for i in kept if isinstance(i, Index)]
        if any(not isinstance(i, Index) and i != 0 for i in kept):
            return why.OTHER_LOOPS
        if len(set(names)) != len(names) or any(i not in group.loops for i in names):
            return why.OTHER_LOOPS
        if not _stays_inside(indices[0], node, node.attrs.axes):
            return why.LONGER_LOOPS
        if self._slides_across(node, group, indices[0]):
            return why.WINDOWS_ACROSS
        if _stores_across(node, group, names):
            return why.STORED_ACROSS
        outer = frozenset(names)
        if group.outer is not None and outer != group.outer:
            return why.OTHER_ROWS
        inner: Dim = product(
            i.extent for i in group.loops if isinstance(i, Index) and i not in outer
        )
        reduced = product(node.inputs[0].type.shape[a] for a in node.attrs.axes)
        rows = upper_bound(product(i.extent for i in names))
        largest = max(upper_bound(reduced) or SERIAL_ELEMENTS, upper_bound(inner) or 0)
        if (rows is None or rows < 4) and largest >= SERIAL_ELEMENTS:
            return why.ONE_THREAD
        return None

    def _why_not_contract(self, node: Node, group: Group, indices: list[Indices]) -> Why | None:
        if group.contract is not None:
            return self._why_not_scores(node, group, indices)
        if group.reduces or group.outer is not None:
            return why.BESIDE_REDUCTION
        if len(indices) != 1 or not _is_identity(indices[0], group):
            return why.NOT_ONE_BY_ONE
        if not _stays_inside(indices[0], node):
            return why.BEYOND_ELEMENTS
        return None

    def _slides_across(self, node: Node, group: Group, at: Indices) -> bool:
        """Whether windows are read far apart here, but side by side in an order of their own."""
        operand, axes = node.inputs[0], node.attrs.axes
        if not _is_window_view(operand):
            return False
        fresh = tuple(
            self._fresh(operand.type.shape[d]) if d in axes else 0 for d in range(len(at))
        )
        here = tuple(f if d in axes else i for d, (f, i) in enumerate(zip(fresh, at, strict=True)))
        own = tuple(
            f if d in axes else self._fresh(n)
            for d, (f, n) in enumerate(zip(fresh, node.type.shape, strict=True))
        )
        return not _is_near(operand, here, _last_loop(group)) and _is_near(operand, own, own[-1])

    def _why_not_scores(self, node: Node, group: Group, indices: list[Indices]) -> Why | None:
        """Whether the contraction can make the scores of the group's attention."""
        contraction = node.op.contraction
        assert group.contract is not None and contraction is not None
        if not group.is_attention or group.scores is not None or not contraction.makes_scores:
            return why.SECOND_CONTRACTION
        if node.type.dtype.compute != group.contract.type.dtype.compute:
            return why.other_dtype(group.contract.type.dtype.compute)
        if len(indices) != 1 or indices[0] != group.score_at:
            return why.SCORES_APART
        return None

    def _is_operand(self, node: Node, group: Group, indices: list[Indices]) -> bool:
        """Whether the node is read inside the contraction's own loop."""
        loops = {i for i in group.loops if isinstance(i, Index)}
        used = {a for at in indices for i in at for a in atoms(i) if isinstance(a, Index)}
        if isinstance(group.keys, Index) and group.columns not in used:
            loops.add(group.keys)  # scores are computed element by element, like an epilogue
        return not used <= loops

    def _why_not_operand(self, node: Node, group: Group, indices: list[Indices]) -> Why | None:
        if group.is_attention:
            return self._why_not_attended(node, group, indices)
        if self._is_staged(group, indices):
            return self._why_not_staged(node, group, indices)
        if node.op.kind == "elementwise" and self._is_widened_weight(node, group):
            return None if len(indices) == 1 else why.many_indices(len(indices))
        if not node.op.is_view:
            return why.OPERAND
        if len(indices) != 1 or not self._is_fast_view(node, group, indices[0]):
            return why.SLOW_VIEW
        return None

    def _is_widened_weight(self, node: Node, group: Group) -> bool:
        """Whether the contraction can widen these weights in its registers as it reads them."""
        return group.contraction is not None and group.contraction.widens and is_widened(node)

    def _is_staged(self, group: Group, indices: list[Indices]) -> bool:
        """Whether the node is of the left operand, and that may be written to scratch first.

        Products of bytes always do; others where few blocks of columns read the same rows.
        """
        if group.contract is None or any(group.columns in atoms(i) for at in indices for i in at):
            return False
        assert group.contraction is not None
        if group.contraction.stages == "narrow":
            rows, columns = group.contract.type.shape[-2:]
            is_skinny = isinstance(rows, int) and rows <= SKINNY_ROWS
            is_narrow = isinstance(columns, int) and columns <= STAGED_COLUMNS
            return is_narrow and not is_skinny
        return group.contraction.stages == "always"

    def _why_not_staged(self, node: Node, group: Group, indices: list[Indices]) -> Why | None:
        """Each element is computed once a tile: cheap ones may be, and straight reads."""
        if self._loads(node) == 0:
            return None  # a number, wherever it is wanted
        if len(indices) != 1:
            return why.many_indices(len(indices))
        if node.op.kind == "elementwise":
            dear = self.weight[node] >= DEAR
            if self._follows_kernel(node):
                return why.FOLLOWS_KERNEL
            return why.REPEATED_BY_COLUMNS if dear else None
        if not node.op.is_view and node.op.gathers != "rows":
            return why.OPERAND
        at = operand_index(node, 0, indices[0], self._gathered)
        flat = flat_index(at, node.inputs[0].type.shape)
        loops = [a for a in atoms(flat) if isinstance(a, Index)]
        inner = [a for a in loops if a not in group.loops]
        strides = [linear_coefficient(flat, a) for a in loops]
        straight = not inner or any(linear_coefficient(flat, a) == 1 for a in inner)
        return None if straight and None not in strides else why.CROOKED_ROWS

    def _follows_kernel(self, node: Node) -> bool:
        """Whether a contraction, or a reduction of rows, has a kernel that can compute it too."""
        stack, steps = list(node.inputs), 0
        while stack and steps < 64:
            steps += 1
            operand = stack.pop()
            if operand.op.kind == "contract":
                return True
            if operand.op.kind == "reduce" and operand.type.num_elements != 1:
                return True
            if operand.op.kind in ("elementwise", "movement"):
                stack.extend(operand.inputs)
        return False

    def _why_not_attended(self, node: Node, group: Group, indices: list[Indices]) -> Why | None:
        """Whether an attention can compute its queries, keys or values where it reads them.

        Queries are copied to scratch once a tile, whatever they are; keys and values are
        read row by row, from anywhere that rows are contiguous: through a table of
        blocks, or from what is concatenated.
        """
        used = {a for at in indices for i in at for a in atoms(i)}
        is_query = group.keys not in used
        if is_query and node.op.kind == "elementwise":
            is_cheap = self.weight[node] < DEAR and node not in self.epilogues
            return None if is_cheap else why.QUERIES
        source = node.inputs[0].type.dtype if node.op.converts else None
        widens = source is not None and (source.is_half or source.is_narrow)
        if widens or node.op.gathers == "rows":
            return None
        if node.op.parts is not None and len(node.inputs) == 2:
            return None
        if not node.op.is_view:
            return why.ATTENDED
        for at in indices:  # of one tensor that is both keys and values there are two
            is_row = any(group.keys in atoms(i) for i in at)
            if is_row and not self._has_rows(node, group, at):
                return why.NO_ROWS
        return None

    def _has_rows(self, node: Node, group: Group, at: Indices) -> bool:
        """Whether keys or values, read through the view, lie in contiguous rows (or columns).

        The view itself must have them, or what lies below all views that follow.
        """
        along = group.columns if group.columns in {a for i in at for a in atoms(i)} else group.depth
        at, base = operand_index(node, 0, at, no_gather), node.inputs[0]
        while True:
            flat = flat_index(at, base.type.shape)
            if not isinstance(along, Index) or linear_coefficient(flat, along) == 1:
                return True
            if along == group.depth and isinstance(group.keys, Index):
                is_turned = linear_coefficient(flat, group.keys) == 1
                if is_turned and linear_coefficient(flat, along) is not None:
                    return True
            if not base.op.is_view:
                return False
            at, base = operand_index(base, 0, at, no_gather), base.inputs[0]

    def _is_fast_view(self, node: Node, group: Group, at: Indices) -> bool:
        """Whether reading through the view gives addresses that a contraction can stream."""
        columns, lane = group.columns, Index("lane", 1)
        if isinstance(columns, Index) and any(columns in atoms(i) for i in at):
            # Lowering walks columns panel by panel; packed operands are affine in these terms.
            assert group.contract is not None and group.contraction is not None
            bits = group.contraction.column_bits or group.contract.type.dtype.compute.bits
            width = self._panel(group)(columns.extent, bits)
            lane = Index("lane", width)
            panel = Index("panel", ceildiv(columns.extent, width))
            at = tuple(substitute(i, {columns: panel * width + lane}) for i in at)
        # One step only: what lies below may be stored in an order that suits.
        at, base = operand_index(node, 0, at, no_gather), node.inputs[0]
        flat = flat_index(at, base.type.shape)
        loops = {a for a in atoms(flat) if isinstance(a, Index)}
        if any(linear_coefficient(flat, a) is None for a in loops):
            return False
        return lane not in loops or linear_coefficient(flat, lane) == 1

    # ------------------------------------------------------------ placing

    def _recompute(self, node: Node) -> bool:
        """Whether several groups should each compute the node for themselves."""
        wanted = self.wanted[node]
        wanted.why = self._why_not_twice(node, wanted)
        return wanted.why is None

    def _why_not_twice(self, node: Node, wanted: _Wanted) -> Why | None:
        if node.op.kind in ("reduce", "contract"):
            return why.many_kernels(len(wanted.by))
        for group, indices in wanted.by.items():
            refusal = self._why_not(node, group, list(indices))
            if refusal is not None:
                return refusal
        cheap = self.weight[node] < DEAR and self._loads(node) <= 1
        cheap = cheap or all(self._is_widened_weight(node, g) for g in wanted.by)
        cheap = cheap or self._is_stored_below(node) or _is_window_view(node)
        return None if cheap else why.many_kernels(len(wanted.by))

    def _is_stored_below(self, node: Node) -> bool:
        """Whether a contraction stores what the node only gives another shape.

        A kernel of its own would keep what follows the contraction from its registers.
        """
        if not node.op.keeps_order:
            return False
        operand = node.inputs[0]
        is_computed = operand.op.kind == "elementwise" and self._follows_kernel(operand)
        return operand.op.kind == "contract" or is_computed

    def _loads(self, node: Node) -> int:
        """How many tensors computing the node reads, up to 2."""
        found: set[Node] = set()
        stack, steps = [node], 0
        while stack and len(found) < 2 and steps < 64:
            steps += 1
            for operand in stack.pop().inputs:
                if operand.op.kind in ("leaf", "reduce", "contract", "opaque", "update"):
                    if not operand.op.is_literal:
                        found.add(operand)
                else:
                    stack.append(operand)
        return len(found) if steps < 64 else 2

    def _may_host(self, node: Node, host: Group) -> bool:
        """Whether `host` may also store the node: same elements, and no cycle of groups."""
        indices = self.wanted[node].by[host]
        if node.op.kind == "reduce":
            rows = _kept(next(iter(indices)), node)
            if any((1 if i == 0 else i.extent) != d for i, d in rows):
                return False
        elif not all(_is_full(at, host, node) for at in indices):
            return False
        if host.kind == "contract" or host.contract is not None:
            return False
        if len(host.outputs) >= MAX_OUTPUTS:
            return False
        sized = self._sized_by(node)
        others = [g for g in (*self.wanted[node].by, *sized) if g is not host]
        return host not in sized and not any(self._reaches(host, g) for g in others)

    def _sized_by(self, node: Node) -> list[Group]:
        """Groups with a late variable that the node tells: it must be known before they run."""
        return [g for v in self.counts.get(node, ()) for g in self.sized[v]]

    def _reaches(self, start: Group, goal: Group) -> bool:
        """Whether `start` needs results of `goal`, directly or through others."""
        seen, stack = {start}, [start]
        while stack:
            for group in self.depends[stack.pop()]:
                if group is goal:
                    return True
                if group not in seen:
                    seen.add(group)
                    stack.append(group)
        return False

    def _new_group(self, root: Node) -> Group:
        loops: list[Dim] = []
        walk = self._finer_shape(root) if self.fusion else None
        for dim in stored_shape(root) if walk is None else walk:
            self._counter += 1
            loops.append(0 if dim == 1 else Index(f"i{self._counter}", dim))
        kind = root.op.kind if root.op.kind in ("opaque", "contract") else "loops"
        kind = "opaque" if root.op.kind == "update" and has_places(root) else kind
        cause = self.wanted[root].why
        assert cause is not None, f"{root!r} starts a kernel for no reason"
        where = self.devices.get(root, "")
        group = Group(root, kind, tuple(loops), Reason(root, cause), device=where, walk=walk)
        self.groups.append(group)
        self.reasons.append(group.reason)
        self.depends[group] = set()
        self.wanted[root].by.setdefault(group, {})[group.place(root, group.loops)] = None
        self._place(root, group)
        return group

    def _finer_shape(self, root: Node) -> Shape | None:
        """The root's shape with axes split, where that spares a division for every element.

        Rows of that shape may be what reductions below keep: the channels of a group norm are split
        into groups; each group's mean is wanted for all that it has. Or a reshape merges axes that
        a permute has put side by side, as heads are joined. Or a contraction has the axes, and its
        elements are wanted one by one then: the channels of a grouped convolution.
        """
        contracted = _axes_of_last(self._way_to_contraction(root))
        if any(sum(dim != 1 for dim in axes) > 1 for axes in contracted):
            return tuple(dim for axes in contracted for dim in axes)
        if root.op.kind != "elementwise" and not root.op.keeps_order:
            return None
        shape, seen, stack = root.type.shape, {root}, [root]
        has_rows = _has_row_values(root)
        while stack and len(seen) < MAX_ABOVE:
            node = stack.pop()
            if node.op.keeps_order:
                below = node.inputs[0]
                if not _splits(shape, below.type.shape):
                    continue
                if _has_row_values(below):
                    return below.type.shape
                # Rows that a reduction keeps are loops of the root's own shape.
                if not has_rows and _merges_turned(shape, below):
                    return below.type.shape
            elif node.op.kind == "elementwise":
                same = [n for n in node.inputs if n.type.shape == shape and n not in seen]
                seen.update(same)
                stack += same
        return None

    def _way_to_contraction(self, root: Node) -> list[Node]:
        """The nodes from the root down to a contraction that only it wants; none if there is none.

        What lies between gives elements another place, or computes with each alone.
        """
        ways, seen = [[root]], 0
        while ways and seen < MAX_ABOVE:
            way = ways.pop()
            node, seen = way[-1], seen + 1
            if node.op.kind == "contract":
                return way
            is_moved = node.op.keeps_order or node.op.name == "permute"
            below = node.inputs if is_moved or node.op.kind == "elementwise" else ()
            if node.op.kind == "update" and not has_places(node):
                below = node.inputs[1:2]
            for operand in below:
                is_own = len(self.users[operand]) == 1 and not self.wanted[operand].is_forced
                if is_own and (is_moved or operand.type.shape == stored_shape(node)):
                    ways.append([*way, operand])
        return []

    def _materialise(self, node: Node, group: Group) -> None:
        """`node` is stored by `group`; whoever else wants it reads it from memory."""
        group.outputs.append(node)
        self.home[node] = group
        for user in self.wanted[node].by:
            if user is not group:
                user.reads.append(node)
                self.depends[user].add(group)
        for user in self._sized_by(node):
            self.depends[user].add(group)

    def _leave_to_sums(self, node: Node, host: Group | None = None) -> None:
        """Let groups add up a product, or a view of one, that others store: from its operands."""
        by = self.wanted[node].by
        for group, indices in self.summed.get(node, {}).items():
            if group is not host:
                self._place(node, group, list(indices))
                if by[group].keys() == indices.keys():
                    del by[group]

    def _place(self, node: Node, group: Group, indices: Sequence[Indices] | None = None) -> None:
        """Compute `node` inside `group`, where it is wanted or at these indices, and tell its
        operands at which."""
        group.inside.append(node)
        group.work += node.op.cost
        for variable in _late_variables(node) & self.sized.keys() if self.sized else ():
            self.sized[variable][group] = None
        for at in list(self.wanted[node].by[group]) if indices is None else indices:
            if node.op.kind == "reduce":
                self._want_reduced(node, group, at)
            elif node.op.kind == "contract" and group.contract is not None:
                self._want_scores(node, group, at)
            elif node.op.kind == "contract":
                self._want_contracted(node, group, at)
            elif group.kind == "opaque":
                self._want_from_memory(node, group)
            elif node.op.kind == "update":
                self._want(node.inputs[1], group, at)  # the old elements stay where they are
            else:
                for k, operand in enumerate(node.inputs):
                    index = operand_index(node, k, at, self._gathered)
                    self._want(operand, group, index)
                if node.op.slides and group.reduces:
                    self._straighten(node, group, at)

    def _straighten(self, window: Node, group: Group, at: Indices) -> None:
        """Store what windows would read again and again in another order than it lies in."""
        operand = window.inputs[0]
        if operand.op.kind == "movement" and not _is_near(window, at, _last_loop(group)):
            self.wanted[operand].is_forced = True
            self.wanted[operand].why = why.WINDOWS_OFTEN

    def _want(self, node: Node, group: Group, at: Indices) -> None:
        self.wanted[node].by.setdefault(group, {})[at] = None

    def _gathered(self, node: Node, at: Indices) -> Dim:
        axis = node.attrs.axis
        name = f"g{node.id}_" + "_".join(str(i) for i in at)
        return Index(name, node.inputs[0].type.shape[axis])

    def _fresh(self, dim: Dim) -> Dim:
        self._counter += 1
        return 0 if dim == 1 else Index(f"r{self._counter}", dim)

    def _want_reduced(self, node: Node, group: Group, at: Indices) -> None:
        group.reduces.append(node)
        shape, axes = node.inputs[0].type.shape, node.attrs.axes
        is_kept = [d not in axes or node.attrs.chunk is not None for d in range(len(at))]
        group.rows[node] = tuple(i if kept else 0 for i, kept in zip(at, is_kept, strict=True))
        if node is not group.root or group.outer is None:
            group.outer = frozenset(i for i in group.rows[node] if isinstance(i, Index))
        index = tuple(self._fresh(shape[d]) if d in axes else i for d, i in enumerate(at))
        self._want(node.inputs[0], group, index)
        for each, place in views_below(node, index) if summed_product(node) else ():
            self.summed.setdefault(each, {}).setdefault(group, {})[place] = None

    def _want_contracted(self, node: Node, group: Group, at: Indices) -> None:
        group.contract = node
        group.kind = "contract"
        group.columns = at[-1]
        contraction = node.op.contraction
        assert contraction is not None
        inner, indices = contraction.wanted(node, at, self._fresh)
        if contraction.is_attention:
            assert indices[0] is not None
            group.keys, group.score_at = inner, indices[0]
        for operand, index in zip(node.inputs, indices, strict=True):
            if index is None:
                self._want_whole(node, operand, group)
            else:
                self._want(operand, group, index)

    def _want_scores(self, node: Node, group: Group, at: Indices) -> None:
        group.scores = node
        inner = group.depth = self._fresh(node.inputs[0].type.shape[-1])
        self._want(node.inputs[0], group, (*at[:-1], inner))
        self._want(node.inputs[1], group, (*at[:-2], inner, at[-1]))

    def _want_from_memory(self, node: Node, group: Group) -> None:
        reads = range(len(node.inputs)) if node.op.reads is None else node.op.reads(node)
        for k in reads:
            self._want_whole(node, node.inputs[k], group)

    def _want_whole(self, node: Node, operand: Node, group: Group) -> None:
        """All of `operand`, in memory."""
        self._want(operand, group, tuple(self._fresh(d) for d in operand.type.shape))
        if operand.op.kind != "leaf":
            self.wanted[operand].is_forced = True
            self.wanted[operand].why = why.read_whole(node.op.name)

    # ------------------------------------------------------------ order

    def _order(self) -> tuple[Group, ...]:
        """Groups after the groups they read from; ties by the root's place in the graph."""
        place = {n: i for i, n in enumerate(self.graph.nodes)}
        rank = {g: place[g.root] for g in self.groups}
        return tuple(order_groups(self.depends, rank))


def _splits(shape: Shape, into: Shape) -> bool:
    """Whether `into` has the axes of `shape`, some of them split, and all have elements."""
    runs = reshape_runs(shape, into)
    is_split = all(stop - start <= 1 for start, stop, _, _ in runs)
    return is_split and len(into) > len(shape) and 0 not in into


def _axes_of_last(way: Sequence[Node]) -> Sequence[Shape]:
    """Of the first node's axes, which of the last one's each joins; none where it splits some."""
    axes: list[Shape] = [(dim,) for dim in way[-1].type.shape] if way else []
    for node in reversed(way[:-1]):
        if node.op.name == "permute":
            axes = [axes[d] for d in node.attrs.axes]
        elif node.op.keeps_order:
            shape, below = node.type.shape, node.inputs[0].type.shape
            runs = reshape_runs(shape, below)
            if 0 in shape or any(stop - start > 1 for start, stop, _, _ in runs):
                return ()
            axes = [sum(axes[b:e], ()) for start, stop, b, e in runs if stop > start]
    return axes


def _merges_turned(shape: Shape, node: Node) -> bool:
    """Whether `shape` merges axes of the node that a permute below it has brought together.

    A last axis that fills no register is better merged: lanes along it would be few.
    """
    axes = node.type.shape
    last = next((n for n in reversed(axes) if n != 1), 1)
    if (upper_bound(last) or SHORTEST_WALK) < SHORTEST_WALK:
        return False
    merged = [
        [d for d in range(start, stop) if axes[d] != 1]
        for _, _, start, stop in reshape_runs(shape, axes)
    ]
    seen, stack = {node}, [node]
    while stack and len(seen) < MAX_ABOVE:
        current = stack.pop()
        if current.op.name == "permute":
            source, order = current.inputs[0].type.shape, current.attrs.axes
            kept = [d for d, n in enumerate(source) if n != 1]
            place = {d: kept.index(order[d]) for run in merged for d in run}
            if any(place[q] != place[p] + 1 for run in merged for p, q in pairwise(run)):
                return True
        elif current.op.kind == "elementwise":
            same = [n for n in current.inputs if n.type.shape == axes and n not in seen]
            seen.update(same)
            stack += same
    return False


def _has_row_values(node: Node) -> bool:
    """Whether what a reduction found for each row is repeated along the row, and computed with."""
    shape, seen, stack = node.type.shape, {node}, [node]
    while stack and len(seen) < MAX_ABOVE:
        current = stack.pop()
        if current.op.name == "expand" and current.type.shape == shape:
            inner = current.inputs[0]
            kept = [d for d, n in enumerate(inner.type.shape) if n != 1]
            outer = [d for d, n in enumerate(shape) if n != 1][: len(kept)]
            if kept and kept == outer and _is_reduced(inner, node.type.num_elements):
                return True
        elif current.op.kind == "elementwise":
            same = [n for n in current.inputs if n not in seen]
            seen.update(same)
            stack += same
    return False


def _is_reduced(node: Node, count: Dim) -> bool:
    """Whether the node is computed, element by element, from a reduction of so many elements."""
    seen, stack = {node}, [node]
    while stack and len(seen) < MAX_ABOVE:
        current = stack.pop()
        if current.op.kind == "reduce":
            return current.inputs[0].type.num_elements == count
        if current.op.kind == "elementwise" or current.op.keeps_order:
            fresh = [n for n in current.inputs if n not in seen]
            seen.update(fresh)
            stack += fresh
    return False


def _late_variables(node: Node) -> set[LateVariable]:
    """The late variables in the sizes of a node and of its operands, and in its attributes."""
    types = (node.type, *(n.type for n in node.inputs))
    dims = (*(d for t in types for d in t.shape), *attr_dims(node.attrs))
    return {v for d in dims for v in variables(d) if isinstance(v, LateVariable)}


def _weights(graph: Graph) -> dict[Node, int]:
    """The work of computing a node from memory, as if nothing below were kept."""
    weight: dict[Node, int] = {}
    for node in graph.nodes:
        if node.op.kind in ("leaf", "reduce", "contract", "opaque", "update"):
            weight[node] = 0 if node.op.is_literal else 1
        else:
            weight[node] = min(node.op.cost + sum(weight[n] for n in node.inputs), 1000)
    return weight


def _epilogues(graph: Graph, users_of: dict[Node, list[Node]]) -> set[Node]:
    """Elementwise nodes that a contraction can compute on its result before storing it."""
    found: set[Node] = set()
    for node in graph.nodes:
        if node.op.kind != "elementwise":
            continue
        for operand in node.inputs:
            follows = operand.op.kind == "contract" or operand in found
            if follows and operand.type.shape == node.type.shape and len(users_of[operand]) == 1:
                found.add(node)
    return found


def _is_identity(at: Indices, group: Group) -> bool:
    """Whether every loop of the group appears exactly once, by itself."""
    named = [i for i in at if i != 0]
    wanted = [i for i in group.loops if isinstance(i, Index)]
    return len(named) == len(wanted) and set(named) == set(wanted)


def _last_loop(group: Group) -> Dim:
    """The loop that vectors run along."""
    return next((i for i in reversed(group.loops) if isinstance(i, Index)), 0)


def _repeats_side_by_side(node: Node) -> bool:
    """Whether elements follow upon themselves (a number of each group, for its channels): vectors
    pick their lanes one by one then."""
    return node.op.name == "reshape" and node.inputs[0].op.name == "expand"


def _stores_across(node: Node, group: Group, rows: Sequence[Index]) -> bool:
    """Whether vectors that read for a reduction straight would store the group's elements apart.

    They run along the last axis: if it is kept, for all the group does; if it is reduced, then
    along the last loop of those that are no rows. Windows have a rule of their own.
    """
    if _is_window_view(node.inputs[0]):
        return False
    shape, last = node.inputs[0].type.shape, _last_loop(group)
    length = max((d for d, n in enumerate(shape) if n != 1), default=-1)
    if length in node.attrs.axes:
        inner = [i for i in group.loops if isinstance(i, Index) and i not in rows]
        return bool(inner) and inner[-1] != last
    return bool(rows) and rows[-1] != last


def _is_window_view(node: Node) -> bool:
    """Whether the node is a view of windows, or a product of one."""
    while node.op.kind == "movement" or node.op.is_product:
        if node.op.slides:
            return True
        node = node.inputs[0]
    return False


def _is_near(node: Node, at: Indices, loop: Dim) -> bool:
    """Whether neighbours along `loop` lie side by side, or almost, in what `node` is a view of."""
    if not isinstance(loop, Index):
        return True
    while node.op.kind == "movement" or node.op.is_product:
        if node.op.gathers:
            return False
        at, node = operand_index(node, 0, at, no_gather), node.inputs[0]
    step = linear_coefficient(flat_index(at, node.type.shape), loop)
    return isinstance(step, int) and abs(step) <= NEAR


def _times_asked(at: Indices, node: Node) -> float:
    """How often windows ask for each element of a node, by the loops that its index names.

    Where no axis has two loops nothing slides: an index that leaves the node is guarded there.
    """
    named = [{a for a in atoms(i) if isinstance(a, Index)} for i in at]
    if all(len(loops) < 2 for loops in named):
        return 1.0
    asked = product(loop.extent for loop in set().union(*named))
    return _typical(asked) / max(_typical(node.type.num_elements), 1)


def _typical(dim: Dim) -> int:
    """A size to reckon with; of variables, one that is neither small nor large."""
    sizes = {v: max(v.min, _USUAL if v.max is None else min(v.max, _USUAL)) for v in variables(dim)}
    return evaluate(dim, sizes)


def _kept(at: Indices, node: Node) -> list[tuple[Any, Dim]]:
    """The index and the size of every axis that a reduction keeps."""
    pairs = zip(at, node.type.shape, strict=True)
    return [pair for d, pair in enumerate(pairs) if d not in node.attrs.axes]


def _stays_inside(at: Indices, node: Node, axes: tuple[int, ...] = ()) -> bool:
    """Whether loops named in `at` end before the node does; padding makes them longer.

    Where there is no loop there must be an element: 0 is no index into an empty axis.
    """
    pairs = enumerate(zip(at, node.type.shape, strict=True))
    return all(
        is_nonnegative(size - i.extent) if isinstance(i, Index) else size != 0
        for d, (i, size) in pairs
        if d not in axes
    )


def _is_full(at: Indices, group: Group, node: Node) -> bool:
    """Whether `at` walks the root's own elements, inner loops perhaps under other names."""
    if node.type.shape != group.shape:
        return False
    for i, loop in zip(at, group.loops, strict=True):
        if i == loop:
            continue
        if not isinstance(i, Index) or not isinstance(loop, Index):
            return False
        is_inner = group.outer is not None and loop not in group.outer and i not in group.loops
        if not is_inner or i.extent != loop.extent:
            return False
    return True

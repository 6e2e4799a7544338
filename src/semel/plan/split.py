"""A program over several lanes: what each lane does, and where one waits for another.

    PlanParts x LinkedRows  --link_lanes-->  LinkedRows, FlatProgram with what other lanes do

Every lane runs its rows in the order of the plan. Where a row must follow one of another lane, by
bytes or by a dependency, that lane signals behind the earlier row and this one waits before the
later: those edges alone, and none that follows from earlier ones. A wait for a row is also a wait
for all that its lane did and knew by then.

Invariants: of bytes that two lanes touch, one of them writing, the later life begins behind a wait
that ends the earlier one, whoever shares them: hazards are byte ranges. Waits lead back in
the order of the plan, so that the lanes cannot all wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from semel.ir.expr import Dim
from semel.plan.dependencies import find_fences
from semel.plan.lanes import name_lane
from semel.plan.link import LinkedRows, Meeting, link_rows
from semel.plan.parts import BlockKey, PlanParts
from semel.plan.row import COMPUTE, LaneKey
from semel.plan.rows import PreparedOp, PreparedSignal, PreparedWait
from semel.plan.tree import num_rows, walk
from semel.runtime.device import find_device
from semel.runtime.linked import FlatLane, FlatProgram, Joint, JointKind
from semel.runtime.timeline import TimelineSignal

_INSERTED = -1  # in the place of a position: the plan has no such row


@dataclass(frozen=True, slots=True)
class Crossings:
    """`order`: the outermost rows with work, by position, as they are taken up.

    `waits[i]` are the positions on other lanes that row i waits for, `numbers[j]` says which
    signal of its lane follows row j.
    """

    order: tuple[int, ...]
    lanes: Mapping[int, LaneKey]
    waits: Mapping[int, tuple[int, ...]]
    numbers: Mapping[int, int]


def find_crossings(parts: PlanParts, linked: LinkedRows) -> Crossings:
    """Where lanes wait for each other: as seldom as the edges of the plan allow."""
    device = parts.program.device
    taken = parts.blocks[None] if parts.run_order is None else parts.run_order
    order = tuple(i for i in taken if parts.ops[i].has_work)
    place = {i: at for at, i in enumerate(order)}
    lanes = {i: parts.ops[i].lane_on(device) for i in order}
    clocks = _Clocks(lanes)
    waits: dict[int, tuple[int, ...]] = {}
    for i in order:
        before = _with_work(parts, linked.before, i)
        # The latest first: what it has waited for need not be waited for again.
        found = sorted((j for j in before if lanes[j] != lanes[i]), key=place.__getitem__)
        waits[i] = tuple(j for j in reversed(found) if clocks.wait(i, j))
        clocks.end(i)
    numbers: dict[int, int] = {}
    counts: dict[LaneKey, int] = {}
    signalled = {j for found in waits.values() for j in found}
    for j in order:
        if j in signalled:
            numbers[j] = counts[lanes[j]] = counts.get(lanes[j], 0) + 1
    return Crossings(order, lanes, waits, numbers)


class _Clocks:
    """How far each lane knows every other to have come: rows of it that are over."""

    def __init__(self, lanes: Mapping[int, LaneKey]) -> None:
        self._lanes = lanes
        self._known: dict[LaneKey, dict[LaneKey, int]] = {lane: {} for lane in lanes.values()}
        self._ends: dict[int, dict[LaneKey, int]] = {}

    def wait(self, i: int, j: int) -> bool:
        """Whether row i must wait for row j of another lane; from here on it has."""
        own, other = self._known[self._lanes[i]], self._lanes[j]
        if own.get(other, 0) >= self._ends[j][other]:
            return False
        for lane, count in self._ends[j].items():
            own[lane] = max(own.get(lane, 0), count)
        return True

    def end(self, i: int) -> None:
        """Row i is over."""
        lane = self._lanes[i]
        own = self._known[lane]
        own[lane] = own.get(lane, 0) + 1
        self._ends[i] = dict(own)


def _with_work(parts: PlanParts, edges: Sequence[tuple[int, ...]], i: int) -> tuple[int, ...]:
    """The rows that row i must follow by these edges; a view stands for those that it must."""
    found: dict[int, None] = {}
    stack = list(edges[i])
    while stack:
        j = stack.pop()
        if not parts.ops[j].has_work:
            stack += edges[j]
        else:
            found[j] = None
    return tuple(found)


# ---------------------------------------------------------------- lanes


@dataclass(slots=True)
class _LaneRows:
    """The rows of one lane as they gather; `whole` has for each its position in the plan."""

    key: LaneKey
    signal: TimelineSignal
    rows: list[PreparedOp] = field(default_factory=list)
    whole: list[int] = field(default_factory=list)
    joints: dict[int, JointKind] = field(default_factory=dict)

    def insert(self, kind: JointKind, signal: TimelineSignal, value: int = 0) -> None:
        """A row of ours at which the lane meets others."""
        record = _RECORDS.get(kind, Meeting)
        device, lane = self.key
        self.joints[len(self.rows)] = kind
        self.rows.append(record(_INSERTED, signal, value, device=device, lane=lane))
        self.whole.append(_INSERTED)


_RECORDS: dict[JointKind, type[PreparedSignal | PreparedWait]] = {
    JointKind.SIGNAL: PreparedSignal,
    JointKind.WAIT: PreparedWait,
}


def _gather(parts: PlanParts, crossings: Crossings) -> list[_LaneRows]:
    """What each lane does, the caller's first, with waits and signals in between."""
    caller = (parts.program.device, COMPUTE)
    keys = dict.fromkeys([caller, *(crossings.lanes[i] for i in crossings.order)])
    made = {key: _LaneRows(key, TimelineSignal(name_lane(key))) for key in keys}
    own = made[caller]
    own.insert(JointKind.START, own.signal)
    for i in crossings.order:
        lane = made[crossings.lanes[i]]
        for j in crossings.waits[i]:
            other = made[crossings.lanes[j]]
            lane.insert(JointKind.WAIT, other.signal, crossings.numbers[j])
        lane.rows.append(parts.ops[i])
        lane.whole.append(i)
        if i in crossings.numbers:
            lane.insert(JointKind.SIGNAL, lane.signal, crossings.numbers[i])
    own.insert(JointKind.END, own.signal)
    return list(made.values())


@dataclass(frozen=True, slots=True)
class _LinkedLane:
    """A lane by itself: `parts` with its rows only, and `whole` as positions of the plan."""

    key: LaneKey
    parts: PlanParts
    linked: LinkedRows
    whole: tuple[int, ...]
    joints: tuple[Joint, ...]


def _link(parts: PlanParts, lane: _LaneRows, is_caller: bool) -> _LinkedLane:
    """The lane as a plan of its own, on the same buffers and variables."""
    whole: list[int] = []
    starts: list[int] = []
    for row, i in zip(lane.rows, lane.whole, strict=True):
        starts.append(len(whole))
        whole += [_INSERTED] if i == _INSERTED else range(i, i + num_rows(row))
    position = {i: own for own, i in enumerate(whole)}
    device, name = lane.key
    run_order = None if parts.run_order is None else tuple(starts)
    made = replace(
        parts,
        program=replace(parts.program, rows=tuple(lane.rows), run_order=run_order, after={}),
        device=find_device(device),
        placed=tuple(walk(lane.rows)),
        blocks=blocks_at(parts, starts, position),
        after=_after(parts, lane, whole, starts, position),
        late=parts.late if is_caller else (),
        guards_at={position[at]: n for at, n in parts.guards_at.items() if at in position},
        threads=_threads(parts, device) if name == COMPUTE else 1,
    )
    linked = link_rows(made)
    inserted = {starts[k]: kind for k, kind in lane.joints.items()}
    return _LinkedLane(lane.key, made, linked, tuple(whole), _joints(made, linked, inserted))


def _threads(parts: PlanParts, device: str) -> int:
    """As many as the plan has, and on another device no more than that has by itself."""
    if device == parts.program.device:
        return parts.threads
    return min(parts.threads, find_device(device).default_threads())


def blocks_at(
    parts: PlanParts, starts: Sequence[int], position: Mapping[int, int]
) -> dict[BlockKey, tuple[int, ...]]:
    """The lists of rows of part of a plan by their positions there; `starts` is the outermost."""
    found: dict[BlockKey, tuple[int, ...]] = {None: tuple(starts)}
    for key, block in parts.blocks.items():
        if key is not None and key[0] in position:
            found[position[key[0]], key[1]] = tuple(position[i] for i in block)
    return found


def _after(
    parts: PlanParts,
    lane: _LaneRows,
    whole: Sequence[int],
    starts: Sequence[int],
    position: Mapping[int, int],
) -> tuple[tuple[int, ...], ...]:
    """What each row must follow on its lane; nothing moves across what was inserted."""
    found: list[tuple[int, ...]] = []
    for i in whole:
        before = () if i == _INSERTED else _with_work(parts, parts.after, i)
        found.append(tuple(position[j] for j in before if j in position))
    for start, fences in zip(starts, find_fences(lane.rows, parts.program.device), strict=True):
        found[start] = tuple(dict.fromkeys((*found[start], *(starts[k] for k in fences))))
    return tuple(found)


def _joints(
    parts: PlanParts, linked: LinkedRows, inserted: Mapping[int, JointKind]
) -> tuple[Joint, ...]:
    """The rows of the table at which the lane meets others, of the plan or outside of it."""
    found: list[Joint] = []
    for number, position in enumerate(linked.row_ops):
        row = parts.ops[position]
        if isinstance(row, (PreparedSignal, PreparedWait)):
            kind = JointKind.SIGNAL if isinstance(row, PreparedSignal) else JointKind.WAIT
            found.append(
                Joint(
                    number,
                    inserted.get(position, kind),
                    row.signal,
                    row.value,
                    is_counted=position in inserted,
                )
            )
    return tuple(found)


# ---------------------------------------------------------------- all of it


def link_lanes(
    parts: PlanParts, linked: LinkedRows, marks: Sequence[Dim]
) -> tuple[LinkedRows, FlatProgram]:
    """What the caller's lane runs, with what the others do; and all their rows, for people.

    The rows of the caller's lane come first, then those of the others, lane by lane.
    """
    crossings = find_crossings(parts, linked)
    lanes = [
        _link(parts, lane, number == 0) for number, lane in enumerate(_gather(parts, crossings))
    ]
    flats = [
        replace(lane.linked.as_flat(lane.parts, marks if number == 0 else ()), joints=lane.joints)
        for number, lane in enumerate(lanes)
    ]
    others = tuple(
        # What a run must satisfy, and what it leaves behind, is the caller's affair.
        FlatLane(*lane.key, replace(flat, guards=(), inputs=(), held=(), flips=()))
        for lane, flat in zip(lanes[1:], flats[1:], strict=True)
    )
    return _join(linked, lanes, crossings), replace(flats[0], others=others)


def _join(linked: LinkedRows, lanes: Sequence[_LinkedLane], crossings: Crossings) -> LinkedRows:
    """The steps and rows of all lanes by positions of the plan."""
    made = LinkedRows(
        order=linked.order,
        before=linked.before,
        bases=linked.bases,
        waits={i: found for i, found in crossings.waits.items() if found},
    )
    for lane in lanes:
        whole = lane.whole
        made.rows += lane.linked.rows
        made.row_ops += [whole[position] for position in lane.linked.row_ops]
        made.steps += [
            [[whole[i] for i in segment] for segment in step]
            for step in lane.linked.steps
            if whole[step[0][0]] != _INSERTED
        ]
    return made

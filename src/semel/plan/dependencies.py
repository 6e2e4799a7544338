"""The order that dependencies ask for: ids and positions become edges, edges an order.

dependencies, instances  --resolve_dependencies-->  positions  --topological_order-->  order
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from semel.errors import CycleError, PlanError
from semel.plan.row import LaneKey
from semel.plan.rows import PreparedOp


def resolve_dependencies(
    ops: Sequence[PreparedOp], instance_deps: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """For each row of a list the places it must follow, from ids and instances."""
    ids = [op.id for op in ops]
    is_unique = len(set(ids)) == len(ids)
    position = {op.id: i for i, op in enumerate(ops)} if is_unique else {}
    result: list[tuple[int, ...]] = []
    for i, op in enumerate(ops):
        found: list[int] = []
        for dep in op.dependencies:
            if dep not in position:
                kind = "op" if is_unique else "earlier op"
                raise PlanError(
                    f"op {op.id}",
                    f"depends on {kind} {dep}, which is not there.",
                    hint="It may depend on rows beside it, in the same list."
                    if is_unique
                    else "With repeated ids a dependency points back.",
                    op=op.id,
                    dependency=dep,
                )
            found.append(position[dep])
        for j in instance_deps[i]:
            if j == i:
                raise PlanError(f"op {op.id}", "must not depend on itself.", op=op.id, dependency=j)
            found.append(j)
        result.append(tuple(dict.fromkeys(found)))
        if not is_unique:
            position[op.id] = i
    return result


def topological_order(ops: Sequence[PreparedOp], after: Sequence[tuple[int, ...]]) -> list[int]:
    """Positions, dependencies first, otherwise as added; a CycleError shows one cycle."""
    missing = [len(deps) for deps in after]
    users: list[list[int]] = [[] for _ in ops]
    for i, deps in enumerate(after):
        for j in deps:
            users[j].append(i)
    ready = [i for i, count in enumerate(missing) if count == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for user in users[i]:
            missing[user] -= 1
            if missing[user] == 0:
                heapq.heappush(ready, user)
    if len(order) < len(ops):
        raise _cycle(ops, after, {i for i, count in enumerate(missing) if count})
    return order


def find_fences(block: Sequence[PreparedOp], device: str) -> list[tuple[int, ...]]:
    """What each row of a list must follow because of fences: nothing of a lane moves across its.

    Rows of other lanes are ordered with a fence by bytes and dependencies alone.
    """
    fence: dict[LaneKey, tuple[int, ...]] = {}
    since: dict[LaneKey, list[int]] = {}
    result: list[tuple[int, ...]] = []
    for i, row in enumerate(block):
        lane = row.lane_on(device)
        if row.is_fence:
            result.append((*fence.get(lane, ()), *since.pop(lane, ())))
            fence[lane] = (i,)
        else:
            result.append(fence.get(lane, ()))
            since.setdefault(lane, []).append(i)
    return result


def _cycle(
    ops: Sequence[PreparedOp], after: Sequence[tuple[int, ...]], blocked: set[int]
) -> CycleError:
    """Walk back from a blocked operation until one repeats: that is a cycle."""
    path: list[int] = []
    at = min(blocked)
    while at not in path:
        path.append(at)
        at = next(j for j in after[at] if j in blocked)
    on_cycle = path[path.index(at) :]
    positions = on_cycle[::-1]
    cycle = [ops[i].id for i in positions]
    waiting = sorted(blocked - set(on_cycle))
    also = f" {len(waiting)} more wait for it." if waiting else ""
    where = ""
    if len({op.id for op in ops}) < len(ops):
        where = f" (ids repeat in this plan; these are the positions {_circle(positions)})"
    return CycleError(
        "builder",
        f"dependencies must not form a cycle, got {_circle(cycle)}{where}.{also}",
        cycle=cycle,
        positions=positions,
        blocked=[ops[i].id for i in waiting],
    )


def _circle(numbers: Sequence[int]) -> str:
    return " -> ".join(map(str, [*numbers, numbers[0]]))

"""The order in which groups run.

groups, what each depends on --order_groups--> every group after those it depends on
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from semel.errors import InternalError
from semel.schedule.group import Group


def order_groups(depends: Mapping[Group, Set[Group]], rank: Mapping[Group, int]) -> list[Group]:
    """Groups after the groups they read from; ties by rank. A cycle is our bug."""
    done: dict[Group, None] = {}
    for group in sorted(depends, key=lambda g: rank[g]):
        _emit(group, depends, rank, done)
    return list(done)


def _emit(
    group: Group,
    depends: Mapping[Group, Set[Group]],
    rank: Mapping[Group, int],
    done: dict[Group, None],
) -> None:
    """Append to `done` what `group` needs, then the group; without recursion."""
    begun: dict[Group, None] = {}  # the way from `group` down to here
    stack: list[tuple[Group, bool]] = [(group, False)]
    while stack:
        current, ready = stack.pop()
        if current in done:
            continue
        if ready:
            done[current] = None
            del begun[current]
            continue
        if current in begun:
            raise InternalError(
                "schedule", f"groups must not need themselves: {_way(begun, current)}."
            )
        begun[current] = None
        stack.append((current, True))
        needed = sorted(depends[current], key=lambda g: -rank[g])
        stack.extend((g, False) for g in needed if g not in done)


def _way(begun: dict[Group, None], back: Group) -> str:
    """The cycle that ends at a group which has begun."""
    groups = list(begun)
    cycle = [*groups[groups.index(back) :], back]
    return " needs ".join(repr(g.root) for g in cycle)

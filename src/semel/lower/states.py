"""Where the versions of states lie: kernels get the state's memory in their place.

    Lowered over nodes  --place_states-->  Lowered over the state, or its second buffer

Kernels are lowered as if an update had memory of its own. Then it is the state's: a kernel that
reads the old value and stores the next one in its place has one buffer for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from semel.ir.graph import Node
from semel.lower.loop import Place, move_arguments
from semel.lower.lowered import Argument, Lowered, Moved, OtherHalf
from semel.schedule.group import StateRule

#: Where each version of each state lies.
Homes = Mapping[Node, Argument]


def state_homes(states: Sequence[StateRule]) -> dict[Node, Argument]:
    """The memory of every version; a leaf is itself."""
    homes: dict[Node, Argument] = {}
    for rule in states:
        leaf, *updates = rule.versions
        homes[leaf] = leaf
        for update in updates:
            homes[update] = OtherHalf(leaf) if rule.is_double else leaf
    return homes


def place_states(lowered: Lowered, homes: Homes) -> Lowered:
    """The kernel on the memory of the states that it reads and updates."""
    touched = [arg for arg in lowered.args if isinstance(arg, Node) and arg in homes]
    if not touched:
        return lowered
    places = {node: [Place(homes[node], node.type.num_elements)] for node in touched}

    def move(source: Lowered) -> Lowered:
        placed = move_arguments(source, places, None)
        return replace(placed, region=source.region, moved=Moved(source, move))

    return move(lowered)

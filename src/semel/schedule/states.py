"""The order around states: who reads the old value before it is overwritten, or a second buffer.

    groups x versions of each state  --order_states-->  StateRule for each, and more dependencies

A state that is replaced whole is updated *in place* if every other kernel that reads the old value
can run before the one that makes the next, and that one reads each element only where it
writes it. Else the next value is made in a second buffer, and the two change places when the run
succeeds.

A state of which a part is written (new rows behind a cursor) always stays where it is: a second
buffer would have to be filled first. Reads that provably touch nothing of that part may come
before or after. What needs the old elements where that cannot be: if it is the kernel that writes,
the new elements are made by a kernel of their own before it (`NEW_APART`); if it needs the next
value as well, it reads a copy of the old one (`OLD_COPIED`). Both change the graph or what is
stored, so the schedule is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from semel.ir.expr import is_nonnegative
from semel.ir.graph import Graph, Node, make_node, stands_for
from semel.ir.lineage import note
from semel.ops.attrs import ReshapeAttrs
from semel.ops.index_maps import Indices, flat_index
from semel.ops.state import has_places, is_whole, stored_at, written_shape
from semel.schedule import reasons as why
from semel.schedule.group import Group, StateRule
from semel.schedule.reasons import Why

Readers = Callable[[Node], dict[Group, list[Indices]]]
Reaches = Callable[[Group, Group], bool]


@dataclass
class Conflict(Exception):  # noqa: N818 - no error: the schedule is made again
    """An update in place that cannot be ordered: of `version`, by `update`, because of `why`."""

    version: Node
    update: Node
    why: Why


def order_states(
    versions: Mapping[str, tuple[Node, ...]],
    home: Mapping[Node, Group],
    depends: dict[Group, set[Group]],
    reaches: Reaches,
    readers: Readers,
    forced: Mapping[Node, Why],
) -> tuple[StateRule, ...]:
    """Decide for each state, and let updates wait for whoever reads what they overwrite."""
    rules: list[StateRule] = []
    for name, chain in versions.items():
        leaf, last = chain[0], chain[-1]
        if len(chain) == 2 and is_whole(last):
            refusal = _why_not_in_place(leaf, last, home[last], readers(leaf), reaches)
            if refusal is None:
                _wait(depends, home[last], readers(leaf))
            rules.append(StateRule(name, chain, refusal is not None, refusal or why.READ_BEFORE))
            continue
        waited = False
        for version, update in pairwise(chain):
            group = home[update]
            if version is not leaf:
                depends[group].add(home[version])
            disturbed = {
                reader: at
                for reader, at in readers(version).items()
                if not _is_apart(version, update, reader)
            }
            if not _reads_where_it_writes(update, group, disturbed.get(group, [])):
                raise Conflict(version, update, why.NEW_APART)
            if any(r is not group and reaches(r, group) for r in disturbed):
                raise Conflict(version, update, why.OLD_COPIED)
            _wait(depends, group, disturbed)
            waited = waited or bool(disturbed)
        cause = why.READ_BEFORE if waited else why.APPENDED
        for update in chain[1:]:
            cause = forced.get(update.inputs[1], cause)
        rules.append(StateRule(name, chain, False, _copied(leaf, forced) or cause))
    return tuple(rules)


def _copied(leaf: Node, forced: Mapping[Node, Why]) -> Why | None:
    """Whether the old value is read from a copy."""
    is_copied = any(c is why.OLD_COPIED and _base(n) is leaf for n, c in forced.items())
    return why.OLD_COPIED if is_copied else None


def _base(copy: Node) -> Node:
    node = copy.inputs[0]
    while node.op.kind == "update":
        node = node.inputs[0]
    return node


def _why_not_in_place(
    leaf: Node,
    update: Node,
    group: Group,
    readers: Mapping[Group, list[Indices]],
    reaches: Reaches,
) -> Why | None:
    """None if the next value may overwrite the old one, element by element."""
    if leaf.attrs.is_exchanged:
        return why.OLD_IF_FAILED
    if not _reads_where_it_writes(update, group, readers.get(group, [])):
        return why.READ_ELSEWHERE
    if any(reader is not group and reaches(reader, group) for reader in readers):
        return why.NEEDS_BOTH
    return None


def _reads_where_it_writes(update: Node, group: Group, indices: list[Indices]) -> bool:
    """Whether the kernel reads an element only to store the next one in its place.

    Loops without reductions do that in one go; others come back to a row, or to a tile.
    """
    if not indices:
        return True
    if group.kind != "loops" or group.reduces:
        return False
    where = stored_at(update, group.loops)
    return all(flat_index(at, update.type.shape) == where for at in indices)


def _wait(depends: dict[Group, set[Group]], group: Group, readers: Mapping[Group, object]) -> None:
    depends[group].update(reader for reader in readers if reader is not group)


def _is_apart(version: Node, update: Node, reader: Group) -> bool:
    """Whether all that a group reads of a version lies beside what the update writes."""
    views = [n for n in reader.inside if n is not update and version in n.inputs]
    return bool(views) and all(_is_beside(view, update) for view in views)


def _is_beside(view: Node, update: Node) -> bool:
    if view.op.name != "slice" or any(step < 1 for step in view.attrs.steps):
        return False
    if has_places(update):
        return False
    attrs, new = view.attrs, written_shape(update)
    for start, size, step, first, count in zip(
        attrs.starts, attrs.sizes, attrs.steps, update.attrs.starts, new, strict=True
    ):
        end = start + (size - 1) * step + 1
        if is_nonnegative(first - end) or is_nonnegative(start - (first + count)):
            return True
    return False


# ---------------------------------------------------------------- conflicts


def resolve_conflict(
    graph: Graph, conflict: Conflict, forced: Mapping[Node, Why]
) -> tuple[Graph, dict[Node, Why]]:
    """The graph without the conflict, and which of its nodes must be stored, and why."""
    version, new_elements = conflict.version, conflict.update.inputs[1]
    if conflict.why is why.NEW_APART and new_elements is not version:
        return graph, {**forced, new_elements: why.NEW_APART}
    copy = make_node("reshape", (version,), ReshapeAttrs(version.type.shape))
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        is_update = node.op.kind == "update"
        inputs = tuple(
            copy if n is version and not (is_update and k == 0) else new[n]
            for k, n in enumerate(node.inputs)
        )
        is_same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
        new[node] = node if is_same else make_node(node.op.name, inputs, node.attrs)
        stands_for(new[node], node)
    note(new)
    kept = {new[node]: cause for node, cause in forced.items()}
    return graph.with_outputs([new[n] for n in graph.outputs]), {**kept, copy: why.OLD_COPIED}

"""What nodes became while their graph was rewritten.

    with recorded(changes): passes      -->  changes: one mapping from old nodes to new for each
    image(node, changes)                -->  what a node of the first graph is in the last

Everything that rewrites a graph says so here (`note`), and whoever wants to explain a program
records it. What rules rewrite inside, as the bodies of loops, is of other graphs and not noted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from semel.ir.graph import Node

#: What the nodes that changed became, in one go over a graph.
Change: TypeAlias = "Mapping[Node, Node]"


class _Record(threading.local):
    """Where changes of this thread go; None: nobody asks."""

    changes: list[Change] | None = None


_record = _Record()


class recorded:  # noqa: N801 - reads as what it does
    """Inside, what becomes of nodes is added to `changes`, or to nothing."""

    __slots__ = ("_before", "_changes")

    def __init__(self, changes: list[Change] | None) -> None:
        self._changes = changes

    def __enter__(self) -> None:
        self._before, _record.changes = _record.changes, self._changes

    def __exit__(self, *_: object) -> None:
        _record.changes = self._before


def note(change: Change) -> None:
    """Say what nodes became."""
    if _record.changes is not None:
        _record.changes.append(change)


def image(node: Node, changes: Iterable[Change]) -> Node:
    """What a node is after all changes."""
    for change in changes:
        node = change.get(node, node)
    return node

"""A graph without its data and without its numbers, taken in one walk from its output.

    output node  --take_outline-->  Outline: `key`, `nodes`, `data`, `numbers`
    graph with late variables  --graph_outline-->  the same

Two graphs with equal keys do the same things to data of the same types. What may differ is
listed beside the key, in the order of the walk: the arrays of constants and params, and
the numbers: values of scalars, starts of slices, what pads put in front. A key holds no node and no
data, so it can be kept as long as one likes.

What a node adds to the key, its `Feature`, is one object for all nodes that say the same, and is
kept where nodes share what they have in common, so that a key is a tuple that compares by identity.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any
from weakref import WeakValueDictionary

from semel.ir.expr import Dim, LateVariable, atoms
from semel.ir.form import plain_attrs
from semel.ir.graph import Array, Graph, Node, attr_dims
from semel.locks import make_lock


class Feature:
    """What a node says beside its operands, its data and its numbers.

    `is_known` is False if a value needs more than the graph: an input, a variable that is not late,
    or constants inside the body of a loop or a branch, which no list shows.
    """

    __slots__ = ("__weakref__", "is_known", "kind")

    def __init__(self, kind: str, is_known: bool) -> None:
        self.kind, self.is_known = kind, is_known


class Outline:
    """`data` are arrays; `numbers` are what tells numbers apart, `values` the numbers themselves.

    `nodes` stand in the order of the walk, operands first, and `wires` has the places of each
    one's operands. A number stands there once for each use, and so does what repeats it: that two
    of them are equal now says nothing of the next graph. `slots` has the place in `data`, or the
    first one in `numbers`, by place of the node. `outputs` are the places of the graph's outputs,
    the first of which tell the variables in `late`.
    """

    __slots__ = ("data", "key", "late", "nodes", "numbers", "outputs", "slots", "values", "wires")

    def __init__(self, late: tuple[LateVariable, ...]) -> None:
        self.late = late
        self.outputs: list[int] = []
        self.key: tuple[Hashable, ...] = ()
        self.nodes: list[Node] = []
        self.wires: list[list[int]] = []
        self.data: list[Array] = []
        self.numbers: list[Hashable] = []
        self.values: list[Any] = []
        self.slots: dict[int, int] = {}


def take_outline(output: Node) -> Outline | None:
    """The outline of the graph of one output; None if it has no value of its own."""
    return _take((output,), ())


def graph_outline(graph: Graph) -> Outline | None:
    """The outline of a graph whose late variables have names by place (`ir.late`)."""
    return _take(graph.outputs, graph.late)


def _take(outputs: tuple[Node, ...], late: tuple[LateVariable, ...]) -> Outline | None:
    found = Outline(late)
    place: dict[Node, int] = {}
    key: list[Hashable] = [len(late)] if late else []
    stack = list(reversed(outputs))
    while stack:
        node = stack[-1]
        if node in place:
            stack.pop()
            continue
        missing = [n for n in node.inputs if n not in place and not is_number(n)]
        if missing:
            stack += reversed(missing)
            continue
        stack.pop()
        wires = [place[n] if n in place else _repeat(found, key, n) for n in node.inputs]
        place[node] = _add(found, key, node, wires)
        if place[node] < 0 or (node.rule.late and not late):
            return None
    found.outputs = [place[n] for n in outputs]
    found.key = (*key, *found.outputs) if late else tuple(key)
    return found


def is_number(node: Node) -> bool:
    """Whether a node is a scalar, or one number repeated."""
    while node.op.name in REPEATING:
        node = node.inputs[0]
    return node.op.name == "scalar"


def _repeat(found: Outline, key: list[Hashable], node: Node) -> int:
    """Add a number for one use of it; the place of what is used."""
    chain = [node]
    while chain[-1].inputs:
        chain.append(chain[-1].inputs[0])
    wires: list[int] = []
    for each in reversed(chain):
        wires = [_add(found, key, each, wires)]
    return wires[0]


def _add(found: Outline, key: list[Hashable], node: Node, wires: list[int]) -> int:
    """Add a node; its place, or -1 if it, or an operand, cannot be part of an outline."""
    feature = node.rule.feature or _feature(node)
    if not feature.is_known or -1 in wires:
        return -1
    place = len(found.nodes)
    found.nodes.append(node)
    found.wires.append(wires)
    key.append(feature)
    key += wires
    match feature.kind:
        case "":
            pass
        case "data":
            found.slots[place] = len(found.data)
            found.data.append(node.attrs.storage.array)
        case "scalar":
            found.slots[place] = len(found.numbers)
            found.numbers.append(node.attrs.key)
            found.values.append(node.attrs.value)
        case kind:
            starts = node.attrs.before if kind == "before" else node.attrs.starts
            found.slots[place] = len(found.numbers)
            found.numbers += starts
            found.values += starts
    return place


#: Every result element is an operand element: what repeats a number is that number.
REPEATING = frozenset({"reshape", "expand", "permute"})
_features: WeakValueDictionary[Hashable, Feature] = WeakValueDictionary()
_scalars: dict[Hashable, Feature] = {}  #: by dtype: they are made anew all the time
_lock = make_lock()


def is_bound(dim: Dim) -> bool:
    """Whether somebody must give a value before the dim is known, or a loop does."""
    return any(not isinstance(atom, LateVariable) for atom in atoms(dim))


def _feature(node: Node) -> Feature:
    """The feature of a node; its rule keeps it."""
    name, attrs = node.op.name, node.attrs
    if name == "scalar":
        return _scalars.get(attrs.dtype) or _scalars.setdefault(
            attrs.dtype, Feature("scalar", is_known=True)
        )
    kind, rest, is_known = "", attrs, not any(is_bound(dim) for dim in attr_dims(attrs))
    is_fixed = not any(True for _ in attr_dims(attrs))
    match name:
        case "constant" | "param":
            name, kind, rest = "data", "data", attrs.type
        case "slice" if is_fixed:
            kind, rest = "starts", (attrs.sizes, attrs.steps)
        case "pad" if is_fixed:
            kind = "before"
            rest = tuple(b + a for b, a in zip(attrs.before, attrs.after, strict=True))
        case "loop" | "cond":
            rest, storages = plain_attrs(attrs)
            is_known = is_known and not storages
        case "input":
            is_known = False
    key = (name, rest, len(node.inputs), is_known)
    with _lock:
        found = _features.get(key)
        if found is None:
            found = _features[key] = Feature(kind, is_known)
    node.rule.feature = found
    return found

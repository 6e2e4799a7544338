"""A graph without its data and without its numbers, taken in one walk from its output.

    output node  --take_outline-->  Outline: `key`, `nodes`, `data`, `numbers`

Two graphs with equal keys do the same things to data of the same types. What may differ is
listed beside the key, in the order of the walk: the arrays of constants and params, and
the numbers, which are the values of scalars and the starts of slices. A key holds no node and no
data, so it can be kept as long as one likes.

What a node adds to the key, its `Feature`, is one object for all nodes that say the same, and is
kept where nodes share what they have in common, so that a key is a tuple that compares by identity.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any
from weakref import WeakValueDictionary

from semel.ir.form import plain_attrs
from semel.ir.graph import Array, Node, attr_dims
from semel.locks import make_lock


class Feature:
    """What a node says beside its operands, its data and its numbers.

    `is_known` is False if a value needs more than the graph: an input, a variable, or constants
    inside the body of a loop, which no list shows.
    """

    __slots__ = ("__weakref__", "is_known", "kind")

    def __init__(self, kind: str, is_known: bool) -> None:
        self.kind, self.is_known = kind, is_known


class Outline:
    """`data` are arrays; `numbers` are what tells numbers apart, `values` the numbers themselves.

    `slots` has the place in `data` or the first one in `numbers`, by node that has one.
    """

    __slots__ = ("data", "key", "nodes", "numbers", "slots", "values")

    def __init__(self) -> None:
        self.key: tuple[Hashable, ...] = ()
        self.nodes: list[Node] = []
        self.data: list[Array] = []
        self.numbers: list[Hashable] = []
        self.values: list[Any] = []
        self.slots: dict[Node, int] = {}


def take_outline(output: Node) -> Outline | None:
    """The outline of the graph of one output; None if it has no value of its own."""
    found = Outline()
    place: dict[Node, int] = {}
    key: list[Hashable] = []
    stack = [output]
    while stack:
        node = stack[-1]
        if node in place:
            stack.pop()
            continue
        inputs = node.inputs
        missing = [n for n in inputs if n not in place]
        if missing:
            stack += reversed(missing)
            continue
        stack.pop()
        place[node] = len(place)
        feature = node.rule.feature or _feature(node)
        if not feature.is_known:
            return None
        key.append(feature)
        key += [place[n] for n in inputs]
        if feature.kind:
            _list(found, feature.kind, node)
    found.key, found.nodes = tuple(key), list(place)
    return found


def _list(found: Outline, kind: str, node: Node) -> None:
    """Note what is beside the key."""
    if kind == "data":
        found.slots[node] = len(found.data)
        found.data.append(node.attrs.storage.array)
        return
    found.slots[node] = len(found.numbers)
    if kind == "scalar":
        found.numbers.append(node.attrs.key)
        found.values.append(node.attrs.value)
    else:
        found.numbers.extend(node.attrs.starts)
        found.values.extend(node.attrs.starts)


_features: WeakValueDictionary[Hashable, Feature] = WeakValueDictionary()
_scalars: dict[Hashable, Feature] = {}  #: by dtype: they are made anew all the time
_lock = make_lock()


def _feature(node: Node) -> Feature:
    """The feature of a node; its rule keeps it."""
    name, attrs = node.op.name, node.attrs
    if name == "scalar":
        return _scalars.get(attrs.dtype) or _scalars.setdefault(
            attrs.dtype, Feature("scalar", is_known=True)
        )
    kind, rest, is_known = "", attrs, True
    match name:
        case "constant" | "param":
            name, kind, rest = "data", "data", attrs.type
        case "slice":
            kind, rest = "starts", (attrs.sizes, attrs.steps)
            is_known = not any(True for _ in attr_dims(attrs))
        case "loop":
            rest, storages = plain_attrs(attrs)
            is_known = not storages and not any(True for _ in attr_dims(attrs))
        case _:
            is_known = name != "input" and not any(True for _ in attr_dims(attrs))
    key = (name, rest, len(node.inputs), is_known)
    with _lock:
        found = _features.get(key)
        if found is None:
            found = _features[key] = Feature(kind, is_known)
    node.rule.feature = found
    return found

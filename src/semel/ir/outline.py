"""A graph without its data and without its numbers, taken in one walk from its output.

    output node  --take_outline-->  Outline: `key`, `nodes`, `data`, `numbers`

Two graphs with equal keys do the same things to data of the same types. What may differ is
listed beside the key, in the order of the walk: the arrays of constants and params, and
the numbers: values of scalars, starts of slices, what pads put in front. A key holds no node and no
data, so it can be kept as long as one likes.

What a node adds to the key, its `Feature`, is one object for all nodes that say the same, and is
kept where nodes share what they have in common, so that a key is a tuple that compares by identity.
Late variables stand in it under names by place, and what tells them before what has them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from semel.ir.expr import Dim, LateVariable, atoms, substitute
from semel.ir.form import plain_attrs
from semel.ir.graph import Array, Node, attr_dims, count_of, let_counts_go
from semel.ir.late import substitute_attrs
from semel.ir.weak import WeakTable
from semel.locks import make_lock


class Feature:
    """What a node says beside its operands, its data and its numbers.

    `is_known` is False if a value needs more than the graph: an input, a variable that is not late,
    or another device.
    """

    __slots__ = ("__weakref__", "is_known", "kind")

    def __init__(self, kind: str, is_known: bool) -> None:
        self.kind, self.is_known = kind, is_known


class Outline:
    """`data` are arrays; `numbers` are what tells numbers apart, `values` the numbers themselves.

    What the bodies of loops and branches hold of data is theirs from outside, as operands.
    `nodes` stand in the order of the walk, operands first, and `wires` has the places of each
    one's operands. A number stands there once for each use, and so does what repeats it: that two
    of them are equal now says nothing of the next graph. `slots` has the place in `data`, or the
    first one in `numbers`, by place of the node. `late` has the names by place of late variables,
    and `counts` the places of what tells them.
    """

    __slots__ = ("counts", "data", "key", "late", "nodes", "numbers", "slots", "values", "wires")

    def __init__(self) -> None:
        self.late: dict[LateVariable, LateVariable] = {}
        self.counts: list[int] = []
        self.key: tuple[Hashable, ...] = ()
        self.nodes: list[Node] = []
        self.wires: list[list[int]] = []
        self.data: list[Array] = []
        self.numbers: list[Hashable] = []
        self.values: list[Any] = []
        self.slots: dict[int, int] = {}


def take_outline(output: Node) -> Outline | None:
    """The outline of the graph of one output; None if it has no value of its own."""
    found = Outline()
    place: dict[Node, int] = {}
    opened: dict[Node, Node] = {}
    key: list[Hashable] = []
    stack = [output]
    while stack:
        node = top = stack[-1]
        if node in place:
            stack.pop()
            continue
        if node.op.opened is not None:
            if node not in opened:
                opened[node] = node.op.opened(node)
            node = opened[node]
        missing = [n for n in node.inputs if n not in place and not n.is_number]
        sizes = _late_variables(node)
        if sizes:
            counts = [count_of(variable) for variable in sizes]
            if None in counts:
                return None
            missing += [n for n in counts if n is not None and n not in place]
        if missing:
            missing.reverse()
            stack += missing
            continue
        stack.pop()
        if sizes:
            _name_by_place(found, sizes, [place[n] for n in counts if n is not None])
        wires = [place[n] if n in place else _repeat(found, key, n) for n in node.inputs]
        at = place[top] = _add(found, key, node, wires)
        if at < 0:
            return None
    if found.late:
        key += found.counts
        let_counts_go()
    found.key = tuple(key)
    return found


def _late_variables(node: Node) -> Sequence[LateVariable]:
    """Those in the attributes of a node, and of the repeated numbers that it reads."""
    found: Sequence[LateVariable] = node.rule.late
    for operand in node.inputs:
        each = operand
        while each.is_number:
            if each.rule.late:
                found = [*found, *each.rule.late]
            if not each.inputs:
                break
            each = each.inputs[0]
    return found


def _name_by_place(found: Outline, sizes: Sequence[LateVariable], counts: list[int]) -> None:
    """Give late variables the names that they have in every graph of this outline."""
    for variable, count in zip(sizes, counts, strict=True):
        if variable not in found.late:
            limit = substitute(variable.limit, found.late)
            number = len(found.late)
            found.late[variable] = _late(number, variable.min, variable.max, limit)
            found.counts.append(count)


@lru_cache(maxsize=256)  # one object for all graphs of an outline: it knows its hash
def _late(number: int, low: int, high: int | None, limit: Dim) -> LateVariable:
    return LateVariable(f"late{number}", low, high, limit)


def _repeat(found: Outline, key: list[Hashable], node: Node) -> int:
    """Add a number for one use of it; the place of what is used."""
    chain = [node]
    while chain[-1].inputs:
        chain.append(chain[-1].inputs[0])
    at = -1
    for each in reversed(chain):
        at = _add(found, key, each, [at] if each.inputs else [])
    return at


def _add(found: Outline, key: list[Hashable], node: Node, wires: list[int]) -> int:
    """Add a node; its place, or -1 if it, or an operand, cannot be part of an outline."""
    rule = node.rule
    feature: Feature | None = _late_feature(node, found.late) if rule.late else rule.feature
    if feature is None:
        feature = _feature(node)
    if not feature.is_known or -1 in wires:
        return -1
    nodes = found.nodes
    place = len(nodes)
    nodes.append(node)
    found.wires.append(wires)
    key.append(feature)
    key += wires
    if feature.kind:
        _add_data(found, feature.kind, place, node)
    return place


def _add_data(found: Outline, kind: str, place: int, node: Node) -> None:
    """List what a node has beside its feature."""
    if kind == "data":
        found.slots[place] = len(found.data)
        found.data.append(node.attrs.storage.array)
        return
    found.slots[place] = len(found.numbers)
    if kind == "scalar":
        found.numbers.append(node.attrs.key)
        found.values.append(node.attrs.value)
        return
    starts = node.attrs.before if kind == "before" else node.attrs.starts
    found.numbers += starts
    found.values += starts


_PLAIN = frozenset({LateVariable, int, bool, str})  #: types of attributes
_features: WeakTable[Feature] = WeakTable()
_lock = make_lock()


def is_bound(dim: Dim) -> bool:
    """Whether somebody must give a value before the dim is known, or a loop does."""
    return any(not isinstance(atom, LateVariable) for atom in atoms(dim))


def _feature(node: Node) -> Feature:
    """The feature of a node; its rule keeps it."""
    node.rule.feature = _make_feature(node, node.attrs)
    found: Feature = node.rule.feature
    return found


def _late_feature(node: Node, late: Mapping[LateVariable, LateVariable]) -> Feature:
    """The feature of a node with late variables, under the names that they have by place."""
    attrs = node.attrs
    fields = [getattr(attrs, name) for name in attrs.__dataclass_fields__]
    if not all(type(value) in _PLAIN for value in fields):
        return _make_feature(node, substitute_attrs(attrs, late))
    # Sizes and numbers alone, as masks have them: these are found without attributes of their own.
    rest = tuple([late.get(v, v) if type(v) is LateVariable else v for v in fields])
    return _find_feature((node.op.name, rest, len(node.inputs), True), "")


def _make_feature(node: Node, attrs: Any) -> Feature:
    """What a node of this kind with these attributes says."""
    name = node.op.name
    kind, rest, is_known = "", attrs, not any(is_bound(dim) for dim in attr_dims(attrs))
    is_fixed = not any(True for _ in attr_dims(attrs))
    match name:
        case "scalar":
            kind, rest = "scalar", (attrs.dtype, attrs.shape)
        case "constant" | "param":
            name, kind, rest = "data", "data", attrs.type
            is_known = not attrs.storage.is_missing
        case "slice" if is_fixed:
            kind, rest = "starts", (attrs.sizes, attrs.steps)
        case "pad" if is_fixed:
            kind = "before"
            rest = tuple(b + a for b, a in zip(attrs.before, attrs.after, strict=True))
        case "loop" | "cond":
            rest, _ = plain_attrs(attrs)
        case "input" | "state" | "frame" | "stored" | "move":
            is_known = False
    return _find_feature((name, rest, len(node.inputs), is_known), kind)


def _find_feature(key: tuple[str, Hashable, int, bool], kind: str) -> Feature:
    """The one feature of this key, which has said whether it is known."""
    found = _features.get(key)
    if found is None:
        with _lock:
            found = _features.setdefault(key, Feature(kind, key[3]))
    return found

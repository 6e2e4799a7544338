"""The graph of tensor ops: immutable, hash-consed nodes.

    make_node(op, inputs, attrs) -> Node        Graph(outputs) -> nodes in topological order

A node is (op, inputs, attrs, type) and nothing else, so that two equal
computations are one node and CSE comes for free. Where a node was written (the
user's source line) is kept beside it: `Node.origins` grows when the same
computation is written in several places, and takes no part in identity. Nor does
`Node.made_by`, the function that was called there last. A constant's identity is
its storage, not its content.

While the body of a loop or of a branch is traced a `Scope` is open, and what is made then is the
scope's own: an equal computation outside is another node, so that it can be told what belongs to
the body. Whoever closes the body makes its nodes again, outside of the scope.

One idea: a node is what it is equal to, and all that makes, numbers or keeps nodes relies on that.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeAlias
from weakref import WeakSet

import numpy as np

from semel.errors import GraphError
from semel.ir.expr import (
    Dim,
    Expr,
    Fn,
    Index,
    LateVariable,
    Variable,
    atoms,
    upper_bound,
    variables,
)
from semel.ir.lineage import note, recorded
from semel.ir.opdef import OPS, OpDef, find_op
from semel.ir.target import CACHE_LINE_BYTES
from semel.ir.types import TensorType
from semel.ir.weak import WeakTable
from semel.locks import computed_once, make_lock

Array: TypeAlias = "np.ndarray[Any, Any]"

_ids = itertools.count(1)
_lock = make_lock()
_interned: WeakTable[Node] = WeakTable()


class Storage:
    """The bytes of a constant: a sealed NumPy array, C-contiguous, identity by object.

    That of a param whose data is yet to be set has a shape and a dtype, and zeros that take no
    memory and mean nothing: it `is_missing`.
    """

    __slots__ = ("__weakref__", "array", "id", "is_missing")

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = np.asarray(array, order="C")  # keeps a 0-d array 0-d
        self.array.flags.writeable = False
        self.id = next(_ids)
        self.is_missing = False

    @classmethod
    def missing(cls, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Storage:
        """The place of data that somebody sets before the first run."""
        made = cls(np.zeros((), dtype))
        made.array, made.is_missing = np.broadcast_to(made.array, shape), True
        return made

    def __repr__(self) -> str:
        return f"storage{self.id}"


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An array whose first byte starts a cache line, for constants that kernels stream.

    NumPy promises 16 bytes only; from such an address every other vector would touch two
    lines.
    """
    size_bytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(size_bytes + CACHE_LINE_BYTES, np.uint8)
    start = -raw.ctypes.data % CACHE_LINE_BYTES
    return raw[start : start + size_bytes].view(dtype).reshape(shape)


class Rule:
    """What follows from an op, its attrs and the types of its operands; nodes share it.

    There is one at a time for the same op, attrs and types; of leaves, which differ in their data
    or their names, for the same op and type. Composites, and what has bodies, have their own.
    `feature` is what the outline of a graph says of such a node, once one was taken; `variables`
    are those in its type and attrs, and `late` the late ones in its attrs. `is_symbolic`: some dim
    of its type or its attrs is no number.
    """

    __slots__ = ("__weakref__", "feature", "is_symbolic", "late", "type", "variables")

    def __init__(self, type_: TensorType, attrs: Any) -> None:
        self.type = type_
        self.feature: Any = None
        dims = [*attr_dims(attrs)]
        in_attrs = {v for dim in dims for v in variables(dim)}
        self.late = _in_order(v for v in in_attrs if isinstance(v, LateVariable))
        in_type = {v for dim in type_.shape if type(dim) is not int for v in variables(dim)}
        self.variables: frozenset[Variable] = frozenset(in_attrs | in_type)
        self.is_symbolic = bool(dims) or any(type(dim) is not int for dim in type_.shape)


class Node:
    """One op applied to nodes. Make one with `make_node`."""

    __slots__ = (
        "__weakref__", "attrs", "counts", "id", "inputs", "is_number", "made_by", "op", "origins",
        "rule", "tells", "type",
    )  # fmt: skip

    op: OpDef
    inputs: tuple[Node, ...]
    attrs: Any
    type: TensorType
    id: int
    origins: tuple[str, ...]
    made_by: str
    rule: Rule
    counts: tuple[Node, ...]  #: keeps alive what tells the late variables in its attrs
    is_number: bool  #: a scalar, or one number repeated
    tells: LateVariable | None  #: whose value this is, if it is a size

    def __repr__(self) -> str:
        return f"%{self.id} = {self.op.name} : {self.type}"


def make_node(
    op: str,
    inputs: Sequence[Node] = (),
    attrs: Any = None,
    *,
    origin: str = "",
    made_by: str = "",
) -> Node:
    """The node for `op(inputs, attrs)`: an existing one if there is an equal one alive.

    `origin` is where it is written and `made_by` the function that is called there, for people.
    """
    record = OPS.get(op) or find_op(op)
    inputs = tuple(inputs)
    rule: Rule | None = None
    key: Any = (record, attrs, inputs)
    if record.kind not in _WITH_OWN_RULES and not record.has_bodies:
        rule = _find_rule(record, attrs, inputs)
        key = (rule, inputs)  # says the same, and takes no time to hash
    scope = _innermost_scope() if _open_scopes and record.is_made else None
    found = scope.nodes.get(key) if scope is not None else _interned.get(key)
    if found is None:
        if rule is None:
            rule = _own_rule(record, attrs, inputs)
        node = Node()
        node.op, node.inputs, node.attrs, node.type = record, inputs, attrs, rule.type
        node.id, node.origins, node.made_by, node.rule = next(_ids), (), made_by, rule
        node.tells = None
        node.counts = tuple([n for v in rule.late if (n := _counts.get(v))]) if rule.late else ()
        node.is_number = record.repeats and (not inputs or inputs[0].is_number)
        if scope is not None:
            found = scope.add(key, node)
        else:
            with _lock:
                found = _interned.setdefault(key, node)
    if origin or made_by:  # called now: operators by nobody
        found.made_by = made_by
        origins = found.origins
        if origin and origin not in origins and len(origins) < 8:
            found.origins = (*origins, origin)
    return found


def data_node(attrs: Any, kind: TensorType) -> Node:
    """A constant over data that nobody else has: no other node can be equal, so none is looked for.

    It has no origin: a result of a run was written nowhere.
    """
    record = _constant()
    node = Node()
    node.op, node.inputs, node.attrs, node.type = record, (), attrs, kind
    node.id, node.origins, node.made_by, node.rule = next(_ids), (), "", _leaf_rule(record, kind)
    node.counts, node.is_number, node.tells = (), False, None
    return node


@cache
def _constant() -> OpDef:
    return find_op("constant")


def make_again(node: Node, inputs: Sequence[Node], attrs: Any) -> Node:
    """The node over these operands and with these attrs; a composite as what it is made of.

    Every graph that is compiled has been made again: by `ir.late`, which names its late variables,
    or as the body of a loop or a branch.
    """
    made = make_node(node.op.name, inputs, attrs)
    return made if made.op.made_of is None else made.op.made_of(made)


class Scope:
    """What is made while a body is traced: `node in scope`, for all but leaves that have data.

    Scopes of one thread nest; each has its own nodes, equal or not to those around it.
    """

    def __init__(self) -> None:
        self.nodes: dict[Any, Node] = {}
        self._made: set[Node] = set()
        self._first = next(_ids)

    def add(self, key: Any, node: Node) -> Node:
        self.nodes[key] = node
        self._made.add(node)
        _scoped.add(node)
        return node

    def __contains__(self, node: Node) -> bool:
        return node in self._made

    def was_before(self, node: Node) -> bool:
        """Whether a node, a leaf too, was there before the scope."""
        return node not in self and node.id < self._first

    def __enter__(self) -> Scope:
        _change_open_scopes(1)
        _scopes().append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _scopes().pop()
        _change_open_scopes(-1)


class no_scope:  # noqa: N801 - reads as what it does
    """Make nodes that all have in common, whatever is being traced."""

    __slots__ = ()

    def __enter__(self) -> None:
        _scopes().append(None)

    def __exit__(self, *_: object) -> None:
        _scopes().pop()


_open_scopes = 0  #: of all threads: without any, making a node takes no look at them
_scope_local = threading.local()
_scoped: WeakSet[Node] = WeakSet()


def _change_open_scopes(by: int) -> None:
    global _open_scopes  # noqa: PLW0603 - counted under the lock
    with _lock:
        _open_scopes += by


def _scopes() -> list[Scope | None]:
    found: list[Scope | None] | None = getattr(_scope_local, "scopes", None)
    if found is None:
        found = _scope_local.scopes = []
    return found


def is_tracing() -> bool:
    """Whether nodes that are made now are those of a body."""
    return _open_scopes > 0 and _innermost_scope() is not None


def is_from_outside(node: Node) -> bool:
    """Whether a body is being traced, and the node was made before that began."""
    scope = _innermost_scope() if _open_scopes else None
    return scope is not None and scope.was_before(node)


def _innermost_scope() -> Scope | None:
    scopes = _scopes()
    return scopes[-1] if scopes else None


MAX_RULES = 4096  #: kept without a node; then they are let go, all at once
_rules: WeakTable[Rule] = WeakTable()
#: By the operands' types as objects, which stand beside the rule so that none is another later.
_latest_rules: dict[Any, tuple[Rule, list[TensorType]]] = {}


#: Kinds of ops whose attributes are no other node's: data, names, and sizes that are made anew.
_WITH_OWN_RULES = frozenset({"leaf", "composite"})


def _own_rule(record: OpDef, attrs: Any, inputs: tuple[Node, ...]) -> Rule:
    """The rule of a node that shares it with nobody, or with leaves of its type.

    The attributes of what has bodies hold nodes, and with them data: no table may hold them.
    """
    kind = _inferred(record, attrs, [n.type for n in inputs])
    if record.kind == "leaf" and not getattr(attrs, "part", ()):
        return _leaf_rule(record, kind)
    return Rule(kind, attrs)  # a part of an input has variables that its type has not


def _inferred(record: OpDef, attrs: Any, types: Sequence[TensorType]) -> TensorType:
    """The type of the result; nothing computes with a narrow operand."""
    narrow = next((t for t in types if t.dtype.is_narrow), None)
    if narrow is not None and record.computes:
        raise GraphError(
            record.name,
            f"nothing is computed with {narrow.dtype}, got {narrow}.",
            hint=f"Cast it to {narrow.dtype.compute} first.",
        )
    kind: TensorType = record.infer(attrs, *types)
    return kind


def _find_rule(record: OpDef, attrs: Any, inputs: tuple[Node, ...]) -> Rule:
    """The one rule of `record(inputs, attrs)`."""
    types = [n.type for n in inputs]
    latest = (record, attrs, *map(id, types))
    known = _latest_rules.get(latest)
    if known is not None:
        return known[0]
    key = (record, attrs, *types)
    found = _rules.get(key)
    if found is None:
        made = Rule(_inferred(record, attrs, types), attrs)
        with _lock:
            found = _rules.setdefault(key, made)
    if len(_latest_rules) >= MAX_RULES:
        _latest_rules.clear()
    _latest_rules[latest] = (found, types)
    return found


def _leaf_rule(record: OpDef, kind: TensorType) -> Rule:
    """The one rule of leaves of a type."""
    key = (record, kind)
    found = _leaf_rules.get(key)
    if found is None:
        with _lock:
            if len(_leaf_rules) >= MAX_RULES:
                _leaf_rules.clear()
            found = _leaf_rules[key] = _rules.setdefault(key, Rule(kind, None))
    return found


_leaf_rules: dict[Any, Rule] = {}


def attr_dims(attrs: Any) -> Iterator[Dim]:
    """The symbolic dims that attributes hold: a slice's starts, a pad's sides, an index's size.

    Of a body, the variables that it does not tell itself, and the steps of loops around it.
    """
    if attrs is None:
        return
    for name in attrs.__dataclass_fields__:  # faster than fields(), and this runs for every node
        value = getattr(attrs, name)
        if isinstance(value, Graph):
            own = getattr(attrs, "step", None)
            yield from (v for v in value.variables if v not in value.late)
            yield from (index for index in value.indices if index != own)
            continue
        for dim in value if isinstance(value, tuple) else (value,):
            if isinstance(dim, (Variable, Index, Fn, Expr)):
                yield dim


def attr_bodies(attrs: Any) -> Iterator[Graph]:
    """The graphs that attributes hold: the body of a loop, the two of a branch."""
    if attrs is not None:
        for name in attrs.__dataclass_fields__:
            value = getattr(attrs, name)
            if isinstance(value, Graph):
                yield value


def map_bodies(attrs: Any, change: Callable[[Graph], Graph]) -> Any:
    """The attributes with other graphs in the place of those that they hold."""
    found = {
        name: value
        for name in (() if attrs is None else attrs.__dataclass_fields__)
        if isinstance(value := getattr(attrs, name), Graph)
    }
    if not found:
        return attrs
    return replace(attrs, **{name: change(body) for name, body in found.items()})


# ---------------------------------------------------------------- late variables

#: The node that tells each late variable. Nodes with the variable in their attrs keep it alive.
_counts: WeakTable[Node] = WeakTable()
#: The latest of them, kept until a graph of such sizes is compiled: in `ones(x[mask].shape)` the
#: tensor is gone before the node with its size is made.
_latest_counts: deque[Node] = deque(maxlen=8)


def late_variable(count: Node, limit: Dim) -> LateVariable:
    """The variable whose value is that of `count` (an int64 scalar), once a run has computed it.

    There is one for each node: equal counts are one size. It lies in [0, limit].
    """
    with _lock:
        found = count.tells
        if found is None:
            found = LateVariable(f"late{next(_ids)}", 0, upper_bound(limit), limit)
            count.tells = found
            _counts.setdefault(found, count)
        _latest_counts.append(count)
    return found


def let_counts_go() -> None:
    """Keep nothing alive that only tells sizes which no node has."""
    _latest_counts.clear()


def count_of(variable: LateVariable) -> Node | None:
    """The node that tells the variable; None if nobody holds it any more."""
    return _counts.get(variable)


def _in_order(late: Iterable[LateVariable]) -> tuple[LateVariable, ...]:
    """Late variables in the order in which they were made."""
    late = tuple(late)
    return late if len(late) < 2 else tuple(sorted(late, key=lambda v: (len(v.name), v.name)))


def topological(outputs: Iterable[Node]) -> tuple[Node, ...]:
    """All nodes the outputs need, operands before users, in a deterministic order."""
    order: list[Node] = []
    done: set[Node] = set()
    stack: list[Node | tuple[Node]] = [
        *reversed(list(outputs))
    ]  # in a tuple: its operands are done
    while stack:
        node = stack.pop()
        if isinstance(node, tuple):
            order.append(node[0])
        elif node not in done:
            done.add(node)
            if node.inputs:
                stack.append((node,))
                stack += node.inputs[::-1]
            else:
                order.append(node)
    return tuple(order)


@dataclass(frozen=True, slots=True)
class Held:
    """A variable that is kept between runs: one that succeeds leaves `next` to the one after it."""

    variable: Variable
    next: Dim


def next_name(state: str) -> str:
    """What the next value of a state is called among the outputs."""
    return f"next {state}"


@dataclass(frozen=True)
class Graph:
    """What to compute: named outputs.

    `names` are the outputs' names, parallel to `outputs`. The first outputs are what tells the
    variables in `late`, one each (ir/late.py), so that it stands before all that has such a size.
    Behind them come the next values of the states named in `updates`, in that order: each is an
    `update` of the state, or of an update of it. The others are its `values`. `held` are variables
    that go on by themselves. `guards` are dims that must be zero where it runs, each with a
    sentence, once somebody took them (ops/guard_places.py). `declared` are leaves that it has in
    this order, before all others, read by anything or not.
    """

    outputs: tuple[Node, ...]
    names: tuple[str, ...] = ()
    late: tuple[LateVariable, ...] = ()
    updates: tuple[str, ...] = ()
    held: tuple[Held, ...] = ()
    guards: tuple[tuple[Dim, str], ...] = ()
    declared: tuple[Node, ...] = ()
    nodes: tuple[Node, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if not self.outputs:
            raise GraphError("graph", "needs at least one output.")
        names = self.names or tuple(f"output{i}" for i in range(len(self.outputs)))
        if len(names) != len(self.outputs) or len(set(names)) != len(names):
            raise GraphError("graph", f"needs one distinct name per output, got {names}.")
        object.__setattr__(self, "names", names)
        if any(node.op.kind != "leaf" for node in self.declared):
            raise GraphError("graph", f"only leaves are declared, got {self.declared}.")
        object.__setattr__(self, "nodes", topological((*self.declared, *self.outputs)))
        self._check_inputs()
        self._check_states()

    def _check_inputs(self) -> None:
        for what, nodes in (("inputs", self.inputs), ("states", self.states)):
            seen: dict[str, Node] = {}
            for node in nodes:
                name = node.attrs.name
                if seen.setdefault(name, node) is not node:
                    found = f"{seen[name].type} and {node.type}"
                    raise GraphError("graph", f"two {what} are named '{name}': {found}.")
        bounds: dict[str, Variable] = {}
        for variable in self.variables:
            if bounds.setdefault(variable.name, variable) != variable:
                raise GraphError(
                    "graph",
                    f"variable '{variable.name}' has two ranges, "
                    f"[{bounds[variable.name].min}, {bounds[variable.name].max}] and "
                    f"[{variable.min}, {variable.max}].",
                )

    def _check_states(self) -> None:
        """A state has one next value, and every update is part of one, or an output."""
        stored = [node for node in self.values if node.op.name == "update"]
        known = {node for node in stored if node.inputs[0].op.name == "frame"}
        for name, (leaf, *updates) in self.versions.items():
            if leaf.op.name != "state" or leaf.attrs.name != name or not updates:
                raise GraphError("graph", f"the next value of '{name}' must be an update of it.")
            known.update(updates)
        if len(self.versions) != len(self.updates):
            raise GraphError("graph", f"a state has one next value, got {self.updates}.")
        for node in self.nodes if known or self.states else ():
            if node.op.kind == "update" and node not in known:
                raise GraphError(
                    "graph",
                    f"{node!r} must be part of the next value of a state, or an output.",
                    hint="Prepare the graph that the state was made in.",
                )

    @property
    def values(self) -> tuple[Node, ...]:
        """The outputs that somebody asked for."""
        return self.outputs[len(self.late) + len(self.updates) :]

    @property
    def results(self) -> tuple[tuple[str, Node], ...]:
        """The same by name."""
        first = len(self.late) + len(self.updates)
        return tuple(zip(self.names, self.outputs, strict=True))[first:]

    @property
    def versions(self) -> dict[str, tuple[Node, ...]]:
        """Each updated state by name, and what it becomes: the leaf, then every update of it."""
        found: dict[str, tuple[Node, ...]] = {}
        for name, node in zip(self.updates, self.outputs[len(self.late) :], strict=False):
            chain = [node]
            while chain[-1].op.kind == "update":
                chain.append(chain[-1].inputs[0])
            found[name] = tuple(reversed(chain))
        return found

    @property
    def counts(self) -> dict[Node, list[LateVariable]]:
        """The nodes that tell late variables, and which."""
        found: dict[Node, list[LateVariable]] = {}
        for node, variable in zip(self.outputs, self.late, strict=False):
            found.setdefault(node, []).append(variable)
        return found

    @computed_once
    def ops(self) -> frozenset[str]:
        """The names of its ops: a pass that looks for others has nothing to do."""
        return frozenset([n.op.name for n in self.nodes])

    @computed_once
    def has_bodies(self) -> bool:
        """Whether it has loops or branches."""
        return any(n.op.has_bodies for n in self.nodes)

    @computed_once
    def inputs(self) -> tuple[Node, ...]:
        return tuple([n for n in self.nodes if n.op.name == "input"])

    @computed_once
    def states(self) -> tuple[Node, ...]:
        return tuple([n for n in self.nodes if n.op.name == "state"])

    @computed_once
    def variables(self) -> tuple[Variable, ...]:
        found: set[Variable] = set()
        for node in self.nodes:
            found |= node.rule.variables
        for held in self.held:
            found |= {held.variable, *variables(held.next)}
        for amount, _ in self.guards:
            found.update(variables(amount))
        return tuple(sorted(found, key=lambda v: (v.name, v.min, v.max or 0)))

    @property
    def indices(self) -> tuple[Index, ...]:
        """The steps of loops around this graph that its attributes mention."""
        found: dict[Index, None] = {}
        for node in self.nodes:
            for dim in attr_dims(node.attrs):
                found.update(dict.fromkeys(a for a in atoms(dim) if isinstance(a, Index)))
        return tuple(sorted(found, key=lambda i: (i.name, str(i.extent))))

    def with_outputs(self, outputs: Sequence[Node]) -> Graph:
        given = tuple(outputs)  # written out, since every pass comes here
        return Graph(
            given, self.names, self.late, self.updates, self.held, self.guards, self.declared
        )

    def with_values(self, values: Sequence[Node]) -> Graph:
        """A graph of other values, named by number, that finds out and demands the same."""
        first = len(self.late) + len(self.updates)
        return replace(
            self,
            outputs=(*self.outputs[:first], *values),
            names=(*self.names[:first], *map(str, range(len(values)))),
        )


def rewrite(graph: Graph, rule: Callable[[Node], Node | None]) -> Graph:
    """Apply `rule` to every node, operands first; None keeps the node (with new operands)."""
    return rewrite_nodes(graph, rule)[0]


def rewrite_nodes(
    graph: Graph, rule: Callable[[Node], Node | None]
) -> tuple[Graph, dict[Node, Node]]:
    """Likewise, with what nodes became that are others now."""
    new: dict[Node, Node] = {}  # of those that became another one: most stay what they are
    known = set(graph.nodes)
    with recorded(None):
        for node in graph.nodes:
            candidate = node
            if new and not new.keys().isdisjoint(node.inputs):
                inputs = tuple([new.get(n, n) for n in node.inputs])
                candidate = make_node(node.op.name, inputs, node.attrs)
                stands_for(candidate, node, known)
            replaced = rule(candidate)
            if replaced is not None and replaced is not candidate:
                stands_for(replaced, node, known)
                candidate = replaced
            if candidate is not node:
                new[node] = candidate
    note(new)
    outputs = graph.outputs
    if not new.keys().isdisjoint(graph.declared):
        declared = tuple(new.get(n, n) for n in graph.declared)
        made = replace(graph, outputs=tuple(new.get(n, n) for n in outputs), declared=declared)
        return made, new
    if new.keys().isdisjoint(outputs):
        return graph, new
    return graph.with_outputs([new.get(n, n) for n in outputs]), new


def stands_for(made: Node, node: Node, known: set[Node] | None = None) -> None:
    """Let `made` be what people wrote as `node`; with it all it is made of that is not `known`.

    A node that another graph has, too, may have got its name there: that is not asked. What an
    input stands for was written elsewhere, and keeps its name.
    """
    made.origins = made.origins or node.origins
    if node.op.name == "input":
        return
    if known is None:
        made.made_by = node.made_by
        return
    stack = [made]
    while stack:
        each = stack.pop()
        if each not in known:
            known.add(each)
            each.made_by = node.made_by
            stack += each.inputs


def shared(graph: Graph) -> Graph:
    """The graph with nodes that all have in common, for those made in a scope that has ended."""
    if not any(node in _scoped for node in graph.nodes):
        return graph

    def rule(node: Node) -> Node | None:
        return make_node(node.op.name, node.inputs, node.attrs) if node in _scoped else None

    return rewrite(graph, rule)


def users(nodes: Iterable[Node]) -> dict[Node, list[Node]]:
    """The users of each node, in order; a user that reads a node twice stands there twice."""
    result: dict[Node, list[Node]] = {n: [] for n in nodes}
    for node in result:
        for operand in node.inputs:
            result[operand].append(node)
    return result

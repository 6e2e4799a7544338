"""Nodes to scalar values: what one element of a node is, at one index.

    (Node, index) --Evaluator--> Value (+ Bind and Check statements it relies on)

Elementwise ops become arithmetic and movement ops change the index, as the record of each
says (`OpDef.value`, `element`, `index`); leaves and materialised nodes become loads.
Reductions and contractions are not evaluated here: the loop that computes them tells the
evaluator which local holds the result (`known`). An evaluator serves one loop body; statements
it needs stand in `prelude`, in order. Where an element may not exist (padding, concatenation) a
guard travels down, and loads below it do not touch memory unless it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from semel.errors import InternalError
from semel.ir.expr import Dim, Index, atoms
from semel.ir.graph import Node
from semel.ir.signature import CheckInfo
from semel.ir.types import INT64
from semel.kernel import ir
from semel.kernel.ir import Buffer, Statement, Value, walk_values
from semel.ops.index_maps import Indices, flat_index

#: How many nodes deep one Python call stack goes; each takes about three frames.
MAX_DEPTH = 64

_Key: TypeAlias = "tuple[Node, Indices, Value | None]"


class _TooDeepError(Exception):
    """Asks the outermost call to evaluate `key` first."""

    def __init__(self, key: _Key) -> None:
        self.key = key


@dataclass
class Evaluator:
    """Values of nodes inside one loop body. `buffers` are what can be loaded.

    `known` holds nodes whose value is at hand (accumulators); `checks` is shared by
    the whole kernel; `shared_bound` names indices bound outside this body.
    """

    buffers: Mapping[Node, Buffer]
    known: Mapping[Node, Value]
    checks: list[CheckInfo]
    names: Callable[[str], str]
    kept: Callable[[Node, Indices], Value | None] = lambda node, at: None
    prelude: list[Statement] = field(default_factory=list)
    _memo: dict[_Key, Value] = field(default_factory=dict)
    _bound: dict[_Key, Index] = field(default_factory=dict)
    _depth: int = 0

    def __call__(self, node: Node, at: Indices, guard: Value | None = None) -> Value:
        key = (node, at, guard)
        found = self._memo.get(key)
        if found is not None:
            return found
        if self._depth == 0:
            return self._evaluate_all(key)
        if self._depth >= MAX_DEPTH:
            raise _TooDeepError(key)
        return self._evaluate_key(key)

    def _evaluate_all(self, key: _Key) -> Value:
        """Evaluate a chain of any length: what lies too deep is evaluated first, by itself.

        A rule may be entered again after that. It is safe because rules leave statements,
        checks and names behind only after all the values they need are there.
        """
        waiting = [key]
        while waiting:
            try:
                self._evaluate_key(waiting[-1])
                waiting.pop()
            except _TooDeepError as deep:
                waiting.append(deep.key)
        return self._memo[key]

    def _evaluate_key(self, key: _Key) -> Value:
        self._depth += 1
        try:
            found = self._memo[key] = self._evaluate(*key)
        finally:
            self._depth -= 1
        return found

    def _evaluate(self, node: Node, at: Indices, guard: Value | None) -> Value:
        if node in self.known:
            return self.known[node]
        kept = self.kept(node, at)
        if kept is not None:
            return kept
        if node in self.buffers:
            return self._load(node, at, guard)
        op = node.op
        if op.value is not None:
            return op.value(*[self(x, at, guard) for x in node.inputs])  # type: ignore[no-any-return]
        if op.element is not None:
            return op.element(self, node, at, guard)  # type: ignore[no-any-return]
        if op.kind == "movement":
            return self(node.inputs[0], self.moved(node, 0, at, guard), guard)
        raise InternalError("lower", f"{node!r} is neither computed here nor in memory.")

    def _load(self, node: Node, at: Indices, guard: Value | None) -> Value:
        where = flat_index(at, node.type.shape)
        buffer = self.buffers[node]
        if guard is None:
            return ir.load(buffer, where)
        return ir.load(buffer, where, guard, ir.const(buffer.dtype, 0))

    # ------------------------------------------------------------ what the rules of ops ask

    def moved(self, node: Node, operand: int, at: Indices, guard: Value | None) -> Indices:
        """The index of an operand; what is read from memory for it is bound before it is used."""
        rule = node.op.index
        if rule is None:
            return at
        return rule(node, operand, at, lambda n, i: self._gathered(n, i, guard))

    def _gathered(self, node: Node, at: Indices, guard: Value | None) -> Index:
        """The index atom for an index tensor's element, bound before it is used."""
        key = (node, at, guard)
        if key not in self._bound:
            value = self(node.inputs[1], at, guard)
            extent = node.inputs[0].type.shape[node.attrs.axis]
            atom = Index(self.names("g"), extent)
            self.prelude.append(ir.Bind(atom, ir.cast(value, INT64)))
            self._bound[key] = atom
        return self._bound[key]

    def check(self, info: CheckInfo, ok: Value, value: Value, guard: Value | None) -> None:
        """A check, made before whatever relies on it."""
        self.checks.append(info)
        must = ok if guard is None else ok | ir.op("not", guard)
        self.prelude.append(ir.Check(must, len(self.checks), value))


def wanted_at(
    node: Node, outputs: Sequence[Node], buffers: Mapping[Node, Buffer], loops: Indices
) -> Indices:
    """The index at which `outputs`, evaluated at `loops`, ask for `node`."""
    seen: list[Indices] = []

    def look(asked: Node, at: Indices) -> Value | None:
        if asked is not node:
            return None
        seen.append(at)
        return ir.const(node.type.dtype, 0)

    evaluate = Evaluator(buffers, {}, [], lambda prefix: prefix, look)
    for output in outputs:
        evaluate(output, loops)
    return seen[0]


# ---------------------------------------------------------------- reductions


def combine_of(node: Node) -> str:
    """How kernels combine for a reduce node; NaN may get lost where that was allowed."""
    assert node.op.combiner is not None
    combiner = node.op.combiner(node.attrs)
    may_skip = not node.attrs.propagate_nan or not node.inputs[0].type.dtype.is_float
    return combiner.fast if combiner.fast and may_skip else combiner.kernel


def value_atoms(value: Value) -> frozenset[Index]:
    """The loop indices and bound indices that a value depends on."""
    found: set[Index] = set()
    for v in walk_values([value]):
        dims: tuple[Dim, ...] = ()
        if v.op == "index":
            dims = (v.data,)
        elif v.op in ("load", "word"):
            dims = (v.data[1],)
        for dim in dims:
            found.update(a for a in atoms(dim) if isinstance(a, Index))
    return frozenset(found)

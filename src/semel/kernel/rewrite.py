"""Rewriting of kernel statements and values: indices replaced, values mapped.

    statements x {Index: Dim}  -->  statements

Used to unroll loops (an index becomes a constant) and to merge loops (two
indices become one), and to move buffers to other memory. Values are shared, so a memo
keeps the sharing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from semel.ir.expr import Dim, Index, Substitution, atoms
from semel.kernel import ir
from semel.kernel.ir import Buffer, Statement, Value, with_args


class ValueMap:
    """Maps values bottom-up through `leaf`, keeping shared values shared."""

    def __init__(self, leaf: Callable[[Value], Value]) -> None:
        self._leaf = leaf
        self._memo: dict[Value, Value] = {}

    def __call__(self, value: Value) -> Value:
        memo, stack = self._memo, [value]
        while stack:
            v = stack[-1]
            if v not in memo:
                waiting = [a for a in v.args if a not in memo]
                if waiting:
                    stack += reversed(waiting)
                    continue
                memo[v] = self._leaf(with_args(v, tuple([memo[a] for a in v.args])))
            stack.pop()
        return memo[value]


class IndexMap:
    """`substitute_indices` of the same indices in many statements, which share values."""

    def __init__(self, to: Mapping[Index, Dim]) -> None:
        self._to = to
        self._dim = Substitution(to)
        self._value = ValueMap(self._leaf)

    def __call__(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        """The statements with the indices replaced."""
        return map_statements(body, self._value, self._dim)

    def _leaf(self, value: Value) -> Value:
        match value.op:
            case "index" if not atoms(value.data).isdisjoint(self._to):
                return ir.index(self._dim(value.data))
            case "load" if not atoms(value.data[1]).isdisjoint(self._to):
                return ir.load(value.data[0], self._dim(value.data[1]), *value.args)
            case "word" if not atoms(value.data[1]).isdisjoint(self._to):
                return ir.word(value.data[0], self._dim(value.data[1]))
            case "local" if value.data[1]:
                return ir.local(value.data[0], tuple(self._dim(d) for d in value.data[1]))
            case _:
                return value


def substitute_indices(body: Sequence[Statement], to: Mapping[Index, Dim]) -> tuple[Statement, ...]:
    """The statements with loop indices replaced, in values, indices and loop bounds."""
    return IndexMap(to)(body)


def map_statements(
    body: Sequence[Statement],
    value: Callable[[Value], Value],
    dim: Callable[[Dim], Dim] = lambda d: d,
) -> tuple[Statement, ...]:
    """Every value of every statement through `value`, every index through `dim`."""
    return tuple(_map_statement(s, value, dim) for s in body)


def _map_statement(
    s: Statement, value: Callable[[Value], Value], dim: Callable[[Dim], Dim]
) -> Statement:
    match s:
        case ir.Loop():
            inner = map_statements(s.body, value, dim)
            return replace(s, start=dim(s.start), stop=dim(s.stop), body=inner)
        case ir.If():
            return ir.If(value(s.condition), map_statements(s.body, value, dim))
        case ir.Declare():
            return ir.Declare(s.local, value(s.init))
        case ir.Assign():
            return ir.Assign(s.local, value(s.value), tuple(dim(d) for d in s.at))
        case ir.Reduce():
            values = tuple(value(v) for v in s.values)
            return ir.Reduce(s.locals, s.combine, values, tuple(dim(d) for d in s.at))
        case ir.Bind():
            renamed = dim(s.index)
            index = renamed if isinstance(renamed, Index) else s.index
            return ir.Bind(index, value(s.value))
        case ir.Store():
            guard = None if s.guard is None else value(s.guard)
            return ir.Store(s.buffer, dim(s.at), value(s.value), guard)
        case ir.Prefetch():
            return ir.Prefetch(s.buffer, dim(s.at))
        case ir.BlockDot():
            into, left, right = (
                ir.Block(b.buffer, dim(b.at), dim(b.pitch)) for b in (s.into, s.left, s.right)
            )
            return ir.BlockDot(into, left, right, dim(s.words), s.rows, s.columns, dim(s.live))
        case ir.Check():
            return ir.Check(value(s.ok), s.code, value(s.value))


def move_buffers(
    body: Sequence[Statement], to: Mapping[str, Sequence[tuple[Buffer, Dim]]]
) -> tuple[Statement, ...]:
    """The statements with each buffer, by its name, at an offset into another one.

    What has several places is stored to all of them and loaded from the first. Scratch stays.
    """

    def leaf(value: Value) -> Value:
        if value.op != "load" or value.data[0].access == "s":
            return value
        buffer, offset = to[value.data[0].name][0]
        return ir.load(buffer, value.data[1] + offset, *value.args)

    return _move(body, ValueMap(leaf), to)


def _move(
    body: Sequence[Statement], value: ValueMap, to: Mapping[str, Sequence[tuple[Buffer, Dim]]]
) -> tuple[Statement, ...]:
    result: list[Statement] = []
    for statement in body:
        if isinstance(statement, (ir.Loop, ir.If)):
            inner = _move(statement.body, value, to)
            if isinstance(statement, ir.If):
                result.append(ir.If(value(statement.condition), inner))
            else:
                result.append(replace(statement, body=inner))
            continue
        s = _map_statement(statement, value, lambda d: d)
        match s:
            case ir.Store() if s.buffer.access != "s":
                places = to[s.buffer.name]
                result += [ir.Store(b, s.at + offset, s.value, s.guard) for b, offset in places]
            case ir.Prefetch() if s.buffer.access != "s":
                buffer, offset = to[s.buffer.name][0]
                result.append(ir.Prefetch(buffer, s.at + offset))
            case ir.BlockDot():
                into, left, right = (_moved_block(b, to) for b in (s.into, s.left, s.right))
                result.append(replace(s, into=into, left=left, right=right))
            case _:
                result.append(s)
    return tuple(result)


def _moved_block(block: ir.Block, to: Mapping[str, Sequence[tuple[Buffer, Dim]]]) -> ir.Block:
    if block.buffer.access == "s":
        return block
    buffer, offset = to[block.buffer.name][0]
    return ir.Block(buffer, block.at + offset, block.pitch)

"""Graphs as text: the format of golden tests and bug reports.

    Graph --format_graph--> str --parse_graph--> Graph

    variable n in [1, 512]
    %0 = input "x" : f32[n,4]
    %1 = scalar 2.0 : f32[]
    %2 = reduce_sum %0 {axes=(1,)} : f32[n,1]
    output %2 "y"

Nodes are numbered in topological order, so that equal graphs print equal text. Attrs
stand in braces without those at their default. A storage is printed as `@number`, with
its values if they are few; a parsed graph has zeros where values were left out. Types
are printed for the reader and checked by the parser. Dims, numbers and strings have
Python's syntax and are read by Python's own parser. Ops must be registered
(`import semel.ops`) to be parsed. The bodies of loops and branches stand before the nodes
of the graph they are in, numbered, and are named by that number; in the body of a loop
`_step` is the number of the iteration:

    body 0 for _step < t
      %0 = input "0" : f32[4]
      ...
    end
    %1 = loop %0 {trip=t, body=0, num_states=1, backward=(), output=0} : f32[4]

A late variable says what it is at most; the output of its name tells it:

    late late0 in [0, 8] of 8
    %4 = compact %0 %2 %3 {size=late0, tile=4096} : i64[late0]
    output %3 "late0"

A held variable says what the next run has, and a state what it becomes:

    held cursor = cursor + t
    %1 = state "k" : f32[1024,64]
    %2 = update %1 %0 {starts=(cursor, 0)} : f32[1024,64]
    next %2 "k"

Leaves that a graph has whether or not anything reads them come first:

    declared %0 %1

What must be zero where a graph runs stands before its nodes, with what is said if it is not:

    guard n%4 "reshape: 4 must divide n."
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from typing import Any

import numpy as np

from semel.errors import GraphError
from semel.ir.expr import (
    Dim,
    Expr,
    Fn,
    Index,
    LateVariable,
    Variable,
    evaluate,
    floordiv,
    maximum,
    minimum,
    mod,
    terms,
)
from semel.ir.graph import Graph, Held, Node, Storage, attr_bodies, make_node, next_name
from semel.ir.narrow import as_dtype_array
from semel.ir.opdef import find_op
from semel.ir.types import BOOL, DType, TensorType, as_dtype

#: Constants of up to this many elements are printed in full.
MAX_VALUES = 16

# ---------------------------------------------------------------- print


def format_graph(graph: Graph) -> str:
    """The text of a graph; deterministic, one line per node."""
    lines = [
        f"variable {v.name} in {_interval(v)}"
        for v in graph.variables
        if not isinstance(v, LateVariable)
    ]
    if not graph.late:  # nobody tells them yet
        lines += [_format_late(v) for v in graph.variables if isinstance(v, LateVariable)]
    lines += [f"held {h.variable.name} = {format_dim(h.next)}" for h in graph.held]
    return "\n".join([*lines, *_Writer().lines(graph)]) + "\n"


class _Writer:
    """Numbers storages and bodies in order of appearance, in bodies too."""

    def __init__(self) -> None:
        self.storages: dict[Storage, int] = {}
        self.count = 0

    def lines(self, graph: Graph) -> Iterator[str]:
        known: dict[Any, int] = {}
        yield from map(_format_late, graph.late)
        for amount, text in graph.guards:
            yield f"guard {format_dim(amount)} {json.dumps(text)}"
        for attrs in (n.attrs for n in graph.nodes):
            for body in attr_bodies(attrs):
                if _body_key(attrs, body) not in known:
                    yield from self._body(attrs, body, known)
        numbers = {node: i for i, node in enumerate(graph.nodes)}
        for node in graph.nodes:
            yield _format_node(node, numbers, self.storages, known)
        first = len(graph.late)
        for i, (node, name) in enumerate(zip(graph.outputs, graph.names, strict=True)):
            is_next = first <= i < first + len(graph.updates)
            word, shown = ("next", graph.updates[i - first]) if is_next else ("output", name)
            yield f"{word} %{numbers[node]} {json.dumps(shown)}"
        if graph.declared:
            yield " ".join(["declared", *(f"%{numbers[node]}" for node in graph.declared)])

    def _body(self, attrs: Any, body: Graph, known: dict[Any, int]) -> Iterator[str]:
        key = _body_key(attrs, body)
        number = known[key] = self.count
        self.count += 1
        step = getattr(attrs, "step", None)
        about = "" if step is None else f" for {step.name} < {format_dim(step.extent)}"
        yield f"body {number}{about}"
        yield from (f"  {line}" for line in self.lines(body))
        yield "end"


def _body_key(attrs: Any, body: Graph) -> Any:
    """Equal bodies of loops that count alike are one."""
    return body, getattr(attrs, "step", None)


def _format_late(v: LateVariable) -> str:
    return f"late {v.name} in {_interval(v)} of {format_dim(v.limit)}"


def _interval(variable: Variable) -> str:
    return f"[{variable.min}, {'inf' if variable.max is None else variable.max}]"


def _format_node(
    node: Node,
    numbers: dict[Node, int],
    storages: dict[Storage, int],
    bodies: dict[Any, int],
) -> str:
    words = [f"%{numbers[node]} = {node.op.name}"]
    words += [f"%{numbers[n]}" for n in node.inputs]
    match node.op.name:
        case "scalar":
            words.append(repr(node.attrs.value))
        case "constant":
            words.append(_format_storage(node.attrs.storage, storages))
        case "input" | "param" | "state" | "frame":
            words.append(json.dumps(node.attrs.name))
            data = _data(node)
            words += [] if data is None else [_format_storage(data, storages)]
            words += _format_marks(node.attrs)
        case _ if node.attrs is not None:
            words += _format_attrs(node.attrs, bodies)
    return f"{' '.join(words)} : {format_type(node.type)}{_format_data(node)}"


def _format_marks(attrs: Any) -> list[str]:
    """What some leaves say besides: the part of an input that is read, how a state is updated,
    where they lie."""
    marks = {name: getattr(attrs, name, None) for name in ("part", "is_exchanged", "device")}
    shown = [f"{name}={_format_value(value)}" for name, value in marks.items() if value]
    return [f"{{{', '.join(shown)}}}"] if shown else []


def _format_data(node: Node) -> str:
    """The values of a leaf that has some."""
    data = _data(node)
    return "" if data is None else _format_values(data)


def _data(node: Node) -> Storage | None:
    """What a leaf was given: a constant's data, a param's if it has some, a first value."""
    attrs, found = node.attrs, None
    match node.op.name:
        case "constant" | "param":
            found = attrs.storage
        case "input":
            found = attrs.default
        case "state":
            found = attrs.init
    return None if found is None or found.is_missing else found


def _format_storage(storage: Storage, storages: dict[Storage, int]) -> str:
    return f"@{storages.setdefault(storage, len(storages))}"


def _format_values(storage: Storage) -> str:
    array = storage.array
    if array.size > MAX_VALUES:
        return ""
    dtype = as_dtype(array.dtype)
    plain = float if dtype.is_float else bool if dtype == BOOL else int
    return f" = [{', '.join(repr(plain(v)) for v in array.reshape(-1))}]"


def _format_attrs(attrs: Any, bodies: dict[Any, int]) -> list[str]:
    def text(value: Any) -> str:
        is_body = isinstance(value, Graph)
        return str(bodies[_body_key(attrs, value)]) if is_body else _format_value(value)

    shown = [
        f"{each.name}={text(getattr(attrs, each.name))}"
        for each in fields(attrs)
        if each.default is MISSING or getattr(attrs, each.name) != each.default
    ]
    return [f"{{{', '.join(shown)}}}"]


def _format_value(value: Any) -> str:
    match value:
        case DType():
            return value.short
        case str():
            return json.dumps(value)
        case tuple():
            inner = ", ".join(_format_value(v) for v in value)
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        case Variable() | Index() | Fn() | Expr():
            return format_dim(value)
        case _:
            return repr(value)


def format_type(type_: TensorType) -> str:
    """dtype and dims, every dim in Python's syntax."""
    return f"{type_.dtype.short}[{','.join(format_dim(d) for d in type_.shape)}]"


def format_dim(dim: Dim) -> str:
    """A dim that Python's parser reads back as the same expression."""
    if isinstance(dim, int):
        return str(dim)
    parts: list[str] = []
    for monomial, coefficient in terms(dim):
        factors = [_format_atom(atom) for atom in monomial]
        if coefficient == -1 and factors:
            parts.append("-" + "*".join(factors))
        else:
            number = [] if coefficient == 1 and factors else [str(coefficient)]
            parts.append("*".join(number + factors))
    return " + ".join(parts).replace("+ -", "- ")


def _format_atom(atom: Variable | Index | Fn) -> str:
    if not isinstance(atom, Fn):
        return atom.name
    a, b = (format_dim(arg) for arg in atom.args)
    match atom.kind:
        case "floordiv":
            return f"(({a})//({b}))"
        case "mod":
            return f"(({a})%({b}))"
        case _:
            return f"{atom.kind}({a}, {b})"


# ---------------------------------------------------------------- parse

#: What leaves that may have data call it.
_GIVEN = {"input": "default", "state": "init"}
_STRING = r'"(?:[^"\\]|\\.)*"'
_VARIABLE = re.compile(r"variable (\w+) in \[(\d+), (\d+|inf)\]")
_LATE = re.compile(r"late (\w+) in \[(\d+), (\d+|inf)\] of (.+)")
_HELD = re.compile(r"held (\w+) = (.+)")
_NEXT = re.compile(rf"next %(\d+) ({_STRING})")
_DECLARED = re.compile(r"declared((?: %\d+)+)")
_GUARD = re.compile(rf"guard (.+?) ({_STRING})")
_BODY = re.compile(r"body (\d+)(?: for (\w+) < (.+))?")
_OUTPUT = re.compile(rf"output %(\d+)\s*({_STRING})?")
_NODE = re.compile(
    rf"%(?P<number>\d+) = (?P<op>\w+)(?P<inputs>(?:\s+%\d+)*)"
    rf"(?:\s+(?P<name>{_STRING}))?(?:\s+@(?P<storage>\d+))?"
    rf'(?:\s+\{{(?P<attrs>(?:[^"{{}}]|{_STRING})*)\}})?(?:\s+(?P<scalar>[^\s:@{{]+))?'
    rf"\s+: (?P<dtype>\w+)\[(?P<shape>[^\]]*)\](?: = \[(?P<values>.*)\])?"
)


def parse_graph(text: str) -> Graph:
    """The graph of a text; GraphError names the first line that cannot be read."""
    parsers = [_Parser()]  # of the graph, and of the bodies around the line
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if found := _BODY.fullmatch(line):
            parsers.append(parsers[-1].begin_body(found, number))
        elif line == "end" and len(parsers) > 1:
            body = parsers.pop()
            parsers[-1].bodies[body.number] = body.graph()
        else:
            parsers[-1].read(line, number)
    return parsers[0].graph()


class _Parser:
    """What has been read so far: variables, nodes and storages by number, outputs."""

    def __init__(self) -> None:
        self.variables: dict[str, Variable] = {}
        self.late: list[LateVariable] = []
        self.guards: list[tuple[Dim, str]] = []
        self.nodes: dict[int, Node] = {}
        self.storages: dict[int, Storage] = {}
        self.outputs: list[Node] = []
        self.names: list[str] = []
        self.updates: list[str] = []
        self.held: list[Held] = []
        self.declared: list[Node] = []
        self.bodies: dict[int, Graph] = {}
        self.steps: dict[str, Index] = {}
        self.number = 0
        self.line = 0

    def graph(self) -> Graph:
        return Graph(
            tuple(self.outputs),
            tuple(self.names),
            tuple(v for v in self.late if v.name in self.names),
            tuple(self.updates),
            tuple(self.held),
            tuple(self.guards),
            tuple(self.declared),
        )

    def begin_body(self, found: re.Match[str], line: int) -> _Parser:
        """A parser for a body: it knows the variables, storages and steps, not the nodes."""
        self.line = line
        body = _Parser()
        body.variables, body.storages = dict(self.variables), self.storages
        body.number, body.steps = int(found[1]), dict(self.steps)
        if found[2]:
            (extent,) = self.dims(found[3])
            body.steps[found[2]] = Index(found[2], extent)
        return body

    def read(self, line: str, number: int) -> None:
        self.line = number
        if found := _VARIABLE.fullmatch(line):
            name, low, high = found.groups()
            self.variables[name] = Variable(name, int(low), None if high == "inf" else int(high))
        elif found := _LATE.fullmatch(line):
            name, low, high, limit = found.groups()
            (most,) = self.dims(limit)
            top = None if high == "inf" else int(high)
            self.late.append(LateVariable(name, int(low), top, most))
            self.variables[name] = self.late[-1]
        elif found := _HELD.fullmatch(line):
            variable, following = self.dims(f"{found[1]}, {found[2]}")
            if not isinstance(variable, Variable):
                raise self.error(f"must hold a variable, got {variable}")
            self.held.append(Held(variable, following))
        elif found := _NEXT.fullmatch(line):
            self.updates.append(json.loads(found[2]))
            self.names.append(next_name(self.updates[-1]))
            self.outputs.append(self.node(int(found[1])))
        elif found := _DECLARED.fullmatch(line):
            self.declared += [self.node(int(n)) for n in re.findall(r"\d+", found[1])]
        elif found := _GUARD.fullmatch(line):
            (amount,) = self.dims(found[1])
            self.guards.append((amount, json.loads(found[2])))
        elif found := _OUTPUT.fullmatch(line):
            default = f"output{len(self.outputs)}"
            self.names.append(json.loads(found[2]) if found[2] else default)
            self.outputs.append(self.node(int(found[1])))
        elif found := _NODE.fullmatch(line):
            self.read_node(found)
        else:
            raise self.error(f"must be a variable, a node or an output, got {line!r}")

    def error(self, message: str) -> GraphError:
        return GraphError("parse_graph", f"line {self.line} {message}.", line=self.line)

    def node(self, number: int) -> Node:
        if number not in self.nodes:
            raise self.error(f"uses %{number} before it is defined")
        return self.nodes[number]

    def read_node(self, found: re.Match[str]) -> None:
        declared = TensorType(
            tuple(self.dims(f"({found['shape']},)" if found["shape"].strip() else "()")),
            as_dtype(found["dtype"], "parse_graph"),
        )
        inputs = [self.node(int(n)) for n in re.findall(r"%(\d+)", found["inputs"])]
        node = make_node(found["op"], inputs, self.attrs(found, declared))
        if node.type != declared:
            raise self.error(f"declares {declared} where {found['op']} gives {node.type}")
        self.nodes[int(found["number"])] = node

    def attrs(self, found: re.Match[str], declared: TensorType) -> Any:
        kind = find_op(found["op"]).attrs
        if kind is None:
            return None
        name = json.loads(found["name"]) if found["name"] else ""
        match found["op"]:
            case "scalar":
                shape = tuple(int(evaluate(d, {})) for d in declared.shape)
                return kind(_number(found["scalar"] or ""), declared.dtype, shape)
            case "constant":
                return kind(self.storage(found, declared), declared)
            case "param" if found["storage"] is None:
                shape = tuple(int(evaluate(d, {})) for d in declared.shape)
                return kind(name, Storage.missing(shape, declared.dtype.numpy), declared)
            case "param":
                return kind(name, self.storage(found, declared), declared)
            case "frame":
                return kind(name, declared)
            case "input" | "state" as op:
                has_value = found["storage"] is not None
                given = self.storage(found, declared) if has_value else None
                known = {"name": name, "type": declared, _GIVEN[op]: given}
                return self.fields(kind, found["attrs"] or "", **known)
            case _:
                return self.fields(kind, found["attrs"] or "")

    def storage(self, found: re.Match[str], declared: TensorType) -> Storage:
        number = int(found["storage"] or 0)
        if number not in self.storages:
            shape = [int(evaluate(d, {})) for d in declared.shape]
            array = np.zeros(shape, declared.dtype.numpy)
            if found["values"]:
                values = [_number(word.strip()) for word in found["values"].split(",")]
                array = as_dtype_array(np.array(values), declared.dtype).reshape(shape)
            self.storages[number] = Storage(array)
        return self.storages[number]

    def fields(self, kind: type, text: str, **known: Any) -> Any:
        """The attributes of a node from name=value pairs, and those that are `known` anyway."""
        call = self.parse(f"f({text})")
        if not isinstance(call, ast.Call):
            raise self.error(f"attrs must be name=value pairs, got {text!r}")
        types: dict[str, Field[Any]] = {each.name: each for each in fields(kind)}
        values: dict[str, Any] = dict(known)
        for keyword in call.keywords:
            if keyword.arg not in types or keyword.arg in known:
                raise self.error(f"has an unknown attribute {keyword.arg!r} of {kind.__name__}")
            values[keyword.arg] = self.field(str(types[keyword.arg].type), keyword.value)
        missing = [n for n, f in types.items() if n not in values and f.default is MISSING]
        if missing:
            raise self.error(f"lacks attributes {', '.join(missing)} of {kind.__name__}")
        return kind(**values)

    def field(self, kind: str, tree: ast.expr) -> Any:
        if kind == "DType":
            return as_dtype(ast.unparse(tree))
        value = self.value(tree)
        if kind != "Graph":
            return value
        if value not in self.bodies:
            raise self.error(f"names body {value}, which does not stand before it")
        return self.bodies[value]

    def parse(self, text: str) -> ast.expr:
        try:
            return ast.parse(text, mode="eval").body
        except SyntaxError:
            raise self.error(f"cannot be read: {text!r}") from None

    def dims(self, text: str) -> Iterator[Dim]:
        tree = self.parse(text)
        elements = tree.elts if isinstance(tree, ast.Tuple) else [tree]
        yield from (self.value(each) for each in elements)

    def value(self, tree: ast.expr) -> Any:
        match tree:
            case ast.Constant(value=value):
                return value
            case ast.Tuple(elts=elements):
                return tuple(self.value(e) for e in elements)
            case ast.Name(id=name) if name in self.variables:
                return self.variables[name]
            case ast.Name(id=name) if name in self.steps:
                return self.steps[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.value(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return _BINARY[type(op)](self.value(left), self.value(right))
            case ast.Call(func=ast.Name(id=name), args=[a, b]) if name in _CALLS:
                return _CALLS[name](self.value(a), self.value(b))
            case _:
                raise self.error(f"has an unknown value {ast.unparse(tree)!r}")


_BINARY: dict[type, Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: floordiv,
    ast.Mod: mod,
}
_CALLS: dict[str, Any] = {"min": minimum, "max": maximum}


def _number(word: str) -> Any:
    if word in ("True", "False"):
        return word == "True"
    try:
        return int(word)
    except ValueError:
        pass
    try:
        return float(word)
    except ValueError:
        raise GraphError("parse_graph", f"a number was expected, got {word!r}.") from None

"""One call of a function, followed: its arguments become inputs, what it does becomes a graph.

    function, call  --follow-->  Form (and the Graph that its plan is to compute)

Sizes and ints are variables, floats are `Number`s: where Python asks for what they are now, the
answer is that of the call, and becomes a condition of the form. The function is called again until
it is known which sizes are one (sizes.py). If it cannot be followed that way (an op needs the
number of a size, Python objects to what is no int) it is called with the numbers of this call
instead, first those of ints and floats, then those of all sizes: such a form is good for these
alone. Then errors of the function itself are those of plain numbers, too.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from semel.errors import GraphError, RecompileError, VariableError
from semel.ir import questions
from semel.ir.expr import Dim, Variable, atoms, evaluate, substitute, variables
from semel.ir.graph import Graph, Node, make_node, no_scope, rewrite, shared
from semel.ir.late import with_counts
from semel.ir.types import FLOAT64, UINT32, TensorType, as_dtype
from semel.ops.attrs import InputAttrs
from semel.ops.guards import guards
from semel.tensor.body import next_trace, stand_in
from semel.tensor.handle import SYMBOLIC, wrap
from semel.tensor.number import Number, Truth
from semel.tensor.tensor import Tensor
from semel.tracing.form import LARGEST_INT, CallForm, Form, Leaf, Question
from semel.tracing.sizes import agreement, broken_guard
from semel.tracing.trees import Leaves, flatten, rebuild

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_OPPOSITE = {"eq": "!=", "ne": "==", "lt": ">=", "le": ">", "gt": "<=", "ge": "<"}
_KEY = TensorType((2,), UINT32)
_MOST_ROUNDS = 8


class Trace(questions.Answers):
    """Answers for one call, and what was asked."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = dict(values)
        self.asked: list[tuple[Question, Any]] = []
        self.equal: list[tuple[Dim, Dim]] = []
        self.notes: dict[str, None] = {}
        self.number_of = next_trace()
        self.stand_ins: dict[Node, str] = {}  #: and what their inputs are called
        self.keys: list[Node] = []

    def input(self, path: str, kind: TensorType) -> Node:
        """What stands for an argument."""
        node = stand_in(path, kind, self.number_of)
        self.stand_ins[node] = path
        return node

    def _knows(self, *dims: Any) -> bool:
        known = self.values
        return all(v.name in known for d in dims if isinstance(d, SYMBOLIC) for v in atoms(d))

    def compare(self, relation: str, a: Any, b: Any) -> bool | None:
        if isinstance(b, Tensor) or not isinstance(b, (int, float, np.number, *SYMBOLIC)):
            return None
        if not self._knows(a, b):
            return None
        test, right = _COMPARE[relation], b if isinstance(b, SYMBOLIC) else None

        def question(values: Mapping[str, Any]) -> bool:
            return bool(test(evaluate(a, values), b if right is None else evaluate(right, values)))

        answer = question(self.values)
        self.asked.append((question, answer))
        sign = _SIGNS[relation] if answer else _OPPOSITE[relation]
        self.notes[f"{a} {sign} {b}"] = None
        if sign == "==" and isinstance(b, (int, *SYMBOLIC)):
            self.equal.append((a, b))
        return answer

    def number(self, dim: Any) -> int | None:
        if not self._knows(dim):
            return None
        found = evaluate(dim, self.values)
        self.asked.append((lambda values: evaluate(dim, values), found))
        self.notes[f"{dim} == {found}"] = None
        self.equal.append((dim, found))
        return found

    def real(self, dim: Any) -> Any:
        return Number.of_dim(dim) if self._knows(dim) else None

    def decide(self, read: Question) -> Any:
        found = read(self.values)
        self.asked.append((read, found))
        self.notes[f"a number that was asked for is {found!r}"] = None
        return found

    def fresh_key(self) -> Any:
        node = self.input(f"random_key{len(self.keys)}", _KEY)
        self.keys.append(node)
        return wrap(node)


@dataclass(frozen=True, slots=True)
class Options:
    """How a function is traced: names and bounds that its arguments' sizes were given."""

    name: str
    #: For an argument by its path: one entry per axis, None where nothing was said.
    dims: Mapping[str, tuple[Dim | None, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class _Round:
    """What came of calling the function once."""

    trace: Trace
    leaves: tuple[Leaf, ...]
    nodes: list[Node]
    graph: Graph | None
    out_spec: Any
    out_leaves: Leaves
    outputs: list[tuple[str, Any]]


def follow(
    function: Callable[..., Any],
    call: CallForm,
    invoke: Any,
    options: Options,
    prepare: Callable[[Graph], Any],
) -> Form:
    """The form of a call with its plan: as general as the function can be followed and prepared."""
    taken = {v.name for dims in options.dims.values() for d in dims for v in _variables(d)}
    leaves = tuple(_general(path, value, options, taken) for path, value in call.leaves)
    ways = [leaves]
    if any(leaf.kind != "array" for leaf in leaves):
        ways.append(_with_numbers(leaves, call))
    if any(isinstance(d, Variable) for leaf in leaves for d in leaf.dims):
        ways.append(_with_sizes(_with_numbers(leaves, call), call))
    reason = ""
    for number, way in enumerate(ways):
        try:
            form, graph = _settled(function, call, invoke, way)
            if graph is not None:
                form.plan = prepare(graph)
            if reason:
                form.notes = (*form.notes, f"for these numbers alone, as {reason}")
        except (RecompileError, RecursionError):
            raise
        except Exception as error:
            if number == len(ways) - 1:
                raise
            reason = reason or (str(error).splitlines() or [type(error).__name__])[0]
        else:
            return form
    raise AssertionError(ways)


def _variables(dim: Dim | None) -> tuple[Variable, ...]:
    return () if dim is None else variables(dim)


def _free_name(wanted: str, taken: set[str]) -> str:
    """That name, or one like it that no other size or number has."""
    while wanted in taken:
        wanted += "_"
    taken.add(wanted)
    return wanted


def _general(path: str, value: Any, options: Options, taken: set[str]) -> Leaf:
    """A leaf of which each axis is a variable, unless more was said."""
    name = _free_name(re.sub(r"\W+", "_", path).strip("_") or "_", taken)
    if type(value) is int:
        return Leaf(path, name, "int", fixed=value if abs(value) > LARGEST_INT else None)
    if type(value) is float:
        return Leaf(path, name, "float")
    leaf = Leaf(path, name, "array", as_dtype(value.dtype, options.name))
    said = options.dims.get(path) or (None,) * value.ndim
    dims: list[Dim] = []
    for axis, (size, dim) in enumerate(zip(value.shape, said, strict=True)):
        if dim is not None:
            dims.append(dim)
        else:
            dims.append(Variable(_free_name(f"{name}_{axis}", taken), 1) if size else 0)
    return replace(leaf, dims=tuple(dims))


def _with_numbers(leaves: Sequence[Leaf], call: CallForm) -> tuple[Leaf, ...]:
    pairs = zip(leaves, call.leaves, strict=True)
    return tuple(leaf if leaf.kind == "array" else replace(leaf, fixed=v) for leaf, (_, v) in pairs)


def _with_sizes(leaves: Sequence[Leaf], call: CallForm) -> tuple[Leaf, ...]:
    pairs = zip(leaves, call.leaves, strict=True)
    return tuple(
        replace(leaf, dims=tuple(v.shape)) if leaf.kind == "array" else leaf
        for leaf, (_, v) in pairs
    )


# ------------------------------------------------------------ until it is settled


def _settled(
    function: Callable[..., Any], call: CallForm, invoke: Any, leaves: tuple[Leaf, ...]
) -> tuple[Form, Graph | None]:
    """Call it until it says nothing new of its sizes: a form without a plan, and its graph."""
    for _ in range(_MOST_ROUNDS):
        values = Form(call.spec, leaves).match(call.leaves)
        if values is None:
            raise VariableError(
                "jit", f"sizes must be those that were declared, got {_shown(call)}."
            )
        found = _call(function, call, invoke, leaves, values)
        graph = found.graph
        merged = _merged(found, leaves)
        if not merged:
            text = "" if graph is None else broken_guard(graph, found.trace.values)
            if text:
                raise VariableError("jit", f"{text} In this call: {_shown(call)}.")
            return _finished(call, found)
        leaves = tuple(
            replace(leaf, dims=tuple(substitute(d, merged) for d in leaf.dims)) for leaf in leaves
        )
    raise VariableError("jit", f"the function does other things each time it is called: {leaves}.")


def _merged(found: _Round, leaves: Sequence[Leaf]) -> dict[Variable, Dim]:
    free = dict.fromkeys(d for leaf in leaves for d in leaf.dims if isinstance(d, Variable))
    graph = found.graph
    if graph is None:
        graph = _NO_GRAPH
    return agreement(graph, free, found.trace.equal, found.trace.values)


_NO_GRAPH = Graph((make_node("input", (), InputAttrs("nothing", TensorType((), FLOAT64))),))


def _shown(call: CallForm) -> str:
    return ", ".join(
        f"{path}={value!r}" if type(value) in (int, float) else f"{path}: {list(value.shape)}"
        for path, value in call.leaves
    )


# ------------------------------------------------------------ one round


def _call(
    function: Callable[..., Any],
    call: CallForm,
    invoke: Any,
    leaves: tuple[Leaf, ...],
    values: Mapping[str, Any],
) -> _Round:
    trace = Trace(values)
    with questions.answering(None), no_scope():
        given = [_argument(trace, leaf) for leaf in leaves]
    with no_scope(), questions.answering(trace):
        result = invoke(function, rebuild(call.spec, iter(given)))
    out_leaves: Leaves = []
    spec = flatten(result, "out", out_leaves, _is_result)
    nodes: list[Node] = []
    outputs = [_output(value, nodes) for _, value in out_leaves]
    graph = None
    if nodes:
        names = _distinct([path for path, value in out_leaves if isinstance(value, Tensor)])
        with no_scope():
            graph = with_counts(shared(Graph(tuple(nodes), names)))[0]
        _check_closed(graph, trace)
    return _Round(trace, leaves, nodes, graph, spec, out_leaves, outputs)


def _argument(trace: Trace, leaf: Leaf) -> Any:
    """What the function is given for a leaf."""
    if leaf.fixed is not None:
        return leaf.fixed
    if leaf.kind == "int":
        return Variable(leaf.name, -LARGEST_INT, LARGEST_INT)
    if leaf.kind == "float":
        node, name = trace.input(leaf.path, TensorType((), FLOAT64)), leaf.name
        return Number(wrap(node), lambda values: values[name])
    assert leaf.dtype is not None
    return wrap(trace.input(leaf.path, TensorType(leaf.dims, leaf.dtype)))


def _is_result(value: Any) -> bool:
    """Whether a value of the result is a leaf: what is neither a tensor nor a tree is, too."""
    if isinstance(value, Iterator):
        raise GraphError(
            "jit",
            f"a result must be made of tensors, numbers and trees of them, got a "
            f"{type(value).__name__}, which is read when the function is over.",
            hint="Return a list or a tuple.",
        )
    if isinstance(value, (Tensor, np.ndarray, *SYMBOLIC)):
        return True
    return value is None or isinstance(value, (str, bytes, int, float, complex))


def _output(value: Any, nodes: list[Node]) -> tuple[str, Any]:
    if isinstance(value, (Number, Truth, Tensor)):
        nodes.append(value.node)
        return ("number" if isinstance(value, (Number, Truth)) else "tensor", len(nodes) - 1)
    if isinstance(value, SYMBOLIC):
        return ("dim", value)
    return ("array", value.copy()) if isinstance(value, np.ndarray) else ("other", value)


def _distinct(paths: Sequence[str]) -> tuple[str, ...]:
    """Names of outputs: their paths, numbered where one comes twice."""
    names: dict[str, None] = {}
    for path in paths:
        name, count = path, 1
        while name in names:
            count += 1
            name = f"{path} {count}"
        names[name] = None
    return tuple(names)


def _check_closed(graph: Graph, trace: Trace) -> None:
    """Refuse a graph that needs what is no argument."""
    foreign = [f"input '{n.attrs.name}'" for n in graph.inputs if n not in trace.stand_ins]
    foreign += [f"state '{n.attrs.name}'" for n in graph.states]
    own = {*trace.values}
    free = (v for v in graph.variables if v not in graph.late)
    foreign += [f"variable '{v.name}'" for v in free if v.name not in own]
    if foreign:
        raise GraphError(
            "jit",
            "a function must depend on its arguments, constants and params, got "
            f"{', '.join(foreign)}.",
            hint="Pass it as an argument.",
        )


# ------------------------------------------------------------ the form


def _finished(call: CallForm, found: _Round) -> tuple[Form, Graph | None]:
    trace, leaves, graph = found.trace, found.leaves, found.graph
    names = {v.name for leaf in leaves for d in leaf.dims for v in variables(d)}
    names |= {leaf.name for leaf in leaves if leaf.kind != "array" and leaf.fixed is None}
    form = Form(
        call.spec,
        leaves,
        questions=tuple(trace.asked),
        notes=tuple(n for n in trace.notes if not _is_said(n, leaves)),
        num_keys=len(trace.keys),
        out_spec=found.out_spec,
        outputs=tuple(found.outputs),
    )
    if graph is None:
        form.num_keys = 0
        return form, None
    late = set(graph.late)
    form.guards = tuple(a for a, _ in guards(graph) if late.isdisjoint(variables(a)))
    used = set(graph.inputs)
    arrays = [leaf for leaf in leaves if leaf.kind != "int" and leaf.fixed is None]
    nodes = [*trace.stand_ins][: len(arrays)]
    position = {id(leaf): i for i, leaf in enumerate(leaves)}
    taken = [(position[id(leaf)], n) for leaf, n in zip(arrays, nodes, strict=True) if n in used]
    keys = [(-1 - k, node) for k, node in enumerate(trace.keys) if node in used]
    form.inputs = tuple(i for i, _ in (*taken, *keys))
    form.input_names = tuple(trace.stand_ins[n] for _, n in (*taken, *keys))
    form.num_keys = len(trace.keys)
    form.variables = frozenset(v.name for v in graph.variables if v.name in names)
    return form, _with_names(graph, trace)


def _is_said(note: str, leaves: Sequence[Leaf]) -> bool:
    """Whether a note is about numbers alone: the dims of the form say it."""
    return bool(note) and note.split(" ")[0].lstrip("-").isdigit()


def _with_names(graph: Graph, trace: Trace) -> Graph:
    """The graph with inputs that are called like the arguments."""

    def rule(node: Node) -> Node | None:
        path = trace.stand_ins.get(node)
        return None if path is None else make_node("input", (), InputAttrs(path, node.type))

    with no_scope():
        return rewrite(graph, rule)

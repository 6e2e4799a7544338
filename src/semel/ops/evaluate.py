"""Run a graph with the NumPy references: the oracle behind every test.

    Graph, input arrays, variable values --> output arrays

Slow and plain on purpose: one op after another, each checked against its inferred type.
Variables that are not given are solved from the shapes of the inputs; all values are
checked against their ranges and the guards before anything is computed. A late variable gets its
value when what tells it was computed, and what depends on it is checked then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from semel.errors import InputError, InternalError, VariableError, broken_guard
from semel.ir import expr
from semel.ir.expr import Dim, LateVariable, Variable
from semel.ir.graph import Graph, Node
from semel.ir.late import with_counts
from semel.ir.types import as_dtype
from semel.ops.guard_places import with_guards

Array = np.ndarray[Any, Any]


def evaluate(
    graph: Graph, inputs: Mapping[str, Any], variables: Mapping[str, int] | None = None
) -> list[Array]:
    """The outputs in order, as fresh C-contiguous arrays."""
    graph = with_guards(with_counts(graph)[0])
    values, _ = evaluate_nodes(graph, inputs, variables or {}, {})
    # order="C" turns a 0-d result into a copy too, and keeps its shape.
    return [np.array(values[n], order="C") for n in graph.values]


def evaluate_nodes(
    graph: Graph,
    inputs: Mapping[str, Any],
    variables: Mapping[str, int],
    states: Mapping[str, Array],
) -> tuple[dict[Node, Array], dict[str, int]]:
    """Every node of a graph that says where its late sizes come from and what it demands, and
    every variable."""
    arrays = _input_arrays(graph, inputs)
    env = _bind(graph, arrays, dict(variables))
    _check_shapes(graph, arrays, env)
    return run_graph(graph, arrays, env, states), env


def run_graph(
    graph: Graph,
    arrays: Mapping[str, Array],
    env: dict[str, int],
    states: Mapping[str, Array] | None = None,
) -> dict[Node, Array]:
    """Every node; `env` has the variables, and gets those that a run finds out."""
    values: dict[Node, Array] = {}
    counts = graph.counts
    _check_guards(graph.guards, env)
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            if node.op.name == "input":
                values[node] = arrays[node.attrs.name]
            elif node.op.name == "state":
                values[node] = (states or {})[node.attrs.name]
            elif node.op.name == "frame":
                values[node] = _first_frame(node, env)
            else:
                values[node] = evaluate_node(node, tuple(values[n] for n in node.inputs), env)
            for variable in counts.get(node, ()):
                _rebind(variable, int(values[node]), env, graph.guards)
    return values


def _first_frame(node: Node, env: Mapping[str, int]) -> Array:
    """What lies in the memory of an output before anything was written there: zeros."""
    shape = tuple(expr.evaluate(dim, env) for dim in node.type.shape)
    return np.zeros(shape, node.type.dtype.numpy)


def evaluate_node(node: Node, arrays: tuple[Array, ...], env: Mapping[str, int]) -> Array:
    """One op by its reference; a result that contradicts the inferred type is our bug."""
    with np.errstate(all="ignore"):
        result: Array = np.asarray(node.op.reference(node, arrays, env))
    shape = tuple(expr.evaluate(d, env) for d in node.type.shape)
    if result.shape != shape or result.dtype != node.type.dtype.numpy:
        raise InternalError(
            node.op.name,
            f"reference gave {result.dtype}{list(result.shape)}, inferred type is {node.type}.",
        )
    return result


def _input_arrays(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, Array]:
    wanted = {node.attrs.name: node for node in graph.inputs}
    if set(wanted) != set(inputs):
        raise InputError("evaluate", f"inputs must be {sorted(wanted)}, got {sorted(inputs)}.")
    arrays: dict[str, Array] = {}
    for name, node in wanted.items():
        array = np.asarray(inputs[name])
        if as_dtype(array.dtype, name) != node.type.dtype or array.ndim != node.type.rank:
            raise InputError(name, f"must be {node.type}, got {array.dtype}{list(array.shape)}.")
        arrays[name] = array
    return arrays


Conditions = Sequence[tuple[Dim, str]]


def _bind(graph: Graph, arrays: Mapping[str, Array], env: dict[str, int]) -> dict[str, int]:
    for node in graph.inputs:
        for dim, size in zip(node.type.shape, arrays[node.attrs.name].shape, strict=True):
            solved = solve(dim, size)
            if solved is not None:
                env.setdefault(solved[0].name, solved[1])
    for variable in graph.variables:
        if variable in graph.late:
            continue
        if variable.name not in env:
            raise VariableError(variable.name, "has no value: no input has it as a dim.")
        _check_range(variable, env[variable.name])
    _check_guards(graph.guards, env)
    return env


def _rebind(
    variable: LateVariable, value: int, env: dict[str, int], conditions: Conditions
) -> None:
    """Give a late variable its value, and check what is known from then on."""
    _check_range(variable, value)
    env[variable.name] = value
    own = [c for c in conditions if variable in expr.variables(c[0])]
    _check_guards(own, env)


def _check_range(variable: Variable, value: int) -> None:
    if value < variable.min or (variable.max is not None and value > variable.max):
        raise VariableError(
            variable.name, f"must lie in [{variable.min}, {variable.max}], got {value}."
        )


def solve(dim: Dim, size: int) -> tuple[Variable, int] | None:
    """The variable and its value if `dim == size` is affine in one variable, else None."""
    found = expr.variables(dim)
    if len(found) != 1 or any(len(m) > 1 or m not in ((), (found[0],)) for m, _ in expr.terms(dim)):
        return None
    coefficients = dict(expr.terms(dim))
    offset, scale = coefficients.get((), 0), coefficients[(found[0],)]
    return None if (size - offset) % scale else (found[0], (size - offset) // scale)


def _check_guards(conditions: Conditions, env: Mapping[str, int]) -> None:
    """Check the conditions whose variables are all known."""
    for dim, text in conditions:
        is_known = all(v.name in env for v in expr.variables(dim))
        if is_known and expr.evaluate(dim, env) != 0:
            values = ", ".join(f"{v.name}={env[v.name]}" for v in expr.variables(dim))
            raise broken_guard(text, values)


def _check_shapes(graph: Graph, arrays: Mapping[str, Array], env: Mapping[str, int]) -> None:
    for node in graph.inputs:
        array = arrays[node.attrs.name]
        shape = tuple(expr.evaluate(d, env) for d in node.type.shape)
        if array.shape != shape:
            raise InputError(
                node.attrs.name, f"must have shape {shape} ({node.type}), got {array.shape}."
            )

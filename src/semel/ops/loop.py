"""A loop over a body graph: recurrences, with or without a condition.

    loop  initial states, captured values, body --> a final state, or a stacked result

    states = initial
    for step in range(trip):
        if not condition:                          # where there is one
            break
        states, values, condition = body(states, captured, step)
        result[step] = values                      # or result[trip - 1 - step]

The body is a graph of its own, and so may be optimised, scheduled and lowered by what does
that for graphs; it may hold loops and branches. The condition is made by the iteration before it is
asked for, where the next states are still in registers.
Why this way: docs/decisions/0019-loops.md and 0037-bodies.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from semel.errors import GraphError
from semel.ir import expr
from semel.ir.expr import atoms
from semel.ir.graph import Graph, Node
from semel.ir.opdef import OpDef, register
from semel.ir.types import BOOL, INT64, TensorType
from semel.ops.attrs import LoopAttrs
from semel.ops.bodies import (
    Env,
    check_body,
    free_level,
    is_filled,
    run_body,
    some_outputs,
    with_data_outside,
)
from semel.ops.guard_places import checked_before
from semel.ops.guards import guards
from semel.ops.numerics import Array
from semel.ops.shapes import Requirement, at_most, check

CONDITION = TensorType((), BOOL)


# ---------------------------------------------------------------- types


def _infer(attrs: LoopAttrs, *types: TensorType) -> TensorType:
    states, body = attrs.num_states, attrs.body
    count = attrs.num_values + attrs.has_condition
    if len(body.values) != count or len(types) < attrs.first_captured:
        also = " and a condition" if attrs.has_condition else ""
        raise GraphError(
            "loop",
            f"the body must give {states} states and {len(attrs.backward)} stacked values{also} "
            f"for {len(types)} operands, it gives {len(body.values)} values.",
        )
    if not 0 <= attrs.output < count:
        raise GraphError("loop", f"output must lie in [0, {count}), got {attrs.output}.")
    check_body("loop", body, types, range(states, attrs.first_captured))
    for k, node in enumerate(body.values[:states]):
        if node.type != types[k]:
            raise GraphError(
                "loop",
                f"state {k} must keep its type, it begins as {types[k]} and becomes {node.type}.",
            )
    if attrs.has_condition:
        _check_condition(types[states], body.values[-1].type)
    least = free_level(body)
    if attrs.level < least:
        raise GraphError(
            "loop",
            f"the level must be above those of loops inside, at least {least}, got {attrs.level}.",
        )
    check("loop", attrs, *types)
    if attrs.output == attrs.num_values:
        return TensorType((), INT64)
    kind = body.values[attrs.output].type
    if attrs.output < states:
        return kind
    return TensorType((attrs.trip, *kind.shape), kind.dtype)


def _check_condition(*types: TensorType) -> None:
    for found in types:
        if found != CONDITION:
            raise GraphError("loop", f"the condition must be {CONDITION}, got {found}.")


def _requirements(attrs: LoopAttrs, *types: TensorType) -> Iterator[Requirement]:
    yield at_most(0, attrs.trip, f"the number of iterations must be >= 0, got {attrs.trip}.")
    for amount, text in guards(attrs.body):
        if attrs.step in atoms(amount):
            raise GraphError("loop", f"must hold in every iteration: {text}")
        before = checked_before(attrs, amount)
        if before is not None:
            yield Requirement(before, text)


# ---------------------------------------------------------------- reference


def _reference(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    attrs: LoopAttrs = node.attrs
    values = list(arrays[: attrs.num_states])
    rest = arrays[attrs.num_states :]
    trip = expr.evaluate(attrs.trip, env)
    shape = tuple(expr.evaluate(d, env) for d in node.type.shape)
    stacked = np.zeros(shape, node.type.dtype.numpy)
    is_stacked = attrs.num_states <= attrs.output < attrs.num_values
    goes_on, count = not attrs.has_condition or bool(rest[0]), 0
    while count < trip and goes_on:
        states = values[: attrs.num_states]
        values = run_body(attrs.body, (*states, *rest), {**env, attrs.step: count})
        if is_stacked:
            is_backward = attrs.backward[attrs.output - attrs.num_states]
            stacked[trip - 1 - count if is_backward else count] = values[attrs.output]
        goes_on = not attrs.has_condition or bool(values[-1])
        count += 1
    if attrs.output == attrs.num_values:
        return np.asarray(count, np.int64)
    return stacked if is_stacked else values[attrs.output]


def _reads(node: Node) -> Iterator[int]:
    """All but first values that are one number: it is made where the first iteration reads it."""
    for k, operand in enumerate(node.inputs):
        if k >= node.attrs.first_captured or not is_filled(operand):
            yield k


register(
    OpDef(
        "loop",
        "opaque",
        LoopAttrs,
        _infer,
        _reference,
        cost=1,
        require=_requirements,
        has_bodies=True,
        opened=with_data_outside,
        reads=_reads,
    )
)


# ---------------------------------------------------------------- bodies


def live_loop(attrs: LoopAttrs, wanted: Sequence[int]) -> tuple[Graph, tuple[int, ...]]:
    """The body without what the `wanted` results do not need, and which outputs it kept.

    A state is needed if its final value is wanted, or if something needed reads it; the
    condition always is.
    """
    kept = {*wanted, attrs.num_values} if attrs.has_condition else set(wanted)
    while True:
        outputs = tuple(sorted(kept))
        body = some_outputs(attrs.body, outputs)
        read = {int(n.attrs.name) for n in body.inputs}
        needed = {k for k in read if k < attrs.num_states} - kept
        if not needed:
            return body, outputs
        kept |= needed

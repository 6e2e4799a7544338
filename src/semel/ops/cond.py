"""A branch: one of two body graphs, as a value says during the run.

    cond  predicate, captured values, two bodies --> a result of the one that runs

The other body does not run: nothing in it takes time or can fail. Both are graphs of their
own, and so may be optimised, scheduled and lowered by what does that for graphs. What a body's
shapes demand of the variables is demanded when it runs (ops/guard_places.py).
Why this way: docs/decisions/0037-bodies.md.
"""

from __future__ import annotations

from semel.errors import GraphError
from semel.ir.graph import Node
from semel.ir.opdef import OpDef, register
from semel.ir.types import BOOL, TensorType
from semel.ops.attrs import CondAttrs
from semel.ops.bodies import Env, check_body, run_body, with_data_outside
from semel.ops.numerics import Array

PREDICATE = TensorType((), BOOL)


def _infer(attrs: CondAttrs, *types: TensorType) -> TensorType:
    if not types or types[0] != PREDICATE:
        found = types[0] if types else "nothing"
        raise GraphError("cond", f"the predicate must be {PREDICATE}, got {found}.")
    for body in (attrs.then, attrs.orelse):
        check_body("cond", body, types, hidden=(0,))
    one, other = ([n.type for n in body.values] for body in (attrs.then, attrs.orelse))
    if one != other:
        raise GraphError(
            "cond",
            f"both bodies must give the same types, got {_listed(one)} and {_listed(other)}.",
            hint="Cast, reshape or expand what one of them returns.",
        )
    if not 0 <= attrs.output < len(one):
        raise GraphError("cond", f"output must lie in [0, {len(one)}), got {attrs.output}.")
    return one[attrs.output]


def _listed(types: list[TensorType]) -> str:
    return ", ".join(map(str, types))


def _reference(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    attrs: CondAttrs = node.attrs
    body = attrs.then if bool(arrays[0]) else attrs.orelse
    return run_body(body, arrays, env)[attrs.output]


register(
    OpDef(
        "cond",
        "opaque",
        CondAttrs,
        _infer,
        _reference,
        cost=1,
        has_bodies=True,
        opened=with_data_outside,
    )
)

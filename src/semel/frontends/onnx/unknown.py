"""Operators that a model has and we have not, whether a walk comes to them or not.

    nodes --unknown_nodes--> a refusal for each node whose operator nothing here computes

A walk stops at what reads a refused node, takes one branch where a size decides, and ends where it
must know what an input holds. A user wants to hear of everything at once all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import onnx
from onnx import NodeProto

from semel.errors import UnsupportedError
from semel.frontends.onnx.file import Model
from semel.frontends.onnx.order import bodies_of
from semel.frontends.onnx.table import converters, domain_name

#: What ONNX Runtime's optimiser writes for its own memory layouts.
_LAYOUTS = frozenset(("com.microsoft.nchwc", "com.ms.internal.nhwc"))
_FROM_LAYOUT = (
    "The file was saved by ONNX Runtime's optimiser for one machine. Load the original, or save "
    "it with ORT_ENABLE_EXTENDED."
)
_OTHERWISE = "Export the model with operators of the standard, or as a local function of these."


def refuse_operator(op: str, domain: str, version: int, node: str) -> UnsupportedError:
    """The error for a node, by its name, of an operator that is not there."""
    where = f" of domain '{domain}'" if domain else ""
    return UnsupportedError(
        f"onnx: {op} '{node}'" if node else f"onnx: {op}",
        f"operator {op}{where}, version {version}, is not supported.",
        hint=_FROM_LAYOUT if domain in _LAYOUTS else _OTHERWISE,
        node=node,
        op=op,
    )


def texts_of(errors: Iterable[UnsupportedError]) -> list[str]:
    """What is said of each node; an error may be about several."""
    return [text for error in errors for text in getattr(error, "refused", [str(error)])]


def refusal_of_all(name: str, errors: Sequence[UnsupportedError]) -> UnsupportedError:
    """One error for all of them."""
    texts = texts_of(errors)
    if len(texts) == 1:
        return errors[0]
    lines = "\n  ".join(texts)
    nodes = [node for e in errors for node in getattr(e, "nodes", [getattr(e, "node", "")])]
    return UnsupportedError(
        name, f"{len(texts)} nodes are not supported:\n  {lines}", nodes=nodes, refused=texts
    )


def check_operators(model: Model) -> None:
    """Refuse what no run can do without, before it is known what else a model needs."""
    functions = {(f.domain, f.name): f for f in model.proto.functions}
    nodes = model.proto.graph.node
    found = list(unknown_nodes(nodes, model.versions, functions, deep=False))
    if found:
        raise refusal_of_all(model.name, found)


def unknown_nodes(
    nodes: Iterable[NodeProto],
    versions: Mapping[str, int],
    functions: Mapping[tuple[str, str], Any],
    *,
    deep: bool = True,
) -> Iterator[UnsupportedError]:
    """Those of `nodes`, and with `deep` of their sub-graphs, whose operator is not there."""
    for proto in nodes:
        domain = domain_name(proto.domain)
        version = versions.get(domain, 1)
        if (domain, proto.op_type) not in functions and not _is_known(
            domain, proto.op_type, version
        ):
            name = proto.name or next(iter(proto.output), "")
            yield refuse_operator(proto.op_type, domain, version, name)
        if deep:
            for body in bodies_of(proto):
                yield from unknown_nodes(body.node, versions, functions)


def _is_known(domain: str, op: str, version: int) -> bool:
    if (domain, op) in converters():
        return True
    try:
        schema = onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)

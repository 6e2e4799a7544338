"""Nodes about text and images: they run on the host, before and behind the compiled part.

    model  --split_host-->  before (host)  |  numbers: a model without text  |  behind (host)

No kernel holds text. What works on it is computed by `onnx.reference`, which defines these
operators; what it gives of numbers, the compiled part takes like inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

from semel.errors import InputError, ModelError, UnsupportedError
from semel.frontends.onnx.file import Model
from semel.frontends.onnx.labels import number_labels
from semel.locks import importing

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator

#: What makes text, images or dictionaries of something, or something of them.
_TEXT_OPS = {
    "ImageDecoder",
    "RegexFullMatch",
    "StringConcat",
    "StringNormalizer",
    "StringSplit",
    "ZipMap",
}
_LABELS = "LabelEncoder"


@dataclass(eq=False)
class HostPart:
    """Nodes that the host computes: from these values, those."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    num_nodes: int
    evaluator: ReferenceEvaluator | None  # None: nothing is computed

    def run(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs for these values, which may hold more than it needs."""
        if self.evaluator is None:
            return {}
        given = {name: _as_host(values[name]) for name in self.inputs}
        try:
            found = self.evaluator.run(list(self.outputs), given)
        except ImportError as error:
            raise UnsupportedError(
                "run", f"images need another package: {error}.", hint="pip install pillow"
            ) from error
        except Exception as error:  # anything: the reference checks little of a model
            raise InputError(
                "run", f"a node on the host cannot compute its input: {error!r}"
            ) from error
        return dict(zip(self.outputs, found, strict=True))


def _as_host(value: Any) -> Any:
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "SU" else array


@dataclass(eq=False)
class Split:
    """A model in three parts; `numbers` is the compiled one."""

    before: HostPart
    numbers: Model
    behind: HostPart


def split_host(model: Model) -> Split | None:
    """The parts of a model; None if all of it can be compiled."""
    number_labels(model.proto.graph)
    text = _text_names(model)
    host = [node for node in model.proto.graph.node if _is_host(node, text)]
    if not host and not text & {v.name for v in model.proto.graph.output}:
        return None
    _check_order(model)
    before = _before(model, host, text)
    return _parts(model, before, _behind(model, host, before))


def _behind(
    model: Model, host: Sequence[NodeProto], before: Sequence[NodeProto]
) -> list[NodeProto]:
    """The host's other nodes, and all that depends on them."""
    late: set[str] = set()
    found = []
    for node in model.proto.graph.node:
        if node not in before and (node in host or late.intersection(node.input)):
            found.append(node)
            late.update(node.output)
    return found


def _check_order(model: Model) -> None:
    """What is read must be there: parts are cut by names."""
    graph = model.proto.graph
    known = {v.name for v in graph.input} | {t.name for t in graph.initializer} | {""}
    read: list[tuple[Iterable[str], Iterable[str]]] = [(n.input, n.output) for n in graph.node]
    for names, made in [*read, ([v.name for v in graph.output], ())]:
        missing = sorted(set(names) - known)
        if missing:
            raise ModelError(model.name, f"'{missing[0]}' is used and nothing computes it.")
        known.update(made)


def _text_names(model: Model) -> set[str]:
    """Everything that is text, as far as types and operators tell."""
    graph = model.proto.graph
    text = {v.name for v in graph.input if _is_text(v)}
    text |= {t.name for t in graph.initializer if t.data_type == TensorProto.STRING}
    for node in graph.node:
        if node.op_type == "StringSplit":
            text.update(node.output[:1])
        elif _gives_text(node, text):
            text.update(node.output)
    return text


def _gives_text(node: NodeProto, text: set[str]) -> bool:
    if node.op_type in ("StringConcat", "StringNormalizer"):
        return True
    if node.op_type == _LABELS:
        return _makes_text(node)
    if node.op_type == "Constant":
        return _is_text_constant(node)
    if node.op_type == "Cast":
        return any(a.name == "to" and a.i == TensorProto.STRING for a in node.attribute)
    return node.op_type in _KEEPS_TEXT and bool(text.intersection(node.input))


#: Operators that move elements about, whatever these are.
_KEEPS_TEXT = {
    "ArrayFeatureExtractor", "Concat", "Expand", "Flatten", "Gather", "GatherElements", "GatherND",
    "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Where",
}  # fmt: skip


def _is_text(value: ValueInfoProto) -> bool:
    return bool(value.type.tensor_type.elem_type == TensorProto.STRING)


def _makes_text(node: NodeProto) -> bool:
    names = {attribute.name for attribute in node.attribute}
    if "values_strings" in names:
        return True
    for attribute in node.attribute:
        if attribute.name == "values_tensor":
            return bool(attribute.t.data_type == TensorProto.STRING)
    return (
        "classes_strings" in names and "keys_strings" not in names and "default_int64" not in names
    )


def _is_text_constant(node: NodeProto) -> bool:
    return any(
        a.name.startswith("value_string") or a.t.data_type == TensorProto.STRING
        for a in node.attribute
    )


def _is_host(node: NodeProto, text: set[str]) -> bool:
    touches = text.intersection([*node.input, *node.output])
    return bool(touches) or node.op_type in _TEXT_OPS


def _before(model: Model, host: Sequence[NodeProto], text: set[str]) -> list[NodeProto]:
    """The host's nodes that depend on nothing that is compiled."""
    known = {v.name for v in model.proto.graph.input}
    known |= {t.name for t in model.proto.graph.initializer} | {""}
    found = []
    for node in model.proto.graph.node:
        is_plain = node.op_type == "Constant" and bool(text.intersection(node.output))
        if (node in host or is_plain) and known.issuperset(node.input):
            known.update(node.output)
            found.append(node)
        elif node.op_type == "Constant":
            known.update(node.output)
    return found


def _parts(model: Model, before: list[NodeProto], behind: list[NodeProto]) -> Split:
    graph = model.proto.graph
    inside = [n for n in graph.node if n not in before and n not in behind]
    ends = [v.name for v in graph.output]
    wanted = {name for node in (*inside, *behind) for name in node.input} | set(ends)
    made_before = tuple(n for node in before for n in node.output if n in wanted)
    made_behind = tuple(n for node in behind for n in node.output if n in ends)
    read_behind = {name for node in behind for name in node.input}
    kept = [v for v in graph.input if any(v.name in node.input for node in inside)]
    numbers = ModelProto()
    numbers.CopyFrom(model.proto)
    del numbers.graph.node[:], numbers.graph.input[:], numbers.graph.output[:]
    numbers.graph.node.extend(inside)
    numbers.graph.input.extend(kept)
    used = {name for node in inside for name in node.input}
    numbers.graph.input.extend(ValueInfoProto(name=n) for n in made_before if n in used)
    made_inside = {name for node in inside for name in node.output}
    results = [n for n in dict.fromkeys([*ends, *sorted(read_behind)]) if n in made_inside]
    numbers.graph.output.extend(ValueInfoProto(name=n) for n in results)
    return Split(
        _host_part(model, before, made_before),
        Model(numbers, model.name, model.weights),
        _host_part(model, behind, made_behind),
    )


def _host_part(model: Model, nodes: list[NodeProto], outputs: tuple[str, ...]) -> HostPart:
    made = {name for node in nodes for name in node.output}
    tensors = [t for t in model.proto.graph.initializer if any(t.name in n.input for n in nodes)]
    own = made | {t.name for t in tensors} | {""}
    read = tuple(dict.fromkeys(n for node in nodes for n in node.input if n not in own))
    for node in model.proto.graph.node:
        if node.op_type == "Constant" and set(node.output).intersection(read):
            nodes = [node, *nodes]
            read = tuple(name for name in read if name not in node.output)
    graph = onnx.helper.make_graph(
        nodes,
        "host",
        [ValueInfoProto(name=name) for name in read],
        [ValueInfoProto(name=name) for name in outputs],
        tensors,
    )
    proto = onnx.helper.make_model(graph, opset_imports=model.proto.opset_import)
    evaluator = _read_nodes(proto, model.name) if outputs else None
    return HostPart(read, outputs, len(nodes), evaluator)


def _read_nodes(proto: ModelProto, name: str) -> ReferenceEvaluator:
    # Most models hold no text, and need none of this.
    with importing:
        from onnx.reference import ReferenceEvaluator

        from semel.frontends.onnx.host_ops import HOST_OPS
    try:
        return ReferenceEvaluator(proto, new_ops=HOST_OPS)
    except Exception as error:  # anything: the reference checks little of a model
        kinds = ", ".join(repr(node.op_type) for node in proto.graph.node)
        raise ModelError(name, f"{kinds} cannot be read: {error!r}.") from error

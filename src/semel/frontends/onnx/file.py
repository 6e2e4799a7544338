"""Model files: read, checked, and brought into the form that the importer walks.

    path | bytes | ModelProto  --read_model-->  Model{proto, weights}

Weights leave the proto at once: what rewrites it afterwards (the inliner of local functions, the
version converter) copies all of it, and protobuf has no messages above 2 GB. Small integers stay
where rewriting needs them.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner
import onnx.version_converter
from google.protobuf.message import DecodeError
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from semel.errors import ModelError
from semel.frontends.onnx.external import Weights
from semel.frontends.onnx.order import bodies_of, sort_nodes
from semel.frontends.onnx.table import STANDARD, domain_name
from semel.ir.fields import take_path
from semel.runtime.buffer import Array

#: Above this, numbers leave the proto. Axes, shapes and scales are smaller.
_SMALL_BYTES = 1024
#: Older operators take part by rules of their own (`axis` of a broadcast) that this one has not.
_OLDEST = 7
#: What open dims are for the version converter, which asks whether they broadcast and split.
_ANY_SIZES = (5040, 1)
#: An attribute that nodes get here: a vector of slopes has one for each channel.
BY_CHANNEL = "semel_by_channel"
#: The same: the axis of the first operand at which the second one begins.
AT_AXIS = "semel_at_axis"
_ASIDE = "semel.aside"
#: What files in ONNX Runtime's own format have there.
_ORT_MARK = b"ORTM"


@dataclass(eq=False)
class Model:
    """A model whose weights lie beside its graph; `weights` are those of the main graph.

    `listed` are the inputs that the file lists; initializers among them may be given to runs.
    """

    proto: ModelProto
    name: str
    weights: dict[str, Array] = field(default_factory=dict)
    listed: frozenset[str] = frozenset()

    @property
    def versions(self) -> dict[str, int]:
        """Which version of its operators each domain has."""
        return {domain_name(o.domain): o.version for o in self.proto.opset_import}


def read_model(source: Any) -> Model:
    """The model in a file, in bytes, or in a ModelProto, which stays as it is."""
    if isinstance(source, Model):
        return source
    proto, name, path = _parsed(source)
    _check_header(proto, name)
    sort_nodes(proto.graph)
    model = Model(proto, name, listed=frozenset(given.name for given in proto.graph.input))
    _take_weights(model, Weights(name, path))
    if proto.functions:
        model.proto = onnx.inliner.inline_local_functions(proto)
    if model.versions.get(STANDARD, _OLDEST) < _OLDEST:
        model.proto = _modern(model.proto, name)
    return model


def without_initializers(model: Model, names: Collection[str]) -> Model:
    """The model with these initializers as inputs."""
    proto = ModelProto()
    proto.CopyFrom(model.proto)
    kept = [tensor for tensor in proto.graph.initializer if tensor.name not in names]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    weights = {name: array for name, array in model.weights.items() if name not in names}
    return replace(model, proto=proto, weights=weights)


def walk_nodes(graph: GraphProto | FunctionProto) -> Iterator[NodeProto]:
    """All nodes of a graph, those of sub-graphs behind the one that has them."""
    for node in graph.node:
        yield node
        for body in bodies_of(node):
            yield from walk_nodes(body)


# ---------------------------------------------------------------- the proto


def _parsed(source: Any) -> tuple[ModelProto, str, Path | None]:
    if isinstance(source, ModelProto):
        copy = ModelProto()
        copy.CopyFrom(source)
        return copy, source.graph.name or "model", None
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _decoded(bytes(source), "model"), "model", None
    path = Path(take_path("load", source))
    try:
        with open(path, "rb") as file:
            data: Any = file.read()
    except OSError as error:
        raise ModelError(str(path), f"must be readable: {error}.", path=str(path)) from error
    return _decoded(data, str(path)), str(path), path


def _decoded(data: bytes, name: str) -> ModelProto:
    if data[4:8] == _ORT_MARK:
        raise ModelError(
            name,
            "must be an ONNX model; this one is in ONNX Runtime's own format.",
            hint="Load the .onnx file that it was made from.",
        )
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise ModelError(
            name, f"must be an ONNX model; it is damaged or no model: {error}."
        ) from error
    if not proto.HasField("graph"):
        raise ModelError(name, "must be an ONNX model; it has no graph.")
    return proto


def _check_header(proto: ModelProto, name: str) -> None:
    newest = onnx.defs.onnx_opset_version()
    for opset in proto.opset_import:
        if domain_name(opset.domain) == STANDARD and opset.version > newest:
            raise ModelError(
                name,
                f"its opset must be at most {newest}, got {opset.version}.",
                hint="Install a newer onnx, or export the model for an older opset.",
            )
    if not proto.opset_import:
        raise ModelError(name, "must say which opset it is written in.")
    for written in _names(proto.graph):
        if not isinstance(written, str):
            raise ModelError(name, f"names must be UTF-8, got {written!r}; the file is damaged.")


def _names(graph: GraphProto) -> Iterator[Any]:
    """Everything that a graph names; protobuf gives bytes for what is no text."""
    yield graph.name
    for values in (graph.input, graph.output, graph.value_info):
        for value in values:
            yield value.name
            for dim in value.type.tensor_type.shape.dim:
                yield dim.dim_param
    for tensor in graph.initializer:
        yield tensor.name
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        for attribute in node.attribute:
            yield attribute.name
        for body in bodies_of(node):
            yield from _names(body)


def _modern(proto: ModelProto, name: str) -> ModelProto:
    """The same in a version whose operators broadcast as they do today.

    The converter does not respect the axis that a second operand began at, so that such nodes do
    not go through it; and it leaves slopes as they were.
    """
    kinds = {given.name: given.type for given in proto.graph.input}
    _set_aside(proto)
    made = _converted(proto, name, _ANY_SIZES)
    for given in made.graph.input:
        if given.name in kinds:
            given.type.CopyFrom(kinds[given.name])
    for node in walk_nodes(made.graph):
        if node.domain == _ASIDE:
            node.domain = STANDARD
        if node.op_type == "PRelu":
            node.attribute.append(onnx.helper.make_attribute(BY_CHANNEL, 1))
    return made


def _set_aside(proto: ModelProto) -> None:
    """Give nodes whose second operand begins at an axis a domain that the converter leaves."""
    for node in walk_nodes(proto.graph):
        old = {a.name: a.i for a in node.attribute}
        if domain_name(node.domain) == STANDARD and old.get("broadcast") and "axis" in old:
            node.domain = _ASIDE
            del node.attribute[:]
            node.attribute.append(onnx.helper.make_attribute(AT_AXIS, old["axis"]))
    if not any(opset.domain == _ASIDE for opset in proto.opset_import):
        proto.opset_import.append(onnx.helper.make_opsetid(_ASIDE, 1))


def _converted(proto: ModelProto, name: str, sizes: tuple[int, ...]) -> ModelProto:
    """By the version converter, which takes no dims without a number, and some numbers not."""
    try:
        return onnx.version_converter.convert_version(_with_size(proto, sizes[0]), _OLDEST)
    except Exception as error:  # what the converter raises has no class of its own
        if sizes[1:]:
            return _converted(proto, name, sizes[1:])
        raise ModelError(name, f"its opset cannot be brought to {_OLDEST}: {error}.") from error


def _with_size(proto: ModelProto, size: int) -> ModelProto:
    """The same with this number for each dim that has none."""
    made = ModelProto()
    made.CopyFrom(proto)
    for values in (made.graph.input, made.graph.output, made.graph.value_info):
        for value in values:
            for dim in value.type.tensor_type.shape.dim:
                if not dim.HasField("dim_value"):
                    dim.dim_value = size
    return made


# ---------------------------------------------------------------- weights


def _take_weights(model: Model, weights: Weights) -> None:
    """Take large initializers out of the main graph, and resolve external ones everywhere."""
    graph = model.proto.graph
    _resolve(model.proto, weights)
    kept: list[TensorProto] = []
    for tensor in graph.initializer:
        array = weights.array(tensor)
        if array is None or array.nbytes <= _SMALL_BYTES:
            kept.append(tensor if array is None else numpy_helper.from_array(array, tensor.name))
            continue
        model.weights[tensor.name] = array
        if not any(given.name == tensor.name for given in graph.input):
            kind = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
            graph.input.append(onnx.helper.make_value_info(tensor.name, kind))
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _resolve(proto: ModelProto, weights: Weights) -> None:
    """Bring sparse tensors, and what nodes have in files, into messages, as all others are."""
    of_functions = (walk_nodes(function) for function in proto.functions)
    nodes = list(itertools.chain(walk_nodes(proto.graph), *of_functions))
    bodies = [body for node in nodes for body in bodies_of(node)]
    for graph in (proto.graph, *bodies):
        dense = [(each.values.name, weights.dense(each)) for each in graph.sparse_initializer]
        graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in dense)
        del graph.sparse_initializer[:]
    for attribute in (attribute for node in nodes for attribute in node.attribute):
        if attribute.HasField("sparse_tensor"):
            value = numpy_helper.from_array(weights.dense(attribute.sparse_tensor))
            attribute.CopyFrom(onnx.helper.make_attribute("value", value))
    of_nodes = (t for node in nodes for a in node.attribute for t in (a.t, *a.tensors))
    for tensor in itertools.chain(of_nodes, *(body.initializer for body in bodies)):
        if tensor.data_location == TensorProto.EXTERNAL:
            array = weights.array(tensor)
            assert array is not None
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))

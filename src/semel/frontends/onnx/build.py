"""From a model to a graph: what its inputs, weights and outputs are.

    Model  --build-->  Built{graph, what its inputs decide}  --Session.compile-->  CompiledGraph

Every dim that has no number is a variable, under its own name where it has one. Large or fractional
initializers are params, which can be replaced later; small whole numbers are constants, because
they are mostly axes and shapes.

What inputs *hold* may decide shapes. The walk finds out which ones, by asking; then the model is
built again with what they hold: sizes become variables that the content binds at every run, and
numbers that decide what is computed are fixed, one graph for each set of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from onnx import TensorProto, TypeProto, ValueInfoProto, numpy_helper

from semel.errors import InputError, ModelError
from semel.frontends.onnx.file import Model
from semel.frontends.onnx.node import dtype_of
from semel.frontends.onnx.values import (
    AnyValue,
    Items,
    Nothing,
    Text,
    Value,
    as_value,
    object_array,
)
from semel.frontends.onnx.walk import Around, DecidedByContent, DecidedByWeights, Walk
from semel.graph.builder import Graph
from semel.ir.expr import Dim, Variable
from semel.ir.types import as_dtype
from semel.runtime.buffer import Array
from semel.tensor.tensor import Tensor

#: An initializer of whole numbers with more of them is no shape, but data.
_LARGE = 64
_LEAST, _MOST = -(2**31), 2**31 - 1


#: A tensor (dtype, rank), the items of a sequence, or nothing.
Kind: TypeAlias = "tuple[str, int] | list[Kind] | None"


@dataclass(eq=False)
class Built:
    """A graph, and where its variables come from that no shape gives."""

    graph: Graph
    #: Variable -> the input whose content it is, and the flat position there.
    content: dict[str, tuple[str, int]] = field(default_factory=dict)
    #: What each output of the model is made of: names of the graph's outputs, as they nest.
    outputs: dict[str, Any] = field(default_factory=dict)
    #: The same of inputs that are no tensors, or of any rank.
    inputs: dict[str, Any] = field(default_factory=dict)
    #: Initializers whose numbers decide what is computed: params in no graph like this one.
    known: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Choices:
    """What a caller says about a model.

    `dims` names or fixes dims: a number, another name, or a variable with its bounds. `values` are
    contents of inputs that are fixed, which are inputs no more. `content` is what an input holds
    that decides shapes: exact numbers, or None where a run binds a size. `kinds` are what inputs
    are whose types leave it open: sequences of so many items, optionals, tensors of any rank.
    `truths` are conditions of sizes that hold, or do not; `sizes` are dims by name whose numbers
    decide what is computed. `empty` are dims by name that may be 0.
    """

    dims: Mapping[str, int | str | Variable] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    content: Mapping[str, Array] = field(default_factory=dict)
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    truths: Mapping[Dim, bool] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    empty: frozenset[str] = frozenset()


def build(model: Model, choices: Choices) -> Built:
    """The graph of a model. Raises DecidedByContent where it must know what inputs hold."""
    constants = _scales(model)
    while True:
        try:
            return _build(model, choices, constants)
        except DecidedByWeights as found:
            constants |= found.names


def _scales(model: Model) -> frozenset[str]:
    """What must be known of what resizes read beside the image."""
    nodes = (node for node in model.proto.graph.node if node.op_type in ("Resize", "Upsample"))
    return frozenset(name for node in nodes for name in node.input[1:])


def _build(model: Model, choices: Choices, constants: frozenset[str]) -> Built:
    proto = model.proto.graph
    built = Built(Graph(_graph_name(model)), known=constants)
    functions = {(f.domain, f.name): f for f in model.proto.functions}
    next_key = _Keys(built.graph).draw
    around = Around(built.content, built.graph.inputs, next_key, choices.truths, functions)
    walk = Walk(model.versions, around=around)
    _check_names(model, choices)
    _add_inputs(model, choices, built, walk)
    _add_initializers(model, choices, built, walk, constants)
    walk.run(proto.node)
    walk.check(model.name)
    for output in proto.output:
        built.outputs[output.name] = _add_output(built.graph, output.name, walk.output(output.name))
    return built


class _Keys:
    """Keys for random numbers, other ones in each run; a graph that draws none has no state."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._key: Tensor | None = None

    def draw(self) -> Tensor:
        """A key that nobody else has."""
        key = self._graph.random_key("random") if self._key is None else self._key
        self._key, drawn = Tensor.split_key(key, 2).unbind(0)
        return drawn


def _graph_name(model: Model) -> str:
    return model.proto.graph.name or "model"


def _check_names(model: Model, choices: Choices) -> None:
    known = {given.name for given in model.proto.graph.input}
    unknown = sorted(choices.values.keys() - known)
    if unknown:
        raise ModelError(
            model.name,
            f"values must be of its inputs ({', '.join(sorted(known))}), got '{unknown[0]}'.",
        )


# ---------------------------------------------------------------- inputs


def _add_inputs(model: Model, choices: Choices, built: Built, walk: Walk) -> None:
    initialised = initializer_names(model)
    for given in model.proto.graph.input:
        if given.name in choices.values:
            walk.values[given.name] = _frozen(given, choices.values[given.name])
        elif given.name not in initialised:
            walk.values[given.name] = _input(model, given, choices, built)


def _frozen(given: ValueInfoProto, value: Any) -> AnyValue:
    """What a caller says that an input holds; numbers in lists are a tensor, where it is one."""
    code = given.type.tensor_type.elem_type
    if not given.type.HasField("tensor_type") or code == TensorProto.STRING:
        return as_value(value)
    dtype = dtype_of(code, f"input '{given.name}'")
    try:
        return as_value(np.asarray(value, None if isinstance(value, np.ndarray) else dtype.numpy))
    except (TypeError, ValueError) as error:
        where = f"input '{given.name}'"
        raise InputError(where, f"its value must be numbers of {dtype}: {error}.") from error


def _input(model: Model, given: ValueInfoProto, choices: Choices, built: Built) -> AnyValue:
    kind, content = given.type, choices.content.get(given.name)
    if is_open(kind):
        if given.name not in choices.kinds:
            raise DecidedByContent(frozenset([given.name]), exact=True)
        found = choices.kinds[given.name]
        if isinstance(found, tuple) and content is not None:
            tensor = built.graph.input(given.name, content.shape, found[0])
            return _decided(given.name, tensor, content, built)
        value, names = _open_input(built.graph, given.name, found, choices.sizes)
        built.inputs[given.name] = names
        return value
    dtype = dtype_of(kind.tensor_type.elem_type, f"input '{given.name}'")
    if content is None:
        shape = _shape(given.name, kind, choices)
        return Value.of(built.graph.input(given.name, shape, dtype))
    tensor = built.graph.input(given.name, content.shape, dtype)
    return _decided(given.name, tensor, content, built)


def sizes_of(model: Model, choices: Choices, inputs: Mapping[str, Any]) -> dict[str, int]:
    """The values of variables that the shapes of these inputs give."""
    found: dict[str, int] = {}
    for given in model.proto.graph.input:
        if given.name not in inputs:
            continue
        if is_open(given.type):
            found |= open_sizes(given.name, inputs[given.name])
            continue
        shape = _shape(given.name, given.type, choices)
        sizes = list(zip(shape, np.shape(inputs[given.name]), strict=False))
        found |= {dim: size for dim, size in sizes if isinstance(dim, str)}
        found |= {dim.name: size for dim, size in sizes if isinstance(dim, Variable)}
    return found


def is_open(kind: TypeProto) -> bool:
    """Whether only an array tells what an input is: a sequence, an optional, any rank."""
    return not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape")


def kind_of(given: Any) -> Kind:
    """What is given for such an input."""
    if given is None:
        return None
    if isinstance(given, (list, tuple)):
        return [kind_of(item) for item in given]
    array = np.asarray(given)
    return array.dtype.name, array.ndim


def open_sizes(name: str, given: Any) -> dict[str, int]:
    """The values of the variables that `_open_input` makes for this."""
    if isinstance(given, (list, tuple)):
        items = [open_sizes(f"{name}.{i}", item) for i, item in enumerate(given)]
        return {name: size for item in items for name, size in item.items()}
    return {_open_dim(name, axis): size for axis, size in enumerate(np.shape(given))}


def _open_dim(name: str, axis: int) -> str:
    return _identifier(f"{name}_{axis}")


def _open_input(
    graph: Graph, name: str, kind: Kind, sizes: Mapping[str, int]
) -> tuple[AnyValue, Any]:
    """An input of this kind, and the names of what it is made of, as they nest."""
    if kind is None:
        return Nothing(), None
    if isinstance(kind, list):
        made = [_open_input(graph, f"{name}.{i}", each, sizes) for i, each in enumerate(kind)]
        return Items([value for value, _ in made]), [names for _, names in made]
    dtype, rank = kind
    dims = [_open_dim(name, axis) for axis in range(rank)]
    shape = tuple(sizes.get(dim, Variable(dim, 0)) for dim in dims)
    return Value.of(graph.input(name, shape, dtype)), name


def _shape(name: str, kind: TypeProto, choices: Choices) -> tuple[Any, ...]:
    found: list[Any] = []
    for axis, dim in enumerate(kind.tensor_type.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            found.append(dim.dim_value)
            continue
        own = dim_name(dim.dim_param, name, axis)
        chosen = choices.dims.get(dim.dim_param, choices.dims.get(own, own))
        name_of = chosen.name if isinstance(chosen, Variable) else str(chosen)
        if chosen in choices.empty:
            chosen = Variable(name_of, 0)
        found.append(choices.sizes.get(name_of, chosen))
    return tuple(found)


def dim_name(written: str, name: str, axis: int) -> str:
    """What a dim is called: as in the model if that is a name, else after its input."""
    if written.isidentifier() and written != "core_id":
        return written
    return _identifier(written if re.search(r"\w", written) else f"{name}_{axis}")


def _identifier(text: str) -> str:
    """What a variable may be called for this."""
    made = re.sub(r"\W", "_", text)
    return made if made.isidentifier() else f"d_{made}"


def _decided(name: str, tensor: Tensor, content: Array, built: Built) -> Value:
    """An input whose content is known, as far as it is not a size that runs bind."""
    dims: list[Dim] = []
    for position, number in enumerate(content.reshape(-1)):
        if number is not None:
            dims.append(number.item() if hasattr(number, "item") else number)
            continue
        own = _identifier(f"{name}_{position}_value")
        while own in built.content:  # of another input, whose name differs in signs only
            own += "_"
        variable = Variable(own, 1, None)
        built.content[own] = name, position
        dims.append(variable)
    found = Value.of_dims(object_array(dims).reshape(content.shape), tensor.dtype)
    if found.is_symbolic:
        found.made = tensor
    return found


# ---------------------------------------------------------------- weights


def _add_initializers(
    model: Model, choices: Choices, built: Built, walk: Walk, constants: frozenset[str]
) -> None:
    for name, array in initializers(model).items():
        if name in constants:
            walk.values[name] = Value.of_array(array)
        elif name not in choices.values:
            walk.values[name] = _initializer(built.graph, name, array)


def _initializer(graph: Graph, name: str, array: Array) -> AnyValue:
    if array.dtype.kind in "OSU":
        return Text(np.asarray(array, object))
    if is_data(array):
        return Value.of(graph.param(name, array))
    return Value.of_array(array)


def is_data(array: Array) -> bool:
    """Whether an initializer is a param, as far as nothing must know what it holds."""
    if array.dtype.kind in "OSU":
        return False
    return array.size > _LARGE or (as_dtype(array.dtype, "onnx").is_float and array.size > 1)


# ---------------------------------------------------------------- outputs


def _add_output(graph: Graph, name: str, value: AnyValue) -> Any:
    """Declare an output; the names of what it is made of, as it is nested."""
    match value:
        case Value():
            graph.output(name, value.tensor)
            return name
        case Items(items):
            return [_add_output(graph, f"{name}.{i}", item) for i, item in enumerate(items)]
        case Nothing():
            return None
    raise ModelError(f"output '{name}'", "text is no output of a compiled graph.")


def initializers(model: Model) -> dict[str, Array]:
    """The values that are in the model; small ones may have been replaced by a param's data."""
    small = {t.name: numpy_helper.to_array(t) for t in model.proto.graph.initializer}
    return small | model.weights


def initializer_names(model: Model) -> set[str]:
    """What has a value in the model."""
    return {t.name for t in model.proto.graph.initializer} | model.weights.keys()


def input_names(model: Model) -> list[str]:
    """The inputs that a run must be given."""
    known = initializer_names(model)
    return [given.name for given in model.proto.graph.input if given.name not in known]

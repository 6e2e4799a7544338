"""From ONNX nodes to values, one node after the other.

    Walk.run(nodes)   node --arithmetic on what is known--> value
                      node --converter-->                   values
                      node --its function's body-->         values of the body's nodes

A sub-graph sees the values around it. What a node is refused for is noted and the walk goes on
where it can, so that a user hears at once of everything that a model has and we have not.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, numpy_helper

from semel.errors import GraphError, ModelError, UnsupportedError
from semel.frontends.onnx.arithmetic import compute
from semel.frontends.onnx.node import Node
from semel.frontends.onnx.ratio import OPEN, as_ratio
from semel.frontends.onnx.table import STANDARD, converters, domain_name
from semel.frontends.onnx.unknown import refusal_of_all, refuse_operator, texts_of, unknown_nodes
from semel.frontends.onnx.values import (
    AnyValue,
    Items,
    Rows,
    Text,
    Value,
    as_value,
    object_array,
)
from semel.ir.expr import Dim, Variable, variables
from semel.ir.graph import Graph
from semel.ir.types import BOOL, INT64
from semel.runtime.buffer import Array
from semel.tensor.late import item_dim
from semel.tensor.origin import origin_of
from semel.tensor.tensor import Tensor

#: Content of an input that decides what is computed has at most so many numbers.
_MOST_NUMBERS = 64
#: The functions of tensors that users know; what others make is named after the operator.
_METHODS = frozenset(dir(Tensor))
#: Ops beside elementwise ones that programs about shapes have.
_MOVING = frozenset(
    ("input", "scalar", "constant", "iota", "reshape", "permute", "slice", "concat", "expand")
) | {"stretch"}


#: What runs are given, or keep.
_GIVEN = ("input", "param", "state")


class DecidedByContent(Exception):  # noqa: N818  (a question, no error)
    """What inputs hold must be known; `exact` if sizes that runs bind will not do.

    Of `dims`, variables by name, the number must be: how many axes something has, say.
    """

    def __init__(
        self, inputs: frozenset[str], exact: bool, dims: frozenset[str] = frozenset()
    ) -> None:
        self.inputs, self.exact, self.dims = inputs, exact, dims
        super().__init__(f"the content of {', '.join(sorted(inputs | dims))} must be known")


class _RefusedBefore(Exception):  # noqa: N818  (an answer, no error)
    """What a node reads was refused, which is said elsewhere."""


class DecidedByWeights(Exception):  # noqa: N818  (a question, no error)
    """These initializers decide what is computed, so that they are constants."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names
        super().__init__(f"{', '.join(sorted(names))} must be constants")


class DecidedBySizes(Exception):  # noqa: N818  (a question, no error)
    """Whether this expression of sizes is true must be known."""

    def __init__(self, condition: Dim) -> None:
        self.condition = condition
        super().__init__(f"whether {condition} is true must be known")


@dataclass(eq=False)
class Around:
    """What all walks of one model share.

    `content` has the variables that are what an input holds: its name, and the position there.
    `inputs` are those of the model, in the graph that is made. `next_key` gives a new key for
    random numbers at each call. `truths` are conditions of sizes that are decided. `functions`,
    by domain and name, are the model's own that could not be inlined. `rooms` number the limits of
    sizes that runs find out.
    """

    content: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    next_key: Callable[[], Tensor] | None = None
    truths: Mapping[Dim, bool] = field(default_factory=dict)
    functions: Mapping[tuple[str, str], FunctionProto] = field(default_factory=dict)
    rooms: Iterator[int] = field(default_factory=itertools.count)


class Walk:
    """The values of a graph by their ONNX names, as far as the walk has come."""

    def __init__(
        self,
        versions: Mapping[str, int],
        values: Mapping[str, AnyValue] = {},
        around: Around | None = None,
    ) -> None:
        self.versions = dict(versions)
        self.around = around or Around()
        self.values: dict[str, AnyValue] = dict(values)
        self.refused: list[UnsupportedError] = []
        self._broken: set[str] = set()

    def run(self, nodes: Sequence[NodeProto]) -> None:
        """Convert these nodes, which come in an order in which they can be computed."""
        for proto in nodes:
            try:
                self._convert(proto)
            except (UnsupportedError, _RefusedBefore) as error:
                self._note(proto, error)
                self._broken.update(proto.output)

    def _note(self, proto: NodeProto, error: Exception) -> None:
        """Remember what a node was refused for, and operators that it kept us from coming to."""
        said = [error] if isinstance(error, UnsupportedError) else []
        texts = texts_of(said)
        unknown = unknown_nodes((proto,), self.versions, self.around.functions)
        self.refused += [*said, *(each for each in unknown if str(each) not in texts)]

    def check(self, name: str) -> None:
        """Raise what was refused, all of it in one error."""
        if self.refused:
            raise refusal_of_all(name, self.refused)

    def graph(self, graph: GraphProto, inputs: Sequence[Any]) -> list[AnyValue]:
        """The outputs of a sub-graph for these inputs; it sees all that is known here."""
        inner = Walk(self.versions, self.values, self.around)
        inner._broken |= self._broken
        inner.add_initializers(graph)
        for given, value in zip(graph.input, inputs, strict=False):
            inner.values[given.name] = as_value(value)
        inner.run(graph.node)
        inner.check(graph.name or "a sub-graph")
        return [inner.value(output.name) for output in graph.output]

    def add_initializers(self, graph: GraphProto) -> None:
        """Let the walk know what a graph has of its own."""
        for tensor in graph.initializer:
            self.values[tensor.name] = as_value(numpy_helper.to_array(tensor))

    def value(self, name: str) -> AnyValue:
        """The value with this name."""
        found = self.values.get(name)
        if found is None and name in self._broken:
            raise _RefusedBefore
        if found is None:
            raise ModelError("onnx", f"'{name}' is used and nothing computes it.")
        return found

    def output(self, name: str) -> AnyValue:
        """The value with this name, as runs give it: of a sequence, how many items is known."""
        value = self.value(name)
        if not isinstance(value, Rows):
            return value
        return Items(
            self.items_of(Node(NodeProto(op_type="output", name=name), 1, (), self), value)
        )

    # ------------------------------------------------------------ one node

    def _convert(self, proto: NodeProto) -> None:
        domain = domain_name(proto.domain)
        inputs = [self.value(name) if name else None for name in proto.input]
        node = Node(proto, self.versions.get(domain, 1), inputs, self)
        line, operator = f"{proto.op_type} '{node.name}'", _snake_case(proto.op_type)
        with origin_of(line, operator, _METHODS), _named(node):
            found: Any = compute(node) if domain == STANDARD else None
            if found is None:
                convert = converters().get((domain, proto.op_type))
                found = self._body(node) if convert is None else convert(node)
        outputs = list(found) if isinstance(found, (list, tuple)) else [found]
        for name, value in zip(proto.output, outputs, strict=False):
            if name:
                self.values[name] = as_value(value)

    def next_key(self) -> Tensor:
        """A key that nobody else draws from."""
        assert self.around.next_key is not None
        return self.around.next_key()

    def convert(self, op: str, node: Node, inputs: Sequence[Any] | None = None) -> Any:
        """What an operator of the standard is for the attributes and inputs of this node."""
        given = node.inputs
        if inputs is not None:
            given = tuple(None if x is None else as_value(x) for x in inputs)
        version = self.versions.get(STANDARD, onnx.defs.onnx_opset_version())
        return converters()[STANDARD, op](Node(node.proto, version, given, self, op))

    def _body(self, node: Node) -> list[AnyValue]:
        """The outputs of an operator that is defined by a function."""
        body = self.around.functions.get((node.domain, node.op)) or _function_body(node)
        if body is None:
            raise refuse_operator(node.op, node.domain, node.version, node.name)
        versions = {domain_name(o.domain): o.version for o in body.opset_import}
        inner = Walk({**self.versions, **versions}, around=self.around)
        for i, name in enumerate(body.input):
            value = node.inputs[i] if i < len(node.inputs) else None
            if value is not None:
                inner.values[name] = value
        given = _given(body, node)
        inner.run([_filled(each, node.name, given) for each in body.node])
        inner.check(repr(node))
        return [inner.value(name) for name in body.output[: node.num_outputs]]

    # ------------------------------------------------------------ what must be known

    def known_dims(self, node: Node, position: int) -> Array:
        """An input whose numbers are sizes: numbers and expressions.

        Of inputs of the model, the content is bound at each run; what is computed from data
        becomes sizes that a run finds out.
        """
        value = node.value(position)
        found = self.known(value, exact=False)
        if found is not None:
            return found
        tensor = value.tensor.cast(INT64)
        flat = tensor.reshape(-1) if tensor.ndim else tensor.reshape(1)
        count = self.known_size(node, flat.shape[0])
        return object_array([self.size_of(flat[i]) for i in range(count)])

    def size_of(self, number: Tensor) -> Dim:
        """The size that this number, which runs compute, is: as large as there is memory for."""
        return item_dim(number, self.new_room())

    def new_room(self) -> Variable:
        """The limit of a size that runs find out; who finds out more gets more memory."""
        taken = {v.name for x in self.around.inputs.values() for d in x.shape for v in variables(d)}
        names = (f"room_{k}" for k in self.around.rooms)
        return Variable(next(name for name in names if name not in taken), 1)

    def known_numbers(self, node: Node, position: int) -> Array:
        """An input whose numbers decide what is computed."""
        value = node.value(position)
        found = self.known(value, exact=True)
        if found is not None and found.dtype == object:
            for number in found.flat:
                self._ask(node, number)
        if found is None:
            self._ask_for_sizes(node, value)
            raise node.refuse(
                f"input {position} decides what is computed, so it must be known.",
                "Give its value when the model is loaded (values={...}) if it is an input.",
            )
        return found

    def is_true(self, node: Node, value: Value) -> bool:
        """Whether a condition holds, which must be known: exactly, or by the sizes of a run."""
        known = self.known(value, exact=True)
        if known is None:
            self._ask_for_sizes(node, value)
            raise node.refuse("its condition comes from data, so it cannot be known.")
        if known.dtype != object:
            return bool(known.reshape(()))
        return self.holds(node, known.item())

    def holds(self, node: Node, condition: Dim) -> bool:
        """Whether a condition of sizes is true, which must be known: by the sizes of a run."""
        if isinstance(condition, int):
            return bool(condition)
        inputs, _ = self._origins(node, condition)
        if inputs:
            raise DecidedByContent(inputs, exact=True)
        if condition not in self.around.truths:
            raise DecidedBySizes(condition)
        return self.around.truths[condition]

    def is_decided(self, condition: Dim) -> bool:
        """Whether a condition of sizes is one that a form was chosen by."""
        return condition in self.around.truths

    def is_switch(self, value: Value) -> bool:
        """Whether a condition is about inputs of the model that are one bool each.

        Such inputs are there to choose: there is a form for each of the two values.
        """
        leaves = [n for n in Graph((value.tensor.node,)).nodes if n.op.name in _GIVEN]
        return bool(leaves) and all(
            leaf.type.dtype == BOOL and leaf.type.num_elements == 1 and self._is_own(leaf)
            for leaf in leaves
        )

    def known_size(self, node: Node, dim: Dim) -> int:
        """A dim whose number decides what is computed."""
        self._ask(node, dim)
        assert isinstance(dim, int)
        return dim

    def _ask(self, node: Node, number: Any) -> None:
        """Ask for the sizes and the contents that a number is made of, if it is not known yet."""
        if isinstance(number, OPEN):
            inputs, dims = self._origins(node, number)
            raise DecidedByContent(inputs, True, dims)

    def _ask_for_sizes(self, node: Node, value: Value) -> None:
        """Ask for the sizes that a value is computed from, if they are all that it is made of."""
        graph = Graph((value.tensor.node,))
        if not any(each.op.name in _GIVEN for each in graph.nodes):
            for variable in graph.variables:
                self._ask(node, variable)

    def items_of(self, node: Node, rows: Rows) -> list[AnyValue]:
        """The items of a sequence that a loop built, one by one."""
        return [
            Value.of(rows.tensor[i]) for i in range(self.known_size(node, rows.tensor.shape[0]))
        ]

    def _origins(self, node: Node, number: Any) -> tuple[frozenset[str], frozenset[str]]:
        """Whose content a number is made of, and of which sizes of inputs; of nothing else."""
        ratio, content = as_ratio(number), self.around.content
        used = frozenset(v.name for v in (*variables(ratio.top), *variables(ratio.bottom)))
        given = {v.name for x in self.around.inputs.values() for d in x.shape for v in variables(d)}
        inputs, dims = frozenset(content[name][0] for name in used & content.keys()), used & given
        if not used or not used <= dims | content.keys():
            raise node.refuse(f"a size that decides what is computed must be known, got {number}.")
        return inputs, dims

    def known(self, value: Value, exact: bool) -> Array | None:
        """What a value is, if that can be known before a run; None if data decides it."""
        if value.known is not None:
            return value.known
        graph = Graph((value.tensor.node,))
        leaves = [node for node in graph.nodes if node.op.name in _GIVEN]
        if not leaves:
            if graph.variables:  # sizes, through operators that the arithmetic does not know
                return None
            value.known = value.tensor.numpy()
            return value.known
        if all(leaf.op.name == "param" for leaf in leaves):
            raise DecidedByWeights(frozenset(leaf.attrs.name for leaf in leaves))
        is_moved = exact or all(
            node.op.name in _MOVING or node.op.kind == "elementwise" for node in graph.nodes
        )
        if all(self._may_decide(leaf, is_moved) for leaf in leaves):
            raise DecidedByContent(frozenset(leaf.attrs.name for leaf in leaves), exact)
        return None

    def _may_decide(self, leaf: Any, is_moved: bool) -> bool:
        """Whether it is an input of few numbers, whose content can be looked at before a run.

        How many they are may be open, if each of them is a size that is asked for.
        """
        if not self._is_own(leaf):
            return False
        count = leaf.type.num_elements
        if isinstance(count, int):
            return bool(count <= _MOST_NUMBERS)
        return is_moved and bool(leaf.type.rank <= 1)

    def _is_own(self, leaf: Any) -> bool:
        """Whether it is an input of the model, no param and no input of a body."""
        own = self.around.inputs.get(leaf.attrs.name)
        return own is not None and own.node is leaf


#: What Python raises where a node does not keep to its operator: too few inputs, no such axis.
_MALFORMED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    onnx.defs.SchemaError,
)


@contextmanager
def _named(node: Node) -> Iterator[None]:
    """Errors inside say which node they are about."""
    try:
        yield
    except UnsupportedError as error:
        if hasattr(error, "node") or hasattr(error, "refused"):
            raise
        raise node.refuse(str(error)) from error
    except GraphError as error:
        raise _model_error(node, str(error)) from error
    except _MALFORMED as error:
        message = f"must be as its operator says: {type(error).__name__}: {error}."
        raise _model_error(node, message) from error


def _model_error(node: Node, message: str) -> ModelError:
    shapes = ", ".join(_shown(value) for value in node.inputs)
    where = f"onnx: {node!r}"
    return ModelError(where, f"{message} Inputs: {shapes}.", node=node.name, op=node.op)


def _shown(value: AnyValue | None) -> str:
    if isinstance(value, Value):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    return {type(None): "none", Text: "text"}.get(type(value), "a sequence")


# ---------------------------------------------------------------- function bodies


def _snake_case(operator: str) -> str:
    """An operator as kernels are called: LpNormalization -> lp_normalization, LRN -> lrn."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", operator).lower()


def _function_body(node: Node) -> FunctionProto | None:
    """The function that the standard defines an operator by; None if there is none."""
    try:
        schema = onnx.defs.get_schema(node.op, node.version, node.domain)
    except onnx.defs.SchemaError:
        return None
    if schema.has_function:
        return schema.function_body
    if not schema.has_context_dependent_function:
        return None
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= node.version]
    if not versions:
        return None
    types = [_type_of(value) for value in node.inputs]
    data = schema.get_context_dependent_function_with_opset_version(
        max(versions), node.proto.SerializeToString(), types
    )
    body = FunctionProto()
    body.ParseFromString(data)
    return body


def _type_of(value: AnyValue | None) -> bytes:
    if not isinstance(value, Value):
        return onnx.TypeProto().SerializeToString()  # type: ignore[no-any-return]
    code = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype.numpy))
    shape = [dim if isinstance(dim, int) else None for dim in value.shape]
    kind = onnx.helper.make_tensor_type_proto(code, shape)
    return kind.SerializeToString()  # type: ignore[no-any-return]


def _given(body: FunctionProto, caller: Node) -> dict[str, AttributeProto]:
    """The attributes of a body: the caller's, else what the body or the standard says."""
    try:
        schema = onnx.defs.get_schema(caller.op, caller.version, caller.domain)
        found = {name: a.default_value for name, a in schema.attributes.items()}
    except onnx.defs.SchemaError:
        found = {}
    found |= {a.name: a for a in body.attribute_proto}
    found |= {a.name: a for a in caller.proto.attribute}
    return {name: a for name, a in found.items() if a.type != AttributeProto.UNDEFINED}


def _filled(proto: NodeProto, name: str, given: Mapping[str, AttributeProto]) -> NodeProto:
    """A node of a body under this name, with attributes that are given, in sub-graphs too."""
    made = NodeProto()
    made.CopyFrom(proto)
    kept = []
    for attribute in made.attribute:
        if attribute.type == AttributeProto.GRAPH:
            inner = [_filled(each, each.name, given) for each in attribute.g.node]
            del attribute.g.node[:]
            attribute.g.node.extend(inner)
        if not attribute.ref_attr_name:
            kept.append(attribute)
            continue
        source = given.get(attribute.ref_attr_name)
        if source is not None:
            copy = AttributeProto()
            copy.CopyFrom(source)
            copy.name = attribute.name
            kept.append(copy)
    del made.attribute[:]
    made.attribute.extend(kept)
    made.name = name
    return made

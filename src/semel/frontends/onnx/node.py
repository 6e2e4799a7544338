"""One ONNX node as converters see it: its attributes, its inputs, and how to refuse it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, helper

from semel.errors import ModelError, UnsupportedError
from semel.frontends.onnx.values import AnyValue, Items, Nothing, Rows, Text, Value
from semel.ir.expr import Dim
from semel.ir.types import DType, as_dtype
from semel.tensor.tensor import Tensor

if TYPE_CHECKING:
    from semel.frontends.onnx.walk import Walk

#: What a node becomes: one value for each output, or the only one; tensors count as values.
Converter = Callable[["Node"], Any]


class Node:
    """A node with the values of its inputs; `version` is that of its domain's operators.

    Inputs that are left out are None, at the end too.
    """

    def __init__(
        self,
        proto: NodeProto,
        version: int,
        inputs: Sequence[AnyValue | None],
        walk: Walk,
        op: str | None = None,
    ) -> None:
        """`op` is what it is taken for, if that is not what it is called."""
        self.proto, self.version, self.walk = proto, version, walk
        self.op, self.domain = op or proto.op_type, proto.domain
        self.inputs = tuple(inputs)
        self.attrs: Mapping[str, Any] = {a.name: _plain(a) for a in proto.attribute}

    def __repr__(self) -> str:
        return f"{self.op} '{self.name}'" if self.name else self.op

    @property
    def name(self) -> str:
        """Its own, or that of its first output."""
        return self.proto.name or next(iter(self.proto.output), "")

    @property
    def num_outputs(self) -> int:
        """How many outputs it lists; some of them may have no name."""
        return len(self.proto.output)

    def wants(self, output: int) -> bool:
        """Whether anybody may read this output."""
        return output < len(self.proto.output) and bool(self.proto.output[output])

    # ------------------------------------------------------------ attributes

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute: a number, a string, a list of these, an array, or a sub-graph."""
        return self.attrs.get(name, default)

    def number(self, name: str, default: float) -> float:
        """An attribute that is a number."""
        return float(self.attrs.get(name, default))

    def flag(self, name: str, default: bool = False) -> bool:
        """An attribute that says yes or no: 1 or 0, and others mean nothing."""
        found = self.attrs.get(name, default)
        if found not in (0, 1):
            message = f"attribute '{name}' must be 0 or 1, got {found!r}."
            raise ModelError(f"onnx: {self!r}", message, node=self.name, op=self.op)
        return bool(found)

    def axis(self, rank: int, default: int, name: str = "axis") -> int:
        """An attribute that is an axis of a tensor of this rank, counted from the front."""
        return self.as_axis(int(self.attrs.get(name, default)), rank)

    def as_axis(self, axis: int, rank: int) -> int:
        """An axis counted from the front, which must be one of `rank`."""
        if not -rank <= axis < rank:
            raise ModelError(
                f"onnx: {self!r}",
                f"an axis must lie in [{-rank}, {rank}), got {axis}.",
                node=self.name,
                op=self.op,
            )
        return axis % rank

    def distinct(self, axes: Sequence[int], rank: int) -> list[int]:
        """Axes of a tensor of this rank, counted from the front; none of them twice."""
        found = [self.as_axis(axis, rank) for axis in axes]
        if len(set(found)) < len(found):
            message = f"its axes must differ, got {list(axes)} of a tensor with {rank}."
            raise ModelError(f"onnx: {self!r}", message, node=self.name, op=self.op)
        return found

    def dtype_attr(self, name: str, default: Any = None) -> DType:
        """The dtype that an attribute names by its ONNX number, else `default`."""
        code = self.attrs.get(name)
        return as_dtype(default, repr(self)) if not code else dtype_of(int(code), repr(self))

    def graph(self, name: str) -> GraphProto:
        """A sub-graph."""
        found = self.attrs.get(name)
        if not isinstance(found, GraphProto):
            raise self.refuse(f"must have a graph '{name}'.")
        return found

    # ------------------------------------------------------------ inputs

    def has(self, position: int) -> bool:
        """Whether this input is given."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def any_value(self, position: int) -> AnyValue:
        """An input of whatever kind."""
        found = self.inputs[position] if position < len(self.inputs) else None
        if found is None:
            raise self.refuse(f"must have input {position}.")
        return found

    def value(self, position: int = 0) -> Value:
        """An input of numbers."""
        found = self.any_value(position)
        if isinstance(found, Value):
            return found
        kinds = {Text: "text", Nothing: "an empty optional"}
        kind = kinds.get(type(found), "a sequence")
        raise self.refuse(f"input {position} must be a tensor of numbers, got {kind}.")

    def tensor(self, position: int = 0) -> Tensor:
        """An input as a tensor."""
        return self.value(position).tensor

    def optional(self, position: int) -> Tensor | None:
        """An input as a tensor, None if it is left out."""
        return self.tensor(position) if self.has(position) else None

    def tensors(self, start: int = 0) -> list[Tensor]:
        """All inputs from `start` on."""
        return [self.tensor(i) for i in range(start, len(self.inputs)) if self.has(i)]

    def items(self, position: int = 0) -> list[AnyValue]:
        """The items of a sequence, whose number must be known."""
        found = self.any_value(position)
        if isinstance(found, Rows):
            return self.walk.items_of(self, found)
        if not isinstance(found, Items):
            raise self.refuse(f"input {position} must be a sequence.")
        return found.items

    def dims(self, position: int) -> list[Dim]:
        """An input whose elements are sizes, flat: numbers, or expressions that runs evaluate."""
        known = self.walk.known_dims(self, position)
        return [dim if isinstance(dim, int) else _as_dim(dim) for dim in known.reshape(-1)]

    def dim(self, position: int) -> Dim:
        """An input that is one size."""
        return self.dims(position)[0]

    def size(self, dim: Dim) -> int:
        """A dim of an input whose number decides what is computed."""
        return self.walk.known_size(self, dim)

    def holds(self, condition: Dim) -> bool:
        """Whether a condition of sizes, which decides what is computed, is true."""
        return self.walk.holds(self, condition)

    def numbers(self, position: int) -> np.ndarray[Any, Any]:
        """An input whose numbers decide what is computed: axes, steps, modes."""
        return self.walk.known_numbers(self, position)

    def ints(self, position: int) -> list[int]:
        """The same, as a flat list of integers."""
        return [int(number) for number in self.numbers(position).reshape(-1)]

    def axes(self, position: int, attr: str = "axes") -> list[int] | None:
        """Axes that are an input or, in older versions, an attribute; None if there are none."""
        if self.has(position):
            return self.ints(position)
        found = self.attr(attr)
        return found if found is None else [found] if isinstance(found, int) else list(found)

    # ------------------------------------------------------------ errors

    def refuse(self, message: str, hint: str = "") -> UnsupportedError:
        """The error for what this node asks and we do not have."""
        return UnsupportedError(f"onnx: {self!r}", message, hint=hint, node=self.name, op=self.op)


def dtype_of(code: int, where: str) -> DType:
    """The dtype with this ONNX number."""
    try:
        found = helper.tensor_dtype_to_np_dtype(code)
    except KeyError:
        raise ModelError(where, f"its type must be one of the standard's, got {code}.") from None
    return as_dtype(found, where)


def _plain(attribute: AttributeProto) -> Any:
    if attribute.type == AttributeProto.TENSOR:
        return attribute.t
    found = helper.get_attribute_value(attribute)
    if isinstance(found, bytes):
        return found.decode(errors="replace")
    if isinstance(found, (list, tuple)) or type(found).__name__.startswith("Repeated"):
        return [
            item.decode(errors="replace") if isinstance(item, bytes) else item for item in found
        ]
    return found


def _as_dim(dim: Any) -> Dim:
    return int(dim) if isinstance(dim, (np.integer, np.bool_)) else dim

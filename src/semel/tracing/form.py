"""A form: the calls that one trace of a function, and the plan made of it, is good for.

    Form.match(call) -> the values of its variables in that call, or None

Two calls have one form if their arguments have the same trees, dtypes, ranks and static values, if
each size fits the form's dims, and if all that Python asked while the function was followed has the
same answer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from semel.errors import VariableError
from semel.ir.expr import Dim, Variable, evaluate
from semel.ir.types import DType, as_dtype
from semel.tracing.trees import Leaves, Spec, differences, static_texts

#: Ints up to this size are variables, with which a plan calculates in 64 bits; others are static.
LARGEST_INT = (1 << 31) - 1
#: What is asked of the values of sizes and numbers while a function is followed.
Question = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Leaf:
    """What a form says of one leaf of the arguments: an array, a float or an int, and its path."""

    path: str
    name: str  #: an identifier for it: its variable, or what those of its axes begin with
    kind: str  #: array, float or int
    dtype: DType | None = None
    dims: tuple[Dim, ...] = ()
    #: Of a number that is part of the form: itself; of an array and others None.
    fixed: Any = None

    def __str__(self) -> str:
        if self.kind == "array":
            return f"{self.path}: {self.dtype}[{', '.join(map(str, self.dims))}]"
        return (
            f"{self.path}={self.fixed!r}" if self.fixed is not None else f"{self.path}: {self.kind}"
        )


@dataclass(frozen=True, slots=True)
class CallForm:
    """One call: the tree of its arguments, and its leaves as arrays and numbers."""

    spec: Spec
    leaves: Leaves

    @property
    def key(self) -> Any:
        """What calls of one family of forms have in common."""
        return self.spec, tuple([kind_of(value) for _, value in self.leaves])


def kind_of(value: Any) -> tuple[Any, ...]:
    """What a leaf is, but for sizes and values."""
    if type(value) is float:
        return ("float",)
    if type(value) is int:
        return ("int",)
    return ("array", value.dtype, value.ndim)


@dataclass(eq=False, repr=False)
class Form:
    """What a trace is good for, how its plan is called, and what its outputs are."""

    spec: Spec
    leaves: tuple[Leaf, ...]
    questions: tuple[tuple[Question, Any], ...] = ()
    guards: tuple[Dim, ...] = ()
    #: What the sizes must be beyond that, in words: for people.
    notes: tuple[str, ...] = ()
    plan: Any = None
    #: Positions of the leaves that are inputs of the plan, in order; then come random keys.
    inputs: tuple[int, ...] = ()
    input_names: tuple[str, ...] = ()
    num_keys: int = 0
    variables: frozenset[str] = frozenset()
    out_spec: Spec = ()
    #: For each leaf of the result: what it is (tensor, number, dim, array or other), and which.
    outputs: tuple[tuple[str, Any], ...] = ()

    def match(self, leaves: Leaves) -> dict[str, Any] | None:
        """The values of sizes and numbers in a call of this family; None if it does not fit."""
        values: dict[str, Any] = {}
        for leaf, (_, value) in zip(self.leaves, leaves, strict=True):
            if leaf.kind == "array":
                if not _fits(leaf.dims, value.shape, values):
                    return None
            elif leaf.fixed is not None:
                if not is_same_number(leaf.fixed, value):
                    return None
            elif type(value) is int and abs(value) > LARGEST_INT:
                return None
            else:
                values[leaf.name] = value
        return values if self._holds(values) else None

    def _holds(self, values: Mapping[str, Any]) -> bool:
        try:
            if any(evaluate(amount, values) for amount in self.guards):
                return False
            return all(is_same(question(values), answer) for question, answer in self.questions)
        except (VariableError, ZeroDivisionError, OverflowError):
            return False

    def __str__(self) -> str:
        parts = [*map(str, self.leaves), *static_texts(self.spec)]
        return f"({', '.join(parts)})" + "".join(f", {note}" for note in self.notes)

    def __repr__(self) -> str:
        return f"<form {self}>"


def _fits(dims: tuple[Dim, ...], shape: tuple[int, ...], values: dict[str, Any]) -> bool:
    for dim, size in zip(dims, shape, strict=True):
        if isinstance(dim, Variable):
            if values.setdefault(dim.name, size) != size or not _is_within(dim, size):
                return False
        elif dim != size:
            return False
    return True


def _is_within(variable: Variable, size: int) -> bool:
    return size >= variable.min and (variable.max is None or size <= variable.max)


def is_same_number(a: Any, b: Any) -> bool:
    """Whether two ints or floats are the same: a NaN is, 0.0 and -0.0 are not."""
    if type(a) is float and type(b) is float:
        return struct.pack("d", a) == struct.pack("d", b)
    return type(a) is type(b) and bool(a == b)


def is_same(a: Any, b: Any) -> bool:
    """Whether two answers are the same."""
    return is_same_number(a, b) if type(a) is float else bool(a == b)


def difference(old: Form, call: CallForm) -> str:
    """In words, why a call is not of that form."""
    changed = list(differences(old.spec, call.spec))
    if changed:
        return "; ".join(changed[:3])
    found = []
    for leaf, (path, value) in zip(old.leaves, call.leaves, strict=True):
        now = _leaf_text(value)
        before = str(leaf)[len(path) :].lstrip(":= ")
        wanted = kind_of(value)
        if (
            leaf.kind != wanted[0]
            or (leaf.kind == "array" and leaf.dtype != as_dtype(wanted[1]))
            or (leaf.kind == "array" and len(leaf.dims) != value.ndim)
        ):
            found.append(f"argument '{path}' was {_starred(leaf)}, is {now}")
        elif leaf.kind == "array" and not _fits(leaf.dims, value.shape, {}):
            found.append(f"argument '{path}' was {before}, is {now}")
        elif leaf.fixed is not None and not is_same_number(leaf.fixed, value):
            found.append(f"argument '{path}' was {leaf.fixed!r}, is {value!r}")
    if found:
        return "; ".join(found[:3])
    sizes = ", ".join(f"{p}: {list(v.shape)}" for p, v in call.leaves if isinstance(v, np.ndarray))
    return f"the sizes {sizes} do not fit {old}"


def _starred(leaf: Leaf) -> str:
    if leaf.kind != "array":
        return f"a {leaf.kind}"
    dims = ", ".join(str(d) if isinstance(d, int) else "*" for d in leaf.dims)
    return f"{leaf.dtype}[{dims}]"


def _leaf_text(value: Any) -> str:
    if type(value) in (int, float):
        return f"a {type(value).__name__}"
    return f"{as_dtype(value.dtype)}[{', '.join(map(str, value.shape))}]"

"""Runs of a form's plan with the arrays of a call, from as many threads as call it.

    Runs(form).run(leaves, values) -> the result of the function

A plan has one set of buffers, so that a call takes it for itself; a call that comes while it is
taken gets a clone, which waits for the next such call afterwards. Clones share code and weights,
and are given up when a param of the plan was replaced since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from semel.ir.expr import evaluate, variables
from semel.ir.types import TensorType, as_dtype
from semel.plan.sized import SizedCall
from semel.tensor.handle import wrap_data
from semel.tensor.random import next_key
from semel.tracing.form import Form
from semel.tracing.trees import LEAF, rebuild

#: Clones of one form that wait for the next call.
_MOST_IDLE = 8
#: Sizes of earlier calls that are remembered.
_MOST_SIZES = 256
Array = np.ndarray[Any, Any]


class At:
    """The sizes of a call: values of all variables, and the types of the results."""

    __slots__ = ("dims", "kinds", "values")

    def __init__(self, form: Form, values: Mapping[str, Any]) -> None:
        self.values = {name: values[name] for name in form.variables}
        self.kinds: list[TensorType] = []
        self.dims = [evaluate(v, values) if what == "dim" else 0 for what, v in form.outputs]


class _Taken:
    """One plan, and the sizes that it is bound to."""

    __slots__ = ("at", "call", "program")

    def __init__(self, call: SizedCall) -> None:
        self.call, self.at = call, None
        self.program = call.plan.engine.parts.program

    at: At | None


class Runs:
    """The plans of a form that are at rest."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._idle: list[_Taken] = []
        self._known: dict[Any, At] = {}
        dims = {v.name for what, d in form.outputs if what == "dim" for v in variables(d)}
        self._named = sorted({*form.variables, *dims})
        self._is_single = form.out_spec == LEAF and form.outputs[0][0] == "tensor"
        self._keys = [i for i in form.inputs if i < 0]
        if form.plan is not None:
            self._idle.append(_Taken(SizedCall(form.plan, form.input_names)))

    def at(self, values: Mapping[str, Any]) -> At:
        """What a call at these values is bound to: that of an earlier one, if it was like it."""
        key = tuple([values[name] for name in self._named])
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST_SIZES:
                self._known.clear()
            found = self._known[key] = At(self._form, values)
        return found

    def run(self, arrays: list[Array], at: At, donated: Sequence[Array] = ()) -> Any:
        """The result; `arrays` are those that the plan takes, without its random keys.

        Outputs may be written to the `donated` arrays, once that is read.
        """
        form = self._form
        if form.plan is None:
            return self._result([], at)
        if form.num_keys:
            drawn = [next_key() for _ in range(form.num_keys)]
            arrays = [*arrays, *[drawn[-1 - i] for i in self._keys]]
        taken = self._take()
        try:
            into = _places(at.kinds, donated) if donated else None
            found = taken.call(arrays, None if taken.at is at else at.values, into)
            taken.at = at
        except BaseException:
            taken.at = None
            raise
        finally:
            self._idle.append(taken)
            if len(self._idle) > _MOST_IDLE:
                self._drop_clone()
        return self._result(found, at)

    def _take(self) -> _Taken:
        program = self._form.plan.engine.parts.program
        while True:
            try:
                taken = self._idle.pop()
            except IndexError:
                return _Taken(SizedCall(self._form.plan.clone(), self._form.input_names))
            if taken.call.plan.engine.parts.program is program:
                return taken

    def _drop_clone(self) -> None:
        """Let one plan go that is not the form's own."""
        for i, taken in enumerate(self._idle):
            if taken.call.plan is not self._form.plan:
                del self._idle[i]
                return

    def _result(self, arrays: Sequence[Array], at: At) -> Any:
        kinds = at.kinds
        if len(kinds) != len(arrays):
            kinds = at.kinds = [_kind(array) for array in arrays]
        tensors = []
        for array, kind in zip(arrays, kinds, strict=True):
            is_like = array.shape == kind.shape  # unless a run finds it out
            tensors.append(wrap_data(array, kind if is_like else _kind(array)))
        if self._is_single:
            return tensors[0]
        count = len(self._form.outputs)
        return rebuild(
            self._form.out_spec, iter([self._leaf(i, tensors, at) for i in range(count)])
        )

    def _leaf(self, i: int, tensors: Sequence[Any], at: At) -> Any:
        what, value = self._form.outputs[i]
        if what == "tensor":
            return tensors[value]
        if what == "number":
            return tensors[value]._value.array.item()
        if what == "dim":
            return at.dims[i]
        return value.copy() if what == "array" else value


def _places(kinds: Sequence[TensorType], donated: Sequence[Array]) -> dict[int, Array]:
    """Which output takes which array: the first that is like it."""
    left, found = list(donated), dict[int, Array]()
    for i, kind in enumerate(kinds):
        like = [k for k, a in enumerate(left) if a.shape == kind.shape and kind.dtype == a.dtype]
        if like:
            found[i] = left.pop(like[0])
    return found


def _kind(array: Array) -> TensorType:
    return TensorType(array.shape, as_dtype(array.dtype))

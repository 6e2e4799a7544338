"""`plan(**inputs)`: arrays in, arrays out.

    names and arrays  --Calls-->  copied in, run, outputs copied

A call that is like the last one but for its numbers takes a short way: nothing is solved, checked
or made but the copies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from semel.ir.expr import variables
from semel.plan.engine import Engine
from semel.plan.errors import names_error
from semel.runtime.buffer import Array, Buffer, as_array


@dataclass(slots=True)
class _FastCall:
    """What the last `plan(**inputs)` looked like; good while the state's version is the same."""

    version: int
    inputs: dict[str, tuple[Array, tuple[int, ...], np.dtype[Any]]]
    outputs: list[Callable[[], Array]]
    single: Callable[[], Array] | None

    def copies(self) -> Any:
        """The outputs as fresh arrays: one, or a tuple."""
        if self.single is not None:
            return self.single()
        return tuple([copy() for copy in self.outputs])


class Calls:
    """Calls of one plan."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._hold, self._state = engine.hold, engine.state
        self._fast: _FastCall | None = None

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        """One array, or a tuple in output order."""
        result = self._hold.alone(self._again, inputs)
        if result is None:
            # Before the plan is held: an array may come from a buffer of this plan.
            result = self._hold.alone(self._slowly, self._as_arrays(inputs))
        return result

    def forget(self) -> None:
        """Nothing is as in the last call."""
        self._fast = None

    def _again(self, inputs: Mapping[str, Any]) -> Any:
        """Run if all is as in the last call but the numbers; None if something is not."""
        fast = self._fast
        if fast is None or fast.version != self._state.version:
            return None
        slots = fast.inputs
        if len(inputs) != len(slots):
            return None
        for name, value in inputs.items():
            slot = slots.get(name)
            if slot is None or type(value) is not np.ndarray:
                return None
            _, shape, dtype = slot
            if value.shape != shape or value.dtype != dtype:
                return None
        for name, value in inputs.items():
            slots[name][0][...] = value
        self._engine.run()
        return fast.copies()

    def _as_arrays(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        slots = self._engine.state.inputs
        if not inputs.keys() <= slots.keys():
            raise names_error(set(inputs), set(slots))
        return {
            name: as_array(value, slots[name].type.dtype, f"input '{name}'")
            for name, value in inputs.items()
        }

    def _slowly(self, arrays: Mapping[str, Array]) -> Any:
        """Any shapes: check names, solve variables, grow if needed, then run and remember."""
        self._engine.state.check_alive()
        slots, bound = self._engine.state.inputs, self._engine.bindings.input_shapes()
        if arrays.keys() != slots.keys() - bound.keys():
            raise names_error(set(arrays), slots.keys() - bound.keys())
        shapes = {name: array.shape for name, array in arrays.items()}
        values = self._engine.state.solve({**shapes, **bound})
        self._engine.ensure_capacity(values)
        self._commit_shapes(shapes, values)
        try:
            for name, array in arrays.items():
                self._engine.parts.buffers[slots[name].index].put(array)
        except BaseException:  # a handler's: what is there is of another shape
            for name in arrays:
                slots[name].forget()
            raise
        self._engine.run()
        if not self._engine.parts.device.is_host:
            found = [buffer.peek(buffer.readable_shape()) for buffer in self._outputs()]
            return found[0] if len(found) == 1 else tuple(found)
        self._fast = self._remember(arrays)
        return self._fast.copies()

    def _commit_shapes(
        self, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, int]
    ) -> None:
        """Take over written shapes and variables together, or neither."""
        recorded = self._engine.state.run.recorded
        before = recorded.copy()
        try:
            for name, shape in shapes.items():
                self._engine.state.inputs[name].record(shape)
            if values:
                self._engine.bind(values)
            if self._engine.state.run.is_dirty:
                self._engine.commit()
        except BaseException:
            recorded[:] = before
            self._engine.state.run.mark_dirty()  # the runner may have taken the values over
            raise

    def _remember(self, arrays: Mapping[str, Array]) -> _FastCall:
        slots, buffers = self._engine.state.inputs, self._engine.parts.buffers
        views = {
            name: (buffers[slots[name].index].array(a.shape), a.shape, a.dtype)
            for name, a in arrays.items()
        }
        for buffer in self._outputs():
            buffer.readable_shape()  # refuses what this run did not write
        outputs = [self.copier(i) for i in self._engine.parts.outputs]
        single = outputs[0] if len(outputs) == 1 else None
        return _FastCall(self._engine.state.version, views, outputs, single)

    def copier(self, index: int) -> Callable[[], Array]:
        """A way to copy an output after each run at the same variables."""
        buffer = self._engine.parts.buffers[index]
        if self._has_late_shape(index):
            return lambda: buffer.array(buffer.readable_shape()).copy()
        return buffer.array(buffer.shape).copy

    def _has_late_shape(self, index: int) -> bool:
        """Whether each run says anew how large an output is."""
        late = {v.variable.name for v in self._engine.parts.late}
        late.update(self._engine.state.held_values())
        kinds = (io.type for io in self._engine.parts.output_io if io.index == index)
        return bool(late) and any(
            v.name in late for k in kinds for d in k.shape for v in variables(d)
        )

    def _outputs(self) -> list[Buffer]:
        parts = self._engine.parts
        return [parts.buffers[i] for i in parts.outputs]

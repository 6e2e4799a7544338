"""Runs with arrays: copied in, one run, and the outputs read, as one operation on the plan.

    names and arrays, Reader  --Calls.run-->    what the reader makes of the outputs
    arrays in order, Reader   --Calls.slots-->  likewise, with less around it

`plan(**inputs)` is one use of it. A run that is like the last one but for its numbers takes a short
way: nothing is solved, checked or made but the copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from semel.errors import InputError
from semel.plan.engine import Engine
from semel.plan.errors import arity_error, as_value, names_error
from semel.plan.limits import RunLimits
from semel.plan.readers import Copies, Reader
from semel.runtime.buffer import Array, as_array
from semel.runtime.hold import alone

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _PartView:
    """Memory of an input that is read in part: no more than that is taken of an array."""

    view: Array
    part: tuple[slice, ...]

    def __setitem__(self, key: Any, array: Array) -> None:
        self.view[key] = array[self.part]


#: What an array must be like to be copied where the last one was: memory, shape, dtype.
_Slot = tuple[Array | _PartView, tuple[int, ...], np.dtype[Any]]

#: The short way cannot be taken. No reader returns this.
_UNLIKE: Any = object()
#: Readers that are remembered at a time.
_MOST_READERS = 8


@dataclass(slots=True)
class _FastCall:
    """What the last run looked like; good while the state's version is the same.

    `in_order` are the slots in the order of the inputs, if all were given.
    """

    version: int
    slots: dict[str, _Slot]
    in_order: list[_Slot] | None
    values: Mapping[str, int]
    reads: dict[Any, Callable[[], Any]] = field(default_factory=dict)

    def prepare(self, reader: Reader[R], engine: Engine, key: Any) -> Callable[[], R]:
        """How the reader reads; by this key from now on too, unless it is for this run."""
        read = reader.prepare(engine)
        if not reader.is_for_one_run:
            if len(self.reads) >= _MOST_READERS:
                self.reads.clear()
            self.reads[key] = read
        return read


class Calls:
    """Runs of one plan with arrays."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._hold, self._state = engine.hold, engine.state
        self._fast: _FastCall | None = None
        self._copies = Copies()
        self._defaults = engine.parts.program.defaults

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        """One array, or a tuple in output order. An input that is not given is its default."""
        if self._defaults:
            inputs = {**self._unbound_defaults(), **inputs}
        return self.run(inputs, self._copies)

    def _unbound_defaults(self) -> dict[str, Array]:
        slots = self._state.inputs
        return {name: array for name, array in self._defaults.items() if not slots[name].is_bound}

    def run(
        self,
        arrays: Mapping[str, Any],
        reader: Reader[R],
        values: Mapping[str, int] | None = None,
        limits: RunLimits | None = None,
        *,
        sticky: bool = False,
        accept: Callable[[Mapping[str, Any]], Mapping[str, Array]] | None = None,
    ) -> R:
        """Copy arrays in by name, run, and read; nothing is written before all is checked.

        All inputs must be there but those that are bound to arrays, and, if it is `sticky`, those
        that were written before. `values` are variables that no shape gives; without them, such
        variables stay as they are. What is not like the last time goes through `accept` first,
        which gives arrays of the inputs' dtypes or raises.
        """
        run: Callable[[], None] = self._engine.run
        key: Any = reader
        if limits is not None:
            # A reader of outputs that some run has written must look again after another.
            run, key = limits.begin(self._engine), (reader, limits.fetch)
        result = self._hold.alone(self._again, arrays, reader, values, run, key)
        if result is _UNLIKE:
            # Before the plan is held: an array may come from a buffer of this plan.
            checked = self._as_arrays(arrays) if accept is None else accept(arrays)
            result = self._hold.alone(self._slowly, checked, reader, values or {}, sticky, run, key)
        return result  # type: ignore[no-any-return]  # what the reader returned

    def slots(self, arrays: Sequence[Any], reader: Reader[R], limits: RunLimits | None = None) -> R:
        """Like `run`, with the arrays in the order of the inputs that are not bound."""
        if limits is not None:
            return self.run(self._named(arrays), reader, None, limits)
        engine = self._engine
        with engine.lock:  # `Hold.alone`, in place to save the calls
            hold = engine.hold
            if hold.is_held:
                hold.settle()
            try:
                hold.is_held = True
                result = self._again_in_order(arrays, reader)
            finally:
                hold.is_held = False
        if result is _UNLIKE:
            return self.run(self._named(arrays), reader)
        return result  # type: ignore[no-any-return]  # what the reader returned

    @property
    def _is_near(self) -> bool:
        """Whether all that goes in and comes out lies in the host's memory."""
        parts = self._engine.parts
        named = (*(io.index for io in parts.input_io), *parts.outputs)
        return all(parts.buffers[i].memory.is_host for i in named)

    # ------------------------------------------------------------ what the callers ask before

    def without_value(self, names: Iterable[str], *, sticky: bool = False) -> list[str]:
        """Which of these inputs no array is bound to; if `sticky`, and were never written."""
        keepers = self._state.inputs
        return [
            name
            for name in names
            if not keepers[name].is_bound
            and not (sticky and keepers[name].recorded_shape() is not None)
        ]

    def check_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Refuse shapes that arrays for these inputs cannot have, alone or together.

        Nothing changes, and it waits for no run. What does not follow from these shapes alone is
        left for the run to say.
        """
        self._state.solve(shapes)

    def is_written_in_part(self, output: str) -> bool:
        """Whether runs at an extent leave rows of that output as they were."""
        return any(io.name == output and io.part for io in self._engine.program.outputs)

    @alone
    def exchange(self, pairs: Sequence[tuple[str, str]]) -> bool:
        """Let the arrays bound to an input and to an output change places, for each pair.

        False if an array is copied at each run, or unlike the other: then nothing has changed.
        These arrays must be nobody else's.
        """
        try:
            return self._engine.bindings.exchange(pairs)
        finally:
            self._engine.check_moved()

    def forget(self) -> None:
        """Nothing is as in the last call."""
        self._fast = None

    # ------------------------------------------------------------ the short way

    def _again(
        self,
        arrays: Mapping[str, Any],
        reader: Reader[Any],
        values: Mapping[str, int] | None,
        run: Callable[[], None],
        key: Any,
    ) -> Any:
        """Run if all is as in the last call but the numbers."""
        fast = self._fast
        if fast is None or fast.version != self._state.version:
            return _UNLIKE
        slots = fast.slots
        if len(arrays) != len(slots) or (values and values != fast.values):
            return _UNLIKE
        for name, array in arrays.items():
            slot = slots.get(name)
            if slot is None or type(array) is not np.ndarray:
                return _UNLIKE
            _, shape, dtype = slot
            if array.shape != shape or (array.dtype is not dtype and array.dtype != dtype):
                return _UNLIKE
        read = fast.reads.get(key)
        if read is None:
            reader.check(self._engine)
        for name, array in arrays.items():
            slots[name][0][...] = array
        run()
        return fast.prepare(reader, self._engine, key)() if read is None else read()

    def _again_in_order(self, arrays: Sequence[Any], reader: Reader[Any]) -> Any:
        fast, engine = self._fast, self._engine
        if fast is None or fast.version != engine.state.version:
            return _UNLIKE
        slots = fast.in_order
        if slots is None or len(arrays) != len(slots):
            return _UNLIKE
        ndarray = np.ndarray
        for i, (_, shape, dtype) in enumerate(slots):  # to zip strictly costs 0.3 us more
            array = arrays[i]
            if type(array) is not ndarray or array.shape != shape:
                return _UNLIKE
            if array.dtype is not dtype and array.dtype != dtype:
                return _UNLIKE
        read = fast.reads.get(reader)
        if read is None:
            reader.check(engine)
        for i, (view, _, _) in enumerate(slots):
            view[...] = arrays[i]
        enter = engine.enter
        try:  # `Engine.run`, in place
            code = enter()
            if code:
                engine.resolve(code, enter)
        except BaseException:
            engine.abandon()
            raise
        return fast.prepare(reader, engine, reader)() if read is None else read()

    # ------------------------------------------------------------ any shapes

    def _named(self, arrays: Sequence[Any]) -> dict[str, Any]:
        names = [n for n, keeper in self._state.inputs.items() if not keeper.is_bound]
        if len(arrays) != len(names):
            raise arity_error(len(arrays), names)
        return dict(zip(names, arrays, strict=True))

    def _as_arrays(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        slots = self._state.inputs
        if not inputs.keys() <= slots.keys():
            raise names_error(set(inputs), set(slots))
        return {
            name: as_array(value, slots[name].type.dtype, f"input '{name}'")
            for name, value in inputs.items()
        }

    def _slowly(
        self,
        arrays: Mapping[str, Array],
        reader: Reader[Any],
        given: Mapping[str, int],
        sticky: bool,
        run: Callable[[], None],
        key: Any,
    ) -> Any:
        """Check names, solve variables, grow if needed, then run and remember."""
        engine, slots = self._engine, self._state.inputs
        self._state.check_alive()
        shapes = {name: array.shape for name, array in arrays.items()}
        values = self._variables({**self._shapes_beside(arrays, sticky), **shapes}, given)
        engine.ensure_capacity(values)
        self._commit_shapes(shapes, values, reader)
        try:
            for name, array in arrays.items():
                slots[name].put(engine.parts.buffers[slots[name].index], array)
        except BaseException:  # a handler's: what is there is of another shape
            for name in arrays:
                slots[name].forget()
            raise
        run()
        if not self._is_near:
            return reader.prepare(engine)()
        fast = self._remember(arrays, given)
        result = fast.prepare(reader, engine, key)()
        self._fast = fast
        return result

    def _shapes_beside(self, arrays: Mapping[str, Array], sticky: bool) -> dict[str, Any]:
        """The shapes of the inputs that are there without being given; raises if one is not."""
        slots, beside = self._state.inputs, dict(self._engine.bindings.input_shapes())
        if sticky:
            written = {name: slot.recorded_shape() for name, slot in slots.items()}
            left = slots.keys() - beside.keys() - arrays.keys()
            beside |= {name: shape for name in left if (shape := written[name]) is not None}
        if arrays.keys() != slots.keys() - beside.keys():
            raise names_error(set(arrays), slots.keys() - beside.keys())
        return beside

    def _variables(
        self, shapes: Mapping[str, tuple[int, ...]], given: Mapping[str, int]
    ) -> dict[str, int]:
        """What the shapes say, and what is given besides."""
        found = self._state.solve(shapes)
        for name, value in ((name, as_value(name, value)) for name, value in given.items()):
            if found.setdefault(name, value) != value:
                raise InputError(
                    "plan",
                    f"{name} is given as {value}, the inputs say {name}={found[name]}.",
                    variable=name,
                    value=value,
                )
        return found

    def _commit_shapes(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        values: Mapping[str, int],
        reader: Reader[Any],
    ) -> None:
        """Take over written shapes and variables together, or neither."""
        recorded, known = self._state.run.recorded, self._state.bound_values()
        before = recorded.copy()
        try:
            for name, shape in shapes.items():
                self._state.inputs[name].record(shape)
            if values:
                self._engine.bind(values)
            if self._state.run.is_dirty:
                self._engine.commit()
            reader.check(self._engine)
        except BaseException:
            recorded[:] = before
            # The runner may have taken the values over.
            mine = values.keys() & self._engine.index.keys()
            self._engine.set_values({name: known[name] for name in mine if name in known})
            raise

    def _remember(self, arrays: Mapping[str, Array], values: Mapping[str, int]) -> _FastCall:
        slots = self._state.inputs
        views = {name: (self._view(name, a.shape), a.shape, a.dtype) for name, a in arrays.items()}
        is_all = all(name in views or slot.is_bound for name, slot in slots.items())
        in_order = [views[name] for name in slots if name in views] if is_all else None
        return _FastCall(self._state.version, views, in_order, dict(values))

    def _view(self, name: str, shape: tuple[int, ...]) -> Array | _PartView:
        """Where arrays of that shape are copied to."""
        keeper = self._state.inputs[name]
        view, part = self._engine.parts.buffers[keeper.index].array(shape), keeper.part_now()
        return view if part is None else _PartView(view[part], part)

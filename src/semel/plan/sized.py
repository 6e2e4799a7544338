"""Runs of one plan over arrays in order, whose sizes may be others at each call.

    SizedCall(plan, names)(arrays, values) -> fresh arrays of the outputs

Like `DirectCall`, for plans with variables: small arrays are copied into the plan's inputs, a large
one is read where it lies for this run, so that the plan keeps none alive. A call like the last
one but for its numbers (`values` is None) binds and checks nothing. Plans whose inputs or outputs
lie on another device go the long way, `Calls.run`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from semel.plan.direct import LENT_FROM_BYTES
from semel.plan.readers import Copies, output_copier, output_view
from semel.runtime.buffer import Array
from semel.runtime.words import address_of

if TYPE_CHECKING:
    from semel.plan.plan import ExecutionPlan


class SizedCall:
    """A plan, and where its inputs and outputs lie at the sizes of the last call."""

    def __init__(self, plan: ExecutionPlan, names: Sequence[str]) -> None:
        self.plan = plan
        self._engine, self._names = plan.engine, tuple(names)
        self._version = -1
        self._views: list[Array] = []
        #: (position, base, address of the plan's own memory) of what is read elsewhere.
        self._lent: list[tuple[int, int, int]] = []
        self._copied: list[tuple[int, Array]] = []
        self._reads: list[Callable[[], Array]] = []
        self._values: Mapping[str, int] = {}
        self._copies = Copies()

    def __call__(
        self,
        arrays: Sequence[Array],
        values: Mapping[str, int] | None,
        into: Mapping[int, Array] | None = None,
    ) -> list[Array]:
        """Run; arrays stand in the order of the names, and are checked by whoever calls.

        `values` are the variables; None: shapes and variables are those of the last call. Outputs
        in `into`, by position, are written to these arrays, which may be among those that are read.
        """
        engine = self._engine
        with engine.lock:  # `Hold.alone`, in place to save the calls
            hold = engine.hold
            if hold.is_held:
                hold.settle()
            try:
                hold.is_held = True
                if values is None and self._version == engine.state.version:
                    return self._again(arrays, into)
                return self._anew(arrays, self._values if values is None else values, into)
            finally:
                hold.is_held = False

    def _again(self, arrays: Sequence[Array], into: Mapping[int, Array] | None) -> list[Array]:
        engine = self._engine
        for i, view in self._copied:
            view[...] = arrays[i]
        if self._lent:
            return self._with_lent(arrays, into)
        enter = engine.enter
        try:  # `Engine.run`, in place
            code = enter()
            if code:
                engine.resolve(code, enter)
        except BaseException:
            engine.abandon()
            raise
        return [read() for read in self._reads] if into is None else self._read(into)

    def _read(self, into: Mapping[int, Array] | None) -> list[Array]:
        """The outputs, in arrays of their own or those that they are to be written to."""
        found: list[Array] = []
        for i, read in enumerate(self._reads):
            array = None if into is None else into.get(i)
            if array is None:
                found.append(read())
            else:
                array[...] = output_view(self._engine, self._engine.parts.outputs[i])()
                found.append(array)
        return found

    def _with_lent(self, arrays: Sequence[Array], into: Mapping[int, Array] | None) -> list[Array]:
        """Read large arrays where they lie, and let the plan's own memory be there again."""
        engine = self._engine
        run = engine.state.run
        try:
            for i, base, _ in self._lent:
                array = arrays[i]
                if array.flags.c_contiguous and array.flags.aligned:
                    run.set_base(base, address_of(array))
                else:
                    self._views[i][...] = array
            engine.run()
            return self._read(into)
        finally:
            for _, base, own in self._lent:
                run.set_base(base, own)

    def _anew(
        self, arrays: Sequence[Array], values: Mapping[str, int], into: Mapping[int, Array] | None
    ) -> list[Array]:
        """Bind the variables, grow if needed, run, and remember how it was done."""
        engine = self._engine
        state = engine.state
        state.check_alive()
        self._version = -1
        if not self._is_near:
            return self._far(arrays, values)
        engine.ensure_capacity(values)
        known, recorded = state.bound_values(), state.run.recorded
        before = recorded.copy()
        try:
            for name, array in zip(self._names, arrays, strict=True):
                state.inputs[name].record(array.shape)
            engine.bind(values)
            engine.commit()
        except BaseException:
            recorded[:] = before
            engine.set_values({name: known[name] for name in values if name in known})
            raise
        self._place(arrays)
        self._reads = []
        self._again(arrays, None)
        self._reads = [output_copier(engine, i) for i in engine.parts.outputs]
        self._version, self._values = state.version, dict(values)
        return self._read(into)

    def _place(self, arrays: Sequence[Array]) -> None:
        """Where these arrays are copied to, or which base moves to them."""
        engine = self._engine
        parts, bases = engine.parts, engine.linked.bases
        self._views, self._lent, self._copied = [], [], []
        for i, (name, array) in enumerate(zip(self._names, arrays, strict=True)):
            index = engine.state.inputs[name].index
            view = parts.buffers[index].array(array.shape)
            self._views.append(view)
            is_fixed = index in parts.outputs or index in parts.written
            if is_fixed or view.nbytes < LENT_FROM_BYTES or index not in bases:
                self._copied.append((i, view))
            else:
                self._lent.append((i, bases[index], address_of(view)))

    @property
    def _is_near(self) -> bool:
        """Whether nothing that goes in or comes out lies on another device or is bound."""
        parts = self._engine.parts
        named = (*(io.index for io in parts.input_io), *parts.outputs)
        return not self._engine.bindings and all(parts.buffers[i].memory.is_host for i in named)

    def _far(self, arrays: Sequence[Array], values: Mapping[str, int]) -> list[Array]:
        by_name = dict(zip(self._names, arrays, strict=True))
        found = self.plan.calls.run(by_name, self._copies, values)
        return list(found) if isinstance(found, tuple) else [found]

"""What a plan's buffers know of the plan: variables, written shapes, validity.

    Buffer --Keeper--> PlanState <-- ExecutionPlan

The state is shared by a plan and its buffers and refers to neither, so that a dropped plan
frees its memory at once and a buffer that outlives its plan still knows its shape. Written
shapes live in the native table: the runner compares them with the variables at each bind, so
that rows which were not written for these variables are never read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from semel.errors import InputError, PlanError, ReleasedError, StaleError
from semel.ir import abi
from semel.ir.expr import Dim, Variable, evaluate, terms, variables
from semel.ir.types import Shape, TensorType
from semel.plan.program import PlanIO, PlanVariable
from semel.plan.stale import Writer, stale_range
from semel.runtime.buffer import Array, Buffer, ByteSpan, ConcreteShape
from semel.runtime.hold import Hold
from semel.runtime.runstate import RunState


class PlanState:
    """Shared by a plan and its buffers. `version` changes when shapes or variables may have."""

    def __init__(
        self,
        variables: Sequence[PlanVariable],
        inputs: Sequence[PlanIO],
        late: Sequence[PlanVariable] = (),
        num_kept: int = 0,
    ) -> None:
        self.hold = Hold()
        self.version = 0
        self.is_released = False
        self._why_gone = ""
        #: Buffers lie elsewhere than the rows of the table say.
        self.is_moving = False
        #: A weak reference to the plan's way to grow.
        self.request_capacity: Any = None
        #: The words that runs read and leave; of the tables there are now.
        self.run: RunState
        #: Outputs, by their buffers, that the last run was not asked for and did not write.
        self.unwritten: frozenset[int] = frozenset()
        #: What made the outputs of a good run void, and which run that was.
        self._voided = (-1, "")
        self._names = tuple(v.variable.name for v in variables)
        self._bounds = {v.variable.name: v.variable for v in variables}
        self._late = tuple(v.variable.name for v in late)
        self._held = {v.variable.name: i for i, v in enumerate(variables) if v.next is not None}
        #: Inputs of which only a part was written, by name: that of these values of variables.
        self.partial: dict[str, dict[str, int]] = {}
        self.inputs: dict[str, InputKeeper] = {}
        first = 0
        for io in inputs:
            self.inputs[io.name] = InputKeeper(self, io, first)
            first += 1 + io.type.rank
        #: Words behind those of the inputs: one for each state, then one for all params.
        self._first_kept, self._num_kept = first, num_kept

    def current_values(self) -> dict[str, int]:
        """The variables by name: bound ones, and those that the last good run found out."""
        values = self.bound_values()
        if self._late and self.run.is_valid:
            late = enumerate(self.late_values().items(), len(self._names))
            values |= {name: value for i, (name, value) in late if self.run.was_told(i)}
        return values

    def values_now(self) -> dict[str, int]:
        """The variables as they are between two runs: held ones have gone on since the last."""
        return self.current_values() | self.held_values()

    def bound_values(self) -> dict[str, int]:
        """The bound variables by name, in the last run; held ones may have gone on since."""
        return self._values(self.run.current)

    def late_values(self) -> dict[str, int]:
        """What the last rebind of each late variable found, in a good run or not."""
        first = len(self._names)
        return {name: self.run.value(first + i) for i, name in enumerate(self._late)}

    # ------------------------------------------------------------ what is kept between runs

    def held_values(self) -> dict[str, int]:
        """The held variables by name, as the next run will have them."""
        return {name: self.run.pending[i] for name, i in self._held.items()}

    def is_as_bound(self) -> bool:
        """Whether no variable has another value than in the last run, but held ones."""
        held, run = self._held.values(), self.run
        numbers = (i for i in range(len(self._names)) if i not in held)
        return all(run.pending[i] == run.current[i] for i in numbers)

    def set_held(self, values: Mapping[str, int]) -> None:
        """Let the next run go on from these."""
        for name, value in values.items():
            self.run.pending[self._held[name]] = value
        self.run.mark_dirty()

    def is_kept(self, number: int) -> bool:
        """Whether a state is valid, or all params are there; the runner asks that at each bind."""
        return bool(self.run.recorded[self._first_kept + number] == 1)

    def set_kept(self, number: int, is_kept: bool) -> None:
        """A state is valid from now on, or not; or all params are there."""
        self.run.recorded[self._first_kept + number] = 1 if is_kept else -1
        self.run.mark_dirty()

    def keep_all(self) -> None:
        """All states hold their first values."""
        self.run.recorded[self._first_kept : self._first_kept + self._num_kept] = 1

    # ------------------------------------------------------------ inputs that are read in part

    def forget_short(self, values: Mapping[str, int]) -> None:
        """Inputs of which less was written than is read at these values are to be written anew."""
        short = [
            name
            for name, written in self.partial.items()
            if any(values.get(each, size) > size for each, size in written.items())
        ]
        for name in short:
            self.inputs[name].forget()

    # ------------------------------------------------------------ values and shapes

    def pending_values(self) -> dict[str, int]:
        """The values of the bind that is being checked."""
        return self._values(self.run.pending)

    def _values(self, words: memoryview[int]) -> dict[str, int]:
        return {n: words[i] for i, n in enumerate(self._names) if words[i] != abi.UNBOUND}

    def shape_of(self, kind: TensorType) -> ConcreteShape:
        """The shape at the current variables."""
        shape = kind.shape
        if all(type(dim) is int for dim in shape):
            return shape  # type: ignore[return-value]
        values = self.current_values()
        try:
            return tuple([evaluate(dim, values) for dim in shape])
        except KeyError as error:
            why = "known after a run" if error.args[0] in self._late else "never bound"
            raise PlanError("plan", f"the shape of {kind} needs {error}, {why}.") from None

    def void(self, why: str) -> None:
        """The outputs of the last run cannot be read any more."""
        if self.run.is_valid:
            self.note_void(why)
        self.run.void()

    def note_void(self, why: str) -> None:
        """Say later why the outputs of the last run, which were good, cannot be read any more."""
        self._voided = (self.run.attempts, why)

    def why_void(self) -> str:
        """Why the outputs cannot be read."""
        attempts, why = self._voided
        if not self.run.attempts:
            return "nothing was executed"
        if attempts != self.run.attempts and self.run.has_moved:
            why, attempts = "arrays were bound or unbound", self.run.attempts
        is_voided = attempts == self.run.attempts
        return f"{why} after the last execute" if is_voided else "the last execute failed"

    def least(self, name: str) -> int:
        """The smallest value that can be asked about: 0, or less for a variable below that."""
        return min(self._bounds[name].min, 0)

    def check_alive(self) -> None:
        """Raise if the plan's memory was given back."""
        if self.is_released:
            raise ReleasedError("plan", self._why_gone)

    def give_up(self, why: str) -> None:
        """The plan cannot be used from now on."""
        self.is_released, self._why_gone = True, why
        self.version += 1

    def ensure_capacity(self, values: Mapping[str, int]) -> None:
        """Let the plan grow before something larger is written."""
        grow = self.request_capacity() if self.request_capacity is not None else None
        if grow is not None:
            grow(values)
            return
        for name, (_, top) in zip(self._names, self.run.bounds, strict=False):
            if values.get(name, top) > top:
                raise ReleasedError(
                    "plan",
                    f"'{name}' is {values[name]}, there is room for {top} and the plan that could "
                    "make more is gone.",
                )

    def solve(self, shapes: Mapping[str, ConcreteShape]) -> dict[str, int]:
        """The variables that these input shapes determine; dims affine in one variable count.

        What is not affine in one variable is compared by the runner at the bind.
        """
        found: dict[str, tuple[int, str]] = {}
        for name, shape in shapes.items():
            for variable, value, source in self.inputs[name].match(shape):
                if variable in self._held:
                    continue  # not for an array to say: the runner compares
                known = found.setdefault(variable, (value, source))
                if known[0] != value:
                    raise InputError(
                        source,
                        f"gives {variable}={value}, but {known[1]} gives {variable}={known[0]}.",
                    )
                self._check_range(variable, value, source)
        return {variable: value for variable, (value, _) in found.items()}

    def _check_range(self, name: str, value: int, source: str) -> None:
        bounds = self._bounds[name]
        if value < bounds.min or (bounds.max is not None and value > bounds.max):
            top = "..." if bounds.max is None else bounds.max
            hint = f"Sizes of 0 are asked for: dims={{'{name}': (0, {bounds.max})}}."
            raise InputError(
                source,
                f"gives {name}={value}, which must lie in [{bounds.min}, {top}].",
                hint=hint if value == 0 and bounds.min == 1 else "",
                variable=name,
                value=value,
            )


class InputKeeper:
    """Answers for an input's buffer: its shape is what was written last."""

    def __init__(self, state: PlanState, io: PlanIO, first: int) -> None:
        self.state = state
        self.name, self.index, self.type = io.name, io.index, io.type
        self._part = io.part
        self._words = slice(first, first + 1 + io.type.rank)
        self._affine = [_as_affine(dim) for dim in io.type.shape]
        self._writes = 0
        #: Whether the buffer is a caller's array, which is the caller's to write.
        self.is_bound = False

    @property
    def hold(self) -> Hold:
        return self.state.hold

    def match(self, shape: ConcreteShape) -> list[tuple[str, int, str]]:
        """(variable, value, source) for each dim that determines one; raises on a misfit."""
        if len(shape) != self.type.rank:
            raise self._misfit(shape, f"rank {self.type.rank}")
        found: list[tuple[str, int, str]] = []
        for axis, (size, form) in enumerate(zip(shape, self._affine, strict=True)):
            if form is None:
                continue
            name, scale, offset = form
            if name is None:
                if size != offset:
                    raise self._misfit(shape, f"{offset} on axis {axis}")
            elif (size - offset) % scale or (size - offset) // scale < self.state.least(name):
                raise self._misfit(shape, f"{self.type.shape[axis]} on axis {axis}")
            else:
                source = f"input '{self.name}' axis {axis}"
                found.append((name, (size - offset) // scale, source))
        return found

    def _misfit(self, shape: ConcreteShape, wanted: str) -> InputError:
        return InputError(
            f"input '{self.name}'",
            f"shape must be {self.type} with {wanted}, got {shape}.",
            shape=shape,
        )

    def record(self, shape: ConcreteShape) -> None:
        """Remember the shape that is written; the next run compares it with the variables."""
        self.state.partial.pop(self.name, None)
        recorded = self.state.run.recorded[self._words]
        wanted = [1, *shape]
        if recorded.tolist() != wanted:
            recorded[:] = wanted
            self.state.run.mark_dirty()
            self.state.version += 1

    def forget(self) -> None:
        """Nothing valid is written there any more."""
        self.state.partial.pop(self.name, None)
        self.state.run.recorded[self._words] = -1
        self.state.run.mark_dirty()
        self.state.version += 1

    def recorded_shape(self) -> ConcreteShape | None:
        """The shape that was written last; None if nothing was."""
        written, *shape = self.state.run.recorded[self._words].tolist()
        return tuple(shape) if written == 1 else None

    def recorded_bytes(self) -> int:
        """How many bytes of the buffer are the input."""
        shape = self.recorded_shape()
        return 0 if shape is None else prod(shape) * self.type.dtype.size_bytes

    def put(self, buffer: Buffer, array: Array) -> None:
        """Write an array of a recorded shape; of one that is read in part, no more than that."""
        part = self.part_now()
        if part is None:
            buffer.put(array)
            return
        buffer.put_part(array.shape, part, array[part])
        names = {v.name for size in self._part for v in variables(size)}
        values = self.state.bound_values()
        self.state.partial[self.name] = {name: values[name] for name in names}

    def part_now(self) -> tuple[slice, ...] | None:
        """What a run at the bound variables reads, as a key; None if that is all of it."""
        return part_key(self._part, self.state.bound_values()) if self._part else None

    def shape_now(self) -> ConcreteShape:
        shape = self.recorded_shape()
        return self.state.shape_of(self.type) if shape is None else shape

    def begin_write(self, shape: ConcreteShape) -> None:
        self._check_writable()
        self.state.ensure_capacity(self.state.solve({self.name: shape}))
        if self.recorded_shape() != shape:
            self.forget()  # until it is written: what is there has another shape
        self._writes += 1

    def end_write(self, shape: ConcreteShape) -> None:
        self.record(shape)

    def begin_part_write(self) -> None:
        self._check_writable()
        if self.recorded_shape() is None:
            raise StaleError(f"input '{self.name}'", "must be written whole before its parts.")
        self._writes += 1

    def _check_writable(self) -> None:
        self.state.check_alive()
        if self.is_bound:
            raise PlanError(
                f"input '{self.name}'",
                "is bound to an array: write to that.",
                hint="unbind() gives the plan its own buffer back.",
            )

    def begin_read(self, part: ByteSpan | None = None) -> ConcreteShape:
        self.state.check_alive()
        shape = self.recorded_shape()
        if shape is None:
            raise StaleError(f"input '{self.name}'", "was never written.")
        return shape

    def generation(self) -> int:
        # An input may be written by a run too: both counts matter.
        return self.state.run.generation + (self._writes << 32)


class OutputKeeper:
    """Answers for an output's buffer: readable after a successful execute, until the next."""

    def __init__(
        self,
        state: PlanState,
        kind: TensorType,
        writers: Sequence[Writer] = (),
        index: int | None = None,
    ) -> None:
        self.state, self.type, self.index = state, kind, index
        #: Who writes it, if some run may write less of it than another.
        self.writers = tuple(writers)

    @property
    def hold(self) -> Hold:
        return self.state.hold

    def shape_now(self) -> ConcreteShape:
        return self.state.shape_of(self.type)

    def begin_write(self, shape: ConcreteShape) -> None:
        self.begin_part_write()

    def end_write(self, shape: ConcreteShape) -> None:
        """Its shape is not that of what was written, but that of the variables."""

    def begin_part_write(self) -> None:
        raise PlanError("copyin", "an output is written by the plan.")

    def begin_read(self, part: ByteSpan | None = None) -> ConcreteShape:
        self.state.check_alive()
        if not self.state.run.is_valid:
            why = self.state.why_void()
            raise StaleError("output", f"cannot be read: {why}.", hint="Call execute() first.")
        if self.index in self.state.unwritten:
            raise StaleError(
                "output",
                "cannot be read: the last run was for other outputs, and did not compute it.",
                hint="Fetch it too, or call execute().",
            )
        shape = self.state.shape_of(self.type)
        self._check_rows(shape, part)
        return shape

    def _check_rows(self, shape: ConcreteShape, part: ByteSpan | None) -> None:
        """Refuse rows that a run at larger variables wrote and the last one did not."""
        if not self.writers:
            return
        whole = prod(shape) * self.type.dtype.size_bytes
        wanted = (0, whole) if part is None else (part[0], min(part[1], whole))
        try:
            stale = stale_range(
                self.writers, self.state.current_values(), self.state.run.marks, wanted
            )
        except KeyError:
            return  # a variable was never bound, so nothing ran
        if stale is not None:
            raise StaleError(
                "output",
                f"bytes [{stale[0]}, {stale[1]}) are of an earlier run at larger variables, the "
                "last one did not write them.",
                hint="Declare the output with its symbolic shape, or read a view of what is in it.",
            )

    def generation(self) -> int:
        run = self.state.run
        return run.generation if run.is_valid else -1


class PlainOutputKeeper(OutputKeeper):
    """Answers for an output that was not declared: anyone may write it, and read it then.

    It is refused only if the last run failed, and only until it is written or computed again.
    """

    _writes = 0
    _attempts_when_written = 0

    def begin_write(self, shape: ConcreteShape) -> None:
        if shape != self.shape_now():
            raise InputError("copyin", f"shape must be {self.shape_now()}, got {shape}.")
        self.begin_part_write()
        marks = [w.mark for w in self.writers if w.mark is not None]
        if marks:  # all of it is the caller's now
            self.state.run.set_marks(dict.fromkeys(marks, 0))

    def begin_part_write(self) -> None:
        self.state.check_alive()
        self._writes += 1
        self._attempts_when_written = self.state.run.attempts

    def begin_read(self, part: ByteSpan | None = None) -> ConcreteShape:
        if self.state.run.attempts == self._attempts_when_written:
            self.state.check_alive()
            self._check_rows(self.shape_now(), part)
            return self.shape_now()
        return super().begin_read(part)

    def generation(self) -> int:
        return self.state.run.attempts + (self._writes << 32)


class PlainKeeper:
    """Answers for a buffer that a plan merely uses: the plan must be at rest, and that is all.

    Of several plans that use it, the first one is asked.
    """

    def __init__(self, hold: Hold, kind: TensorType) -> None:
        self.hold = hold
        self._shape = tuple(d for d in kind.shape if isinstance(d, int))

    def shape_now(self) -> ConcreteShape:
        return self._shape

    def begin_write(self, shape: ConcreteShape) -> None:
        if shape != self._shape:
            raise InputError("copyin", f"shape must be {self._shape}, got {shape}.", shape=shape)

    def end_write(self, shape: ConcreteShape) -> None:
        """It has one shape, and what was written has that."""

    def begin_part_write(self) -> None:
        """Nothing is known of the rest."""

    def begin_read(self, part: ByteSpan | None = None) -> ConcreteShape:
        return self._shape

    def generation(self) -> int:
        return 0


def is_answered_for(buffer: Buffer) -> bool:
    """Whether a plan says more about this buffer than when it is at rest."""
    return buffer.keeper is not None and not isinstance(buffer.keeper, PlainKeeper)


class IntermediateKeeper(OutputKeeper):
    """Answers for an arena value: its bytes are shared with others, so it cannot be read."""

    def begin_part_write(self) -> None:
        raise PlanError("copyin", "an intermediate is written by the plan.")

    def begin_read(self, part: ByteSpan | None = None) -> ConcreteShape:
        raise PlanError(
            "intermediate", "shares its memory with other values.", hint="Make it an output."
        )


class StateKeeper(OutputKeeper):
    """Answers for memory of a state, of which more is to know than its bytes."""

    def begin_part_write(self) -> None:
        raise PlanError(
            "copyin", "a state is written by its plan.", hint="Use plan.states.write()."
        )

    def begin_read(self, part: ByteSpan | None = None) -> ConcreteShape:
        raise PlanError("state", "is not read as a buffer.", hint="Use plan.states.read(name).")


class ConstantKeeper(OutputKeeper):
    """Answers for a constant of a program, which all its plans read."""

    def begin_part_write(self) -> None:
        raise PlanError(
            "copyin",
            "a constant is the same in all plans of its program and cannot be written.",
            hint="Make it an input: Tensor.input(name, shape, dtype).",
        )

    def begin_read(self, part: ByteSpan | None = None) -> ConcreteShape:
        self.state.check_alive()
        return self.shape_now()

    def generation(self) -> int:
        return 0


def part_key(part: Shape, values: Mapping[str, int]) -> tuple[slice, ...]:
    """The first elements along each axis, as a key."""
    return tuple(slice(0, evaluate(size, values)) for size in part)


def _as_affine(dim: Dim) -> tuple[str | None, int, int] | None:
    """(variable, scale, offset) if dim = scale*variable + offset, variable None for a constant."""
    name: str | None = None
    scale, offset = 1, 0
    if isinstance(dim, int):
        return None, 1, dim
    for monomial, coefficient in terms(dim):
        if not monomial:
            offset = coefficient
        elif len(monomial) == 1 and isinstance(monomial[0], Variable) and name is None:
            name, scale = monomial[0].name, coefficient
        else:
            return None
    return (name, scale, offset) if scale > 0 else None

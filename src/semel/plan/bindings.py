"""A caller's arrays in the place of a plan's own inputs and outputs.

    bind_input("x", array)  -->  the rows read `array` itself; no copy at each run

An array takes the place of the plan's buffer (*direct*) only if that cannot change a result:
nothing that the plan writes may overlap an array it reads, and an array it writes may overlap
nothing at all; and of several for one buffer, only the first does. Otherwise the array is *staged*:
an input is copied in before each run, an output copied out after it, so that the run is as if
everything were read before anything is written. Which one it is depends on addresses alone and is
decided for all arrays together, whenever one is bound or unbound. Arrays of two outputs must be
apart, since no order of copies makes both right.

An array of the same shape in the place of a direct one is *swapped*: it is compared with the bytes
that it must not overlap, which are known from the last decision, and the input's base moves. The
array before it is remembered, so that two arrays that take turns cost two stores each time.

Invariant: an array that is bound is kept alive, and so is the one before it; the shapes of all
are checked before a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from semel.errors import InputError
from semel.ir.abi import Code
from semel.ir.expr import evaluate
from semel.plan.plan_state import PlanState
from semel.plan.program import PlanIO, PlanVariable
from semel.runtime.allocator import LentMemory
from semel.runtime.buffer import Array, Buffer
from semel.runtime.interop import check_unmasked
from semel.runtime.memory import Memory
from semel.runtime.runstate import (
    ADDRESS,
    DIRTY,
    HAS_MOVED,
    MOVED,
    ONLY_MOVED,
    VALID,
    BaseWords,
)
from semel.runtime.words import address_of

#: An array that may lie in the place of a buffer, and where that is.
Lent: TypeAlias = tuple[Array, int]
#: No array that anybody could bind.
NOBODY: Lent = (np.empty(0), 0)


@dataclass(slots=True)
class Binding:
    """One bound array. `own` is where the plan's buffer lies when the array is not there."""

    io: PlanIO
    array: Array
    is_output: bool
    own: tuple[Memory, int, int]
    is_direct: bool = False
    #: Of a direct one: its bytes as memory, the base that lies there and its words, the array
    #: before it, and what another array in its place must not touch; none if that must be found out
    #: again, and then there is no array before it.
    memory: LentMemory | None = None
    base: int = -1
    words: BaseWords | None = None
    shape: tuple[int, ...] = ()
    dtype: Any = None
    lent: Lent = NOBODY
    before: Lent = NOBODY
    fences: list[tuple[int, int]] | None = None


class Bindings:
    """All bound arrays of one plan."""

    def __init__(
        self,
        buffers: Sequence[Buffer],
        written: Set[int],
        state: PlanState,
        late: Sequence[PlanVariable] = (),
    ) -> None:
        self._buffers, self._written, self._state = buffers, written, state
        self._late = tuple(late)
        self._bound: dict[tuple[bool, str], Binding] = {}
        #: The same by name: of inputs, and of outputs.
        self.inputs: dict[str, Binding] = {}
        self.outputs: dict[str, Binding] = {}
        self._has_outputs = False
        self._checked_version = -1
        #: A weak reference to what the engine does before a run, if there is anything to do.
        self.prepare: Callable[[], Callable[[], None] | None] | None = None

    def __bool__(self) -> bool:
        return bool(self._bound)

    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the bound inputs by name."""
        return {name: b.array.shape for (out, name), b in self._bound.items() if not out}

    def staged(self) -> list[str]:
        """Names of the arrays that are copied at each run."""
        return [name for (_, name), b in list(self._bound.items()) if not b.is_direct]

    def input_array(self, name: str) -> Array | None:
        """The array bound to an input, if one is."""
        found = self.inputs.get(name)
        return None if found is None else found.array

    def moves(self, index: int) -> bool:
        """Whether a buffer is an array now, and another one may be swapped in for that."""
        return any(b.is_direct and b.io.index == index for b in self._bound.values())

    def add(self, io: PlanIO, array: Any, *, is_output: bool) -> None:
        """Bind a checked array."""
        buffer = self._buffers[io.index]
        self._bound.pop((is_output, io.name), None)
        own = (buffer.memory, buffer.offset, buffer.capacity_bytes)
        made = self._bound[is_output, io.name] = Binding(io, array, is_output, own)
        (self.outputs if is_output else self.inputs)[io.name] = made

    def remove(self, name: str | None, is_output: bool | None = None) -> list[Binding]:
        """Forget the arrays of that name, or all, of inputs or outputs or both; what was bound."""
        keys = [k for k in self._bound if is_output in (None, k[0]) and name in (None, k[1])]
        for is_of_output, gone in keys:
            (self.outputs if is_of_output else self.inputs).pop(gone)
        return [self._bound.pop(key) for key in keys]

    def check_apart(self, io: PlanIO, array: Array) -> None:
        """Refuse an array for an output that shares bytes with that of another one, whatever the
        order: the one written last would win. Two outputs that are one may have one array."""
        where = _range(array)
        for name, other in self.outputs.items():
            is_one = other.io.index == io.index and _range(other.array) == where
            if name != io.name and not is_one and _meet(where, _range(other.array)):
                raise InputError(
                    f"output '{io.name}'",
                    "array must have memory of its own, it shares some with the array that is "
                    f"bound to '{name}'.",
                    hint="Bind arrays that are apart; unbind the other one first if these change "
                    "places.",
                    name=io.name,
                )

    # ------------------------------------------------------------ placing

    def detach(self) -> None:
        """Let every buffer lie in the plan's own memory again."""
        for binding in self._bound.values():
            if binding.is_direct:
                self._state.is_moving = True
                self._buffers[binding.io.index].move(*binding.own)
                binding.is_direct = False
                binding.fences, binding.before = None, NOBODY

    def attach(self, bases: Mapping[int, int]) -> None:
        """Decide about every array, move the buffers, and their bases with them."""
        for binding in self._bound.values():
            buffer = self._buffers[binding.io.index]
            binding.own = (buffer.memory, buffer.offset, buffer.capacity_bytes)
            binding.fences, binding.before = None, NOBODY
        self._has_outputs = any(b.is_output for b in self._bound.values())
        own = [_own_range(buffer) for buffer in self._buffers] if self._bound else []
        direct: dict[int, Binding] = {}  # by buffer: of two outputs that are one, the other copies
        for binding in self._bound.values():
            if binding.io.index not in direct and self._can_be_direct(binding, own):
                direct[binding.io.index] = binding
        for binding in direct.values():
            array = binding.array
            binding.memory, binding.base = LentMemory(array), bases[binding.io.index]
            binding.words = self._state.run.base_words(binding.base)
            binding.lent, binding.before = (array, address_of(array)), NOBODY
            binding.shape, binding.dtype = array.shape, array.dtype
            binding.fences = self._fences(binding, own)
            self._buffers[binding.io.index].move(binding.memory, 0, array.nbytes)
            binding.is_direct = True
        for index, base in bases.items():
            self._state.run.set_base(base, self._buffers[index].address)
        self._checked_version = -1

    def follow_run(self) -> None:
        """The bases are those of the table that is in use now; arrays lie where they lay."""
        for binding in self._bound.values():
            if binding.is_direct:
                binding.words = self._state.run.base_words(binding.base)

    @property
    def is_silent(self) -> bool:
        """Whether a run has nothing to copy, no shape to look at and nothing to prepare."""
        return self.prepare is None and all(
            b.is_direct and not b.is_output for b in self._bound.values()
        )

    # ------------------------------------------------------------ swapping

    def swap(self, binding: Binding, array: Any) -> bool:
        """Put the array in the place of a direct one, if it can be there as that was."""
        state = self._state
        if state.is_released:
            return False
        lent = binding.before
        if lent[0] is not array or array.shape != binding.shape:
            found = _lend(binding, array)
            if found is None:
                return False
            lent = found
        state.is_moving = True
        words, base = binding.words  # type: ignore[misc]  # it is direct
        words[VALID] = 0  # as `RunState.swap_base` says, in place to save the call
        words[MOVED] = 1
        if not words[DIRTY]:
            words[DIRTY] = ONLY_MOVED
        base[HAS_MOVED] = 1
        base[ADDRESS] = lent[1]
        binding.before, binding.lent = binding.lent, lent
        binding.array = binding.memory.array = array  # type: ignore[union-attr]
        if self._has_outputs:
            self._forget_fences(binding)
        state.is_moving = False
        return True

    def exchange(self, pairs: Sequence[tuple[str, str]]) -> bool:
        """Let an input and an output change arrays, for each pair; False if one cannot.

        The arrays must be the plan's own to use: nobody else's lie where these do.
        """
        found: list[Any] = [
            (self._bound.get((False, read)), self._bound.get((True, written)))
            for read, written in pairs
        ]
        ready = [pair for pair in found if _can_exchange(*pair)]
        if len(ready) < len(pairs) or self._state.is_released:
            return False
        self._state.is_moving = True
        for read, written in ready:
            read.array, written.array = written.array, read.array
            read.lent, written.lent = written.lent, read.lent
            for moved in (read, written):
                moved.before = NOBODY
                moved.memory.array = moved.array
                self._state.run.swap_base(moved.base, moved.lent[1])
        for other in self._bound.values():
            other.fences, other.before = None, NOBODY
        self._state.is_moving = False
        return True

    def _forget_fences(self, moved: Binding) -> None:
        """What an output must not touch is elsewhere now, and for others where an output is."""
        for other in self._bound.values():
            if other is not moved and (moved.is_output or other.is_output):
                other.fences, other.before = None, NOBODY

    def _fences(self, binding: Binding, own: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """The bytes that another array in this place must not touch."""
        taken = self._taken(binding, own)
        if not binding.is_output:
            taken += [_range(b.array) for b in self._bound.values() if b.is_output]
        return _merged(taken)

    def _can_be_direct(self, binding: Binding, own: Sequence[tuple[int, int]]) -> bool:
        """Whether the array may take the buffer's place; `own` is where all buffers lie."""
        index, where = binding.io.index, _range(binding.array)
        if not self._buffers[index].memory.is_host:
            return False  # the device cannot reach the array
        if where[0] == where[1] or any(
            _meet(own[index], other) for i, other in enumerate(own) if i != index
        ):
            return False  # views of the plan's buffer would not follow
        if not binding.is_output and index in self._written:
            return False  # the caller's array is not the plan's to change
        return not any(_meet(where, other) for other in self._taken(binding, own))

    def _taken(self, binding: Binding, own: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """The bytes that an array in this place must not touch."""
        if binding.is_output:
            others = (b for b in self._bound.values() if b is not binding)
            return [*own, *(_range(b.array) for b in others)]
        return [own[i] for i in self._written]

    # ------------------------------------------------------------ running

    def run(self, enter: Callable[[], int]) -> int:
        """Enter the plan, with copies before a fresh run and after a complete one."""
        if not self._state.is_released and not self._state.run.is_busy:
            self.before_run()
        code = enter()
        if code == Code.OK:
            self.after_run()
        return code

    def before_run(self) -> None:
        """Check the shapes of bound outputs, copy staged inputs in, prepare what is to prepare."""
        if self._checked_version != self._state.version:
            self._check_outputs(self._state.pending_values())
            self._checked_version = self._state.version
        for binding in self._bound.values():
            if not binding.is_output and not binding.is_direct:
                self._buffers[binding.io.index].put(binding.array)
        prepare = None if self.prepare is None else self.prepare()
        if prepare is not None:
            prepare()

    def after_run(self) -> None:
        """Copy staged outputs out."""
        for binding in self._bound.values():
            is_written = binding.io.index not in self._state.unwritten
            if binding.is_output and not binding.is_direct and is_written:
                binding.array[...] = self._buffers[binding.io.index].peek(binding.array.shape)

    def _check_outputs(self, values: Mapping[str, int]) -> None:
        for binding in self._bound.values():
            if binding.is_output:
                try:
                    known = self._at_most(values)
                    wanted = tuple(evaluate(d, known) for d in binding.io.type.shape)
                except KeyError:
                    return  # a variable is not bound: the runner says so
                if binding.array.shape != wanted:
                    raise InputError(
                        f"output '{binding.io.name}'",
                        f"array must have shape {wanted} at these variables, "
                        f"got {binding.array.shape}.",
                        shape=binding.array.shape,
                    )

    def _at_most(self, values: Mapping[str, int]) -> dict[str, int]:
        """The values, with late variables at their limits: arrays have room for the most."""
        known = dict(values)
        for late in self._late:
            known[late.variable.name] = evaluate(late.limit or 0, known)
        return known


def check_array(io: PlanIO, array: Any, *, is_output: bool) -> Array:
    """An array that native code may use where it lies; raises InputError otherwise."""
    where = f"{'output' if is_output else 'input'} '{io.name}'"
    if not isinstance(array, np.ndarray):
        raise InputError(where, f"must be a NumPy array to be bound, got {type(array).__name__}.")
    check_unmasked(array, lambda sentence: InputError(where, sentence))
    if array.dtype != io.type.dtype.numpy:
        raise InputError(where, f"dtype must be {io.type.dtype}, got {array.dtype}.")
    if not array.flags.c_contiguous or not array.flags.aligned:
        raise InputError(where, "array must be C-contiguous and aligned to be bound.")
    if is_output and not array.flags.writeable:
        raise InputError(where, "array must be writeable.")
    if array.ndim != io.type.rank:
        raise InputError(where, f"array must have rank {io.type.rank}, got {array.ndim}.")
    return array


def _lend(binding: Binding, array: Any) -> Lent | None:
    """The array in the place of another of the same shape; None if all must be decided again."""
    fences = binding.fences
    if fences is None or type(array) is not np.ndarray or array.shape != binding.shape:
        return None
    if array.dtype is not binding.dtype and array.dtype != binding.dtype:
        return None
    flags = array.flags
    is_good = flags.carray or (flags.c_contiguous and flags.aligned and not binding.is_output)
    if not is_good:
        return None
    address = address_of(array)
    end = address + array.nbytes
    for low, high in fences:
        if address < high and low < end:
            return None
    return array, address


def _can_exchange(read: Any, written: Any) -> bool:
    """Whether two bindings are of arrays that the plan uses where they lie, and alike."""
    if read is None or written is None or not (read.is_direct and written.is_direct):
        return False
    return bool(read.shape == written.shape and read.dtype == written.dtype)


def _range(array: Array) -> tuple[int, int]:
    start = int(array.__array_interface__["data"][0])
    return start, start + array.nbytes


def _own_range(buffer: Buffer) -> tuple[int, int]:
    start = buffer.address
    return start, start + buffer.capacity_bytes


def _merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same bytes in as few ranges as possible."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return found


def _meet(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return max(a[0], b[0]) < min(a[1], b[1])

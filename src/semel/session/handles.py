"""Values that stay with a compiled graph between runs: states, and inputs with memory of their own.

    bind_handle("x", data)             the input's value for every run that is not given another
    set_gpu_handle_feed("x", 0)        after each run, output 0 is the value of the input

An input's handle is an array of the plan's device that is bound to it (`plan.bind_input`): no run
copies it. A feed needs one array more: the run writes the output to it, and before the next run
the two change places. Nothing is copied and nothing is lost: until then the output can be read
where it was written, and a run that fails leaves the handle as it was.

What an input is in a run, in this order: what the run is given, the handle, the default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from semel.errors import InputError, StateError
from semel.ir.fields import take_int
from semel.ir.graph import aligned_empty
from semel.ir.types import TensorType
from semel.plan.plan import ExecutionPlan
from semel.runtime.buffer import Array

NO_ARRAYS: Mapping[str, Array] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class HandleInfo:
    """A handle: a state, or an input that has a value of its own, and the output that feeds it."""

    name: str
    kind: str
    type: TensorType
    nbytes: int
    feed: str | None = None


class Handles:
    """The inputs of one plan that have a value of their own.

    Invariants: no array is both that of an input and of an output, or of two outputs; `_due` says
    which inputs an output of the last run takes the place of before the next one.
    """

    def __init__(self, plan: ExecutionPlan, defaults: Mapping[str, Array]) -> None:
        self._plan = plan
        self._defaults = defaults
        self._resident: dict[str, Array] = {}  # by input; one array for two that an output fed
        self._is_shared = False  # whether there may be such an array
        self._feeds: dict[str, str] = {}  # input <- output
        self._targets: dict[str, Array] = {}  # by output: where it is written
        self._is_aimed = True  # whether these are for `_feeds`, at the sizes of the handles
        self._due: Mapping[str, str] = {}  # input <- output, of the last good run
        self._is_torn = False  # whether arrays are moving, or an exception has ended that
        #: Inputs that the last run was given. They stay bound until the next one: what it wrote
        #: could not be read otherwise.
        self._away: set[str] = set()
        for name, array in defaults.items():
            plan.bind_input(name, array)

    def __bool__(self) -> bool:
        return bool(self._resident or self._defaults)

    # ------------------------------------------------------------ what there is

    def __contains__(self, name: object) -> bool:
        return name in self._resident

    def infos(self) -> dict[str, HandleInfo]:
        """All inputs with a value of their own."""
        inputs = self._plan.inputs
        return {
            name: HandleInfo(name, "input", inputs[name].type, a.nbytes, self._feeds.get(name))
            for name, a in self._resident.items()
        }

    def read(self, name: str, rows: Any = None) -> Array:
        """A copy of what the input is in the next run, or of some rows of it."""
        if name not in self._resident:
            raise InputError(
                f"handle '{name}'",
                "must be bound before it is read.",
                hint="bind_handle(name, data) gives an input a value of its own.",
                name=name,
            )
        found = self._current(name)
        if rows is None:
            return found.copy()
        where = f"handle '{name}'"
        chosen = rows if isinstance(rows, slice) else take_int(where, "rows", rows)
        try:
            return np.array(found[chosen], order="C")
        except (IndexError, TypeError, ValueError) as error:
            raise InputError(where, f"must have these rows, got {rows!r}: {error}.") from None

    def _current(self, name: str) -> Array:
        if self._is_torn:
            raise self._torn_error()
        output = self._due.get(name)
        return self._resident[name] if output is None else self._targets[output]

    # ------------------------------------------------------------ binding

    def check(self, values: Mapping[str, Array]) -> None:
        """Refuse arrays, of the inputs' dtypes, that cannot be theirs together."""
        self._plan.calls.check_shapes({name: array.shape for name, array in values.items()})

    def bind(self, values: Mapping[str, Array]) -> None:
        """Let inputs have copies of these arrays in every run that is not given others."""
        self.check(values)
        self._move_on()
        for name, array in values.items():
            copied = _copy(array)
            self._plan.bind_input(name, copied)
            self._resident[name] = copied
            self._is_aimed = False

    def feed(self, name: str, output: str) -> None:
        """Let the output be the value of the handle after each run that succeeds."""
        self.check_feed(name, output)
        self._move_on()
        self._feeds[name] = output
        self._is_aimed = False

    def unbind(self, name: str) -> None:
        """Forget the handle and its feed: runs must be given the input again, or its default is."""
        if name not in self._resident:
            known = ", ".join(self._resident) or "none"
            raise InputError(f"handle '{name}'", f"is not bound; bound: {known}.", name=name)
        self._move_on()
        self._feeds.pop(name, None)
        self._away.discard(name)
        del self._resident[name]
        if name in self._defaults:
            self._plan.bind_input(name, self._defaults[name])
        else:
            self._plan.unbind(name, is_output=False)
        self._aim(self._feeds)

    def check_feed(self, name: str, output: str) -> None:
        where = f"feed of '{name}'"
        if name not in self._resident:
            raise InputError(
                where,
                "must be of a handle that is bound.",
                hint="bind_gpu_handle(name, data) first: it says what the first run reads.",
                name=name,
            )
        wanted, found = self._plan.inputs[name].type, self._plan.outputs[output].type
        if wanted != found:
            raise InputError(where, f"output '{output}' must be {wanted}, as it is, got {found}.")
        if self._plan.calls.is_written_in_part(output):
            raise InputError(
                where,
                f"output '{output}' must be written whole by each run, with an extent it is not.",
                hint="Declare a state, or compile without the extent.",
            )

    # ------------------------------------------------------------ runs

    @contextmanager
    def around(self, given: Mapping[str, Array], once: Mapping[str, str]) -> Iterator[None]:
        """A run that is given these values for inputs with a value of their own.

        `once` are feeds for this run alone. For whoever has the plan's lock.
        """
        self._move_on()
        feeds = {**self._feeds, **once} if once else self._feeds
        for name, array in given.items():
            self._away.add(name)
            self._plan.bind_input(name, _bindable(array))
        for name in self._away - given.keys():
            self._plan.bind_input(name, self._own(name))
            self._away.remove(name)
        if given or once or not self._is_aimed:
            self._aim(feeds, given)
            self._is_aimed = not given and not once
        yield
        self._due = feeds

    @property
    def fed(self) -> Iterable[str]:
        """The outputs that feed inputs after each run."""
        return self._feeds.values()

    def has_value(self, name: str) -> bool:
        """Whether a run need not be given the input."""
        return name in self._resident or name in self._defaults

    def _own(self, name: str) -> Array:
        found = self._resident.get(name)
        return self._defaults[name] if found is None else found

    def _aim(self, feeds: Mapping[str, str], given: Mapping[str, Array] = NO_ARRAYS) -> None:
        """Let each output that feeds be written to an array of its own, and no other one.

        They have the shapes of the handles, or of what a run is given instead.
        """
        self._is_aimed = False
        for output in self._targets.keys() - set(feeds.values()):
            del self._targets[output]
            self._plan.unbind(output, is_output=True)
        for name, output in feeds.items():
            like, target = given.get(name, self._resident[name]), self._targets.get(output)
            if target is None or target.shape != like.shape:
                self._write_to_new(output, like)

    def _write_to_new(self, output: str, like: Array) -> None:
        target = aligned_empty(like.shape, like.dtype)
        self._plan.bind_output(output, target)
        self._targets[output] = target

    def _move_on(self) -> None:
        """Let what the last run wrote take the place of what it read."""
        if self._is_torn:
            raise self._torn_error()
        due = self._due
        if not due:
            self._due = {}  # it may be the feeds, to which some are added later
            return
        self._is_torn = True
        if self._exchange(due):
            for name, output in due.items():
                before, self._resident[name] = self._resident[name], self._targets[output]
                self._targets[output] = before
        else:
            self._hand_over(due)
        if due is not self._feeds:  # some were for one run
            self._aim(self._feeds)
        self._due, self._is_torn = {}, False

    def _torn_error(self) -> StateError:
        """An interruption came while arrays moved: forget all that an output feeds, and say so."""
        lost = list(dict.fromkeys((*self._due, *self._feeds)))
        for name in lost:
            self._resident.pop(name, None)
            if name in self._defaults:
                self._plan.bind_input(name, self._defaults[name])
            else:
                self._plan.unbind(name, is_output=False)
        for output in list(self._targets):
            self._plan.unbind(output, is_output=True)
        self._feeds, self._targets, self._due, self._away = {}, {}, {}, self._away - set(lost)
        self._is_torn = False
        return StateError(
            "handles",
            f"{', '.join(lost)} lost their values: an interruption came while these moved on.",
            hint="Bind them again, and set their feeds.",
        )

    def _exchange(self, due: Mapping[str, str]) -> bool:
        """Let two arrays change places for each feed; False if that is not all there is to do.

        Then an output feeds several inputs, or has; an array overlaps another one; or the last
        run had other sizes than the one before it.
        """
        return (
            not self._is_shared
            and len(set(due.values())) == len(due)
            and self._away.isdisjoint(due)
            and self._plan.calls.exchange(list(due.items()))
        )

    def _hand_over(self, due: Mapping[str, str]) -> None:
        """Let the inputs have what was written, and the outputs be written elsewhere."""
        written = {output: self._targets[output] for output in due.values()}
        for output, array in written.items():
            self._write_to_new(output, array)
        for name, output in due.items():
            self._resident[name] = written[output]
            self._plan.bind_input(name, written[output])
        self._away -= due.keys()
        self._is_shared = len({id(a) for a in self._resident.values()}) < len(self._resident)

    def copy_to(self, other: Handles) -> None:
        """Let a clone have the same handles, with values of their own."""
        other.bind({name: self._current(name) for name in self._resident})
        for name, output in self._feeds.items():
            other.feed(name, output)


def _bindable(array: Array) -> Array:
    """The array as native code can read it, where it lies if possible."""
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else array.copy()


def _copy(array: Array) -> Array:
    made = aligned_empty(array.shape, array.dtype)
    made[...] = array
    return made

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
from typing import Any

import numpy as np

from semel.errors import InputError
from semel.ir.graph import aligned_empty
from semel.ir.types import TensorType
from semel.plan.plan import ExecutionPlan
from semel.runtime.buffer import Array, as_array


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

    Invariants: no array is both that of an input and of an output; `due` says which inputs an
    output of the last run takes the place of before the next one.
    """

    def __init__(self, plan: ExecutionPlan, defaults: Mapping[str, Array]) -> None:
        self._plan = plan
        self._defaults = defaults
        self._resident: dict[str, Array] = {}  # by input
        self._feeds: dict[str, str] = {}  # input <- output
        self._targets: dict[str, Array] = {}  # by output: where it is written
        self._due: dict[str, str] = {}  # input <- output, of the last good run
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
        return (found if rows is None else found[rows]).copy()

    def _current(self, name: str) -> Array:
        output = self._due.get(name)
        return self._resident[name] if output is None else self._targets[output]

    # ------------------------------------------------------------ binding

    def bind(self, name: str, data: Any) -> None:
        """Let the input have a copy of `data` in every run that is not given another value."""
        given = as_array(data, self._plan.inputs[name].dtype, f"handle '{name}'")
        self._move_on()
        array = _copy(given)
        self._plan.bind_input(name, array)  # checks the shape; nothing has changed if it raises
        self._resident[name] = array
        if name in self._feeds:
            self._aim(self._feeds[name], array)

    def feed(self, name: str, output: str) -> None:
        """Let the output be the value of the handle after each run that succeeds."""
        self.check_feed(name, output)
        self._move_on()
        self._aim(output, self._resident[name])
        self._feeds[name] = output

    def unbind(self, name: str) -> None:
        """Forget the handle and its feed: runs must be given the input again, or its default is."""
        if name not in self._resident:
            known = ", ".join(self._resident) or "none"
            raise InputError(f"handle '{name}'", f"is not bound; bound: {known}.", name=name)
        self._move_on()
        output = self._feeds.pop(name, None)
        del self._resident[name]
        if name in self._defaults:
            self._plan.bind_input(name, self._defaults[name])
        else:
            self._plan.unbind(name)
        if output is not None and output not in self._feeds.values():
            del self._targets[output]
            self._plan.unbind(output)

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
        if any(io.name == output and io.part for io in self._plan.program.outputs):
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
        feeds = {**self._feeds, **once}
        for name, array in given.items():
            self._away.add(name)
            self._plan.bind_input(name, np.ascontiguousarray(array).reshape(array.shape))
        for name in self._away - given.keys():
            self._plan.bind_input(name, self._own(name))
            self._away.remove(name)
        if given or once:
            for name, output in feeds.items():
                self._aim(output, given.get(name, self._resident[name]))
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

    def _aim(self, output: str, like: Array) -> None:
        """Let the output be written to an array of its own, of this shape."""
        target = self._targets.get(output)
        if target is None or target.shape != like.shape:
            target = aligned_empty(like.shape, like.dtype)
            self._plan.bind_output(output, target)
            self._targets[output] = target

    def _move_on(self) -> None:
        """Let what the last run wrote take the place of what it read."""
        if not self._due:
            return
        due, self._due = self._due, {}
        # In most cases two arrays change places. Else an output feeds several inputs, an array
        # overlaps another one, or the last run had other sizes than the one before it.
        is_plain = (
            len(set(due.values())) == len(due)
            and self._away.isdisjoint(due)
            and self._plan.exchange(list(due.items()))
        )
        for name, output in due.items():
            before, self._resident[name] = self._resident[name], self._targets[output]
            if is_plain:
                self._targets[output] = before
        self._away -= due.keys()
        if not is_plain:
            self._bind_again(due)
        for output in set(due.values()) - set(self._feeds.values()):
            del self._targets[output]
            self._plan.unbind(output)

    def _bind_again(self, due: Mapping[str, str]) -> None:
        for output in set(due.values()):
            written = self._targets.pop(output)
            self._aim(output, written)  # elsewhere: what was written is an input now
        for name in due:
            self._plan.bind_input(name, self._resident[name])

    def copy_to(self, plan: ExecutionPlan) -> Handles:
        """The same handles, with values of their own, for a clone of the plan."""
        made = Handles(plan, self._defaults)
        for name in self._resident:
            made.bind(name, self._current(name))
        for name, output in self._feeds.items():
            made.feed(name, output)
        return made


def _copy(array: Array) -> Array:
    made = aligned_empty(array.shape, array.dtype)
    made[...] = array
    return made

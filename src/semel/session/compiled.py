"""CompiledGraph: what a graph became, to run by name in every way that a caller may want.

    Session.compile(graph)  -->  CompiledGraph{plan}  --run, run_raw, run_slots, ...-->  outputs

Every entry point is a way to take inputs and a way to read outputs around one method, `_go`: so
defaults, handles, feeds, extents, states and pending tickets mean the same on all of them. The
work is done by the plan, and there is no other way to it.

Operations on the plan that belong together hold its lock, which a thread may take again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from semel.errors import InputError
from semel.ir.fields import take, take_int
from semel.plan.plan import ExecutionPlan
from semel.plan.readers import Reader
from semel.plan.states import PlanStates, Snapshot
from semel.plan.table import Signature, Table
from semel.session.outputs import Outputs
from semel.session.readers import Chosen, Into
from semel.session.values import (
    CASTINGS,
    as_input,
    by_position,
    from_bytes,
    given,
    missing_inputs,
    unknown_input,
)

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Options:
    """How a compiled graph treats what it is given."""

    casting: str = "exact"
    sticky: bool = False
    depth: int = 4

    def __post_init__(self) -> None:
        if self.casting not in CASTINGS:
            choices = " or ".join(map(repr, CASTINGS))
            raise InputError("compile", f"casting must be {choices}, got {self.casting!r}.")
        take("compile", "sticky", bool, self.sticky)
        if take_int("compile", "depth", self.depth) < 1:
            raise InputError("compile", f"depth must be at least 1, got {self.depth}.")


class CompiledGraph:
    """A graph that is compiled: see `ExecutableGraph` for what each member promises."""

    def __init__(self, plan: ExecutionPlan, options: Options | None = None) -> None:
        self.plan = plan
        self.options = options or Options()
        self._calls, self._table = plan.calls, plan.inputs
        self._is_sticky = self.options.sticky
        #: Whether inputs go as they are to the plan, all of them and nothing else.
        self._is_plain = not self._is_sticky and self.options.casting == "exact"
        self._chosen: dict[tuple[str, ...] | None, Chosen] = {None: Chosen(plan.outputs)}
        self._all = self._chosen[None]

    def __repr__(self) -> str:
        return f"CompiledGraph({self.signature}, {self.plan.device})"

    # ------------------------------------------------------------ what it is

    @property
    def inputs(self) -> Table:
        """What runs are given, in order."""
        return self.plan.inputs

    @property
    def outputs(self) -> Table:
        """What runs give back, in order."""
        return self.plan.outputs

    @property
    def params(self) -> Table:
        """The weights that can be replaced."""
        return self.plan.params

    @property
    def states(self) -> PlanStates:
        """What is kept between runs."""
        return self.plan.states

    @property
    def signature(self) -> Signature:
        """What goes in and what comes out; `str()` is one line."""
        return self.plan.signature

    @property
    def arena_ptr(self) -> int:
        """The address that the offsets of inputs and outputs count from."""
        return self.plan.arena_ptr

    # ------------------------------------------------------------ runs

    def run(
        self, *args: Any, out: Any = None, fetch: Iterable[str] | None = None, **named: Any
    ) -> Outputs:
        """Run with these inputs; copies of the outputs, by name and by order.

        Inputs are given by position, by name, or as one mapping. With `out`, outputs are written
        to those arrays, which are returned. With `fetch`, only these outputs are computed and
        returned, in that order.
        """
        chosen = self._wanted(fetch)
        if out is not None:
            return self._go(
                given(self._table, args, named), Into(chosen, self.outputs, out), chosen
            )
        return self._go(given(self._table, args, named), chosen.copies, chosen)

    __call__ = run

    def run_raw(self, *args: Any, fetch: Iterable[str] | None = None, **named: Any) -> Outputs:
        """Run; views of the outputs where they lie, which raise once another run has begun."""
        chosen = self._wanted(fetch)
        return self._go(given(self._table, args, named), chosen.borrowed, chosen)

    def run_slots(self, inputs: Sequence[Any] = ()) -> tuple[tuple[int, int], ...]:
        """Run with the inputs in order; where each output lies: (bytes behind `arena_ptr`, bytes).

        The lowest overhead. The bytes are good until the next run; inputs that have a handle or
        a default may be None.
        """
        if self._is_plain:
            return self._calls.slots(inputs, self._all.slots)
        found = {n: v for n, v in by_position(self._table, inputs).items() if v is not None}
        return self._go(found, self._all.slots, self._all)

    def run_typed(
        self, inputs: Mapping[str, Any], *, fetch: Iterable[str] | None = None
    ) -> Outputs:
        """Run on bytes: inputs are `(bytes, dtype)`, with a shape if it does not follow.

        Outputs come back as `(data, dtype, shape)`, bit for bit.
        """
        chosen = self._wanted(fetch)
        arrays = {
            name: from_bytes(self._table[name], value, self.options.casting)
            for name, value in given(self._table, (inputs,), {}).items()
        }
        return self._go(arrays, chosen.bytes, chosen)

    def _wanted(self, fetch: Iterable[str] | None) -> Chosen:
        if fetch is None:
            return self._all
        key = (fetch,) if isinstance(fetch, str) else tuple(fetch)
        found = self._chosen.get(key)
        if found is None:
            found = self._chosen[key] = Chosen(self.outputs, fetch)
        return found

    def _go(self, inputs: Mapping[str, Any], reader: Reader[R], chosen: Chosen) -> R:
        """The one way to run: what every entry point comes to."""
        return self._calls.run(inputs, reader, sticky=self._is_sticky, accept=self._accept)

    def _accept(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Arrays of the inputs' dtypes; what is not given must be there for another reason."""
        for name in inputs:
            if name not in self._table:
                raise unknown_input(self._table, name)
        missing = [name for name in self._table if name not in inputs]
        if missing and (needed := self.plan.without_value(missing, sticky=self._is_sticky)):
            raise missing_inputs(self._table, needed)
        casting = self.options.casting
        return {name: as_input(self._table[name], v, casting) for name, v in inputs.items()}

    # ------------------------------------------------------------ params

    def set_param(self, name: str, data: Any) -> None:
        """Replace a param by a copy of `data`, from the next run on."""
        self.plan.set_param(name, data)

    def set_params(self, arrays: Mapping[str, Any]) -> None:
        """Replace several params at once, all or none."""
        self.plan.set_params(arrays)

    # ------------------------------------------------------------ states

    def truncate(self, rows: int, cursor: str | None = None) -> None:
        """Let only the first `rows` of what was appended be valid."""
        self.plan.states.truncate(rows, cursor)

    def reset(self, name: str | None = None) -> None:
        """Go back to the first values."""
        self.plan.states.reset(name)

    def snapshot(self) -> Snapshot:
        """What all states hold now."""
        return self.plan.states.snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot."""
        self.plan.states.restore(snapshot)

    # ------------------------------------------------------------ another one

    def clone(self) -> CompiledGraph:
        """One of its own over the same code and weights, which goes on from here."""
        return CompiledGraph(self.plan.clone(), self.options)

    clone_box = fork = clone

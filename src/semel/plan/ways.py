"""The ways to run one plan: all of it, or what some of its outputs need.

    engine  --Ways.use(outputs)-->  runs of the rows that these need, from now on

Every way is a table of its own over the same buffers, made when it is first asked for. The plan's
variables, written shapes, bases and counts are in the words of one table at a time: that of the way
in use, which takes them over. So a run of all of the plan knows nothing of other ways, and one that
is like the last does nothing but run.

Invariant: tables of ways hold addresses; when memory moves they are all dropped but the whole one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from semel.errors import InputError, InternalError
from semel.plan.fetch import needed_rows, only_rows
from semel.plan.link import LinkedRows
from semel.plan.parts import PlanParts
from semel.plan.table import named_outputs
from semel.runtime.laned import link_program
from semel.runtime.linked import Executable

if TYPE_CHECKING:
    from semel.plan.engine import Engine

#: Ways that are kept beside the whole plan; the one that was not used for longest goes first.
MOST_WAYS = 4
_MOST_NAMED = 64


@dataclass(frozen=True, eq=False, slots=True)
class Way:
    """An executable of some rows, or all; `linked` are those rows by positions of the plan.

    `unwritten` are the outputs that it leaves out, by their buffers, `skipped` the outermost rows.
    """

    executable: Executable
    linked: LinkedRows
    unwritten: frozenset[int] = frozenset()
    skipped: tuple[int, ...] = ()


class Ways:
    """The whole plan, and the ways that were used last.

    The engine has them, and not they the engine: a plan that nobody has is gone at once.
    """

    def __init__(self, whole: Way) -> None:
        self.whole = self.now = whole
        self._others: dict[frozenset[int], Way] = {}
        self._named: dict[tuple[str, ...], frozenset[int]] = {}
        #: What only the whole plan gives.
        self._alike: set[frozenset[int]] = set()

    @property
    def is_whole(self) -> bool:
        """Whether runs are of all of the plan."""
        return self.now is self.whole

    def __iter__(self) -> Iterator[Way]:
        yield self.whole
        yield from list(self._others.values())

    def use(self, engine: Engine, wanted: frozenset[int] | None) -> None:
        """Let runs be for these outputs, by their buffers, from now on; None: for all there is."""
        engine.state.check_alive()
        if wanted is not None and self._others.get(wanted) is self.now:
            return  # again: it is the last one already
        way = self.whole if wanted is None else self._find(engine, wanted)
        if way is not self.now:
            self._switch(engine, way)

    def outputs(self, parts: PlanParts, names: tuple[str, ...]) -> frozenset[int]:
        """The buffers of outputs and kept values by their names."""
        found = self._named.get(names)
        if found is None:
            ios = named_outputs(parts.output_io, parts.outputs, parts.buffers)
            known = {**dict(parts.program.kept), **{io.name: io.index for io in ios}}
            for name in names:
                if name not in known:
                    text = f"has no output {name!r}; known: {', '.join(known) or 'none'}."
                    raise InputError("fetch", text, name=name)
            if len(self._named) >= _MOST_NAMED:
                self._named.clear()
            found = self._named[names] = frozenset(known[name] for name in names)
        return found

    def forget(self, engine: Engine) -> None:
        """Go back to the whole plan, and drop all else."""
        self.use(engine, None)
        while self._others:
            self._others.popitem()[1].executable.stop()

    def stop(self) -> None:
        """Nothing runs any more, in any way."""
        for way in self:
            way.executable.stop()

    def relinked(self, linked: LinkedRows) -> None:
        """The whole plan has been linked again, and there is no other way."""
        self.whole = self.now = Way(self.whole.executable, linked)

    def _find(self, engine: Engine, wanted: frozenset[int]) -> Way:
        if wanted in self._alike:
            return self.whole
        way = self._others.pop(wanted, None) or make_way(engine, wanted)
        if way is None:
            self._alike.add(wanted)
            return self.whole
        self._others[wanted] = way  # behind those that were used before
        oldest = [key for key, other in self._others.items() if other not in (way, self.now)]
        if len(self._others) > MOST_WAYS and oldest:
            self._others.pop(oldest[0]).executable.stop()
        return way

    def _switch(self, engine: Engine, way: Way) -> None:
        self.now.executable.rest()
        state = engine.state
        state.void("other outputs were asked for")
        was_moving = state.is_moving
        try:
            state.is_moving = True
            way.executable.state.take_over(state.run)
            self.now = way
            state.run, state.unwritten = way.executable.state, way.unwritten
            engine.bindings.follow_run()
            engine.set_enter()
            state.is_moving = was_moving
        finally:
            if not was_moving:
                engine.check_moved()


def make_way(engine: Engine, wanted: frozenset[int]) -> Way | None:
    """The way of what these outputs need; None if that is all of the plan."""
    parts = engine.parts
    kept = (index for _, index in parts.program.kept)
    unwritten = frozenset({*parts.outputs, *kept} - wanted)
    rows = needed_rows(parts, wanted)
    skipped = tuple(i for i in sorted(parts.blocks[None]) if i not in rows)
    if not skipped and not unwritten:
        return None
    made, whole = only_rows(parts, rows)
    linked, flat = engine.link(made)
    shown = replace(
        engine.linked,
        steps=[[[whole[i] for i in segment] for segment in step] for step in linked.steps],
        row_ops=[whole[i] if i >= 0 else i for i in linked.row_ops],
        rows=linked.rows,
    )
    return Way(link_program(parts.device, flat), shown, unwritten, skipped)


def going_back(engine: Engine) -> Callable[[], int]:
    """An entry that goes back to the whole plan first; a plan holds it, and not the reverse."""
    known = weakref.ref(engine)

    def enter() -> int:
        found = known()
        if found is None:
            raise InternalError("plan", "is gone, and runs.")
        found.ways.use(found, None)
        return found.enter()

    return enter

"""Values of tensors that nobody prepared: programs and plans found by what is done, not to what.

    Outline  --compute-->  array

A program of a graph's outline takes the data as inputs, so that it serves all graphs of that
outline: other arrays, other indices, other scalars make no new program. A number (a scalar, the
start of a slice) is part of the code while all graphs of the outline had the same one there,
and is given at each run from when a second one is seen: what never changes may make kernels
better, and at most as many further programs are made as there are numbers that change. Which
numbers may be given is said in `semel.compiler.numbers`; what is only moved needs no program
(`semel.compiler.moved`).

Plans at rest wait for the next run; a run takes one for itself, or makes one if there is none,
so that threads, and values asked for inside of a run, never meet. At most `MAX_OUTLINES` are
known, the latest used ones, and plans at rest hold `MAX_IDLE_BYTES` together. They hold no data
of anybody's. Why this way: docs/decisions/0034-eager-values.md.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any

from semel.compiler.lift import (
    data_name,
    lift_graph,
    lines_of,
    movable_starts,
    number_name,
    with_lines,
)
from semel.compiler.moved import is_moved, move
from semel.compiler.numbers import free_scalars, given_scalars, special_scalars
from semel.compiler.pipeline import compile_graph
from semel.config import Settings
from semel.devices import check_runs_here, choose_target
from semel.errors import IndexRangeError, VariableError
from semel.ir.graph import Array
from semel.ir.outline import Outline
from semel.ir.target import Target
from semel.locks import make_lock
from semel.plan.direct import DirectCall, direct_call
from semel.plan.instantiate import instantiate
from semel.plan.program import Program
from semel.runtime.free import HOST_DEVICE

MAX_OUTLINES = 256
MAX_IDLE_BYTES = 64 << 20
MAX_IDLE_PLANS = 4  #: of one program: as many threads as ask for one value at a time
MAX_VARIANTS = 16  #: programs of one outline, for numbers that must be part of the code


class _Eager:
    """A program for one outline: the numbers it was made for, and those it is given."""

    def __init__(self, program: Program, outline: Outline, known: _Known, lifted: frozenset[int]):
        self.program, self.lifted = program, lifted
        self.fixed = [(k, n) for k, n in enumerate(outline.numbers) if k not in lifted]
        self.scalars = sorted(lifted & known.scalars)
        self.starts = [(k, number_name(k)) for k in sorted(lifted & known.starts)]
        self.names = [data_name(k) for k in range(len(outline.data))]
        self.names += [number_name(k) for k in self.scalars]
        self.idle: list[DirectCall] = []
        self.is_known = True

    def changed(self, numbers: Sequence[Hashable]) -> list[int]:
        """Places of the numbers that are not those the program was made for."""
        return [k for k, number in self.fixed if numbers[k] != number]

    def open(self) -> DirectCall:
        return direct_call(instantiate(self.program), self.names)


class _Known:
    """What is known of an outline.

    `given` numbers are no part of the code, `stiff` ones choose among its programs, and so do
    `specials` where they are met.
    """

    def __init__(self, outline: Outline) -> None:
        self.scalars, self.starts = free_scalars(outline), movable_starts(outline)
        free = self.scalars | self.starts
        self.stiff = [k for k in range(len(outline.numbers)) if k not in free]
        self.given = self.scalars & given_scalars(outline)
        special = special_scalars(outline)
        self.specials = [(k, special[k]) for k in sorted(self.scalars & special.keys())]
        self.programs: OrderedDict[Hashable, _Eager] = OrderedDict()

    def variant(self, outline: Outline) -> Hashable:
        numbers, values = outline.numbers, outline.values
        stiff = [numbers[k] for k in self.stiff]
        met = [numbers[k] if values[k] in special else None for k, special in self.specials]
        return (*stiff, *met)


_known: OrderedDict[Hashable, _Known] = OrderedDict()
_idle_bytes = 0
_lock = make_lock()
#: One compilation at a time: origins of nodes that two of them share would get mixed up.
_compiling = make_lock()


def compute(outline: Outline, options: Settings) -> Array:
    """The value of the outline's last node."""
    key = (
        outline.key,
        options.fusion,
        options.verify,
        options.arena,
        options.threads,
        options.debug,
        options.target,
    )
    eager, call = _take(key, outline)
    if eager is None and is_moved(outline):
        return move(outline)
    if eager is None:
        eager = _compile(key, outline)
    if call is None:
        call = eager.open()
    arrays: list[Any] = outline.data
    values = outline.values
    if eager.scalars:
        arrays = [*arrays, *[values[k] for k in eager.scalars]]
    starts = {name: values[k] for k, name in eager.starts}
    try:
        result = call(arrays, starts)[0]
    except IndexRangeError:
        # Once more, with the lines of this graph and not those of the one it was compiled for.
        call.plan.program = lines_of(eager.program, outline)
        call(arrays, starts)
        raise
    except VariableError as error:
        raise with_lines(error, outline) from None
    _give(eager, call)
    return result


def _take(key: Hashable, outline: Outline) -> tuple[_Eager | None, DirectCall | None]:
    """A program for the outline and its numbers, and a plan of it that is at rest."""
    global _idle_bytes  # noqa: PLW0603 - counted under the lock
    with _lock:
        known = _known.get(key)
        if known is None:
            return None, None
        _known.move_to_end(key)
        eager = known.programs.get(known.variant(outline))
        if eager is None or eager.changed(outline.numbers):
            return None, None
        if not eager.idle:
            return eager, None
        call = eager.idle.pop()
        _idle_bytes -= call.size_bytes
        return eager, call


def _compile(key: Hashable, outline: Outline) -> _Eager:
    """A program for the outline; what was another number last time is lifted."""
    with _compiling:
        eager, _ = _take(key, outline)  # somebody else may have been first
        if eager is not None:
            return eager
        with _lock:
            known = _known.get(key) or _Known(outline)
        variant = known.variant(outline)
        before = known.programs.get(variant)
        lifted = known.given
        if before is not None:
            lifted = before.lifted.union(before.changed(outline.numbers))
        graph = lift_graph(outline, lifted)
        program = compile_graph(graph, _target(), is_explained=False)
        eager = _Eager(program, outline, known, lifted)
        _keep(key, known, variant, eager)
        return eager


def _target() -> Target:
    """What to compile for: as the settings say, if this machine runs it."""
    target = choose_target(HOST_DEVICE)
    check_runs_here("realize", HOST_DEVICE, target)
    return target


def _keep(key: Hashable, known: _Known, variant: Hashable, eager: _Eager) -> None:
    """Let later graphs find the program. Plans are let go of outside of the lock."""
    gone: list[DirectCall] = []
    with _lock:
        _known[key] = known
        _known.move_to_end(key)
        if variant in known.programs:
            gone += _forget(known.programs.pop(variant))
        known.programs[variant] = eager
        if len(known.programs) > MAX_VARIANTS:
            gone += _forget(known.programs.popitem(last=False)[1])
        if len(_known) > MAX_OUTLINES:
            for old in _known.popitem(last=False)[1].programs.values():
                gone += _forget(old)
    del gone


def _forget(eager: _Eager) -> list[DirectCall]:
    eager.is_known = False
    return _drop(eager)


def _drop(eager: _Eager) -> list[DirectCall]:
    """The plans at rest of a program, which has none from now on; with the lock held."""
    global _idle_bytes  # noqa: PLW0603 - counted under the lock
    gone, eager.idle = eager.idle, []
    _idle_bytes -= sum(call.size_bytes for call in gone)
    return gone


def _give(eager: _Eager, call: DirectCall) -> None:
    """Lay a plan to rest, if its program is still known and there is room."""
    global _idle_bytes  # noqa: PLW0603 - counted under the lock
    gone: list[DirectCall] | None = None
    with _lock:
        if not eager.is_known or len(eager.idle) == MAX_IDLE_PLANS:
            return
        if call.size_bytes > MAX_IDLE_BYTES:
            return
        eager.idle.append(call)
        _idle_bytes += call.size_bytes
        if _idle_bytes > MAX_IDLE_BYTES:
            gone = _make_room(eager)
    del gone


def _make_room(spared: _Eager) -> list[DirectCall]:
    """Plans at rest that were not used for longest, until the others may stay."""
    gone: list[DirectCall] = []
    for known in list(_known.values()):
        for eager in list(known.programs.values()):
            if eager is not spared:
                gone += _drop(eager)
            if _idle_bytes <= MAX_IDLE_BYTES:
                return gone
    return gone


def forget_eager() -> None:
    """Know nothing, as at the start of the process."""
    gone: list[DirectCall] = []
    with _lock:
        for known in _known.values():
            for eager in known.programs.values():
                gone += _forget(eager)
        _known.clear()
    del gone

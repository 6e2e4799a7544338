"""Programs that were compiled in this process, found again by what they were compiled from.

    graph, target, options  --find_program-->  Program, or None
    ...                     --keep_program-->  the next one who asks finds it

The key is the form of the graph, the identity of its constants, and everything else that the
compiler looks at, so that what is found is what compiling again would give. A plan of it
has been compiled no time: its `compile_count` is 0.

Nothing is kept alive for long: at most `MAX_PROGRAMS` are known; one with more than
`SMALL_BYTES` of constants is known only while somebody else holds it, as its plans do, and
one whose constants nobody can name any more is forgotten. Why this way:
docs/decisions/0032-programs-found-again.md.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from semel.compiler.graph_source import GraphSource
from semel.compiler.tune import Tuning
from semel.config import settings
from semel.ir.form import GraphForm, graph_form
from semel.ir.graph import Graph, Node
from semel.ir.target import Target
from semel.locks import make_lock
from semel.plan.program import Program

MAX_PROGRAMS = 256  #: known at most; the latest used ones
SMALL_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be compiled, as a key; None if it must be compiled whatever is known.

    `how` is what the key says beside the graph and its data.
    """

    key: Hashable | None
    form: GraphForm
    how: tuple[Hashable, ...] = ()


def make_request(
    graph: Graph,
    target: Target,
    *,
    device: str,
    fusion: bool | None,
    tuning: Tuning | None,
    keep: Mapping[str, Node],
    ids: Mapping[int, int],
    keep_params: bool,
    auto: Hashable = (),
) -> Request:
    """The key of everything that the compiler looks at.

    `ids` are those of the caller's nodes, by those of nodes that stand for them; `auto` is what
    devices are chosen from, and what those that the graph names compile for, if that is
    something else. A race measures, and SEMEL_DUMP writes: both want the compiler to run.
    """
    options = settings()
    form = graph_form(graph, keep)
    if ids:
        # What a composite is made of stands for no node of the caller's.
        form = replace(form, ids=tuple(ids.get(i, i) for i in form.ids))
    if options.dump is not None or (tuning is not None and tuning.race):
        return Request(None, form)
    data = tuple(storage.id for storage in form.storages)
    fuse = options.fusion if fusion is None else fusion
    how = (device, target, fuse, options.verify, keep_params, _choices(tuning), auto)
    return Request((form.key, data, *how), form, how)


def _choices(tuning: Tuning | None) -> Hashable:
    """What the remembered choices say now; they change when somebody tunes."""
    known = {} if tuning is None else tuning.memory.entries()
    if tuning is None or not known:
        return None
    return tuning.threads, frozenset((key, entry.choice) for key, entry in known.items())


@dataclass(frozen=True, slots=True)
class _Known:
    """A program, held or referred to; `ids` are those of the nodes it was compiled from."""

    program: Callable[[], Program | None]
    ids: tuple[int, ...]
    storages: tuple[Any, ...]  # weak references, whose calls take the entry away


_known: OrderedDict[Hashable, _Known] = OrderedDict()
_lock = make_lock()
#: Keys whose constants are gone. Filled by destructors, which may run anywhere: not the place
#: to take a lock, or to free programs.
_gone: deque[Hashable] = deque()


def find_program(request: Request) -> Program | None:
    """The program that compiling would give, for the nodes of this graph."""
    with _lock:
        gone = _take_gone()
        entry = None if request.key is None else _known.get(request.key)
        found = None if entry is None else entry.program()
    del gone
    if entry is None or found is None:
        return None
    if entry.ids != request.form.ids:
        found = for_nodes(found, dict(zip(entry.ids, request.form.ids, strict=True)))
    keep_program(request, found)
    return found


def keep_program(request: Request, program: Program) -> None:
    """Let others find the program."""
    if request.key is None:
        return
    key = request.key
    is_small = sum(array.nbytes for array in program.sections().values()) <= SMALL_BYTES
    entry = _Known(
        _waiting(program) if is_small else weakref.ref(program),
        request.form.ids,
        tuple(weakref.ref(s, lambda _: _gone.append(key)) for s in request.form.storages),
    )
    with _lock:
        gone = [*_take_gone(), _known.pop(key, None)]
        _known[key] = entry
        while len(_known) > MAX_PROGRAMS:
            gone.append(_known.popitem(last=False)[1])
    del gone


def _waiting(program: Program) -> Callable[[], Program]:
    """The program while anybody has it, and afterwards without the data of its source."""
    live, kept = weakref.ref(program), _with_source(program, GraphSource.loose)
    return lambda: live() or _with_source(kept, GraphSource.holding)


def _with_source(program: Program, change: Callable[[GraphSource], GraphSource]) -> Program:
    """The program with another source, if it has one."""
    source = program.compile_for
    if not isinstance(source, GraphSource):
        return program
    return replace(program, compile_for=change(source))


def forget_programs() -> None:
    """Know nothing, as at the start of the process."""
    with _lock:
        gone = list(_known.values())
        _known.clear()
        _gone.clear()
    del gone


def _take_gone() -> list[_Known | None]:
    """Entries that nobody can ask for; let go of them outside of the lock, they may be the last."""
    found: list[_Known | None] = []
    while _gone:
        found.append(_known.pop(_gone.popleft(), None))
    return found


def for_nodes(program: Program, ids: Mapping[int, int]) -> Program:
    """The program with its values under the ids of other, equal nodes."""
    values = tuple(
        replace(value, node_ids=tuple(ids[i] for i in value.node_ids if i in ids))
        for value in program.values
    )
    return replace(program, values=values)

"""The compiler on one page: Graph -> Program -> ExecutionPlan.

Read this file first. Each stage is a function from one immutable value to the
next and lives in the package of its name; `Trace` times it and, with SEMEL_DUMP=dir,
writes its product to a file named after it.

    graph      passes.all_passes         fold, simplify, decompose, lay out weights
    schedule   schedule.build_schedule   which nodes share a kernel
               compiler.once             ... and which of them need no run
    weights    compiler.recipes          what is made of constants and params before any run
    kernels    lower.lower_schedule      loops for every group
    tune       compiler.tune             other cuts of them, where measured to be faster
    artefacts  compiler.artefacts        machine code, from the cache or from LLVM
    program    compiler.link             values, ops, guards: all that a run needs
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from semel.compiler.ahead import copy_ahead
from semel.compiler.artefacts import Compiled, compile_kernels
from semel.compiler.became import describe_nodes
from semel.compiler.graph_source import GraphSource
from semel.compiler.known_kernels import known_kernels
from semel.compiler.link import (
    LinkedDevices,
    WeightsGiven,
    all_variables,
    check_params,
    link_program,
)
from semel.compiler.once import store_known
from semel.compiler.placement import Place
from semel.compiler.programs import find_program, for_nodes, keep_program, make_request
from semel.compiler.programs_on_disk import disk_key, find_on_disk, keep_on_disk
from semel.compiler.recipes import FormulaCompiler, Made, Recipes
from semel.compiler.recompiles import check_may_compile
from semel.compiler.spread import (
    DeviceChoice,
    Spread,
    check_allowed,
    open_spread,
    take_devices,
)
from semel.compiler.targets import Targets, find_targets
from semel.compiler.tune import Tuning, choose_kernels, tuning_for
from semel.config import settings
from semel.devices import KernelCompiler, check_runs_here, choose_target, find_backend, lacking
from semel.errors import GraphError, UserError
from semel.ir.fields import MemoryLimit, take_memory_limits, take_switch, take_threads, take_values
from semel.ir.graph import Graph, Node
from semel.ir.late import with_counts
from semel.ir.lineage import Change, recorded
from semel.ir.target import Target
from semel.ir.text import format_graph
from semel.kernel.text import format_kernel
from semel.lower import count_kernels, lower_groups, lower_schedule
from semel.lower.lowered import Lowered
from semel.lower.register_tiles import panel_width
from semel.ops.guard_places import with_guards
from semel.passes import Pass, all_passes, passes_for, run_passes
from semel.plan.instantiate import instantiate
from semel.plan.plan import ExecutionPlan
from semel.plan.program import Program
from semel.plan.rows import PreparedKernel
from semel.runtime.collector import fewer_collections
from semel.runtime.device import check_device
from semel.runtime.free import HOST_DEVICE
from semel.schedule.devices import devices_named
from semel.schedule.group import Schedule
from semel.schedule.groups import build_schedule
from semel.schedule.names import kernel_name
from semel.topics import Topic

T = TypeVar("T")
NOTHING: Mapping[str, Node] = MappingProxyType({})
_SCHEDULE, _COMPILE = Topic("schedule"), Topic("compile")


def prepare_graph(
    graph: Graph,
    *,
    threads: int | None = None,
    memory_limit: MemoryLimit = None,
    fusion: bool | None = None,
    tune: bool | Mapping[str, int] | None = None,
    bindings: Mapping[str, int] | None = None,
    keep: Mapping[str, Node] = NOTHING,
    device: Any = None,
    devices: Any = None,
    target: str | None = None,
    keep_params: bool = False,
    written: Mapping[Node, Node] | None = None,
    name: str = "",
    change: Callable[[Program], Program] | None = None,
) -> ExecutionPlan:
    """Compile `graph` for a device of this machine and give it buffers: a plan, ready to run.

    `target` is the name of what to compile for, which this machine must be able to run. `written`
    are the nodes that the caller knows, by those of the graph that stand for them, if these differ.
    `name` is what the plan is called. The plan is one of what `change` makes of the program.
    `device` is the plan's own, `devices` those that it may use: one that says nothing else is on
    the first of them, and of `"auto"`, each kernel where it is best computed.

    A graph that was compiled before, for the same options, is not compiled again: one of this
    process is found with its weights, a large one of another process on disk.
    With `keep_params` the data of params and constants is held as it was given, too.
    """
    threads = take_threads("prepare", threads)
    memory_limit = take_memory_limits("prepare", memory_limit)
    fusion = take_switch("prepare", "fusion", fusion)
    if isinstance(tune, Mapping):
        tune = take_values("prepare", "tune", tune)
    else:
        tune = take_switch("prepare", "tune", tune)
    if isinstance(memory_limit, Mapping):
        memory_limit = {check_device("prepare", on): most for on, most in memory_limit.items()}
    choice = take_devices(device, devices, memory_limit)
    device = choice.device
    check_allowed(graph, choice)
    keep_params = bool(take_switch("prepare", "keep_params", keep_params))
    made_for = choose_target(device, target)
    check_runs_here("prepare", device, made_for)
    others = find_targets(device, made_for, devices_named(graph)).others
    tuning = tuning_for(made_for, threads, tune, device)
    with fewer_collections():
        asked = graph
        graph, became = with_counts(asked)
        keep = {name: became.get(node, node) for name, node in keep.items()}
        if written and not became:
            became = {node: node for node in asked.nodes}
        ids = {made.id: (written or {}).get(node, node).id for node, made in became.items()}
        request = make_request(
            graph,
            made_for,
            device=device,
            fusion=fusion,
            tuning=tuning,
            keep=keep,
            ids=ids,
            keep_params=keep_params,
            auto=(*choice.auto, *others.items()),
        )
        program = find_program(request)
        is_new = program is None
        if program is None:
            check_may_compile("prepare", ", ".join(graph.names))
            key = disk_key(graph, request, device, made_for)
            program = None if key is None else find_on_disk(key, graph, request.form.ids)
            if program is None:
                program = compile_graph(
                    graph,
                    made_for,
                    fusion=fusion,
                    tuning=tuning,
                    keep=keep,
                    device=device,
                    keep_params=keep_params,
                    auto=choice.auto,
                )
                program = for_nodes(program, ids) if ids else program
                if key is not None:
                    keep_on_disk(key, program, request.form.ids)
            remake = partial(_compile_for, fusion, choice, keep_params)
            source = GraphSource(graph, keep, remake, keep_constants=keep_params)
            program = replace(program, compile_for=source.holding(), name=name)
            keep_program(request, program)
        else:
            _COMPILE("%s: found again, nothing is compiled", ", ".join(graph.names))
            if program.name != name:
                program = replace(program, name=name)
                keep_program(request, program)  # in the place of the one that its plans do not hold
        if change is not None:
            program = change(program)
        plan = instantiate(program, threads=threads, memory_limit=memory_limit, bindings=bindings)
    plan.compile_count = int(is_new)
    return plan


def _compile_for(
    fusion: bool | None,
    choice: DeviceChoice,
    keep_params: bool,
    graph: Graph,
    keep: Mapping[str, Node],
    target: str,
) -> Program:
    """The program of a plan's graph for another target, with the same options."""
    return compile_graph(
        graph,
        choose_target(choice.device, target),
        fusion=fusion,
        keep=keep,
        device=choice.device,
        keep_params=keep_params,
        auto=choice.auto,
    )


def compile_graph(
    graph: Graph,
    target: Target,
    *,
    fusion: bool | None = None,
    tuning: Tuning | None = None,
    keep: Mapping[str, Node] = NOTHING,
    device: str = HOST_DEVICE,
    keep_params: bool = False,
    is_explained: bool = True,
    auto: tuple[Place, ...] = (),
) -> Program:
    """Compile `graph` for a target of `device`. Same arguments, same program, byte for byte.

    The target may be that of another machine: then the program can be saved, and not run here.

    With `tuning` the program also depends on what was measured on this machine. The nodes in
    `keep` can be read after a run too, by name. A program that nobody will ask what became of its
    nodes need not be `is_explained`. What the graph says nothing about may be on any device in
    `auto`.
    """
    check_may_compile("prepare", ", ".join(graph.names))
    options = settings()
    stage = Trace(options.dump)
    graph = _with_kept(with_counts(graph)[0], keep)
    check_params(graph)
    fuse = options.fusion if fusion is None else fusion
    # Passes may drop an input or a guarded op; callers and guards still see what was written.
    asked = _Asked(
        graph, target, device, fuse, options.verify, keep, keep_params, is_explained, auto=auto
    )
    with fewer_collections():
        program = _compile(asked, stage, tuning)
    _tell_compiled(graph, program, stage.seconds)
    return program


@dataclass(frozen=True)
class _Asked:
    """What is to be compiled, and how."""

    graph: Graph
    target: Target
    device: str = HOST_DEVICE
    fusion: bool = True
    verify: bool = False
    keep: Mapping[str, Node] = field(default_factory=dict)
    keep_params: bool = False
    is_explained: bool = False
    is_recipe: bool = False  # it is itself what is computed once
    auto: tuple[Place, ...] = ()


def _compile(asked: _Asked, stage: Trace, tuning: Tuning | None = None) -> Program:
    """All stages. The kernels of recipes are compiled with the others, ahead of them."""
    begun = _schedule(asked, stage)
    schedule = begun.schedule
    recipes = stage("weights", lambda: _recipes(begun))
    stage.dump("schedule", schedule, lambda s: "\n".join(s.log))
    _tell_schedule(schedule)
    kernels = begun.lower()
    if tuning is not None and tuning.may_choose:
        default = tuple(kernels)
        kernels = stage("tune", lambda: begun.tuned(default, tuning))
    if stage.dumps:
        kernels = everything = tuple(kernels)
        for number, made in enumerate(everything):
            name = f"kernel-{number}-{kernel_name(made.group)}"
            stage.dump(name, made.kernel, format_kernel)
    ahead = recipes.kernels if begun.runs_on_host else ()
    count = len(ahead) + count_kernels(schedule, asked.target)
    compiled = stage("artefacts", lambda: begun.compile(ahead, kernels, count=count))
    made_ahead = compiled[: len(ahead)] if begun.runs_on_host else None
    weights = stage("weights", lambda: recipes.made(made_ahead))
    return begun.finish(compiled[len(ahead) :], weights)


def _schedule(asked: _Asked, stage: Trace) -> _Scheduled:
    """The stages up to which kernels there are."""
    stage.dump("input", asked.graph, format_graph)
    keep = asked.keep
    spread = open_spread(asked.graph, asked.device, asked.auto)
    devices = () if spread is None else spread.devices
    targets = find_targets(asked.device, asked.target, devices)
    changes: list[Change] = []
    panel = panel_width(asked.target)
    panels = {device: panel_width(target) for device, target in targets.others.items()}
    passes = _passes(asked, targets, spread)
    with recorded(changes):
        guarded = with_guards(asked.graph)
        if guarded.declared:  # what nobody reads is not run
            guarded = replace(guarded, declared=())
        if spread is not None:
            guarded = spread.simple(guarded)

    def passed(graph: Graph) -> Graph:
        graph = run_passes(graph, passes, asked.verify)
        return graph if spread is None else spread.settled(graph)

    def scheduled(graph: Graph) -> Schedule:
        find = None if spread is None else spread.find
        return build_schedule(
            graph, fusion=asked.fusion, panel=panel, kept=keep, devices=find, panels=panels
        )

    def with_stored(first: Schedule) -> Schedule:
        graph = first.graph if asked.is_recipe else store_known(first)
        return first if graph is first.graph else scheduled(passed(graph))

    def with_devices(first: Schedule) -> Schedule:
        if spread is None or not spread.is_open:
            return first
        kernels = lower_schedule(
            first, asked.target, others=known_kernels, elsewhere=targets.others
        )
        return scheduled(spread.chosen(first, kernels))

    with recorded(changes):
        graph = stage("graph", lambda: passed(guarded))
        stage.dump("graph", graph, format_graph)
        schedule = stage("schedule", lambda: with_devices(with_stored(scheduled(graph))))
    return _Scheduled(asked, stage, schedule, changes, spread, targets)


def _passes(asked: _Asked, targets: Targets, spread: Spread | None) -> tuple[Pass, ...]:
    """All of them, the last ones for each target."""
    own, *others = targets.distinct
    if spread is None or not others:
        return all_passes(own, panel_width(own), asked.verify)
    first = all_passes(own, panel_width(own), asked.verify, spread.where(targets, own))
    for target in others:
        first += passes_for(target, panel_width(target), spread.where(targets, target))
    return first


@dataclass(frozen=True)
class _Scheduled:
    """A graph as kernels to be: what is left is to lower them, to compile them and to link."""

    asked: _Asked
    stage: Trace
    schedule: Schedule
    changes: Sequence[Change]
    spread: Spread | None
    targets: Targets

    @property
    def compiler(self) -> KernelCompiler:
        """Who makes code of the kernels."""
        return find_backend(self.asked.device).compiler(self.asked.target)

    @property
    def runs_on_host(self) -> bool:
        """Whether code for it is code for the host of this process, which makes weights."""
        is_host = find_backend(self.asked.device) == find_backend(HOST_DEVICE)
        return is_host and not lacking(HOST_DEVICE, self.asked.target)

    def lower(self) -> Iterable[Lowered]:
        """All kernels, each when it is asked for."""
        asked, schedule, spread = self.asked, self.schedule, self.spread
        found = self.stage.each(
            "kernels",
            lower_groups(
                schedule,
                asked.target,
                others=known_kernels,
                elsewhere=self.targets.others,
            ),
        )
        if spread is None:
            return found
        return copy_ahead(tuple(found), asked.device, spread.find(schedule.graph))

    def compile(self, *kernels: Iterable[Lowered], count: int = 0) -> list[Compiled]:
        """All of them, with their code, each for the target of its device.

        `count` is how many different ones there may be.
        """
        is_here = not lacking(self.asked.device, self.asked.target)
        made = chain.from_iterable(kernels)
        if not self.targets.others:
            return compile_kernels(made, self.compiler, is_here=is_here, count=count)
        everything, others = tuple(made), self.targets.others
        where = [kernel.device if kernel.device in others else "" for kernel in everything]
        found: dict[int, Compiled] = {}
        for device in dict.fromkeys(where):
            at = [i for i, each in enumerate(where) if each == device]
            compiler = self.compiler
            if device:
                compiler = find_backend(device).compiler(others[device])
            theirs = [everything[i] for i in at]
            compiled = compile_kernels(theirs, compiler, is_here=bool(device) or is_here)
            found |= zip(at, compiled, strict=True)
        return [found[i] for i in range(len(everything))]

    def tuned(self, kernels: Sequence[Lowered], tuning: Tuning) -> tuple[Lowered, ...]:
        """The kernels with what was found faster; those of other targets as they are."""
        asked, conditions = self.asked, self.schedule.graph.guards
        sizes = (*all_variables(asked.graph, conditions), *asked.graph.late)
        at = [i for i, k in enumerate(kernels) if self.targets.of(k.device) == asked.target]
        own = tuple(kernels[i] for i in at)
        chosen = choose_kernels(own, self.compiler, tuning, sizes, conditions)
        found = dict(zip(at, chosen, strict=True))
        return tuple(found.get(i, kernel) for i, kernel in enumerate(kernels))

    def finish(self, compiled: Sequence[Compiled], weights: Mapping[Node, Made]) -> Program:
        """The program, now that its code and its weights are there."""
        asked, spread, schedule = self.asked, self.spread, self.schedule
        given = WeightsGiven(weights, asked.keep_params)
        program = self.stage(
            "program",
            lambda: link_program(
                asked.graph,
                schedule,
                compiled,
                self.stage.seconds,
                asked.keep,
                asked.device,
                given,
                None if spread is None else _where(spread, schedule),
            ),
        )
        if not asked.is_explained:
            return program
        kernels = [lowered for lowered, _ in compiled]
        nodes = describe_nodes(asked.graph, self.changes, schedule, kernels, program)
        return replace(program, nodes=nodes)


def _where(spread: Spread, schedule: Schedule) -> LinkedDevices:
    graph = schedule.graph
    return LinkedDevices(spread.find(graph), spread.reasons(graph), spread.log)


@dataclass(frozen=True)
class _Formula:
    """A recipe up to its kernels."""

    begun: _Scheduled
    kernels: tuple[Lowered, ...]

    def finish(self, compiled: Sequence[Compiled] | None) -> Program:
        """Its program, of those kernels; nobody compiled them for it if there is None."""
        if compiled is None:
            compiled = self.begun.compile(self.kernels)
        return self.begun.finish(compiled, {})


def _recipes(begun: _Scheduled) -> Recipes:
    """What is stored. The host makes it, whatever device reads it; recipes are for the target."""
    target, verify = begun.asked.target, begun.asked.verify

    def formulas_for(target: Target) -> FormulaCompiler:
        def begin(formula: Graph) -> _Formula:
            asked = _Asked(formula, target, verify=verify, is_recipe=True)
            begun = _schedule(asked, Trace(None))
            return _Formula(begun, tuple(begun.lower()))

        return FormulaCompiler((target, verify), begin)

    is_here = not lacking(HOST_DEVICE, target)
    here = target if is_here else find_backend(HOST_DEVICE).target()
    return Recipes(
        begun.schedule.graph, formulas_for(here), None if is_here else formulas_for(target)
    )


def _tell_schedule(schedule: Schedule) -> None:
    if _SCHEDULE.is_on:
        names, count = ", ".join(schedule.graph.names), len(schedule.groups)
        _SCHEDULE("%s: %d nodes in %d kernels or loops", names, len(schedule.graph.nodes), count)
        for line in schedule.log:
            _SCHEDULE("%s", line)


def _tell_compiled(graph: Graph, program: Program, seconds: Mapping[str, float]) -> None:
    if _COMPILE.is_on:
        calls = [p.row for p in program.walk() if isinstance(p.row, PreparedKernel)]
        for name, kernel in dict.fromkeys((call.name, call.kernel) for call in calls):
            size = len(kernel.code or b"")
            _COMPILE("kernel %s is %s, %d bytes", name, kernel.entry_point, size)
        took = ", ".join(f"{name} {1e3 * time:.1f}" for name, time in seconds.items())
        _COMPILE("%s: compiled; ms by stage: %s", ", ".join(graph.names), took)


def _with_kept(graph: Graph, keep: Mapping[str, Node]) -> Graph:
    """The graph with an output for each node to keep that is not one already, or an input."""
    known = {*graph.outputs, *graph.inputs}
    taken = sorted(keep.keys() & set(graph.names))
    if taken:
        raise GraphError("keep", f"names must not be those of outputs, got {', '.join(taken)}.")
    more = {node: name for name, node in keep.items() if node not in known}
    if not more:
        return graph
    outputs, names = (*graph.outputs, *more), (*graph.names, *more.values())
    return replace(graph, outputs=outputs, names=names)


class Trace:
    """Times the stages and writes their products where SEMEL_DUMP points."""

    def __init__(self, directory: str | Path | None) -> None:
        self.seconds: dict[str, float] = {}
        self._inside = 0.0  # of works that a stage asked another one for
        self._directory = None if not directory else Path(directory)
        self._count = 0

    def __call__(self, name: str, work: Callable[[], T]) -> T:
        _COMPILE("stage %s", name)
        start, inside = time.perf_counter(), self._inside
        result = work()
        took = time.perf_counter() - start - (self._inside - inside)
        self.seconds[name] = self.seconds.get(name, 0.0) + took
        return result

    def each(self, name: str, works: Iterable[T]) -> Iterator[T]:
        """What `works` gives, asked for by another stage; its time counts for `name`."""
        _COMPILE("stage %s", name)
        self.seconds[name] = 0.0
        source = iter(works)
        while True:
            start = time.perf_counter()
            work = next(source, None)
            took = time.perf_counter() - start
            self.seconds[name] += took
            self._inside += took
            if work is None:
                return
            yield work

    @property
    def dumps(self) -> bool:
        """Whether anybody wants the products."""
        return self._directory is not None

    def dump(self, name: str, product: Any, write: Callable[[Any], str]) -> None:
        if self._directory is None:
            return
        path = self._directory / f"{self._count:02d}-{name}.txt"
        text = write(product) + "\n"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        except OSError as error:
            raise UserError(
                "config",
                f"SEMEL_DUMP must be a directory that we may write, got {str(self._directory)!r}: "
                f"{error}.",
            ) from error
        self._count += 1

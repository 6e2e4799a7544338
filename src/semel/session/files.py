"""Compiled graphs from files.

    compiled.save("x.plan")  -->  file  --semel.load-->  CompiledGraph

The file is that of its plan, with the options of the compiled graph beside it. A file that
`plan.save` wrote has none, and gives a compiled graph with those that `Session.compile` has.
"""

from __future__ import annotations

import os
from collections.abc import Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from semel.errors import PlanFileError, UserError
from semel.graph.routers import Router
from semel.ir.fields import MemoryLimit
from semel.loading import LoadOptions, open_plan
from semel.plan.file.format import Prefix
from semel.plan.file.read import PlanFile
from semel.plan.program import Program
from semel.runtime.stacks import StackFile
from semel.session.compiled import CompiledGraph
from semel.session.options import Options
from semel.session.residency import ExpertResidency, residency_for


def load(
    path: str | os.PathLike[str],
    *,
    recompile: bool = False,
    trust: bool = True,
    verify: bool = True,
    threads: int | None = None,
    memory_limit: MemoryLimit = None,
    experts: ExpertResidency | None = None,
) -> CompiledGraph:
    """The compiled graph that `save(path)` wrote; states have their first values.

    Its experts are resident as they were compiled to be, or as `experts` says.

    A file is code: load only what you trust, or with `trust=False`. The options are those of
    `semel.load_plan`. Raises PlanFileError for a file that is damaged or does not fit here.
    """
    found: list[_About] = []

    def place(program: Program, file: PlanFile) -> Program:
        about = _read_about(file.about, file.name, {kept for kept, _ in program.kept})
        if experts is not None:
            about = replace(about, experts=experts)
        found.append(about)
        if about.experts is None:
            return program
        source = _read_from(path, file)
        change = residency_for("load", program.device, about.experts, source)
        made = change(program, about.routers)
        if source is not None:
            source.forget()  # what was checked
        return made

    how = LoadOptions(recompile, trust, verify, threads, memory_limit)
    plan, _ = open_plan(path, how, place)
    if not found:  # a plan built by hand
        return CompiledGraph(plan)
    return CompiledGraph(plan, found[0].options, found[0].routers, found[0].experts)


def _read_from(path: str | os.PathLike[str], file: PlanFile) -> StackFile | None:
    """The file that was mapped, to read from; None if there is another in its place."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    if os.pread(fd, Prefix.LAYOUT.size, 0) != file.prefix.pack():
        os.close(fd)
        return None
    seen = file.constants, file.prefix.constants_offset
    return StackFile(fd, str(Path(path).parent), seen)


@dataclass(frozen=True, slots=True)
class _About:
    """What a file says of a compiled graph beyond its plan."""

    options: Options = field(default_factory=Options)
    routers: tuple[Router, ...] = ()
    experts: ExpertResidency | None = None


def _read_about(about: Any, name: str, kept: Set[str]) -> _About:
    """The options of the compiled graph, and its routers, whose values the plan keeps."""
    if about is None:
        return _About()
    try:
        routers = tuple(Router(**router) for router in about["routers"])
        unknown = {n for r in routers for n in (r.ids, r.weights) if n is not None} - kept
        if unknown:
            raise LookupError(f"no value is kept as {min(unknown)!r}")
        record = about["experts"]
        # A file with experts that somebody named is that of another graph, or machine.
        asked = None if record is None else ExpertResidency.of_record({**record, "path": None})
        return _About(Options(**about["options"]), routers, asked)
    except (UserError, TypeError, LookupError) as error:
        message = f"{name}: it must say how the graph was compiled: {error!r:.200}."
        raise PlanFileError("load", message, path=name) from error

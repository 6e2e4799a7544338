"""Compiled graphs from files.

    compiled.save("x.plan")  -->  file  --semel.load-->  CompiledGraph

The file is that of its plan, with the options of the compiled graph beside it. A file that
`plan.save` wrote has none, and gives a compiled graph with those that `Session.compile` has.
"""

from __future__ import annotations

import os
from collections.abc import Set
from typing import Any

from semel.errors import PlanFileError, UserError
from semel.graph.routers import Router
from semel.loading import LoadOptions, open_plan
from semel.session.compiled import CompiledGraph
from semel.session.options import Options


def load(
    path: str | os.PathLike[str],
    *,
    recompile: bool = False,
    trust: bool = True,
    verify: bool = True,
    threads: int | None = None,
    memory_limit: int | None = None,
) -> CompiledGraph:
    """The compiled graph that `save(path)` wrote; states have their first values.

    A file is code: load only what you trust, or with `trust=False`. The options are those of
    `semel.load_plan`. Raises PlanFileError for a file that is damaged or does not fit here.
    """
    plan, file = open_plan(path, LoadOptions(recompile, trust, verify, threads, memory_limit))
    options, routers = _about(file.about, file.name, {kept for kept, _ in plan.program.kept})
    return CompiledGraph(plan, options, routers)


def _about(about: Any, name: str, kept: Set[str]) -> tuple[Options, tuple[Router, ...]]:
    """The options of the compiled graph, and its routers, whose values the plan keeps."""
    if about is None:
        return Options(), ()
    try:
        routers = tuple(Router(**router) for router in about["routers"])
        unknown = {n for r in routers for n in (r.ids, r.weights) if n is not None} - kept
        if unknown:
            raise LookupError(f"no value is kept as {min(unknown)!r}")
        return Options(**about["options"]), routers
    except (UserError, TypeError, LookupError) as error:
        message = f"{name}: it must say how the graph was compiled: {error!r:.200}."
        raise PlanFileError("load", message, path=name) from error

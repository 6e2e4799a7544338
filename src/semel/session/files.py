"""Compiled graphs from files.

    compiled.save("x.plan")  -->  file  --semel.load-->  CompiledGraph

The file is that of its plan, with the options of the compiled graph beside it. A file that
`plan.save` wrote has none, and gives a compiled graph with those that `Session.compile` has.
"""

from __future__ import annotations

import os
from typing import Any

from semel.errors import PlanFileError, UserError
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
    return CompiledGraph(plan, _options(file.about, file.name))


def _options(about: Any, name: str) -> Options:
    try:
        return Options() if about is None else Options(**about["options"])
    except (UserError, TypeError, LookupError) as error:
        message = f"{name}: it must say how the graph was compiled: {error!r:.200}."
        raise PlanFileError("load", message, path=name) from error

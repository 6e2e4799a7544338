"""Runs that are watched: as many as asked for, and one report of all.

Engine, limits of the machine  --run_profiled-->  ProfileReport
"""

from __future__ import annotations

import resource
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from semel.plan.report.describe import describe_arena, describe_ops, describe_places
from semel.plan.report.profile import ProfileReport
from semel.plan.report.records import RunInfo, makespans, merge_runs, middle
from semel.runtime.events import LoggedRun

if TYPE_CHECKING:
    from semel.plan.engine import Engine


def run_profiled(
    engine: Engine,
    values: Mapping[str, int],
    wanted: frozenset[int] | None,
    runs: int,
    *,
    with_limits: bool,
) -> ProfileReport:
    """Bind these variables and make so many runs for these outputs, or all."""
    try:
        engine.bind(values)
    except BaseException:
        engine.abandon()
        raise
    # Bound first: only then is it known how many events there can be.
    engine.commit()
    engine.ways.use(engine, wanted)
    engine.commit()
    logged, switches = [], []
    for _ in range(runs):
        before = _times_preempted()
        logged.append(engine.run_logged())
        switches.append(_times_preempted() - before)
    return _report(engine, logged, switches, with_limits)


def _report(
    engine: Engine, runs: Sequence[LoggedRun], switches: Sequence[int], with_limits: bool
) -> ProfileReport:
    parts, values = engine.parts, engine.state.current_values()
    way = engine.ways.now
    # A size that the run was to find out is none where the arm that does it did not run.
    known = {**{v.variable.name: 0 for v in parts.late}, **values}
    limits = parts.device.limits(parts.threads) if with_limits else None
    events = [logged.events for logged in runs]
    took = makespans(events)
    shown = runs[middle(took)]
    run = RunInfo(
        parts.device.name,
        parts.threads,
        values,
        *runs[-1].steps,
        engine.memory.arena_bytes,
        describe_arena(parts, way.linked, known),
        limits,
        len(runs),
        max(logged.dropped for logged in runs),
        way.skipped,
        shown.waits,
        shown.tracks,
        tuple(took),
        tuple(switches),
        middle(took),
        describe_places(parts),
    )
    ops = describe_ops(parts, way.linked, known)
    return ProfileReport(merge_runs(ops, events, limits, switches), run)


def _times_preempted() -> int:
    """How often the system has taken a core away from this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw

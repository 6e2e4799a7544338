"""What can be done with a compiled graph, as plain data.

    compiled.capabilities()  -->  Capabilities: names, numbers, and whether

Everything in it is read off the plan and its device, and a test proves every entry by using it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from semel.graph.routers import Router
from semel.ir.types import DTYPES
from semel.plan.plan import ExecutionPlan
from semel.session.options import Options


@dataclass(frozen=True, slots=True)
class Capabilities:
    """`device`, `target` and `threads` are where it runs; `dtypes` go in and come out bit for bit.

    `dims` are the variables that shapes of inputs bind, `extents` those that a caller sets.
    `params` can be replaced, `states` are kept between runs, `feeds` are the pairs of an input and
    an output that can be fed to it without a copy. `casting`, `sticky` and `async_depth` are as it
    was compiled. Outputs can be borrowed (`raw`) and found behind one address (`slots`), written to
    a caller's arrays (`out`), and left out (`fetch`). A run ends when its time is over (`timeout`)
    or somebody says so (`cancel`). It has clones, and can be written to a file and to a pickle
    (`save`). Of the `layers` of experts it can be captured what is routed where; with `residency`,
    masks say who of them is in memory.
    """

    device: str
    target: str
    threads: int
    dtypes: tuple[str, ...]
    dims: tuple[str, ...]
    extents: tuple[str, ...]
    params: tuple[str, ...]
    states: tuple[str, ...]
    feeds: tuple[tuple[str, str], ...]
    casting: str
    sticky: bool
    async_depth: int
    raw: bool
    slots: bool
    layers: tuple[int, ...]
    residency: bool
    out: bool = True
    fetch: bool = True
    timeout: bool = True
    cancel: bool = True
    clone: bool = True
    save: bool = True


def find_capabilities(
    plan: ExecutionPlan, options: Options, routers: Sequence[Router], has_residency: bool
) -> Capabilities:
    """Read it off the plan, and what is known of its layers of experts."""
    named = (*plan.program.inputs, *plan.program.outputs)
    is_host = all(plan.buffers[io.index].memory.is_host for io in named)
    extents = tuple(plan.extents)
    return Capabilities(
        device=plan.device,
        target=plan.target,
        threads=plan.threads,
        dtypes=tuple(dtype.name for dtype in DTYPES),
        dims=tuple(name for name in _bound(plan) if name not in extents),
        extents=extents,
        params=tuple(plan.params),
        states=tuple(plan.states),
        feeds=_feeds(plan) if is_host else (),
        casting=options.casting,
        sticky=options.sticky,
        async_depth=options.depth,
        raw=is_host,
        slots=is_host,
        layers=tuple(router.layer for router in routers),
        residency=has_residency,
        save=all(kernel.code and kernel.form for kernel in plan.program.all_kernels),
    )


def _bound(plan: ExecutionPlan) -> list[str]:
    """The variables that do not go on by themselves."""
    return [v.variable.name for v in plan.program.variables if v.next is None]


def _feeds(plan: ExecutionPlan) -> tuple[tuple[str, str], ...]:
    whole = [made for made in plan.outputs.values() if not plan.calls.is_written_in_part(made.name)]
    return tuple(
        (given.name, made.name)
        for given in plan.inputs.values()
        for made in whole
        if given.type == made.type
    )

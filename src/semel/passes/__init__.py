"""Graph to graph: what is computed stays, how it is said improves.

    Graph --pass--> Graph --pass--> ...

A pass is a pure function on graphs; `all_passes` is the list of them, in order. What is known of
the arguments of exponentials is seen while they stand as they were written. What reductions add up,
and in which order, is settled next. Products of bytes are found while the bytes are
there, before anything folds. Constants fold before the
algebra, so that its rules see numbers, and again after it, for what it uncovered. Views
of contractions sink before that: what stood between two that cancel is then simple.
Reductions take their final form last, when the shapes below them are settled, and very long
concatenations their steps. The bodies of
loops and branches are graphs too and go through the list up to here, once what they capture is
settled. Then outputs that nobody computes get copies, those that are written in part are read where
they lie, and weights are laid out for the machine:
products of bytes as its instructions want them, all others in the order in which kernels read
them. CSE and DCE hold by construction and have no pass: equal nodes are one node, and a graph
is what its outputs reach. Take a graph's guards before its passes (`semel.ops.guards`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from semel.errors import InternalError
from semel.ir.graph import Graph
from semel.ir.target import Target
from semel.ir.text import format_graph
from semel.ir.verify import verify_graph
from semel.ops.contract import PanelWidth
from semel.ops.outputs import copy_leaf_outputs
from semel.passes.attention import fuse_attention
from semel.passes.bodies import improve_bodies
from semel.passes.decays import find_decays
from semel.passes.decompose import merge_reduced_axes, split_large_reductions
from semel.passes.dequantise import compute_on_bytes
from semel.passes.fold import fold_constants
from semel.passes.frames import read_frames
from semel.passes.joints import join_in_steps
from semel.passes.layout import sink_views
from semel.passes.one_column import sum_single_columns
from semel.passes.pack import pack_weights
from semel.passes.pack_bytes import pack_words
from semel.passes.patterns import Where
from semel.passes.quantise import find_integer_products
from semel.passes.reduce_order import reduce_as_it_lies
from semel.passes.simplify import simplify

Pass = Callable[[Graph], Graph]

__all__ = ["Pass", "all_passes", "default_passes", "passes_for", "run_passes"]

_ANYWHERE: tuple[Pass, ...] = (
    find_decays,
    reduce_as_it_lies,
    compute_on_bytes,
    find_integer_products,
    sum_single_columns,
    fold_constants,
    simplify,
    sink_views,
    simplify,
    fold_constants,
    fuse_attention,
    merge_reduced_axes,
    split_large_reductions,
    simplify,
    join_in_steps,
)


def all_passes(
    target: Target, panel: PanelWidth, verify: bool = False, where: Where | None = None
) -> tuple[Pass, ...]:
    """The passes of a compilation, in order.

    `panel` says how many columns of a contraction lowering takes at once, `where` which nodes are
    computed on this target, if it is not the only one.
    """
    return (
        *_ANYWHERE,
        _over_bodies(_ANYWHERE, verify),
        copy_leaf_outputs,
        read_frames,
        *passes_for(target, panel, where),
    )


def passes_for(target: Target, panel: PanelWidth, where: Where | None = None) -> tuple[Pass, ...]:
    """Those of one target, which come last: weights in the order in which its kernels read them."""
    return (
        partial(pack_words, target=target, where=where),
        partial(pack_weights, panel=panel, where=where),
    )


def default_passes(verify: bool = False) -> tuple[Pass, ...]:
    """Those that are the same for every machine, in order.

    Each may be left out and the result is the same numbers.
    """
    return (*_ANYWHERE, _over_bodies(_ANYWHERE, verify))


def _over_bodies(passes: tuple[Pass, ...], verify: bool) -> Pass:
    """The same passes for what is inside loops and branches, at any depth."""

    def bodies(graph: Graph) -> Graph:
        return improve_bodies(graph, lambda body: run_passes(body, (*passes, bodies), verify))

    return bodies


def run_passes(graph: Graph, passes: Sequence[Pass] | None = None, verify: bool = False) -> Graph:
    """Apply `passes` in order; with `verify`, a pass that breaks the graph is named."""
    # A pass that comes again would do the same with the same graph: nothing.
    settled: dict[Pass, Graph] = {}
    for each in default_passes(verify) if passes is None else passes:
        before = graph
        if settled.get(each) is not before:
            graph = each(before)
        if graph is before:
            settled[each] = graph
        if verify and graph is not before:
            _check(each, before, graph)
    return graph


def _check(each: Pass, before: Graph, after: Graph) -> None:
    problems = verify_graph(after)
    problems += [
        f"output '{name}' was {old.type} and became {new.type}."
        for (name, old), new in zip(before.results, after.values, strict=True)
        if old.type != new.type
    ]
    if problems:
        written = each.func if isinstance(each, partial) else each
        name = getattr(written, "__name__", repr(each))
        raise InternalError(name, f"{' '.join(problems)}\n{format_graph(before)}")

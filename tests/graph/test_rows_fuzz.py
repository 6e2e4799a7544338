"""Rows at drawn places, in states of drawn shapes, against the reference."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from semel import Graph
from semel.ir.graph import make_node
from semel.ops.attrs import UpdateRowsAttrs
from semel.ops.stateful import StateReference
from semel.tensor.handle import wrap

DTYPES = ("float32", "float64", "float16", "int8", "int64", "bool")


@st.composite
def cases(draw: st.DrawFn) -> tuple[Graph, dict[str, np.ndarray], list[np.ndarray]]:
    """A state of which rows are replaced twice, what is given, and places by run."""
    rank = draw(st.integers(2, 4))
    shape = [draw(st.integers(1, 5)) for _ in range(rank)]
    if draw(st.booleans()):
        shape[-1] = draw(st.sampled_from([16, 33]))
    axis = draw(st.integers(1, rank - 1))
    by_entry = draw(st.booleans())
    count = draw(st.integers(1, 4))
    dtype = draw(st.sampled_from(DTYPES))
    g = Graph("rows")
    sizes = [*shape[:axis], count, *shape[axis + 1 :]]
    x = g.input("x", (*sizes[:axis], "t", *sizes[axis + 1 :]), dtype)
    wide = shape[0] if by_entry else 1
    places = g.input("places", (wide, "t") if by_entry else ("t",), "int64")
    s, other = g.state("s", shape, dtype), g.state("lengths", shape[:1], "int64")
    attrs = UpdateRowsAttrs(axis, other.name, x.shape[axis])
    for rows in (x, x.flip(axis)) if draw(st.booleans()) else (x,):
        s.take_update(make_node("update_rows", (s.latest, rows.node, places.node), attrs))
    g.output("old", s + s)
    g.output("new", wrap(s.latest) * 1)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    numbers = rng.integers(0, 2 if dtype == "bool" else 50, prod(sizes)).astype(dtype)
    found = []
    for _ in range(2):
        drawn = [rng.permutation(np.arange(-1, shape[axis] + 3))[:count] for _ in range(wide)]
        filled = np.array([np.pad(d, (0, count - len(d)), constant_values=-1) for d in drawn])
        found.append(filled if by_entry else filled[0])
    return g, {"x": numbers.reshape(sizes)}, found


@given(cases(), st.integers(1, 2))
@settings(max_examples=25, deadline=None)
def test_rows_go_to_their_places(
    case: tuple[Graph, dict[str, np.ndarray], list[np.ndarray]], threads: int
) -> None:
    graph, given_, places = case
    plan = graph.prepare(dims={"t": (1, 8)}, threads=threads)
    reference = StateReference(graph.build({"t": (1, 8)}))
    for each in places:
        now = {**given_, "places": each}
        for found, wanted in zip(plan(**now), reference.run(now), strict=True):
            np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(plan.states.read("s"), reference.states["s"])

"""Views sink behind arithmetic: by text, and by the numbers it must not change."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest

from semel import Tensor
from semel.ir.graph import Graph, Node
from semel.ir.text import format_graph, parse_graph
from semel.ops.contract import one_width
from semel.ops.evaluate import evaluate
from semel.passes import run_passes
from semel.passes.decompose import merge_reduced_axes
from semel.passes.layout import sink_views
from semel.passes.pack import pack_weights
from semel.passes.simplify import simplify
from semel.tensor.indexing import iota

MATMUL = """\
%0 = input "x" : f32[2,3,4]
%1 = input "w" : f32[2,4,5]
%2 = matmul %0 %1 : f32[2,3,5]
"""
FLAT = """\
%0 = input "x" : f32[6,4]
%1 = input "w" : f32[4,5]
%2 = matmul %0 %1 : f32[6,5]
"""
TURNED = MATMUL + "%3 = permute %2 {axes=(0, 2, 1)} : f32[2,5,3]\n"

# (what, before, after): the last line is the output
SINKS: list[tuple[str, str, str]] = [
    (
        "a permute passes an activation",
        TURNED + "%4 = exp %3 : f32[2,5,3]",
        MATMUL + "%3 = exp %2 : f32[2,3,5]\n%4 = permute %3 {axes=(0, 2, 1)} : f32[2,5,3]",
    ),
    (
        "a reshape passes an activation",
        FLAT + "%3 = reshape %2 {shape=(2, 3, 5)} : f32[2,3,5]\n%4 = exp %3 : f32[2,3,5]",
        FLAT + "%3 = exp %2 : f32[6,5]\n%4 = reshape %3 {shape=(2, 3, 5)} : f32[2,3,5]",
    ),
    (
        "a reshape of a matrix passes a bias",
        FLAT
        + '%3 = reshape %2 {shape=(2, 3, 5)} : f32[2,3,5]\n%4 = input "b" : f32[1,1,5]\n'
        + "%5 = expand %4 {shape=(2, 3, 5)} : f32[2,3,5]\n%6 = add %3 %5 : f32[2,3,5]",
        FLAT
        + '%3 = input "b" : f32[1,1,5]\n%4 = reshape %3 {shape=(1, 5)} : f32[1,5]\n'
        + "%5 = expand %4 {shape=(6, 5)} : f32[6,5]\n%6 = add %2 %5 : f32[6,5]\n"
        + "%7 = reshape %6 {shape=(2, 3, 5)} : f32[2,3,5]",
    ),
    (
        "a permute passes a bias",
        TURNED
        + '%4 = input "b" : f32[1,5,1]\n%5 = expand %4 {shape=(2, 5, 3)} : f32[2,5,3]\n'
        + "%6 = add %3 %5 : f32[2,5,3]",
        MATMUL
        + '%3 = input "b" : f32[1,5,1]\n%4 = permute %3 {axes=(0, 2, 1)} : f32[1,1,5]\n'
        + "%5 = expand %4 {shape=(2, 3, 5)} : f32[2,3,5]\n%6 = add %2 %5 : f32[2,3,5]\n"
        + "%7 = permute %6 {axes=(0, 2, 1)} : f32[2,5,3]",
    ),
    (
        "two equal permutes are one",
        TURNED + "%4 = exp %3 : f32[2,5,3]\n%5 = add %4 %3 : f32[2,5,3]",
        MATMUL
        + "%3 = exp %2 : f32[2,3,5]\n%4 = add %3 %2 : f32[2,3,5]\n"
        + "%5 = permute %4 {axes=(0, 2, 1)} : f32[2,5,3]",
    ),
    (
        "a permute passes a reduction",
        TURNED + "%4 = reduce_sum %3 {axes=(1,)} : f32[2,1,3]",
        MATMUL
        + "%3 = reduce_sum %2 {axes=(2,)} : f32[2,3,1]\n"
        + "%4 = permute %3 {axes=(0, 2, 1)} : f32[2,1,3]",
    ),
    (
        "a permute passes a pad",
        TURNED
        + "%4 = scalar 0.0 : f32[]\n"
        + "%5 = pad %3 %4 {before=(0, 1, 2), after=(0, 0, 3)} : f32[2,6,8]",
        MATMUL
        + "%3 = scalar 0.0 : f32[]\n"
        + "%4 = pad %2 %3 {before=(0, 2, 1), after=(0, 3, 0)} : f32[2,8,6]\n"
        + "%5 = permute %4 {axes=(0, 2, 1)} : f32[2,6,8]",
    ),
    (
        "a permute passes a slice",
        TURNED + "%4 = slice %3 {starts=(0, 1, 0), sizes=(2, 2, 3), steps=(1, 2, 1)} : f32[2,2,3]",
        MATMUL
        + "%3 = slice %2 {starts=(0, 0, 1), sizes=(2, 3, 2), steps=(1, 1, 2)} : f32[2,3,2]\n"
        + "%4 = permute %3 {axes=(0, 2, 1)} : f32[2,2,3]",
    ),
    (
        "equal permutes pass a concat",
        TURNED + "%4 = exp %3 : f32[2,5,3]\n%5 = concat %3 %4 {axis=1} : f32[2,10,3]",
        MATMUL
        + "%3 = exp %2 : f32[2,3,5]\n%4 = concat %2 %3 {axis=2} : f32[2,3,10]\n"
        + "%5 = permute %4 {axes=(0, 2, 1)} : f32[2,10,3]",
    ),
    (
        "a permute passes a repeat",
        TURNED
        + "%4 = reshape %3 {shape=(2, 5, 3, 1)} : f32[2,5,3,1]\n"
        + "%5 = expand %4 {shape=(2, 5, 3, 2)} : f32[2,5,3,2]\n"
        + "%6 = reshape %5 {shape=(2, 5, 6)} : f32[2,5,6]",
        MATMUL
        + "%3 = reshape %2 {shape=(2, 3, 1, 5)} : f32[2,3,1,5]\n"
        + "%4 = expand %3 {shape=(2, 3, 2, 5)} : f32[2,3,2,5]\n"
        + "%5 = reshape %4 {shape=(2, 6, 5)} : f32[2,6,5]\n"
        + "%6 = permute %5 {axes=(0, 2, 1)} : f32[2,5,6]",
    ),
    (
        "a permute passes rows that are picked",
        TURNED + '%4 = input "i" : i64[7]\n%5 = gather %3 %4 {axis=2} : f32[2,5,7]',
        MATMUL + '%3 = input "i" : i64[7]\n%4 = gather %2 %3 {axis=1} : f32[2,7,5]\n'
        "%5 = permute %4 {axes=(0, 2, 1)} : f32[2,5,7]",
    ),
    (
        "new axes of 1 go with an old one",
        TURNED + "%4 = reshape %3 {shape=(1, 2, 1, 5, 3)} : f32[1,2,1,5,3]",
        MATMUL + "%3 = reshape %2 {shape=(1, 2, 1, 3, 5)} : f32[1,2,1,3,5]\n"
        "%4 = permute %3 {axes=(0, 1, 2, 4, 3)} : f32[1,2,1,5,3]",
    ),
]

STAYS: list[tuple[str, str]] = [
    ("another computed operand", TURNED + '%4 = input "y" : f32[2,5,3]\n'
     "%5 = exp %4 : f32[2,5,3]\n%6 = add %3 %5 : f32[2,5,3]"),
    ("a view of data", '%0 = input "x" : f32[2,3,4]\n'
     "%1 = permute %0 {axes=(0, 2, 1)} : f32[2,4,3]\n%2 = exp %1 : f32[2,4,3]"),
    ("a transposed matrix", FLAT + "%3 = permute %2 {axes=(1, 0)} : f32[5,6]\n"
     "%4 = exp %3 : f32[5,6]"),
    ("a sum in another order", TURNED + "%4 = reduce_sum %3 {axes=(1, 2)} : f32[2,1,1]"),
    ("axes that are merged and no neighbours", TURNED
     + "%4 = reshape %3 {shape=(2, 15)} : f32[2,15]"),
    ("axes that stretch apart", FLAT + "%3 = reshape %2 {shape=(2, 3, 5)} : f32[2,3,5]\n"
     '%4 = input "b" : f32[2,1,5]\n%5 = expand %4 {shape=(2, 3, 5)} : f32[2,3,5]\n'
     "%6 = add %3 %5 : f32[2,3,5]"),
]  # fmt: skip


def graph_of(text: str) -> Graph:
    last = textwrap.dedent(text).strip().splitlines()[-1].split(" ")[0]
    return parse_graph(f"{text}\noutput {last}")


@pytest.mark.parametrize(("before", "after"), [r[1:] for r in SINKS], ids=[r[0] for r in SINKS])
def test_a_view_sinks(before: str, after: str) -> None:
    found = run_passes(graph_of(before), [sink_views], verify=True)
    assert format_graph(found) == format_graph(graph_of(after))


@pytest.mark.parametrize("text", [r[1] for r in STAYS], ids=[r[0] for r in STAYS])
def test_a_view_stays(text: str) -> None:
    found = run_passes(graph_of(text), [sink_views], verify=True)
    assert format_graph(found) == format_graph(graph_of(text))


def test_sinking_twice_is_sinking_once() -> None:
    for _, before, _ in SINKS:
        once = run_passes(graph_of(before), [sink_views])
        assert format_graph(run_passes(once, [sink_views])) == format_graph(once)


def test_the_permutes_between_convolutions_are_gone() -> None:
    x = Tensor.input("x", (1, 3, 8, 8))
    rng = np.random.default_rng(1)
    y = x.conv(rng.standard_normal((8, 3, 3, 3), dtype=np.float32), padding=1).relu().max_pool(2)
    y = y.conv(rng.standard_normal((8, 8, 3, 3), dtype=np.float32)).mean((2, 3))
    before = Graph((y.node,))
    after = run_passes(before, [simplify, sink_views, simplify], verify=True)
    moved = [n for n in after.nodes if n.op.name == "permute" and _is_data(n)]
    # What the image needs once, and what puts the windows of the pool where it wants them.
    assert [n.attrs.axes for n in moved] == [(0, 2, 3, 1), (0, 1, 2, 4, 5, 3)]
    data = {"x": rng.standard_normal((1, 3, 8, 8), dtype=np.float32)}
    np.testing.assert_array_equal(evaluate(before, data)[0], evaluate(after, data)[0])


def _is_data(node: Node) -> bool:
    """Whether the node depends on an input."""
    return node.op.name == "input" or any(_is_data(n) for n in node.inputs)


# ---------------------------------------------------------------- constants and windows


def test_filters_are_stored_in_the_order_they_are_read_in() -> None:
    rng = np.random.default_rng(1)
    filters = rng.standard_normal((8, 1, 3, 3), dtype=np.float32)
    y = Tensor.input("x", (1, 8, 6, 6)).conv(filters, groups=8)
    graph = Graph((y.node,))
    packed = pack_weights(run_passes(graph), one_width(32))
    moved = [n for n in packed.nodes if n.op.name == "permute" and not _is_data(n)]
    assert not moved
    data = {"x": rng.standard_normal((1, 8, 6, 6), dtype=np.float32)}
    np.testing.assert_array_equal(evaluate(graph, data)[0], evaluate(packed, data)[0])


@pytest.mark.parametrize("outputs", [80, 128])
def test_the_groups_of_a_convolution_are_packed_one_by_one(outputs: int) -> None:
    rng = np.random.default_rng(2)
    filters = rng.standard_normal((outputs, 3, 3, 3), dtype=np.float32)
    x = Tensor.input("x", (2, 6, 5, 5))
    graph = Graph((x.conv(filters, padding=1, groups=2).node,))
    packed = pack_weights(run_passes(graph), one_width(32))
    (weights,) = (n for n in packed.nodes if n.op.name == "stored" and n.type.rank > 2)
    assert weights.type.shape[-4:] == (2, 2, 27, 32)
    data = {"x": rng.standard_normal((2, 6, 5, 5), dtype=np.float32)}
    np.testing.assert_array_equal(evaluate(graph, data)[0], evaluate(packed, data)[0])


def test_a_matrix_for_every_batch_entry_is_packed() -> None:
    rng = np.random.default_rng(3)
    weights = rng.standard_normal((4, 7, 70), dtype=np.float32)
    x = Tensor.input("x", (4, 5, 7))
    y = x @ Tensor(weights)
    packed = pack_weights(run_passes(Graph((y.node,))), one_width(32))
    assert [n.type.shape for n in packed.nodes if n.op.name == "stored"] == [(4, 3, 7, 32)]
    data = rng.standard_normal((4, 5, 7), dtype=np.float32)
    np.testing.assert_allclose(y.prepare()(x=data), data @ weights, rtol=1e-5, atol=1e-5)


def test_narrow_weights_are_stored_in_the_order_they_are_read_in() -> None:
    weight = np.arange(12, dtype=np.float32).reshape(3, 4)
    y = Tensor.input("x", (5, 4)) @ Tensor(weight).T
    packed = pack_weights(run_passes(Graph((y.node,))), one_width(32))
    assert [n.op.name for n in packed.nodes] == ["input", "stored", "matmul"]
    stored = packed.nodes[1]
    np.testing.assert_array_equal(stored.op.reference(stored, (), {}), weight.T)


def test_a_reduction_of_what_has_no_operand_merges_its_axes() -> None:
    y = iota((3, 4, 5), 1).sum((0, 1))
    graph = Graph((y.node,))
    np.testing.assert_array_equal(evaluate(run_passes(graph), {})[0], [18] * 5)
    moved = parse_graph(
        "%0 = iota {shape=(3, 4, 5), axis=1, dtype=i64} : i64[3,4,5]\n"
        "%1 = reduce_sum %0 {axes=(0, 1)} : i64[1,1,5]\noutput %1"
    )
    merged = run_passes(moved, [merge_reduced_axes])
    assert [n.attrs.axes for n in merged.nodes if n.op.kind == "reduce"] == [(0,)]


def test_the_axes_of_a_window_stay_apart() -> None:
    """Merged, their index would be a quotient and a remainder."""
    y = Tensor.input("x", (1, 8, 6, 6)).exp().max_pool(2)
    reduces = [n for n in run_passes(Graph((y.node,))).nodes if n.op.kind == "reduce"]
    assert [n.attrs.axes for n in reduces] == [(3, 4)]

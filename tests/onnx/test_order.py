"""Models whose nodes come in an order in which they cannot be computed."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import semel
from semel.errors import ModelError

onnx = pytest.importorskip("onnx")

NESTED = """
    <ir_version: 8, opset_import: ["" : 21]>
    g (float[n] x, int64 trips) => (float[n] y) {
        a = Mul (x, two)
        b = Add (a, x)
        start = ReduceSum <keepdims: int = 0> (b)
        state = Loop (trips, yes, start) <body: graph = step
            (int64 i, bool goes, float before) => (bool go, float after) {
                go = Identity (goes)
                c = ReduceMax <keepdims: int = 0> (b)
                d = Sub (before, c)
                after = Div (d, two)
            }>
        y = Add (b, state)
    }
"""


def nested() -> Any:
    model = onnx.parser.parse_model(NESTED)
    for name, value in [("two", np.float32(2)), ("yes", np.array(True))]:
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    return model


def shuffled(graph: Any, rng: Random) -> None:
    """The same nodes in any order, those of bodies too."""
    nodes = list(graph.node)
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                shuffled(attribute.g, rng)
    del graph.node[:]
    graph.node.extend(rng.sample(nodes, len(nodes)))


@pytest.mark.parametrize("seed", range(4))
def test_nodes_in_any_order_are_sorted(seed: int) -> None:
    x = np.array([1.0, 2.0, -3.0], np.float32)
    want = semel.load(nested(), threads=1).run(x, np.int64(3))["y"]
    model = nested()
    shuffled(model.graph, Random(seed))
    before = model.SerializeToString()
    np.testing.assert_array_equal(semel.load(model, threads=1).run(x, np.int64(3))["y"], want)
    assert model.SerializeToString() == before, "the caller's model stays as it is"


def test_a_ring_is_refused() -> None:
    text = """<ir_version: 8, opset_import: ["" : 21]>
        g (float[n] x) => (float[n] y) { a = Add (x, b) \n b = Neg (a) \n y = Abs (b) }"""
    with pytest.raises(ModelError, match="'b' is used and nothing computes it"):
        semel.load(onnx.parser.parse_model(text))

"""Quantised models as exporters write them, against float64 and against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.peers.onnx_models import OnnxGraph
from benchmarks.peers.onnx_quantised import OnnxOps
from benchmarks.peers.semel_quantised import TensorOps
from benchmarks.quantised import QUANTISED, STEP, NumpyOps

from semel import Tensor
from semel.ir.graph import Graph
from semel.passes import run_passes

SHAPES = {"qdq_mobile": (1, 24, 9, 9), "qdq_ffn": (7, 384)}


@pytest.mark.parametrize("name", QUANTISED)
def test_a_quantised_model_has_the_steps_of_the_float_one(name: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    model, shape = QUANTISED[name][0], SHAPES[name]
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    output = model(TensorOps(), Tensor.input("x", shape))
    products = [n for n in run_passes(Graph((output.node,))).nodes if n.op.kind == "contract"]
    assert {n.type.dtype.name for n in products} == {"int32"}
    got = output.prepare()(x=x)
    graph = OnnxGraph({"x": x}, shape=shape)
    model(OnnxOps(graph), "x")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(graph.bytes(), options, providers=["CPUExecutionProvider"])
    for wanted in (model(NumpyOps(), x.astype(np.float64)), session.run(None, {"x": x})[0]):
        steps = np.abs(got - wanted) / STEP
        # A number halfway between two steps may be either, and so may what is made of it.
        assert steps.max() < 2.5
        assert (steps > 0.5).mean() < 0.02

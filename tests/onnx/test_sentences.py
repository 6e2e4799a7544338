"""MiniLM with its trained weights, exported here: the file that a user would have.

The graph is what exporters write of BERT: shape programs around each attention, a mask made of
numbers, an erf. Every size is a variable.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.models.checkpoints import INSTALL, minilm_folder, trained_minilm
from tests.models.test_trained_minilm import tokens

import semel
from semel.models.minilm import MINILM, build_minilm

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

pytestmark = pytest.mark.skipif(
    minilm_folder() is None, reason=f"the trained weights are not installed: {INSTALL}"
)

Array = np.ndarray[Any, Any]
WIDTH, HEADS = MINILM.width, MINILM.heads


class Exporter:
    """Nodes and initializers of a BERT encoder, in opset 17."""

    def __init__(self, weights: dict[str, Array]) -> None:
        self.weights = weights
        self.nodes: list[Any] = []
        self.tensors: dict[str, Any] = {}

    def weight(self, name: str) -> str:
        self.tensors[name] = onnx.numpy_helper.from_array(np.array(self.weights[name]), name)
        return name

    def constant(self, value: Any, dtype: str = "int64") -> str:
        name = f"constant_{len(self.tensors)}"
        self.tensors[name] = onnx.numpy_helper.from_array(np.array(value, dtype), name)
        return name

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"/{op}_{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def size(self, x: str, axis: int) -> str:
        """A size, as a vector of one: what a `Reshape` is made of."""
        size = self.add("Gather", self.add("Shape", x), self.constant(axis), axis=0)
        return self.add("Unsqueeze", size, self.constant([0]))

    def linear(self, x: str, name: str) -> str:
        weight = self.add("Transpose", self.weight(f"{name}.weight"), perm=[1, 0])
        return self.add("Add", self.weight(f"{name}.bias"), self.add("MatMul", x, weight))

    def norm(self, x: str, name: str) -> str:
        """As exporters wrote it before there was an operator."""
        centred = self.add("Sub", x, self.add("ReduceMean", x, axes=[-1]))
        square = self.add("Pow", centred, self.constant(2.0, "float32"))
        mean = self.add("ReduceMean", square, axes=[-1])
        root = self.add("Sqrt", self.add("Add", mean, self.constant(1e-12, "float32")))
        scaled = self.add("Mul", self.add("Div", centred, root), self.weight(f"{name}.weight"))
        return self.add("Add", scaled, self.weight(f"{name}.bias"))

    def heads(self, x: str, name: str, *perm: int) -> str:
        shape = [self.size(x, 0), self.size(x, 1)]
        shape += [self.constant([HEADS]), self.constant([WIDTH // HEADS])]
        split = self.add("Reshape", self.linear(x, name), self.add("Concat", *shape, axis=0))
        return self.add("Transpose", split, perm=perm)

    def layer(self, x: str, mask: str, name: str) -> str:
        own = f"{name}.attention.self"
        query, value = (self.heads(x, f"{own}.{part}", 0, 2, 1, 3) for part in ("query", "value"))
        scores = self.add("MatMul", query, self.heads(x, f"{own}.key", 0, 2, 3, 1))
        scale = self.constant((WIDTH // HEADS) ** 0.5, "float32")
        scores = self.add("Add", self.add("Div", scores, scale), mask)
        mixed = self.add("MatMul", self.add("Softmax", scores, axis=-1), value)
        mixed = self.add("Transpose", mixed, perm=[0, 2, 1, 3])
        shape = [self.size(mixed, 0), self.size(mixed, 1), self.constant([WIDTH])]
        mixed = self.add("Reshape", mixed, self.add("Concat", *shape, axis=0))
        out = self.linear(mixed, f"{name}.attention.output.dense")
        x = self.norm(self.add("Add", out, x), f"{name}.attention.output.LayerNorm")
        wide = self.linear(x, f"{name}.intermediate.dense")
        error = self.add("Erf", self.add("Div", wide, self.constant(2.0**0.5, "float32")))
        wide = self.add("Mul", wide, self.add("Add", error, self.constant(1.0, "float32")))
        wide = self.add("Mul", wide, self.constant(0.5, "float32"))
        out = self.linear(wide, f"{name}.output.dense")
        return self.norm(self.add("Add", out, x), f"{name}.output.LayerNorm")

    def model(self) -> Any:
        words, kinds, places = (
            self.weight(f"embeddings.{part}_embeddings.weight")
            for part in ("word", "token_type", "position")
        )
        x = self.add("Add", self.add("Gather", words, "input_ids"),
                     self.add("Gather", kinds, "token_type_ids"))  # fmt: skip
        numbers = self.constant([list(range(MINILM.positions))])
        ends = [self.constant([0]), self.size("input_ids", 1), self.constant([1])]
        place = self.add("Slice", numbers, *ends)
        x = self.norm(self.add("Add", x, self.add("Gather", places, place)), "embeddings.LayerNorm")
        mask = self.add("Unsqueeze", "attention_mask", self.constant([1]))
        mask = self.add("Cast", self.add("Unsqueeze", mask, self.constant([2])), to=1)
        mask = self.add("Sub", self.constant(1.0, "float32"), mask)
        lowest = self.constant(np.finfo(np.float32).min, "float32")
        mask = self.add("Mul", mask, lowest)
        for layer in range(MINILM.layers):
            x = self.layer(x, mask, f"encoder.layer.{layer}")
        self.nodes[-1].output[0] = "last_hidden_state"
        value = onnx.helper.make_tensor_value_info
        inputs = [value(name, 7, ["batch", "seq"])
                  for name in ("input_ids", "attention_mask", "token_type_ids")]  # fmt: skip
        outputs = [value("last_hidden_state", 1, ["batch", "seq", WIDTH])]
        graph = onnx.helper.make_graph(
            self.nodes, "minilm", inputs, outputs, list(self.tensors.values())
        )
        opsets = [onnx.helper.make_opsetid("", 17)]
        return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


SENTENCES = (
    ("That is a happy person", "That is a happy dog", "Today is a sunny day"),
    ("the quick brown fox jumps over the lazy dog, and nobody knows why it does so every day",),
)


@pytest.mark.slow
def test_an_exported_encoder() -> None:
    """Against ONNX Runtime and our own builder; the largest difference is 3e-6 of 5.5."""
    weights = trained_minilm()
    assert weights is not None
    proto = Exporter(weights).model()
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    compiled = semel.load(proto)
    ids, mask = (
        semel.Tensor.input(n, (semel.Variable("b", 1), semel.Variable("s", 1, 512)), "int64")
        for n in ("ids", "mask")
    )
    direct = build_minilm(ids, mask, weights).prepare()
    for sentences in SENTENCES:
        ids_now, mask_now = tokens(*sentences)
        feed = {"input_ids": ids_now, "attention_mask": mask_now}
        feed["token_type_ids"] = np.zeros_like(ids_now)
        (want,) = session.run(None, feed)
        found = compiled.run(feed)["last_hidden_state"]
        assert np.abs(found - want).max() <= 2e-5
        kept = mask_now.astype(bool)
        assert np.abs(found[kept] - direct(ids=ids_now, mask=mask_now)[kept]).max() <= 2e-5
    assert compiled.plan.compile_count == 1  # for all sizes

"""The matrix rows and models as ONNX graphs, the way exporters write them.

    row  -->  OnnxGraph: nodes, constants, inputs, the output's shape

Weights are folded and joined no further than PyTorch's exporter does it (batch norms into
convolutions); what else a runtime fuses is its own work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from benchmarks.checkpoints import bench_minilm_weights
from benchmarks.models import (
    CONVS,
    GEMMS,
    GEMV,
    LSTMS,
    PAST,
    SENTENCES,
    conv_weight,
    gemm_name,
    gemm_weights,
    lstm_weights,
)
from benchmarks.row import Array, Inputs
from semel.cli.onnx_file import OnnxNode, model
from semel.models.decoder import DECODER, decoder_weights
from semel.models.minilm import MINILM
from semel.models.resnet import EPSILON, RESNET50, resnet_weights


@dataclass(slots=True)
class OnnxGraph:
    """A graph under construction; every method adds a node and gives its output's name."""

    inputs: Inputs
    nodes: list[OnnxNode] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    shape: tuple[int, ...] = ()
    dtype: str = "float32"  # of the output

    def __call__(self, op: str, *inputs: str | Array, **attributes: Any) -> str:
        names = tuple(x if isinstance(x, str) else self.constant(x) for x in inputs)
        output = f"v{len(self.nodes)}"
        self.nodes.append(OnnxNode(op, names, output, attributes))
        return output

    def constant(self, array: Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array, order="C")  # a number stays one
        return name

    def bytes(self) -> bytes:
        """The file; the last node's output is the graph's."""
        shapes = {name: array.shape for name, array in self.inputs.items()}
        dtypes = {name: array.dtype.name for name, array in self.inputs.items()}
        output = self.nodes[-1].output
        outputs, dtypes[output] = {output: self.shape}, self.dtype
        return model(self.nodes, shapes, outputs, self.constants, dtypes=dtypes)


def gemm_graph(arrays: Inputs, size: tuple[int, int, int], gelu: bool) -> OnnxGraph:
    """x @ constant, perhaps with bias and gelu."""
    g = OnnxGraph(arrays, shape=(size[0], size[2]))
    matrix, bias = gemm_weights(size)
    y = g("MatMul", "x", matrix)
    if gelu:
        g("Gelu", g("Add", y, bias))
    return g


def conv_graph(arrays: Inputs, name: str) -> OnnxGraph:
    """One layer."""
    _, outputs, side, kernel, groups = CONVS[name]
    g = OnnxGraph(arrays, shape=(1, outputs, side, side))
    g("Conv", "x", conv_weight(name), pads=[kernel // 2] * 4, group=groups)
    return g


def lstm_graph(arrays: Inputs, name: str) -> OnnxGraph:
    """One layer in one direction."""
    steps, batch, _, hidden = LSTMS[name]
    g = OnnxGraph(arrays, shape=(steps, 1, batch, hidden))
    g("LSTM", "x", *lstm_weights(name), hidden_size=hidden)
    return g


def resnet_graph(arrays: Inputs) -> OnnxGraph:
    """ResNet-50 with its batch norms folded."""
    w = resnet_weights()
    g = OnnxGraph(arrays, shape=(1, RESNET50.classes))

    def conv(x: str, name: str, norm: str, stride: int = 1, padding: int = 0) -> str:
        scale = w[f"{norm}.weight"] / np.sqrt(w[f"{norm}.running_var"] + np.float32(EPSILON))
        kernel = w[f"{name}.weight"] * scale[:, None, None, None]
        bias = w[f"{norm}.bias"] - w[f"{norm}.running_mean"] * scale
        return g("Conv", x, kernel, bias, strides=[stride] * 2, pads=[padding] * 4)

    x = g("Relu", conv("x", "conv1", "bn1", 2, 3))
    x = g("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for stage, blocks in enumerate(RESNET50.stages):
        for block in range(blocks):
            name, stride = f"layer{stage + 1}.{block}", 2 if stage and not block else 1
            y = g("Relu", conv(x, f"{name}.conv1", f"{name}.bn1"))
            y = g("Relu", conv(y, f"{name}.conv2", f"{name}.bn2", stride, 1))
            y = conv(y, f"{name}.conv3", f"{name}.bn3")
            down = f"{name}.downsample"
            x = g("Relu", g("Add", y, x if block else conv(x, f"{down}.0", f"{down}.1", stride)))
    x = g("Flatten", g("GlobalAveragePool", x), axis=1)
    g("Gemm", x, w["fc.weight"], w["fc.bias"], transB=1)
    return g


def minilm_graph(arrays: Inputs) -> OnnxGraph:
    """The encoder with its length fixed: shapes are constants."""
    w, width, heads = bench_minilm_weights(), MINILM.width, MINILM.heads
    batch, length = arrays["ids"].shape
    g = OnnxGraph(arrays, shape=(batch, length, width))

    def linear(x: str, name: str) -> str:
        return g("Add", g("MatMul", x, w[f"{name}.weight"].T), w[f"{name}.bias"])

    def norm(x: str, name: str) -> str:
        scale, shift = w[f"{name}.weight"], w[f"{name}.bias"]
        return g("LayerNormalization", x, scale, shift, axis=-1, epsilon=1e-12)

    def split(x: str, order: Sequence[int]) -> str:
        shape = np.array([0, 0, heads, width // heads])
        return g("Transpose", g("Reshape", x, shape), perm=order)

    x = g("Gather", w["embeddings.word_embeddings.weight"], "ids")
    x = g("Add", x, w["embeddings.token_type_embeddings.weight"][0])
    x = g("Add", x, w["embeddings.position_embeddings.weight"][:length])
    x = norm(x, "embeddings.LayerNorm")
    kept = g("Cast", g("Unsqueeze", "mask", np.array([1, 2])), to=1)
    bias = g("Mul", g("Sub", np.array(1, np.float32), kept), np.array(-1e30, np.float32))
    for layer in range(MINILM.layers):
        name = f"encoder.layer.{layer}"
        prefix = f"{name}.attention.self"
        q = split(linear(x, f"{prefix}.query"), (0, 2, 1, 3))
        k = split(linear(x, f"{prefix}.key"), (0, 2, 3, 1))
        v = split(linear(x, f"{prefix}.value"), (0, 2, 1, 3))
        scale = np.array(math.sqrt(width / heads), np.float32)
        scores = g("Add", g("Div", g("MatMul", q, k), scale), bias)
        mixed = g("Transpose", g("MatMul", g("Softmax", scores, axis=-1), v), perm=(0, 2, 1, 3))
        mixed = g("Reshape", mixed, np.array([0, 0, width]))
        mixed = linear(mixed, f"{name}.attention.output.dense")
        x = norm(g("Add", mixed, x), f"{name}.attention.output.LayerNorm")
        wide = g("Gelu", linear(x, f"{name}.intermediate.dense"))
        y = linear(wide, f"{name}.output.dense")
        x = norm(g("Add", y, x), f"{name}.output.LayerNorm")
    return g


def decoder_inputs(arrays: Inputs) -> Inputs:
    """The cache layer by layer: one input each, so that none is cut out of another."""
    result = {"token": arrays["token"]}
    for name in ("keys", "values"):
        for layer, entry in enumerate(arrays[name]):
            result[f"{name}{layer}"] = np.ascontiguousarray(entry)
    return result


def decoder_graph(arrays: Inputs) -> OnnxGraph:
    """One step at the position behind the cache."""
    w, width, heads, depth = decoder_weights(), DECODER.width, DECODER.heads, DECODER.depth
    g = OnnxGraph(arrays, shape=(1, DECODER.vocabulary))
    half = depth // 2
    angle = PAST * DECODER.base ** (-np.arange(half) / half)
    cos, sin = (np.tile(f(angle), 2).astype(np.float32) for f in (np.cos, np.sin))
    last = np.array([-1])

    def linear(x: str, name: str) -> str:
        return g("MatMul", x, w[f"{name}.weight"].T)

    def norm(x: str, name: str) -> str:
        mean = g("ReduceMean", g("Mul", x, x), last, keepdims=1)
        root = g("Sqrt", g("Add", mean, np.array(1e-5, np.float32)))
        return g("Mul", g("Div", x, root), w[f"{name}.weight"])

    def turn(x: str) -> str:
        first = g("Slice", x, np.array([0]), np.array([half]), last)
        second = g("Slice", x, np.array([half]), np.array([depth]), last)
        turned = g("Concat", g("Neg", second), first, axis=-1)
        return g("Add", g("Mul", x, cos), g("Mul", turned, sin))

    x = g("Gather", w["model.embed_tokens.weight"], "token")
    for layer in range(DECODER.layers):
        name = f"model.layers.{layer}"
        y = norm(x, f"{name}.input_layernorm")
        shape = np.array([heads, 1, depth])
        q, k, v = (
            g("Reshape", linear(y, f"{name}.self_attn.{part}_proj"), shape) for part in "qkv"
        )
        keys = g("Concat", f"keys{layer}", turn(k), axis=1)
        values = g("Concat", f"values{layer}", v, axis=1)
        scores = g("MatMul", turn(q), g("Transpose", keys, perm=(0, 2, 1)))
        scores = g("Mul", scores, np.array(depth**-0.5, np.float32))
        mixed = g("MatMul", g("Softmax", scores, axis=-1), values)
        mixed = g("Reshape", mixed, np.array([1, width]))
        x = g("Add", x, linear(mixed, f"{name}.self_attn.o_proj"))
        y = norm(x, f"{name}.post_attention_layernorm")
        gate = linear(y, f"{name}.mlp.gate_proj")
        gate = g("Mul", gate, g("Sigmoid", gate))
        inner = g("Mul", gate, linear(y, f"{name}.mlp.up_proj"))
        x = g("Add", x, linear(inner, f"{name}.mlp.down_proj"))
    linear(norm(x, "model.norm"), "lm_head")
    return g


#: The graph of each row, from its inputs; the decoder's come in another form.
GRAPHS: dict[str, Callable[[Inputs], OnnxGraph]] = {
    **{
        gemm_name(size, gelu): partial(gemm_graph, size=size, gelu=gelu)
        for size in (*GEMMS, GEMV)
        for gelu in (False, True)
    },
    **{name: partial(conv_graph, name=name) for name in CONVS},
    **{name: partial(lstm_graph, name=name) for name in LSTMS},
    **dict.fromkeys(SENTENCES, minilm_graph),
    "resnet50": resnet_graph,
}

"""A step of GPT-2 as an ONNX graph with ONNX Runtime's own attention.

    row, inputs  --decode_graph-->  bytes of the file, inputs by name

GroupQueryAttention appends to caches that come in and go out in the same memory, so that a step
writes one row of each. FastGelu is the tanh form with the bias in it.
"""

from __future__ import annotations

import numpy as np

from benchmarks.decode import DECODES, decode_weights
from benchmarks.peers.onnx_models import OnnxGraph
from benchmarks.row import Array, Inputs
from semel.cli.onnx_file import OnnxNode, model

PAST = "past"
_OWN = "com.microsoft"


def decode_graph(name: str, arrays: Inputs) -> tuple[bytes, dict[str, Array]]:
    """The model, and what it is given: the token, lengths, and caches with room."""
    step, w = DECODES[name], decode_weights(name)
    layers, wide, heads = (step.size[key] for key in ("layers", "wide", "heads"))
    shape = (1, heads, step.size["room"], step.depth)
    given: dict[str, Array] = {
        "token": arrays["token"].reshape(1, 1),
        "position": np.array([[step.past]]),
        "before": np.array([[step.past]], np.int32),
        "total": np.array(step.past + 1, np.int32),
    }
    g = OnnxGraph({})

    def linear(x: str, name: str) -> str:
        return g("Add", g("MatMul", x, w[f"{name}.weight"]), w[f"{name}.bias"])

    def norm(x: str, name: str) -> str:
        scale, shift = w[f"{name}.weight"], w[f"{name}.bias"]
        return g("LayerNormalization", x, scale, shift, axis=-1, epsilon=1e-5)

    def attention(joined: str, layer: int) -> str:
        caches = []
        for part in ("keys", "values"):
            cache = np.zeros(shape, np.float32)
            cache[0, :, : step.past] = arrays[part][layer]
            caches.append(f"{part}{layer}")
            given[f"{PAST}.{caches[-1]}"] = cache
        inputs = (joined, "", "", *(f"{PAST}.{c}" for c in caches), "before", "total")
        output, others = f"mixed{layer}", tuple(f"present.{c}" for c in caches)
        counts = {"num_heads": heads, "kv_num_heads": heads}
        g.nodes.append(OnnxNode("GroupQueryAttention", inputs, output, counts, others, _OWN))
        return output

    def gelu(x: str, bias: Array, layer: int) -> str:
        output = f"gelu{layer}"
        g.nodes.append(OnnxNode("FastGelu", (x, g.constant(bias)), output, {}, (), _OWN))
        return output

    table = g.constant(w["wte.weight"])
    x = g("Add", g("Gather", table, "token"), g("Gather", w["wpe.weight"], "position"))
    for layer in range(layers):
        h = f"h.{layer}"
        joined = linear(norm(x, f"{h}.ln_1"), f"{h}.attn.c_attn")
        x = g("Add", x, linear(attention(joined, layer), f"{h}.attn.c_proj"))
        inner = g("MatMul", norm(x, f"{h}.ln_2"), w[f"{h}.mlp.c_fc.weight"])
        inner = gelu(inner, w[f"{h}.mlp.c_fc.bias"], layer)
        x = g("Add", x, linear(inner, f"{h}.mlp.c_proj"))
    last = g("Reshape", norm(x, "ln_f"), np.array([1, wide]))
    logits = g("MatMul", last, np.ascontiguousarray(w["wte.weight"].T))
    chosen = g("ArgMax", logits, axis=-1, keepdims=0)
    outputs = {chosen: (1,), logits: (1, step.size["vocabulary"])}
    outputs |= {key.replace(PAST, "present"): shape for key in given if key.startswith(PAST)}
    dtypes = {key: array.dtype.name for key, array in given.items()} | {chosen: "int64"}
    shapes = {key: array.shape for key, array in given.items()}
    return model(g.nodes, shapes, outputs, g.constants, dtypes=dtypes), given

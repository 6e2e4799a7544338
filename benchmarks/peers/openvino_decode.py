"""A step of GPT-2 as a stateful OpenVINO model.

    row, inputs  --decode_model-->  ov.Model with a variable for each cache

The caches are variables that the model reads, appends to and assigns, in the form in which the
CPU plugin makes one operation of it that appends in place: the look-up by `beam` belongs to it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino.op.util import Variable, VariableInfo

from benchmarks.decode import DECODES, decode_weights


def cache_name(part: str, layer: int) -> str:
    """The variable of a cache."""
    return f"{part}{layer}"


def decode_model(name: str) -> ov.Model:
    """Inputs are ids, position and beam; results the next token and the logits."""
    step, w = DECODES[name], decode_weights(name)
    layers, wide, heads = (step.size[key] for key in ("layers", "wide", "heads"))
    given = {key: ops.parameter([1], np.int64, name=key) for key in ("ids", "position")}
    beam = ops.parameter([1], np.int32, name="beam")
    sinks: list[Any] = []

    def number(value: int) -> Any:
        return ops.constant(value, np.int64)

    def linear(x: Any, name: str) -> Any:
        # A row for each output, as its own exporters write it.
        matrix = ops.constant(np.ascontiguousarray(w[f"{name}.weight"].T), shared_memory=True)
        product = ops.matmul(x, matrix, False, True)
        return ops.add(product, ops.constant(w[f"{name}.bias"]))

    def norm(x: Any, name: str) -> Any:
        scaled = ops.mvn(x, ops.constant(np.array([-1])), True, 1e-5, "inside_sqrt")
        scaled = ops.multiply(scaled, ops.constant(w[f"{name}.weight"]))
        return ops.add(scaled, ops.constant(w[f"{name}.bias"]))

    def row(table: Any, where: Any) -> Any:
        return ops.gather(table, where, number(0))

    def seen(part: str, layer: int, new: Any) -> Any:
        info = VariableInfo()
        info.data_shape = ov.PartialShape([1, heads, -1, step.depth])
        info.data_type, info.variable_id = ov.Type.f32, cache_name(part, layer)
        variable = Variable(info)
        first = ops.constant(np.zeros((1, heads, 0, step.depth), np.float32))
        old = ops.gather(ops.read_value(first, variable), beam, number(0))
        joined = ops.concat([old, new], 2)
        sinks.append(ops.assign(joined, variable))
        return joined

    table = ops.constant(w["wte.weight"], shared_memory=True)
    x = ops.add(row(table, given["ids"]), row(ops.constant(w["wpe.weight"]), given["position"]))
    split = ops.constant(np.array([3, 1, heads, 1, step.depth]))
    for layer in range(layers):
        h = f"h.{layer}"
        joined = ops.reshape(linear(norm(x, f"{h}.ln_1"), f"{h}.attn.c_attn"), split, False)
        q, k, v = (ops.gather(joined, number(i), number(0)) for i in range(3))
        keys, values = seen("keys", layer, k), seen("values", layer, v)
        mixed = ops.scaled_dot_product_attention(q, keys, values)
        mixed = ops.reshape(mixed, ops.constant(np.array([1, wide])), False)
        x = ops.add(x, linear(mixed, f"{h}.attn.c_proj"))
        inner = ops.gelu(linear(norm(x, f"{h}.ln_2"), f"{h}.mlp.c_fc"), "tanh")
        x = ops.add(x, linear(inner, f"{h}.mlp.c_proj"))
    logits = ops.matmul(norm(x, "ln_f"), table, False, True)
    chosen = ops.topk(logits, number(1), -1, "max", "none", "i64").output(1)
    results = [ops.result(chosen), ops.result(logits)]
    return ov.Model(results, sinks, [*given.values(), beam], "gpt2")

"""The demo's decoder with other libraries, at one moment: the same weights, caches and token.

    Moment  --open_peers-->  Peer...: a step, and the logits that it gives

Every one keeps its caches in its own best way and copies none of them in a step: NumPy and torch
write a row of arrays that have room, ONNX Runtime's own attention appends in memory that is bound
as what comes in and as what goes out. Those that are not installed are not here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np

from semel.cli.onnx_file import OnnxNode, model
from semel.models.gpt2 import Gpt2Size
from semel.models.weights import Array

EPSILON = 1e-5
_OWN = "com.microsoft"

Step = Callable[[], Array]


@dataclass(frozen=True, slots=True)
class Moment:
    """Before a step: `keys` and `values` [layers, heads, past, depth], and the token that comes."""

    weights: dict[str, Array]
    size: Gpt2Size
    keys: Array
    values: Array
    token: int

    @property
    def past(self) -> int:
        """How many tokens were seen."""
        return int(self.keys.shape[2])


@dataclass(frozen=True, slots=True)
class Peer:
    """A library by name and version; `step` does the same step again and gives its logits."""

    name: str
    version: str
    step: Step


#: Packages by the name that people know; NumPy is always here.
OTHERS = {"onnxruntime": "ONNX Runtime", "torch": "PyTorch"}


def installed() -> list[str]:
    """The packages of `OTHERS` that are here."""
    return [package for package in OTHERS if find_spec(package) is not None]


def open_peer(package: str, moment: Moment, threads: int) -> Peer:
    """One of them; its errors are its own."""
    make: dict[str, Callable[[Moment, int], Peer]] = {
        "numpy": _numpy,
        "onnxruntime": _onnxruntime,
        "torch": _torch,
    }
    return make[package](moment, threads)


# ---------------------------------------------------------------------------- NumPy


class NumpyDecoder:
    """The decoder as one writes it with NumPy: the yardstick of results, and a peer."""

    def __init__(self, weights: dict[str, Array], size: Gpt2Size) -> None:
        self.size, self.length = size, 0
        self._weights = weights
        self.keys, self.values = (
            np.zeros((size.layers, size.heads, size.room, size.depth), np.float32) for _ in "kv"
        )

    def run(self, ids: Array) -> Array:
        """The logits behind the last of these tokens, which follow those seen before."""
        w, begin, end = self._weights, self.length, self.length + len(ids)
        x = w["wte.weight"][ids] + w["wpe.weight"][begin:end]
        for layer in range(self.size.layers):
            h = f"h.{layer}"
            joined = self._linear(self._norm(x, f"{h}.ln_1"), f"{h}.attn.c_attn")
            mixed = self._attention(joined, layer, begin, end)
            x = x + self._linear(mixed, f"{h}.attn.c_proj")
            inner = _gelu(self._linear(self._norm(x, f"{h}.ln_2"), f"{h}.mlp.c_fc"))
            x = x + self._linear(inner, f"{h}.mlp.c_proj")
        self.length = end
        logits: Array = self._norm(x[-1:], "ln_f") @ w["wte.weight"].T
        return np.asarray(logits[0])

    def _attention(self, joined: Array, layer: int, begin: int, end: int) -> Array:
        size, count = self.size, end - begin
        parts = joined.reshape(count, 3, size.heads, size.depth).transpose(1, 2, 0, 3)
        self.keys[layer, :, begin:end], self.values[layer, :, begin:end] = parts[1], parts[2]
        keys, values = self.keys[layer, :, :end], self.values[layer, :, :end]
        scores = parts[0] @ keys.transpose(0, 2, 1) * np.float32(size.depth**-0.5)
        if count > 1:
            seen = np.arange(begin, end)[:, None] >= np.arange(end)
            scores = np.where(seen, scores, np.float32(-np.inf))
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        mixed: Array = (shares @ values).transpose(1, 0, 2).reshape(count, size.width)
        return mixed

    def _linear(self, x: Array, name: str) -> Array:
        found: Array = x @ self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]
        return found

    def _norm(self, x: Array, name: str) -> Array:
        distance = x - x.mean(-1, keepdims=True)
        scale = 1 / np.sqrt(np.square(distance).mean(-1, keepdims=True) + np.float32(EPSILON))
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        found: Array = distance * scale * weight + bias
        return found


def _gelu(x: Array) -> Array:
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    found: Array = np.float32(0.5) * x * (1 + np.tanh(inner))
    return found


def _numpy(moment: Moment, threads: int) -> Peer:
    decoder = NumpyDecoder(moment.weights, moment.size)
    decoder.keys[:, :, : moment.past] = moment.keys
    decoder.values[:, :, : moment.past] = moment.values
    token = np.array([moment.token])

    def step() -> Array:
        decoder.length = moment.past
        return decoder.run(token)

    return Peer("NumPy", np.__version__, step)


# ---------------------------------------------------------------------------- torch


def _torch(moment: Moment, threads: int) -> Peer:
    import torch  # a peer, where it is installed
    from torch.nn import functional

    torch.set_num_threads(threads)
    size, past = moment.size, moment.past
    # As its own layers have them: a row for each output.
    w = {
        name: torch.from_numpy(array.T.copy() if ".c_" in name and array.ndim == 2 else array)
        for name, array in moment.weights.items()
    }
    keys, values = (torch.zeros(size.layers, 1, size.heads, size.room, size.depth) for _ in "kv")
    keys[:, 0, :, :past] = torch.from_numpy(moment.keys)
    values[:, 0, :, :past] = torch.from_numpy(moment.values)
    token = torch.tensor([moment.token])

    def linear(x: Any, name: str) -> Any:
        return functional.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(x: Any, name: str) -> Any:
        return functional.layer_norm(
            x, (size.width,), w[f"{name}.weight"], w[f"{name}.bias"], EPSILON
        )

    def step() -> Array:
        with torch.inference_mode():
            x = functional.embedding(token, w["wte.weight"]) + w["wpe.weight"][past]
            for layer in range(size.layers):
                h = f"h.{layer}"
                joined = linear(norm(x, f"{h}.ln_1"), f"{h}.attn.c_attn")
                q, k, v = joined.view(3, 1, size.heads, 1, size.depth).unbind(0)
                keys[layer, :, :, past : past + 1] = k
                values[layer, :, :, past : past + 1] = v
                seen = [held[layer, :, :, : past + 1] for held in (keys, values)]
                mixed = functional.scaled_dot_product_attention(q, seen[0], seen[1])
                x = x + linear(mixed.reshape(1, size.width), f"{h}.attn.c_proj")
                inner = linear(norm(x, f"{h}.ln_2"), f"{h}.mlp.c_fc")
                x = x + linear(functional.gelu(inner, approximate="tanh"), f"{h}.mlp.c_proj")
            logits: Array = functional.linear(norm(x, "ln_f"), w["wte.weight"])[0].numpy()
        return logits

    return Peer("PyTorch", torch.__version__.partition("+")[0], step)


# ---------------------------------------------------------------------------- ONNX Runtime


def _onnxruntime(moment: Moment, threads: int) -> Peer:
    import onnxruntime  # a peer, where it is installed

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    graph = _OnnxGraph(moment)
    session = onnxruntime.InferenceSession(
        graph.bytes(), options, providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    for name, array in graph.given.items():
        value = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        binding.bind_ortvalue_input(name, value)
        if name in graph.caches:
            binding.bind_ortvalue_output(graph.caches[name], value)
    logits = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((1, moment.size.vocabulary), "f"))
    binding.bind_ortvalue_output(graph.logits, logits)

    def step() -> Array:
        session.run_with_iobinding(binding)
        found: Array = logits.numpy()[0]
        return found

    return Peer("ONNX Runtime", onnxruntime.__version__, step)


@dataclass
class _OnnxGraph:
    """The step as a file; `given` are its inputs, `caches` the outputs in their memory by input."""

    moment: Moment
    nodes: list[OnnxNode] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    given: dict[str, Array] = field(default_factory=dict)
    caches: dict[str, str] = field(default_factory=dict)
    logits: str = ""

    def __post_init__(self) -> None:
        past, w = self.moment.past, self.moment.weights
        self.given |= {
            "token": np.array([[self.moment.token]]),
            "position": np.array([[past]]),
            "before": np.array([[past]], np.int32),
            "total": np.array(past + 1, np.int32),
        }
        x = self(
            "Add", self("Gather", "wte.weight", "token"), self("Gather", "wpe.weight", "position")
        )
        for layer in range(self.moment.size.layers):
            h = f"h.{layer}"
            joined = self.linear(self.norm(x, f"{h}.ln_1"), f"{h}.attn.c_attn")
            x = self("Add", x, self.linear(self.attention(joined, layer), f"{h}.attn.c_proj"))
            inner = self("MatMul", self.norm(x, f"{h}.ln_2"), f"{h}.mlp.c_fc.weight")
            inner = self("FastGelu", inner, f"{h}.mlp.c_fc.bias", domain=_OWN)
            x = self("Add", x, self.linear(inner, f"{h}.mlp.c_proj"))
        self.constants |= {
            "last": np.array([1, self.moment.size.width]),
            "lm_head": np.ascontiguousarray(w["wte.weight"].T),
        }
        self.logits = self("MatMul", self("Reshape", self.norm(x, "ln_f"), "last"), "lm_head")

    def __call__(
        self, op: str, *inputs: str, domain: str = "", others: tuple[str, ...] = (), **attrs: Any
    ) -> str:
        """One more node; its output."""
        for name in inputs:
            if name in self.moment.weights:
                self.constants[name] = self.moment.weights[name]
        output = f"v{len(self.nodes)}"
        self.nodes.append(OnnxNode(op, inputs, output, attrs, others, domain))
        return output

    def linear(self, x: str, name: str) -> str:
        return self("Add", self("MatMul", x, f"{name}.weight"), f"{name}.bias")

    def norm(self, x: str, name: str) -> str:
        names = (f"{name}.weight", f"{name}.bias")
        return self("LayerNormalization", x, *names, axis=-1, epsilon=EPSILON)

    def attention(self, joined: str, layer: int) -> str:
        size, past = self.moment.size, self.moment.past
        ins = (f"keys{layer}", f"values{layer}")
        outs = (f"next.keys{layer}", f"next.values{layer}")
        for name, held in zip(ins, (self.moment.keys, self.moment.values), strict=True):
            cache = np.zeros((1, size.heads, size.room, size.depth), np.float32)
            cache[0, :, :past] = held[layer]
            self.given[name] = cache
        self.caches |= dict(zip(ins, outs, strict=True))
        return self(
            "GroupQueryAttention",
            *(joined, "", "", *ins, "before", "total"),
            domain=_OWN,
            others=outs,
            num_heads=size.heads,
            kv_num_heads=size.heads,
        )

    def bytes(self) -> bytes:
        """The file."""
        outputs = {self.logits: (1, self.moment.size.vocabulary)}
        outputs |= {out: self.given[name].shape for name, out in self.caches.items()}
        shapes = {name: array.shape for name, array in self.given.items()}
        dtypes = {name: array.dtype.name for name, array in self.given.items()}
        return model(self.nodes, shapes, outputs, self.constants, dtypes=dtypes)

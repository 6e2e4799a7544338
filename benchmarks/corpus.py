"""A fixed corpus of graphs: what each stage makes of them is compared from tree to tree.

    CORPUS[name]()  -->  tensors, or a Graph

Each is small, takes no longer than a second to compile, and shows one thing: a fusion, a cut, a
kind of row, a pass. They use what users use, and no more, so that older trees can build most of
them. To add one is free; to change one makes its history incomparable: add another instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import semel
from semel import Tensor, Variable

Array = np.ndarray[Any, Any]
Build = Callable[[], Any]
CORPUS: dict[str, Build] = {}


def graph(build: Build) -> Build:
    """Enter a graph under the name of the function that makes it."""
    CORPUS[build.__name__] = build
    return build


def _many(**builders: Build) -> None:
    CORPUS.update(builders)


def _drawn(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def _x(*shape: Any, name: str = "x", dtype: str = "float32") -> Tensor:
    return Tensor.input(name, shape, dtype)


def _n(most: int | None = 512, name: str = "n", least: int = 1) -> Variable:
    return Variable(name, least, most)


# ---------------------------------------------------------------- elementwise, reductions, movement

_many(
    add=lambda: _x(4) + _x(4, name="y"),
    chain=lambda: ((_x(1 << 20) * 2 + 1).tanh() * 3).exp(),
    broadcast=lambda: _x(_n(), 1, 64) * _x(64, name="y") + _x(7, 1, name="z"),
    halves=lambda: (_x(_n(), 96, dtype="float16") * 3 + 1).sigmoid(),
    brains=lambda: _x(_n(), 96, dtype="bfloat16").exp().sum(-1),
    doubles=lambda: (_x(_n(), 5, dtype="float64") ** 3).sqrt(),
    integers=lambda: (_x(_n(), dtype="int32") * 7) // (_x(_n(), name="y", dtype="int32") + 1),
    bytes_=lambda: (_x(33, 65, dtype="uint8").cast("float32") / 255).cast("float16"),
    choose=lambda: (_x(_n(), 9) > 0).where(_x(_n(), 9), _x(1, 9, name="y")),
    gelu=lambda: _x(1 << 18).gelu(),
    sum_all=lambda: _x(1 << 20).sum(),
    sum_rows=lambda: _x(_n(), 384).sum(-1),
    sum_columns=lambda: _x(_n(), 384).sum(0),
    mean_and_max=lambda: [_x(_n(), 48).mean(-1), _x(_n(), 48).max(-1)],
    argmax=lambda: _x(_n(), 1000).argmax(-1),
    cumsum=lambda: _x(_n(), 128).cumsum(0),
    softmax=lambda: _x(1024, 1024).softmax(-1),
    softmax_columns=lambda: _x(_n(), 64).softmax(0),
    layer_norm=lambda: _x(_n(), 768).layer_norm(Tensor(_drawn(768)), Tensor(_drawn(768, seed=1))),
    turned=lambda: _x(96, 64, 32).permute(2, 0, 1) + 1,
    padded=lambda: _x(_n(), 17).pad(((1, 2), (0, 3))) * 2,
    joined=lambda: semel.concat([_x(_n(), 8), _x(_n(), 8, name="y") + 1], 0),
    sliced=lambda: _x(_n(least=9), 32)[3:9, ::2].exp(),
    gathered=lambda: Tensor(_drawn(1000, 64))[_x(_n(), dtype="int64")] + 1,
    sorted_=lambda: _x(_n(), 100).sort(-1),
    top_k=lambda: _x(_n(), 100).topk(5)[0],
)


# ---------------------------------------------------------------- products and convolutions


def _linear(rows: Any, inputs: int, outputs: int) -> Tensor:
    return _x(rows, inputs) @ Tensor(_drawn(inputs, outputs))


_many(
    matmul=lambda: _x(64, 96) @ _x(96, 48, name="y"),
    matmul_weights=lambda: _linear(_n(), 384, 1536),
    matmul_wide=lambda: _linear(1, 1024, 1024),
    matmul_gelu=lambda: (_linear(_n(), 128, 256) + Tensor(_drawn(256))).gelu(),
    matmul_batches=lambda: _x(_n(), 4, 16, 32) @ _x(_n(), 4, 32, 16, name="y"),
    matmul_half=lambda: _x(_n(), 64, dtype="float16") @ _x(64, 32, name="y", dtype="float16"),
    small_chain=lambda: (_x(16, 16) @ _x(16, 16, name="y")).relu() @ _x(16, 16, name="z"),
    expert_rows=lambda: semel.einsum("bij,bjk->bik", _x(3, 5, 8), _x(3, 8, 4, name="y")),
    conv=lambda: _x(1, 16, 28, 28).conv2d(Tensor(_drawn(32, 16, 3, 3)), padding=1).relu(),
    conv_stride=lambda: _x(1, 3, 64, 64).conv2d(Tensor(_drawn(16, 3, 7, 7)), stride=2, padding=3),
    conv_point=lambda: _x(1, 64, 14, 14).conv2d(Tensor(_drawn(128, 64, 1, 1))),
    conv_depth=lambda: _x(1, 32, 14, 14).conv2d(Tensor(_drawn(32, 1, 3, 3)), padding=1, groups=32),
    conv_back=lambda: _x(1, 8, 9, 9).conv_transpose2d(Tensor(_drawn(8, 4, 2, 2)), stride=2),
    pooled=lambda: _x(1, 16, 32, 32).max_pool(3, stride=2, padding=1).sum(1),
)


# ---------------------------------------------------------------- attention and layers


@graph
def attention() -> Any:
    q, k, v = (_x(1, 4, _n(128, "t"), 32, name=name) for name in "qkv")
    return (q @ k.permute(0, 1, 3, 2) * 0.17).softmax(-1) @ v


@graph
def attention_masked() -> Any:
    t = _n(128, "t")
    q, k, v = (_x(1, 4, t, 32, name=name) for name in "qkv")
    mask = _x(1, 1, 1, t, name="mask")
    return (q @ k.permute(0, 1, 3, 2) * 0.17 + mask).softmax(-1) @ v


@graph
def attention_causal() -> Any:
    t = _n(128, "t")
    q, k, v = (_x(1, 4, t, 32, name=name) for name in "qkv")
    at = semel.arange(t)
    seen = (at.reshape(t, 1) >= at.reshape(1, t)).where(0.0, -1e9)
    return (q @ k.permute(0, 1, 3, 2) + seen).softmax(-1) @ v


@graph
def feed_forward() -> Any:
    x = _x(_n(), 64)
    hidden = (x @ Tensor(_drawn(64, 256)) + Tensor(_drawn(256))).gelu()
    y = x + hidden @ Tensor(_drawn(256, 64, seed=1))
    return y.layer_norm(Tensor(_drawn(64)), Tensor(_drawn(64, seed=2)))


@graph
def lstm() -> Any:
    w, r = Tensor(_drawn(1, 256, 32)), Tensor(_drawn(1, 256, 64))
    return _x(10, 1, 32).lstm(w, r)[0]


@graph
def repeated_layers() -> Any:
    x = y = _x(16, 32)
    w = Tensor(_drawn(32, 32))
    for _ in range(20):
        y = ((y @ w).softmax(-1) + x).tanh()
    return y


# ---------------------------------------------------------------- loops, conditions, late sizes


@graph
def loop() -> Any:
    x = _x(_n(64), 8)

    def body(step: Any, states: Any) -> Any:
        return [states[0] * 0.5 + x[step]], []

    return Tensor.loop(x.shape[0], [Tensor(np.zeros(8, np.float32))], body)[0][0]


@graph
def loop_in_loop() -> Any:
    w = Tensor(_drawn(8, 8))

    def inner(step: Any, states: Any) -> Any:
        return [(states[0] @ w).tanh()], []

    def outer(step: Any, states: Any) -> Any:
        return [Tensor.loop(3, [states[0]], inner)[0][0] + 1], []

    return Tensor.loop(5, [_x(4, 8)], outer)[0][0]


_many(
    while_bounded=lambda: semel.while_loop(
        lambda v: (v * v).sum() > 1.0, lambda v: v / 2, _x(16), 50
    ),
    while_open=lambda: semel.while_loop(lambda v: v.sum() > 1.0, lambda v: v / 2, _x(16)),
    cond=lambda: semel.cond(_x(name="p", dtype="bool"), lambda: _x(8) * 2, lambda: _x(8).exp()),
    masked=lambda: _x(_n())[_x(_n(), name="m", dtype="bool")].sum(),
    nonzero=lambda: semel.nonzero(_x(_n(), dtype="int64"))[0],
    unique=lambda: semel.unique(_x(_n(), dtype="int64")),
    random=lambda: semel.rand(64, key=semel.key(7)),
)


# ---------------------------------------------------------------- params, states, narrow numbers


@graph
def param() -> Any:
    w = Tensor.param("w", _drawn(96, 48))
    return (_x(_n(), 96) @ w + Tensor.param("b", _drawn(48))).relu()


@graph
def several_outputs() -> Any:
    x = _x(_n(), 24)
    exp = x.exp()
    return {"sum": exp.sum(-1), "scaled": exp * 2, "rows": x.max(0)}


@graph
def state() -> Any:
    g = semel.Graph("count")
    x, total = g.input("x", (8,)), g.state("total", (8,))
    g.output("y", total.replace(total + x) * 2)
    return g


@graph
def cache() -> Any:
    g = semel.Graph("attend")
    q, rows = g.input("q", (_n(64, "t"), 32)), g.state("rows", (256, 32))
    keys = rows.append(q)
    g.output("y", (q @ keys.T).softmax(-1) @ keys)
    return g


@graph
def quantised_linear() -> Any:
    scale, zero = 0.02, 128
    x = _x(_n(), 64).quantize_linear(scale, zero, dtype="uint8")
    w = Tensor(np.random.default_rng(0).integers(-99, 99, (64, 48)).astype(np.int8))
    made = x.dequantize_linear(scale, zero) @ w.dequantize_linear(0.01)
    return made.relu().quantize_linear(0.1, 0, dtype="uint8")


@graph
def byte_product() -> Any:
    w = Tensor(np.random.default_rng(1).integers(-99, 99, (64, 48)).astype(np.int8))
    return _x(_n(), 64, dtype="int8").cast("int32") @ w.cast("int32")


@graph
def narrow_weights() -> Any:
    w = Tensor(_drawn(256, 128)).cast("float8_e4m3fn")
    return _x(_n(), 256) @ w.cast("float32")


# ---------------------------------------------------------------- small models


@graph
def encoder() -> Any:
    from semel.models import minilm

    size = minilm.EncoderSize(layers=2, width=64, heads=4, hidden=128, vocabulary=100, positions=64)
    weights = {name: Tensor(a) for name, a in minilm.minilm_weights(size).items()}
    shape = (_n(4, "batch"), _n(64, "length"))
    ids, mask = (_x(*shape, name=name, dtype="int64") for name in ("ids", "mask"))
    return minilm.build_minilm(ids, mask, weights, size)


@graph
def residual_net() -> Any:
    from semel.models import resnet

    size = resnet.ResNetSize(stages=(1, 1, 1, 1), width=16, classes=10)
    weights = {name: Tensor(a) for name, a in resnet.resnet_weights(size).items()}
    return resnet.build_resnet(_x(1, 3, 64, 64), weights, size)


@graph
def decoder() -> Any:
    from semel.models import decoder as model

    size = model.DecoderSize(layers=2, width=64, heads=4, hidden=128, vocabulary=100)
    weights = {name: Tensor(a) for name, a in model.decoder_weights(size).items()}
    room = (2, 4, _n(64, "t"), 16)
    keys, values = (_x(*room, name=name) for name in ("keys", "values"))
    return list(model.build_decoder_step(_x(1, dtype="int64"), keys, values, weights, size))


@graph
def detector() -> Any:
    from benchmarks.detector import build_detector

    return build_detector(_x(1, 3, 64, 64, name="image"))

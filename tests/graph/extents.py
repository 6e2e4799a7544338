"""Graphs with a dim called n, for runs of the first n rows of larger arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import semel
from semel import Graph, Tensor

MOST = 12  #: what n is at most
Shape = tuple[Any, ...]
Array = np.ndarray[Any, Any]
#: Makes the outputs of a graph from its inputs, which have these shapes; "n" is the extent.
Case = tuple[dict[str, Shape], Callable[..., dict[str, Tensor]]]

_rng = np.random.default_rng(0)


def drawn(*shape: int) -> Array:
    return _rng.standard_normal(shape, dtype=np.float32)


_W, _SCALE, _KERNEL = drawn(16, 24), drawn(16), drawn(8, 3, 3, 3)


def _heads(x: Tensor) -> Tensor:
    return x.reshape(*x.shape[:2], 4, 4).permute(0, 2, 1, 3)


def _attention(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
    mixed = _heads(q).scaled_dot_product_attention(_heads(k), _heads(v))
    return {"y": mixed.permute(0, 2, 1, 3).reshape(*q.shape)}


def _encoder(x: Tensor) -> dict[str, Tensor]:
    normed = x.layer_norm(Tensor(_SCALE), Tensor(_SCALE))
    mixed = (normed @ Tensor(_W)).gelu() @ Tensor(_W.T) + x
    return {"hidden": mixed, "pooled": mixed.mean(1), "last": mixed[:, -1]}


CASES: dict[str, Case] = {
    "unary": ({"x": ("n",)}, lambda x: {"y": x.relu()}),
    "binary": ({"a": ("n",), "b": ("n",)}, lambda a, b: {"c": a + b}),
    "used twice": ({"x": ("n", 5)}, lambda x: {"y": x * x.flip(0)}),
    "copy": ({"x": (2, "n", 5)}, lambda x: {"y": x}),
    "mean over it": ({"x": ("n", 5)}, lambda x: {"y": x.mean(0), "z": x - x.mean(0)}),
    "softmax over it": ({"x": (3, "n", 5)}, lambda x: {"y": x.softmax(1)}),
    "softmax beside it": ({"x": (3, "n", 5)}, lambda x: {"y": x.softmax(-1)}),
    "last axis": ({"x": (3, "n")}, lambda x: {"y": x.softmax(-1), "z": x.sum(0)}),
    "both sides": ({"x": ("n", 3)}, lambda x: {"y": x @ x.T}),
    "matmul": ({"x": ("n", 16)}, lambda x: {"y": (x @ Tensor(_W)).gelu()}),
    "matmul of a batch": ({"x": (3, "n", 16)}, lambda x: {"y": x @ Tensor(_W)}),
    "matmul over it": ({"x": (5, "n"), "y": ("n", 6)}, lambda x, y: {"z": x @ y}),
    "attention": (
        dict.fromkeys("qkv", (2, 4, "n", 4)),
        lambda q, k, v: {"y": q.scaled_dot_product_attention(k, v)},
    ),
    "attention of rows": (dict.fromkeys("qkv", (2, "n", 16)), _attention),
    "convolution": (
        {"x": (2, 3, "n", 9)},
        lambda x: {"y": x.conv2d(Tensor(_KERNEL), padding=1)},
    ),
    "merged with another": (
        {"x": (3, "n", 5)},
        lambda x: {"y": x.exp().reshape(3 * x.shape[1], 5), "z": x.sum(0).reshape(-1) * 2},
    ),
    "concatenated along it": (
        {"x": ("n", 4), "y": ("n", 4)},
        lambda x, y: {"z": semel.concat([x, y], 0), "w": semel.concat([x + y, y], 1)},
    ),
    "without it": ({"x": ("n", 4), "b": (7,)}, lambda x, b: {"y": x[0] + 1, "z": b.relu()}),
    "products summed": (
        {"x": ("n", 5), "y": ("n", 5)},
        lambda x, y: {"p": (p := x * y), "s": p.sum(0), "t": p.T.sum(1)},
    ),
    "products summed in a view": (
        {"x": ("n", 5), "y": ("n", 5)},
        lambda x, y: {"p": (p := (x * y).T), "s": p.sum(1)},
    ),
    "output that others need": (
        {"x": ("n", 16)},
        lambda x: {
            "h": (h := (x @ Tensor(_W)).relu()),
            "mean": h.mean(0),
            "more": h * 2 + 1,
            "again": h,
        },
    ),
    "sorted": ({"x": ("n", 4)}, lambda x: {"y": x.sort(0)[0], "z": x.cumsum(0)}),
    "integers": ({"x": ("n", 4)}, lambda x: {"y": x.argmax(0), "z": x > 0, "w": x.cast("int8")}),
    "encoder": ({"x": (2, "n", 16)}, _encoder),
}


def build(name: str, n: Any = "n") -> Graph:
    """The graph of a case, with a dim of that name or of that size."""
    shapes, make = CASES[name]
    g = Graph("case")
    inputs = [g.input(key, at(shape, n)) for key, shape in shapes.items()]
    for key, value in make(*inputs).items():
        g.output(key, value)
    return g


def at(shape: Shape, n: Any) -> Shape:
    """The shape with a size in the place of n."""
    return tuple(n if size == "n" else size for size in shape)


def arrays(name: str, n: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Arrays with n rows, and the same in arrays of the largest shape, with NaN in the rest."""
    exact = {key: drawn(*at(shape, n)) for key, shape in CASES[name][0].items()}
    wide = {key: np.full(at(shape, MOST), np.nan, "f4") for key, shape in CASES[name][0].items()}
    for key, array in exact.items():
        wide[key][first(array)] = array
    return exact, wide


def first(array: Array) -> tuple[slice, ...]:
    """Where the elements of an array lie in a larger one."""
    return tuple(slice(0, size) for size in array.shape)


def listed(result: Any) -> list[Array]:
    return list(result) if isinstance(result, tuple) else [result]

"""What real models do with images whose axes lie in another order than they are read in.

    name  --PERMUTED_ROWS-->  Row

Peers read the same memory through the same permute; none gets a copy in its own order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.row import Array, Bar, Inputs, Row, any_row

_IMAGE = (1, 56, 56, 256)
FIRST = (0, 3, 1, 2)
LAST = (0, 2, 3, 1)
SPACE = (2, 3)
EPSILON = 1e-5

_AS_BEST = Bar("as the best peer", (("best", "", 1.0),))
#: Images and sequences whose sizes only a run knows, against those of a size.
ANY = "_any"
#: name: a shape, the order of its axes, and the shape that joins some of them.
JOINED: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "heads_joined": ((8, 12, 128, 64), (0, 2, 1, 3), (8, 128, 768)),
    "planes_joined": ((64, 96, 80), (0, 2, 1), (64, 7680)),
}


def _row(name: str, title: str, *shapes: tuple[int, ...], tolerance: float = 1e-5) -> Row:
    def make(rng: np.random.Generator) -> Inputs:
        return {
            n: rng.standard_normal(shape, dtype=np.float32)
            for n, shape in zip("xy", shapes, strict=False)
        }

    def reference(inputs: Inputs) -> Array:
        return REFERENCES[name.removesuffix(ANY)](
            *(array.astype(np.float64) for array in inputs.values())
        )

    return Row(name, title, "elementwise", make, reference, _AS_BEST, tolerance, statistic="p10")


def _join_rows(name: str) -> tuple[Row, Row]:
    shape, order, _ = JOINED[name]
    row = _row(name, f"[{','.join(map(str, shape))}] permuted by {order}, axes joined", shape)
    bar = Bar("1.05x the fixed sizes", (("times", name, 1.05),))
    return row, replace(row, name=name + ANY, title=f"{row.title}, any sizes", bar=bar)


def _joined(name: str) -> Callable[[Array], Array]:
    _, order, joined = JOINED[name]
    return lambda x: x.transpose(order).reshape(joined)


def _instance_norm(x: Array) -> Array:
    y = x.transpose(FIRST)
    distance = y - y.mean(SPACE, keepdims=True)
    scale = np.sqrt(np.square(distance).mean(SPACE, keepdims=True) + EPSILON)
    return np.asarray(distance / scale)


def _layer_norm(x: Array) -> Array:
    y = x.transpose(LAST)
    distance = y - y.mean(-1, keepdims=True)
    scale = np.sqrt(np.square(distance).mean(-1, keepdims=True) + EPSILON)
    return np.asarray(distance / scale)


def _max_pool(x: Array) -> Array:
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), SPACE)
    return np.asarray(windows[:, :, ::2, ::2].max((-1, -2)))


REFERENCES: dict[str, Callable[..., Array]] = {
    "turned": np.transpose,
    "turned_add": lambda x: x + x.T,
    "max_pool": _max_pool,
    "upsample_add": lambda x, y: x.repeat(2, 2).repeat(2, 3) + y,
    "permuted_mean": lambda x: x.transpose(FIRST).mean(SPACE),
    "permuted_squares": lambda x: np.square(x.transpose(0, 2, 1)).sum(-1),
    "instance_norm": _instance_norm,
    "permuted_layer_norm": _layer_norm,
    **{name: _joined(name) for name in JOINED},
}

_CHANNELS_FIRST = (1, 256, 56, 56)

_MAX_POOL = _row("max_pool", "max pool 3x3, stride 2, 64x112x112", (1, 64, 112, 112))

PERMUTED_ROWS = (
    *(row for name in JOINED for row in _join_rows(name)),
    _row("turned", "copy of [100000,12], transposed", (100_000, 12)),
    _row("turned_add", "x + x.T, [1000,1000]", (1000, 1000)),
    _MAX_POOL,
    any_row(_MAX_POOL),
    _row("upsample_add", "resize by 2, add, 96x80x80", (1, 96, 40, 40), (1, 96, 80, 80)),
    _row("permuted_mean", "mean over space, 56x56x256 read as NCHW", _IMAGE),
    _row("permuted_squares", "sum of squares, [64,128,256]", (64, 128, 256)),
    _row("instance_norm", "instance norm, 56x56x256 read as NCHW", _IMAGE, tolerance=1e-4),
    _row(
        "permuted_layer_norm",
        "layer norm, 256x56x56 read as NHWC",
        _CHANNELS_FIRST,
        tolerance=1e-4,
    ),
)

"""The slow paths in Semel's tensors: a function of the row's input for each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import semel
from benchmarks.slow_paths import (
    ACTIVATIONS,
    CHANNELS,
    EPSILON,
    GROUPS,
    SCALE,
    SORTS,
    STEPS,
    STRIDED,
    TOPKS,
    WIDE,
    ZERO,
    expand_weights,
    norm_numbers,
    strided_weight,
)
from semel import Tensor

Step = Callable[[Tensor], Tensor]


def _topk(k: int) -> Step:
    return lambda x: x.topk(k)[0]


def _life(x: Tensor) -> Tensor:
    turns = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx]
    first, *others = (x.roll(turn, (0, 1)) for turn in turns)
    around = first
    for other in others:
        around = around + other
    return (around.eq(3) | (x.eq(1) & around.eq(2))).cast("uint8")


def _rolls(x: Tensor) -> Tensor:
    return x.roll(1, 0) + x.roll(1, 1)


def _again(step: Step) -> Step:
    def run(x: Tensor) -> Tensor:
        states, _ = semel.loop(STEPS, [x], lambda i, held: ([step(held[0])], []))
        return states[0]

    return run


def _expand(activation: str) -> Step:
    def run(x: Tensor) -> Tensor:
        first, second = expand_weights()
        y: Tensor = getattr(x.conv2d(first), activation)()
        return y.conv2d(second, padding=2, groups=WIDE)

    return run


def _strided(is_last: bool) -> Step:
    def run(x: Tensor) -> Tensor:
        y = x.permute(0, 3, 1, 2) if is_last else x
        y = y.conv2d(strided_weight(), padding=1, stride=2, groups=CHANNELS)
        return y.permute(0, 2, 3, 1) if is_last else y

    return run


def _group_norm(x: Tensor) -> Tensor:
    """As importers read Reshape, InstanceNormalization, Reshape, Mul, Add."""
    rows = x.reshape(1, GROUPS, -1)
    distance = rows - rows.mean(-1, keepdims=True)
    rows = distance * (rows.var(-1, keepdims=True) + EPSILON).rsqrt()
    scale, shift = (a[:, None, None] for a in norm_numbers())
    return rows.reshape(x.shape) * scale + shift


STEPS_OF: dict[str, Step] = {
    **dict.fromkeys(SORTS, lambda x: x.sort(-1)),
    **{name: _topk(k) for name, (_, _, k) in TOPKS.items()},
    "life": _life,
    "life_loop": _again(_life),
    "rolls": _rolls,
    "rolls_loop": _again(_rolls),
    **{name: _expand(activation) for name, activation in ACTIVATIONS.items()},
    **{name: _strided(is_last) for name, is_last in STRIDED.items()},
    "group_norm": _group_norm,
    "quantise": lambda x: x.quantize_linear(np.float32(SCALE), np.uint8(ZERO)),
    "dequantise": lambda x: x.dequantize_linear(np.float32(SCALE), np.uint8(ZERO)),
}

"""The slow paths in PyTorch: a function of the row's input for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (everybody's name for it)

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

Step = Callable[[Any], Any]
_LAST = torch.channels_last


def _topk(k: int) -> Step:
    return lambda x: torch.topk(x, k).values


def _life(x: Any) -> Any:
    turns = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx]
    first, *others = (torch.roll(x, turn, (0, 1)) for turn in turns)
    around = first.clone()
    for other in others:
        around += other
    return ((around == 3) | ((x == 1) & (around == 2))).to(torch.uint8)


def _rolls(x: Any) -> Any:
    return torch.roll(x, 1, 0) + torch.roll(x, 1, 1)


def _again(step: Step) -> Step:
    def run(x: Any) -> Any:
        for _ in range(STEPS):
            x = step(x)
        return x

    return run


def _expand(activation: str) -> Step:
    first, second = (torch.from_numpy(a).contiguous(memory_format=_LAST) for a in expand_weights())
    act = getattr(F, activation)
    return lambda x: F.conv2d(act(F.conv2d(x, first)), second, padding=2, groups=WIDE)


def _strided(is_last: bool) -> Step:
    weight = torch.from_numpy(strided_weight())
    if not is_last:
        return lambda x: F.conv2d(x, weight, padding=1, stride=2, groups=CHANNELS)
    weight = weight.contiguous(memory_format=_LAST)

    def run(x: Any) -> Any:
        y = F.conv2d(x.permute(0, 3, 1, 2), weight, padding=1, stride=2, groups=CHANNELS)
        return y.permute(0, 2, 3, 1)

    return run


def _group_norm(x: Any) -> Any:
    return F.group_norm(x, GROUPS, *map(torch.from_numpy, norm_numbers()), EPSILON)


def _quantise(x: Any) -> Any:
    return torch.quantize_per_tensor(x, SCALE, ZERO, torch.quint8).int_repr()


STEPS_OF: dict[str, Callable[[], Step]] = {
    **{name: lambda: lambda x: torch.sort(x, -1).values for name in SORTS},
    **{name: lambda k=k: _topk(k) for name, (_, _, k) in TOPKS.items()},
    "life": lambda: _life,
    "life_loop": lambda: _again(_life),
    "rolls": lambda: _rolls,
    "rolls_loop": lambda: _again(_rolls),
    **{name: lambda act=act: _expand(act) for name, act in ACTIVATIONS.items()},
    **{name: lambda is_last=is_last: _strided(is_last) for name, is_last in STRIDED.items()},
    "group_norm": lambda: _group_norm,
    "quantise": lambda: _quantise,
    "dequantise": lambda: lambda x: (x.float() - ZERO) * SCALE,
}

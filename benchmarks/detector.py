"""A text detector as mobile OCR has them: what many different small kernels cost to prepare.

    image [1, 3, 32*h, 32*w]  --build_detector-->  map [1, 1, 32*h, 32*w]

Inverted bottlenecks (1x1, depthwise, squeeze and excite, 1x1) with hard swishes, then a feature
pyramid: each level is upsampled and added to the next. Nearly every layer has sizes of its own,
so that few kernels are shared. `repeats` of each block make the graph longer, and not wider.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from semel import Tensor, concat

Array = np.ndarray[Any, Any]

#: window, hidden channels, channels, squeeze and excite, hard swish, stride
_BLOCKS = (
    (3, 16, 16, False, False, 1),
    (3, 64, 24, False, False, 2),
    (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2),
    (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2),
    (3, 200, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 480, 112, True, True, 1),
    (5, 672, 160, True, True, 2),
    (5, 960, 160, True, True, 1),
)
_PYRAMID = 96


def build_detector(image: Tensor, repeats: int = 1) -> Tensor:
    """The map of an image; weights are drawn from one seed."""
    net = _Net(np.random.default_rng(0))
    x = net.conv(image, 16, 3, stride=2).hardswish()
    levels: list[Tensor] = []
    for window, hidden, channels, excite, swish, stride in _BLOCKS:
        if stride == 2:
            levels.append(x)
        for again in range(repeats):
            first = again == 0
            x = net.block(x, window, hidden, channels, excite, swish, stride if first else 1)
    levels.append(x)
    merged = net.pyramid(levels[1:])
    y = net.conv(merged, _PYRAMID // 4, 3).relu()
    y = net.upsampled(net.conv(net.upsampled(y, 2), _PYRAMID // 4, 3).relu(), 2)
    return net.conv(y, 1, 1).sigmoid()


def _channels(x: Tensor) -> int:
    count = x.shape[1]
    assert isinstance(count, int)
    return count


@dataclass(frozen=True, slots=True)
class _Net:
    rng: np.random.Generator

    def conv(
        self, x: Tensor, outputs: int, window: int, stride: int = 1, groups: int = 1
    ) -> Tensor:
        inputs = _channels(x) // groups
        weight = self.rng.standard_normal((outputs, inputs, window, window), dtype=np.float32)
        bias = self.rng.standard_normal(outputs, dtype=np.float32)
        scale = np.float32(1 / np.sqrt(inputs * window * window))
        return x.conv2d(weight * scale, bias, stride=stride, padding=window // 2, groups=groups)

    def block(
        self,
        x: Tensor,
        window: int,
        hidden: int,
        channels: int,
        excite: bool,
        swish: bool,
        stride: int,
    ) -> Tensor:
        """An inverted bottleneck, with a way around it where sizes are equal."""
        y = self.conv(x, hidden, 1)
        y = y.hardswish() if swish else y.relu()
        y = self.conv(y, hidden, window, stride, groups=hidden)
        y = y.hardswish() if swish else y.relu()
        y = self.excited(y) if excite else y
        y = self.conv(y, channels, 1)
        return y + x if stride == 1 and x.shape[1] == channels else y

    def excited(self, x: Tensor) -> Tensor:
        channels = _channels(x)
        mean = x.mean((2, 3), keepdims=True)
        squeezed = self.conv(mean, channels // 4, 1).relu()
        return x * self.conv(squeezed, channels, 1).hard_sigmoid()

    def upsampled(self, x: Tensor, factor: int) -> Tensor:
        """Each pixel `factor` times in both directions."""
        n, c, h, w = x.shape
        wide = x.reshape(n, c, h, 1, w, 1).expand(n, c, h, factor, w, factor)
        return wide.reshape(n, c, h * factor, w * factor)

    def pyramid(self, levels: list[Tensor]) -> Tensor:
        lateral = [self.conv(level, _PYRAMID, 1) for level in levels]
        summed = [lateral[-1]]
        for level in reversed(lateral[:-1]):
            summed.append(level + self.upsampled(summed[-1], 2))
        parts = [self.conv(level, _PYRAMID // 4, 3) for level in summed]
        last = len(parts) - 1
        grown = [self.upsampled(p, 2 ** (last - i)) for i, p in enumerate(parts)]
        return concat(grown, 1)

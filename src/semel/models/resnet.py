"""ResNet with bottleneck blocks (version 1.5: the 3x3 convolution has the stride).

    images float32[N, 3, H, W], weights by torchvision's names  -->  logits [N, classes]

The batch norms of inference are a scale and a shift per channel. `fold=True` multiplies the
scale into the kernels while building; `fold=False` leaves both to the compiler, which
computes them behind the convolution, on its registers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semel.models.weights import Array, Weights, draw, sealed
from semel.tensor.tensor import Tensor

EPSILON = 1e-5


@dataclass(frozen=True, slots=True)
class ResNetSize:
    """Blocks per stage, channels of the first stage, and classes."""

    stages: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    classes: int = 1000


RESNET50 = ResNetSize()
_EXPANSION = 4


def resnet_weights(size: ResNetSize = RESNET50, seed: int = 0) -> dict[str, Array]:
    """Arrays from a seed, under the names that checkpoints use."""
    shapes: dict[str, tuple[int, ...]] = {}

    def conv(name: str, norm: str, outputs: int, inputs: int, kernel: int) -> None:
        shapes[f"{name}.weight"] = (outputs, inputs, kernel, kernel)
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{norm}.{part}"] = (outputs,)

    conv("conv1", "bn1", size.width, 3, 7)
    inputs = size.width
    for stage, blocks in enumerate(size.stages):
        middle = size.width * 2**stage
        for block in range(blocks):
            prefix = f"layer{stage + 1}.{block}"
            conv(f"{prefix}.conv1", f"{prefix}.bn1", middle, inputs, 1)
            conv(f"{prefix}.conv2", f"{prefix}.bn2", middle, middle, 3)
            conv(f"{prefix}.conv3", f"{prefix}.bn3", middle * _EXPANSION, middle, 1)
            if block == 0:
                down = f"{prefix}.downsample"
                conv(f"{down}.0", f"{down}.1", middle * _EXPANSION, inputs, 1)
            inputs = middle * _EXPANSION
    shapes["fc.weight"], shapes["fc.bias"] = (size.classes, inputs), (size.classes,)
    return draw(shapes, seed)


def build_resnet(
    images: Tensor, weights: Weights, size: ResNetSize = RESNET50, *, fold: bool = True
) -> Tensor:
    """The logits of a batch of images."""
    net = _Net(weights, fold)
    x = net.conv(images, "conv1", "bn1", stride=2, padding=3).relu()
    x = x.max_pool(3, stride=2, padding=1)
    for stage, blocks in enumerate(size.stages):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            x = net.bottleneck(x, f"layer{stage + 1}.{block}", stride)
    pooled = x.global_avg_pool().flatten(1)
    return pooled.linear(weights["fc.weight"], weights["fc.bias"])


@dataclass(frozen=True, slots=True)
class _Net:
    weights: Weights
    fold: bool

    def bottleneck(self, x: Tensor, name: str, stride: int) -> Tensor:
        y = self.conv(x, f"{name}.conv1", f"{name}.bn1").relu()
        y = self.conv(y, f"{name}.conv2", f"{name}.bn2", stride, 1).relu()
        y = self.conv(y, f"{name}.conv3", f"{name}.bn3")
        down = f"{name}.downsample"
        if f"{down}.0.weight" in self.weights:
            x = self.conv(x, f"{down}.0", f"{down}.1", stride)
        return (y + x).relu()

    def conv(self, x: Tensor, name: str, norm: str, stride: int = 1, padding: int = 0) -> Tensor:
        """A convolution and its batch norm."""
        kernel = self.weights[f"{name}.weight"]
        parts = ("running_mean", "running_var", "weight", "bias")
        mean, variance, scale, shift = (self.weights[f"{norm}.{part}"] for part in parts)
        if not self.fold:
            y = x.conv2d(kernel, stride=stride, padding=padding)
            return y.batch_norm(mean, variance, scale, shift, eps=EPSILON)
        factor = (scale / np.sqrt(variance + np.float32(EPSILON))).astype(kernel.dtype)
        folded = kernel * factor[:, None, None, None]
        bias = sealed(shift - mean * factor)
        return x.conv2d(sealed(folded), bias, stride=stride, padding=padding)

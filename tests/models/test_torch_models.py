"""Image models of other shapes than ours, written once and run by both: PyTorch agrees.

    MobileNet v2   inverted residuals: pointwise, depthwise, pointwise, an addition
    U-Net          pooling down, transposed convolutions up, concatenations across
    ResNeXt        grouped 3x3 convolutions between pointwise ones

A model is a function of an `Ops`: the few operations it needs, for tensors of either library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import semel
from semel import Tensor, Variable

torch = pytest.importorskip("torch", reason="torch is not installed")
functional = torch.nn.functional

Model = Callable[["Ops", Any], Any]


@dataclass
class Ops:
    """What models are made of; weights come from a seed in the order they are asked for."""

    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(11))

    def weight(self, *shape: int) -> np.ndarray:
        scale = 1 / np.sqrt(np.prod(shape[1:]) if len(shape) > 1 else 4)
        return self.rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)

    def conv(self, x: Any, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> Any:
        w = self.weight(outputs, x.shape[1] // groups, kernel, kernel)
        b = self.weight(outputs)
        options = {"stride": stride, "padding": kernel // 2, "groups": groups}
        if isinstance(x, Tensor):
            return x.conv(w, b, **options)
        return functional.conv2d(x, torch.from_numpy(w), torch.from_numpy(b), **options)

    def up(self, x: Any, outputs: int, kernel: int) -> Any:
        """A transposed convolution that doubles the sides."""
        w = self.weight(x.shape[1], outputs, kernel, kernel)
        options = {"stride": 2, "padding": (kernel - 2) // 2}
        if isinstance(x, Tensor):
            return x.conv_transpose(w, **options)
        return functional.conv_transpose2d(x, torch.from_numpy(w), **options)

    def norm(self, x: Any) -> Any:
        mean, scale, shift = (self.weight(x.shape[1]) for _ in range(3))
        variance = np.abs(self.weight(x.shape[1])) + 0.5
        if isinstance(x, Tensor):
            return x.batch_norm(mean, variance, scale + 1, shift, eps=1e-5)
        arrays = (torch.from_numpy(a) for a in (mean, variance, scale + 1, shift))
        return functional.batch_norm(x, *arrays, eps=1e-5)

    def clip(self, x: Any) -> Any:
        return x.clip(0, 6)

    def pool(self, x: Any) -> Any:
        return x.max_pool(2) if isinstance(x, Tensor) else functional.max_pool2d(x, 2)

    def mean(self, x: Any) -> Any:
        return x.mean((2, 3))

    def concat(self, a: Any, b: Any) -> Any:
        return semel.concat([a, b], 1) if isinstance(a, Tensor) else torch.concat([a, b], 1)


def mobilenet(ops: Ops, x: Any) -> Any:
    x = ops.clip(ops.norm(ops.conv(x, 16, 3, 2)))
    for outputs, expansion, stride in ((8, 1, 1), (12, 6, 2), (12, 6, 1), (20, 6, 2), (20, 6, 1)):
        inputs = x.shape[1]
        y = x
        if expansion > 1:
            y = ops.clip(ops.norm(ops.conv(y, inputs * expansion, 1)))
        wide = y.shape[1]
        y = ops.clip(ops.norm(ops.conv(y, wide, 3, stride, groups=wide)))
        y = ops.norm(ops.conv(y, outputs, 1))
        x = x + y if stride == 1 and inputs == outputs else y
    return ops.mean(ops.clip(ops.conv(x, 70, 1)))


def unet(ops: Ops, x: Any) -> Any:
    def block(x: Any, outputs: int) -> Any:
        return ops.conv(ops.conv(x, outputs, 3).relu(), outputs, 3).relu()

    first = block(x, 8)
    second = block(ops.pool(first), 16)
    bottom = block(ops.pool(second), 40)
    right = block(ops.concat(ops.up(bottom, 16, 2), second), 16)
    left = block(ops.concat(ops.up(right, 8, 4), first), 8)
    return ops.conv(left, 2, 1).sigmoid()


def resnext(ops: Ops, x: Any) -> Any:
    x = ops.conv(x, 24, 3, 2).relu()
    for outputs, stride in ((24, 1), (80, 2), (80, 1)):
        y = ops.norm(ops.conv(x, outputs, 1)).relu()
        y = ops.norm(ops.conv(y, outputs, 3, stride, groups=4 if outputs == 24 else 2)).relu()
        y = ops.norm(ops.conv(y, outputs, 1))
        down = x if x.shape[1] == outputs and stride == 1 else ops.conv(x, outputs, 1, stride)
        x = (y + down).relu()
    return ops.mean(x)


MODELS: dict[str, Model] = {"mobilenet": mobilenet, "unet": unet, "resnext": resnext}


@pytest.mark.parametrize("name", MODELS)
def test_torch_agrees_at_every_batch_and_size(name: str) -> None:
    n, height, width = Variable("n", 1, 3), Variable("h", 8, 64), Variable("w", 8, 64)
    images = Tensor.input("images", (n, 3, 4 * height, 4 * width))
    # Symbolic sides of whole fours, so that what goes down twice comes up where it was.
    fits = {"unet": [(1, 32, 40), (2, 48, 32)]}.get(name, [(1, 32, 40), (2, 44, 36)])
    plan = MODELS[name](Ops(), images).prepare(threads=2)
    for batch, rows, columns in fits:
        data = np.random.default_rng(1).standard_normal((batch, 3, rows, columns), dtype=np.float32)
        with torch.no_grad():
            want = MODELS[name](Ops(), torch.from_numpy(data)).numpy()
        got = plan(images=data)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)
    assert plan.compile_count == 1


@pytest.mark.parametrize("name", MODELS)
def test_threads_and_fixed_sizes_give_the_same_bits(name: str) -> None:
    data = np.random.default_rng(2).standard_normal((2, 3, 32, 48), dtype=np.float32)
    n, width = Variable("n", 1, 3), Variable("w", 8, 64)
    shapes: list[tuple[Any, int]] = [
        (data.shape, 1), (data.shape, 2), ((n, 3, 32, 4 * width), 2)
    ]  # fmt: skip
    results = [
        MODELS[name](Ops(), Tensor.input("images", shape)).prepare(threads=threads)(images=data)
        for shape, threads in shapes
    ]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_chains_stay_channels_last() -> None:
    """Between the image and the result nothing is transposed in memory."""
    x = Tensor.input("images", (1, 3, 32, 32))
    for name in ("mobilenet", "resnext"):
        plan = MODELS[name](Ops(), x).prepare()
        made = [{n.split()[1] for n in op.notes.nodes} for op in plan.prepared_kernels]
        moved = [ops for ops in made if "permute" in ops and ops <= {"permute", "reshape", "slice"}]
        assert not moved, (name, made)

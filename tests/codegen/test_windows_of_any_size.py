"""Windows over planes whose height and width only the run knows: rows end with a whole vector that
computes some places once more, and nothing outside of the buffers is touched."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from tests.codegen.lowering import lower_graph, run_by_interpreter, run_kernels
from tests.codegen.machine import Native, runnable_targets
from tests.ops.windows_reference import np_conv, np_pool

from semel import Tensor, Variable

Net = Callable[[Tensor], Tensor]
CHANNELS = 3


def data(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def weight(side: int) -> np.ndarray:
    return data(side, CHANNELS, 1, side, side)


def depthwise(side: int, stride: int, padding: int, dilation: int = 1) -> Net:
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": CHANNELS}
    return lambda x: x.conv2d(Tensor(weight(side)), **options)


def uneven(x: Tensor) -> Tensor:
    """More padding than windows need, and not the same on all sides."""
    return depthwise(3, 2, 0)(x.pad(((0, 0), (0, 0), (5, 1), (9, 6))))


NETS: dict[str, Net] = {
    "3x3": depthwise(3, 1, 1),
    "3x3, stride 2": depthwise(3, 2, 1),
    "5x5": depthwise(5, 1, 2),
    "5x5, stride 3": depthwise(5, 3, 2),
    "7x7, stride 4": depthwise(7, 4, 3),
    "3x3, dilated": depthwise(3, 2, 3, 3),
    "much padding": depthwise(3, 1, 20),
    "uneven": uneven,
    "very uneven": lambda x: depthwise(5, 1, 0)(x.pad(((0, 0), (0, 0), (7, 2), (23, 11)))),
    "fewer than the padding": lambda x: depthwise(3, 3, 0)(x.pad(((0, 0), (0, 0), (1, 4), (6, 5)))),
    "padded twice": lambda x: depthwise(3, 2, 2)(
        (x.pad(((0, 0), (0, 0), (1, 2), (2, 1))) + 1).relu()
    ),
    "max pool": lambda x: x.max_pool(3, 2, 1),
    "max pool of what lies there": lambda x: x.max_pool(2, 2),
    "average pool": lambda x: x.avg_pool(3, 1, 1),
    "of an activation, and added": lambda x: depthwise(3, 1, 1)(x.hardswish()) + x,
}
HEIGHTS = (1, 3, 4, 7, 30)
WIDTHS = (1, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 64, 65, 130)


def at_least(name: str) -> int:
    """The least height and width that the windows fit into."""
    return 2 if name == "max pool of what lies there" else 1


def any_size(name: str) -> Tensor:
    least = at_least(name)
    shape = (2, CHANNELS, Variable("h", least, None), Variable("w", least, None))
    return NETS[name](Tensor.input("x", shape))


def sizes(name: str) -> list[tuple[int, int]]:
    return [size for size in product(HEIGHTS, WIDTHS) if min(size) >= at_least(name)]


@pytest.mark.parametrize("name", NETS)
def test_any_size_gives_the_bits_of_fixed_sizes(name: str) -> None:
    plan = any_size(name).prepare(threads=1)
    for height, width in [(2, 2), (7, 9), (5, 16), (13, 17), (8, 33), (4, 66), (70, 130)]:
        x = data(1, 2, CHANNELS, height, width)
        fixed = NETS[name](Tensor.input("x", x.shape)).prepare(threads=1)
        np.testing.assert_array_equal(plan(x=x), fixed(x=x))


@pytest.mark.parametrize("name", NETS)
def test_every_machine_gives_the_same_bits(name: str) -> None:
    runs = []
    for target in runnable_targets().values():
        graph, kernels = lower_graph([any_size(name)], target)
        natives = {lowered.kernel.name: Native(lowered.kernel, target) for lowered in kernels}
        runs.append((graph, kernels, lambda k, b, v, n=natives: n[k.name].run(b, v)))
    for height, width in sizes(name):
        x, values = data(2, 2, CHANNELS, height, width), {"h": height, "w": width}
        first, *others = (run_kernels(g, k, {"x": x}, values, run) for g, k, run in runs)
        for other in others:
            np.testing.assert_array_equal(other, first)


@pytest.mark.parametrize("name", NETS)
def test_what_kernels_say_is_what_machines_do(name: str) -> None:
    target = next(iter(runnable_targets().values()))
    graph, kernels = lower_graph([any_size(name)], target)
    natives = {lowered.kernel.name: Native(lowered.kernel, target) for lowered in kernels}
    for height, width in [(2, 5), (5, 19)]:
        x, values = data(3, 2, CHANNELS, height, width), {"h": height, "w": width}
        got = run_kernels(
            graph, kernels, {"x": x}, values, lambda k, b, v: natives[k.name].run(b, v)
        )
        want = run_kernels(graph, kernels, {"x": x}, values, run_by_interpreter)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("side", [3, 5, 7])
@pytest.mark.parametrize("stride", [1, 2, 3, 4])
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_convolutions_of_any_size_are_right(side: int, stride: int, target: str) -> None:
    shape = (2, CHANNELS, Variable("h", 1, None), Variable("w", 1, None))
    net = depthwise(side, stride, side // 2)
    plan = net(Tensor.input("x", shape)).prepare(threads=2, target=target)
    for height, width in product((1, 6, 29), WIDTHS):
        x = data(4, 2, CHANNELS, height, width)
        want = np_conv(
            x.astype(np.float64), weight(side).astype(np.float64), None, stride, side // 2, 1,
            CHANNELS,
        )  # fmt: skip
        np.testing.assert_allclose(plan(x=x), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "float64", "uint8", "int32"])
def test_pools_of_other_dtypes_and_any_size(dtype: str) -> None:
    x = Tensor.input("x", (2, CHANNELS, Variable("h", 1, None), Variable("w", 1, None)), dtype)
    plan = x.max_pool(3, 2, 1).prepare()
    for height, width in product((1, 9), WIDTHS):
        image = (data(5, 2, CHANNELS, height, width) * 50).astype(np.int8).astype(dtype)
        np.testing.assert_array_equal(plan(x=image), np_pool("max", image, 3, 2, 1))


def test_no_images_at_all() -> None:
    shape = (Variable("n", 0, None), CHANNELS, Variable("h", 1, None), Variable("w", 1, None))
    plan = depthwise(3, 2, 1)(Tensor.input("x", shape)).prepare()
    assert plan(x=data(6, 0, CHANNELS, 40, 50)).shape == (0, CHANNELS, 20, 25)


FENCED = """
import sys
import numpy as np
from tests.codegen.guarded import Fence
from tests.codegen.lowering import lower_graph, run_kernels
from tests.codegen.machine import Native, runnable_targets
from tests.codegen.test_windows_of_any_size import CHANNELS, any_size, data, sizes

name = sys.argv[1]
for target in runnable_targets().values():
    graph, kernels = lower_graph([any_size(name)], target)
    natives = {lowered.kernel.name: Native(lowered.kernel, target) for lowered in kernels}
    for height, width in sizes(name):
        for at_end in (True, False):
            def run(kernel, buffers, values):
                fences = [Fence(b, at_end=at_end) for b in buffers]
                failed = natives[kernel.name].run([f.array for f in fences], values)
                for buffer, fence in zip(buffers, fences, strict=True):
                    buffer[:] = fence.array
                return failed

            x, values = data(7, 2, CHANNELS, height, width), {"h": height, "w": width}
            run_kernels(graph, kernels, {"x": x}, values, run)
"""


@pytest.mark.parametrize("name", NETS)
def test_nothing_outside_of_the_buffers_is_touched(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FENCED, name],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]

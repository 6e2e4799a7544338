"""A masked load that loads nothing has the address of its buffer.

One whose lanes are all idle loads nothing, but where its page is not there it costs hundreds of
cycles, and whether it is there is luck: padding may lie anywhere beside a block.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from tests.codegen.lowering import lower_graph

from semel import Tensor
from semel.codegen.emit import emit_kernel
from semel.devices import choose_target
from semel.ir.target import Target, named_target

_MASKED = re.compile(r"@llvm\.masked\.load[^(]*\(ptr align \d+ (%[\w.]+),")


def _weights(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def _depthwise(x: Tensor) -> Tensor:
    return x.conv2d(_weights(32, 1, 5, 5), padding=2, groups=32)


def _strided(x: Tensor) -> Tensor:
    return x.conv2d(_weights(32, 1, 3, 3), padding=1, stride=2, groups=32)


CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "depthwise": _depthwise,
    "strided depthwise": _strided,
    "depthwise of a sum": lambda x: _depthwise(x + 1),
    "channels last": lambda x: _depthwise(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1),
    "pool": lambda x: x.max_pool(3, stride=1, padding=1),
    "pad": lambda x: x.pad(((0, 0), (0, 0), (3, 5), (4, 4))) * 2,
    "shifted": lambda x: x.pad(((0, 0), (0, 0), (0, 0), (8, 0)))[:, :, :, :32] + x,
    "transposed": lambda x: x.pad(((0, 0), (0, 0), (0, 0), (8, 8))).permute(0, 1, 3, 2) + 0,
}


@pytest.mark.parametrize("level", ["native", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_loaded_from_outside(case: str, level: str) -> None:
    target: Target = choose_target("cpu") if level == "native" else named_target(level)
    x = Tensor.input("x", (2, 32, 32, 32))
    _, kernels = lower_graph([CASES[case](x)], target)
    for lowered in kernels:
        text = emit_kernel(lowered.kernel, target, "k")
        for pointer in _MASKED.findall(text):
            made = re.search(rf"^  {pointer} = getelementptr .* i64 (%[\w.]+)$", text, re.M)
            assert made and f"\n  {made[1]} = select i1 " in text, (
                f"{lowered.kernel.name}: {pointer} of a masked load may lie anywhere"
            )

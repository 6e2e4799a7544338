"""Loops whose rows lie nowhere in order are hidden from LLVM's search for pointers to step."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
from tests.codegen.lowering import lower_graph

from semel import Tensor, Variable
from semel.codegen.emit import emit_kernel
from semel.codegen.scalar import counted_loops
from semel.ir.target import named_target


def _enlarged() -> Tensor:
    """A convolution of an image that is enlarged and padded on the way, of any size."""
    height, width = Variable("h", 1, 64), Variable("w", 1, 64)
    x = Tensor.input("x", (1, height, width, 16))
    wide = x.reshape(1, height, 1, width, 1, 16).expand(1, height, 2, width, 2, 16)
    image = wide.reshape(1, 2 * height, 2 * width, 16).permute(0, 3, 1, 2)
    w = np.random.default_rng(0).standard_normal((24, 16, 3, 3)).astype(np.float32)
    return image.conv2d(Tensor(w), padding=1).permute(0, 2, 3, 1)


def _loops() -> Iterator[list[str]]:
    """The lines of each loop of its kernel that multiplies."""
    _, kernels = lower_graph([_enlarged()], named_target("x86-64-v3"))
    for lowered in kernels:
        text = emit_kernel(lowered.kernel, named_target("x86-64-v3"), "k")
        for block in re.split(r"^loop_\d+:\n", text, flags=re.M)[1:]:
            lines = re.split(r"^\w+:\n", block, flags=re.M)[0].splitlines()
            if any("@llvm.fma" in line for line in lines):
                yield lines


def _are_sums(lines: list[str]) -> int:
    return sum(" i64 " in line and "getelementptr" not in line for line in lines)


def test_loops_of_many_integers_are_hidden() -> None:
    loops = list(_loops())
    many = [lines for lines in loops if _are_sums(lines) > 80]
    assert many
    assert all(any(" freeze i64 " in line for line in lines) for lines in many)


def test_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted_loops, "_MANY_SUMS", 1 << 20)
    assert not any(" freeze i64 " in line for lines in _loops() for line in lines)

"""Loops whose rows lie nowhere in order are hidden from LLVM's search for pointers to step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.codegen.lowering import lower_graph

from semel import Tensor, Variable, config
from semel.codegen.emit import emit_kernel
from semel.codegen.scalar import counted_loops
from semel.compiler.known_kernels import known_kernels
from semel.compiler.programs import forget_programs
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


def _is_hidden(lines: list[str]) -> bool:
    return any(" freeze i64 " in line for line in lines)


def test_loops_of_few_integers_are_not_hidden() -> None:
    assert not any(map(_is_hidden, _loops()))


def test_loops_of_many_integers_are_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    image = np.random.default_rng(1).standard_normal((1, 5, 7, 16)).astype(np.float32)
    plain = _enlarged().prepare()(x=image)
    monkeypatch.setattr(counted_loops, "_MANY_SUMS", 4)
    assert any(map(_is_hidden, _loops()))
    forget_programs()
    known_kernels.forget()
    with config.override(cache_dir=tmp_path):
        plan = _enlarged().prepare()
    np.testing.assert_array_equal(plan(x=image), plain)

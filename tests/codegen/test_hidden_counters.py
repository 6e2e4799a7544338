"""Loops are hidden from LLVM's search for pointers to step, and rows are no negative numbers."""

from __future__ import annotations

import re

import numpy as np
from tests.codegen.lowering import lower_graph

from semel import Tensor, Variable
from semel.codegen.emit import emit_kernel
from semel.ir.target import named_target


def _enlarged() -> Tensor:
    """A convolution of an image that is enlarged and padded on the way, of any size."""
    height, width = Variable("h", 1, 64), Variable("w", 1, 64)
    x = Tensor.input("x", (1, height, width, 16))
    wide = x.reshape(1, height, 1, width, 1, 16).expand(1, height, 2, width, 2, 16)
    image = wide.reshape(1, 2 * height, 2 * width, 16).permute(0, 3, 1, 2)
    w = np.random.default_rng(0).standard_normal((24, 16, 3, 3)).astype(np.float32)
    return image.conv2d(Tensor(w), padding=1).permute(0, 2, 3, 1)


def _texts(tensor: Tensor) -> list[str]:
    target = named_target("x86-64-v3")
    _, kernels = lower_graph([tensor], target)
    return [emit_kernel(lowered.kernel, target, "k") for lowered in kernels]


def test_every_counter_is_hidden() -> None:
    for text in _texts(_enlarged()):
        counters = re.findall(r"^loop_\d+:\n  (%\S+) = phi i64", text, flags=re.M)
        assert counters
        for counter in counters:
            uses = re.findall(rf"^.*{re.escape(counter)}\b.*$", text, flags=re.M)
            # its phi, the sum that is frozen, and the next number
            assert len(uses) == 3, uses


def test_rows_of_any_number_are_divided_as_they_are() -> None:
    height, width = Variable("h", 3, 64), Variable("w", 3, 64)
    x = Tensor.input("x", (1, height, width, 16)).permute(0, 3, 1, 2)
    texts = _texts(
        x.conv2d(Tensor(np.ones((24, 16, 3, 3), np.float32)), padding=1).permute(0, 2, 3, 1)
    )
    assert any("urem" in text for text in texts)
    assert not any("srem" in text for text in texts)  # with the corner cases of signs

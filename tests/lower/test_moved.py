"""Kernels whose buffers are moved to other memory: everything that names a buffer follows."""

from __future__ import annotations

from semel.ir.types import INT8, INT32
from semel.kernel import ir
from semel.kernel.ir import Buffer
from semel.kernel.rewrite import move_buffers


def test_blocks_of_words_move_with_their_buffers() -> None:
    sums, staged = Buffer("s0", INT32, 256, "s"), Buffer("s1", INT8, 64, "s")
    weights, elsewhere = Buffer("b1", INT8, 64, "r"), Buffer("b0", INT8, 128, "r")
    dots = ir.BlockDot(
        ir.Block(sums, 0, 16), ir.Block(staged, 4, 64), ir.Block(weights, 2, 64), 1, 16, 16, 16
    )
    (moved,) = move_buffers((dots,), {"b1": [(elsewhere, 8)]})
    assert isinstance(moved, ir.BlockDot)
    assert moved.right == ir.Block(elsewhere, 10, 64)
    assert (moved.into, moved.left) == (dots.into, dots.left)

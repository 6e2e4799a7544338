"""Random numbers that kernels draw: the key comes with the run, so that nothing folds."""

from __future__ import annotations

import numpy as np
import pytest

import semel
from semel import Tensor
from semel.ir.graph import make_node
from semel.ops.attrs import RandomBitsAttrs
from semel.ops.evaluate import evaluate_node
from semel.tensor.handle import wrap

#: The first word of Philox4x32-10 at counter 0 and key 0, as its authors publish it.
KNOWN = 0x6627E8D5


def _drawn(key: np.ndarray, count: int) -> np.ndarray:
    given = Tensor.input("key", (2,), "uint32")
    node = make_node("random_bits", (given.node,), RandomBitsAttrs((count,)))
    return np.asarray(semel.prepare(wrap(node))(key=key))


@pytest.mark.parametrize("key", [(0, 0), (1, 0), (0, 1), (0xFFFFFFFF, 0xFFFFFFFF), (7, 123456789)])
def test_kernels_draw_what_the_reference_draws(key: tuple[int, int]) -> None:
    words = np.array(key, np.uint32)
    leaf = Tensor(words).node
    node = make_node("random_bits", (leaf,), RandomBitsAttrs((1000,)))
    got = _drawn(words, 1000)
    np.testing.assert_array_equal(got, evaluate_node(node, (words,), {}))
    assert key != (0, 0) or got[0] == KNOWN

"""Random graphs over batches of rows: with an extent they give what they give without."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from tests.graph.extents import drawn, first, listed

import semel
from semel import Graph, Tensor
from semel.ir.text import format_graph

BATCH, MOST, WIDTH = 2, 7, 4
_SQUARE = Tensor(np.linspace(-1, 1, WIDTH * WIDTH, dtype=np.float32).reshape(WIDTH, WIDTH))
_ORDER = Tensor(np.array([2, 0, 3, 1]))


class Drawn:
    """Values [batch, n, width] of a graph; all stay small."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.graph = g = Graph("drawn")
        self.values = [g.input(name, (BATCH, "n", WIDTH)) for name in ("x", "y")]
        self.other = g.input("z", (WIDTH,))
        self.n = self.values[0].shape[1]
        for _ in range(draw(st.integers(1, 6))):
            self.values.append(self.one())
        for k in range(draw(st.integers(1, 3))):
            g.output(f"o{k}", self.result())

    def pick(self) -> Tensor:
        found: Tensor = self.draw(st.sampled_from(self.values))
        return found

    def one(self) -> Tensor:
        a, b = self.pick(), self.pick()
        match self.draw(st.integers(0, 11)):
            case 0:
                return a * 0.5 + b * self.other
            case 1:
                return (a @ _SQUARE) * 0.25 + b
            case 2:
                return (a.reshape(BATCH * self.n, WIDTH) @ _SQUARE).reshape(*a.shape).relu()
            case 3:
                return a.softmax(1) + b
            case 4:
                return a.softmax(-1) - b.mean(1, keepdims=True)
            case 5:
                return a.layer_norm(_SQUARE[0], _SQUARE[1]) * 0.5
            case 6:
                return a.scaled_dot_product_attention(b, self.pick())
            case 7:
                return a.flip(1) * 0.5 + b.take(_ORDER, 2)
            case 8:
                return semel.concat([a, b], 1)[:, : self.n] * 0.5
            case 9:
                return (a @ b.transpose(1, 2)).softmax(-1) @ b
            case 10:
                return a.cumsum(1) * 0.125
            case _:
                flat = a.reshape(BATCH, self.n * WIDTH)
                return (flat - flat.max(1, keepdims=True)).exp().reshape(*a.shape)

    def result(self) -> Tensor:
        a = self.pick()
        match self.draw(st.integers(0, 8)):
            case 0:
                return a.sum(1)
            case 1:
                return a.permute(1, 0, 2)
            case 2:
                return a.reshape(BATCH * self.n, WIDTH) + 1
            case 3:
                return semel.concat([a, self.pick()], 1)
            case 4:
                return a.permute(2, 0, 1)
            case 5:
                return self.other.relu()
            case _:
                return a


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_random_graphs(data: st.DataObject) -> None:
    made = Drawn(data.draw)
    note(format_graph(made.graph.build({"n": (1, MOST)}, "n")))
    threads = data.draw(st.sampled_from([1, 2]))
    compact = made.graph.prepare(dims={"n": (1, MOST)}, threads=threads)
    plan = made.graph.prepare(dims={"n": (1, MOST)}, extent="n", threads=threads)
    before = [np.zeros(b.shape, b.dtype.numpy) for b in plan.output_buffers]
    for n in data.draw(st.lists(st.integers(1, MOST), min_size=2, max_size=3)):
        exact = {name: drawn(BATCH, n, WIDTH) for name in "xy"}
        wide = {name: np.full((BATCH, MOST, WIDTH), np.nan, np.float32) for name in "xy"}
        for name, array in exact.items():
            wide[name][:, :n] = array
        z = drawn(WIDTH)
        plan.set_extent("n", n)
        wanted, found = listed(compact(**exact, z=z)), listed(plan(**wide, z=z))
        for old, new, want in zip(before, found, wanted, strict=True):
            np.testing.assert_allclose(new[first(want)], want, rtol=1e-5, atol=1e-6)
            old[first(want)] = new[first(want)]
            np.testing.assert_array_equal(new, old)

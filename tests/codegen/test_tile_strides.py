"""`tile_strides`, by brute force: the interpreter records what every tile touches."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np
import pytest
from tests.codegen.lowering import lower_graph, run_kernels
from tests.codegen.machine import Array
from tests.fuzz.checking import _used
from tests.fuzz.programs import make_program

from semel import Tensor, Variable
from semel.ir.expr import Dim, Index, evaluate
from semel.ir.graph import Graph
from semel.ir.types import FLOAT32
from semel.kernel import ir
from semel.kernel.interpret import _Machine, _Memory
from semel.kernel.ir import Buffer, Kernel, Loop, Store
from semel.lower.tiles import tile_strides


class Recorder(_Machine):
    """An interpreter that remembers which elements each tile touched."""

    def __init__(self, kernel: Kernel, buffers: list[Array], values: dict[Any, int]) -> None:
        super().__init__(kernel, buffers, values)
        self.touched: dict[str, dict[int, set[int]]] = {}

    def _locate(self, buffer: Buffer, at: Dim) -> tuple[_Memory, int]:
        memory, position = super()._locate(buffer, at)
        tile = self.indices[self.kernel.tile]
        self.touched.setdefault(buffer.name, {}).setdefault(tile, set()).add(position)
        return memory, position


class Tally:
    """Runs kernels and checks their strides; counts how many were claimed."""

    def __init__(self) -> None:
        self.claimed = self.tiles = 0

    def __call__(self, kernel: Kernel, buffers: list[Array], values: Mapping[str, int]) -> None:
        strides = tile_strides(kernel)
        machine = Recorder(kernel, buffers, dict(values))
        with np.errstate(all="ignore"):
            for tile in range(evaluate(kernel.tiles, machine.indices)):
                machine.run_tile(tile)
        for name, by_tile in machine.touched.items():
            stride = strides.get(name)
            if stride is None:
                continue
            step = evaluate(stride, values)
            self.claimed += 1
            self.tiles = max(self.tiles, len(by_tile))
            for tile, elements in by_tile.items():
                outside = [e for e in elements if not tile * step <= e < (tile + 1) * step]
                assert not outside, (
                    f"{kernel.name}: tile {tile} of '{name}' touches {outside[:5]}, "
                    f"the stride is {stride} = {step}"
                )


def check(outputs: list[Tensor], data: dict[str, Array], values: dict[str, int]) -> Tally:
    tally = Tally()
    for fusion in (True, False):
        graph, kernels = lower_graph(outputs, fusion=fusion)
        used = {n.attrs.name for n in graph.inputs}
        run_kernels(graph, kernels, {k: v for k, v in data.items() if k in used}, values, tally)
    return tally


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of a few elements, so that small data has many of them."""
    monkeypatch.setattr("semel.lower.nests.TILE_ELEMENTS", 64)
    monkeypatch.setattr("semel.lower.nests.LONG_ROW", 40)


@pytest.mark.parametrize("seed", range(200, 240))
def test_strides_hold_for_random_programs(seed: int) -> None:
    rng = Random(seed)
    program = make_program(rng, 8)
    asked = Graph(tuple(t.node for t in program.build()))
    for values in program.bindings(rng)[:2]:
        if sum(evaluate(n.type.num_elements, values) for n in asked.nodes) > 2500:
            continue
        bound = {v.name: values[v.name] for v in asked.variables}
        check(program.build(), _used(asked, program.data(values)), bound)


N = Variable("n", 0, 100)
SHAPED = {
    "a chain over rows": lambda x: (x.exp() + 1).softmax(1) * 2,
    "a flat chain": lambda x: x.flatten() * 3 + 1,
    "every second row": lambda x: x[::2] + 1,
    "rows backwards": lambda x: x.flip(0) * 2,
    "columns": lambda x: x.sum(0),
    "transposed": lambda x: x.T + 1,
    "shifted": lambda x: x[1:] + x[:-1],
    "padded": lambda x: x.pad(((1, 1), (0, 0))) + 1,
    "row sums": lambda x: x.sum(1) + 1,
    "product": lambda x: x @ x.T,
    "pool": lambda x: x.reshape(1, 1, *x.shape).max_pool((3, 1), stride=(2, 1)),
    "running sum": lambda x: x.cumsum(0) + 1,
}


@pytest.mark.parametrize("name", SHAPED)
@pytest.mark.parametrize("rows", [N, 12], ids=["symbolic", "fixed"])
def test_strides_hold_for_shapes_of_access(name: str, rows: Dim) -> None:
    t = Tensor.input("x", (rows, 9))
    x = np.random.default_rng(1).normal(size=(12, 9)).astype(np.float32)
    check([SHAPED[name](t)], {"x": x}, {} if rows == 12 else {"n": 12})


def test_row_wise_chains_are_recognised() -> None:
    """None would be safe, and useless: these are what barriers are saved for."""
    t = Tensor.input("x", (200, 9))
    x = np.ones((200, 9), np.float32)
    tally = check([(t * 2).softmax(1)], {"x": x}, {})
    assert tally.claimed >= 4 and tally.tiles > 3


def reading(step: int, count: int) -> Kernel:
    """Tile t reads `count` elements from t * step on."""
    tile, j = Index("tile", 4), Index("j", count)
    source, out = Buffer("in", FLOAT32, 4 * step + count, "r"), Buffer("out", FLOAT32, 4, "w")
    body = Loop(j, 0, count, (Store(out, tile, ir.load(source, tile * step + j)),))
    return Kernel("k", (source, out), (), (), tile, 4, (body,))


def test_tiles_that_overlap_by_one_element_have_no_stride() -> None:
    for step in (1, 2, 3):
        assert tile_strides(reading(step, step)) == {"in": step, "out": 1}
        assert tile_strides(reading(step, step + 1))["in"] is None
        assert tile_strides(reading(step + 1, step))["in"] == step + 1

"""Matmuls with one column: by text, by the vectors that compute them, and by their bits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from semel import Tensor, Variable, einsum
from semel.devices.cpu.toolchain import host_target
from semel.ir.graph import Graph
from semel.ir.text import format_graph, parse_graph
from semel.kernel import ir
from semel.lower import lower_schedule
from semel.passes import run_passes
from semel.passes.one_column import SHORT_ROW, sum_single_columns
from semel.schedule.groups import build_schedule
from semel.tensor.realize import build_graph

X, Y = '%0 = input "x" : f32[4,8,64]\n', '%1 = input "y" : f32[4,64,1]\n'


def graph_of(text: str) -> Graph:
    last = text.strip().splitlines()[-1].split(" ")[0]
    return parse_graph(f"{text}\noutput {last}")


def passed(text: str) -> str:
    return format_graph(run_passes(graph_of(text), [sum_single_columns], verify=True))


def test_one_column_is_a_sum_of_products() -> None:
    after = (
        X
        + Y
        + "%2 = reshape %1 {shape=(4, 1, 64)} : f32[4,1,64]\n"
        + "%3 = expand %2 {shape=(4, 8, 64)} : f32[4,8,64]\n%4 = mul %0 %3 : f32[4,8,64]\n"
        + "%5 = reduce_sum %4 {axes=(2,)} : f32[4,8,1]"
    )
    assert passed(X + Y + "%2 = matmul %0 %1 : f32[4,8,1]") == format_graph(graph_of(after))


def test_rows_that_lie_the_other_way_round_are_summed_as_they_lie() -> None:
    x = '%0 = input "x" : f32[64,8]\n'
    before = (
        x
        + '%1 = input "y" : f32[64,1]\n'
        + "%2 = permute %0 {axes=(1, 0)} : f32[8,64]\n%3 = matmul %2 %1 : f32[8,1]"
    )
    assert "reduce_sum" in passed(before)
    assert "{axes=(0,)} : f32[1,8]" in passed(before)


@pytest.mark.parametrize(
    "text",
    [
        X + '%1 = input "y" : f32[4,64,2]\n%2 = matmul %0 %1 : f32[4,8,2]',
        '%0 = input "x" : f32[4,8,9]\n%1 = input "y" : f32[4,9,1]\n%2 = matmul %0 %1 : f32[4,8,1]',
        '%0 = input "x" : bool[8,64]\n%1 = input "y" : bool[64,1]\n%2 = matmul %0 %1 : bool[8,1]',
        '%0 = input "x" : i8[8,64]\n%1 = input "y" : i8[64,1]\n%2 = matmul %0 %1 : i8[8,1]',
        '%0 = input "x" : f32[40,40]\n%1 = input "y" : f32[1600,1]\n'
        "%2 = window %0 {axes=(0, 1), sizes=(40, 40), strides=(1, 1), dilations=(1, 1)} "
        ": f32[1,1,40,40]\n%3 = reshape %2 {shape=(1, 1600)} : f32[1,1600]\n"
        "%4 = matmul %3 %1 : f32[1,1]",
    ],
    ids=["two columns", "short rows", "bools", "bytes", "windows"],
)
def test_others_stay(text: str) -> None:
    assert passed(text) == format_graph(graph_of(text))


def test_every_lane_works() -> None:
    """The vectors run along what is added up, or across it: never along the one column."""
    a, b = Tensor.input("a", (40, 96)), Tensor.input("b", (40, 96))
    v, w = Tensor.input("v", (96,)), Tensor.input("w", (40,))
    for y in (a @ v, a.T @ w, einsum("ij,ij->i", a, b), einsum("ij,ij->j", a, b)):
        (lowered,) = lower_schedule(build_schedule(run_passes(build_graph(y))), host_target())
        widest = [s for s in ir.walk_statements(lowered.kernel.body) if isinstance(s, ir.Loop)]
        assert any(loop.lanes > 1 and loop.index.extent in (40, 96) for loop in widest)


def test_numbers_and_bits() -> None:
    rng = np.random.default_rng(4)
    m = Variable("m", 1, 50)
    for dtype in (np.float32, np.float64, np.int32, np.int64, np.float16, ml_dtypes.bfloat16):
        a = (rng.standard_normal((40, 70)) * 5).astype(dtype)
        v, w = (rng.standard_normal(n).astype(dtype) for n in (70, 40))
        exact = a.astype(np.float64) @ v.astype(np.float64)
        tolerance = 1e-5 if a.itemsize > 2 else 2e-2
        found = [
            (Tensor.input("a", shape, a.dtype) @ right).prepare(threads=threads)(a=a)
            for shape, threads, right in (
                ((40, 70), 1, Tensor(v)),
                ((40, 70), 2, Tensor.param("v", v)),
                ((m, 70), 2, Tensor(v)),
            )
        ]
        np.testing.assert_allclose(found[0].astype(np.float64), exact, tolerance, tolerance * 8)
        assert all(each.tobytes() == found[0].tobytes() for each in found)
        across = (Tensor(a).T @ Tensor(w)).numpy().astype(np.float64)
        exact = a.astype(np.float64).T @ w.astype(np.float64)
        np.testing.assert_allclose(across, exact, tolerance, tolerance * 8)


def test_edges() -> None:
    short = np.ones((3, SHORT_ROW - 1), np.float32)
    assert (Tensor(short) @ Tensor(short[0])).tolist() == [SHORT_ROW - 1.0] * 3
    assert (Tensor(np.ones((3, 0), np.float32)) @ Tensor(np.ones(0, np.float32))).tolist() == [
        0.0
    ] * 3
    n = np.full((2, 64), np.inf, np.float32)
    assert np.isnan((Tensor(n) @ Tensor(np.zeros(64, np.float32))).numpy()).all()

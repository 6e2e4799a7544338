"""Buckets: ranges, lazy compiles, one set of params, one state."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

from semel import (
    BucketedCompileCache,
    CompiledGraph,
    Graph,
    GraphError,
    InputError,
    ParamError,
    pad_rows,
    power_of_two_ladder,
    slice_rows,
)

F = np.float32


class Relu:
    """y = relu(x) of n numbers; counts how often it is built."""

    def __init__(self) -> None:
        self.built: list[int] = []

    def __call__(self, upper: int) -> Graph:
        self.built.append(upper)
        g = Graph("relu")
        g.output("y", g.input("x", ("n",)).relu())
        return g


def test_run_padded() -> None:
    relu = Relu()
    cache = BucketedCompileCache(relu, [range(1, 16)], dim="n")
    x = np.arange(-5, 5, dtype=F)
    out = cache.run_padded(10, {"x": x})
    assert out is not None
    np.testing.assert_array_equal(out["y"], np.maximum(x, 0))
    assert cache.upper(10) == 15
    assert cache.run_padded(5, {"x": x[5:]})["y"].tolist() == [0, 1, 2, 3, 4]  # type: ignore[index]
    assert relu.built == [15]
    assert cache.run_padded(100, {"x": x}) is None
    assert relu.built == [15]
    whole = cache.run_padded(10, {"x": x}, whole=["y"])
    assert whole is not None
    assert whole["y"].tolist() == [*np.maximum(x, 0), *[0] * 5]


def test_the_ladder() -> None:
    assert power_of_two_ladder(8, 64) == [range(1, 9), range(9, 17), range(17, 33), range(33, 65)]
    cache = BucketedCompileCache(Relu(), power_of_two_ladder(8, 64), dim="n")
    assert [cache.upper(k) for k in (17, 9, 3, 64, 65)] == [32, 16, 8, 64, None]
    assert power_of_two_ladder(10, 64)[0] == range(1, 17)
    assert power_of_two_ladder(8, 20)[-1] == range(17, 33)
    assert power_of_two_ladder(16, 16) == [range(1, 17)]
    for least, most in ((0, 4), (8, 4)):
        with pytest.raises(InputError, match="1 <= least <= most"):
            power_of_two_ladder(least, most)


@pytest.mark.parametrize(
    "ranges", [[], [range(1, 1)], [range(1, 9), range(8, 17)], [range(4)], 5, [5], [(1, 9)]]
)
def test_ranges_that_are_none(ranges: Any) -> None:
    with pytest.raises(GraphError, match="range"):
        BucketedCompileCache(Relu(), ranges, dim="n")


def test_pad_and_slice() -> None:
    assert pad_rows(np.array([1, 2, 3], F), 5).tolist() == [1, 2, 3, 0, 0]
    rows = np.ones((2, 3), F)
    assert pad_rows(rows, 4).sum() == 6
    assert pad_rows(rows, 4).shape == (4, 3)
    np.testing.assert_array_equal(slice_rows(pad_rows(rows, 4), 2), rows)
    assert pad_rows(rows, 5, axis=1).shape == (2, 5)
    with pytest.raises(InputError, match="at most 1 rows"):
        pad_rows(rows, 1)
    with pytest.raises(InputError, match=r"\[0, 2\]"):
        slice_rows(rows, 3)
    assert pad_rows(rows, 5, axis=-1).tolist() == [[1, 1, 1, 0, 0]] * 2
    assert slice_rows(rows, 1, axis=-1).shape == (2, 1)
    for change in (pad_rows, slice_rows):
        for array, axis in ((rows, 2), (rows, -3), (np.float32(1), 0)):
            with pytest.raises(InputError, match="axis must be one of"):
                change(array, 1, axis)


def _linear(upper: int) -> Graph:
    g = Graph("linear")
    x, bias = g.input("x", ("n", 64)), g.input("bias", (32,))
    w = g.param("w", np.linspace(-1, 1, 64 * 32, dtype=F).reshape(64, 32))
    g.output("y", x @ w + bias)
    return g


def test_params_are_those_of_all_buckets() -> None:
    cache = BucketedCompileCache(_linear, power_of_two_ladder(8, 32), dim="n")
    rng = np.random.default_rng(0)
    x, bias = rng.standard_normal((20, 64), dtype=F), np.ones(32, F)
    w = rng.standard_normal((64, 32), dtype=F)
    cache.warm([3])
    cache.set_param("w", w)
    for rows in (3, 12, 20):
        out = cache.run_padded_mixed(rows, {"x": x[:rows]}, {"bias": bias})
        assert out is not None
        np.testing.assert_allclose(out["y"], x[:rows] @ w + bias, rtol=1e-4, atol=1e-4)
    plans = [cache.bucket(rows).plan for rows in (3, 12, 20)]  # type: ignore[union-attr]
    held = {plan.buffers[v.value].address for plan in plans for v in plan.program.recipes}
    assert len(held) == 1, "packed data of equal layout is held once"
    with pytest.raises(InputError, match="has the dim 'n'"):
        cache.run_padded_mixed(3, {}, {"x": x[:3], "bias": bias})
    with pytest.raises(InputError, match="must have 3 rows"):
        cache.run_padded(3, {"x": x[:4], "bias": bias})


def test_params_are_loaded_into_all_buckets() -> None:
    cache = BucketedCompileCache(_linear, power_of_two_ladder(8, 32), dim="n")
    x, bias, w = np.ones((12, 64), F), np.ones(32, F), np.full((64, 32), 0.5, F)
    cache.warm([3])
    cache.load_params({"w": w})
    for rows in (3, 12):
        out = cache.run_padded_mixed(rows, {"x": x[:rows]}, {"bias": bias})
        assert out is not None and out["y"].tolist() == [[33.0] * 32] * rows
    with pytest.raises(ParamError, match="missing: w; unexpected: v"):
        cache.load_params({"v": w})


def test_data_that_depends_on_the_size_is_refused() -> None:
    def build(upper: int) -> Graph:
        g = Graph("odd")
        g.output("y", g.input("x", ("n",)) * g.param("w", np.full(1, upper, F)))
        return g

    cache = BucketedCompileCache(build, power_of_two_ladder(8, 16), dim="n")
    cache.warm([3])
    with pytest.raises(GraphError, match="same data"):
        cache.warm([12])


def test_buckets_that_are_not_used_go() -> None:
    cache = BucketedCompileCache(Relu(), power_of_two_ladder(1024, 4096), dim="n", max_bytes=40_000)
    for rows in (1000, 2000, 4000):
        cache.run_padded(rows, {"x": np.ones(rows, F)})
    gc.collect()
    assert cache.own_bytes <= 40_000 or len(cache._buckets) == 1
    out = cache.run_padded(1000, {"x": np.ones(1000, F)})
    assert out is not None
    assert out["y"].sum() == 1000
    assert cache.compile_count > 3


def test_state_moves_to_the_next_bucket() -> None:
    def build(upper: int) -> Graph:
        g = Graph("rows")
        g.output("sum", g.state("k", (upper, 4)).append(g.input("x", ("n", 4))).sum(0))
        return g

    cache = BucketedCompileCache(build, power_of_two_ladder(4, 16), dim="n")
    total = np.zeros(4, F)
    for past in range(12):
        x = np.full((1, 4), past, F)
        total += x[0]
        step = cache.bucket(past + 1)
        assert step is not None
        assert step.run(x)["sum"].tolist() == total.tolist()
    assert cache.compile_count == 3


def _total(upper: int) -> Graph:
    g = Graph("total")
    x, total = g.input("x", ("n",)), g.state("total", (1,))
    g.output("sum", total + x.sum().reshape(1), feeds=total)
    g.output("double", x * 2)
    return g


def test_a_run_that_is_refused_changes_no_state() -> None:
    cache, x = BucketedCompileCache(_total, power_of_two_ladder(8, 16), dim="n"), np.ones(3, F)
    for whole, match in ((["other"], "no output 'other'"), (["sum"], "must have the dim 'n'")):
        with pytest.raises(InputError, match=match):
            cache.run_padded(3, {"x": x}, whole=whole)
    with pytest.raises(InputError, match="by name"):
        cache.run_padded(3, [x])  # type: ignore[arg-type]
    out = cache.run_padded(3, {"x": x}, whole=["double"])
    assert out is not None
    assert out["sum"] == 3
    assert out["double"].tolist() == [2] * 3 + [0] * 5


def test_the_state_waits_for_a_run_that_another_thread_is_about_to_make(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = BucketedCompileCache(_total, power_of_two_ladder(8, 16), dim="n")
    cache.warm()
    has_chosen, is_over = threading.Event(), threading.Event()
    run = CompiledGraph.run

    def run_late(self: CompiledGraph, inputs: Any) -> Any:
        if len(inputs["x"]) == 3 and not has_chosen.is_set():
            has_chosen.set()
            is_over.wait(0.2)  # in vain: the other run comes after this one
        return run(self, inputs)

    monkeypatch.setattr(CompiledGraph, "run", run_late)
    thread = threading.Thread(target=cache.run_padded, args=(3, {"x": np.ones(3, F)}))
    thread.start()
    has_chosen.wait()
    out = cache.run_padded(12, {"x": np.ones(12, F)})
    is_over.set()
    thread.join()
    assert out is not None
    assert out["sum"] == 15


def test_the_bucket_with_the_state_stays() -> None:
    cache = BucketedCompileCache(_total, power_of_two_ladder(8, 64), dim="n", max_bytes=1)
    cache.run_padded(3, {"x": np.ones(3, F)})
    cache.warm()
    assert len(cache._buckets) == 1
    for rows, total in ((60, 63), (8, 71), (9, 80)):
        out = cache.run_padded(rows, {"x": np.ones(rows, F)})
        assert out is not None
        assert out["sum"] == total


def test_other_dims_have_bounds_too() -> None:
    def build(upper: int) -> Graph:
        g = Graph("batch")
        g.output("y", g.input("x", ("batch", "n")) * 2)
        return g

    ladder = power_of_two_ladder(8, 16)
    cache = BucketedCompileCache(build, ladder, dim="n", dims={"batch": (1, 4)})
    out = cache.run_padded(3, {"x": np.ones((2, 3), F)}, whole=["y"])
    assert out is not None
    assert out["y"].tolist() == [[2] * 3 + [0] * 5] * 2

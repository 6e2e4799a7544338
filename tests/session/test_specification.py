"""Cases of the specification with their numbers: bytes of other dtypes, committed runs, clones.

Extents are in test_extent.py, buckets in test_buckets.py, state in test_handles.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from semel import Graph, Session
from semel.runtime.allocator import counters
from semel.session.compiled import CompiledGraph

F = np.float32


def _bytes(values: list[float], dtype: str) -> bytes:
    """Little-endian; a bfloat16 is the upper half of a float32."""
    plain = np.array(values, F)
    if dtype == "bfloat16":
        return (plain.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return plain.astype(dtype).tobytes()


@pytest.mark.parametrize(
    ("dtype", "b", "x", "wanted"),
    [
        ("float16", [1, 2, 3, 4], [10, 20, 30, 40], [11, 22, 33, 44]),
        ("bfloat16", [1.5, 2.5, 3.5, 4.5], [0.5] * 4, [2, 3, 4, 5]),
    ],
)
def test_params_as_bytes_of_a_narrower_float(
    dtype: str, b: list[float], x: list[float], wanted: list[float]
) -> None:
    g = Graph("add")
    g.output("y", g.input("x", (4,)) + g.param("b", shape=(4,), dtype="float32"))
    c = Session().compile(g, casting="same_kind")
    c.set_param_typed("b", _bytes(b, dtype), dtype)
    assert c.run(np.array(x, F))["y"].tolist() == wanted
    g = Graph("stored so")
    g.output("y", g.input("x", (4,)) + g.param("b", shape=(4,), dtype=dtype).cast("float32"))
    c = Session().compile(g)
    c.set_param_typed("b", _bytes(b, dtype), dtype)
    assert c.run(np.array(x, F))["y"].tolist() == wanted


def test_inputs_and_outputs_as_bytes_of_a_narrower_float() -> None:
    values = [-1, 0.5, 2, -4, 8, 1024]
    positive = [max(v, 0) for v in values]
    g = Graph("relu")
    g.output("y", g.input("x", (6,)).relu())
    c = Session().compile(g, casting="same_kind")
    data, dtype, shape = c.run_typed({"x": (_bytes(values, "float16"), "float16")})["y"]
    assert (len(data), dtype.name, shape) == (24, "float32", (6,))
    assert np.frombuffer(data, F).tolist() == positive
    g = Graph("relu, cast")
    g.output("y", g.input("x", (6,)).relu().cast("float16"))
    c = Session().compile(g)
    data, dtype, _ = c.run_typed({"x": (_bytes(values, "float32"), "float32")})["y"]
    assert (len(data), dtype.name) == (12, "float16")
    assert np.frombuffer(data, np.float16).tolist() == positive


def _mixed(threads: int = 1) -> CompiledGraph:
    rng = np.random.default_rng(0)
    g = Graph("mixed")
    x = g.input("x", (48, 96))
    w = g.param("w", rng.standard_normal((96, 96), dtype=F))
    y = ((x @ w).softmax(-1) @ w).tanh()
    g.output("y", y)
    g.output("mean", y.mean(0))
    return Session().compile(g, threads=threads)


A, B = np.random.default_rng(1).standard_normal((2, 48, 96), dtype=F)


def test_a_committed_run_and_the_run_after_it_have_their_own_inputs() -> None:
    c, x = _mixed(), A.copy()
    ticket = c.commit_no_wait(x)
    x[...] = B
    c.sync_pending()
    for found, inputs in ((c.run(x), B), (ticket.result(), A)):
        for got, wanted in zip(found, _mixed().run(inputs), strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_one_thread_and_two_give_the_same_bits() -> None:
    for one, two in zip(_mixed(1).run(A), _mixed(2).run(A), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.usefixtures("settled")
def test_clones_take_weights_once_and_activations_each() -> None:
    """Measured where memory is handed out: k of them take weights + k x activations."""
    c = _mixed()
    c.run(A)
    memory, one = c.plan.memory, counters().live_bytes
    clones = [c.clone() for _ in range(7)]
    for clone in clones:
        clone.run(A)
    more = counters().live_bytes - one
    assert abs(more - 7 * memory.own_bytes) < 7 * 1024
    plans = [c.plan, *(clone.plan for clone in clones)]
    shared = [
        buffers[0]
        for buffers in zip(*(plan.buffers for plan in plans), strict=True)
        if len({buffer.address for buffer in buffers}) == 1
    ]
    assert sum(buffer.nbytes for buffer in shared) == memory.weights_bytes
    del clones, clone, plans, shared
    assert counters().live_bytes == one

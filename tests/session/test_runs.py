"""Runs of compiled graphs: every way in, every way out, and what is refused."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np
import pytest

from semel import Graph, InputError, SemelError, Session, StaleError
from semel.session.compiled import CompiledGraph

F = np.float32


def _affine(**options: Any) -> CompiledGraph:
    g = Graph("affine")
    x, b = g.input("x", ("n", 3)), g.input("b", (3,))
    g.output("sum", x + b)
    g.output("product", x * b)
    return Session().compile(g, dims={"n": (1, 8)}, **options)


X = np.arange(6, dtype=F).reshape(2, 3)
B = np.array([1, 2, 3], F)


def _check(out: Any) -> None:
    np.testing.assert_array_equal(out["sum"], X + B)
    np.testing.assert_array_equal(out["product"], X * B)


def test_inputs_by_name_by_position_or_both() -> None:
    c = _affine()
    for out in (c.run({"x": X, "b": B}), c.run(X, B), c.run(x=X, b=B), c.run(X, b=B), c(X, B)):
        _check(out)
        total, product = out
        assert total is out[0] is out["sum"]
        assert product is out[1] is out["product"]
        assert list(out.keys()) == ["sum", "product"]
        assert dict(out).keys() == {"sum", "product"}


def test_outputs_are_copies() -> None:
    c = _affine()
    first = c.run(X, B)
    c.run(X + 1, B)
    _check(first)


@pytest.mark.parametrize(
    ("args", "named", "match"),
    [
        ((), {"x": X}, r"must be given b: float32\[3\]"),
        ((X, B, B), {}, r"takes 2 inputs .*got 3"),
        ((X, B), {"b": B}, r"\[input 'b'\] must be given once"),
        (({"x": X, "b": B, "c": B},), {}, r"has no input 'c'; known: x, b"),
        ((X.astype(np.float64), B), {}, r"\[input 'x'\] dtype must be float32, got float64"),
        ((X, B[:2]), {}, r"\[input 'b'\] shape must be f32\[3\] .*got \(2,\)"),
        ((np.ones((9, 3), F), B), {}, r"gives n=9, which must lie in \[1, 8\]"),
    ],
)
def test_what_does_not_fit_is_refused(args: Any, named: Any, match: str) -> None:
    c = _affine()
    c.run(X, B)
    with pytest.raises(Exception, match=match):
        c.run(*args, **named)
    _check(c.run(X, B))


def test_raw_views_raise_when_stale() -> None:
    c = _affine()
    out = c.run_raw(X, B)
    _check(out)
    assert out["sum"].array().flags.writeable is False
    c.run(X, B)
    with pytest.raises(StaleError, match="ran again"):
        out["sum"].numpy()


def test_slots_say_where_outputs_lie() -> None:
    c = _affine()
    for rows in (2, 5, 2):
        x = np.arange(3 * rows, dtype=F).reshape(rows, 3)
        for _ in range(2):
            places = c.run_slots([x, B])
            found = [
                np.frombuffer(ctypes.string_at(c.arena_ptr + offset, size), F).reshape(rows, 3)
                for offset, size in places
            ]
            np.testing.assert_array_equal(found[0], x + B)
            np.testing.assert_array_equal(found[1], x * B)
    entry = c.outputs["sum"]
    assert places[0] == (entry.offset, entry.nbytes)


def test_bytes_in_and_out() -> None:
    c = _affine()
    out = c.run_typed({"x": (X.tobytes(), "float32"), "b": (B.tobytes(), np.float32)})
    data, dtype, shape = out["sum"]
    np.testing.assert_array_equal(np.frombuffer(data, dtype.numpy).reshape(shape), X + B)
    with pytest.raises(InputError, match=r"\[input 'b'\] must have 12 bytes"):
        c.run_typed({"x": (X.tobytes(), "float32"), "b": (B.tobytes()[:-1], "float32")})
    with pytest.raises(InputError, match=r"dtype must be float32, got float16"):
        c.run_typed({"x": (X.tobytes(), "float32"), "b": (B.astype("f2").tobytes(), "float16")})


def test_out_is_written_and_returned() -> None:
    c = _affine()
    total = np.zeros((2, 3), F)
    out = c.run(X, B, out={"sum": total})
    assert out["sum"] is total
    _check(out)
    product = np.zeros((2, 3), F)
    _check(c.run(X, B, out=[total, product]))
    for bad, match in (
        ({"sum": np.zeros((3, 3), F)}, r"out 'sum'.*\(2, 3\).*\(3, 3\)"),
        ({"sum": np.zeros((2, 3))}, "dtype must be float32"),
        ({"total": total}, "has no output 'total'"),
        ([total], "must have 2 arrays"),
    ):
        with pytest.raises(InputError, match=match):
            c.run(X, B, out=bad)


def test_out_of_a_wrong_shape_is_refused_before_the_run() -> None:
    g = Graph("count")
    x, n = g.input("x", ("n",)), g.state("n", (1,))
    g.output("y", x * 2)
    n.replace(n + 1)
    c = Session().compile(g, dims={"n": (1, 8)})
    with pytest.raises(InputError, match="out 'y'"):
        c.run(np.ones(3, F), out=[np.zeros(4, F)])
    assert c.states.read("n") == 0


def test_casting_within_a_kind() -> None:
    c = _affine(casting="same_kind")
    _check(c.run(X.astype(np.float64), B.astype(np.int8)))
    c = _affine()
    with pytest.raises(InputError, match="dtype must be float32"):
        c.run(X.astype(np.float64), B)
    ints = Graph("ints")
    ints.output("y", ints.input("x", (3,), "int32") + 1)
    with pytest.raises(InputError, match=r"castable to int32 within its kind, got float32"):
        Session().compile(ints, casting="same_kind").run(B)


def test_sticky_inputs_are_as_before() -> None:
    c = _affine(sticky=True)
    with pytest.raises(InputError, match="must be given b"):
        c.run(x=X)
    c.run(X, B)
    _check(c.run(x=X))
    _check(c.run())
    np.testing.assert_array_equal(c.run(b=B + 1)["sum"], X + B + 1)


def test_lists_and_other_libraries() -> None:
    torch = pytest.importorskip("torch")
    c = _affine()
    _check(c.run(X.tolist(), torch.from_numpy(B)))
    _check(c.run(X.data, B))


def test_fetch_names_outputs() -> None:
    c = _affine()
    out = c.run(X, B, fetch=["product"])
    assert list(out.keys()) == ["product"]
    np.testing.assert_array_equal(out[0], X * B)
    for bad, match in (
        (["nope"], "no output 'nope'"),
        ("sum", "must be names"),
        (["sum"] * 2, "once"),
    ):
        with pytest.raises(InputError, match=match):
            c.run(X, B, fetch=bad)


def test_fetch_is_any_iterable_of_names_and_the_same_each_time() -> None:
    c = _affine()
    assert list(c.run(X, B, fetch=iter(["product"])).keys()) == ["product"]
    for fetch in ("product", 5, [["product"]], [0], ["sum", "sum"]):
        for _ in range(2):
            with pytest.raises(InputError, match="fetch"):
                c.run(X, B, fetch=fetch)  # type: ignore[arg-type]


def test_out_must_have_memory_for_every_element_of_every_output() -> None:
    c, memory = _affine(), np.zeros((2, 6), F)
    with pytest.raises(InputError, match=r"out 'product'.*that of 'sum'"):
        c.run(X, B, out=[memory[:, :3], memory[:, 2:5]])
    once = np.lib.stride_tricks.as_strided(memory, (2, 3), (0, 4))
    with pytest.raises(InputError, match="broadcast"):
        c.run(X, B, out={"sum": once})
    assert not memory.any()
    c.run(X, B, out=[memory[:, ::2], memory[:, 1::2]])
    np.testing.assert_array_equal(memory[:, ::2], X + B)
    np.testing.assert_array_equal(memory[:, 1::2], X * B)


@pytest.mark.parametrize("inputs", [None, 5, {"x": 1}, iter([]), np.zeros(2, F), "xb"])
def test_slots_take_a_list(inputs: Any) -> None:
    with pytest.raises(InputError, match="takes a list of arrays"):
        _affine().run_slots(inputs)


@pytest.mark.parametrize("shape", [3, "ab", (-2, -3), (2.0, 3)])
def test_bytes_with_a_shape_that_is_none(shape: Any) -> None:
    given = {"x": (X.tobytes(), "float32", shape), "b": (B.tobytes(), "float32")}
    with pytest.raises(SemelError, match=r"input 'x'.*size"):
        _affine().run_typed(given)


def test_arrays_of_the_caller_are_not_held_after_the_run() -> None:
    c, made = _affine(), np.empty((2, 3), F)
    for _ in range(2):
        c.run(X, B, out={"sum": made})
    held = weakref.ref(made)
    del made
    assert held() is None
    _check(c.run(X, B))


def test_views_of_outputs_are_params_states_and_handles() -> None:
    g = Graph("loop")
    x, t = g.input("x", (3,)), g.state("t", (3,))
    g.output("y", x * g.param("w", np.full(3, 2, F)) + t)
    c = Session().compile(g)
    c.set_param("w", c.run_raw(B)["y"])
    assert c.run(B)["y"].tolist() == [2, 8, 18]
    c.load_params({"w": c.run_raw(B)["y"]})
    assert c.run(B)["y"].tolist() == [2, 16, 54]
    c.bind_handle("t", c.run_raw(B)["y"])
    assert c.run(B)["y"].tolist() == [4, 32, 108]
    c.bind_handle("x", c.run_raw(B)["y"])
    assert c.run()["y"].tolist() == [4 * 2 + 2, 32 * 8 + 16, 108 * 18 + 54]
    c.set_param_typed("w", c.plan.output_buffer.numpy(), "float32")
    assert c.params["w"].version == 3


def test_numbers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"input 'b'.*fit float32.*overflow"):
        _affine().run(X, [1, 2, 1e39])
    assert _affine().run(X, [1, 2, float("inf")])["sum"][0, 2] == np.inf

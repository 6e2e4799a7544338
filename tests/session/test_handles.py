"""Handles: values that stay, feeds that copy nothing, and which value a run takes."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from semel import Graph, IndexRangeError, InputError, SemelError, Session, StateError
from semel.session.compiled import CompiledGraph

F = np.float32


def _step() -> CompiledGraph:
    """y = h * w + x, z = h - x."""
    g = Graph("step")
    h, x = g.input("h", (3,)), g.input("x", (3,))
    w = g.input("w", (3,), default=np.full(3, 2, F))
    g.output("y", h * w + x)
    g.output("z", h - x)
    return Session().compile(g)


X, H = np.array([1, 2, 3], F), np.array([10, 20, 30], F)


def test_what_a_run_is_given_comes_before_the_handle_and_the_default() -> None:
    c = _step()
    with pytest.raises(InputError, match=r"must be given h: float32\[3\]"):
        c.run(x=X)
    assert c.bind_handle("h", H) is True
    np.testing.assert_array_equal(c.run(x=X)["y"], H * 2 + X)
    np.testing.assert_array_equal(c.run(x=X, h=X)["y"], X * 2 + X)
    np.testing.assert_array_equal(c.run(x=X, w=X)["y"], H * X + X)
    np.testing.assert_array_equal(c.run({"x": X})["y"], H * 2 + X)
    c.bind_handle("w", X)
    np.testing.assert_array_equal(c.run(x=X)["y"], H * X + X)
    c.unbind("w")
    np.testing.assert_array_equal(c.run(x=X)["y"], H * 2 + X)
    c.unbind("h")
    with pytest.raises(InputError, match="must be given h"):
        c.run(x=X)


def test_a_handle_is_a_copy_and_can_be_read() -> None:
    c, mine = _step(), H.copy()
    c.bind_gpu_handle("h", mine)
    mine[:] = 0
    np.testing.assert_array_equal(c.read_gpu_handle("h"), H)
    c.read_handle("h")[:] = 0
    np.testing.assert_array_equal(c.run(x=X)["z"], H - X)
    assert c.has_gpu_handle("h")
    assert not c.has_gpu_handle("x")
    assert list(c.handles()) == ["h"]
    assert c.handles()["h"].feed is None


@pytest.mark.parametrize("how", ["run", "raw", "slots", "typed", "committed", "pipelined"])
def test_a_feed_fires_on_every_entry_point(how: str) -> None:
    c = _step()
    c.bind_handle("h", H)
    assert c.set_gpu_handle_feed("h", 0) is True
    wanted = H
    for k in range(4):
        x = X + k
        wanted = wanted * 2 + x
        if how == "run":
            np.testing.assert_array_equal(c.run(x=x)["y"], wanted)
        elif how == "raw":
            np.testing.assert_array_equal(c.run_raw(x=x)["y"], wanted)
        elif how == "slots":
            c.run_slots([None, x])
        elif how == "typed":
            found = c.run_typed({"x": (x.tobytes(), "float32")})["y"]
            np.testing.assert_array_equal(np.frombuffer(found.data, F), wanted)
        elif how == "committed":
            np.testing.assert_array_equal(c.commit_no_wait(x=x).result()["y"], wanted)
        else:
            np.testing.assert_array_equal(c.run_pipelined([{"x": x}])[0]["y"], wanted)
        np.testing.assert_array_equal(c.read_handle("h"), wanted)


def test_a_feed_copies_nothing() -> None:
    c = _step()
    c.bind_handle("h", H)
    c.set_gpu_handle_feed("h", 0)
    places = {c.run_slots([None, X])[0] for _ in range(6)}
    assert len(places) == 2
    assert c.plan.engine.bindings.staged() == []


def test_a_fed_handle_that_is_given_is_fed_after_it() -> None:
    c = _step()
    c.bind_handle("h", H)
    c.set_gpu_handle_feed("h", 0)
    c.run(x=X)
    np.testing.assert_array_equal(c.run(x=X, h=X)["y"], X * 2 + X)
    np.testing.assert_array_equal(c.read_handle("h"), X * 3)
    np.testing.assert_array_equal(c.run(x=X)["y"], X * 7)


def test_a_refused_run_and_a_failed_one_leave_the_handle() -> None:
    c = _step()
    c.bind_handle("h", H)
    c.set_gpu_handle_feed("h", 0)
    c.run(x=X)
    with pytest.raises(InputError, match="dtype"):
        c.run(x=X.astype(np.float64))
    np.testing.assert_array_equal(c.read_handle("h"), H * 2 + X)
    np.testing.assert_array_equal(c.run(x=X)["y"], (H * 2 + X) * 2 + X)


def test_one_output_feeds_two_handles() -> None:
    c = _step()
    c.bind_handle("h", H)
    c.bind_handle("w", X)
    c.set_gpu_handle_feed("h", 0)
    c.set_gpu_handle_feed("w", 0)
    h, w = H, X
    for _ in range(4):
        y = h * w + X
        np.testing.assert_array_equal(c.run(x=X)["y"], y)
        h = w = y
        np.testing.assert_array_equal(c.read_handle("h"), y)
        np.testing.assert_array_equal(c.read_handle("w"), y)


def test_a_feed_for_one_run() -> None:
    c = _step()
    c.bind_handle("h", H)
    found = c.run_feed_gpu_handle({"x": X}, "h", 1)
    np.testing.assert_array_equal(found, H - X)
    np.testing.assert_array_equal(c.read_handle("h"), H - X)
    assert c.handles()["h"].feed is None
    c.run(x=X)
    np.testing.assert_array_equal(c.read_handle("h"), H - X)


def test_feeds_are_judged_when_they_are_registered() -> None:
    g = Graph("odd")
    a, b = g.input("a", (3,)), g.input("b", (2,))
    g.output("double", b * 2)
    g.output("sum", a + b.sum())
    c = Session().compile(g)
    with pytest.raises(InputError, match="must be of a handle that is bound"):
        c.set_gpu_handle_feed("a", 1)
    c.bind_handle("a", X)
    with pytest.raises(InputError, match=r"output 'double' must be f32\[3\].*f32\[2\]"):
        c.set_gpu_handle_feed("a", 0)
    with pytest.raises(InputError, match="no output 2"):
        c.set_gpu_handle_feed("a", 2)
    for name, data, match in (
        ("a", X[:2], "shape"),
        ("a", X.astype(np.int32), "dtype must be float32"),
        ("c", X, "got 'c'"),
    ):
        with pytest.raises(InputError, match=match):
            c.bind_handle(name, data)
    np.testing.assert_array_equal(c.read_handle("a"), X)


def test_handles_of_any_size() -> None:
    g = Graph("grow")
    h = g.input("h", ("n", 2))
    g.output("y", h + 1)
    c = Session().compile(g, dims={"n": (1, 8)})
    c.bind_handle("h", np.zeros((3, 2), F))
    c.set_gpu_handle_feed("h", 0)
    c.run()
    assert c.run()["y"].tolist() == [[2, 2]] * 3
    assert c.run(h=np.zeros((5, 2), F))["y"].shape == (5, 2)
    assert c.run()["y"].tolist() == [[2, 2]] * 5
    c.bind_handle("h", np.zeros((1, 2), F))
    assert c.run()["y"].tolist() == [[1, 1]]
    assert c.run()["y"].tolist() == [[2, 2]]


def test_states_are_handles() -> None:
    g = Graph("counter")
    delta, total = g.input("delta", (4,)), g.state("total", (4,))
    g.output("sum", total + delta, feeds=total)
    c = Session().compile(g)
    for _ in range(5):
        c.run({"delta": np.ones(4, F)})
    assert c.read_handle("total").tolist() == [5] * 4
    c.bind_handle("total", np.zeros(4, F))
    assert c.run({"delta": np.ones(4, F)})["sum"].tolist() == [1] * 4
    assert c.handles()["total"].kind == "state"
    with pytest.raises(StateError, match="total"):
        c.bind_handle("total", np.zeros(5, F))


def test_a_clone_has_handles_of_its_own() -> None:
    c = _step()
    c.bind_handle("h", H)
    c.set_gpu_handle_feed("h", 0)
    c.run(x=X)
    other = c.clone()
    c.run(x=X)
    np.testing.assert_array_equal(other.read_handle("h"), H * 2 + X)
    np.testing.assert_array_equal(other.run(x=X)["y"], (H * 2 + X) * 2 + X)
    np.testing.assert_array_equal(other.read_handle("h"), c.read_handle("h"))


def test_feeds_from_several_threads_lose_no_run() -> None:
    g = Graph("count")
    h = g.input("h", (1,))
    g.output("y", h + 1)
    c = Session().compile(g)
    c.bind_handle("h", np.zeros(1, F))
    c.set_gpu_handle_feed("h", 0)
    threads = [threading.Thread(target=lambda: [c.run() for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert c.read_handle("h") == 200


def _at(n: int, value: float = 0) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.full(n, value, F)


def _indexed() -> CompiledGraph:
    """y = h + table[i], where h has any size; a bad i fails."""
    g = Graph("indexed")
    h, i = g.input("h", ("n",)), g.input("i", (1,), "int64")
    g.output("y", h + g.constant(np.arange(4, dtype=F)).take(i, 0))
    return Session().compile(g, dims={"n": (1, 16)})


GOOD, BAD = np.array([1]), np.array([9])


def test_a_failed_run_of_another_size_leaves_the_feed_at_the_handle_s() -> None:
    c = _indexed()
    c.bind_handle("h", _at(3))
    c.set_gpu_handle_feed("h", 0)
    with pytest.raises(IndexRangeError, match="9"):
        c.run(h=_at(5), i=BAD)
    assert c.run(i=GOOD)["y"].tolist() == [1] * 3
    assert c.run(i=GOOD)["y"].tolist() == [2] * 3


def test_a_failed_feed_for_one_run_leaves_nothing() -> None:
    c = _indexed()
    c.bind_handle("h", _at(3))
    with pytest.raises(IndexRangeError, match="9"):
        c.run_feed_gpu_handle({"i": BAD}, "h", 0)
    c.bind_handle("h", _at(5))
    assert c.run(i=GOOD)["y"].tolist() == [1] * 5
    assert c.read_handle("h").tolist() == [0] * 5


def test_another_feed_takes_the_place_of_the_one_before() -> None:
    g = Graph("two")
    h = g.input("h", ("n",))
    g.output("y", h + 1)
    g.output("z", h + 2)
    c = Session().compile(g, dims={"n": (1, 16)})
    c.bind_handle("h", _at(3))
    c.set_gpu_handle_feed("h", 0)
    c.run()
    c.set_gpu_handle_feed("h", 1)
    c.run()
    assert c.read_handle("h").tolist() == [3] * 3
    c.bind_handle("h", _at(5))
    assert c.run()["y"].tolist() == [1] * 5


def test_an_input_and_an_output_of_one_name() -> None:
    g = Graph("same")
    h, k = g.input("h", (3,)), g.input("k", (3,))
    g.output("h", k + 1)
    g.output("z", h + 2)
    c = Session().compile(g)
    c.bind_handles({"h": H, "k": X})
    np.testing.assert_array_equal(c.run_feed_gpu_handle({}, "h", 0), X + 1)
    np.testing.assert_array_equal(c.run()["z"], X + 3)
    c.set_gpu_handle_feed("k", 0)
    c.run()
    c.unbind("h")  # the input's, and not the output that feeds k
    for more in (2, 3):
        np.testing.assert_array_equal(c.run(h=H)["h"], X + more)
        np.testing.assert_array_equal(c.read_handle("k"), X + more)


@pytest.mark.parametrize("is_lasting", [True, False])
def test_what_fed_two_handles_feeds_them_apart_again(is_lasting: bool) -> None:
    """Two handles that an output fed have one array: no output may be written to it."""
    c, h, w = _step(), H, np.full(3, 0.5, F)
    c.bind_handles({"h": h, "w": w})
    c.set_gpu_handle_feed("h", 0)
    if is_lasting:
        c.set_gpu_handle_feed("w", 0)
        c.run(x=X)
        c.set_gpu_handle_feed("w", 1)
    else:
        c.run_feed_gpu_handle({"x": X}, "w", 0)
    h = w = h * w + X
    for _ in range(4):
        y, z = h * w + X, h - X
        found = c.run(x=X)
        np.testing.assert_array_equal(found["y"], y)
        np.testing.assert_array_equal(found["z"], z)
        h, w = y, z if is_lasting else w
        np.testing.assert_array_equal(c.read_handle("h"), h)
        np.testing.assert_array_equal(c.read_handle("w"), w)


def test_two_outputs_that_are_one_feed_two_handles() -> None:
    g = Graph("twice")
    h, k = g.input("h", (3,)), g.input("k", (3,))
    total = h + k
    g.output("y", total)
    g.output("again", total)
    c = Session().compile(g)
    c.bind_handles({"h": H, "k": X})
    c.set_gpu_handle_feed("h", 0)
    c.set_gpu_handle_feed("k", 1)
    wanted = H + X
    for _ in range(3):
        y, again = c.run()
        np.testing.assert_array_equal(y, wanted)
        np.testing.assert_array_equal(again, wanted)
        np.testing.assert_array_equal(c.read_handle("k"), wanted)
        wanted = wanted * 2


def test_outputs_that_are_inputs_and_states_feed_handles() -> None:
    g = Graph("both")
    t, h, k = g.state("t", (3,)), g.input("h", (3,)), g.input("k", (3,))
    g.output("next", t + 1, feeds=t)
    g.output("same", k)
    g.output("mix", h * 2 + t)
    c = Session().compile(g)
    c.bind_handles({"h": H, "k": X})
    c.set_gpu_handle_feed("h", 0)
    c.set_gpu_handle_feed("k", 1)
    before, t_now = H, _at(3)
    for _ in range(4):
        following, same, mix = c.run()
        np.testing.assert_array_equal(mix, before * 2 + t_now)
        np.testing.assert_array_equal(same, X)
        before = t_now = t_now + 1
        np.testing.assert_array_equal(following, t_now)
        np.testing.assert_array_equal(c.read_handle("t"), t_now)
        np.testing.assert_array_equal(c.read_handle("h"), t_now)


def test_several_handles_are_bound_all_or_none() -> None:
    g = Graph("three")
    h, k, t = g.input("h", ("n",)), g.input("k", ("n",)), g.state("t", (1,))
    g.output("y", h + k + t)
    c = Session().compile(g, dims={"n": (1, 8)})
    c.bind_handles({"h": _at(3), "k": _at(3)})
    for wrong, match in ((_at(9), "n=9"), (_at(4), "n=4"), ([[1]], "rank")):
        with pytest.raises(InputError, match=match):
            c.bind_handles({"t": _at(1, 5), "h": _at(5, 5), "k": wrong})
    assert c.read_handle("t") == 0
    assert c.read_handle("h").tolist() == [0] * 3
    c.bind_handles({"t": _at(1, 5), "h": _at(5, 1), "k": [1, 2, 3, 4, 5]})
    assert c.run()["y"].tolist() == [7, 8, 9, 10, 11]


def test_handles_are_converted_as_inputs_are() -> None:
    g = Graph("one")
    g.output("y", g.input("h", (3,)) + 1)
    c = Session().compile(g, casting="same_kind")
    c.bind_handle("h", H.astype(np.float64))
    np.testing.assert_array_equal(c.run()["y"], H + 1)


def test_rows_that_are_none_are_refused() -> None:
    c = _step()
    c.bind_handle("h", H)
    assert c.read_handle("h", 1) == 20
    assert c.read_handle("h", slice(1, None)).tolist() == [20, 30]
    for rows in ("first", 3, slice("a", None)):
        with pytest.raises(SemelError, match=r"handle 'h'.*rows"):
            c.read_handle("h", rows)


def test_views_of_outputs_are_inputs_of_the_next_run() -> None:
    c = _step()  # w has a default
    c.bind_handle("h", H)
    c.set_gpu_handle_feed("h", 0)
    first = c.run_raw(x=X)
    y = H * 2 + X
    np.testing.assert_array_equal(c.run(x=first["z"])["y"], y * 2 + H - X)
    views = c.run_raw(x=X, h=H)
    np.testing.assert_array_equal(c.run(x=views["z"], w=views["y"])["y"], y * y + H - X)


def test_values_in_the_place_of_handles_may_lie_anyhow() -> None:
    g = Graph("default")
    g.output("y", g.input("x", (2, 3), default=np.zeros((2, 3), F)) + 1)
    c = Session().compile(g)
    plain = np.arange(6, dtype=F).reshape(2, 3)
    shifted = np.zeros(25, np.uint8)[1:].view(F).reshape(2, 3)
    shifted[...] = plain
    for array in (np.asfortranarray(plain), np.repeat(plain, 2, axis=1)[:, ::2], shifted):
        np.testing.assert_array_equal(c.run(array)["y"], plain + 1)


def test_a_handle_is_forgotten_after_a_run_that_was_given_another_value() -> None:
    c = _step()
    c.bind_handles({"h": H, "w": H})
    c.run(x=X, h=X, w=X)
    c.unbind("h")
    c.unbind("w")
    np.testing.assert_array_equal(c.run(x=X, h=H)["y"], H * 2 + X)


@pytest.mark.parametrize("after", [False, True])
def test_an_interruption_while_arrays_move_is_told(
    after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = _step()
    c.bind_handle("h", H)
    c.set_gpu_handle_feed("h", 0)
    c.run(x=X)
    exchange = c.plan.calls.exchange

    def interrupted(pairs: list[tuple[str, str]]) -> bool:
        if after:
            exchange(pairs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(c.plan.calls, "exchange", interrupted)
        c.run(x=X)
    with pytest.raises(StateError, match="h lost their values"):
        c.run(x=X)
    with pytest.raises(InputError, match="must be given h"):
        c.run(x=X)
    c.bind_handle("h", H)
    np.testing.assert_array_equal(c.run(x=X)["y"], H * 2 + X)

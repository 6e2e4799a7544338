"""`semel.jit`: what a call gives, what is compiled and how often."""

from __future__ import annotations

import copy
import gc
import inspect
import logging
import math
import pickle
import threading
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

import semel
from semel import GraphError, InputError, RecompileError, Tensor, Variable
from semel.tensor.spelling import SameAs
from semel.tracing.trees import rebuild

F32 = np.float32
Pair = namedtuple("Pair", "first second")


def data(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(F32)


# ---------------------------------------------------------------- sizes


def test_one_compile_for_all_sizes_of_all_arguments() -> None:
    @semel.jit
    def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return (x @ w + b).relu()

    for n, k, m in ((3, 4, 5), (1, 4, 5), (7, 9, 2), (40, 30, 20), (1, 1, 1), (3, 4, 5)):
        x, w, b = data(n, k), data(k, m, seed=1), data(m, seed=2)
        expected = np.maximum(x @ w + b, 0)
        np.testing.assert_allclose(layer(x, w, b).numpy(), expected, rtol=1e-4, atol=1e-5)
    assert layer.compile_count == 1
    assert str(layer.forms[0]) == "(x: float32[x_0, x_1], w: float32[x_1, w_1], b: float32[w_1])"


def test_sizes_that_agree_are_one_and_those_of_constants_are_numbers() -> None:
    w = Tensor(data(6, 6))

    @semel.jit
    def f(x: Tensor, y: Tensor) -> Tensor:
        return (x @ w) * y + x

    np.testing.assert_allclose(
        f(data(2, 6), data(2, 6)).numpy(),
        (data(2, 6) @ data(6, 6)) * data(2, 6) + data(2, 6),
        rtol=1e-4,
    )
    f(data(5, 6), data(5, 6))
    assert [str(form) for form in f.forms] == ["(x: float32[x_0, 6], y: float32[x_0, 6])"]


def test_equal_sizes_by_accident_are_not_one() -> None:
    @semel.jit
    def f(x: Tensor, y: Tensor) -> Tensor:
        return x.sum(0) + y.sum()

    assert f(data(4, 4), data(4, 4)).shape == (4,)
    assert f(data(2, 4), data(9, 3)).shape == (4,)
    assert f.compile_count == 1


def test_who_broadcasts_is_part_of_the_form() -> None:
    @semel.jit
    def f(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    for a, b in (((4, 3), (4, 3)), ((2, 5), (2, 5)), ((4, 3), (1, 3)), ((6, 3), (1, 3))):
        assert np.array_equal(f(data(*a), data(*b)).numpy(), data(*a) + data(*b))
    assert f.compile_count == 2
    with pytest.raises(GraphError, match=r"\[add\] shapes must broadcast, got \[4,3\] and \[2,3\]"):
        f(data(4, 3), data(2, 3))
    assert f.compile_count == 2


def test_a_first_call_of_ones_is_good_for_all() -> None:
    @semel.jit
    def f(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    for a, b in (((1,), (1,)), ((1,), (4,)), ((4,), (1,)), ((5,), (5,))):
        assert np.array_equal(f(data(*a), data(*b)).numpy(), data(*a) * data(*b))
    assert f.compile_count == 1


def test_empty_arrays_are_a_form_of_their_own() -> None:
    f = semel.jit(lambda x: x * 2)
    assert f(data(3)).shape == (3,)
    assert f(data(0)).shape == (0,)
    assert f(data(5)).shape == (5,)
    assert f.compile_count == 2


def test_conditions_of_a_graph_are_those_of_the_form() -> None:
    """x[n] + x[: n // 2] is right where both are equal, or the second is 1."""
    f = semel.jit(lambda x: x + x[: x.shape[0] // 2])
    for n in (2, 3):
        assert np.array_equal(f(data(n)).numpy(), data(n) + data(n)[: n // 2])
    with pytest.raises(GraphError, match="add"):
        f(data(8))


def test_a_reshape_that_does_not_fit_says_it_in_numbers() -> None:
    f = semel.jit(lambda x: x.reshape(-1, 4).sum(0))
    assert f(data(8)).shape == (4,)
    assert f(data(12)).shape == (4,)
    with pytest.raises(GraphError, match=r"\[reshape\].*9"):
        f(data(9))
    assert f.compile_count == 1


# ---------------------------------------------------------------- what Python asks


def test_a_question_about_a_size_makes_two_forms() -> None:
    @semel.jit
    def f(x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] > 3 else x * 3  # type: ignore[operator]

    for n in (2, 5, 3, 4, 9):
        assert np.array_equal(f(data(n)).numpy(), data(n) * (2 if n > 3 else 3))
    assert [str(form) for form in f.forms] == [
        "(x: float32[x_0]), x_0 <= 3",
        "(x: float32[x_0]), x_0 > 3",
    ]


@pytest.mark.parametrize(
    "ask",
    [
        lambda n: n == 4,
        lambda n: n != 4,
        lambda n: n <= 4,
        lambda n: n * 2 + 1 > 9,
        lambda n: bool(n - 4),
        lambda n: n in (4, 7),
        lambda n: max(n, 4) == 4,
        lambda n: (n, 3) == (4, 3),
        lambda n: n * 0.5 > 2,
        lambda n: n / 4 == 1,
    ],
)
def test_every_question_is_answered_for_each_call(ask: Any) -> None:
    f = semel.jit(lambda x: x + 1 if ask(x.shape[0]) else x - 1)
    for n in (4, 5, 4, 7, 3):
        assert np.array_equal(f(data(n)).numpy(), data(n) + (1 if ask(n) else -1)), n


@pytest.mark.parametrize(
    "use",
    [
        lambda x, n: x / math.sqrt(n),
        lambda x, n: x / np.sqrt(n),
        lambda x, n: sum((x * i for i in range(n)), x),
        lambda x, n: x + np.arange(n, dtype=F32),
        lambda x, n: x * int(n * 0.5),
        lambda x, n: x.reshape(*[1] * 1, n),
    ],
)
def test_a_number_that_python_needs_is_part_of_the_form(use: Any) -> None:
    f = semel.jit(lambda x: use(x, x.shape[0]))
    for n in (4, 6, 4):
        np.testing.assert_allclose(f(data(n)).numpy(), use(data(n), n), rtol=1e-6)
    assert f.compile_count <= 2


def test_sizes_calculate_without_being_asked_for() -> None:
    @semel.jit
    def f(x: Tensor) -> tuple[Any, ...]:
        n: Any = x.shape[0]
        return (
            x.sum() / n,
            x * (1 / n),
            x * n**-0.5,
            x.reshape(n, 1),
            n * 2,
            x[: n - 1],
            len(x.shape),
        )

    for n in (3, 4, 8):
        x = data(n)
        mean, scaled, rooted, column, twice, but_last, rank = f(x)
        np.testing.assert_allclose(mean.numpy(), x.mean(), rtol=1e-5)
        assert np.array_equal(scaled.numpy(), x * F32(1 / n))
        assert np.array_equal(rooted.numpy(), x * F32(n**-0.5))
        assert column.shape == (n, 1)
        assert (twice, rank, type(twice)) == (2 * n, 1, int)
        assert np.array_equal(but_last.numpy(), x[:-1])
    assert f.compile_count == 1


def test_outside_of_a_trace_a_size_is_no_int() -> None:
    n = Variable("n", 1, 8)
    with pytest.raises(TypeError, match="'n' is a size that each run has anew"):
        range(n)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="not supported between"):
        n < 3  # type: ignore[operator]  # noqa: B015
    assert n == Variable("n", 1, 8)
    assert bool(n)


# ---------------------------------------------------------------- numbers and static values


def test_numbers_change_without_a_compile_and_are_as_weak_as_python_s() -> None:
    @semel.jit
    def f(x: Tensor, scale: float, shift: int) -> Tensor:
        return x * (scale * 2 + 1) + shift

    plain = f._function  # what it does without jit
    for kind in ("float32", "float64", "float16"):
        for scale, shift in ((0.1, 1), (-3.7, 100), (1e-3, -5)):
            x = data(3).astype(kind)
            found = f(x, scale, shift)
            expected = plain(Tensor(x), scale, shift)
            assert found.dtype == expected.dtype == kind
            np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-6)
    assert f.compile_count == 3


def test_a_number_is_used_in_all_ways() -> None:
    @semel.jit
    def f(x: Tensor, a: float) -> dict[str, Any]:
        return {
            "arithmetic": x + a - (2 - a) * a / 3 + a**2 + 2**a + a // 2 + a % 3 - abs(-a),
            "function": semel.exp(a),
            "choice": semel.where(a > 1, x, -x),
            "number": a * 0.5,
            "truth": a < 3,
            "integers": Tensor([1, 2]) * a,
        }

    for a in (0.7, 2.5):
        found, plain = f(data(3), a), f._function(Tensor(data(3)), a)
        for name, value in plain.items():
            got = found[name]
            assert type(got) is type(value), name
            if isinstance(value, Tensor):
                assert got.dtype == value.dtype, name
                np.testing.assert_allclose(got.numpy(), value.numpy(), rtol=1e-6, err_msg=name)
            else:
                assert got == value
    assert f.compile_count == 1


def test_ints_are_sizes_axes_and_bounds() -> None:
    @semel.jit
    def f(x: Tensor, count: int, axis: int) -> Tensor:
        return x[:count].sum(axis)

    x = data(6, 5)
    for count, axis in ((2, 0), (4, 0), (3, 1), (6, 1), (9, -1)):
        np.testing.assert_allclose(f(x, count, axis).numpy(), x[:count].sum(axis), rtol=1e-5)
    assert f.compile_count == 3  # one for each axis


def test_a_truth_of_a_number_is_part_of_the_form() -> None:
    @semel.jit
    def f(x: Tensor, p: float) -> Tensor:
        return x * p if p > 0 else x

    for p in (0.5, 0.25, -1.0, 2.0, 0.0):
        assert np.array_equal(f(data(3), p).numpy(), data(3) * F32(p) if p > 0 else data(3))
    assert f.compile_count == 2


def test_everything_else_is_static() -> None:
    @semel.jit
    def f(x: Tensor, how: str = "sum", flag: bool = False, *, extra: Any = None) -> Tensor:
        result = getattr(x, how)()
        return -result if flag else result

    x = data(4)
    np.testing.assert_allclose(f(x).numpy(), x.sum(), rtol=1e-5)
    np.testing.assert_allclose(f(x, "max").numpy(), x.max())
    np.testing.assert_allclose(f(x, how="max", flag=True).numpy(), -x.max())
    np.testing.assert_allclose(f(x, "max", True).numpy(), -x.max())
    assert f.compile_count == 3
    with pytest.raises(
        InputError, match=r"\[f\] argument 'extra' must be made of .* got one of type set"
    ):
        f(x, extra={1, 2})


def test_static_arguments_are_named() -> None:
    @semel.jit(static="k")
    def f(x: Tensor, k: int) -> Tensor:
        assert type(k) is int
        return x * k

    assert f(data(3), 2).shape == (3,)
    f(data(3), 3)
    assert f.compile_count == 2
    with pytest.raises(
        GraphError, match=r"static names arguments of f\(x, k\), got 'kk'. Did you mean 'k'"
    ):
        semel.jit(static="kk")(f._function)


# ---------------------------------------------------------------- arguments and results


@dataclass
class Weights:
    w: Any
    b: Any


def test_trees_in_and_out() -> None:
    @semel.jit
    def f(p: Any, *rest: Tensor, **more: Tensor) -> Any:
        both = Pair(p["a"] + p["b"][0], [rest[0] * more["z"]])
        return {"pair": both, "none": None, "record": Weights(p["a"], "text")}

    a, b = data(3), data(3, seed=1)
    for given in ({"a": a, "b": (b,)}, {"b": (Tensor(b),), "a": a}):
        found = f(given, a, z=b)
        assert isinstance(found["pair"], Pair)
        np.testing.assert_allclose(found["pair"].first.numpy(), a + b)
        np.testing.assert_allclose(found["pair"].second[0].numpy(), a * b)
        assert isinstance(found["record"], Weights) and found["record"].b == "text"
        assert found["none"] is None
    assert f.compile_count == 1
    assert "p['b'][0]: float32[" in str(f.forms[0])


def test_arguments_by_name_position_and_default() -> None:
    @semel.jit
    def f(x: Tensor, y: Any = 2.0, /, z: float = 1.0) -> Tensor:
        return x * y + z

    x = data(3)
    for found in (f(x), f(x, 2.0), f(x, 2.0, 1.0), f(x, z=1.0)):
        np.testing.assert_allclose(found.numpy(), x * 2 + 1)
    assert f.compile_count == 1
    with pytest.raises(TypeError, match=r"f\(\) missing a required argument: 'x'"):
        f()
    with pytest.raises(TypeError, match=r"f\(\) got an unexpected keyword argument 'q'"):
        f(x, q=1)


def test_results_that_are_arguments_constants_and_one_twice() -> None:
    @semel.jit
    def f(x: Tensor) -> Any:
        y = x + 1
        return x, y, y, Tensor([1.0, 2.0]), np.arange(2), 7, "text"

    for n in (3, 5):
        x = data(n)
        same, one, two, constant, array, number, text = f(x)
        assert np.array_equal(same.numpy(), x)
        assert np.array_equal(one.numpy(), two.numpy())
        assert constant.tolist() == [1, 2]
        assert array.tolist() == [0, 1]
        assert (number, text) == (7, "text")
    assert f.compile_count == 1


def test_a_function_of_no_tensors_computes_nothing() -> None:
    f = semel.jit(lambda x: x.shape[0] * 2)
    assert (f(data(3)), f(data(5))) == (6, 10)
    with pytest.raises(GraphError, match="computes no tensor"):
        f.plan  # noqa: B018


def test_results_are_tensors_that_have_their_values() -> None:
    f = semel.jit(lambda x: x * 2)
    first = f(data(3))
    second = f(np.zeros(3, F32))
    assert np.array_equal(first.numpy(), data(3) * 2)  # no later call changes it
    assert np.array_equal((first + second).numpy(), data(3) * 2)
    assert np.array_equal(f(first * 1).numpy(), data(3) * 4)  # a lazy one is computed
    assert f(f(f(data(3)))).shape == (3,)
    assert f.compile_count == 1


def test_arrays_of_all_kinds_are_read() -> None:
    f = semel.jit(lambda x: x * 2)
    x = data(6, 4)
    assert np.array_equal(f(x[::2, ::-1]).numpy(), x[::2, ::-1] * 2)
    big = data(64, 128)
    assert np.array_equal(f(big).numpy(), big * 2)  # read where it lies
    assert np.array_equal(f(big.T).numpy(), big.T * 2)
    assert np.array_equal(f(big.astype(">f4")).numpy(), big * 2)
    assert f(np.arange(3).reshape(3, 1)).dtype == "int64"
    with pytest.raises(InputError, match=r"\[<lambda>\] argument 'x' must be an array of numbers"):
        f(np.array(["a"]))
    with pytest.raises(InputError, match="argument 'x'"):
        f(np.ma.masked_array(x, x > 0))


def test_sizes_that_only_the_data_tells() -> None:
    f = semel.jit(lambda x: x[x > 0])
    for seed in range(3):
        x = data(9, seed=seed)
        assert np.array_equal(f(x).numpy(), x[x > 0])
    assert f.compile_count == 1


# ---------------------------------------------------------------- dims


def test_dims_are_declared() -> None:
    @semel.jit(dims={"x": (Variable("n", 1, 8), None), "p['w']": (4, None)})
    def f(x: Tensor, p: Any) -> Tensor:
        return x @ p["w"]

    assert f(data(2, 4), {"w": data(4, 3)}).shape == (2, 3)
    assert str(f.forms[0]) == "(x: float32[n, 4], p['w']: float32[4, p_w_1])"
    with pytest.raises(InputError, match=r"must have the shape \[n, \*\], got \[9, 4\]"):
        f(data(9, 4), {"w": data(4, 3)})
    with pytest.raises(GraphError, match=r"'n' must have one range, got \[1, None\] and \[1, 8\]"):
        semel.jit(dims={"x": "n", "y": Variable("n", 1, 8)})(lambda x, y: x)

    @semel.jit(dims={"x": ("n", 4), "y": "n"})
    def g(x: Tensor, y: Tensor) -> Tensor:
        return x.sum(1) * y

    assert g(data(3, 4), data(3)).shape == (3,)
    assert str(g.forms[0]) == "(x: float32[n, 4], y: float32[n])"
    with pytest.raises(
        InputError, match=r"\[g\] argument 'x' must have the shape \[n, 4\], got \[3, 5\]"
    ):
        g(data(3, 5), data(3))
    with pytest.raises(InputError, match=r"'n' must be one size, got 3 in 'x' and 2 in 'y'"):
        g(data(3, 4), data(2))
    assert g.compile_count == 1


def test_dims_are_annotated() -> None:
    f = semel.jit(_annotated)
    assert f(data(2, 3)).shape == (2, 3)
    assert str(f.forms[0]) == "(x: float32[n, 3])"
    with pytest.raises(InputError, match=r"must have the shape \[n, 3\], got \[2, 4\]"):
        f(data(2, 4))


def _annotated(x: Annotated[Tensor, ("n", 3)]) -> Tensor:
    return x * 2


def test_dims_of_what_is_no_argument_are_refused() -> None:
    with pytest.raises(GraphError, match=r"\[jit\] dims names arguments of <lambda>\(x\), got 'y'"):
        semel.jit(dims={"y": ("n",)})(lambda x: x)
    with pytest.raises(
        GraphError, match=r"dims of 'x' must be names, ints, Variables or None, got 1.5"
    ):
        semel.jit(dims={"x": (1.5,)})(lambda x: x)


# ---------------------------------------------------------------- compiles


def test_compiles_are_seen_and_can_be_forbidden(caplog: pytest.LogCaptureFixture) -> None:
    f = semel.jit(lambda x: x * 2)
    with caplog.at_level(logging.DEBUG, "semel.compile"):
        f(data(3))
        f(data(3).astype(np.float64))
    told = [r.getMessage() for r in caplog.records if r.getMessage().startswith("jit")]
    assert told[0] == "jit <lambda>: form 1, (x: float32[x_0]): it was never called"
    assert told[1].endswith("argument 'x' was float32[*], is float64[3]")
    with semel.no_recompiles():
        f(data(5))
        with pytest.raises(
            RecompileError, match=r"inside no_recompiles\(\): argument 'x' was float64"
        ):
            f(data(3).astype(np.float16))
    assert f.compile_count == 2


def test_too_many_forms_are_an_error_that_says_what_changes() -> None:
    @semel.jit(max_forms=2)
    def f(x: Tensor, mode: str) -> Tensor:
        return x * len(mode)

    f(data(3), "a")
    f(data(3), "bb")
    with pytest.raises(
        RecompileError,
        match=r"\[f\] has 2 forms, and max_forms=2: argument 'mode' was 'bb', is 'ccc'",
    ):
        f(data(3), "ccc")
    assert f(data(3), "a").shape == (3,)


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ((np.ones(2, F32),), (np.ones((2, 2), F32),), r"'x' was float32\[\*\], is float32\[2, 2\]"),
        (
            ({"a": np.ones(2)},),
            ({"b": np.ones(2)},),
            r"'x' was a dict with keys \['a'\], is a dict",
        ),
        (([np.ones(2)],), ([np.ones(2)] * 2,), "'x' was a list of 1, is a list of 2"),
        ((np.ones(2),), (3,), "'x' was .*, is a.* int|is a number"),
        (([1.0, "a"],), ([1.0, "b"],), r"'x\[1\]' was 'a', is 'b'"),
    ],
)
def test_what_changed_is_said(before: Any, after: Any, text: str) -> None:
    f = semel.jit(max_forms=1)(lambda x: semel.ones(2))
    f(*before)
    with pytest.raises(RecompileError, match=text):
        f(*after)


def test_plans_are_reached_and_made_ahead() -> None:
    f = semel.jit(lambda x, w: x @ w)
    with pytest.raises(GraphError, match=r"\[<lambda>\] has no plan yet"):
        f.plan  # noqa: B018
    assert f.plan_for(data(2, 3), data(3, 2)) is None
    plan = f.prepare(data(2, 3), data(3, 2))
    with semel.no_recompiles():
        f(data(5, 3), data(3, 9))
    assert f.plan is plan is f.plan_for(data(1, 1), data(1, 1))
    assert list(plan.inputs) == ["x", "w"]
    assert repr(f) == "<jit <lambda>(x, w), 1 form>"


def test_params_of_a_plan_are_those_of_one_form() -> None:
    w = Tensor.param("w", [1.0, 2.0])
    f = semel.jit(lambda x: x * w)
    assert f(np.ones(2, F32)).tolist() == [1, 2]
    f.plan.set_param("w", np.array([3, 4], F32))
    assert f(np.ones(2, F32)).tolist() == [3, 4]
    assert f(np.ones((1, 2), F32)).tolist() == [[1, 2]]


def test_params_are_set_in_all_forms_and_in_those_to_come() -> None:
    w = Tensor.param("w", np.ones((8, 4), F32))
    f = semel.jit(lambda x, b: x @ w + b)
    x, forms = np.ones((3, 8), F32), [np.zeros((3, 4), F32), np.zeros((1, 4), F32), np.float32(0)]
    for b in forms[:2]:
        assert f(x, b).tolist() == np.full((3, 4), 8).tolist()
    new = np.full((8, 4), 2, F32)
    f.set_param("w", new)
    new[:] = 5  # a copy was taken
    for b in forms:
        assert f(x, b).tolist() == np.full((3, 4), 16).tolist()
    assert f.compile_count == 3
    f.set_params({"w": np.zeros((8, 4), F32)})
    for b in forms:
        assert not f(x, b).numpy().any()
    assert w.numpy().all()


def test_params_in_bodies_and_made_inside_are_found_in_forms_to_come() -> None:
    def f(x: Tensor) -> Tensor:
        w = Tensor.param("w", np.ones(2, F32))
        (last,), _ = Tensor.loop(3, [x], lambda _, states: ([states[0] * w], []))
        return last

    jitted = semel.jit(f)
    jitted(np.ones(2, F32))
    jitted.set_param("w", np.full(2, 2, F32))
    assert jitted(np.ones(2, F32)).tolist() == [8, 8]
    assert jitted(np.ones((1, 2), F32)).tolist() == [[8, 8]]


def test_params_that_one_form_refuses_are_set_in_none() -> None:
    """The product of both is one weight; neither is held beside it."""
    a, b = (Tensor.param(name, np.full((4, 4), 2, F32)) for name in "ab")
    f = semel.jit(lambda x, joint: x @ (a @ b) if joint else x @ a)
    x = np.eye(4, dtype=F32)
    assert f(x, False)[0, 0].item() == 2
    assert f(x, True)[0, 0].item() == 16
    plan = f.plan
    with pytest.raises(semel.InputError, match=r"\[param 'a'\] must be set together with 'b'"):
        f.set_param("a", np.zeros((4, 4), F32))
    assert f(x, False)[0, 0].item() == 2
    f.set_params({"a": np.ones((4, 4), F32), "b": np.ones((4, 4), F32)})
    assert f(x, False)[0, 0].item() == 1
    assert f(x, True)[0, 0].item() == 4
    assert plan.params["a"].version == 1


def test_data_of_params_is_kept_if_asked_for(tmp_path: Path) -> None:
    """Then each is set alone, and weights are laid out for other machines."""

    @semel.jit(keep_params=True)
    def f(x: Tensor) -> Tensor:
        a, b = (Tensor.param(name, np.full((64, 64), 2, F32)) for name in "ab")
        return x @ (a @ b)

    x = np.eye(64, dtype=F32)
    assert f(x)[0, 0].item() == 256
    f.set_param("a", np.ones((64, 64), F32))
    assert f(x)[0, 0].item() == 128
    gc.collect()
    f.plan.save(tmp_path / "f.plan", targets=["x86-64-v3", "aarch64"])
    assert semel.load_plan(tmp_path / "f.plan")(x=x)[0, 0] == 128


def test_params_must_be_those_of_a_form() -> None:
    w = Tensor.param("w", np.ones(2, F32))
    f = semel.jit(lambda x: x * w)
    with pytest.raises(semel.InputError, match=r"<lambda>\] has no param 'w' .*known: none\. Call"):
        f.set_param("w", np.zeros(2, F32))
    f(np.ones(2, F32))
    with pytest.raises(semel.InputError, match=r"has no param 'v' .*known: w"):
        f.set_param("v", np.zeros(2, F32))
    with pytest.raises(semel.InputError, match=r"param 'w'\] shape must be \(2,\), got \(3,\)"):
        f.set_param("w", np.zeros(3, F32))
    with pytest.raises(semel.InputError, match="dtype must be float32"):
        f.set_param("w", np.zeros(2))
    assert f(np.ones(2, F32)).tolist() == [1, 1]


def test_another_param_of_the_same_name_is_refused_once_one_was_set() -> None:
    f = semel.jit(lambda x: x * Tensor.param("w", np.ones(x.ndim + 1, F32)))
    f(np.ones(2, F32))
    f.set_param("w", np.zeros(2, F32))
    with pytest.raises(semel.ParamError, match=r"was replaced by float32\[2\], and another param"):
        f(np.ones((2, 3), F32))
    assert f.compile_count == 1


def test_params_that_are_set_while_a_form_is_made_are_those_of_the_form() -> None:
    w, sets = Tensor.param("w", np.ones(2, F32)), [np.full(2, 3, F32)]

    @semel.jit
    def f(x: Tensor) -> Tensor:
        if x.ndim == 2 and sets:
            f.set_param("w", sets.pop())  # as another thread may
        return x * w

    f(np.ones(2, F32))
    assert f(np.ones((1, 2), F32)).tolist() == [[3, 3]]
    assert f(np.ones(2, F32)).tolist() == [3, 3]
    assert f.compile_count == 2


def test_each_object_has_params_of_its_own() -> None:
    class Layer:
        def __init__(self) -> None:
            self.w = Tensor.param("w", np.ones(2, F32))

        @semel.jit
        def __call__(self, x: Tensor) -> Tensor:
            return x * self.w

    one, other = Layer(), Layer()
    for layer in (one, other):
        layer(np.ones(2, F32))
    one.__call__.set_param("w", np.zeros(2, F32))
    assert one(np.ones((1, 2), F32)).tolist() == [[0, 0]]
    assert other(np.ones((1, 2), F32)).tolist() == [[1, 1]]


def test_an_exception_leaves_nothing() -> None:
    @semel.jit
    def f(x: Tensor) -> Tensor:
        if x.ndim == 2:
            raise ValueError("mine")
        return x.reshape(7)

    with pytest.raises(ValueError, match="mine"):
        f(data(2, 2))
    with pytest.raises(GraphError, match="reshape"):
        f(data(3))
    assert f.compile_count == 0
    assert f(data(7)).shape == (7,)


def test_options_reach_the_plan() -> None:
    f = semel.jit(threads=1)(lambda x: x + 1)
    f(data(3))
    assert f.plan.threads == 1
    with pytest.raises(semel.UserError, match="threads"):
        semel.jit(threads=0)(lambda x: x)


# ---------------------------------------------------------------- inside each other


def test_jit_inside_jit_is_inlined() -> None:
    inner = semel.jit(lambda x: x * 2)
    outer = semel.jit(lambda x: inner(x) + inner(x + 1))
    assert np.array_equal(outer(data(3)).numpy(), data(3) * 2 + (data(3) + 1) * 2)
    assert (inner.compile_count, outer.compile_count) == (0, 1)


def test_a_jitted_function_can_be_part_of_a_graph() -> None:
    f = semel.jit(lambda x: x * 2)
    n = Variable("n", 1, 8)
    plan = f(Tensor.input("x", (n,))).prepare()
    assert plan(x=data(3)).shape == (3,)
    assert f.compile_count == 0
    (total,), _ = semel.loop(3, [Tensor([1.0])], lambda i, t: ([f(t[0])], []))
    assert total.tolist() == [8]


def test_recursion_ends_in_the_trace() -> None:
    @semel.jit
    def power(x: Tensor, k: int) -> Tensor:
        return x if k == 0 else x * power(x, k - 1)

    np.testing.assert_allclose(power(data(3), 3).numpy(), data(3) ** 4, rtol=1e-5)


def test_threads_call_at_once() -> None:
    f = semel.jit(lambda x, s: (x * s).sum(0))
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for i in range(20):
            x = data(1 + (seed + i) % 5, 300, seed=seed)
            if not np.allclose(f(x, float(seed)).numpy(), (x * seed).sum(0), rtol=1e-4, atol=1e-4):
                wrong.append((seed, i))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert f.compile_count == 1


def test_a_foreign_input_is_refused() -> None:
    z = Tensor.input("x", (3,))
    f = semel.jit(lambda x: x + z)
    with pytest.raises(
        GraphError, match=r"depend on its arguments, constants and params, got input 'x'"
    ):
        f(data(3))


# ---------------------------------------------------------------- donated arrays


def test_a_donated_tensor_gives_its_memory() -> None:
    step = semel.jit(donate="s")(lambda s, x: s * 0.5 + x)
    x = data(5)
    s = step(step(Tensor(x), x), x)
    address = s._value.array.__array_interface__["data"][0]
    expected = s.numpy() * F32(0.5) + x
    after = step(s, x)
    assert np.array_equal(after.numpy(), expected)
    assert after._value.array.__array_interface__["data"][0] == address
    with pytest.raises(GraphError, match="'s, which was donated to <lambda>'"):
        s.numpy()


def test_what_somebody_else_reads_is_not_written_to() -> None:
    step = semel.jit(donate="s")(lambda s: s + 1)
    s = step(Tensor(data(4)))
    s = step(s)
    lazy, other = s * 2, Tensor(s)
    expected = s.numpy()
    step(s)
    assert np.array_equal(lazy.numpy(), expected * 2)
    assert np.array_equal(other.numpy(), expected)


def test_a_donated_array_is_written_to() -> None:
    step = semel.jit(donate=["s"])(lambda s, x: s + x)
    s, x = np.zeros(5, F32), np.ones(5, F32)
    step(s, x)
    for i in range(1, 4):
        assert step(s, x).tolist() == [i] * 5 == s.tolist()
    assert s.flags.writeable


def test_axes_of_one_are_dropped_as_in_the_call() -> None:
    drop = semel.jit(lambda x: x.squeeze() * 2)
    for shape in [(1, 3), (4, 3), (1, 5), (1, 1), (2, 1, 3)]:
        assert drop(data(*shape)).shape == data(*shape).squeeze().shape
    assert drop.compile_count == 4


# ---------------------------------------------------------------- functions of libraries


def _of_one_tensor() -> list[str]:
    """Functions with second names of arguments that a tensor alone can be given to."""
    found = []
    for name in semel.__all__:
        function = getattr(semel, name)
        if not inspect.isfunction(function):
            continue
        parameters = inspect.signature(function).parameters.values()
        if any(isinstance(p.default, SameAs) for p in parameters):
            try:
                function(Tensor(SQUARE))
            except (TypeError, GraphError):
                continue
            found.append(name)
    return found


SQUARE = data(4, 4)


def test_functions_with_second_names_are_followed() -> None:
    names = _of_one_tensor()
    assert {"softmax", "sum", "std", "argmax", "flip", "clip"} <= {*names}
    for name in names:
        jitted = semel.jit(getattr(semel, name))
        call = jitted._call_form((SQUARE,), {})
        assert call is not None
        given = rebuild(call.spec, iter([Tensor(value) for _, value in call.leaves]))
        jitted._invoke(jitted._function, given)  # as a trace does; compiling all would take long


def test_functions_of_ours_and_of_numpys_are_functions() -> None:
    np.testing.assert_allclose(
        semel.jit(semel.softmax)(SQUARE, dim=0).numpy(), semel.softmax(SQUARE, 0).numpy(), 1e-6
    )
    total = semel.jit(semel.sum)
    assert total(SQUARE, 1, True).shape == (4, 1)
    assert total(SQUARE).shape == ()
    assert total(SQUARE, keepdim=True, dim=0).shape == (1, 4)
    with pytest.raises(GraphError, match="give one, not both"):
        total(SQUARE, 1, dim=1)
    assert semel.jit(semel.concat)([SQUARE, SQUARE]).shape == (8, 4)
    assert semel.jit(semel.std)(SQUARE).item() == pytest.approx(SQUARE.std(), 1e-6)
    sine = semel.jit(np.sin)
    for _ in range(2):
        np.testing.assert_allclose(sine(SQUARE), np.sin(SQUARE), rtol=1e-6)
    assert (sine.compile_count, sine._like is not None) == (1, True)
    np.testing.assert_allclose(semel.jit(np.sum)(SQUARE), SQUARE.sum(), rtol=1e-5)


# ---------------------------------------------------------------- pickles, and what leaves


@semel.jit
def doubled(x: Tensor) -> Tensor:
    return x * 2


class Scaled:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    @semel.jit
    def times(self, x: Tensor) -> Tensor:
        return x * self.factor


def test_functions_of_modules_are_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(doubled)) is doubled
    assert copy.deepcopy(doubled) is doubled
    method = pickle.loads(pickle.dumps(Scaled(3.0).times))
    assert method(np.ones(2, F32)).tolist() == [3, 3]
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(semel.jit(lambda x: x))


@pytest.mark.parametrize("what", ["donate", "static"])
def test_names_of_arguments_are_names(what: str) -> None:
    options: dict[str, Any] = {what: 3}
    with pytest.raises(GraphError, match=f"{what} must be names of arguments, got 3"):
        semel.jit(**options)(lambda x: x)


def test_what_was_given_away_is_no_input_of_a_plan() -> None:
    step = semel.jit(donate="s")(lambda s: s + 1)
    s = Tensor(data(4))
    lazy = s * 2
    step(s)
    for ask in (s.numpy, (s * 2).prepare, s.sum().item):
        with pytest.raises(GraphError, match=r"has no value any more.*what the call returned"):
            ask()
    assert lazy.shape == (4,)


def test_what_a_trace_was_given_does_not_leave_it() -> None:
    kept: list[Tensor] = []

    @semel.jit
    def keeping(first: Tensor) -> Tensor:
        kept.append(first)
        return first

    keeping(data(3))
    for ask in (kept[0].numpy, kept[0].prepare, (kept[0] * 2).tolist):
        with pytest.raises(
            GraphError, match=r"must not leave the body.*got 'first': f32\[first_0\]"
        ) as e:
            ask()
        assert "prepare()" not in str(e.value)
    with pytest.raises(GraphError, match=r"got a generator, which is read.*Return a list"):
        semel.jit(lambda x: (y for y in [x]))(data(3))

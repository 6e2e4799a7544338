"""What constants and params alone determine is made before the first run, whatever it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import semel
from semel import Tensor, Variable

RNG = np.random.default_rng(11)
X = RNG.standard_normal((4, 64), dtype=np.float32)
C = RNG.standard_normal(64).astype(np.float32)
M = RNG.standard_normal((64, 64)).astype(np.float32)


def _dft(n: int) -> Tensor:
    """Cosines of all products of two numbers: made of nothing but counting."""
    place = semel.arange(n).cast("float32")
    return (place.reshape(n, 1) * place * (2 * np.pi / n)).cos()


#: What is made of a vector of 64 and a matrix, with what NumPy says.
CASES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[], np.ndarray]]] = {
    "scan": (lambda c, m: c.cumsum(0), lambda: np.cumsum(C)),
    "sort": (lambda c, m: c.sort(0), lambda: np.sort(C)),
    "large": (
        lambda c, m: (c.reshape(64, 1, 1) * m).sin().sum((0, 1)),
        lambda: np.sin(C[:, None, None] * M).sum((0, 1)),
    ),
    "product": (lambda c, m: (m @ m).softmax(-1) @ c, lambda: _softmax(M @ M) @ C),
}


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def _kernels(plan: semel.ExecutionPlan) -> list[str]:
    return [row.name for row in plan.prepared_kernels]


@pytest.mark.parametrize("name", CASES)
def test_one_kernel_is_left_of_what_constants_determine(name: str) -> None:
    make, expected = CASES[name]
    plan = (Tensor.input("x", (4, 64)) * make(Tensor(C), Tensor(M))).prepare()
    assert _kernels(plan) == ["mul"]
    np.testing.assert_allclose(plan(x=X), X * expected(), rtol=2e-4, atol=1e-3)


@pytest.mark.parametrize("name", CASES)
def test_the_bits_are_those_of_a_run_that_is_given_the_numbers(name: str) -> None:
    make, _ = CASES[name]
    known = (Tensor.input("x", (4, 64)) * make(Tensor(C), Tensor(M))).prepare()
    given = make(Tensor.input("c", (64,)), Tensor.input("m", (64, 64)))
    plan = (Tensor.input("x", (4, 64)) * given).prepare()
    arrays = {"x": X, "c": C, "m": M}
    np.testing.assert_array_equal(known(x=X), plan(**{n: arrays[n] for n in plan.inputs}))


@pytest.mark.parametrize("name", CASES)
def test_a_param_that_is_replaced_makes_it_anew(name: str, tmp_path: Path) -> None:
    make, _ = CASES[name]
    x = Tensor.input("x", (4, 64))
    plan = (x * make(Tensor.param("c", C), Tensor.param("m", M))).prepare(keep_params=True)
    assert _kernels(plan) == ["mul"]
    plan.save(tmp_path / "a.plan")
    fresh = (x * make(Tensor(C[::-1].copy()), Tensor(M))).prepare()
    for each in (plan, semel.load_plan(tmp_path / "a.plan")):
        before = each(x=X).copy()
        each.set_param("c", C[::-1].copy())
        np.testing.assert_array_equal(each(x=X), fresh(x=X))
        each.set_param("c", C)
        np.testing.assert_array_equal(each(x=X), before)


def test_a_matrix_of_counted_numbers_is_packed() -> None:
    n = Variable("n", 1, 100)
    plan = (Tensor.input("x", (n, 64)) @ _dft(64)).prepare()
    assert _kernels(plan) == ["matmul"]
    place = np.arange(64, dtype=np.float32)
    matrix = np.cos((place[:, None] * place * np.float32(2 * np.pi / 64)).astype(np.float64))
    np.testing.assert_allclose(plan(x=X), X @ matrix, rtol=1e-3, atol=1e-3)


def test_what_an_input_has_a_part_in_is_computed_by_runs() -> None:
    x = Tensor.input("x", (64,))
    plan = ((x + Tensor(C)).cumsum(0) * Tensor(C)).prepare()
    assert _kernels(plan) == ["add", "cumsum", "mul"]


def test_an_output_that_is_known_is_an_output_all_the_same() -> None:
    x = Tensor.input("x", (64,))
    plan = semel.prepare([x + 1, Tensor(C).cumsum(0), Tensor(C).cumsum(0) * x])
    one, two, three = plan(x=C)
    np.testing.assert_allclose(one, C + 1)
    np.testing.assert_allclose(two, np.cumsum(C), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(three, two * C)


def test_what_may_fail_fails_in_the_run() -> None:
    x = Tensor.input("x", (4, 64))
    index = Tensor.param("i", np.array([1, 99]))
    plan = (x[:2] + Tensor(M)[index]).prepare()
    with pytest.raises(semel.IndexRangeError, match="99"):
        plan(x=X)


def test_what_is_known_can_be_moved() -> None:
    x = Tensor.input("x", (64,))
    known = Tensor(C).cumsum(0)
    plan = (x.to("cpu:1") * known.to("cpu:1")).to("cpu").prepare()
    np.testing.assert_array_equal(plan(x=C), (x * known).prepare()(x=C))

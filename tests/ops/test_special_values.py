"""The ends of every dtype's range, and zeros with a sign: machine, interpreter and NumPy agree.

Random data hardly ever meets the lowest integer, whose absolute value is no integer of its
dtype, or a negative zero.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.codegen.lowering import lower_graph, run_by_interpreter, run_kernels

from semel import GraphError, Tensor
from semel.ir.graph import Graph
from semel.ir.types import as_dtype
from semel.ops.evaluate import evaluate

SIGNED = ("int8", "int16", "int32", "int64")
INTEGERS = (*SIGNED, "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")

BINARY: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "fmod": (lambda x, y: x.fmod(y), np.fmod),
    "remainder": (lambda x, y: x % y, np.remainder),
    "floor_divide": (lambda x, y: x // y, np.floor_divide),
    "divmod": (lambda x, y: divmod(x, y)[0] + divmod(x, y)[1], lambda x, y: x // y + x % y),
}
UNARY: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "abs": (abs, np.abs),
    "sign": (lambda x: x.sign(), np.sign),
    "neg": (lambda x: -x, np.negative),
}


def ends(dtype: str) -> np.ndarray:
    """Values around zero and around both ends of an integer dtype's range."""
    low, high = (int(v) for v in (np.iinfo(dtype).min, np.iinfo(dtype).max))
    around = {-7, -3, -2, -1, 0, 1, 2, 3, 5, low, low + 1, high // 2, high - 1, high}
    return np.array(sorted(v for v in around if low <= v <= high), dtype)


def pairs(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.meshgrid(ends(dtype), ends(dtype))
    return np.ascontiguousarray(a.reshape(-1)), np.ascontiguousarray(b.reshape(-1))


def every_way(tensor: Tensor, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The result by the ops' definitions, by the interpreter and by the machine."""
    graph = Graph((tensor.node,))
    with np.errstate(all="ignore"):
        return {
            "reference": evaluate(graph, inputs)[0],
            "interpreter": run_kernels(*lower_graph([tensor]), inputs, {}, run_by_interpreter)[0],
            "machine": tensor.prepare()(**inputs),
        }


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", BINARY)
def test_division_at_the_ends_of_the_range(name: str, dtype: str) -> None:
    run, numpy_function = BINARY[name]
    a, b = pairs(dtype)
    x, y = (Tensor.input(n, a.shape, dtype) for n in "xy")
    with np.errstate(all="ignore"):
        want = numpy_function(a, b)
    for way, got in every_way(run(x, y), {"x": a, "y": b}).items():
        np.testing.assert_array_equal(got, want, err_msg=way, strict=True)


@pytest.mark.parametrize("dtype", SIGNED)
def test_fmod_by_a_constant_at_the_ends_of_the_range(dtype: str) -> None:
    """Divisors that the compiler knows are divided by in other ways."""
    a, divisors = ends(dtype), [int(v) for v in ends(dtype)]
    x = Tensor.input("x", a.shape, dtype)
    with np.errstate(all="ignore"):
        want = np.stack([np.fmod(a, a.dtype.type(d)) for d in divisors])
    got = Tensor.stack([x.fmod(d) for d in divisors]).prepare()(x=a)
    np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", UNARY)
def test_functions_at_the_ends_of_the_range(name: str, dtype: str) -> None:
    run, numpy_function = UNARY[name]
    a = ends(dtype)
    with np.errstate(all="ignore"):
        want = numpy_function(a)
    for way, got in every_way(run(Tensor.input("x", a.shape, dtype)), {"x": a}).items():
        np.testing.assert_array_equal(got, want, err_msg=way, strict=True)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_sign_of_zero_has_no_sign(dtype: str) -> None:
    """As in NumPy: sign(-0.0) is 0.0, and NaN stays NaN."""
    a = np.array([-0.0, 0.0, np.nan, -np.inf, np.inf, -1e-7, 3.0], as_dtype(dtype).numpy)
    want = [0.0, 0.0, np.nan, -1.0, 1.0, -1.0, 1.0]
    for way, got in every_way(Tensor.input("x", a.shape, dtype).sign(), {"x": a}).items():
        wide = got.astype(np.float64)
        np.testing.assert_array_equal(wide, want, err_msg=way)
        assert not np.signbit(wide[:2]).any(), way


# ---------------------------------------------------------------- comparisons by value

COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", COMPARISONS)
def test_integers_that_a_dtype_cannot_hold_compare_as_in_numpy(name: str, dtype: str) -> None:
    compare, a = getattr(operator, name), ends(dtype)
    x = Tensor.input("x", a.shape, dtype)
    low, high = int(a.min()), int(a.max())
    numbers = [low - 1, low, high, high + 1, -(2**70), 2**70]
    results = [r for n in numbers for r in (compare(x, n), compare(n, x))]
    want = [w for n in numbers for w in (compare(a, n), compare(n, a))]
    np.testing.assert_array_equal(Tensor.stack(results).prepare()(x=a), want)


@pytest.mark.parametrize("dtype", SIGNED)
@pytest.mark.parametrize("name", COMPARISONS)
def test_uint64_compares_with_signed_integers_by_value(name: str, dtype: str) -> None:
    compare = getattr(operator, name)
    a, b = (m.reshape(-1) for m in np.meshgrid(ends("uint64"), ends(dtype)))
    x, y = Tensor.input("x", a.shape, "uint64"), Tensor.input("y", a.shape, dtype)
    pairs_of_ints = [(int(p), int(q)) for p, q in zip(a, b, strict=True)]
    data = {"x": np.ascontiguousarray(a), "y": np.ascontiguousarray(b)}
    for way, got in every_way(compare(x, y), data).items():
        assert got.tolist() == [compare(p, q) for p, q in pairs_of_ints], way
    assert compare(y, x).prepare()(**data).tolist() == [compare(q, p) for p, q in pairs_of_ints]


@pytest.mark.parametrize(
    "mix",
    [
        lambda x, y: x + y,
        lambda x, y: y // x,
        lambda x, y: x.maximum(y),
        lambda x, y: x.fmod(y),
        lambda x, y: x**y,
        lambda x, y: (x == 0).where(x, y),
        lambda x, y: Tensor.concat([x, y]),
        lambda x, y: x - [1, 2],
    ],
)
def test_uint64_does_not_mix_with_signed_integers(mix: Callable[[Any, Any], Any]) -> None:
    x, y = Tensor.input("x", (2,), "uint64"), Tensor.input("y", (2,), "int8")
    with pytest.raises(GraphError, match="have no integer dtype in common"):
        mix(x, y)


def test_uint64_divides_with_signed_integers_as_floats() -> None:
    x, y = Tensor.input("x", (2,), "uint64"), Tensor.input("y", (2,), "int64")
    a, b = np.array([2**63, 3], np.uint64), np.array([-2, 2])
    got = (x / y).prepare()(x=a, y=b)
    assert got.dtype == np.float32
    assert got.tolist() == [-(2.0**62), 1.5]
    mixed = Tensor.concat([x, y, Tensor([0.5])])
    assert mixed.dtype.name == "float32"


def test_an_integer_past_every_float_is_refused() -> None:
    with pytest.raises(GraphError, match="an integer must fit float64, got one of 1329 bits"):
        _ = Tensor.input("x", (2,)) < 10**400

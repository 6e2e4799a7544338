"""NumPy's functions on tensors: lazy where there is a lazy form, refused where there is none."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import semel
from semel import GraphError, Tensor, UnsupportedError, Variable
from semel.tensor import numpy_calls

A = np.array([[0.5, -1.25, 2.0], [3.0, 0.0, -0.75]], np.float32)
T = Tensor(A)
X = Tensor.input("x", (Variable("n", 1, 8), 3))

Call = Callable[[Any], Any]
#: Each is called with an array and with a tensor, and says the same of both.
CALLS: dict[str, Call] = {
    "sin": np.sin,
    "a + t": lambda t: A + t,
    "a @ t": lambda t: A.T @ t,
    "scalar * t": lambda t: np.float32(2) * t,
    "a == t": lambda t: t == A,
    "a < t": lambda t: A[::-1] < t,
    "2 - t": lambda t: np.subtract(2, t),
    "divmod": lambda t: np.divmod(t, np.float32(2)),
    "power": lambda t: np.power(t, 2),
    "maximum": lambda t: np.maximum(t, 0),
    "arctan2": lambda t: np.arctan2(t, A),
    "positive": np.positive,
    "logical_not": np.logical_not,
    "sin in float64": lambda t: np.sin(t, dtype=np.float64),
    "add in float64": lambda t: np.add(t, A, dtype="f8", casting="same_kind"),
    "reduce": np.add.reduce,
    "reduce all": lambda t: np.maximum.reduce(t, axis=None, keepdims=True),
    "accumulate": lambda t: np.multiply.accumulate(t, 1),
    "outer": lambda t: np.subtract.outer(t, A[0]),
    "concatenate": lambda t: np.concatenate([t, A], axis=1),
    "concatenate flat": lambda t: np.concatenate((t, t), axis=None),
    "stack": lambda t: np.stack([t, t], axis=1),
    "vstack": lambda t: np.vstack([t, t[0]]),
    "hstack": lambda t: np.hstack([t[0], t[1]]),
    "dstack": lambda t: np.dstack([t, t]),
    "column_stack": lambda t: np.column_stack([t[0], t[1]]),
    "append": lambda t: np.append(t, t, axis=0),
    "append flat": lambda t: np.append(t, t[0]),
    "atleast": lambda t: np.atleast_3d(t, t[0], t[0, 0]),
    "sum": np.sum,
    "sum by place": lambda t: np.sum(t, 0, np.float64),
    "sum by name": lambda t: np.sum(t, axis=-1, keepdims=True),
    "mean": lambda t: np.mean(t, axis=0, dtype=np.float64),
    "std": lambda t: np.std(t, axis=1, ddof=1),
    "var by place": lambda t: np.var(t, 1, None, None, 1),
    "max": lambda t: np.max(t, 1),
    "amin": lambda t: np.amin(t, axis=0),
    "ptp": lambda t: np.ptp(t, axis=1),
    "any": lambda t: np.any(t, axis=0),
    "argmax": lambda t: np.argmax(t, axis=1),
    "count_nonzero": lambda t: np.count_nonzero(t, axis=1),
    "norm": np.linalg.norm,
    "norm by axis": lambda t: np.linalg.norm(t, 1, 0),
    "sort flat": lambda t: np.sort(t, axis=None),
    "argsort": lambda t: np.argsort(t, kind="stable"),
    "cumsum": lambda t: np.cumsum(t, axis=1, dtype="f8"),
    "clip": lambda t: np.clip(t, -1, 2),
    "round": lambda t: np.round(t, 1),
    "where": lambda t: np.where(t > 0, t, 0.0),
    "where alone": lambda t: np.where(t > 0),
    "einsum": lambda t: np.einsum("ij,kj->ik", t, A, optimize=True),
    "dot": lambda t: np.dot(t, A.T),
    "outer product": lambda t: np.outer(t[0], t[1]),
    "trace": np.trace,
    "diagonal": np.diagonal,
    "tril": lambda t: np.tril(t, -1),
    "reshape": lambda t: np.reshape(t, (3, -1)),
    "ravel": np.ravel,
    "pad": lambda t: np.pad(t, ((0, 1), (2, 0)), constant_values=3),
    "select": lambda t: np.select([t > 1, t > 0], [t, t * 2], default=-1.0),
    "transpose": lambda t: np.transpose(t, (1, 0)),
    "transpose all": np.transpose,
    "expand_dims": lambda t: np.expand_dims(t, (0, -1)),
    "squeeze": lambda t: np.squeeze(t[:, None]),
    "moveaxis": lambda t: np.moveaxis(t, 0, 1),
    "swapaxes": lambda t: np.swapaxes(t, 0, 1),
    "flip": np.flip,
    "fliplr": np.fliplr,
    "flipud": np.flipud,
    "roll": lambda t: np.roll(t, 1, axis=1),
    "tile": lambda t: np.tile(t, (2, 1)),
    "repeat": lambda t: np.repeat(t, 2, axis=1),
    "broadcast_to": lambda t: np.broadcast_to(t, (2, 2, 3)),
    "broadcast_arrays": lambda t: np.broadcast_arrays(t, t[0]),
    "meshgrid": lambda t: np.meshgrid(t[0], A[1], indexing="ij"),
    "take": lambda t: np.take(t, [2, 0], axis=1),
    "take_along_axis": lambda t: np.take_along_axis(t, np.array([[0], [2]]), axis=1),
    "compress": lambda t: np.compress([True, False, True], t, axis=1),
    "extract": lambda t: np.extract(A > 0, t),
    "nonzero": np.nonzero,
    "flatnonzero": np.flatnonzero,
    "argwhere": np.argwhere,
    "unique": np.unique,
    "isclose": lambda t: np.isclose(t, A),
    "isreal": np.isreal,
    "real": np.real,
    "zeros_like": np.zeros_like,
    "full_like": lambda t: np.full_like(t, 3, dtype=np.int32),
    "copy": np.copy,
    "tensordot": lambda t: np.tensordot(t, t, axes=([0], [0])),
    "cross": lambda t: np.cross(t.T, A.T, axis=0),
    "vecdot": lambda t: np.vecdot(t, t, axis=0),  # type: ignore[call-overload]
    "average": lambda t: np.average(t, axis=1, weights=np.array([1, 2, 3], np.float32)),
    "quantile": lambda t: np.quantile(t, 0.25, axis=1, method="lower"),
    "diff": lambda t: np.diff(t, n=2, axis=1, prepend=np.float32(0)),
    "searchsorted": lambda t: np.searchsorted(np.sort(A[0]), t, side="right"),
    "digitize": lambda t: np.digitize(t, np.array([-1.0, 0, 1], np.float32)),
    "histogram": lambda t: np.histogram(t, bins=4, range=(-2, 3))[0],
    "isin": lambda t: np.isin(t, [0.5, 3.0], invert=True),
    "rot90": lambda t: np.rot90(t, k=3),
    "insert": lambda t: np.insert(t, 1, 9, axis=0),
    "nan_to_num": lambda t: np.nan_to_num(t, nan=5.0),
    "nanstd": lambda t: np.nanstd(t, ddof=1),
    "hypot": lambda t: np.hypot(t, 1),
    "sum of some": lambda t: np.sum(t, axis=1, where=A > 0, initial=2),
    "max of some": lambda t: np.max(t, where=A > 0, initial=-7),
    "std of some": lambda t: np.std(t, axis=1, where=A > -1),
    "pad in a mode": lambda t: np.pad(t, ((1, 2), (0, 1)), "reflect"),
    "pad around": lambda t: np.pad(t, 3, mode="wrap"),
    "take in a mode": lambda t: np.take(t, [-9, 7], axis=1, mode="clip"),
    "gradient": lambda t: np.gradient(t, 2.0),
    "gradient by axis": lambda t: np.gradient(t, np.array([0, 1, 3], np.float32), axis=1),
    "unwrap": lambda t: np.unwrap(t * 5, axis=1),
    "frexp": np.frexp,
    "modf": np.modf,
    "interp": lambda t: np.interp(t, [0.5, 0.1, 0.9], [1.0, 2.0, 3.0], period=2).astype("f4"),
}


def _parts(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


@pytest.mark.parametrize("name", CALLS)
def test_numpy_says_the_same_of_a_tensor_lazily(name: str) -> None:
    made, wanted = _parts(CALLS[name](T)), _parts(CALLS[name](A))
    assert len(made) == len(wanted)
    for tensor, array in zip(made, wanted, strict=True):
        assert isinstance(tensor, Tensor)
        np.testing.assert_allclose(tensor.numpy(), array, rtol=1e-5)
        assert tensor.dtype == np.asarray(array).dtype


#: Answers that are values: these compute.
VALUES: dict[str, Call] = {
    "allclose": lambda t: np.allclose(t, A),
    "array_equal": lambda t: np.array_equal(A, t),
    "array2string": np.array2string,
    "shape": np.shape,
    "size": lambda t: (np.size(t), np.size(t, 1)),
    "ndim": np.ndim,
    "asarray": lambda t: np.asarray(t).tolist(),
    "assert_allclose": lambda t: np.testing.assert_allclose(t, A),
    "iscomplexobj": np.iscomplexobj,
    "float64": lambda t: np.float64(t[0, 0]),
}


@pytest.mark.parametrize("name", VALUES)
def test_what_is_about_values_is_computed(name: str) -> None:
    assert VALUES[name](T) == VALUES[name](A)


def test_numpy_writes_what_a_tensor_holds(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", T)
    np.savez(tmp_path / "t.npz", first=T)
    np.testing.assert_array_equal(np.load(tmp_path / "t.npy"), A)
    np.testing.assert_array_equal(np.load(tmp_path / "t.npz")["first"], A)
    into = np.zeros_like(A)
    np.copyto(into, T)
    np.testing.assert_array_equal(into, A)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        np.testing.assert_allclose(T, A + 1)


def test_nothing_needs_a_value() -> None:
    """An input has none: whatever is lazy takes it all the same."""
    x: Any = X
    y = np.mean(np.concatenate([np.exp(x), np.add(np.ones(3, np.float32), x)], axis=1), axis=1)
    assert isinstance(y, Tensor) and str(y.shape[0]) == "n"
    given = np.ones((4, 3), np.float32)
    np.testing.assert_allclose(y.prepare(threads=1)(x=given), np.full(4, (np.e + 2) / 2), rtol=1e-6)
    with pytest.raises(GraphError, match=r"must not depend on inputs or variables, got input 'x'"):
        np.allclose(x, given)


def test_numbers_stay_weak_on_either_side() -> None:
    half = Tensor(np.ones(2, np.float16))
    for made in (np.add(2.0, half), np.multiply(half, 3), np.float64(2) * half):
        assert made.dtype == np.float16
    assert np.add(Tensor([1], "int8"), 1).dtype == "int8"


def test_dtypes_of_several_are_found_without_values() -> None:
    assert np.result_type(T, np.float64) == semel.float64
    assert np.can_cast(X, np.float64)


REFUSED: list[tuple[Call, type[Exception], str]] = [
    (lambda t: np.sin(t, out=np.zeros_like(A)), GraphError, r"\[np.sin\] .* not written into"),
    (lambda t: np.sum(t, out=np.zeros(())), GraphError, r"\[np.sum\] .* not written into an arr"),
    (lambda t: np.add(t, t, where=A > 0), GraphError, r"\[np.add\] has no `where` for tensors"),
    (lambda t: np.nansum(t, where=A > 0), GraphError, r"\[np.nansum\] has no `where` for tensors"),
    (lambda t: np.add.reduce(t, initial=3), GraphError, r"\[np.add.reduce\] has no `initial`"),
    (lambda t: np.add(t, t, casting="no"), GraphError, r"\[np.add\] has no `casting`"),
    (lambda t: np.meshgrid(t[0], sparse=True), GraphError, r"\[np.meshgrid\] has no `sparse`"),
    (
        lambda t: np.add.at(t, 0, 1),
        UnsupportedError,
        r"\[np.add.at\] has no lazy form\. Use t.index_add",
    ),
    (np.subtract.reduce, UnsupportedError, r"\[np.subtract.reduce\] has no lazy form"),
    (np.spacing, UnsupportedError, r"\[np.spacing\] .* Take the values: np.spacing\(t.numpy\(\)"),
    (np.i0, UnsupportedError, r"\[np.i0\] has no lazy form .* np.i0\(t.numpy\(\)\)"),
    (np.linalg.eigvals, UnsupportedError, r"\[np.linalg.eigvals\] has no lazy form"),
    (lambda t: np.broadcast_arrays(t, subok=True), GraphError, r"takes other arguments for tens"),
    (lambda t: np.reshape(t, (3, 2), order="F"), GraphError, r"\[np.reshape\] has no `order`"),
    (lambda t: np.ravel(t, order="F"), GraphError, r"\[np.ravel\] has no `order` for tensors"),
    (lambda t: np.pad(t, 1, mode="wrap", stat_length=1), GraphError, r"\[np.pad\] has no `"),
    (lambda t: np.einsum("ij->j", t, out=A[0]), GraphError, r"tensors: got an unexpected keyword"),
    (lambda t: np.resize(t, (2, 2)), UnsupportedError, r"\[np.resize\] has no lazy form for tens"),
    (lambda t: np.fill_diagonal(t, 0), UnsupportedError, r"\[np.fill_diagonal\] has no lazy form"),
]


@pytest.mark.parametrize("call, error, message", REFUSED, ids=[m for *_, m in REFUSED])
def test_what_has_no_lazy_form_says_what_to_write(
    call: Call, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(T)


def test_an_array_is_not_added_to_in_place() -> None:
    array = A.copy()
    with pytest.raises(GraphError, match=r"`array \+= tensor` have no lazy form\. Write y = a"):
        array += T
    np.testing.assert_array_equal(array, A)


def test_ufuncs_of_others_are_refused() -> None:
    theirs = np.frompyfunc(lambda v: v, 1, 1)
    with pytest.raises(UnsupportedError, match="has no lazy form"):
        theirs(T)
    assert np.add(np.ones(2, ml_dtypes.bfloat16), Tensor([1.0, 1.0], "bfloat16")).dtype == (
        "bfloat16"
    )


def test_the_tables_name_what_numpy_has() -> None:
    for name in [*numpy_calls._OPS, *numpy_calls._UFUNC_NAMES]:
        assert isinstance(getattr(np, name), np.ufunc)
    for name in [*numpy_calls._CALLS, *numpy_calls._WRITTEN_HERE, *numpy_calls._OF_VALUES]:
        function: Any = np
        for part in name.split("."):
            function = getattr(function, part)
        inspect.signature(function)


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "fftn", "rfft2", "irfftn"])
def test_complex_numbers_go_by_our_names(name: str) -> None:
    """A float array [.., 2] would be taken for NumPy's complex one."""
    with pytest.raises(
        UnsupportedError, match=rf"\[np.fft.{name}\].*\[\.\.\., 2\].*semel.fft.{name}\("
    ):
        getattr(np.fft, name)(T)


def test_shifts_of_frequencies_are_numpys() -> None:
    np.testing.assert_array_equal(np.fft.fftshift(T), np.fft.fftshift(A))


def test_numpys_where_takes_numbers_as_a_condition() -> None:
    np.testing.assert_array_equal(np.where(T, T > 1, 0.5), np.where(A, A > 1, 0.5))

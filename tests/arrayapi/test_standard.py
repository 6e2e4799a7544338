"""The array API standard, function by function: names, signatures, dtypes and values.

`array_api_strict` is what the standard's authors made to be compared with: it takes nothing that
the standard does not say, and gives what it says.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import semel
from semel import GraphError, Tensor

strict: Any = pytest.importorskip("array_api_strict", reason="array_api_strict is not installed")

#: What the reference has beside the standard, and dtypes that there are none of here.
_NOT_HERE = {"complex64", "complex128", "Device", "ArrayAPIStrictFlags"}
#: Extensions and functions that are not here yet.
_MISSING = {n for n in strict.__all__ if not hasattr(semel, n)} & {
    "hypot", "logaddexp", "nextafter", "signbit", "tensordot", "searchsorted",
    "isin", "diff",
}  # fmt: skip
NAMES = sorted(
    name
    for name in strict.__all__
    if name not in _NOT_HERE | _MISSING and not name.endswith("_array_api_strict_flags")
)
FUNCTIONS = [n for n in NAMES if isinstance(getattr(strict, n), types.FunctionType)]
DTYPES = ["bool", "int8", "int32", "int64", "uint8", "uint32", "float32", "float64"]
KINDS = {"bool": "b", "integral": "iu", "floating": "f", "numeric": "iuf", "any": "biuf"}


def test_every_name_of_the_standard_is_here() -> None:
    assert [name for name in NAMES if not hasattr(semel, name)] == []
    assert semel.__array_api_version__ == strict.__array_api_version__ == "2025.12"


def test_every_member_of_an_array_is_one_of_a_tensor() -> None:
    members = {n for n in dir(strict.asarray(1)) if n.startswith("__") or not n.startswith("_")}
    members -= {"__buffer__"}  # before Python 3.12
    in_place = {n for n in members if n.startswith("__i") and "__" + n[3:] in members}
    assert sorted(n for n in members - in_place if not hasattr(Tensor, n)) == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_have_the_names_and_places_of_the_standard(name: str) -> None:
    """What is given by name has that name, and what is given by place that place."""
    ours = list(inspect.signature(getattr(semel, name)).parameters.values())
    theirs = list(inspect.signature(getattr(strict, name)).parameters.values())
    for i, wanted in enumerate(theirs):
        found = next((p for p in ours if p.name == wanted.name), None)
        if wanted.kind is wanted.KEYWORD_ONLY:
            assert found is not None, f"no {wanted.name}="
            assert found.kind in (found.KEYWORD_ONLY, found.POSITIONAL_OR_KEYWORD)
        elif wanted.kind is wanted.POSITIONAL_ONLY:
            assert i < len(ours) and ours[i].kind is not wanted.KEYWORD_ONLY
        else:
            assert i < len(ours) and ours[i].kind is wanted.kind
            assert wanted.kind is wanted.VAR_POSITIONAL or ours[i].name == wanted.name
    assert all(p.default is not p.empty or p.kind is p.VAR_POSITIONAL for p in ours[len(theirs) :])


# ---------------------------------------------------------------- values


def _numbers(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    if dtype == "bool":
        return draw.integers(0, 2, shape).astype(bool)
    if dtype.startswith("float"):
        return (draw.standard_normal(shape) * 2).astype(dtype)
    return draw.integers(0 if dtype.startswith("u") else -5, 9, shape).astype(dtype)


def _of(xp: Any, value: Any) -> Any:
    """The value for one of the two: arrays become its own."""
    if isinstance(value, np.ndarray):
        return xp.asarray(value) if xp is strict else Tensor(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_of(xp, each) for each in value)
    return getattr(xp, value.name) if isinstance(value, _Named) else value


class _Named:
    """A dtype, by name."""

    def __init__(self, name: str) -> None:
        self.name = name


def _agree(name: str, *args: Any, rtol: float = 1e-5, **options: Any) -> None:
    def answer(xp: Any) -> Any:
        named = {key: _of(xp, value) for key, value in options.items()}
        return getattr(xp, name)(*(_of(xp, a) for a in args), **named)

    _compare(answer(semel), answer(strict), name, rtol)


def _compare(ours: Any, theirs: Any, name: str, rtol: float = 1e-5) -> None:
    if isinstance(theirs, tuple):
        assert isinstance(ours, tuple) and len(ours) == len(theirs), name
        assert getattr(ours, "_fields", ()) == getattr(theirs, "_fields", ()), name
        for mine, other in zip(ours, theirs, strict=True):
            _compare(mine, other, name, rtol)
        return
    wanted = np.from_dlpack(theirs)
    assert isinstance(ours, Tensor), name
    assert ours.dtype == wanted.dtype, f"{name}: {ours.dtype}, not {wanted.dtype}"
    got = ours.numpy()
    assert got.shape == wanted.shape, name
    np.testing.assert_allclose(got, wanted, rtol=rtol, atol=1e-6, err_msg=name)


UNARY = {
    "abs": "numeric", "acos": "floating", "acosh": "floating", "asin": "floating",
    "asinh": "floating", "atan": "floating", "atanh": "floating", "bitwise_invert": "bool",
    "ceil": "numeric", "cos": "floating", "cosh": "floating", "exp": "floating",
    "expm1": "floating", "floor": "numeric", "isfinite": "numeric", "isinf": "numeric",
    "isnan": "numeric", "log": "floating", "log10": "floating", "log1p": "floating",
    "log2": "floating", "logical_not": "bool", "negative": "numeric", "positive": "numeric",
    "reciprocal": "floating", "round": "numeric", "sign": "numeric", "signbit": "floating",
    "sin": "floating", "sinh": "floating", "sqrt": "floating", "square": "numeric",
    "tan": "floating", "tanh": "floating", "trunc": "numeric",
}  # fmt: skip
BINARY = {
    "add": "numeric", "atan2": "floating", "bitwise_and": "bool", "bitwise_or": "integral",
    "bitwise_xor": "integral", "bitwise_left_shift": "integral", "copysign": "floating",
    "bitwise_right_shift": "integral", "divide": "floating", "equal": "any",
    "floor_divide": "integral", "greater": "numeric", "greater_equal": "numeric",
    "hypot": "floating", "less": "numeric", "less_equal": "numeric", "logaddexp": "floating",
    "logical_and": "bool", "logical_or": "bool", "logical_xor": "bool", "maximum": "numeric",
    "minimum": "numeric", "multiply": "numeric", "nextafter": "floating", "not_equal": "any",
    "pow": "floating", "remainder": "integral", "subtract": "numeric",
}  # fmt: skip


def _dtypes(kind: str) -> list[str]:
    return [d for d in DTYPES if np.dtype(d).kind in KINDS[kind]]


@pytest.mark.parametrize("name", [n for n in UNARY if n not in _MISSING])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")
def test_functions_of_one(name: str) -> None:
    for dtype in _dtypes(UNARY[name]):
        _agree(name, _numbers(dtype, (2, 3)))
        if dtype == "float64":
            special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 0.5])
            _agree(name, special)


@pytest.mark.parametrize("name", [n for n in BINARY if n not in _MISSING])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")
def test_functions_of_two(name: str) -> None:
    """With broadcasting, promotion within a kind, and numbers on either side."""
    for dtype in _dtypes(BINARY[name]):
        x, y = _numbers(dtype, (2, 3), 1), _numbers(dtype, (3,), 2)
        if name in ("floor_divide", "remainder", "bitwise_left_shift", "bitwise_right_shift"):
            y = np.abs(y).astype(dtype) % np.array(7, dtype) + np.array(1, dtype)
        x = np.abs(x) if name == "pow" else x
        _agree(name, x, y)
        if dtype in ("int8", "uint8", "float32"):
            wide = {"int8": "int32", "uint8": "uint32", "float32": "float64"}[dtype]
            _agree(name, x, y.astype(wide))
        if dtype == "float32":
            _agree(name, x, 2.0)
            _agree(name, 2.0, y)


REDUCE: list[tuple[str, str, dict[str, Any]]] = [
    ("sum", "floating", {}), ("sum", "numeric", {"axis": 1, "keepdims": True}),
    ("sum", "numeric", {"axis": 0, "dtype": _Named("float64")}),
    ("prod", "floating", {"axis": (0, 1)}), ("mean", "floating", {"axis": 0}),
    ("std", "floating", {"axis": 1, "correction": 1.0}), ("var", "floating", {"correction": 0.5}),
    ("max", "numeric", {"axis": -1}), ("min", "numeric", {}), ("all", "any", {"axis": 0}),
    ("any", "any", {"keepdims": True}), ("argmax", "numeric", {"axis": 1, "keepdims": True}),
    ("argmin", "numeric", {}), ("count_nonzero", "any", {"axis": 0}),
    ("cumulative_sum", "floating", {"axis": 1, "include_initial": True}),
    ("cumulative_prod", "floating", {"axis": 0, "dtype": _Named("float64")}),
    ("sort", "numeric", {"axis": 0, "descending": True, "stable": True}),
    ("argsort", "numeric", {"axis": -1}),
]  # fmt: skip


@pytest.mark.parametrize("name, kind, options", REDUCE)
def test_functions_along_axes(name: str, kind: str, options: dict[str, Any]) -> None:
    for dtype in _dtypes(kind):
        if name == "sum" and dtype.startswith("u") and "dtype" not in options:
            continue  # sums of unsigned integers are int64 here: xfails.txt
        _agree(name, _numbers(dtype, (2, 3)), **options)


M, V = _numbers("float32", (2, 3)), _numbers("int32", (5,))
ANY: Any = Tensor(M)
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("asarray", (M,), {"dtype": _Named("float64"), "copy": True}),
    ("astype", (M, _Named("int32")), {"copy": False}),
    ("arange", (2, 11, 3), {"dtype": _Named("int32")}),
    ("arange", (5,), {}),
    ("linspace", (0.0, 1.0, 5), {"dtype": _Named("float64"), "endpoint": False}),
    ("eye", (2, 3), {"k": 1, "dtype": _Named("int8")}),
    ("full", ((2, 2), 3), {}),
    ("full_like", (M, 2.0), {"dtype": _Named("float64")}),
    ("zeros", ((2, 3),), {"dtype": _Named("uint8")}),
    ("ones", (3,), {"dtype": _Named("float64")}),
    ("ones_like", (V,), {}),
    ("zeros_like", (V,), {"dtype": _Named("bool")}),
    ("meshgrid", (V, V), {"indexing": "ij"}),
    ("tril", (M,), {"k": -1}),
    ("triu", (M,), {"k": 1}),
    ("broadcast_arrays", (M, M[0]), {}),
    ("broadcast_to", (M[0], (2, 3)), {}),
    ("concat", ([M, M],), {"axis": 1}),
    ("concat", ((M, M),), {"axis": None}),
    ("expand_dims", (M,), {"axis": 1}),
    ("flip", (M,), {"axis": 1}),
    ("matmul", (M, M.T.copy()), {}),
    ("matrix_transpose", (M,), {}),
    ("moveaxis", (M, 0, 1), {}),
    ("permute_dims", (M, (1, 0)), {}),
    ("repeat", (V, 2), {"axis": 0}),
    ("repeat", (M, np.array([1, 0, 2])), {"axis": 1}),
    ("repeat", (M, np.array(2)), {}),
    ("reshape", (M, (3, 2)), {"copy": True}),
    ("roll", (M, 1), {"axis": 1}),
    ("squeeze", (M[None],), {"axis": 0}),
    ("stack", ([M, M],), {"axis": 1}),
    ("take", (M, np.array([1, 0])), {"axis": 1}),
    ("take_along_axis", (M, np.array([[1], [0]])), {"axis": 1}),
    ("tile", (M, (2, 1)), {}),
    ("unstack", (M,), {"axis": 1}),
    ("vecdot", (M, M[0]), {"axis": -1}),
    ("vecdot", (V, V), {}),
    ("where", (M > 0, M, 0.0), {}),
    ("clip", (M,), {"min": -1.0, "max": 1.0}),
    ("nonzero", (V,), {}),
    ("unique_values", (V,), {}),
    ("unique_counts", (V,), {}),
    ("unique_inverse", (V,), {}),
    ("tensordot", (M, M.T.copy()), {"axes": 1}),
    ("searchsorted", (np.sort(V), V), {"side": "right"}),
    ("isin", (V, V[:2]), {}),
    ("diff", (M,), {"axis": 0, "n": 1}),
]


@pytest.mark.parametrize("name, args, options", [c for c in CALLS if c[0] not in _MISSING])
def test_other_functions(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    _agree(name, *args, **options)


def test_each_nan_is_distinct_in_the_functions_of_the_standard() -> None:
    x = Tensor([np.nan, 1.0, np.nan])
    assert len(semel.unique_values(x)) == 3 and len(semel.unique(x)) == 2
    assert semel.unique_counts(x).counts.tolist() == [1, 1, 1]
    assert semel.unique_all(x).indices.tolist() == [1, 0, 2]


# ---------------------------------------------------------------- dtypes


def test_dtypes_are_described_as_the_standard_says() -> None:
    for name in ("float32", "float64"):
        ours, theirs = semel.finfo(getattr(semel, name)), strict.finfo(getattr(strict, name))
        for field in ("bits", "eps", "max", "min", "smallest_normal"):
            assert getattr(ours, field) == getattr(theirs, field)
        assert ours.dtype == getattr(semel, name) and ours.tiny == ours.smallest_normal
    for name in ("int8", "int64", "uint8", "uint64"):
        limits, wanted = semel.iinfo(name), strict.iinfo(getattr(strict, name))
        assert (limits.bits, limits.max, limits.min) == (wanted.bits, wanted.max, wanted.min)
    assert semel.finfo(Tensor([1.0], "bfloat16")).bits == 16
    assert semel.finfo(np.zeros(2)).dtype == "float64" and semel.iinfo(int).bits == 64


def test_dtypes_promote_as_the_standard_says() -> None:
    for a in DTYPES:
        for b in DTYPES:
            try:
                wanted = strict.result_type(getattr(strict, a), getattr(strict, b))
            except TypeError:
                continue  # between kinds the standard says nothing
            assert semel.result_type(a, b) == str(wanted).rpartition(".")[2], (a, b)
    assert semel.result_type(Tensor([1], "int8"), 3) == "int8"
    assert semel.result_type(Tensor([1], "int8"), 3.0, np.float64(2)) == "float32"
    for a in DTYPES:
        assert semel.can_cast(a, a) and semel.can_cast(Tensor(np.zeros(1, a)), a)
    assert semel.can_cast("int8", "int16") and not semel.can_cast("int16", "int8")
    assert semel.can_cast("float32", "float64") and not semel.can_cast("int32", "float32")


def test_kinds_of_dtypes() -> None:
    kinds = ("bool", "signed integer", "unsigned integer", "integral", "real floating", "numeric",
             "complex floating")  # fmt: skip
    for dtype in DTYPES:
        for kind in (*kinds, ("bool", "integral")):
            wanted = strict.isdtype(getattr(strict, dtype), kind)
            assert semel.isdtype(getattr(semel, dtype), kind) == wanted, (dtype, kind)
    assert semel.isdtype(semel.int8, semel.int8) and semel.isdtype("f4", (np.int8, np.float32))


@pytest.mark.parametrize("call, message", [
    (lambda: semel.finfo("int8"), r"^\[finfo\] needs a float dtype, got int8\. Use iinfo\."),
    (lambda: semel.iinfo("float32"), r"^\[iinfo\] needs an integer dtype, got float32\. Use finf"),
    (lambda: semel.isdtype("int8", "whole"), r"^\[isdtype\] kind must be one of bool, signed int"),
    (semel.result_type, r"^\[result_type\] needs at least one tensor or dtype\."),
    (lambda: semel.can_cast("int8", "text"), r"^\[can_cast\] dtype must be one of bool"),
    (lambda: semel.vecdot(M, V), r"^\[vecdot\] axis -1 must have one size in both, got 3 and 5"),
    (lambda: semel.vecdot(M, V[:3], axis=0), r"^\[vecdot\] axis must be negative for f32\[2,3\]"),
    (lambda: semel.cumulative_sum(M), r"^\[cumulative_sum\] axis must be given for f32\[2,3\]\."),
    (lambda: semel.broadcast_shapes((2,), (3,)), r"^\[broadcast_shapes\] shapes must broadcast"),
    (lambda: semel.repeat(V, [1, 2]), r"^\[repeat\] needs one number or one for each of 5, got 2"),
    (lambda: semel.repeat(V, Tensor(V) + 1), r"^\[repeat\] repeats must be known when the graph"),
    (lambda: semel.repeat(V, [-1] * 5), r"^\[repeat\] repeats must be integers >= 0 on one axis"),
    (lambda: semel.linspace(ANY, 1), r"^\[linspace\] start and stop must be num"),
    (lambda: Tensor(M).to_device("cpu", stream=1), r"^\[to_device\] CPU memory has no streams"),
    (lambda: Tensor(M).__array_namespace__(api_version="2020.1"), r"^\[__array_namespace__\] api"),
    (lambda: semel.zeros((2,), device="float32"), r"^\[zeros\] takes a device, got the dtype"),
])  # fmt: skip
def test_what_is_wrong_is_said(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        call()


# ---------------------------------------------------------------- the namespace


def test_the_namespace_is_the_package() -> None:
    x = Tensor(M)
    assert x.__array_namespace__() is semel is x.__array_namespace__(api_version="2022.12")
    info, wanted = semel.__array_namespace_info__(), strict.__array_namespace_info__()
    assert info.capabilities() == wanted.capabilities()
    assert info.default_dtypes() == {
        "real floating": semel.float32, "integral": semel.int64, "indexing": semel.int64,
    }  # fmt: skip
    real = {k: v for k, v in wanted.dtypes().items() if not k.startswith("complex")}
    assert info.dtypes().keys() == real.keys()
    assert set(info.dtypes(kind="unsigned integer")) == {"uint8", "uint16", "uint32", "uint64"}
    assert set(info.dtypes(kind=("bool", "real floating"))) == {"bool", "float32", "float64"}
    assert info.default_device() == "cpu" and "cpu" in info.devices()


def test_tensors_know_where_they_are() -> None:
    x = Tensor.input("x", (3,), device="cpu:1")
    assert Tensor(M).device == "cpu" and (x + 1).sum().device == "cpu:1"
    assert Tensor(M).to_device("cpu:0").device == "cpu:0"
    here = Tensor(M)
    assert here.to_device("cpu") is here  # nothing to do
    assert semel.ones((2,), device="cpu:1").device == semel.arange(3, device="cpu:1").device
    assert semel.asarray(M, device="cpu").device == "cpu"


def test_asarray_copies_as_it_is_told() -> None:
    x = Tensor(M)
    assert semel.asarray(x) is x and semel.asarray(x, copy=False) is x
    assert semel.asarray(x, copy=True) is not x
    assert x.astype("float32", copy=False) is x and x.astype("float32") is not x
    fixed = np.frombuffer(M.tobytes(), np.float32)
    assert np.shares_memory(np.asarray(semel.asarray(fixed, copy=False)), fixed)
    for wrong in (M, [1, 2], 3, x.astype("int8")):
        with pytest.raises(ValueError, match=r"^\[asarray\] .* needs a copy: leave copy=False out"):
            semel.asarray(wrong, dtype="float64", copy=False)
    assert semel.asarray(3, dtype="int8").dtype == "int8" and semel.asarray(2.5).dtype == "float32"
    assert semel.asarray(np.float64(2)).dtype == "float64"


def test_sizes_may_be_symbolic() -> None:
    n = semel.Variable("n", 1, 8)
    x = Tensor.input("x", (n, 3))
    y = semel.vecdot(x, semel.ones((3,))) + semel.cumulative_sum(x, axis=0)[:, 0]
    assert semel.broadcast_shapes((n, 1), (3,)) == (n, 3)
    given = np.arange(12, dtype=np.float32).reshape(4, 3)
    want = given.sum(1) + given.cumsum(0)[:, 0]
    np.testing.assert_allclose(y.prepare(threads=1)(x=given), want)

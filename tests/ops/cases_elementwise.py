"""Rows for operators and functions of single elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from tests.ops.case import Case, Spec

from semel import Tensor

NAN, INF = math.nan, math.inf
SPECIALS = (NAN, INF, -INF, 0.0, -0.0, 1e-30, -1e-30)
erf = np.vectorize(math.erf, otypes=[np.float64])


def np_sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def np_softplus(x: Any) -> Any:
    return np.logaddexp(0, x)


def np_erf(x: Any) -> Any:
    return erf(x) if np.size(x) else np.asarray(x)


def np_gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np_erf(x / math.sqrt(2)))


def np_gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def np_elu(x: Any) -> Any:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


# name, NumPy, low, high, absolute tolerance for float32 (results that cross zero)
UNARY: list[tuple[str, Callable[[Any], Any], float, float, float]] = [
    ("abs", np.abs, -5, 5, 0),
    ("neg", np.negative, -5, 5, 0),
    ("sign", np.sign, -5, 5, 0),
    ("sqrt", np.sqrt, 0, 9, 0),
    ("rsqrt", lambda x: 1 / np.sqrt(x), 0.1, 9, 0),
    ("square", np.square, -5, 5, 0),
    ("reciprocal", lambda x: 1 / x, 0.2, 5, 0),
    ("exp", np.exp, -8, 8, 0),
    ("exp2", np.exp2, -8, 8, 0),
    ("expm1", np.expm1, -3, 3, 0),
    ("log", np.log, 0.1, 9, 1e-7),
    ("log2", np.log2, 0.1, 9, 1e-7),
    ("log10", np.log10, 0.1, 9, 1e-7),
    ("log1p", np.log1p, -0.9, 5, 0),
    ("sin", np.sin, -9, 9, 1e-6),
    ("cos", np.cos, -9, 9, 1e-6),
    ("tan", np.tan, -1.2, 1.2, 1e-6),
    ("asin", np.arcsin, -1, 1, 0),
    ("acos", np.arccos, -1, 1, 1e-6),
    ("atan", np.arctan, -9, 9, 0),
    ("sinh", np.sinh, -4, 4, 0),
    ("cosh", np.cosh, -4, 4, 0),
    ("tanh", np.tanh, -4, 4, 0),
    ("asinh", np.arcsinh, -9, 9, 0),
    ("acosh", np.arccosh, 1.01, 9, 1e-6),
    ("atanh", np.arctanh, -0.9, 0.9, 0),
    ("erf", np_erf, -4, 4, 0),
    ("sigmoid", np_sigmoid, -9, 9, 0),
    ("gelu", np_gelu, -5, 5, 2e-6),
    ("silu", lambda x: x * np_sigmoid(x), -9, 9, 1e-7),
    ("relu", lambda x: np.maximum(x, 0), -5, 5, 0),
    ("relu6", lambda x: np.clip(x, 0, 6), -5, 9, 0),
    ("leaky_relu", lambda x: np.where(x >= 0, x, x * 0.01), -5, 5, 0),
    ("elu", np_elu, -5, 5, 1e-7),
    ("softplus", np_softplus, -5, 5, 1e-7),
    ("mish", lambda x: x * np.tanh(np_softplus(x)), -5, 5, 1e-6),
    ("hard_sigmoid", lambda x: np.clip(x + 3, 0, 6) / 6, -5, 5, 1e-7),
    ("hardswish", lambda x: x * np.clip(x + 3, 0, 6) / 6, -5, 5, 1e-6),
    ("softsign", lambda x: x / (1 + np.abs(x)), -5, 5, 0),
    ("logsigmoid", lambda x: -np_softplus(-x), -5, 5, 1e-7),
    ("floor", np.floor, -5, 5, 0),
    ("ceil", np.ceil, -5, 5, 0),
    ("trunc", np.trunc, -5, 5, 0),
    ("round", np.round, -5, 5, 0),
    ("isnan", np.isnan, -5, 5, 0),
    ("isinf", np.isinf, -5, 5, 0),
    ("isfinite", np.isfinite, -5, 5, 0),
]
# Compositions round at every step in half precision, so their bound is a few of its ulps.
HALF_STEPS = {"float16": 4e-3, "bfloat16": 4e-2}
EXACT_SPECIALS = (
    "abs",
    "neg",
    "sign",
    "sqrt",
    "exp",
    "log",
    "tanh",
    "floor",
    "isnan",
    "isinf",
    "isfinite",
    "relu",
    "atan",
    "sigmoid",
    "erf",
)


def method(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(Tensor, name)
    return function


def unary_cases() -> Iterator[Case]:
    for name, numpy_fn, low, high, atol in UNARY:
        for shape in ((), (17,), (3, 65), (0, 4)):
            inputs = (Spec(shape, "float32", low, high),)
            # A few ulps for compositions; the primitives' own bounds are tested elsewhere.
            yield Case(name, method(name), numpy_fn, inputs, rtol=4e-6, atol=atol)
        inputs = (Spec((33,), "float64", low, high),)
        yield Case(name, method(name), numpy_fn, inputs, rtol=1e-11, atol=1e-13)
        for half, rtol in HALF_STEPS.items():
            inputs = (Spec((9,), half, low, high),)
            yield Case(name, method(name), numpy_fn, inputs, rtol=rtol, atol=rtol)
    for name in EXACT_SPECIALS:
        numpy_fn = next(row[1] for row in UNARY if row[0] == name)
        inputs = (Spec((19,), "float32", -2, 2, SPECIALS),)
        yield Case(f"{name}_specials", method(name), numpy_fn, inputs, rtol=4e-6, atol=1e-7)


def integer_unary_cases() -> Iterator[Case]:
    for dtype in ("int8", "int32", "int64", "uint8"):
        for name in ("abs", "sign", "floor", "round"):
            reference = {"abs": np.abs, "sign": np.sign}.get(name, lambda x: x)
            yield Case(name, method(name), reference, (Spec((13,), dtype, -9, 9),))
        yield Case("invert", lambda x: ~x, np.invert, (Spec((13,), dtype, -9, 9),))
        yield Case("isnan", method("isnan"), np.isnan, (Spec((3,), dtype),))
        # NumPy would take the exponential of an int8 in float16.
        inputs = (Spec((7,), dtype, 0, 3),)
        yield Case("exp", method("exp"), lambda x: np.exp(x * 1.0), inputs, "float32", 4e-6)
        yield Case("sqrt", method("sqrt"), lambda x: np.sqrt(x * 1.0), inputs, "float32")
    yield Case("invert", lambda x: ~x, np.invert, (Spec((5,), "bool"),))
    yield Case("logical_not", method("logical_not"), np.logical_not, (Spec((5,), "int32", 0, 1),))
    yield Case("neg", lambda x: -x, np.negative, (Spec((5,), "uint8", 0, 9),))
    yield Case("round_decimals", lambda x: x.round(1), lambda x: np.round(x, 1), (Spec((9,)),))
    yield Case("gelu_tanh", lambda x: x.gelu("tanh"), np_gelu_tanh, (Spec((17,)),), atol=1e-6)
    yield Case("softcap", lambda x: x.softcap(2.0), lambda x: 2 * np.tanh(x / 2), (Spec((9,)),))
    yield Case("clip", lambda x: x.clip(-1, 1), lambda x: np.clip(x, -1, 1), (Spec((9,)),))
    yield Case("clip_low", lambda x: x.clip(0), lambda x: np.maximum(x, 0), (Spec((9,), "int8"),))
    yield Case(
        "clip_nan",
        lambda x: x.clip(-1, 1),
        lambda x: np.clip(x, -1, 1),
        (Spec((9,), special=SPECIALS),),
    )


# name, on tensors, NumPy, low and high of the right operand
FLOAT_BINARY: list[tuple[str, Any, Any, float, float]] = [
    ("add", lambda x, y: x + y, np.add, -3, 3),
    ("sub", lambda x, y: x - y, np.subtract, -3, 3),
    ("mul", lambda x, y: x * y, np.multiply, -3, 3),
    ("div", lambda x, y: x / y, np.divide, 0.5, 3),
    ("floordiv", lambda x, y: x // y, np.floor_divide, 0.5, 3),
    ("mod", lambda x, y: x % y, np.mod, 0.5, 3),
    ("mod_negative", lambda x, y: x % y, np.mod, -3, -0.5),
    ("fmod", lambda x, y: x.fmod(y), np.fmod, 0.5, 3),
    ("pow", lambda x, y: x.abs() ** y, lambda x, y: np.abs(x) ** y, -3, 3),
    ("atan2", lambda x, y: x.atan2(y), np.arctan2, -3, 3),
    ("maximum", lambda x, y: x.maximum(y), np.maximum, -3, 3),
    ("minimum", lambda x, y: x.minimum(y), np.minimum, -3, 3),
    ("copysign", lambda x, y: x.copysign(y), np.copysign, -3, 3),
    ("eq", lambda x, y: x.round() == y.round(), lambda x, y: np.rint(x) == np.rint(y), -3, 3),
    ("ne", lambda x, y: x.round() != y.round(), lambda x, y: np.rint(x) != np.rint(y), -3, 3),
    ("lt", lambda x, y: x < y, np.less, -3, 3),
    ("le", lambda x, y: x <= y, np.less_equal, -3, 3),
    ("gt", lambda x, y: x > y, np.greater, -3, 3),
    ("ge", lambda x, y: x >= y, np.greater_equal, -3, 3),
    ("logical_and", lambda x, y: x.logical_and(y), np.logical_and, 0, 1),
    ("logical_or", lambda x, y: x.logical_or(y), np.logical_or, 0, 1),
    (
        "isclose",
        lambda x, y: x.isclose(y, atol=0.5),
        lambda x, y: np.isclose(x, y, atol=0.5),
        -3,
        3,
    ),
]
BROADCASTS = (((3, 17), (3, 17)), ((3, 1), (1, 5)), ((), (4,)), ((2, 1, 3), (5, 1)), ((0, 3), (3,)))
INT_BINARY: list[tuple[str, Any, Any]] = [
    ("add", lambda x, y: x + y, np.add),
    ("sub", lambda x, y: x - y, np.subtract),
    ("mul", lambda x, y: x * y, np.multiply),
    ("floordiv", lambda x, y: x // (y * 2 + 1), lambda x, y: x // (y * 2 + 1)),
    ("mod", lambda x, y: x % (y * 2 + 1), lambda x, y: x % (y * 2 + 1)),
    ("fmod", lambda x, y: x.fmod(y * 2 + 1), lambda x, y: np.fmod(x, y * 2 + 1)),
    ("and", lambda x, y: x & y, np.bitwise_and),
    ("or", lambda x, y: x | y, np.bitwise_or),
    ("xor", lambda x, y: x ^ y, np.bitwise_xor),
    ("shl", lambda x, y: x << y.abs(), lambda x, y: x << np.abs(y)),
    ("shr", lambda x, y: x >> y.abs(), lambda x, y: x >> np.abs(y)),
    ("pow", lambda x, y: x ** y.abs(), lambda x, y: x ** np.abs(y)),
    ("maximum", lambda x, y: x.maximum(y), np.maximum),
    ("minimum", lambda x, y: x.minimum(y), np.minimum),
    ("eq", lambda x, y: x == y, np.equal),
    ("lt", lambda x, y: x < y, np.less),
]


def binary_cases() -> Iterator[Case]:
    for name, fn, numpy_fn, low, high in FLOAT_BINARY:
        for a, b in BROADCASTS:
            inputs = (Spec(a), Spec(b, "float32", low, high))
            yield Case(name, fn, numpy_fn, inputs, rtol=4e-6, atol=1e-6)
        inputs = (Spec((9,), "float64"), Spec((9,), "float64", low, high))
        yield Case(name, fn, numpy_fn, inputs, rtol=1e-11, atol=1e-13)
    for name in ("add", "mul", "div", "maximum", "lt"):
        _, fn, numpy_fn, low, high = next(row for row in FLOAT_BINARY if row[0] == name)
        for half, rtol in HALF_STEPS.items():
            inputs = (Spec((17,), half), Spec((17,), half, low, high))
            yield Case(name, fn, numpy_fn, inputs, rtol=rtol)
    for name in ("maximum", "minimum", "lt", "eq"):
        _, fn, numpy_fn, _, _ = next(row for row in FLOAT_BINARY if row[0] == name)
        inputs = (Spec((12,), special=SPECIALS), Spec((12,), special=SPECIALS[::-1]))
        yield Case(f"{name}_specials", fn, numpy_fn, inputs)
    for name, fn, numpy_fn in INT_BINARY:
        for dtype in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
            inputs = (Spec((11,), dtype, -5, 5), Spec((11,), dtype, 0, 5))
            yield Case(name, fn, numpy_fn, inputs)
    for name in ("add", "mul", "and", "or", "xor", "maximum", "eq"):
        fn, numpy_fn = next(row[1:] for row in INT_BINARY if row[0] == name)
        yield Case(name, fn, numpy_fn, (Spec((7,), "bool"), Spec((7,), "bool")))


# left dtype, right dtype or Python scalar, dtype of the sum
PROMOTIONS: list[tuple[str, Any, str]] = [
    ("float32", "int64", "float32"),
    ("float16", "int32", "float16"),
    ("bfloat16", "float16", "float32"),
    ("float32", "float64", "float64"),
    ("int8", "int32", "int32"),
    ("uint8", "int8", "int16"),
    ("uint64", "uint8", "uint64"),
    ("bool", "int8", "int8"),
    ("bool", "float32", "float32"),
    ("float16", 1.5, "float16"),
    ("bfloat16", 2, "bfloat16"),
    ("float32", np.float64(0.5), "float32"),
    ("int8", 3, "int8"),
    ("int8", np.int64(3), "int8"),
    ("int8", 0.5, "float32"),
    ("bool", 2, "int64"),
    ("bool", True, "bool"),
    ("float64", 1, "float64"),
]

#: By how much one rounding to a half type changes a number, in parts of it.
ONE_ROUNDING = {"bfloat16": 2**-8, "float16": 2**-11}


def promotion_cases() -> Iterator[Case]:
    for left, right, result in PROMOTIONS:
        near = ONE_ROUNDING.get(result, 1e-6)
        if isinstance(right, str):
            inputs = (Spec((5,), left, 0, 3), Spec((5,), right, 0, 3))
            yield Case("promote", lambda x, y: x + y, np.add, inputs, result, rtol=near)
        else:
            name = f"promote_{type(right).__name__}"
            run, reference = adders(right)
            yield Case(name, run, reference, (Spec((5,), left, 0, 3),), result, rtol=near)
    ints = (Spec((5,), "int32", 1, 9), Spec((5,), "int32", 1, 9))
    yield Case("int_true_division", lambda x, y: x / y, np.divide, ints, "float32")
    yield Case("reflected", lambda x: 2 - x, lambda x: 2 - x, (Spec((5,)),))
    yield Case("reflected_div", lambda x: 2 / x, lambda x: 2 / x, (Spec((5,), low=1),))
    yield Case("reflected_pow", lambda x: 2**x, lambda x: 2**x, (Spec((5,)),), rtol=4e-6)
    yield Case("reflected_shift", lambda x: 1 << x, lambda x: 1 << x, (Spec((5,), "int32", 0, 9),))
    yield Case("reflected_mod", lambda x: 7 % x, lambda x: 7 % x, (Spec((5,), "int32", 1, 9),))
    yield Case("array_left", lambda x: np.ones(5, np.float32) + x, lambda x: 1 + x, (Spec((5,)),))
    yield Case("int_pow_int", lambda x: x**3, lambda x: x**3, (Spec((9,), "int32", -9, 9),))
    yield Case("int_pow_0", lambda x: x**0, lambda x: x**0, (Spec((9,), "int32", -9, 9),))
    yield Case("float_pow_int", lambda x: x**3, lambda x: x**3, (Spec((9,)),), rtol=4e-6)
    yield Case("divmod", lambda x: divmod(x, 3)[1], lambda x: x % 3, (Spec((9,), "int32", -9, 9),))
    yield Case("square_self", lambda x: x * x - x, lambda x: x * x - x, (Spec((17,)),), atol=1e-6)


def adders(scalar: Any) -> tuple[Any, Any]:
    return lambda x: x + scalar, lambda x: x + np.asarray(scalar)


CASTS = (
    ("float32", "int32"), ("float32", "int8"), ("float64", "float32"), ("float32", "float16"),
    ("float32", "bfloat16"), ("int32", "float32"), ("int64", "int8"), ("float32", "bool"),
    ("bool", "float32"), ("uint8", "int32"), ("bfloat16", "float32"), ("int32", "bool"),
)  # fmt: skip


def cast_cases() -> Iterator[Case]:
    for source, target in CASTS:
        run, reference = casts(target)
        yield Case(f"cast_{target}", run, reference, (Spec((17,), source, -9, 9),), target)
    yield Case(
        "where",
        lambda c, x, y: c.where(x, y),
        np.where,
        (Spec((3, 1), "bool"), Spec((3, 5)), Spec((5,))),
    )
    yield Case(
        "where_scalar",
        lambda c, x: c.where(x, 0),
        lambda c, x: np.where(c, x, 0),
        (Spec((9,), "bool"), Spec((9,))),
    )
    yield Case(
        "masked_fill",
        lambda x, m: x.masked_fill(m, -1),
        lambda x, m: np.where(m, -1, x),
        (Spec((3, 4)), Spec((4,), "bool")),
    )
    yield Case(
        "lerp",
        lambda x, y: x.lerp(y, 0.25),
        lambda x, y: x + 0.25 * (y - x),
        (Spec((9,)), Spec((9,))),
        atol=1e-6,
    )
    yield Case(
        "bitcast", lambda x: x.bitcast("int32").bitcast("float32"), lambda x: x, (Spec((9,)),)
    )


def casts(target: str) -> tuple[Any, Any]:
    kind = {"int": np.trunc, "uin": np.trunc}.get(target[:3], lambda x: x)
    if target == "bool":
        return lambda x: x.cast(target), lambda x: x != 0
    return lambda x: x.cast(target), lambda x: kind(x) if x.dtype.kind == "f" else x


ELEMENTWISE = [
    *unary_cases(), *integer_unary_cases(), *binary_cases(), *promotion_cases(), *cast_cases(),
]  # fmt: skip

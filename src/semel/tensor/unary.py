"""Functions of one tensor, element by element.

    sqrt exp log sin cos tanh erf sigmoid floor round isnan ...

`UNARY` says what an op does to dtypes:

    float     integers and bool become float32 first (exp, sqrt)
    round     integers stay as they are: they are whole already (floor, ceil)
    number    any dtype but bool (neg)
    integer   integers and bool only (bitwise)
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import TYPE_CHECKING

from semel.errors import GraphError
from semel.ir.types import BOOL, FLOAT32
from semel.tensor.handle import TensorLike, apply, convert, lift, scalar, whole_number

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

UNARY: dict[str, str] = {
    **dict.fromkeys(
        ("sqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "erf", "sigmoid", "gelu",
         "sin", "cos", "tan", "asin", "acos", "atan",
         "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"), "float"),
    **dict.fromkeys(("floor", "ceil", "trunc", "rint"), "round"),
    "neg": "number",
    "not": "integer",
}  # fmt: skip
_NEEDS = {"number": "a number dtype", "integer": "integers or bool", "shift": "integers"}


def unary(x: Tensor, op: str) -> Tensor:
    """`op(x)`, with the dtypes that the table says."""
    rule = UNARY[op]
    if rule == "float" and not x.dtype.is_float:
        return apply(op, convert(x, FLOAT32))
    if rule == "round" and not x.dtype.is_float:
        return x
    check_dtype(op, rule, [x])
    return apply(op, x)


def check_dtype(op: str, rule: str, operands: Sequence[Tensor]) -> None:
    """Raise unless the operands, of one dtype, satisfy the rule."""
    dtype = operands[0].dtype
    match rule:
        case "number":
            fits = dtype != BOOL
        case "integer":
            fits = not dtype.is_float
        case "shift":
            fits = dtype.is_integer
        case _:
            fits = True
    if not fits:
        types = " and ".join(str(t.type) for t in operands)
        raise GraphError(op, f"needs {_NEEDS[rule]}, got {types}.")


# ------------------------------------------------------------ arithmetic


def neg(x: TensorLike) -> Tensor:
    """The elements with their signs turned."""
    return unary(lift(x), "neg")


def positive(x: TensorLike) -> Tensor:
    """The tensor itself: +x."""
    return lift(x)


def abs(x: TensorLike) -> Tensor:
    """The magnitude of each element."""
    x = lift(x)
    return x if x.dtype.kind in "bu" else apply("abs", x)


def sign(x: TensorLike) -> Tensor:
    """-1, 0 or 1; NaN stays."""
    x = lift(x)
    return x if x.dtype == BOOL else apply("sign", x)


def sqrt(x: TensorLike) -> Tensor:
    """The square root."""
    return unary(lift(x), "sqrt")


def exp(x: TensorLike) -> Tensor:
    """e to the power of each element."""
    return unary(lift(x), "exp")


def exp2(x: TensorLike) -> Tensor:
    """2 to the power of each element."""
    return unary(lift(x), "exp2")


def expm1(x: TensorLike) -> Tensor:
    """exp(x) - 1, exact near 0."""
    return unary(lift(x), "expm1")


def log(x: TensorLike) -> Tensor:
    """The natural logarithm."""
    return unary(lift(x), "log")


def log2(x: TensorLike) -> Tensor:
    """The logarithm to the base 2."""
    return unary(lift(x), "log2")


def log10(x: TensorLike) -> Tensor:
    """The logarithm to the base 10."""
    return unary(lift(x), "log10")


def log1p(x: TensorLike) -> Tensor:
    """log(1 + x), exact near 0."""
    return unary(lift(x), "log1p")


def sin(x: TensorLike) -> Tensor:
    """The sine, of radians."""
    return unary(lift(x), "sin")


def cos(x: TensorLike) -> Tensor:
    """The cosine, of radians."""
    return unary(lift(x), "cos")


def tan(x: TensorLike) -> Tensor:
    """The tangent, of radians."""
    return unary(lift(x), "tan")


def asin(x: TensorLike) -> Tensor:
    """The inverse of sin, in [-pi/2, pi/2]."""
    return unary(lift(x), "asin")


def acos(x: TensorLike) -> Tensor:
    """The inverse of cos, in [0, pi]."""
    return unary(lift(x), "acos")


def atan(x: TensorLike) -> Tensor:
    """The inverse of tan, in [-pi/2, pi/2]."""
    return unary(lift(x), "atan")


def sinh(x: TensorLike) -> Tensor:
    """The hyperbolic sine."""
    return unary(lift(x), "sinh")


def cosh(x: TensorLike) -> Tensor:
    """The hyperbolic cosine."""
    return unary(lift(x), "cosh")


def tanh(x: TensorLike) -> Tensor:
    """The hyperbolic tangent."""
    return unary(lift(x), "tanh")


def asinh(x: TensorLike) -> Tensor:
    """The inverse of sinh."""
    return unary(lift(x), "asinh")


def acosh(x: TensorLike) -> Tensor:
    """The inverse of cosh."""
    return unary(lift(x), "acosh")


def atanh(x: TensorLike) -> Tensor:
    """The inverse of tanh."""
    return unary(lift(x), "atanh")


def erf(x: TensorLike) -> Tensor:
    """The error function."""
    return unary(lift(x), "erf")


def sigmoid(x: TensorLike) -> Tensor:
    """1 / (1 + exp(-x)), without overflow."""
    return unary(lift(x), "sigmoid")


def floor(x: TensorLike) -> Tensor:
    """The largest whole number that is not above."""
    return unary(lift(x), "floor")


def ceil(x: TensorLike) -> Tensor:
    """The smallest whole number that is not below."""
    return unary(lift(x), "ceil")


def trunc(x: TensorLike) -> Tensor:
    """The whole number next to it on the side of 0."""
    return unary(lift(x), "trunc")


def round(x: TensorLike, decimals: int = 0) -> Tensor:
    """To the nearest whole number, halves to even; `decimals` as NumPy scales.

    >>> Tensor([0.5, 1.5, 2.5]).round().tolist()
    [0.0, 2.0, 2.0]
    """
    x = lift(x)
    decimals = whole_number(decimals, "decimals", "round")
    if decimals == 0 or (decimals > 0 and not x.dtype.is_float):
        return unary(x, "rint")
    if not x.dtype.is_float:
        raise GraphError("round", f"decimals must be >= 0 for {x.dtype}, got {decimals}.")
    scale = 10.0 ** builtins.abs(decimals)
    if decimals < 0:
        return unary(x / scale, "rint") * scale
    return unary(x * scale, "rint") / scale


def square(x: TensorLike) -> Tensor:
    """x * x."""
    x = lift(x)
    return x * x


def reciprocal(x: TensorLike) -> Tensor:
    """1 / x."""
    return 1 / lift(x)


def rsqrt(x: TensorLike) -> Tensor:
    """1 / sqrt(x)."""
    return 1 / lift(x).sqrt()


def full_bool(x: Tensor, value: bool) -> Tensor:
    """The same truth for every element of x."""
    return scalar(value, BOOL).broadcast_to(x.shape)


def isnan(x: TensorLike) -> Tensor:
    """Where the elements are NaN."""
    x = lift(x)
    return apply("isnan", x) if x.dtype.is_float else full_bool(x, False)


def isinf(x: TensorLike) -> Tensor:
    """Where the elements are infinite, of either sign."""
    x = lift(x)
    return apply("isinf", x) if x.dtype.is_float else full_bool(x, False)


def isfinite(x: TensorLike) -> Tensor:
    """Where the elements are neither NaN nor infinite."""
    x = lift(x)
    if not x.dtype.is_float:
        return full_bool(x, True)
    return ~(x.isnan() | x.isinf())


def logical_not(x: TensorLike) -> Tensor:
    """Where the elements are 0."""
    return ~convert(lift(x), BOOL)


def bitwise_not(x: TensorLike) -> Tensor:
    """The bits turned around; of bool, the opposite."""
    return unary(lift(x), "not")


# Second names.
around = round
absolute = abs
arccos = acos
arccosh = acosh
arcsin = asin
arcsinh = asinh
arctan = atan
arctanh = atanh
bitwise_invert = bitwise_not
expit = sigmoid
fix = trunc
invert = bitwise_not
negative = neg
rint = round

"""The value of ops that take several steps, on scalars of the kernel IR.

    Value, ... --> Value

Most ops have a kernel op of the same name and need no rule. A rule knows nothing of the machine;
half types compute in float32 and round once at the end. `semel.ops.numerics` says the same in
NumPy.
"""

from __future__ import annotations

from collections.abc import Callable

from semel.ir.types import BOOL
from semel.kernel import values as kernel
from semel.kernel.values import Value


def sign(x: Value) -> Value:
    """-1, 0 or 1; NaN stays NaN, a zero loses its sign."""
    zero, one = kernel.const(x.dtype, 0), kernel.const(x.dtype, 1)
    if x.dtype == BOOL:
        return x
    if x.dtype.kind == "u":
        return kernel.select(x > zero, one, zero)
    rest = kernel.select(x.eq(zero), zero, x) if x.dtype.is_float else zero
    down = kernel.select(x < zero, kernel.const(x.dtype, -1), rest)
    return kernel.select(x > zero, one, down)


def isinf(x: Value) -> Value:
    """Whether x is an infinity of either sign."""
    if not x.dtype.is_float:
        return kernel.const(BOOL, False)
    return kernel.op("abs", x).eq(kernel.const(x.dtype, float("inf")))


def isnan(x: Value) -> Value:
    """Whether x is not a number."""
    return x.ne(x) if x.dtype.is_float else kernel.const(BOOL, False)


def _float_modulo(a: Value, b: Value) -> Value:
    """a - floor(a/b)*b with the sign of b, as np.remainder."""
    rest = kernel.op("fmod", a, b)
    zero = kernel.const(a.dtype, 0)
    differ = kernel.op("xor", rest < zero, b < zero) & rest.ne(zero)
    signed_zero = kernel.select(_is_negative(b), kernel.const(a.dtype, -0.0), zero)
    return kernel.select(differ, rest + b, kernel.select(rest.eq(zero), signed_zero, rest))


def _float_floordiv(a: Value, b: Value) -> Value:
    """floor(a/b) from the exact remainder, as np.floor_divide; b == 0 gives a/b."""
    rest = kernel.op("fmod", a, b)
    zero, one = kernel.const(a.dtype, 0), kernel.const(a.dtype, 1)
    quotient = (a - rest) / b
    differ = kernel.op("xor", rest < zero, b < zero) & rest.ne(zero)
    quotient = kernel.select(differ, quotient - one, quotient)
    whole = kernel.op("floor", quotient)
    whole = kernel.select((quotient - whole) > kernel.const(a.dtype, 0.5), whole + one, whole)
    signed_zero = kernel.select(_is_negative(a / b), kernel.const(a.dtype, -0.0), zero)
    result = kernel.select(quotient.eq(zero), signed_zero, whole)
    return kernel.select(b.eq(zero), a / b, result)


def _is_negative(x: Value) -> Value:
    """The sign bit, of zeros too."""
    return (x < kernel.const(x.dtype, 0)) | (
        kernel.const(x.dtype, 1) / x < kernel.const(x.dtype, 0)
    )


def in_float32(rule: Callable[..., Value]) -> Callable[..., Value]:
    """The rule of several steps with half types taking part as float32, rounded once at the end."""

    def wrapped(*operands: Value) -> Value:
        dtype = operands[0].dtype
        return kernel.cast(rule(*(kernel.cast(x, dtype.compute) for x in operands)), dtype)

    return wrapped


def _by_kind(integer: str, floating: Callable[..., Value]) -> Callable[..., Value]:
    def rule(a: Value, b: Value) -> Value:
        return floating(a, b) if a.dtype.is_float else kernel.op(integer, a, b)

    return rule


idiv = _by_kind("idiv", in_float32(_float_floordiv))
imod = _by_kind("imod", in_float32(_float_modulo))

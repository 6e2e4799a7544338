"""Arithmetic, comparison and choice, element by element.

    x, y  --promote, broadcast-->  one elementwise node

`BINARY` says what an op does to dtypes, in the words of unary.py and two more:

    any       whatever promotion gives (add, max, comparisons)
    shift     integers only

Integer division and remainder round down, as in Python and NumPy; by zero they give 0.
Integer powers wrap; a negative number as exponent of integers is refused, as NumPy does, and one
that only a run finds truncates towards 0.

Comparisons are right whatever the dtypes: a Python integer that the tensor's dtype cannot hold
lies on one side of all its elements, a symbolic number that it may not hold compares in int64,
and uint64 compares with signed integers by value, though they have no dtype in common for
anything else.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from semel.errors import GraphError
from semel.ir.expr import bounds
from semel.ir.types import BOOL, FLOAT32, INT64, UINT64, mixes_signs
from semel.tensor.handle import (
    SYMBOLIC,
    TensorLike,
    apply,
    convert,
    dim_value,
    lift,
    promote,
    scalar,
    tensor_class,
    weak_kind,
)
from semel.tensor.movement import broadcast, fill_value, stretch
from semel.tensor.spelling import same_as, spelled
from semel.tensor.unary import check_dtype, full_bool

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

BINARY: dict[str, str] = {
    **dict.fromkeys(("add", "mul", "max", "min", "eq", "ne", "lt", "le", "gt", "ge"), "any"),
    **dict.fromkeys(("sub", "idiv", "imod"), "number"),
    **dict.fromkeys(("div", "pow", "atan2", "fmod"), "float"),
    **dict.fromkeys(("and", "or", "xor"), "integer"),
    **dict.fromkeys(("shl", "shr"), "shift"),
}
#: Each comparison with its operands in the other order.
_MIRRORED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    name: getattr(operator, name) for name in _MIRRORED
}
_ON_FLOATS = frozenset({"any", "number", "float"})  #: rules that floats satisfy
_NUMBERS = (int, float)  #: but no bool, which is one of them by inheritance only
_ON_BOOL = {"add": "or", "mul": "and"}  # as NumPy has it


def binary(x: Tensor, op: str, other: TensorLike, *, swap: bool = False) -> Tensor:
    """`op(x, other)`, or `op(other, x)` if swapped."""
    if op in _MIRRORED:
        apart = _compare_apart(x, op, other)
        if apart is not None:
            return apart
    rule = BINARY[op]
    if x.dtype.is_float and rule in _ON_FLOATS:
        # What follows would say the same, of the most frequent cases.
        if type(other) in _NUMBERS:
            number = _number_like(other, x)
            return apply(op, number, x) if swap else apply(op, x, number)
        if isinstance(other, tensor_class()) and other.dtype is x.dtype:
            return apply(op, *broadcast((other, x) if swap else (x, other), op))
    values = (other, x) if swap else (x, other)
    operands = promote(values, to_float=rule == "float")
    if rule == "number" and operands[0].dtype == BOOL and op != "sub":
        operands = [convert(t, INT64) for t in operands]
    check_dtype(op, rule, operands)
    if operands[0].dtype == BOOL:
        op = _ON_BOOL.get(op, op)
    return apply(op, *broadcast(operands, op))


def _number_like(value: Any, x: Tensor) -> Tensor:
    """A number in the shape and the dtype of x."""
    if x.node.rule.is_symbolic:
        return stretch(scalar(value, x.dtype), x.shape)
    return scalar(value, x.dtype, x.shape)


def _compare_apart(x: Tensor, op: str, other: TensorLike) -> Tensor | None:
    """A comparison whose operands have no integer dtype in common; None if they have one."""
    if not x.dtype.is_integer:
        return None
    if isinstance(other, (int, np.integer)):
        if x.dtype.lowest <= int(other) <= x.dtype.highest:
            return None
        return full_bool(x, _COMPARE[op](0, int(other)))
    if isinstance(other, SYMBOLIC):
        if x.dtype.holds(*bounds(other)):
            return None
        wide = x if x.dtype == UINT64 else convert(x, INT64)
        return binary(wide, op, dim_value(other))
    if weak_kind(other):
        return None
    y = lift(other)
    if not mixes_signs(x.dtype, y.dtype):
        return None
    if y.dtype == UINT64:
        return binary(y, _MIRRORED[op], x)
    below = y < 0  # less than any unsigned element
    return choose(below, _COMPARE[op](0, -1), binary(x, op, convert(y, UINT64)))


# ------------------------------------------------------------ functions of two tensors


def pair(x: TensorLike, op: str, other: TensorLike) -> Tensor:
    """`op(x, other)`, where a number is weak on either side: `add(1, x)` is `1 + x`."""
    if isinstance(x, tensor_class()) or not weak_kind(x) or weak_kind(other):
        return binary(lift(x), op, other)
    if op in _MIRRORED:
        return binary(lift(other), _MIRRORED[op], x)
    return binary(lift(other), op, x, swap=True)


def eq(x: TensorLike, other: TensorLike) -> Tensor:
    """Where the elements are equal."""
    return pair(x, "eq", other)


def ne(x: TensorLike, other: TensorLike) -> Tensor:
    """Where the elements differ."""
    return pair(x, "ne", other)


def lt(x: TensorLike, other: TensorLike) -> Tensor:
    """Where the elements are less than the others."""
    return pair(x, "lt", other)


def le(x: TensorLike, other: TensorLike) -> Tensor:
    """Where the elements are not greater than the others."""
    return pair(x, "le", other)


def gt(x: TensorLike, other: TensorLike) -> Tensor:
    """Where the elements are greater than the others."""
    return pair(x, "gt", other)


def ge(x: TensorLike, other: TensorLike) -> Tensor:
    """Where the elements are not less than the others."""
    return pair(x, "ge", other)


def add(x: TensorLike, other: TensorLike, *, alpha: float = 1) -> Tensor:
    """x + alpha * other."""
    return pair(x, "add", other if alpha == 1 else lift(other) * alpha)


def sub(x: TensorLike, other: TensorLike, *, alpha: float = 1) -> Tensor:
    """x - alpha * other."""
    return pair(x, "sub", other if alpha == 1 else lift(other) * alpha)


def mul(x: TensorLike, other: TensorLike) -> Tensor:
    """x * other."""
    return pair(x, "mul", other)


def div(x: TensorLike, other: TensorLike, *, rounding_mode: str | None = None) -> Tensor:
    """x / other; integers become float32 first.

    With `rounding_mode` "floor" it is `x // other`, with "trunc" what is nearer to 0, in the dtype
    of the operands.
    """
    match rounding_mode:
        case None:
            return pair(x, "div", other)
        case "floor":
            return floor_divide(x, other)
        case "trunc":
            a, b = promote((x, other))
            return (a / b).trunc() if a.dtype.is_float else (a - fmod(a, b)) // b
    raise GraphError("div", f"rounding_mode must be floor, trunc or None, got {rounding_mode!r}.")


def bitwise_and(x: TensorLike, other: TensorLike) -> Tensor:
    """x & other, bit by bit."""
    return pair(x, "and", other)


def bitwise_or(x: TensorLike, other: TensorLike) -> Tensor:
    """x | other, bit by bit."""
    return pair(x, "or", other)


def bitwise_xor(x: TensorLike, other: TensorLike) -> Tensor:
    """x ^ other, bit by bit."""
    return pair(x, "xor", other)


def left_shift(x: TensorLike, other: TensorLike) -> Tensor:
    """x << other."""
    return pair(x, "shl", other)


def right_shift(x: TensorLike, other: TensorLike) -> Tensor:
    """x >> other; signed integers keep their sign."""
    return pair(x, "shr", other)


def maximum(x: TensorLike, other: TensorLike) -> Tensor:
    """The larger element; NaN if either is."""
    return pair(x, "max", other)


def minimum(x: TensorLike, other: TensorLike) -> Tensor:
    """The smaller element; NaN if either is."""
    return pair(x, "min", other)


def atan2(x: TensorLike, other: TensorLike) -> Tensor:
    """The angle of the point (other, x), in [-pi, pi]."""
    return pair(x, "atan2", other)


def floor_divide(x: TensorLike, other: TensorLike) -> Tensor:
    """x // other: the quotient, rounded down."""
    return pair(x, "idiv", other)


def remainder(x: TensorLike, other: TensorLike) -> Tensor:
    """What floor division leaves: it has the divisor's sign."""
    return pair(x, "imod", other)


def fmod(x: TensorLike, other: TensorLike) -> Tensor:
    """What truncating division leaves: it has the dividend's sign, as C's fmod."""
    x, y = promote((x, other))
    if x.dtype.is_float:
        return binary(x, "fmod", y)
    rest = x % y
    if x.dtype.kind != "i":
        return rest
    # Floor and truncation differ where signs do; the lowest integer has no absolute value.
    return choose(rest.ne(0) & ((rest ^ x) < 0), rest - y, rest)


def pow(x: TensorLike, other: TensorLike) -> Tensor:
    """x ** other."""
    return raised(x, other)


def copysign(x: TensorLike, other: TensorLike) -> Tensor:
    """The magnitude of this with the sign of `other`, also of -0.0 and NaN."""
    x, y = promote((x, other), to_float=True)
    if x.dtype.is_narrow:
        return convert(copysign(convert(x, FLOAT32), convert(y, FLOAT32)), x.dtype)
    bits = {16: "int16", 32: "int32", 64: "int64"}[x.dtype.bits]
    return choose(y.bitcast(bits) < 0, -x.abs(), x.abs())


def logical_and(x: TensorLike, other: TensorLike) -> Tensor:
    """Where both are not 0."""
    return convert(lift(x), BOOL) & convert(lift(other), BOOL)


def logical_or(x: TensorLike, other: TensorLike) -> Tensor:
    """Where one or both are not 0."""
    return convert(lift(x), BOOL) | convert(lift(other), BOOL)


def logical_xor(x: TensorLike, other: TensorLike) -> Tensor:
    """Where one is not 0, but not both."""
    return convert(lift(x), BOOL) ^ convert(lift(other), BOOL)


def isclose(
    x: TensorLike,
    other: TensorLike,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> Tensor:
    """Whether |x - y| <= atol + rtol*|y|; infinities are close to themselves only.

    NaN is close to nothing, or with `equal_nan` to NaN.
    """
    x, y = promote((x, other), to_float=True)
    near = (x - y).abs() <= y.abs() * rtol + atol
    close = (near & y.isfinite()) | (x == y)
    return close | (x.isnan() & y.isnan()) if equal_nan else close


def raised(base: TensorLike, exponent: TensorLike) -> Tensor:
    """base ** exponent, where either may be a number."""
    x, y = promote((base, exponent))
    if x.dtype.is_float:
        return binary(x, "pow", y)
    if x.dtype == BOOL:
        x, y = convert(x, INT64), convert(y, INT64)
    if weak_kind(exponent) and isinstance(exponent, (int, np.integer)):
        if exponent < 0:
            raise GraphError(
                "pow",
                f"an integer to a negative power is no integer, got {lift(base).type} ** "
                f"{exponent}.",
                hint=f"Write x.float() ** {exponent}.",
            )
        return _repeated_product(x, int(exponent))
    return _integer_power(x, y)


def _repeated_product(x: Tensor, exponent: int) -> Tensor:
    """x ** exponent by squaring."""
    result: Tensor | None = None
    square = x
    while exponent:
        if exponent & 1:
            result = square if result is None else result * square
        exponent >>= 1
        if exponent:
            square = square * square
    return scalar(1, x.dtype).broadcast_to(x.shape) if result is None else result


def _integer_power(x: Tensor, exponent: Tensor) -> Tensor:
    """By squaring over all bits of the exponent: two's complement is right for +-1 too."""
    result = scalar(1, x.dtype)
    square = x
    for bit in range(x.dtype.bits):
        taken = ((exponent >> bit) & 1).ne(0)
        result = choose(taken, result * square, result)
        square = square * square
    if x.dtype.kind == "u":
        return result
    return choose((exponent < 0) & x.abs().ne(1), 0, result)


# ------------------------------------------------------------ selection


def choose(condition: TensorLike, a: TensorLike, b: TensorLike) -> Tensor:
    """`a` where the condition is true, else `b`: `where`, whatever is a condition."""
    chosen = promote((a, b))
    operands = broadcast([convert(lift(condition), BOOL), *chosen], "where")
    return apply("where", *operands)


def masked_fill(x: TensorLike, mask: TensorLike, value: TensorLike) -> Tensor:
    """`value` (in this tensor's dtype) where `mask` is true."""
    x = lift(x)
    fill = fill_value(x, value, "masked_fill")
    return choose(mask, fill, x)


@spelled(a_min="min", a_max="max")
def clip(
    x: TensorLike,
    min: TensorLike | None = None,
    max: TensorLike | None = None,
    *,
    a_min: TensorLike | None = same_as("min"),
    a_max: TensorLike | None = same_as("max"),
) -> Tensor:
    """Bring elements into [min, max]; NaN stays. If min > max, max wins; None is no bound.

    >>> Tensor([-2.0, 0.5, 9.0]).clip(0, 1).tolist()
    [0.0, 0.5, 1.0]
    """
    x = lift(x)
    result = x if min is None else x.maximum(min)
    return result if max is None else result.minimum(max)


def lerp(x: TensorLike, end: TensorLike, weight: TensorLike) -> Tensor:
    """x + weight * (end - x).

    >>> semel.lerp(0.0, 10.0, 0.25).item()
    2.5
    """
    x = lift(x)
    return x + lift(weight) * (lift(end) - x)


# Second names.
arctan2 = atan2
bitwise_left_shift = left_shift
bitwise_right_shift = right_shift
clamp = clip
divide = div
equal = eq
greater = gt
greater_equal = ge
less = lt
less_equal = le
mod = remainder
multiply = mul
not_equal = ne
power = pow
subtract = sub
true_divide = div

"""Tensor, layer 2: operators and functions of one element at a time.

    x, y  --promote, broadcast-->  one elementwise node

Two tables say what an op does to dtypes; the methods are their rows' names:

    float     integers and bool become float32 first (exp, sqrt, true division)
    round     integers stay as they are: they are whole already (floor, ceil)
    number    any dtype but bool (neg)
    integer   integers and bool only (bitwise)
    any       whatever promotion gives (add, max, comparisons)

Integer division and remainder round down, as in Python and NumPy; by zero they give 0.
Integer powers wrap; a negative integer power truncates towards 0.

Comparisons are right whatever the dtypes: a Python integer that the tensor's dtype cannot hold
lies on one side of all its elements, a symbolic number that it may not hold compares in int64,
and uint64 compares with signed integers by value, though they have no dtype in common for
anything else.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from semel.errors import GraphError
from semel.ir.expr import bounds
from semel.ir.types import BOOL, FLOAT32, INT64, UINT64, mixes_signs
from semel.tensor.handle import SYMBOLIC, Handle, TensorLike, weak_kind, whole_number
from semel.tensor.movement import Movement

UNARY: dict[str, str] = {
    **dict.fromkeys(
        ("sqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "erf", "sigmoid", "gelu",
         "sin", "cos", "tan", "asin", "acos", "atan",
         "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"), "float"),
    **dict.fromkeys(("floor", "ceil", "trunc", "rint"), "round"),
    "neg": "number",
    "not": "integer",
}  # fmt: skip
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
_NEEDS = {"number": "a number dtype", "integer": "integers or bool", "shift": "integers"}


class Elementwise(Movement):
    """Arithmetic, comparison, logic and mathematical functions."""

    __slots__ = ()

    def _unary(self, op: str) -> Self:
        rule = UNARY[op]
        if rule == "float" and not self.dtype.is_float:
            return self._apply(op, self._cast(FLOAT32))
        if rule == "round" and not self.dtype.is_float:
            return self
        _check_dtype(op, rule, [self])
        return self._apply(op, self)

    def _binary(self, op: str, other: TensorLike, *, swap: bool = False) -> Self:
        """`op(self, other)`, or `op(other, self)` if swapped."""
        if op in _MIRRORED:
            apart = self._compare_apart(op, other)
            if apart is not None:
                return apart
        rule = BINARY[op]
        if type(other) in _NUMBERS and self.dtype.is_float and rule in _ON_FLOATS:
            # What follows would say the same, of the most frequent case.
            number = self._scalar(other, self.dtype)._stretch(self.shape)
            return self._apply(op, number, self) if swap else self._apply(op, self, number)
        values = (other, self) if swap else (self, other)
        operands = self._promote(values, to_float=rule == "float")
        if rule == "number" and operands[0].dtype == BOOL and op != "sub":
            operands = [t._cast(INT64) for t in operands]
        _check_dtype(op, rule, operands)
        if operands[0].dtype == BOOL:
            op = _ON_BOOL.get(op, op)
        return self._apply(op, *self._broadcast(operands, op))

    def _compare_apart(self, op: str, other: TensorLike) -> Self | None:
        """A comparison whose operands have no integer dtype in common; None if they have one."""
        if not self.dtype.is_integer:
            return None
        if isinstance(other, (int, np.integer)):
            if self.dtype.lowest <= int(other) <= self.dtype.highest:
                return None
            return self._full_bool(_COMPARE[op](0, int(other)))
        if isinstance(other, SYMBOLIC):
            if self.dtype.holds(*bounds(other)):
                return None
            wide = self if self.dtype == UINT64 else self._cast(INT64)
            return wide._binary(op, self._dim(other))
        if weak_kind(other):
            return None
        y = self._lift(other)
        if not mixes_signs(self.dtype, y.dtype):
            return None
        if y.dtype == UINT64:
            return y._binary(_MIRRORED[op], self)
        below = y < 0  # less than any unsigned element
        return self._choose(below, _COMPARE[op](0, -1), self._binary(op, y._cast(UINT64)))

    # ------------------------------------------------------------ operators

    def __add__(self, other: TensorLike) -> Self:
        return self._binary("add", other)

    def __radd__(self, other: TensorLike) -> Self:
        return self._binary("add", other, swap=True)

    def __sub__(self, other: TensorLike) -> Self:
        return self._binary("sub", other)

    def __rsub__(self, other: TensorLike) -> Self:
        return self._binary("sub", other, swap=True)

    def __mul__(self, other: TensorLike) -> Self:
        return self._binary("mul", other)

    def __rmul__(self, other: TensorLike) -> Self:
        return self._binary("mul", other, swap=True)

    def __truediv__(self, other: TensorLike) -> Self:
        return self._binary("div", other)

    def __rtruediv__(self, other: TensorLike) -> Self:
        return self._binary("div", other, swap=True)

    def __floordiv__(self, other: TensorLike) -> Self:
        return self._binary("idiv", other)

    def __rfloordiv__(self, other: TensorLike) -> Self:
        return self._binary("idiv", other, swap=True)

    def __mod__(self, other: TensorLike) -> Self:
        return self._binary("imod", other)

    def __rmod__(self, other: TensorLike) -> Self:
        return self._binary("imod", other, swap=True)

    def __divmod__(self, other: TensorLike) -> tuple[Self, Self]:
        return self // other, self % other

    def __rdivmod__(self, other: TensorLike) -> tuple[Self, Self]:
        return self._binary("idiv", other, swap=True), self._binary("imod", other, swap=True)

    def __pow__(self, other: TensorLike) -> Self:
        return self._power(self, other)

    def __rpow__(self, other: TensorLike) -> Self:
        return self._power(other, self)

    def __and__(self, other: TensorLike) -> Self:
        return self._binary("and", other)

    def __rand__(self, other: TensorLike) -> Self:
        return self._binary("and", other, swap=True)

    def __or__(self, other: TensorLike) -> Self:
        return self._binary("or", other)

    def __ror__(self, other: TensorLike) -> Self:
        return self._binary("or", other, swap=True)

    def __xor__(self, other: TensorLike) -> Self:
        return self._binary("xor", other)

    def __rxor__(self, other: TensorLike) -> Self:
        return self._binary("xor", other, swap=True)

    def __lshift__(self, other: TensorLike) -> Self:
        return self._binary("shl", other)

    def __rlshift__(self, other: TensorLike) -> Self:
        return self._binary("shl", other, swap=True)

    def __rshift__(self, other: TensorLike) -> Self:
        return self._binary("shr", other)

    def __rrshift__(self, other: TensorLike) -> Self:
        return self._binary("shr", other, swap=True)

    def __eq__(self, other: object) -> Self:  # type: ignore[override]
        return self._binary("eq", other)  # type: ignore[arg-type]

    def __ne__(self, other: object) -> Self:  # type: ignore[override]
        return self._binary("ne", other)  # type: ignore[arg-type]

    def __lt__(self, other: TensorLike) -> Self:
        return self._binary("lt", other)

    def __le__(self, other: TensorLike) -> Self:
        return self._binary("le", other)

    def __gt__(self, other: TensorLike) -> Self:
        return self._binary("gt", other)

    def __ge__(self, other: TensorLike) -> Self:
        return self._binary("ge", other)

    # Comparison is by element, so a handle hashes by identity.
    __hash__ = object.__hash__

    def __neg__(self) -> Self:
        return self._unary("neg")

    def __pos__(self) -> Self:
        return self

    def __invert__(self) -> Self:
        return self._unary("not")

    def __abs__(self) -> Self:
        return self.abs()

    # ------------------------------------------------------------ functions of one tensor

    def neg(self) -> Self:
        return self._unary("neg")

    def abs(self) -> Self:
        return self if self.dtype.kind in "bu" else self._apply("abs", self)

    def sign(self) -> Self:
        return self if self.dtype == BOOL else self._apply("sign", self)

    def sqrt(self) -> Self:
        return self._unary("sqrt")

    def exp(self) -> Self:
        return self._unary("exp")

    def exp2(self) -> Self:
        return self._unary("exp2")

    def expm1(self) -> Self:
        return self._unary("expm1")

    def log(self) -> Self:
        return self._unary("log")

    def log2(self) -> Self:
        return self._unary("log2")

    def log10(self) -> Self:
        return self._unary("log10")

    def log1p(self) -> Self:
        return self._unary("log1p")

    def sin(self) -> Self:
        return self._unary("sin")

    def cos(self) -> Self:
        return self._unary("cos")

    def tan(self) -> Self:
        return self._unary("tan")

    def asin(self) -> Self:
        return self._unary("asin")

    def acos(self) -> Self:
        return self._unary("acos")

    def atan(self) -> Self:
        return self._unary("atan")

    def sinh(self) -> Self:
        return self._unary("sinh")

    def cosh(self) -> Self:
        return self._unary("cosh")

    def tanh(self) -> Self:
        return self._unary("tanh")

    def asinh(self) -> Self:
        return self._unary("asinh")

    def acosh(self) -> Self:
        return self._unary("acosh")

    def atanh(self) -> Self:
        return self._unary("atanh")

    def erf(self) -> Self:
        return self._unary("erf")

    def sigmoid(self) -> Self:
        return self._unary("sigmoid")

    def floor(self) -> Self:
        return self._unary("floor")

    def ceil(self) -> Self:
        return self._unary("ceil")

    def trunc(self) -> Self:
        return self._unary("trunc")

    def round(self, decimals: int = 0) -> Self:
        """To the nearest whole number, halves to even; `decimals` as NumPy scales."""
        decimals = whole_number(decimals, "decimals", "round")
        if decimals == 0 or (decimals > 0 and not self.dtype.is_float):
            return self._unary("rint")
        if not self.dtype.is_float:
            raise GraphError("round", f"decimals must be >= 0 for {self.dtype}, got {decimals}.")
        scale = 10.0 ** abs(decimals)
        if decimals < 0:
            return (self / scale)._unary("rint") * scale
        return (self * scale)._unary("rint") / scale

    def square(self) -> Self:
        return self * self

    def reciprocal(self) -> Self:
        return 1 / self

    def rsqrt(self) -> Self:
        return 1 / self.sqrt()

    def isnan(self) -> Self:
        return self._apply("isnan", self) if self.dtype.is_float else self._full_bool(False)

    def isinf(self) -> Self:
        return self._apply("isinf", self) if self.dtype.is_float else self._full_bool(False)

    def isfinite(self) -> Self:
        if not self.dtype.is_float:
            return self._full_bool(True)
        return ~(self.isnan() | self.isinf())

    def _full_bool(self, value: bool) -> Self:
        return self._scalar(value, BOOL).broadcast_to(self.shape)

    def logical_not(self) -> Self:
        return ~self._cast(BOOL)

    def bitwise_not(self) -> Self:
        return ~self

    # ------------------------------------------------------------ functions of two tensors

    def eq(self, other: TensorLike) -> Self:
        return self._binary("eq", other)

    def ne(self, other: TensorLike) -> Self:
        return self._binary("ne", other)

    def add(self, other: TensorLike) -> Self:
        return self + other

    def sub(self, other: TensorLike) -> Self:
        return self - other

    def mul(self, other: TensorLike) -> Self:
        return self * other

    def div(self, other: TensorLike) -> Self:
        return self / other

    def maximum(self, other: TensorLike) -> Self:
        """The larger element; NaN if either is."""
        return self._binary("max", other)

    def minimum(self, other: TensorLike) -> Self:
        """The smaller element; NaN if either is."""
        return self._binary("min", other)

    def atan2(self, other: TensorLike) -> Self:
        return self._binary("atan2", other)

    def floor_divide(self, other: TensorLike) -> Self:
        return self // other

    def remainder(self, other: TensorLike) -> Self:
        """What floor division leaves: it has the divisor's sign."""
        return self % other

    def fmod(self, other: TensorLike) -> Self:
        """What truncating division leaves: it has the dividend's sign, as C's fmod."""
        x, y = self._promote((self, other))
        if x.dtype.is_float:
            return x._binary("fmod", y)
        rest = x % y
        if x.dtype.kind != "i":
            return rest
        # Floor and truncation differ where signs do; the lowest integer has no absolute value.
        return self._choose(rest.ne(0) & ((rest ^ x) < 0), rest - y, rest)

    def pow(self, other: TensorLike) -> Self:
        return self._power(self, other)

    def copysign(self, other: TensorLike) -> Self:
        """The magnitude of this with the sign of `other`, also of -0.0 and NaN."""
        x, y = self._promote((self, other), to_float=True)
        bits = {16: "int16", 32: "int32", 64: "int64"}[x.dtype.bits]
        return self._choose(y.bitcast(bits) < 0, -x.abs(), x.abs())

    def logical_and(self, other: TensorLike) -> Self:
        return self._cast(BOOL) & self._lift(other)._cast(BOOL)

    def logical_or(self, other: TensorLike) -> Self:
        return self._cast(BOOL) | self._lift(other)._cast(BOOL)

    def logical_xor(self, other: TensorLike) -> Self:
        return self._cast(BOOL) ^ self._lift(other)._cast(BOOL)

    def isclose(self, other: TensorLike, rtol: float = 1e-5, atol: float = 1e-8) -> Self:
        """Whether |x - y| <= atol + rtol*|y|; infinities are close to themselves only."""
        x, y = self._promote((self, other), to_float=True)
        near = (x - y).abs() <= y.abs() * rtol + atol
        return (near & y.isfinite()) | (x == y)

    @classmethod
    def _power(cls, base: TensorLike, exponent: TensorLike) -> Self:
        x, y = cls._promote((base, exponent))
        if x.dtype.is_float:
            return x._binary("pow", y)
        if x.dtype == BOOL:
            x, y = x._cast(INT64), y._cast(INT64)
        if weak_kind(exponent) and isinstance(exponent, (int, np.integer)) and exponent >= 0:
            return x._repeated_product(int(exponent))
        return x._integer_power(y)

    def _repeated_product(self, exponent: int) -> Self:
        """x ** exponent by squaring."""
        result: Self | None = None
        square = self
        while exponent:
            if exponent & 1:
                result = square if result is None else result * square
            exponent >>= 1
            if exponent:
                square = square * square
        return self._scalar(1, self.dtype).broadcast_to(self.shape) if result is None else result

    def _integer_power(self, exponent: Self) -> Self:
        """By squaring over all bits of the exponent: two's complement is right for +-1 too."""
        result = self._scalar(1, self.dtype)
        square = self
        for bit in range(self.dtype.bits):
            taken = ((exponent >> bit) & 1).ne(0)
            result = self._choose(taken, result * square, result)
            square = square * square
        if self.dtype.kind == "u":
            return result
        return self._choose((exponent < 0) & self.abs().ne(1), 0, result)

    # ------------------------------------------------------------ selection

    @classmethod
    def _choose(cls, condition: TensorLike, a: TensorLike, b: TensorLike) -> Self:
        chosen = cls._promote((a, b))
        operands = cls._broadcast([cls._lift(condition)._cast(BOOL), *chosen], "where")
        return cls._apply("where", *operands)

    def where(self, a: TensorLike, b: TensorLike) -> Self:
        """`a` where this is true, else `b`."""
        return self._choose(self, a, b)

    def masked_fill(self, mask: TensorLike, value: TensorLike) -> Self:
        """`value` (in this tensor's dtype) where `mask` is true."""
        fill = self._fill(value, "masked_fill")
        return self._choose(mask, fill, self)

    def clip(self, low: TensorLike | None = None, high: TensorLike | None = None) -> Self:
        """Bring elements into [low, high]; NaN stays. If low > high, high wins."""
        if low is None and high is None:
            raise GraphError("clip", "needs low or high, got neither.")
        result = self if low is None else self.maximum(low)
        return result if high is None else result.minimum(high)

    clamp = clip

    def lerp(self, end: TensorLike, weight: TensorLike) -> Self:
        """self + weight * (end - self)."""
        return self + self._lift(weight) * (self._lift(end) - self)


def _check_dtype(op: str, rule: str, operands: Sequence[Handle]) -> None:
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

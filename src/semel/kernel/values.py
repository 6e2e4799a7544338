"""The values of the kernel IR: pure scalar expressions, and how reductions combine them.

    const, index, load, op, select, cast ... --> Value

A value is hash-consed, so that identity is equality and common subexpressions are shared by
construction. The rules of ops are written with these functions, so this file is loaded wherever
ops are, and loads nothing of the rest of the kernel IR (`semel.kernel.ir`).
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from semel.ir.expr import Dim
from semel.ir.narrow import to_narrow
from semel.ir.types import BOOL, FLOAT32, FLOAT64, INT16, INT32, INT64, UINT8, UINT32, DType

#: One result, operands of one dtype: name -> number of operands.
ARITHMETIC = {
    "add": 2, "sub": 2, "mul": 2, "div": 2, "fma": 3, "neg": 1, "abs": 1, "min": 2, "max": 2,
    "ldexp": 2, "scale": 2, "sqrt": 1, "floor": 1, "ceil": 1, "trunc": 1, "rint": 1,
    "idiv": 2, "imod": 2, "and": 2, "or": 2, "xor": 2, "not": 1, "shl": 2, "shr": 2,
}  # fmt: skip
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
#: Replaced by arithmetic in `kernel.math`; never reaches codegen.
MATH = {
    "exp": 1, "decay": 1, "exp2": 1, "expm1": 1, "log": 1, "log2": 1, "log10": 1, "log1p": 1,
    "sin": 1, "cos": 1, "tan": 1, "asin": 1, "acos": 1, "atan": 1,
    "sinh": 1, "cosh": 1, "tanh": 1, "asinh": 1, "acosh": 1, "atanh": 1,
    "erf": 1, "gelu": 1, "sigmoid": 1, "pow": 2, "atan2": 2, "fmod": 2,
}  # fmt: skip


def larger(a: Any, b: Any) -> Any:
    """max in NumPy, to the bit: NaN if one is, and of equal ones (0 and -0) the first."""
    return np.where((b > a) | (b != b), b, a)


def smaller(a: Any, b: Any) -> Any:
    """min, likewise."""
    return np.where((b < a) | (b != b), b, a)


@dataclass(frozen=True, slots=True)
class Combine:
    """How `Reduce` joins what is there and what comes, and what changes nothing if it is joined."""

    neutral: Callable[[DType], Any]
    num_locals: int = 1
    num_values: int = 1


def _zero(dtype: DType) -> Any:
    return -0.0 if dtype.is_float else 0  # 0.0 + -0.0 is 0.0


def _ones(dtype: DType) -> Any:
    return True if dtype == BOOL else -1


def _lowest(dtype: DType) -> Any:
    return dtype.lowest


def _highest(dtype: DType) -> Any:
    return dtype.highest


#: Any arithmetic of two operands that may be regrouped, and what machines have besides: an `fma`
#: adds a product of two values, a `dot` the products of two words' bytes, a `small_dot` those of
#: bytes and of signed ones in [-64, 64], `pairs` those of four numbers of 16 bits, in two words,
#: and a word's bytes; `fastmax` and `fastmin` may lose a NaN; `argmax` and `argmin` carry the best
#: value and its index.
COMBINES: dict[str, Combine] = {
    "add": Combine(_zero),
    "mul": Combine(lambda dtype: 1),
    "max": Combine(_lowest),
    "min": Combine(_highest),
    "fastmax": Combine(_lowest),
    "fastmin": Combine(_highest),
    "and": Combine(_ones),
    "or": Combine(lambda dtype: 0),
    "xor": Combine(lambda dtype: 0),
    "fma": Combine(_zero, num_values=2),
    "dot": Combine(lambda dtype: 0, num_values=2),
    "small_dot": Combine(lambda dtype: 0, num_values=2),
    "pairs": Combine(lambda dtype: 0, num_values=3),
    "argmax": Combine(_lowest, 2, 2),
    "argmin": Combine(_highest, 2, 2),
}


@dataclass(frozen=True, slots=True)
class Buffer:
    """An argument of the kernel (`access` r, w or rw), or scratch of the running thread (`s`).

    `size` is in elements: what `verify` checks indices against.
    """

    name: str
    dtype: DType
    size: Dim
    access: str

    def __hash__(self) -> int:
        return hash(self.name)  # which is its own in a kernel


@dataclass(frozen=True, slots=True)
class Local:
    """A scalar in a register. With `copies`, an array of them indexed by unrolled loops."""

    name: str
    dtype: DType
    copies: tuple[int, ...] = ()

    def __hash__(self) -> int:
        return hash(self.name)


class Value:
    """A pure scalar expression. Make one with the functions below, never directly.

    `op` is an arithmetic, comparison or math name (`ldexp(p, n)` is p * 2**n for a whole
    number n of p's float dtype, rounded once; `scale(p, s)` likewise for n that a normal number
    has as its exponent, where s is n + 1.5 * 2**mantissa + bias: for the n below those it is 0,
    and p so small that it rounds to that), or one of: `const` (data: the Python scalar), `index`
    (data: a Dim; int64), `load` (data: (Buffer, Dim); args: () or (guard, other): where guard is
    false the memory is not read and `other` is the value), `word` (data: (Buffer of bytes, Dim):
    the four bytes from there on, the first one lowest), `local` (data: (Local, tuple of Dims)),
    `select`, `cast`, `bitcast`.
    """

    __slots__ = ("__weakref__", "args", "data", "dtype", "op")
    op: str
    dtype: DType
    args: tuple[Value, ...]
    data: Any

    def __add__(self, other: Any) -> Value:
        return op("add", self, _like(self, other))

    def __radd__(self, other: Any) -> Value:
        return op("add", _like(self, other), self)

    def __sub__(self, other: Any) -> Value:
        return op("sub", self, _like(self, other))

    def __rsub__(self, other: Any) -> Value:
        return op("sub", _like(self, other), self)

    def __mul__(self, other: Any) -> Value:
        return op("mul", self, _like(self, other))

    def __rmul__(self, other: Any) -> Value:
        return op("mul", _like(self, other), self)

    def __truediv__(self, other: Any) -> Value:
        return op("div", self, _like(self, other))

    def __rtruediv__(self, other: Any) -> Value:
        return op("div", _like(self, other), self)

    def __and__(self, other: Any) -> Value:
        return op("and", self, _like(self, other))

    def __or__(self, other: Any) -> Value:
        return op("or", self, _like(self, other))

    def __xor__(self, other: Any) -> Value:
        return op("xor", self, _like(self, other))

    def __lshift__(self, other: Any) -> Value:
        return op("shl", self, _like(self, other))

    def __rshift__(self, other: Any) -> Value:
        return op("shr", self, _like(self, other))

    def __neg__(self) -> Value:
        return op("neg", self)

    def __lt__(self, other: Any) -> Value:
        return op("lt", self, _like(self, other))

    def __le__(self, other: Any) -> Value:
        return op("le", self, _like(self, other))

    def __gt__(self, other: Any) -> Value:
        return op("gt", self, _like(self, other))

    def __ge__(self, other: Any) -> Value:
        return op("ge", self, _like(self, other))

    def eq(self, other: Any) -> Value:
        return op("eq", self, _like(self, other))

    def ne(self, other: Any) -> Value:
        return op("ne", self, _like(self, other))

    def __repr__(self) -> str:
        return f"<{self.dtype.short} {self.op}>"


_INTERNED: WeakValueDictionary[Any, Value] = WeakValueDictionary()


def _make(name: str, dtype: DType, args: tuple[Value, ...], data: Any = None) -> Value:
    key = (name, dtype.name, args, _data_key(name, dtype, data))
    found = _INTERNED.get(key)
    if found is None:
        found = Value()
        found.op, found.dtype, found.args, found.data = name, dtype, args, data
        _INTERNED[key] = found
    return found


def _data_key(name: str, dtype: DType, data: Any) -> Any:
    if name == "const" and dtype.is_float:
        return struct.pack("<d", data)  # -0.0 and NaN are themselves
    return data


def _like(value: Value, other: Any) -> Value:
    return other if isinstance(other, Value) else const(value.dtype, other)


#: A float as C rounds it, for the dtypes that C has: ten times faster than to ask NumPy.
_ROUNDED: dict[DType, Any] = {FLOAT32: ctypes.c_float, FLOAT64: ctypes.c_double}


def const(dtype: DType, value: Any) -> Value:
    """A constant; rounded to the dtype now, so that all executors see the same number."""
    if dtype.is_float:
        rounded = _ROUNDED.get(dtype)
        if rounded is not None and isinstance(value, float):
            return _make("const", dtype, (), rounded(value).value)
        if dtype.is_narrow:
            return _make("const", dtype, (), float(to_narrow(value, dtype)))
        with np.errstate(over="ignore"):
            return _make("const", dtype, (), float(np.asarray(value).astype(dtype.numpy)))
    if dtype == BOOL:
        return _make("const", dtype, (), bool(value))
    wrapped = int(value) & ((1 << dtype.bits) - 1)
    if dtype.kind == "i" and wrapped >> (dtype.bits - 1):
        wrapped -= 1 << dtype.bits
    return _make("const", dtype, (), wrapped)


def start_value(combine: str, dtype: DType) -> Value:
    """What an accumulator holds before the first element: the value of nothing.

    It changes nothing, but that a sum of floats starts from 0.0 and so is never -0.0.
    """
    neutral = COMBINES[combine].neutral(dtype)
    return const(dtype, neutral + 0 if dtype.is_float else neutral)


def index(expr: Dim) -> Value:
    """An index expression as an int64 value."""
    return const(INT64, expr) if isinstance(expr, int) else _make("index", INT64, (), expr)


def load(buffer: Buffer, at: Dim, guard: Value | None = None, other: Value | None = None) -> Value:
    """buffer[at], or `other` without touching memory where `guard` is false."""
    args = () if guard is None or other is None else (guard, other)
    return _make("load", buffer.dtype, args, (buffer, at))


def word(buffer: Buffer, at: Dim) -> Value:
    """Four bytes from `at` on as one operand of a `dot`, or two int16 as one of `pairs`."""
    is_legal = buffer.dtype.bits == 8 or buffer.dtype == INT16
    assert is_legal, f"a word of {buffer.dtype} elements"
    return _make("word", word_dtype(buffer.dtype), (), (buffer, at))


def word_dtype(byte: DType) -> DType:
    """The dtype of four packed bytes, or two int16: its sign says whether they have one."""
    return UINT32 if byte == UINT8 else INT32


def word_elements(dtype: DType) -> int:
    """How many elements of a buffer make a word."""
    return 32 // dtype.bits


def local(variable: Local, at: tuple[Dim, ...] = ()) -> Value:
    """The present value of a local."""
    return _make("local", variable.dtype, (), (variable, at))


def op(name: str, *args: Value) -> Value:
    """An arithmetic, comparison or math op; operands share one dtype."""
    first = args[0].dtype
    assert all(a.dtype == first for a in args), f"{name} mixes {[a.dtype for a in args]}"
    return _make(name, BOOL if name in COMPARISONS else first, args)


def select(condition: Value, then: Value, otherwise: Value) -> Value:
    """then where condition, else otherwise; both are evaluated."""
    assert condition.dtype == BOOL and then.dtype == otherwise.dtype, "select mixes dtypes"
    if condition.op == "const":
        return then if condition.data else otherwise
    return then if then is otherwise else _make("select", then.dtype, (condition, then, otherwise))


def cast(value: Value, dtype: DType) -> Value:
    """Numeric conversion: floats to integers truncate and saturate, NaN gives 0.

    One to or from a narrow dtype is replaced by arithmetic in `kernel.math` (`ir.narrow` says what
    it means); a narrow value has no other op but `bitcast` and `select`.
    """
    if value.dtype == dtype:
        return value
    return _make("cast", dtype, (value,))


def bitcast(value: Value, dtype: DType) -> Value:
    """The same bits as another dtype of the same width."""
    assert value.dtype.pattern_bits == dtype.pattern_bits, f"bitcast of {value.dtype} to {dtype}"
    return value if value.dtype == dtype else _make("bitcast", dtype, (value,))


def with_args(value: Value, args: tuple[Value, ...]) -> Value:
    """The same op on other operands of the same dtypes."""
    return value if args == value.args else _make(value.op, value.dtype, args, value.data)


def fma(a: Value, b: Any, c: Any) -> Value:
    """a*b + c, rounded once."""
    return op("fma", a, _like(a, b), _like(a, c))


def walk_values(values: Sequence[Value]) -> Iterator[Value]:
    """Every value reachable from `values`, operands first, each once."""
    seen: set[Value] = set()
    stack: list[Value | tuple[Value]] = [*reversed(values)]  # in a tuple: its operands are done
    while stack:
        value = stack.pop()
        if isinstance(value, tuple):
            yield value[0]
        elif value not in seen:
            seen.add(value)
            if value.args:
                stack.append((value,))
                stack += value.args[::-1]
            else:
                yield value

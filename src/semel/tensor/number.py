"""Python's floats while a function is traced: numbers whose values each call has anew.

    f(x, 0.1)  --semel.jit-->  x * Number  -->  one plan for all such numbers

A `Number` is a scalar input of float64 that is as weak as the float that it stands for: `x * lr`
has the dtype of `x`, `lr * 0.5` is a number again. Whatever Python must know of it now (a truth,
an int, `math.sqrt(lr)`) is answered with its value in the call that is followed, and the trace
holds for calls with the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

from semel.errors import GraphError
from semel.ir import questions
from semel.ir.expr import evaluate
from semel.ir.types import FLOAT64
from semel.tensor.handle import SYMBOLIC, common_dtype, convert, dim_value, lift, weak_kind, wrap
from semel.tensor.tensor import Tensor

#: What a number is, by the values of a call's sizes and numbers.
Read: TypeAlias = Callable[[Mapping[str, Any]], Any]


def _decided(read: Read) -> Any:
    found = questions.answers()
    if found is None:
        raise GraphError("jit", "a traced number must not leave the function that it was given to.")
    return found.decide(read)


class Truth(Tensor):
    """What a comparison of numbers gave: a tensor, and a truth if Python asks for one."""

    __slots__ = ("_read",)

    def __bool__(self) -> bool:
        return bool(_decided(self._read))

    def __init__(self, x: Tensor, read: Read) -> None:
        self._node, self._value, self._read = x._node, None, read

    _read: Read


def _operator(name: str) -> Any:
    """An operator of Tensor that leaves numbers weak."""
    plain = getattr(Tensor, name)

    def operate(self: Number, other: Any) -> Any:
        try:
            kind = weak_kind(other)
        except TypeError:
            return NotImplemented
        if not kind:
            strong = lift(other)
            return plain(convert(wrap(self._node), common_dtype([strong.dtype], ["f"])), strong)
        read, theirs = self._read, _reader(other)
        result = plain(wrap(self._node), _wide(other))

        def value(values: Mapping[str, Any]) -> Any:
            return getattr(float(read(values)), name)(theirs(values))

        return Number(result, value) if result.dtype.is_float else Truth(result, value)

    operate.__name__ = name
    return operate


def _reader(value: Any) -> Read:
    """How the value of a weak operand is read."""
    if isinstance(value, Number):
        return value._read
    if isinstance(value, SYMBOLIC):
        return lambda values: evaluate(value, values)
    return lambda values: value


def _wide(value: Any) -> Any:
    """A weak operand in float64, as Python calculates."""
    if isinstance(value, Number):
        return wrap(value._node)
    return dim_value(value, FLOAT64) if isinstance(value, SYMBOLIC) else float(value)


class Number(Tensor):
    """A float that each call has anew."""

    __slots__ = ("_read",)
    _weak_kind: ClassVar[str] = "f"
    _read: Read

    def __init__(self, x: Tensor, read: Read) -> None:
        self._node, self._value, self._read = x._node, None, read

    @classmethod
    def of_dim(cls, dim: Any) -> Number:
        """A size as a number to calculate with."""
        return cls(dim_value(dim, FLOAT64), lambda values: float(evaluate(dim, values)))

    __add__, __radd__ = _operator("__add__"), _operator("__radd__")
    __sub__, __rsub__ = _operator("__sub__"), _operator("__rsub__")
    __mul__, __rmul__ = _operator("__mul__"), _operator("__rmul__")
    __truediv__, __rtruediv__ = _operator("__truediv__"), _operator("__rtruediv__")
    __floordiv__, __rfloordiv__ = _operator("__floordiv__"), _operator("__rfloordiv__")
    __mod__, __rmod__ = _operator("__mod__"), _operator("__rmod__")
    __pow__, __rpow__ = _operator("__pow__"), _operator("__rpow__")
    __lt__, __le__ = _operator("__lt__"), _operator("__le__")
    __gt__, __ge__ = _operator("__gt__"), _operator("__ge__")
    __eq__, __ne__ = _operator("__eq__"), _operator("__ne__")
    __hash__ = object.__hash__

    def __neg__(self) -> Any:
        return self * -1.0

    def __abs__(self) -> Any:
        read = self._read
        return Number(abs(wrap(self._node)), lambda values: abs(read(values)))

    def __bool__(self) -> bool:
        return bool(_decided(self._read))

    def __int__(self) -> int:
        return int(_decided(self._read))

    def __float__(self) -> float:
        return float(_decided(self._read))

    def __round__(self, digits: int | None = None) -> Any:
        return round(float(self), digits)

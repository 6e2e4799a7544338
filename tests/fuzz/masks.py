"""Random masks over (rows, columns), from positions in every dtype.

    Random --random_mask--> label, (rows, columns) -> bool tensor of that shape

Most are no bands along the diagonal, many nearly are: positions that wrap in a narrow or
unsigned dtype, casts of floats, flags in integers instead of bools.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, TypeAlias

from semel import Tensor
from semel.ir.expr import Dim
from semel.tensor.handle import lift

#: (row positions, column positions, number of rows, number of columns) -> tensor or number
Made: TypeAlias = tuple[str, Callable[[Tensor, Tensor, Dim, Dim], Any]]

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES = (*INTEGERS, *INTEGERS, "float16", "float32", "float64", "bool")
NUMBERS = (0, 0, 1, 1, 2, 3, 5, 100, 120)
COMPARISONS = ("<=", "<", ">=", ">")


def random_mask(rng: Random) -> tuple[str, Callable[[Dim, Dim], Tensor]]:
    """A mask of one shape; the same at every call."""
    label, make = _mask(rng, rng.randint(0, 3))

    def build(rows: Dim, columns: Dim) -> Tensor:
        row, column = Tensor.arange(rows).reshape(rows, 1), Tensor.arange(columns)
        made = lift(make(row, column, rows, columns))
        return made.cast("bool").expand(rows, columns)

    return label, build


def _mask(rng: Random, depth: int) -> Made:
    """Something whose truth is a mask: a bool, an integer of flags, a float."""
    kinds = ("compare",) * (6 if depth == 0 else 2) + ("not", "both", "both", "cast", "zero")
    match rng.choice(kinds if depth else ("compare", "compare", "near")):
        case "near":
            return _near(rng)
        case "compare":
            return _operation(rng.choice(COMPARISONS), _number(rng, 2), _number(rng, 2))
        case "not":
            text, make = _mask(rng, depth - 1)
            return f"~({text})", lambda *at: ~_whole(make(*at))
        case "both":
            a, b = _mask(rng, depth - 1), _mask(rng, depth - 1)
            word = rng.choice("&|")
            parts = [(t, lambda *at, m=m: _whole(m(*at))) for t, m in (a, b)]
            return _operation(word, parts[0], parts[1])
        case "cast":
            return _cast(_mask(rng, depth - 1), rng.choice(DTYPES))
        case _:
            text, make = _mask(rng, depth - 1)
            if rng.random() < 0.5:
                return f"({text} == 0)", lambda *at: make(*at) == 0
            yes, no = rng.choice(((1, 0), (0, 1), (2, 0), (0, 4), (0.5, 0.0)))
            dtype = "float32" if isinstance(yes, float) else rng.choice(INTEGERS)
            return f"where({text}, {yes}, {no}: {dtype})", lambda *at: Tensor.where(
                make(*at).cast("bool"), yes, no
            ).cast(dtype)


def _near(rng: Random) -> Made:
    """A band as people write it, with one detail that may be wrong."""
    distance = _operation("-", _cast(_row(), _some(rng)), _cast(_column(), _some(rng)))
    limit = rng.choice((_constant(rng), _shift()))
    return _operation(rng.choice(COMPARISONS), _cast(distance, _some(rng)), limit)


def _some(rng: Random) -> str:
    return rng.choice(("int64", "int64", *DTYPES[:-1]))


def _number(rng: Random, depth: int) -> Made:
    """Positions, their sums and differences, in some dtype."""
    match rng.choice(("leaf",) if depth == 0 else ("leaf", "+", "-", "-", "*", "neg", "cast")):
        case "leaf":
            return rng.choice((_row(), _row(), _column(), _column(), _constant(rng), _shift()))
        case "cast":
            return _cast(_number(rng, depth - 1), rng.choice(DTYPES[:-1]))
        case "neg":
            text, make = _number(rng, depth - 1)
            return f"-({text})", lambda *at: -make(*at)
        case word:
            return _operation(word, _number(rng, depth - 1), _number(rng, depth - 1))


def _row() -> Made:
    return "row", lambda row, column, rows, columns: row


def _column() -> Made:
    return "column", lambda row, column, rows, columns: column


def _shift() -> Made:
    """A number that may be negative, and symbolic."""
    return "(columns - rows)", lambda row, column, rows, columns: columns - rows


def _constant(rng: Random) -> Made:
    number = rng.choice(NUMBERS)
    return str(number), lambda *at: number


def _cast(made: Made, dtype: str) -> Made:
    text, make = made
    return f"({text}).cast({dtype})", lambda *at: lift(make(*at)).cast(dtype)


_WORDS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
    "&": lambda a, b: a & b, "|": lambda a, b: a | b,
}  # fmt: skip


def _operation(word: str, a: Made, b: Made) -> Made:
    def make(*at: Any) -> Any:
        return _WORDS[word](lift(a[1](*at)), b[1](*at))

    return f"({a[0]} {word} {b[0]})", make


def _whole(value: Any) -> Any:
    """Flags for bitwise operators, which floats do not have."""
    lifted = lift(value)
    return lifted.cast("int32") if lifted.dtype.is_float else lifted

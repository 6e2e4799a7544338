"""Casts as users write them, with what ONNX's Cast may be told besides.

    Tensor x dtype  --cast-->  one `cast` node; another rounding or no saturation: a few more

The op `cast` saturates, and rounds up to float8_e8m0fnu: so it is what ONNX does unless it is told
otherwise. What else it may be told is written here with other ops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.errors import GraphError
from semel.ir.narrow import FLOATS, SMALLEST_POWER, FloatForm
from semel.ir.types import FLOAT8_E8M0FNU, FLOAT32, UINT8, UINT32, DType, as_dtype
from semel.tensor.elementwise import choose
from semel.tensor.handle import DTypeLike, TensorLike, bitcast, convert, lift, scalar, wrap
from semel.tensor.place import to_device

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

ROUND_MODES = ("up", "down", "nearest")
_INFINITY = 0x7F800000


def cast(x: TensorLike, dtype: DTypeLike, saturate: bool = True, round_mode: str = "up") -> Tensor:
    """Convert the elements; float to integer truncates and saturates, NaN gives 0.

    A number too large for a float8 becomes its largest, or without `saturate` an infinity, or NaN
    where there is none. To float8_e8m0fnu it is rounded by `round_mode`: "up" or "down" to a power
    of two, or to the "nearest" one. Integers of less than 8 bits keep the low bits of what they
    are given, as integers do.

    >>> Tensor([1.7, -300.0]).cast("int8").tolist()
    [1, -128]
    """
    wanted = as_dtype(dtype, "cast")
    if round_mode not in ROUND_MODES:
        modes = ", ".join(map(repr, ROUND_MODES))
        raise GraphError("cast", f"round_mode must be one of {modes}, got {round_mode!r}.")
    x = lift(x)
    if wanted == FLOAT8_E8M0FNU and not (saturate and round_mode == "up") and x.dtype != wanted:
        return _exponents(x, saturate, round_mode)
    form = FLOATS.get(wanted)
    if saturate or form is None or form.past == form.largest or x.dtype == wanted:
        return convert(x, wanted)
    return _not_saturated(convert(x, FLOAT32), wanted, form)


def astype(x: TensorLike, dtype: DTypeLike, *, copy: bool = True, device: Any = None) -> Tensor:
    """`cast`, by NumPy's name. Without `copy` a tensor of that dtype already is itself."""
    x = lift(x)
    made = cast(x, dtype)
    if copy and made is x:
        made = wrap(x.node)
    return made if device is None else to_device(made, device)


def _not_saturated(x: Tensor, dtype: DType, form: FloatForm) -> Tensor:
    """Floats cast, and what is past the largest as an infinity or NaN."""
    size = x.abs()
    is_past = size >= form.limit if form.limit_is_past else size > form.limit
    past = choose(x < 0.0, scalar(form.past | form.sign, UINT8), scalar(form.past, UINT8))
    return bitcast(choose(is_past, past, bitcast(convert(x, dtype), UINT8)), dtype)


def _exponents(x: Tensor, saturate: bool, round_mode: str) -> Tensor:
    """Powers of two by their biased exponents: what is left of a float32 without its mantissa."""
    size = bitcast(convert(x, FLOAT32), UINT32) & 0x7FFFFFFF
    moved = size
    if round_mode == "up":
        moved = choose(size > SMALLEST_POWER, size + 0x7FFFFF, scalar(0, UINT32))
    elif round_mode == "nearest":  # half way goes up, but not to the first normal number
        moved = size + choose(size < 0x800000, scalar(0x3FFFFF, UINT32), scalar(0x400000, UINT32))
    exponent = (moved >> 23).minimum(254 if saturate else 255)
    code = choose(size >= _INFINITY, scalar(255, UINT32), exponent)
    return bitcast(convert(code, UINT8), FLOAT8_E8M0FNU)

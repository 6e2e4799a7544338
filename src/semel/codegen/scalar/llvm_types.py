"""How dtypes, vectors and constants are written in LLVM IR.

float16 and bfloat16 live in registers as float32 that holds an exactly representable value.
Bool is i1 in registers, one byte in memory. Narrow dtypes are bytes in both: what computes with
them has been written out (`kernel.math.narrow`).
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from semel.ir.narrow import to_narrow
from semel.ir.types import BFLOAT16, BOOL, DType

_FLOAT = {16: "float", 32: "float", 64: "double"}
_SUFFIX = {"float": "f32", "double": "f64", "half": "f16"}


def element_type(dtype: DType) -> str:
    """The LLVM type of one element in a register."""
    if dtype.is_narrow:
        return "i8"
    return _FLOAT[dtype.bits] if dtype.is_float else f"i{dtype.bits}"


def memory_type(dtype: DType) -> str:
    """The LLVM type of one element in memory."""
    if dtype == BOOL:
        return "i8"
    if dtype.is_half:
        return "i16" if dtype == BFLOAT16 else "half"
    return element_type(dtype)


def vector_of(element: str, lanes: int | None) -> str:
    """`<lanes x element>`, or the element itself for scalar code."""
    return element if lanes is None else f"<{lanes} x {element}>"


def literal(dtype: DType, value: Any) -> str:
    """A scalar constant; LLVM writes a float as the double of the same value."""
    if dtype.is_narrow:
        return str(to_narrow(value, dtype).view(np.uint8).item())
    if dtype.is_float:
        return f"0x{struct.unpack('>Q', struct.pack('>d', float(value)))[0]:016X}"
    return str(int(value))


def iota(element: str, lanes: int) -> str:
    """The constant vector 0, 1, 2, ..."""
    return "<" + ", ".join(f"{element} {i}" for i in range(lanes)) + ">"


def mangle(element: str, lanes: int | None) -> str:
    """A type as intrinsics have it in their names: `f32`, `v16f32`."""
    scalar = _SUFFIX.get(element, element)
    return scalar if lanes is None else f"v{lanes}{scalar}"

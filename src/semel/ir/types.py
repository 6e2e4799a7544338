"""Types of tensors: dtypes, shapes, promotion.

    DType x shape of dims  -->  TensorType

A dim is an int or a symbolic expression (`semel.ir.expr`). Bool is stored as
one byte; float16 and bfloat16 are storage formats: every op on them computes in
float32 and rounds once, so that a fused kernel gives the bits of an unfused one.
What is narrower yet, the *narrow* dtypes, is stored as one byte an element and never computed
with: ops move it and cast it, and what needs a number casts it first (`semel.ir.narrow`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from semel.errors import GraphError
from semel.ir.expr import Dim, Expr, Fn, Index, Variable, product, upper_bound


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """One element type. `kind` is b(ool), i(nt), u(int) or f(loat).

    It equals its names and what NumPy calls it, from either side: `t.dtype == "float32"`,
    `t.dtype == "f4"` and `np.float32 == t.dtype` mean what they say, and `np.dtype(t.dtype)` is
    NumPy's. Not one hash can agree with all of these: it is that of the name, `"float32"`, so that
    a dict should have keys of one sort.
    """

    name: str  #: as NumPy writes it: `float32`
    short: str  #: as the text of graphs and kernels writes it: `f32`
    kind: str  #: b(ool), i(nt), u(int) or f(loat)
    bits: int  #: how many bits of an element carry its value
    is_narrow: bool = False  #: one byte that is cast before anything is computed

    @property
    def size_bytes(self) -> int:
        """How much memory an element takes: at least one byte."""
        return max(self.bits // 8, 1)

    @property
    def pattern_bits(self) -> int:
        """The width of what `bitcast` reads: a narrow element is a whole byte."""
        return 8 if self.is_narrow else self.bits

    @property
    def numpy(self) -> np.dtype[Any]:
        """The same as NumPy's dtype, or as that of ml_dtypes."""
        return _NUMPY[self.name]

    @property
    def dtype(self) -> np.dtype[Any]:
        """How NumPy finds out what is meant: `np.dtype(semel.float32)`."""
        return _NUMPY[self.name]

    @property
    def is_float(self) -> bool:
        """Whether it has a fraction and an exponent, narrow ones included."""
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        """Whether it is a whole number, signed or not; bool is none."""
        return self.kind in "iu"

    @property
    def is_half(self) -> bool:
        """float16 or bfloat16: stored narrow, computed in float32."""
        return self.kind == "f" and self.bits == 16

    @property
    def compute(self) -> DType:
        """The dtype in which arithmetic on this one happens."""
        if self.is_narrow:
            return FLOAT32 if self.kind == "f" else INT32
        return FLOAT32 if self.is_half else self

    @property
    def lowest(self) -> Any:
        """The identity of max: no number is less."""
        if self.kind == "f":
            return _LIMITS[self.name][0] if self.is_narrow else -float("inf")
        return False if self.kind == "b" else -(1 << self.bits - 1) if self.kind == "i" else 0

    @property
    def highest(self) -> Any:
        """The identity of min: no number is larger."""
        if self.kind == "f":
            return _LIMITS[self.name][1] if self.is_narrow else float("inf")
        return True if self.kind == "b" else (1 << self.bits - (self.kind == "i")) - 1

    def holds(self, low: int | None, high: int | None) -> bool:
        """Whether every integer of [low, high] is one of this dtype; None: no bound is known."""
        return low is not None and high is not None and self.lowest <= low and high <= self.highest

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DType):
            return self.name == other.name
        if isinstance(other, str):
            return self.name == _NUMPY_TEXTS.get(other, other)
        if isinstance(other, np.dtype):
            return self.numpy == other
        if isinstance(other, type):
            meant = _PYTHON.get(other)
            return self.numpy.type is other if meant is None else self.name == meant.name
        name = _torch_name(other)
        return self.name == name if name else NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"semel.{self.name}"


BOOL = DType("bool", "b1", "b", 1)
INT8, INT16, INT32, INT64 = (DType(f"int{b}", f"i{b}", "i", b) for b in (8, 16, 32, 64))
UINT8, UINT16, UINT32, UINT64 = (DType(f"uint{b}", f"u{b}", "u", b) for b in (8, 16, 32, 64))
FLOAT16 = DType("float16", "f16", "f", 16)
BFLOAT16 = DType("bfloat16", "bf16", "f", 16)
FLOAT32 = DType("float32", "f32", "f", 32)
FLOAT64 = DType("float64", "f64", "f", 64)
FLOAT8_E4M3FN = DType("float8_e4m3fn", "f8e4m3fn", "f", 8, is_narrow=True)
FLOAT8_E4M3FNUZ = DType("float8_e4m3fnuz", "f8e4m3fnuz", "f", 8, is_narrow=True)
FLOAT8_E5M2 = DType("float8_e5m2", "f8e5m2", "f", 8, is_narrow=True)
FLOAT8_E5M2FNUZ = DType("float8_e5m2fnuz", "f8e5m2fnuz", "f", 8, is_narrow=True)
FLOAT8_E8M0FNU = DType("float8_e8m0fnu", "f8e8m0fnu", "f", 8, is_narrow=True)
FLOAT4_E2M1FN = DType("float4_e2m1fn", "f4e2m1fn", "f", 4, is_narrow=True)
# To NumPy, i4 and u2 are four and two bytes: these have no other names.
INT4, INT2 = (DType(f"int{b}", f"int{b}", "i", b, is_narrow=True) for b in (4, 2))
UINT4, UINT2 = (DType(f"uint{b}", f"uint{b}", "u", b, is_narrow=True) for b in (4, 2))

NARROW: tuple[DType, ...] = (
    FLOAT8_E4M3FN, FLOAT8_E4M3FNUZ, FLOAT8_E5M2, FLOAT8_E5M2FNUZ, FLOAT8_E8M0FNU,
    FLOAT4_E2M1FN, INT4, UINT4, INT2, UINT2,
)  # fmt: skip
DTYPES: tuple[DType, ...] = (
    BOOL, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64,
    FLOAT16, BFLOAT16, FLOAT32, FLOAT64, *NARROW,
)  # fmt: skip
#: NumPy's dtypes, or of what it has not those of ml_dtypes.
_NUMPY: dict[str, np.dtype[Any]] = {
    d.name: np.dtype(getattr(ml_dtypes, d.name) if d in (BFLOAT16, *NARROW) else d.name)
    for d in DTYPES
}
#: Names of ours by how NumPy writes a dtype: "f4" and "<f4".
_NUMPY_TEXTS = {
    text: name
    for name, n in _NUMPY.items()
    if n.isbuiltin == 1
    for text in (n.str, n.str.lstrip("<|"))
}
_finfo: Any = ml_dtypes.finfo
#: The least and the largest number of narrow floats, which may have no infinity.
_LIMITS = {
    d.name: (float(_finfo(d.numpy).min), float(_finfo(d.numpy).max)) for d in NARROW if d.is_float
}
_PYTHON: dict[type, DType] = {bool: BOOL, int: INT64, float: FLOAT32}
_BY_NAME = {d.name: d for d in DTYPES} | {d.short: d for d in DTYPES}
_BY_NUMPY = {n: _BY_NAME[name] for name, n in _NUMPY.items()}


def one_of(dtype: DType) -> str:
    """An element in a sentence: "an int8", "a float32"."""
    return f"an {dtype}" if dtype.name.startswith("int") else f"a {dtype}"


def _torch_name(value: Any) -> str:
    """What a dtype of PyTorch's is called, which need not be imported for that; else empty."""
    return str(value).removeprefix("torch.") if type(value).__module__ == "torch" else ""


def as_dtype(value: Any, where: str = "dtype") -> DType:
    """The DType for a name, a dtype of NumPy or PyTorch, a Python scalar type or a DType."""
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value in _BY_NAME:
        return _BY_NAME[value]
    if isinstance(value, type) and value in _PYTHON:
        return _PYTHON[value]
    if (name := _torch_name(value)) in _BY_NAME:
        return _BY_NAME[name]
    try:
        if value is not None:  # to NumPy, None is float64
            return _BY_NUMPY[np.dtype(value)]
    except (TypeError, ValueError, KeyError):
        pass
    names = ", ".join(d.name for d in DTYPES)
    raise GraphError(where, f"dtype must be one of {names}, got {value!r}.")


def is_known(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype of NumPy's is one of ours."""
    return dtype in _BY_NUMPY


def promote(a: DType, b: DType) -> DType:
    """The common dtype: within a kind as NumPy; an integer with a float gives the float's.

    uint64 and a signed integer have none (docs/decisions/0020-uint64.md). A narrow integer joins
    others as a byte; a float that does not hold the other's numbers meets it in float32.
    """
    if a == b:
        return a
    if a.is_float and b.is_float:
        wide, other = (a, b) if a.bits > b.bits else (b, a)
        return wide if is_lossless(other, wide) else FLOAT32
    if a.is_float or b.is_float:
        found = a if a.is_float else b
        return found.compute if found.is_narrow else found
    if mixes_signs(a, b):
        raise GraphError(
            "promote",
            f"{a} and {b} have no integer dtype in common.",
            hint="Cast one of them to the dtype you mean.",
        )
    return _BY_NUMPY[np.promote_types(_as_byte(a).numpy, _as_byte(b).numpy)]


def _as_byte(dtype: DType) -> DType:
    if not dtype.is_narrow:
        return dtype
    return INT8 if dtype.kind == "i" else UINT8


_MANTISSA_BITS = {FLOAT16: 11, BFLOAT16: 8, FLOAT32: 24, FLOAT64: 53}


def is_lossless(source: DType, target: DType) -> bool:
    """Whether every value of `source` is one of `target`."""
    if source in (target, BOOL):
        return True
    if target == BOOL or (source.is_float and not target.is_float):
        return False
    if source.is_float:
        # One float8 has the exponents of float32; none holds all numbers of another.
        too_far = source == FLOAT8_E8M0FNU and target == FLOAT16
        return target.bits > source.bits and not target.is_narrow and not too_far
    if target.is_float:
        return source.bits - (source.kind == "i") <= _MANTISSA_BITS.get(target, 0)
    if source.kind == target.kind:
        return target.bits >= source.bits
    return source.kind == "u" and target.bits > source.bits


def mixes_signs(a: DType, b: DType) -> bool:
    """Whether one is uint64 and the other a signed integer: no integer dtype holds both."""
    return UINT64 in (a, b) and "i" in (a.kind, b.kind)


Shape = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class TensorType:
    """dtype and shape; dims may be symbolic."""

    shape: Shape
    dtype: DType

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def num_elements(self) -> Dim:
        return product(self.shape)

    @property
    def num_bytes(self) -> Dim:
        return product(self.shape) * self.dtype.size_bytes

    @property
    def max_bytes(self) -> int | None:
        """Bytes at the variables' maxima; None if one has no maximum."""
        return upper_bound(self.num_bytes)

    def __str__(self) -> str:
        return f"{self.dtype.short}[{','.join(str(d) for d in self.shape)}]"

    __repr__ = __str__


def as_shape(dims: Sequence[Any] | np.integer[Any] | Dim, where: str = "shape") -> Shape:
    """Check the dims of a shape: non-negative ints or expressions over variables."""
    if isinstance(dims, (int, np.integer, Variable, Expr, Fn, Index)):
        dims = (dims,)
    if not isinstance(dims, Iterable):
        raise GraphError(where, f"a shape must be ints or Variables, got {dims!r}.")
    result: list[Dim] = []
    for dim in dims:
        if isinstance(dim, (bool, np.bool_)) or not isinstance(
            dim, (int, np.integer, Variable, Expr, Fn, Index)
        ):
            found = f"{dim!r} in {tuple(dims)}"
            raise GraphError(where, f"dims must be ints or Variables, got {found}.")
        if not isinstance(dim, (int, np.integer)):
            result.append(dim)
        elif dim >= 0:
            result.append(int(dim))
        else:
            raise GraphError(where, f"dims must be >= 0, got {tuple(dims)}.")
    return tuple(result)

"""LLVM instructions for the kernel IR's scalar ops, for any number of lanes.

    (op, dtype, operands as SSA text, lanes) --> instructions, result as SSA text

Pure text: an `Instructions` sink receives lines, so the same rules serve scalar
code (lanes None) and vectors. float16 and bfloat16 live in registers as float32
that holds an exactly representable value; every op on them rounds once. Bool is
i1 in registers, one byte in memory. No fast-math flags anywhere: what lowering
wrote is what runs. Integer corner cases (division by zero, shifts past the
width, float to integer) have the results that `ops.elementwise` defines.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import Any

from semel.ir.types import BFLOAT16, BOOL, FLOAT32, FLOAT64, DType

_FLOAT = {16: "float", 32: "float", 64: "double"}
_SUFFIX = {"float": "f32", "double": "f64", "half": "f16"}
_FLOAT_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_FLOAT_UNARY = {
    "abs": "fabs", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc",
    "rint": "roundeven",
}  # fmt: skip
_INT_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
_FCMP = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
_ICMP = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}


def element_type(dtype: DType) -> str:
    """The LLVM type of one element in a register."""
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
    """A scalar constant."""
    if dtype.is_float:
        if dtype.bits == 64:
            return f"0x{struct.unpack('>Q', struct.pack('>d', value))[0]:016X}"
        # LLVM writes a float constant as the double of the same value.
        return f"0x{struct.unpack('>Q', struct.pack('>d', float(value)))[0]:016X}"
    return str(int(value))


class Instructions:
    """A sink of LLVM lines with fresh names and the declarations they need."""

    def __init__(self) -> None:
        self._counter = itertools.count()
        self.declarations: dict[str, str] = {}

    def name(self, prefix: str = "v") -> str:
        # The number after the last underscore is unique, whatever the prefix ends with.
        return f"{prefix}_{next(self._counter)}"

    def emit(self, lines: list[str], text: str) -> str:
        """Append `%x = text` and return `%x`."""
        result = f"%{self.name()}"
        lines.append(f"  {result} = {text}")
        return result

    def call(self, lines: list[str], result: str, name: str, *args: tuple[str, str]) -> str:
        """Call an intrinsic, declared on first use; `args` are (type, value)."""
        types = ", ".join(t.removesuffix(" align 1") for t, _ in args)
        self.declarations[name] = f"declare {result} @{name}({types})"
        text = f"call {result} @{name}({', '.join(f'{t} {v}' for t, v in args)})"
        if result == "void":
            lines.append(f"  {text}")
            return ""
        return self.emit(lines, text)


class Scalars:
    """The rules: one method per family, dispatched by `apply`."""

    def __init__(
        self,
        sink: Instructions,
        *,
        has_scale: bool = False,
        has_fma: bool = True,
        has_f16_casts: bool = True,
    ) -> None:
        self.sink, self.has_scale = sink, has_scale
        self.has_fma, self.has_f16_casts = has_fma, has_f16_casts

    # ------------------------------------------------------------ helpers

    def splat(self, lines: list[str], element: str, value: str, lanes: int) -> str:
        """A scalar in every lane."""
        if not value.startswith("%"):
            return f"splat ({element} {value})"
        vector = vector_of(element, lanes)
        first = self.sink.emit(lines, f"insertelement {vector} poison, {element} {value}, i32 0")
        zeros = f"<{lanes} x i32> zeroinitializer"
        return self.sink.emit(lines, f"shufflevector {vector} {first}, {vector} poison, {zeros}")

    def constant(self, dtype: DType, value: Any, lanes: int | None) -> str:
        """A constant, in every lane."""
        return self.raw(element_type(dtype), literal(dtype, value), lanes)

    def raw(self, element: str, text: str, lanes: int | None) -> str:
        return text if lanes is None else f"splat ({element} {text})"

    def _suffix(self, element: str, lanes: int | None) -> str:
        scalar = _SUFFIX.get(element, element)
        return scalar if lanes is None else f"v{lanes}{scalar}"

    def intrinsic(
        self, lines: list[str], name: str, element: str, lanes: int | None, *args: str
    ) -> str:
        """`llvm.name` of operands that all have the result's type."""
        kind = vector_of(element, lanes)
        full = f"llvm.{name}.{self._suffix(element, lanes)}"
        return self.sink.call(lines, kind, full, *((kind, a) for a in args))

    def select(
        self, lines: list[str], element: str, lanes: int | None, cond: str, a: str, b: str
    ) -> str:
        kind, mask = vector_of(element, lanes), vector_of("i1", lanes)
        return self.sink.emit(lines, f"select {mask} {cond}, {kind} {a}, {kind} {b}")

    def compare(
        self, lines: list[str], code: str, element: str, lanes: int | None, a: str, b: str
    ) -> str:
        """`code` is an LLVM predicate; floats are told by their element type."""
        word = "fcmp" if element in ("float", "double", "half") else "icmp"
        return self.sink.emit(lines, f"{word} {code} {vector_of(element, lanes)} {a}, {b}")

    def binary(
        self, lines: list[str], word: str, element: str, lanes: int | None, a: str, b: str
    ) -> str:
        return self.sink.emit(lines, f"{word} {vector_of(element, lanes)} {a}, {b}")

    def convert(
        self, lines: list[str], word: str, source: str, to: str, lanes: int | None, a: str
    ) -> str:
        return self.sink.emit(
            lines, f"{word} {vector_of(source, lanes)} {a} to {vector_of(to, lanes)}"
        )

    # ------------------------------------------------------------ ops

    def apply(
        self,
        lines: list[str],
        op: str,
        dtype: DType,
        args: list[str],
        lanes: int | None,
        constant: tuple[bool, ...] = (),
    ) -> str:
        """The result of an arithmetic or comparison op on operands of `dtype`.

        `constant` says which operands are constants other than NaN.
        """
        if op in _FCMP:
            return self._comparison(lines, op, dtype, args, lanes)
        if dtype.is_float:
            result = self._float(lines, op, dtype, args, lanes, constant)
            # Results of these are exact in the narrow type already.
            exact = ("neg", "abs", "min", "max", "floor", "ceil", "trunc", "rint")
            return self.round_half(lines, dtype, result, lanes) if op not in exact else result
        if dtype == BOOL:
            return self._bool(lines, op, args, lanes)
        return self._integer(lines, op, dtype, args, lanes)

    def _comparison(
        self, lines: list[str], op: str, dtype: DType, args: list[str], lanes: int | None
    ) -> str:
        if dtype.is_float:
            code = _FCMP[op]
        else:
            sign = "" if op in ("eq", "ne") else ("s" if dtype.kind == "i" else "u")
            code = sign + _ICMP[op]
        return self.compare(lines, code, element_type(dtype), lanes, args[0], args[1])

    def _float(
        self,
        lines: list[str],
        op: str,
        dtype: DType,
        args: list[str],
        lanes: int | None,
        constant: tuple[bool, ...],
    ) -> str:
        element = element_type(dtype)
        if op in _FLOAT_BINARY:
            return self.binary(lines, _FLOAT_BINARY[op], element, lanes, *args)
        if op in _FLOAT_UNARY:
            return self.intrinsic(lines, _FLOAT_UNARY[op], element, lanes, args[0])
        match op:
            case "fma" if self.has_fma:
                return self.intrinsic(lines, "fma", element, lanes, *args)
            case "fma":
                exact = self._fma_of_floats if element == "float" else self._fma_of_doubles
                return exact(lines, args, lanes)
            case "ldexp":
                return self._ldexp(lines, dtype, args, lanes)
            case "neg":
                return self.sink.emit(lines, f"fneg {vector_of(element, lanes)} {args[0]}")
            case "min" | "max":
                return self.extreme(lines, op, element, lanes, args, constant)
        raise AssertionError(f"no float rule for {op}")

    def add_product(
        self, lines: list[str], dtype: DType, args: list[str], lanes: int | None
    ) -> str:
        """a * b + c for a sum: with one rounding where that is one instruction, else with two."""
        if not dtype.is_float or self.has_fma:
            return self.apply(lines, "fma", dtype, args, lanes)
        product = self.apply(lines, "mul", dtype, args[:2], lanes)
        return self.apply(lines, "add", dtype, [product, args[2]], lanes)

    def _fma_of_floats(self, lines: list[str], args: list[str], lanes: int | None) -> str:
        """In float64, where the product is exact; the sum is rounded to odd, then once more."""
        a, b, c = (self.convert(lines, "fpext", "float", "double", lanes, x) for x in args)
        product = self.binary(lines, "fmul", "double", lanes, a, b)
        total = self._odd_sum(lines, product, c, lanes)
        return self.convert(lines, "fptrunc", "double", "float", lanes, total)

    def _fma_of_doubles(self, lines: list[str], args: list[str], lanes: int | None) -> str:
        """The product with its error (Dekker), added to c in three exact sums (Boldo, Melquiond).

        Where splitting leaves the range, product plus c has to do.
        """

        def op(word: str, x: str, y: str) -> str:
            return self.binary(lines, word, "double", lanes, x, y)

        def split(x: str) -> tuple[str, str]:
            wide = op("fmul", x, self.constant(FLOAT64, 2.0**27 + 1, lanes))
            high = op("fsub", wide, op("fsub", wide, x))
            return high, op("fsub", x, high)

        a, b, c = args
        product = op("fmul", a, b)
        (a1, a2), (b1, b2) = split(a), split(b)
        error = op("fsub", op("fmul", a1, b1), product)
        error = op("fadd", error, op("fmul", a1, b2))
        error = op("fadd", error, op("fmul", a2, b1))
        error = op("fadd", error, op("fmul", a2, b2))
        inner, inner_lost = self._exact_sum(lines, c, error, lanes)
        outer, outer_lost = self._exact_sum(lines, product, inner, lanes)
        result = op("fadd", outer, self._odd_sum(lines, inner_lost, outer_lost, lanes))
        size = self.intrinsic(lines, "fabs", "double", lanes, result)
        infinity = self.constant(FLOAT64, float("inf"), lanes)
        is_finite = self.compare(lines, "olt", "double", lanes, size, infinity)
        plain = op("fadd", product, c)
        return self.select(lines, "double", lanes, is_finite, result, plain)

    def _exact_sum(self, lines: list[str], a: str, b: str, lanes: int | None) -> tuple[str, str]:
        """The sum of two float64 and what rounding it lost (Knuth)."""

        def op(word: str, x: str, y: str) -> str:
            return self.binary(lines, word, "double", lanes, x, y)

        total = op("fadd", a, b)
        part = op("fsub", total, a)
        return total, op("fadd", op("fsub", a, op("fsub", total, part)), op("fsub", b, part))

    def _odd_sum(self, lines: list[str], a: str, b: str, lanes: int | None) -> str:
        """The sum of two float64 rounded to odd, so that a second rounding is exact."""
        total, lost = self._exact_sum(lines, a, b, lanes)
        zero, one = self.constant(FLOAT64, 0.0, lanes), self.raw("i64", "1", lanes)
        bits = self.convert(lines, "bitcast", "double", "i64", lanes, total)
        inexact = self.compare(lines, "one", "double", lanes, lost, zero)
        low = self.binary(lines, "and", "i64", lanes, bits, one)
        even = self.compare(lines, "eq", "i64", lanes, low, self.raw("i64", "0", lanes))
        move = self.binary(lines, "and", "i1", lanes, inexact, even)
        # Away from zero if what was lost has the sign of the sum: towards the exact value.
        lost_sign = self.compare(lines, "olt", "double", lanes, lost, zero)
        sign = self.compare(lines, "olt", "double", lanes, total, zero)
        differs = self.binary(lines, "xor", "i1", lanes, lost_sign, sign)
        step = self.select(lines, "i64", lanes, differs, self.raw("i64", "-1", lanes), one)
        moved = self.binary(lines, "add", "i64", lanes, bits, step)
        found = self.select(lines, "i64", lanes, move, moved, bits)
        return self.convert(lines, "bitcast", "i64", "double", lanes, found)

    def _ldexp(self, lines: list[str], dtype: DType, args: list[str], lanes: int | None) -> str:
        """p * 2**n, n a whole number within twice the exponent range; rounds once."""
        element = element_type(dtype)
        bits = 64 if element == "double" else 32
        if self.has_scale and lanes and lanes * bits % 512 == 0:
            return self._scale_by_parts(lines, element, args, lanes, 512 // bits)
        # As two factors of half the exponent each, so that neither leaves the range.
        mantissa, bias = (52, 1023) if bits == 64 else (23, 127)
        integer = f"i{bits}"
        magic = 1.5 * 2.0**mantissa + 2 * bias

        def word(text: str) -> str:
            return self.raw(integer, text, lanes)

        literal_type = FLOAT64 if bits == 64 else FLOAT32
        shift = self.constant(literal_type, magic, lanes)
        moved = self.binary(lines, "fadd", element, lanes, args[1], shift)
        biased = self.convert(lines, "bitcast", element, integer, lanes, moved)
        low = self.binary(lines, "lshr", integer, lanes, biased, word("1"))
        half = self.binary(lines, "shl", integer, lanes, low, word(str(mantissa)))
        whole = self.binary(lines, "shl", integer, lanes, biased, word(str(mantissa)))
        rest = self.binary(lines, "sub", integer, lanes, whole, half)
        first = self.convert(lines, "bitcast", integer, element, lanes, rest)
        second = self.convert(lines, "bitcast", integer, element, lanes, half)
        scaled = self.binary(lines, "fmul", element, lanes, args[0], first)
        return self.binary(lines, "fmul", element, lanes, scaled, second)

    def _scale_by_parts(
        self, lines: list[str], element: str, args: list[str], lanes: int, width: int
    ) -> str:
        """AVX-512 has the operation: one instruction for every register's worth of lanes."""
        suffix = "ps" if element == "float" else "pd"
        part, mask = vector_of(element, width), f"i{width}"
        name = f"llvm.x86.avx512.mask.scalef.{suffix}.512"
        pieces: list[str] = []
        for start in range(0, lanes, width):
            p, n = (self.part(lines, element, a, lanes, start, width) for a in args)
            unused = ((part, "zeroinitializer"), (mask, "-1"), ("i32", "4"))
            pieces.append(self.sink.call(lines, part, name, (part, p), (part, n), *unused))
        return self.join(lines, element, pieces, width)

    def part(
        self, lines: list[str], element: str, value: str, lanes: int, start: int, width: int
    ) -> str:
        """Lanes [start, start + width) of a vector."""
        if lanes == width:
            return value
        vector = vector_of(element, lanes)
        picks = ", ".join(f"i32 {start + i}" for i in range(width))
        text = f"shufflevector {vector} {value}, {vector} poison, <{width} x i32> <{picks}>"
        return self.sink.emit(lines, text)

    def join(self, lines: list[str], element: str, pieces: list[str], width: int) -> str:
        """The pieces one behind the other."""
        while len(pieces) > 1:
            vector = vector_of(element, width)
            picks = ", ".join(f"i32 {i}" for i in range(2 * width))
            pieces = [
                self.sink.emit(
                    lines,
                    f"shufflevector {vector} {a}, {vector} {b}, <{2 * width} x i32> <{picks}>",
                )
                for a, b in zip(pieces[::2], pieces[1::2], strict=True)
            ]
            width *= 2
        return pieces[0]

    def extreme(
        self,
        lines: list[str],
        op: str,
        element: str,
        lanes: int | None,
        args: list[str],
        constant: tuple[bool, ...] = (),
    ) -> str:
        """min or max of floats; NaN in either operand gives NaN, as np.maximum."""
        a, b = args
        if len(constant) == 2 and constant[1]:
            a, b, constant = b, a, (True, False)
        # One instruction on x86; the second operand comes back if either is NaN.
        better = self.compare(lines, "ogt" if op == "max" else "olt", element, lanes, a, b)
        picked = self.select(lines, element, lanes, better, a, b)
        if constant and constant[0]:
            return picked
        is_nan = self.compare(lines, "uno", element, lanes, a, a)
        return self.select(lines, element, lanes, is_nan, a, picked)

    def _bool(self, lines: list[str], op: str, args: list[str], lanes: int | None) -> str:
        words = {"add": "or", "or": "or", "max": "or", "mul": "and", "and": "and", "min": "and"}
        words |= {"xor": "xor", "sub": "xor"}
        if op in ("not", "neg"):
            return self.binary(lines, "xor", "i1", lanes, args[0], self.raw("i1", "true", lanes))
        if op == "abs":
            return args[0]
        return self.binary(lines, words[op], "i1", lanes, *args)

    def _integer(
        self, lines: list[str], op: str, dtype: DType, args: list[str], lanes: int | None
    ) -> str:
        element = element_type(dtype)
        if op in _INT_BINARY:
            return self.binary(lines, _INT_BINARY[op], element, lanes, *args)
        zero = self.raw(element, "0", lanes)
        match op:
            case "neg":
                return self.binary(lines, "sub", element, lanes, zero, args[0])
            case "not":
                ones = self.raw(element, "-1", lanes)
                return self.binary(lines, "xor", element, lanes, args[0], ones)
            case "abs":
                if dtype.kind == "u":
                    return args[0]
                below = self.compare(lines, "slt", element, lanes, args[0], zero)
                negated = self.binary(lines, "sub", element, lanes, zero, args[0])
                return self.select(lines, element, lanes, below, negated, args[0])
            case "min" | "max":
                sign = "s" if dtype.kind == "i" else "u"
                code = sign + ("lt" if op == "min" else "gt")
                better = self.compare(lines, code, element, lanes, *args)
                return self.select(lines, element, lanes, better, *args)
            case "floor" | "ceil" | "trunc" | "rint":
                return args[0]
            case "fma":
                scaled = self.binary(lines, "mul", element, lanes, args[0], args[1])
                return self.binary(lines, "add", element, lanes, scaled, args[2])
            case "idiv" | "imod":
                return self._divide(lines, op, dtype, args, lanes)
            case "shl" | "shr":
                return self._shift(lines, op, dtype, args, lanes)
        raise AssertionError(f"no integer rule for {op}")

    def _divide(
        self, lines: list[str], op: str, dtype: DType, args: list[str], lanes: int | None
    ) -> str:
        """Floor division and remainder: by zero gives 0, INT_MIN by -1 wraps."""
        element = element_type(dtype)
        n, d = args
        zero, one = self.raw(element, "0", lanes), self.raw(element, "1", lanes)
        by_zero = self.compare(lines, "eq", element, lanes, d, zero)
        if dtype.kind == "u":
            safe = self.select(lines, element, lanes, by_zero, one, d)
            word = "udiv" if op == "idiv" else "urem"
            result = self.binary(lines, word, element, lanes, n, safe)
            return self.select(lines, element, lanes, by_zero, zero, result)
        minus_one = self.raw(element, "-1", lanes)
        by_minus = self.compare(lines, "eq", element, lanes, d, minus_one)
        unsafe = self.binary(lines, "or", "i1", lanes, by_zero, by_minus)
        safe = self.select(lines, element, lanes, unsafe, one, d)
        remainder = self.binary(lines, "srem", element, lanes, n, safe)
        mixed = self.binary(lines, "xor", element, lanes, remainder, safe)
        negative = self.compare(lines, "slt", element, lanes, mixed, zero)
        inexact = self.compare(lines, "ne", element, lanes, remainder, zero)
        adjust = self.binary(lines, "and", "i1", lanes, negative, inexact)
        if op == "imod":
            moved = self.binary(lines, "add", element, lanes, remainder, safe)
            result = self.select(lines, element, lanes, adjust, moved, remainder)
            return self.select(lines, element, lanes, unsafe, zero, result)
        quotient = self.binary(lines, "sdiv", element, lanes, n, safe)
        lowered = self.binary(lines, "add", element, lanes, quotient, minus_one)
        result = self.select(lines, element, lanes, adjust, lowered, quotient)
        negated = self.binary(lines, "sub", element, lanes, zero, n)
        result = self.select(lines, element, lanes, by_minus, negated, result)
        return self.select(lines, element, lanes, by_zero, zero, result)

    def _shift(
        self, lines: list[str], op: str, dtype: DType, args: list[str], lanes: int | None
    ) -> str:
        element = element_type(dtype)
        width, zero = (self.raw(element, str(x), lanes) for x in (dtype.bits, 0))
        legal = self.compare(lines, "ult", element, lanes, args[1], width)
        if op == "shr" and dtype.kind == "i":
            last = self.raw(element, str(dtype.bits - 1), lanes)
            amount = self.select(lines, element, lanes, legal, args[1], last)
            return self.binary(lines, "ashr", element, lanes, args[0], amount)
        amount = self.select(lines, element, lanes, legal, args[1], zero)
        word = "shl" if op == "shl" else "lshr"
        shifted = self.binary(lines, word, element, lanes, args[0], amount)
        return self.select(lines, element, lanes, legal, shifted, zero)

    # ------------------------------------------------------------ conversions

    def round_half(self, lines: list[str], dtype: DType, value: str, lanes: int | None) -> str:
        """Round a float32 register to float16 or bfloat16 precision; others pass."""
        if not dtype.is_half:
            return value
        if dtype == BFLOAT16:
            bits = self._bfloat_bits(lines, value, lanes)
            return self.convert(lines, "bitcast", "i32", "float", lanes, bits)
        return self._widened(lines, self._narrowed(lines, value, lanes), lanes)

    def _widened(self, lines: list[str], value: str, lanes: int | None) -> str:
        """float16 as float32, which is exact."""
        if self.has_f16_casts:
            return self.convert(lines, "fpext", "half", "float", lanes, value)
        op, word = self._on_words(lines, lanes)
        short = self.convert(lines, "bitcast", "half", "i16", lanes, value)
        bits = self.convert(lines, "zext", "i16", "i32", lanes, short)
        size = op("and", bits, word(0x7FFF))
        moved = self.convert(lines, "bitcast", "i32", "float", lanes, op("shl", size, word(13)))
        # The exponent is off by 112, whether the number is normal or not; inf and NaN are apart.
        near = self.binary(
            lines, "fmul", "float", lanes, moved, self.constant(FLOAT32, 2.0**112, lanes)
        )
        usual = self.convert(lines, "bitcast", "float", "i32", lanes, near)
        special = op("or", usual, word(0x7F800000))
        is_special = self.compare(lines, "uge", "i32", lanes, size, word(0x7C00))
        found = self.select(lines, "i32", lanes, is_special, special, usual)
        sign = op("shl", op("and", bits, word(0x8000)), word(16))
        return self.convert(lines, "bitcast", "i32", "float", lanes, op("or", found, sign))

    def _narrowed(self, lines: list[str], value: str, lanes: int | None) -> str:
        """float32 to float16, to nearest even; NaN stays a quiet NaN."""
        if self.has_f16_casts:
            return self.convert(lines, "fptrunc", "float", "half", lanes, value)
        op, word = self._on_words(lines, lanes)
        bits = self.convert(lines, "bitcast", "float", "i32", lanes, value)
        size = op("and", bits, word(0x7FFFFFFF))
        odd = op("and", op("lshr", size, word(13)), word(1))
        normal = op("lshr", op("add", op("add", size, odd), word(0xFFF - 0x38000000)), word(13))
        # Beside 0.5 the last bit of a float32 is that of the smallest float16: adding rounds.
        half = self.constant(FLOAT32, 0.5, lanes)
        positive = self.convert(lines, "bitcast", "i32", "float", lanes, size)
        beside = self.binary(lines, "fadd", "float", lanes, positive, half)
        small = self.convert(lines, "bitcast", "float", "i32", lanes, beside)
        small = op("sub", small, word(0x3F000000))
        is_small = self.compare(lines, "ult", "i32", lanes, size, word(0x38800000))
        found = self.select(lines, "i32", lanes, is_small, small, normal)
        is_large = self.compare(lines, "uge", "i32", lanes, size, word(0x47800000))
        found = self.select(lines, "i32", lanes, is_large, word(0x7C00), found)
        payload = op("and", op("lshr", size, word(13)), word(0x3FF))
        is_nan = self.compare(lines, "ugt", "i32", lanes, size, word(0x7F800000))
        quiet = op("or", payload, word(0x7E00))
        found = self.select(lines, "i32", lanes, is_nan, quiet, found)
        sign = op("and", op("lshr", bits, word(16)), word(0x8000))
        short = self.convert(lines, "trunc", "i32", "i16", lanes, op("or", found, sign))
        return self.convert(lines, "bitcast", "i16", "half", lanes, short)

    def _on_words(
        self, lines: list[str], lanes: int | None
    ) -> tuple[Callable[[str, str, str], str], Callable[[int], str]]:
        """Instructions on 32-bit words, and constants for them."""
        return (
            lambda word, a, b: self.binary(lines, word, "i32", lanes, a, b),
            lambda number: self.raw("i32", str(number), lanes),
        )

    def _bfloat_bits(self, lines: list[str], value: str, lanes: int | None) -> str:
        """The float32 bits rounded to nearest even at bit 16; NaN stays a quiet NaN."""

        def word(text: str) -> str:
            return self.raw("i32", text, lanes)

        bits = self.convert(lines, "bitcast", "float", "i32", lanes, value)
        high = self.binary(lines, "lshr", "i32", lanes, bits, word("16"))
        odd = self.binary(lines, "and", "i32", lanes, high, word("1"))
        bias = self.binary(lines, "add", "i32", lanes, odd, word("32767"))
        rounded = self.binary(lines, "add", "i32", lanes, bits, bias)
        kept = self.binary(lines, "and", "i32", lanes, rounded, word("-65536"))
        is_nan = self.compare(lines, "uno", "float", lanes, value, value)
        cut = self.binary(lines, "and", "i32", lanes, bits, word("-65536"))
        quiet = self.binary(lines, "or", "i32", lanes, cut, word(str(0x00400000)))
        return self.select(lines, "i32", lanes, is_nan, quiet, kept)

    def _to_odd(self, lines: list[str], value: str, lanes: int | None) -> str:
        """float64 to float32 rounded to odd, so that a second rounding is exact."""
        near = self.convert(lines, "fptrunc", "double", "float", lanes, value)
        back = self.convert(lines, "fpext", "float", "double", lanes, near)
        bits = self.convert(lines, "bitcast", "float", "i32", lanes, near)
        inexact = self.compare(lines, "one", "double", lanes, back, value)
        low = self.binary(lines, "and", "i32", lanes, bits, self.raw("i32", "1", lanes))
        even = self.compare(lines, "eq", "i32", lanes, low, self.raw("i32", "0", lanes))
        size_back = self.intrinsic(lines, "fabs", "double", lanes, back)
        size = self.intrinsic(lines, "fabs", "double", lanes, value)
        beyond = self.compare(lines, "ogt", "double", lanes, size_back, size)
        step = self.select(
            lines, "i32", lanes, beyond, self.raw("i32", "-1", lanes), self.raw("i32", "1", lanes)
        )
        moved = self.binary(lines, "add", "i32", lanes, bits, step)
        change = self.binary(lines, "and", "i1", lanes, inexact, even)
        picked = self.select(lines, "i32", lanes, change, moved, bits)
        return self.convert(lines, "bitcast", "i32", "float", lanes, picked)

    def cast(
        self, lines: list[str], source: DType, to: DType, value: str, lanes: int | None
    ) -> str:
        """Numeric conversion: floats saturate to integers, NaN gives 0, integers wrap."""
        a, b = element_type(source), element_type(to)
        if to == BOOL:
            if source == BOOL:
                return value
            zero = self.raw(a, "0.0" if source.is_float else "0", lanes)
            return self.compare(lines, "une" if source.is_float else "ne", a, lanes, value, zero)
        if source == BOOL:
            word = "uitofp" if to.is_float else "zext"
            return self.convert(lines, word, "i1", b, lanes, value)
        if source.is_float and to.is_float:
            return self._float_to_float(lines, source, to, value, lanes)
        if source.is_float:
            sign = "si" if to.kind == "i" else "ui"
            name = f"llvm.fpto{sign}.sat.{self._suffix(b, lanes)}.{self._suffix(a, lanes)}"
            return self.sink.call(lines, vector_of(b, lanes), name, (vector_of(a, lanes), value))
        if to.is_float:
            word = "sitofp" if source.kind == "i" else "uitofp"
            if to.is_half and source.bits > 16:
                # Through float64 (exact to 53 bits), so that only one rounding is felt.
                wide = self.convert(lines, word, a, "double", lanes, value)
                value = self._to_odd(lines, wide, lanes)
            else:
                value = self.convert(lines, word, a, b, lanes, value)
            return self.round_half(lines, to, value, lanes)
        if to.bits == source.bits:
            return value
        if to.bits < source.bits:
            return self.convert(lines, "trunc", a, b, lanes, value)
        return self.convert(lines, "sext" if source.kind == "i" else "zext", a, b, lanes, value)

    def _float_to_float(
        self, lines: list[str], source: DType, to: DType, value: str, lanes: int | None
    ) -> str:
        if to.bits == 64:
            if source.bits == 64:
                return value
            return self.convert(lines, "fpext", "float", "double", lanes, value)
        if source.bits == 64:
            if to.is_half:
                value = self._to_odd(lines, value, lanes)
            else:
                return self.convert(lines, "fptrunc", "double", "float", lanes, value)
        return self.round_half(lines, to, value, lanes)

    def bitcast(
        self, lines: list[str], source: DType, to: DType, value: str, lanes: int | None
    ) -> str:
        """Reinterpret the bits, by way of the memory form for half types."""
        stored = self.to_memory(lines, source, value, lanes)
        a, b = memory_type(source), memory_type(to)
        if a != b:
            stored = self.convert(lines, "bitcast", a, b, lanes, stored)
        return self.from_memory(lines, to, stored, lanes)

    # ------------------------------------------------------------ memory forms

    def from_memory(self, lines: list[str], dtype: DType, value: str, lanes: int | None) -> str:
        """Register form of a loaded element."""
        if dtype == BOOL:
            return self.compare(lines, "ne", "i8", lanes, value, self.raw("i8", "0", lanes))
        if dtype == BFLOAT16:
            wide = self.convert(lines, "zext", "i16", "i32", lanes, value)
            moved = self.binary(lines, "shl", "i32", lanes, wide, self.raw("i32", "16", lanes))
            return self.convert(lines, "bitcast", "i32", "float", lanes, moved)
        if dtype.is_half:
            return self._widened(lines, value, lanes)
        return value

    def to_memory(self, lines: list[str], dtype: DType, value: str, lanes: int | None) -> str:
        """Memory form of a register."""
        if dtype == BOOL:
            return self.convert(lines, "zext", "i1", "i8", lanes, value)
        if dtype == BFLOAT16:
            bits = self.convert(lines, "bitcast", "float", "i32", lanes, value)
            high = self.binary(lines, "lshr", "i32", lanes, bits, self.raw("i32", "16", lanes))
            return self.convert(lines, "trunc", "i32", "i16", lanes, high)
        if dtype.is_half:
            return self._narrowed(lines, value, lanes)
        return value

    # ------------------------------------------------------------ reductions

    def combine(
        self,
        lines: list[str],
        kind: str,
        dtype: DType,
        a: str,
        b: str,
        lanes: int | None,
    ) -> str:
        """One step of a reduction: add, mul, min, max, fastmin, fastmax, and, or."""
        if kind in ("fastmax", "fastmin"):
            element = element_type(dtype)
            sign = "o" if dtype.is_float else ("s" if dtype.kind == "i" else "u")
            code = sign + ("gt" if kind == "fastmax" else "lt")
            better = self.compare(lines, code, element, lanes, b, a)
            return self.select(lines, element, lanes, better, b, a)
        return self.apply(lines, kind, dtype, [a, b], lanes)

    def better(
        self,
        lines: list[str],
        kind: str,
        dtype: DType,
        lanes: int | None,
        candidate: tuple[str, str],
        best: tuple[str, str],
    ) -> str:
        """Whether (value, index) beats the best so far: NaN first, then order, then index."""
        element = element_type(dtype)
        value, position = candidate
        top, top_position = best
        wanted = "gt" if kind == "argmax" else "lt"
        earlier = self.compare(lines, "slt", "i64", lanes, position, top_position)

        def both(x: str, y: str) -> str:
            return self.binary(lines, "and", "i1", lanes, x, y)

        def either(x: str, y: str) -> str:
            return self.binary(lines, "or", "i1", lanes, x, y)

        if not dtype.is_float:
            sign = "s" if dtype.kind == "i" else "u"
            beats = self.compare(lines, sign + wanted, element, lanes, value, top)
            equal = self.compare(lines, "eq", element, lanes, value, top)
            return either(beats, both(equal, earlier))
        beats = self.compare(lines, "o" + wanted, element, lanes, value, top)
        nan = self.compare(lines, "uno", element, lanes, value, value)
        top_nan = self.compare(lines, "uno", element, lanes, top, top)
        top_number = self.compare(lines, "ord", element, lanes, top, top)
        equal = self.compare(lines, "oeq", element, lanes, value, top)
        tie = either(equal, both(nan, top_nan))
        return either(either(beats, both(nan, top_number)), both(tie, earlier))


def identity(kind: str, dtype: DType) -> Any:
    """The value that a reduction starts from."""
    table: dict[str, Callable[[], Any]] = {
        "add": lambda: -0.0 if dtype.is_float else 0,
        "fma": lambda: -0.0 if dtype.is_float else 0,
        "dot": lambda: 0,
        "mul": lambda: 1,
        "max": lambda: dtype.lowest,
        "fastmax": lambda: dtype.lowest,
        "argmax": lambda: dtype.lowest,
        "min": lambda: dtype.highest,
        "fastmin": lambda: dtype.highest,
        "argmin": lambda: dtype.highest,
        "or": lambda: False if dtype == BOOL else 0,
        "and": lambda: True if dtype == BOOL else -1,
    }
    return table[kind]()

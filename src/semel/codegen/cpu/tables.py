"""A function of four bits is a table of sixteen numbers: one instruction with AVX-512.

    cast(x & 15) - 8        --lookup-->  vpermps x, [-8, -7, ..., 7]

Weights of 4 or 2 bits are widened so, whatever their numbers stand for. The instruction looks at
the four low bits of a lane, so that nothing needs to be masked. A table is what the interpreter
says, and has the bits of the arithmetic in whose place it stands.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from semel.codegen.scalar.instructions import Instructions
from semel.codegen.scalar.llvm_types import literal, vector_of
from semel.ir.types import FLOAT32
from semel.kernel.interpret import evaluate_value
from semel.kernel.ir import Local, Value, local
from semel.kernel.rewrite import ValueMap

_ENTRIES = 16
#: More arithmetic than this between the bits and the number is not looked at.
_DEEPEST = 8


class Tables:
    """Values that are functions of four bits, and the instruction for them."""

    def __init__(self, out: Instructions) -> None:
        self.out = out
        self._found: dict[Value, tuple[Value, tuple[float, ...]] | None] = {}

    def find(self, value: Value, lanes: int | None) -> tuple[Value, tuple[float, ...]] | None:
        """The word whose low bits decide about a value, and what it is for all of them."""
        if value.dtype != FLOAT32 or not lanes or lanes % _ENTRIES:
            return None
        if value not in self._found:
            self._found[value] = _table(value)
        return self._found[value]

    def lookup(self, lines: list[str], table: tuple[float, ...], words: str, lanes: int) -> str:
        """The number of each lane's word."""
        kind, index = vector_of("float", _ENTRIES), vector_of("i32", _ENTRIES)
        numbers = ", ".join(f"float {literal(FLOAT32, number)}" for number in table)
        pieces: list[str] = []
        for start in range(0, lanes, _ENTRIES):
            part = self.out.part(lines, "i32", words, lanes, start, _ENTRIES)
            name = "llvm.x86.avx512.permvar.sf.512"
            pieces.append(self.out.call(lines, kind, name, (kind, f"<{numbers}>"), (index, part)))
        return self.out.join(lines, "float", pieces, _ENTRIES)


def _table(value: Value) -> tuple[Value, tuple[float, ...]] | None:
    bits = _bits_below(value)
    if bits is None:
        return None
    word, mask = bits.args
    code = local(Local("code", bits.dtype))
    function = ValueMap(_in_place_of(bits, code))(value)
    codes = np.arange(_ENTRIES, dtype=bits.dtype.numpy) & mask.data
    return word, tuple(float(number) for number in evaluate_value(function, {code: codes}))


def _in_place_of(old: Value, new: Value) -> Callable[[Value], Value]:
    return lambda value: new if value is old else value


def _bits_below(value: Value) -> Value | None:
    """The one value of four bits that arithmetic with constants is made of, or None."""
    found: Value | None = None
    stack, steps = list(value.args), 0
    while stack:
        each, steps = stack.pop(), steps + 1
        if each.op == "const":
            continue
        if _is_bits(each) and found in (None, each):
            found = each
        elif each.args and each.op != "load" and steps <= _DEEPEST:
            stack.extend(each.args)
        else:
            return None
    return found


def _is_bits(value: Value) -> bool:
    if value.op != "and" or value.dtype.bits != 32 or value.dtype.is_float:
        return False
    mask = value.args[1]
    return mask.op == "const" and 0 <= mask.data < _ENTRIES

"""A sink of LLVM lines: one method for each form of instruction, for any number of lanes.

    (operands as SSA text, lanes) --> a line, its result as SSA text

Pure text. `lanes` is None for scalar code.
"""

from __future__ import annotations

import itertools
from typing import Any

from semel.codegen.scalar.llvm_types import element_type, literal, mangle, vector_of
from semel.ir.types import DType


class Instructions:
    """Lines with fresh names, and the declarations they need."""

    def __init__(self) -> None:
        self._counter = itertools.count()
        self.declarations: dict[str, str] = {}

    def name(self, prefix: str = "v") -> str:
        # The number after the last underscore is unique, whatever the prefix ends with.
        return f"{prefix}_{next(self._counter)}"

    def emit(self, lines: list[str], text: str) -> str:
        """Append `%x = text` and return `%x`."""
        result = f"%v_{next(self._counter)}"
        lines.append(f"  {result} = {text}")
        return result

    def call(self, lines: list[str], result: str, name: str, *args: tuple[str, str]) -> str:
        """Call an intrinsic, declared on first use; `args` are (type, value)."""
        types = ", ".join(t for t, _ in args)
        self.declarations[name] = f"declare {result} @{name}({types})"
        text = f"call {result} @{name}({', '.join(f'{t} {v}' for t, v in args)})"
        if result == "void":
            lines.append(f"  {text}")
            return ""
        return self.emit(lines, text)

    def intrinsic(
        self, lines: list[str], name: str, element: str, lanes: int | None, *args: str
    ) -> str:
        """`llvm.name` of operands that all have the result's type."""
        kind = vector_of(element, lanes)
        full = f"llvm.{name}.{mangle(element, lanes)}"
        return self.call(lines, kind, full, *((kind, a) for a in args))

    # ------------------------------------------------------------ constants, lanes

    def raw(self, element: str, text: str, lanes: int | None) -> str:
        """A constant as LLVM writes it, in every lane."""
        return text if lanes is None else f"splat ({element} {text})"

    def constant(self, dtype: DType, value: Any, lanes: int | None) -> str:
        """A constant, in every lane."""
        return self.raw(element_type(dtype), literal(dtype, value), lanes)

    def splat(self, lines: list[str], element: str, value: str, lanes: int) -> str:
        """A scalar in every lane."""
        if not value.startswith("%"):
            return f"splat ({element} {value})"
        vector = vector_of(element, lanes)
        first = self.emit(lines, f"insertelement {vector} poison, {element} {value}, i32 0")
        zeros = f"<{lanes} x i32> zeroinitializer"
        return self.emit(lines, f"shufflevector {vector} {first}, {vector} poison, {zeros}")

    def part(
        self, lines: list[str], element: str, value: str, lanes: int, start: int, width: int
    ) -> str:
        """Lanes [start, start + width) of a vector."""
        if lanes == width:
            return value
        vector = vector_of(element, lanes)
        picks = ", ".join(f"i32 {start + i}" for i in range(width))
        text = f"shufflevector {vector} {value}, {vector} poison, <{width} x i32> <{picks}>"
        return self.emit(lines, text)

    def join(self, lines: list[str], element: str, pieces: list[str], width: int) -> str:
        """The pieces one behind the other."""
        while len(pieces) > 1:
            vector = vector_of(element, width)
            picks = ", ".join(f"i32 {i}" for i in range(2 * width))
            pieces = [
                self.emit(
                    lines,
                    f"shufflevector {vector} {a}, {vector} {b}, <{2 * width} x i32> <{picks}>",
                )
                for a, b in zip(pieces[::2], pieces[1::2], strict=True)
            ]
            width *= 2
        return pieces[0]

    # ------------------------------------------------------------ forms

    def select(
        self, lines: list[str], element: str, lanes: int | None, cond: str, a: str, b: str
    ) -> str:
        kind, mask = vector_of(element, lanes), vector_of("i1", lanes)
        return self.emit(lines, f"select {mask} {cond}, {kind} {a}, {kind} {b}")

    def compare(
        self, lines: list[str], code: str, element: str, lanes: int | None, a: str, b: str
    ) -> str:
        """`code` is an LLVM predicate; floats are told by their element type."""
        word = "fcmp" if element in ("float", "double", "half") else "icmp"
        return self.emit(lines, f"{word} {code} {vector_of(element, lanes)} {a}, {b}")

    def binary(
        self, lines: list[str], word: str, element: str, lanes: int | None, a: str, b: str
    ) -> str:
        return self.emit(lines, f"{word} {vector_of(element, lanes)} {a}, {b}")

    def convert(
        self, lines: list[str], word: str, source: str, to: str, lanes: int | None, a: str
    ) -> str:
        return self.emit(lines, f"{word} {vector_of(source, lanes)} {a} to {vector_of(to, lanes)}")

"""p * 2**n in one instruction: AVX-512 has it.

(lines, element type, (p, n), lanes) --> one instruction for every register's worth of lanes
"""

from __future__ import annotations

from semel.codegen.scalar.instructions import Instructions
from semel.codegen.scalar.llvm_types import vector_of

_REGISTER_BITS = 512


class Scale:
    """`Shortcut` of `ldexp` for whole registers."""

    def __init__(self, out: Instructions) -> None:
        self.out = out

    def scale(
        self, lines: list[str], element: str, args: list[str], lanes: int | None
    ) -> str | None:
        width = _REGISTER_BITS // (64 if element == "double" else 32)
        if not lanes or lanes % width:
            return None
        suffix = "ps" if element == "float" else "pd"
        part, mask = vector_of(element, width), f"i{width}"
        name = f"llvm.x86.avx512.mask.scalef.{suffix}.{_REGISTER_BITS}"
        pieces: list[str] = []
        for start in range(0, lanes, width):
            p, n = (self.out.part(lines, element, a, lanes, start, width) for a in args)
            unused = ((part, "zeroinitializer"), (mask, "-1"), ("i32", "4"))
            pieces.append(self.out.call(lines, part, name, (part, p), (part, n), *unused))
        return self.out.join(lines, element, pieces, width)

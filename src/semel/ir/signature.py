"""What a compiled kernel looks like from outside: the words both sides share.

    Kernel --compile--> KernelSignature + machine code --> a row of a plan

The native function is `void kernel(ptr lane, ptr buffers, ptr vals, i64 tile_begin, i64
tile_end)` (docs/decisions/0003-kernel-abi.md). Sizes, tile counts and scratch are
expressions over the kernel's variables.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from semel.errors import IndexRangeError, StateError, UserError
from semel.ir.expr import Dim, Variable
from semel.ir.types import DType

ABI_VERSION = 1


#: What a check is about that a state is too small for: the number of rows of a sequence.
ROOM = "rows of a sequence"
#: And that a sequence has no block for: the number of the block.
BLOCK = "block of a sequence"


@dataclass(frozen=True, slots=True)
class CheckInfo:
    """What a failed check means: the op, what the value is, and the size it indexes.

    An "index" may count from the end, as in Python: [-size, size) is legal. Anything else
    must lie in [0, size). A ROOM or a BLOCK is of a state. Of an `unsigned` value the
    reported word has no sign. `origin` is the source line of one caller: kernels that differ in it
    alone are equal.
    """

    op: str
    what: str
    size: Dim
    unsigned: bool = False
    origin: str = field(default="", compare=False)

    def refusal(
        self, size: int, word: int, origin: str, when: str = "", **fields: Any
    ) -> UserError:
        """The error for a value that was found, with the size as it is now."""
        if self.what == BLOCK:
            return StateError(
                self.op,
                f"a sequence has no block for a new row{when}.",
                hint="plan.states.pages(name).reserve(rows) hands blocks out.",
            )
        if self.what == ROOM:
            return StateError(
                self.op,
                f"rows must fit into {size - 1} of a sequence, one would have {word}{when}.",
                hint="plan.states.sequences(name).truncate() and reset() make room.",
                rows=word,
                capacity=size - 1,
            )
        low = -size if self.what == "index" and not self.unsigned else 0
        value = word % (1 << 64) if self.unsigned else word
        place = f" ({origin})" if origin else ""
        return IndexRangeError(
            self.op,
            f"{self.what} must lie in [{low}, {size}), got {value}{when}{place}.",
            op=self.op,
            index=value,
            size=size,
            origin=origin,
            **fields,
        )


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """One buffer argument. `size` in elements.

    `tile_stride`: tile t touches only elements [t*tile_stride, (t+1)*tile_stride), so that
    kernels with equal tile counts and strides on a buffer need no barrier between
    them. None: any tile may touch any element.
    """

    name: str
    dtype: DType
    access: str  # r, w or rw
    size: Dim
    tile_stride: Dim | None = None


@dataclass(frozen=True, slots=True)
class KernelSignature:
    """Arguments in ABI order and everything the runner must know to call the kernel.

    A kernel that is not `host_parallel_safe` runs on the calling thread, with no other
    operation of its plan beside it.
    """

    name: str
    buffers: tuple[BufferSpec, ...]
    variables: tuple[Variable, ...]
    tiles: Dim
    scratch_bytes: Dim = 0
    checks: tuple[CheckInfo, ...] = ()
    flops: Dim = 0
    bytes: Dim = 0
    host_parallel_safe: bool = True

    def __post_init__(self) -> None:
        # Checked once, when a plan is built: a list could change later.
        for name in ("buffers", "variables", "checks"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

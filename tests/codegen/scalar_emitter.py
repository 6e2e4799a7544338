"""The smallest emitter: the scalar parts alone, one element at a time, whatever the lanes.

It is what a second machine starts from, and it shows that no scalar part needs another.
"""

from __future__ import annotations

from semel.codegen.scalar.byte_dots import ByteDots
from semel.codegen.scalar.conversions import Conversions
from semel.codegen.scalar.counted_loops import CountedLoops
from semel.codegen.scalar.entry import FIRST_TILE, LAST_TILE, Entry
from semel.codegen.scalar.floats import Floats
from semel.codegen.scalar.frame import Frame
from semel.codegen.scalar.indices import Indices
from semel.codegen.scalar.instructions import Instructions
from semel.codegen.scalar.integers import Integers
from semel.codegen.scalar.reductions import Reductions
from semel.codegen.scalar.scalar_memory import ScalarMemory
from semel.codegen.scalar.scalars import Scalars
from semel.codegen.scalar.single_lane import OneLane
from semel.codegen.scalar.statements import Checks, Conditions, Locals, Rules, Stores
from semel.codegen.scalar.values import Values
from semel.ir.target import Target
from semel.kernel import ir
from semel.kernel.ir import Kernel


def emit_scalar(kernel: Kernel, target: Target, symbol: str) -> str:
    """The LLVM module of a kernel without a single vector."""
    out, frame, lanes = Instructions(), Frame(kernel.name), OneLane()
    integers, conversions = Integers(out), Conversions(out, has_f16_casts=target.has_f16_casts)
    scalars = Scalars(out, Floats(out, has_fma=target.has_fma), integers, conversions)
    indices = Indices(frame, out, integers)
    memory = ScalarMemory(frame, out, conversions, indices)
    changing = [b for b in (*kernel.buffers, *kernel.scratch) if b.access != "r"]
    values = Values(frame, out, scalars, conversions, indices, lanes, memory, changing)
    rules = Rules()
    loops = CountedLoops(frame, out, indices, lanes, rules)
    locals_ = Locals(frame, values, lanes, Reductions(out, scalars), ByteDots(out))
    entry = Entry(frame, out, indices, kernel)
    rules.by_kind = {
        ir.Loop: loops.loop,
        ir.Declare: locals_.declare,
        ir.Assign: locals_.assign,
        ir.Reduce: locals_.reduce,
        ir.Bind: locals_.bind,
        ir.Store: Stores(frame, values, memory).store,
        ir.If: Conditions(frame, out, values, lanes, loops, rules).when,
        ir.Check: Checks(frame, out, scalars, values, lanes, entry).check,
        ir.Prefetch: lambda _: None,
    }
    entry.open()
    loops.counted(kernel.tile, FIRST_TILE, LAST_TILE, 1, kernel.body)
    return entry.module(symbol)

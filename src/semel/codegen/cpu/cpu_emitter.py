"""The emitter for x86 and AArch64: the parts, put together.

Read `semel.codegen.emit` for who may call whom.
"""

from __future__ import annotations

from semel.codegen.cpu.amx import Amx
from semel.codegen.cpu.constants import Constants
from semel.codegen.cpu.cpu_dots import CpuDots
from semel.codegen.cpu.packs import Packs
from semel.codegen.cpu.prefetch import Prefetches
from semel.codegen.cpu.scale import Scale
from semel.codegen.cpu.shuffles import Shuffles
from semel.codegen.cpu.tables import Tables
from semel.codegen.cpu.turned_loads import TurnedLoads
from semel.codegen.cpu.turned_stores import TurnedStores
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
from semel.codegen.scalar.statements import Checks, Conditions, Locals, Rules, Stores
from semel.codegen.scalar.values import Values
from semel.codegen.vector.lane_memory import LaneMemory
from semel.codegen.vector.vector_lanes import VectorLanes
from semel.codegen.vector.vector_loops import VectorLoops
from semel.ir.target import Target
from semel.kernel import ir
from semel.kernel.ir import Kernel


def emit_for_cpu(kernel: Kernel, target: Target, symbol: str) -> str:
    """The LLVM module of one kernel, whose function is named `symbol`."""
    out, frame = Instructions(), Frame(kernel.name)
    is_wide = target.arch == "x86_64" and target.vector_bits == 512
    floats = Floats(out, has_fma=target.has_fma, scale=Scale(out).scale if is_wide else None)
    integers = Integers(out)
    is_packing = target.arch == "x86_64" and target.vector_bits >= 256
    conversions = Conversions(
        out,
        has_f16_casts=target.has_f16_casts,
        saturate=Packs(out, target.vector_bits).saturate if is_packing else None,
    )
    scalars = Scalars(out, floats, integers, conversions)
    reductions = Reductions(out, scalars)

    indices = Indices(frame, out, integers)
    lanes = VectorLanes(frame, out, integers, indices)
    plain = ScalarMemory(frame, out, conversions, indices)
    memory = LaneMemory(frame, out, conversions, indices, lanes, plain)
    changing = [b for b in (*kernel.buffers, *kernel.scratch) if b.access != "r"]
    tables = Tables(out) if is_wide else None
    constants = Constants(frame, out, target)
    values = Values(
        frame, out, scalars, conversions, indices, lanes, memory, changing, tables, constants
    )

    rules, shuffles = Rules(), Shuffles(frame, out)
    blocks = (
        TurnedStores(frame, out, conversions, indices, lanes, memory, values, shuffles).rule,
        TurnedLoads(frame, out, conversions, indices, lanes, memory, shuffles).rule,
    )
    counted = CountedLoops(frame, out, indices, lanes, rules, blocks)
    loops = VectorLoops(
        frame, out, indices, lanes, counted, reductions, target.vector_bits, constants
    )
    dots = CpuDots(out, ByteDots(out), target)
    locals_ = Locals(frame, values, lanes, reductions, dots)
    entry = Entry(frame, out, indices, kernel)
    amx = Amx(frame, out, indices, lanes, kernel, target)
    rules.by_kind = {
        ir.Loop: loops.loop,
        ir.Declare: locals_.declare,
        ir.Assign: locals_.assign,
        ir.Reduce: locals_.reduce,
        ir.Bind: locals_.bind,
        ir.Store: Stores(frame, values, memory).store,
        ir.If: Conditions(frame, out, values, lanes, counted, rules).when,
        ir.Check: Checks(frame, out, scalars, values, lanes, entry).check,
        ir.Prefetch: Prefetches(frame, out, indices, lanes).prefetch,
        ir.BlockDot: amx.block_dot,
    }

    entry.open()
    amx.configure()
    counted.counted(kernel.tile, FIRST_TILE, LAST_TILE, 1, kernel.body)
    amx.release()
    bits = target.vector_bits
    return entry.module(
        symbol, f'"prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}" '
    )

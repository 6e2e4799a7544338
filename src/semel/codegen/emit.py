"""Kernel IR to LLVM IR text: one function per kernel.

    Kernel x Target --emit_kernel--> LLVM module text

An emitter keeps a stack of *scopes*, one per open loop. A value is emitted in the outermost
scope in which its operands are known, so that loop invariants leave their loops, and a memo
per scope makes common subexpressions common: the middle-end passes of LLVM have nothing left
to do and are not run.

It is put together from parts. A part calls only what its constructor is given, which is
something below it; the one way up is `Rules`, which hands the statements of a body to the part
that emits them. All share the `Frame` (scopes, names, the state of memory) and one sink of lines.

    cpu/      CpuEmitter: all of it, put together          (a machine: its own parts, then these)
              Amx  Prefetches  TurnedStores  TurnedLoads  CpuDots  Scale  Shuffles
              Tables  Constants  Packs
    vector/   VectorLoops ──> LaneMemory ──> VectorLanes   (lanes: LLVM's vectors, any machine)
    scalar/   Rules ──> Conditions  Checks  Stores  Locals ──> CountedLoops     (statements)
              Values ──> Memory ──> Lanes                                       (expressions)
              Indices  Reductions ──> Scalars ──> Floats  Integers  Conversions
              Instructions  Frame  Entry                                        (text, state)

`Memory` and `Lanes` are protocols: `ScalarMemory` and `OneLane` where an element is computed at a
time, `LaneMemory` and `VectorLanes` where many are. No part of scalar/ knows vector/ or cpu/,
none of vector/ knows cpu/; a test holds that, and another makes an emitter of the scalar
parts alone. Why: docs/decisions/0054-emitters-of-parts.md.

Invariant: kernels are emitted after `kernel.math`; no math op reaches this package.
"""

from __future__ import annotations

from semel.codegen.cpu.cpu_emitter import emit_for_cpu
from semel.codegen.scalar.entry import scratch_bytes
from semel.ir.target import Target
from semel.kernel.ir import Kernel

__all__ = ["emit_kernel", "scratch_bytes"]


def emit_kernel(kernel: Kernel, target: Target, symbol: str) -> str:
    """The LLVM module of one kernel, whose function is named `symbol`."""
    return emit_for_cpu(kernel, target, symbol)

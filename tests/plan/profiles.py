"""A made-up profiled run with every kind of operation, several lanes and an arena."""

from __future__ import annotations

from typing import Any

from semel.ir.expr import Variable
from semel.ir.signature import BufferSpec, KernelSignature
from semel.ir.types import FLOAT32
from semel.plan.report.profile import ProfileReport
from semel.plan.report.records import ArenaBlock, ProfiledOp, RunInfo, merge_events
from semel.runtime.kernel import CachedKernel
from semel.runtime.measured import Event, MachineLimits, Span

LIMITS = MachineLimits(threads=2, flops_per_s=1e11, bytes_per_s=2e10)


def fake_kernel(name: str) -> CachedKernel:
    """A kernel that is never called."""
    n = Variable("n", 1, 64)
    signature = KernelSignature(name, (BufferSpec("b0", FLOAT32, "w", n),), (n,), n)
    return CachedKernel(signature, 4096, name, text=f"text of {name} with </script> & <b>")


def op(
    index: int, name: str, kind: str = "kernel", *, row: int, step: int, **more: Any
) -> ProfiledOp:
    """A record of an operation before the run."""
    return ProfiledOp(
        kernel=fake_kernel(name) if kind == "kernel" else None,
        device="cpu",
        num_buffers=2,
        name=name,
        kind=kind,
        op_index=index,
        row=row,
        step=step,
        origins=(f"model.py:{10 + index} <module>",),
        **more,
    )


def sample_report() -> ProfileReport:
    """matmul on two lanes, a chain of two on one, a view, a copy, a host call."""
    ops = [
        op(0, "matmul", row=0, step=0, flops=4_000_000, bytes=100_000, tiles=8),
        op(1, "exp", row=1, step=1, flops=20_000, bytes=80_000, tiles=4),
        op(2, "scale", row=2, step=1, flops=10_000, bytes=80_000, tiles=4),
        op(3, "view", "view", row=-1, step=-1),
        op(4, "copy", "copy", row=3, step=2, bytes=40_000),
        op(5, "top_k", "host call", row=4, step=3),
    ]
    events = [
        Event(0, Span(0, 1_000, 41_000, 4)),
        Event(0, Span(1, 2_000, 43_000, 4)),
        Event(1, Span(0, 44_000, 46_000, 2)),
        Event(2, Span(0, 46_000, 47_000, 2)),
        Event(1, Span(0, 47_000, 49_000, 2)),
        Event(2, Span(0, 49_000, 50_000, 2)),
        Event(3, Span(0, 50_500, 54_500, 1)),
        Event(4, Span(0, 60_000, 90_000, 1)),
    ]
    arena = (
        ArenaBlock("matmul", 0, 65_536, 40_000, 0, 1),
        ArenaBlock("exp", 65_536, 65_536, 40_000, 1, 2),
        ArenaBlock("scale", 0, 65_536, 40_000, 2, 4),
    )
    run = RunInfo("cpu", 2, {"n": 37}, 4, 1, 1, 131_072, arena, LIMITS)
    return ProfileReport(merge_events(ops, events, LIMITS), run)

"""Kernels as plans of one row, so that a lane runs them like any plan.

    KernelPlans().plan("cpu:1", kernel, buffers)  -->  ExecutionPlan

The plan works on the bytes of the buffers and owns none of them: whoever answers for them still
does. A kernel that is called again on the same buffers finds its plan; the ones used last are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from semel.errors import PlanError
from semel.ir.fields import take_items, take_values
from semel.plan.builder import ExecutionPlanBuilder
from semel.plan.plan import ExecutionPlan
from semel.plan.rows import PreparedKernel
from semel.runtime.buffer import Buffer
from semel.runtime.kernel import CachedKernel

#: Plans that are kept.
_MOST = 64

Kernel = CachedKernel | PreparedKernel


class KernelPlans:
    """The plans of kernels that were executed last."""

    def __init__(self) -> None:
        #: With their kernels: an id is nobody else's as long as that is held.
        self._plans: OrderedDict[Any, tuple[Kernel, ExecutionPlan]] = OrderedDict()

    def plan(
        self, device: str, kernel: Kernel, buffers: Sequence[Buffer], values: Mapping[str, int]
    ) -> ExecutionPlan:
        """The kernel on these buffers; its variables have these values."""
        where = f"kernel '{kernel.name}'"
        given = take_items(where, "buffers", Buffer, buffers)
        fixed = take_values(where, "values", values)
        ranges = tuple((buffer.byte_range, buffer.type, buffer.device) for buffer in given)
        key = (device, id(kernel), ranges, tuple(sorted(fixed.items())))
        found = self._plans.get(key)
        if found is None:
            found = self._plans[key] = kernel, _build(device, kernel, given, fixed)
            if len(self._plans) > _MOST:
                self._plans.popitem(last=False)
        self._plans.move_to_end(key)
        return found[1]

    def has(self, plan: ExecutionPlan) -> bool:
        """Whether a plan is nothing but a kernel."""
        return any(plan is made for _, made in self._plans.values())


def _build(
    device: str, kernel: Kernel, buffers: Sequence[Buffer], values: Mapping[str, int]
) -> ExecutionPlan:
    row = _row(device, kernel, len(buffers))
    builder = ExecutionPlanBuilder(device)
    for number, own in enumerate(buffers):
        window = Buffer.window(own.memory, own.offset, own.capacity_bytes, own.type, own.device)
        builder.add_buffer(number, window)
    builder.add_kernel(replace(row, fixedvars={**row.fixedvars, **values}))
    builder.set_output_buffers([row.buffer_indices[i] for i in row.output_indices])
    return builder.build()


def _row(device: str, kernel: Kernel, num_buffers: int) -> PreparedKernel:
    """The call of a kernel; one that is prepared has places for buffers already."""
    if isinstance(kernel, PreparedKernel):
        if kernel.device not in ("", device):
            raise PlanError(
                f"kernel '{kernel.name}'", f"is prepared for {kernel.device}, not for {device}."
            )
        wanted = max(kernel.buffer_indices, default=-1) + 1
        if num_buffers < wanted:
            raise PlanError(
                f"kernel '{kernel.name}'",
                f"needs {wanted} buffers, of which it is prepared for numbers "
                f"{', '.join(map(str, kernel.buffer_indices))}, got {num_buffers}.",
                hint="Give all of them in buffers=, or replace() its buffer_indices.",
            )
        return replace(kernel, dependencies=())
    wanted = len(kernel.signature.buffers)
    if num_buffers != wanted:
        raise PlanError(
            f"kernel '{kernel.name}'", f"needs {wanted} buffers, in its order, got {num_buffers}."
        )
    return PreparedKernel.call(0, kernel, range(wanted), device=device)

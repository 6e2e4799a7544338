"""Plans: what they are built from, and how they run.

Everything that a plan built by hand needs has its name here.
"""

from semel.plan.builder import ExecutionPlanBuilder
from semel.plan.parts import PlanMemory
from semel.plan.plan import ExecutionPlan
from semel.plan.report.records import KernelProfile
from semel.plan.row import RuntimeVar
from semel.plan.rows import (
    PreparedBranch,
    PreparedBufferView,
    PreparedCopy,
    PreparedCustomFunction,
    PreparedKernel,
    PreparedLoop,
    PreparedOp,
    PreparedRebind,
    PreparedSignal,
    PreparedWait,
)
from semel.runtime.buffer import Buffer
from semel.runtime.kernel import CachedKernel

__all__ = [
    "Buffer",
    "CachedKernel",
    "ExecutionPlan",
    "ExecutionPlanBuilder",
    "KernelProfile",
    "PlanMemory",
    "PreparedBranch",
    "PreparedBufferView",
    "PreparedCopy",
    "PreparedCustomFunction",
    "PreparedKernel",
    "PreparedLoop",
    "PreparedOp",
    "PreparedRebind",
    "PreparedSignal",
    "PreparedWait",
    "RuntimeVar",
]

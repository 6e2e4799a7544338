"""Plans: what they are built from, and how they run.

Everything that a plan built by hand needs has its name here.
"""

from semel.plan import rows
from semel.plan.builder import ExecutionPlanBuilder
from semel.plan.parts import PlanMemory
from semel.plan.plan import ExecutionPlan
from semel.plan.report.records import KernelProfile
from semel.plan.row import RuntimeVar
from semel.plan.rows import *  # noqa: F403  (names that are listed there)
from semel.runtime.buffer import Buffer
from semel.runtime.kernel import CachedKernel

__all__ = [
    "Buffer",
    "CachedKernel",
    "ExecutionPlan",
    "ExecutionPlanBuilder",
    "KernelProfile",
    "PlanMemory",
    "RuntimeVar",
    *rows.__all__,
]

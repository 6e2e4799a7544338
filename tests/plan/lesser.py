"""A device with memory and code of its own, as a GPU is: a lesser CPU that only copies reach."""

from __future__ import annotations

from tests.plan.far import FarDevice

from semel.devices import Backend
from semel.devices.cpu.compiler import CpuCompiler
from semel.ir.target import Target, named_target


class LesserDevice(FarDevice):
    """The CPU, with memory that is said to be elsewhere."""

    name = "lesser"


def target() -> Target:
    """Registers of 128 bits and no fused products: another layout of weights, the same bits."""
    return named_target("x86-64-v2")


BACKEND = Backend("lesser", target, CpuCompiler, lambda spec: LesserDevice())

"""Executors, buffers and plans for tests."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

import semel
from semel import Buffer, ExecutionPlan, Tensor, UnifiedExecutor

#: No wait of a test takes this long unless something is wrong.
PATIENCE = 100.0
DEVICES = ("cpu:0", "cpu:1")


class Gate:
    """Work that begins, and goes on when it is told to."""

    def __init__(self) -> None:
        self.has_begun, self._may_go_on = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.has_begun.set()
        assert self._may_go_on.wait(PATIENCE), "nobody opened the gate"

    def open(self) -> None:
        self._may_go_on.set()


def executor_of(*devices: str) -> UnifiedExecutor:
    made = UnifiedExecutor()
    for device in devices or DEVICES:
        made.add_device(device)
    return made


def buffer_of(values: Any, device: str = "cpu:0") -> Buffer:
    array = np.asarray(values, np.float32)
    made = Buffer.empty(array.shape, "float32", device)
    made.copyin(array)
    return made


def scaled(factor: float, device: str = "cpu:0", size: int = 4) -> tuple[ExecutionPlan, Buffer]:
    """A plan of one kernel, out = x * factor, and the buffer of x."""
    x = Tensor.input("x", (size,), "float32")
    plan = (x * factor).prepare(device=device)
    found = plan.buffer(x)
    assert found is not None
    return plan, found


def fail() -> None:
    raise ValueError("on purpose")


def numbers(*values: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.asarray(values, np.float32)


__all__ = [
    "DEVICES",
    "PATIENCE",
    "Gate",
    "buffer_of",
    "executor_of",
    "fail",
    "numbers",
    "scaled",
    "semel",
]

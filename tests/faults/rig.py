"""Plans that use the faulty device, and what they compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from semel import ExecutionPlan, Tensor
from semel.runtime import laned

W = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
X = np.linspace(-2, 2, 32, dtype=np.float32).reshape(4, 8)
#: No wait of a test takes this long unless something is wrong.
PATIENCE = 100.0

Array = np.ndarray[Any, np.dtype[np.float32]]


def alone(device: str = "faulty") -> ExecutionPlan:
    """Two kernels on one device."""
    x = Tensor.input("x", (4, 8))
    return (x @ Tensor(W)).softmax(-1).prepare(device=device, threads=1)


def spread(there: str = "faulty", here: str = "cpu:0") -> ExecutionPlan:
    """A kernel here, a copy and a kernel there, a copy and a kernel here."""
    x = Tensor.input("x", (4, 8))
    y = (x @ Tensor(W)).to(there).relu()
    return (y.to(here) + x).prepare(device=here, threads=1)


def write(plan: ExecutionPlan, array: Array = X) -> None:
    plan.buffers[plan.inputs["x"].index].copyin(array)


def be_impatient(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.2) -> None:
    """Let runs that are given up wait for their lanes no longer than this."""
    monkeypatch.setattr(laned, "_PATIENCE_S", seconds)

"""The lazy front door: `Tensor`, and the functions on it.

    user code  -->  Tensor (a handle on a graph node)  -->  Graph  -->  ExecutionPlan

The functions stand in modules by family (movement, elementwise, reduce, nn, ...). Each takes
its tensor as the first argument, or what becomes one: `semel.softmax([1.0, 2.0])`. The class
(tensor.py) is the table of them all: a function in its body is a method, so that
`x.softmax()` and `semel.softmax(x)` are one function with one signature. What the functions
share (how values become tensors and ops become nodes) is in handle.py.

Nothing here computes but realize.py: every function adds nodes, and a composition such as
softmax is nodes of primitive ops, which the compiler fuses.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import NoReturn

from semel.errors import UnsupportedError


class _Package(ModuleType):
    """Says what to write to those who call it, as PyTorch's function of this name."""

    def __call__(self, *args: object, **named: object) -> NoReturn:
        raise UnsupportedError(
            "tensor",
            "semel.tensor is a package, not a function.",
            hint="Use Tensor(data) or semel.asarray(data).",
        )


sys.modules[__name__].__class__ = _Package

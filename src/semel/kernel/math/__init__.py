"""Math functions as arithmetic: what replaces `exp`, `erf`, `sin` ... before codegen.

    Value with math ops --expand_math--> Value with none
    Kernel              --expand_kernel_math--> Kernel

Each function is defined once, on scalar values, and serves vectors, GPUs and the
interpreter alike. Nothing is called and nothing is reassociated later: what is written
here is what runs. float16 and bfloat16 compute in float32 and round once.

`FUNCTIONS` lists each function with the largest errors measured, in ulp against a reference
of higher precision (for gelu: absolute, over max(|x|, 1), in units of 2**-24 and 2**-53):
the unary float32 ones over 20 million evenly spaced bit patterns. Tests hold them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from semel.ir.types import FLOAT32
from semel.kernel.ir import (
    Kernel,
    Value,
    cast,
    statement_values,
    walk_statements,
    walk_values,
    with_args,
)
from semel.kernel.math import error, exponential, logarithm, power, remainder, trigonometric
from semel.kernel.math.narrow import is_narrow_cast, narrow_cast
from semel.kernel.math.steps import is_step_cast, step_cast
from semel.kernel.rewrite import map_statements


@dataclass(frozen=True, slots=True)
class MathFunction:
    """A definition for float32 and float64 values, with its measured largest errors in ulp.

    `build` makes plain arithmetic: no math function is left in what it returns.
    """

    build: Callable[..., Value]
    float32_ulp: float
    float64_ulp: float


FUNCTIONS: dict[str, MathFunction] = {
    "exp": MathFunction(exponential.exp, 0.88, 0.84),
    "decay": MathFunction(exponential.decay, 0.88, 0.84),
    "exp2": MathFunction(exponential.exp2, 1.01, 0.93),
    "expm1": MathFunction(exponential.expm1, 1.54, 1.96),
    "sigmoid": MathFunction(exponential.sigmoid, 2.29, 1.93),
    "sinh": MathFunction(exponential.sinh, 2.16, 2.36),
    "cosh": MathFunction(exponential.cosh, 1.31, 1.19),
    "tanh": MathFunction(exponential.tanh, 2.08, 2.46),
    "log": MathFunction(logarithm.log, 0.84, 0.77),
    "log2": MathFunction(logarithm.log2, 0.99, 0.93),
    "log10": MathFunction(logarithm.log10, 0.94, 0.92),
    "log1p": MathFunction(logarithm.log1p, 1.47, 1.35),
    "asinh": MathFunction(logarithm.asinh, 1.76, 1.66),
    "acosh": MathFunction(logarithm.acosh, 1.97, 1.47),
    "atanh": MathFunction(logarithm.atanh, 2.07, 1.75),
    "sin": MathFunction(trigonometric.sin, 1.63, 1.52),
    "cos": MathFunction(trigonometric.cos, 1.62, 1.48),
    "tan": MathFunction(trigonometric.tan, 3.75, 3.17),
    "asin": MathFunction(trigonometric.asin, 2.34, 2.11),
    "acos": MathFunction(trigonometric.acos, 1.12, 1.04),
    "atan": MathFunction(trigonometric.atan, 1.33, 1.45),
    "atan2": MathFunction(trigonometric.atan2, 1.51, 1.57),
    "pow": MathFunction(power.power, 0.51, 0.97),
    "fmod": MathFunction(remainder.fmod, 0, 0),
    "erf": MathFunction(error.erf, 2.46, 2.0),
    "gelu": MathFunction(error.gelu, 3.6, 2.1),
}


def expand_math(value: Value) -> Value:
    """The value with every math function, and every narrow cast, replaced by arithmetic."""
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
            if is_narrow_cast(value):
                return narrow_cast(args[0], value.dtype)
            is_step = is_step_cast(value)
            return step_cast(args[0], value.dtype) if is_step else with_args(value, args)
        if value.dtype.is_half:
            return cast(function.build(*(cast(a, FLOAT32) for a in args)), value.dtype)
        return function.build(*args)


def expand_kernel_math(kernel: Kernel) -> Kernel:
    """The kernel with all math functions, narrow casts and casts to steps as arithmetic."""
    roots = [v for s in walk_statements(kernel.body) for v in statement_values(s)]
    if not any(
        v.op in FUNCTIONS or is_narrow_cast(v) or is_step_cast(v) for v in walk_values(roots)
    ):
        return kernel
    expand = _Expander().expand
    return replace(kernel, body=map_statements(kernel.body, expand))

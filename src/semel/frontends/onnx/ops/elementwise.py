"""Operators on elements: arithmetic, comparisons, logic, activations, casts."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

from semel.frontends.onnx.file import AT_AXIS, BY_CHANNEL
from semel.frontends.onnx.node import Converter, Node, dtype_of
from semel.ir.types import BOOL, FLOAT32, FLOAT64, UINT8, DType
from semel.tensor.tensor import Tensor


def _method(name: str) -> Converter:
    def convert(node: Node) -> Tensor:
        return getattr(node.tensor(), name)()  # type: ignore[no-any-return]

    return convert


def _operator(function: Callable[[Any, Any], Any]) -> Converter:
    return lambda node: function(*_operands(node))


def _operands(node: Node) -> tuple[Tensor, Tensor]:
    """Both; before version 7 the second one could begin at an axis of the first."""
    left, right = node.tensor(0), node.tensor(1)
    axis = node.attr(AT_AXIS)
    if axis is None:
        return left, right
    behind = left.ndim - node.as_axis(axis, left.ndim) - right.ndim
    return left, right.reshape(*right.shape, *(1,) * max(behind, 0))


def _variadic(function: Callable[[Tensor, Tensor], Tensor]) -> Converter:
    return lambda node: reduce(function, node.tensors())


def _erf(node: Node) -> Tensor:
    x = node.tensor()
    return x.erf() if x.dtype.is_float else x.cast(FLOAT32).erf().cast(x.dtype)


def _selu(node: Node) -> Tensor:
    x = node.tensor()
    alpha = node.number("alpha", 1.67326319217681884765625)
    gamma = node.number("gamma", 1.05070102214813232421875)
    return (x > 0).where(x * gamma, (x.exp() - 1) * (alpha * gamma))


def _celu(node: Node) -> Tensor:
    x, alpha = node.tensor(), node.number("alpha", 1.0)
    return x.maximum(0) + (((x / alpha).exp() - 1) * alpha).minimum(0)


def _shrink(node: Node) -> Tensor:
    x = node.tensor()
    limit, bias = node.number("lambd", 0.5), node.number("bias", 0.0)
    wide = x if x.dtype.is_float else x.cast(FLOAT32)
    shrunk = (wide < -limit).where(wide + bias, (wide > limit).where(wide - bias, 0.0))
    return shrunk.cast(x.dtype)


def _hard_sigmoid(node: Node) -> Tensor:
    return (node.tensor() * node.number("alpha", 0.2) + node.number("beta", 0.5)).clip(0.0, 1.0)


def _thresholded_relu(node: Node) -> Tensor:
    x = node.tensor()
    return (x > node.number("alpha", 1.0)).where(x, 0.0)


def _swish(node: Node) -> Tensor:
    x = node.tensor()
    return x * (x * node.number("alpha", 1.0)).sigmoid()


def _is_inf(node: Node) -> Tensor:
    x = node.tensor()
    found = x.isinf()
    if not node.flag("detect_positive", True):
        found = found & (x < 0)
    return found if node.flag("detect_negative", True) else found & (x > 0)


def _divide(node: Node) -> Tensor:
    """Integers divide toward zero."""
    a, b = _operands(node)
    if a.dtype.is_float:
        return a / b
    if a.dtype.kind != "i":
        return a // b
    quotient = a.abs() // b.abs()
    return (a < 0).ne(b < 0).where(-quotient, quotient)


def _power(node: Node) -> Tensor:
    a, b = _operands(node)
    if a.dtype.is_float or not b.dtype.is_float:
        return a.pow(b.cast(a.dtype))
    return a.cast(FLOAT64).pow(b.cast(FLOAT64)).cast(a.dtype)


def _modulo(node: Node) -> Tensor:
    a, b = node.tensor(0), node.tensor(1)
    return a.fmod(b) if node.flag("fmod") else a.remainder(b)


def _shift(node: Node) -> Tensor:
    a, b = node.tensor(0), node.tensor(1)
    return a << b if node.attr("direction") == "LEFT" else a >> b


def _prelu(node: Node) -> Tensor:
    """Before version 7 a vector of slopes was one for each channel, whatever the last axis."""
    x, slope = node.tensor(0), node.tensor(1)
    if node.attr(BY_CHANNEL) and slope.ndim == 1 and x.ndim > 2 and slope.shape[0] != 1:
        slope = slope.reshape(-1, *[1] * (x.ndim - 2))
    return (x < 0).where(x * slope, x)


def _clip(node: Node) -> Tensor:
    x = node.tensor()
    low, high = (
        (node.attr("min"), node.attr("max"))
        if node.version < 11
        else (node.optional(1), node.optional(2))
    )
    return x if low is None and high is None else x.clip(low, high)


def _cast(node: Node) -> Tensor:
    return _cast_to(node, dtype_of(int(node.attr("to")), repr(node)))


def _cast_like(node: Node) -> Tensor:
    return _cast_to(node, node.value(1).dtype)


def _cast_to(node: Node, dtype: DType) -> Tensor:
    round_mode = node.attr("round_mode", "up")
    return node.tensor().cast(dtype, bool(node.attr("saturate", 1)), round_mode)


def _bit_cast(node: Node) -> Tensor:
    x, dtype = node.tensor(), dtype_of(int(node.attr("to")), repr(node))
    raw = x.cast(UINT8) if x.dtype == BOOL else x
    if dtype == BOOL:
        return raw.ne(0)
    return raw if raw.dtype == dtype else raw.bitcast(dtype)


CONVERTERS: dict[str, Converter] = {
    **{
        op: _method(name)
        for op, name in {
            "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh",
            "Atan": "atan", "Atanh": "atanh", "BitwiseNot": "bitwise_not", "Ceil": "ceil",
            "Cos": "cos", "Cosh": "cosh", "Exp": "exp", "Floor": "floor",
            "HardSwish": "hardswish", "IsNaN": "isnan", "Log": "log", "Mish": "mish",
            "Neg": "neg", "Not": "logical_not", "Reciprocal": "reciprocal", "Relu": "relu",
            "Round": "round", "Sigmoid": "sigmoid", "Sign": "sign", "Sin": "sin",
            "Sinh": "sinh", "Softplus": "softplus", "Softsign": "softsign", "Sqrt": "sqrt",
            "Tan": "tan", "Tanh": "tanh",
        }.items()
    },
    "Add": _operator(operator.add),
    "And": _operator(operator.and_),
    "BitCast": _bit_cast,
    "BitShift": _shift,
    "BitwiseAnd": _operator(operator.and_),
    "BitwiseOr": _operator(operator.or_),
    "BitwiseXor": _operator(operator.xor),
    "Cast": _cast,
    "CastLike": _cast_like,
    "Celu": _celu,
    "Clip": _clip,
    "Div": _divide,
    "Elu": lambda node: node.tensor().elu(node.number("alpha", 1.0)),
    "Equal": _operator(Tensor.eq),
    "Erf": _erf,
    "Gelu": lambda node: node.tensor().gelu(node.attr("approximate", "none")),
    "Greater": _operator(operator.gt),
    "GreaterOrEqual": _operator(operator.ge),
    "HardSigmoid": _hard_sigmoid,
    "Identity": lambda node: node.any_value(0),
    "IsInf": _is_inf,
    "LeakyRelu": lambda node: node.tensor().leaky_relu(node.number("alpha", 0.01)),
    "Less": _operator(operator.lt),
    "LessOrEqual": _operator(operator.le),
    "Max": _variadic(Tensor.maximum),
    "Mean": lambda node: reduce(operator.add, node.tensors()) / float(len(node.inputs)),
    "Min": _variadic(Tensor.minimum),
    "Mod": _modulo,
    "Mul": _operator(operator.mul),
    "Or": _operator(operator.or_),
    "PRelu": _prelu,
    "Pow": _power,
    "Selu": _selu,
    "Shrink": _shrink,
    "Sub": _operator(operator.sub),
    "Sum": _variadic(operator.add),
    "Swish": _swish,
    "ThresholdedRelu": _thresholded_relu,
    "Where": lambda node: node.tensor(0).where(node.tensor(1), node.tensor(2)),
    "Xor": _operator(operator.xor),
}  # fmt: skip

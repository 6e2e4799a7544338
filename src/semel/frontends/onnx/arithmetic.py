"""Arithmetic on what is known while a model is imported: mostly shapes.

    Shape -> Gather -> Mul -> Concat -> Reshape        numbers and sizes, on arrays of any rank

Exporters write whole programs about shapes. They are computed here, on arrays whose elements are
numbers or expressions of sizes that each run binds, with the operator's own meaning (integers
divide toward zero, a cast to float keeps what it divides). Only small values take part: large
constants are the compiler's to fold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from semel.frontends.onnx.node import Node, dtype_of
from semel.frontends.onnx.values import SYMBOLIC, Value
from semel.ir.expr import Dim, bounds, maximum, minimum, mod, product, sum_dims
from semel.ir.expr import floordiv as floor_div
from semel.ir.types import BOOL, DType
from semel.runtime.buffer import Array

#: Values with more numbers are not about shapes.
MOST_NUMBERS = 64


class _Undecided(Exception):  # noqa: N818  (an answer, no error)
    """It depends on sizes that runs bind."""


def compute(node: Node) -> Value | list[Value] | None:
    """What a node of known inputs is; None if it is not for us."""
    rule = _RULES.get(node.op)
    if rule is None or not node.inputs:
        return None
    for value in node.inputs:
        if value is None:
            continue
        if not isinstance(value, Value) or value.known is None or value.known.size > MOST_NUMBERS:
            return None
    try:
        return rule(node)
    except _Undecided:
        return None


def _objects(node: Node, position: int) -> Array:
    known = node.value(position).known
    assert known is not None
    if known.dtype == object:
        return known
    return np.array(known.tolist() if known.ndim else known.item(), object).reshape(known.shape)


def _numbers(node: Node, position: int) -> Array:
    """Numbers that nothing at run time changes."""
    known = node.value(position).known
    assert known is not None
    if known.dtype == object:
        raise _Undecided
    return known


def _is_for_sizes(node: Node) -> bool:
    """Whether all inputs are integers or booleans, or some of them sizes."""
    values = [v for v in node.inputs if isinstance(v, Value)]
    return any(v.is_symbolic for v in values) or not any(v.dtype.is_float for v in values)


def _made(found: Any, dtype: DType) -> Value:
    array = np.empty((), object) if not isinstance(found, np.ndarray) else found
    if not isinstance(found, np.ndarray):
        array[()] = found
    return Value.of_dims(np.asarray(array, object), dtype)


def _elementwise(function: Callable[..., Any]) -> Callable[[Node], Value | None]:
    def rule(node: Node) -> Value | None:
        if not _is_for_sizes(node):
            return None
        operands = [_objects(node, i) for i in range(len(node.inputs))]
        found = np.frompyfunc(function, len(operands), 1)(*operands)
        return _made(found, node.value(0).dtype)

    return rule


def _variadic(function: Callable[[Dim, Dim], Dim]) -> Callable[[Node], Value | None]:
    def rule(node: Node) -> Value | None:
        if not _is_for_sizes(node):
            return None
        found: Any = _objects(node, 0)
        for i in range(1, len(node.inputs)):
            found = np.frompyfunc(function, 2, 1)(found, _objects(node, i))
        return _made(found, node.value(0).dtype)

    return rule


def _divide(node: Node) -> Value | None:
    """Integers divide toward zero; a float of sizes only where the division is exact."""
    if not _is_for_sizes(node):
        return None
    dtype = node.value(0).dtype
    divide = _exact if dtype.is_float else _truncated
    found = np.frompyfunc(divide, 2, 1)(_objects(node, 0), _objects(node, 1))
    return _made(found, dtype)


def _truncated(a: Any, b: Any) -> Any:
    if not isinstance(a, SYMBOLIC) and not isinstance(b, SYMBOLIC):
        if b == 0:
            raise _Undecided
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    low_a, low_b = bounds(a)[0], bounds(b)[0]
    if low_a is None or low_b is None or low_a < 0 or low_b <= 0:
        raise _Undecided
    return floor_div(a, b)


def _exact(a: Any, b: Any) -> Any:
    if not isinstance(a, SYMBOLIC) and not isinstance(b, SYMBOLIC):
        return a / b
    if isinstance(b, float):
        if not b.is_integer():
            raise _Undecided
        b = int(b)
    if b == 0 or mod(a, b) != 0:
        raise _Undecided
    return floor_div(a, b)


def _times(a: Any, b: Any) -> Any:
    """A product; of a size and a fraction only where it is a size."""
    for x, y in ((a, b), (b, a)):
        if isinstance(x, float) and isinstance(y, SYMBOLIC):
            if not x.is_integer():
                raise _Undecided
            return y * int(x)
    return a * b


def _sum_of(a: Any, b: Any) -> Any:
    return _whole(a, b) + _whole(b, a)


def _difference(a: Any, b: Any) -> Any:
    return _whole(a, b) - _whole(b, a)


def _whole(x: Any, beside: Any) -> Any:
    if isinstance(x, float) and isinstance(beside, SYMBOLIC):
        if not x.is_integer():
            raise _Undecided
        return int(x)
    return x


def _compare(node: Node) -> Value | None:
    if not _is_for_sizes(node):
        return None
    decide = _COMPARISONS[node.op]
    found = np.frompyfunc(decide, 2, 1)(_objects(node, 0), _objects(node, 1))
    return Value(BOOL, np.asarray(found, bool))


def _equal(a: Any, b: Any) -> bool:
    """Whether a == b, if that is the same for all sizes."""
    difference = a - b
    if not isinstance(difference, SYMBOLIC):
        return bool(difference == 0)
    low, high = bounds(difference)
    if (low is not None and low > 0) or (high is not None and high < 0):
        return False
    raise _Undecided


def _less(a: Any, b: Any) -> bool:
    """Whether a < b, for all sizes."""
    difference = a - b
    if not isinstance(difference, SYMBOLIC):
        return bool(difference < 0)
    low, high = bounds(difference)
    if high is not None and high < 0:
        return True
    if low is not None and low >= 0:
        return False
    raise _Undecided


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "Equal": _equal,
    "Less": _less,
    "Greater": lambda a, b: _less(b, a),
    "LessOrEqual": lambda a, b: not _less(b, a),
    "GreaterOrEqual": lambda a, b: not _less(a, b),
}


def _where(node: Node) -> Value | None:
    if not _is_for_sizes(node):
        return None
    choose = np.frompyfunc(lambda c, a, b: a if c else b, 3, 1)
    found = choose(_numbers(node, 0).astype(object), _objects(node, 1), _objects(node, 2))
    return _made(found, node.value(1).dtype)


def _cast(node: Node) -> Value | None:
    value, dtype = node.value(0), dtype_of(int(node.attr("to")), repr(node))
    if not value.is_symbolic:
        if value.dtype.is_float or dtype.is_float:
            return None
        return Value(dtype, _numbers(node, 0).astype(dtype.numpy))
    if dtype == BOOL:
        raise _Undecided
    return Value(dtype, value.known)


def _moved(function: Callable[[Node, Array], Array]) -> Callable[[Node], Value | None]:
    """A rule for operators that move elements about: known values stay known."""

    def rule(node: Node) -> Value | None:
        known = node.value(0).known
        assert known is not None
        found, dtype = function(node, known), node.value(0).dtype
        return Value.of_dims(found, dtype) if known.dtype == object else Value(dtype, found)

    return rule


def _reshaped(node: Node, known: Array) -> Array:
    wanted = [int(n) for n in _numbers(node, 1).reshape(-1)]
    if not node.flag("allowzero"):
        wanted = [known.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    return known.reshape(wanted)


def _squeezed(node: Node, known: Array) -> Array:
    axes = node.axes(1)
    return known.squeeze() if axes is None else known.squeeze(tuple(axes))


def _unsqueezed(node: Node, known: Array) -> Array:
    return np.expand_dims(known, tuple(node.axes(1) or ()))


def _sliced(node: Node, known: Array) -> Array:
    if node.version < 10:
        starts, ends = node.attr("starts"), node.attr("ends")
        axes, steps = node.attr("axes") or range(len(starts)), [1] * len(starts)
    else:
        starts, ends = ([int(n) for n in _numbers(node, i).reshape(-1)] for i in (1, 2))
        axes = node.ints(3) if node.has(3) else range(len(starts))
        steps = node.ints(4) if node.has(4) else [1] * len(starts)
    key: list[Any] = [slice(None)] * known.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = known.shape[axis]
        is_open = step < 0 and end < -size
        key[axis] = slice(start, None if is_open else end, step)
    found: Array = known[tuple(key)]
    return found


def _gathered(node: Node, known: Array) -> Array:
    axis, index = node.attr("axis", 0), _numbers(node, 1).astype(np.int64)
    return np.asarray(np.take(known, index, axis), known.dtype)


def _scalar_of(item: Any, dtype: Any) -> Array:
    made = np.empty((), dtype)
    made[()] = item
    return made


def _concat(node: Node) -> Value | None:
    axis = node.attr("axis", 1)
    if any(v.is_symbolic for v in node.inputs if isinstance(v, Value)):
        arrays = [_objects(node, i) for i in range(len(node.inputs))]
        return _made(np.concatenate(arrays, axis), node.value(0).dtype)
    arrays = [_numbers(node, i) for i in range(len(node.inputs))]
    return Value(node.value(0).dtype, np.concatenate(arrays, axis))


def _reduced(function: Callable[[list[Any]], Any]) -> Callable[[Node], Value | None]:
    def rule(node: Node) -> Value | None:
        known = _objects(node, 0)
        axes = node.axes(1)
        if not _is_for_sizes(node) or known.ndim != 1 or axes not in (None, [], [0], [-1]):
            return None
        if not axes and node.flag("noop_with_empty_axes"):
            return node.value(0)
        found = function(list(known))
        shape = (1,) if node.flag("keepdims", True) else ()
        return _made(_scalar_of(found, object).reshape(shape), node.value(0).dtype)

    return rule


def _folded(function: Callable[[Dim, Dim], Dim]) -> Callable[[list[Any]], Any]:
    def fold(items: list[Any]) -> Any:
        if not items:
            raise _Undecided
        found = items[0]
        for item in items[1:]:
            found = function(found, item)
        return found

    return fold


def _unary(function: Callable[[Any], Any]) -> Callable[[Node], Value | None]:
    """A rule for numbers, which leaves sizes to others but where `function` takes them."""
    return _elementwise(function)


def _rounded(x: Any, how: Callable[[float], float]) -> Any:
    return x if isinstance(x, SYMBOLIC) else float(how(x))


def _logical(function: Callable[..., Any]) -> Callable[[Node], Value | None]:
    def rule(node: Node) -> Value | None:
        operands = [_numbers(node, i) for i in range(len(node.inputs))]
        return Value(BOOL, np.asarray(function(*operands), bool))

    return rule


def _range(node: Node) -> Value | None:
    start, limit, step = (_numbers(node, i).item() for i in range(3))
    dtype = node.value(0).dtype
    if dtype.is_float or step == 0 or abs(int(limit) - int(start)) > MOST_NUMBERS * abs(int(step)):
        return None
    return Value(dtype, np.arange(start, limit, step, dtype=dtype.numpy))


_RULES: dict[str, Callable[[Node], Value | None]] = {
    "Abs": _unary(lambda x: x if isinstance(x, SYMBOLIC) and (bounds(x)[0] or -1) >= 0 else abs(x)),
    "Add": _elementwise(_sum_of),
    "And": _logical(np.logical_and),
    "Cast": _cast,
    "Ceil": _unary(lambda x: _rounded(x, math.ceil)),
    "Concat": _concat,
    "Div": _divide,
    "Equal": _compare,
    "Floor": _unary(lambda x: _rounded(x, math.floor)),
    "Gather": _moved(_gathered),
    "Greater": _compare,
    "GreaterOrEqual": _compare,
    "Identity": lambda node: node.value(0),
    "Less": _compare,
    "LessOrEqual": _compare,
    "Max": _variadic(maximum),
    "Min": _variadic(minimum),
    "Mul": _elementwise(_times),
    "Neg": _unary(lambda x: -x),
    "Not": _logical(np.logical_not),
    "Or": _logical(np.logical_or),
    "Range": _range,
    "ReduceMax": _reduced(_folded(maximum)),
    "ReduceMin": _reduced(_folded(minimum)),
    "ReduceProd": _reduced(product),
    "ReduceSum": _reduced(sum_dims),
    "Reshape": _moved(_reshaped),
    "Slice": _moved(_sliced),
    "Squeeze": _moved(_squeezed),
    "Sub": _elementwise(_difference),
    "Transpose": _moved(lambda node, known: known.transpose(node.attr("perm"))),
    "Unsqueeze": _moved(_unsqueezed),
    "Where": _where,
}

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
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
from onnx import numpy_helper

from semel.frontends.onnx import ratio
from semel.frontends.onnx.node import Node, dtype_of
from semel.frontends.onnx.ratio import OPEN, SYMBOLIC, NoRatio, Ratio
from semel.frontends.onnx.values import Value, object_array
from semel.ir.dims import maximum, minimum, mod, select, truncdiv, truncmod
from semel.ir.types import BOOL, DType, as_dtype
from semel.runtime.buffer import Array

#: What a node of known inputs is.
Rule: TypeAlias = "Callable[[Node], Value]"

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
    except (_Undecided, NoRatio):
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


def _made(found: Any, dtype: DType) -> Value:
    array = np.empty((), object) if not isinstance(found, np.ndarray) else found
    if not isinstance(found, np.ndarray):
        array[()] = found
    return Value.of_dims(np.asarray(array, object), dtype)


def _is_open(node: Node) -> bool:
    """Whether some input has sizes that runs bind."""
    return any(isinstance(v, Value) and v.is_symbolic for v in node.inputs)


# ---------------------------------------------------------------- element by element


def _elementwise(of_numbers: Any, of_sizes: Any, dtype: DType | None = None) -> Rule:
    """Numbers with NumPy, in their dtype; sizes one by one, exactly."""

    def rule(node: Node) -> Value:
        wanted = dtype or node.value(0).dtype
        count = range(len(node.inputs))
        if _is_open(node):
            return _made(_each(of_sizes)(*(_objects(node, i) for i in count)), wanted)
        with np.errstate(all="ignore"):
            numbers = of_numbers(*(_numbers(node, i) for i in count))
        return Value(wanted, np.asarray(numbers, wanted.numpy))

    return rule


def _variadic(of_numbers: Any, of_sizes: Any) -> Rule:
    """A function of two, for any number of inputs."""
    return _elementwise(
        lambda *arrays: reduce(of_numbers, arrays), lambda *dims: reduce(of_sizes, dims)
    )


def _each(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(*arrays: Array) -> Any:
        return np.frompyfunc(function, len(arrays), 1)(*arrays)

    return apply


def _only(function: Callable[[Any], Any]) -> Callable[..., Any]:
    """For sizes that a function of one number leaves as they are."""
    return lambda x: function(x) if isinstance(x, (Ratio, float)) else x


def _no_sizes(*operands: Any) -> Any:
    raise _Undecided


def _divide(node: Node) -> Value:
    """Integers divide toward zero."""
    is_whole = not node.value(0).dtype.is_float
    if is_whole and not _is_open(node) and not _numbers(node, 1).all():
        raise _Undecided
    rule = _elementwise(_truncated if is_whole else np.divide, truncdiv if is_whole else ratio.over)
    return rule(node)


def _truncated(a: Array, b: Array) -> Array:
    found: Array = np.where((a < 0) == (b < 0), 1, -1) * (np.abs(a) // np.abs(b))
    return found


def _modulo(node: Node) -> Value:
    if not _is_open(node) and not _numbers(node, 1).all():
        raise _Undecided
    if node.flag("fmod"):
        return _elementwise(np.fmod, truncmod)(node)
    if _is_open(node) and node.value(0).dtype.is_float:
        raise _Undecided
    return _elementwise(np.mod, mod)(node)


def _largest(a: Any, b: Any) -> Any:
    return maximum(a, b) if _are_dims(a, b) else _chosen(ratio.is_less(a, b), b, a)


def _smallest(a: Any, b: Any) -> Any:
    return minimum(a, b) if _are_dims(a, b) else _chosen(ratio.is_less(a, b), a, b)


def _are_dims(*operands: Any) -> bool:
    return all(isinstance(x, (int, *SYMBOLIC)) for x in operands)


def _chosen(condition: Any, a: Any, b: Any) -> Any:
    """One of two, by a truth that runs may decide."""
    if not isinstance(condition, SYMBOLIC):
        return a if condition else b
    p, q = ratio.as_ratio(a), ratio.as_ratio(b)
    top, bottom = select(condition, p.top, q.top), select(condition, p.bottom, q.bottom)
    return ratio.simplified(Ratio(top, bottom))


def _where(node: Node) -> Value:
    dtype = node.value(1).dtype
    if not _is_open(node):
        return Value(dtype, np.where(*(_numbers(node, i) for i in range(3))))
    return _made(_each(_chosen)(*(_objects(node, i) for i in range(3))), dtype)


def _clip(node: Node) -> Value:
    if node.version < 11 or not _is_open(node):
        raise _Undecided
    found = _objects(node, 0)
    if node.has(1):
        found = _each(_largest)(found, _objects(node, 1))
    if node.has(2):
        found = _each(_smallest)(found, _objects(node, 2))
    return _made(found, node.value(0).dtype)


def _cast(node: Node) -> Value:
    value = node.value(0)
    dtype = dtype_of(int(node.attr("to")), repr(node)) if node.op == "Cast" else node.value(1).dtype
    if not value.is_symbolic:
        numbers = _numbers(node, 0)
        if value.dtype.is_float and not np.isfinite(numbers.astype(np.float64)).all():
            raise _Undecided
        if dtype not in _PLAIN or value.dtype not in _PLAIN:
            raise _Undecided
        return Value(dtype, numbers.astype(dtype.numpy))
    if dtype == BOOL:
        return _made(_each(lambda x: 1 - ratio.is_equal(x, 0))(value.known), dtype)
    return _made(value.known if dtype.is_float else _each(_only(ratio.trunc))(value.known), dtype)


#: Dtypes that NumPy itself casts as the standard says.
_PLAIN = frozenset(
    map(as_dtype, ("bool", "int32", "int64", "float16", "bfloat16", "float32", "float64"))
)


# ---------------------------------------------------------------- movement


def _moved(function: Callable[[Node, Array], Array]) -> Rule:
    """A rule for operators that move elements about: known values stay known."""

    def rule(node: Node) -> Value:
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


def _gathered_nd(node: Node, known: Array) -> Array:
    if node.attr("batch_dims", 0):
        raise _Undecided
    index = _numbers(node, 1).astype(np.int64)
    return np.asarray(known[tuple(np.moveaxis(index, -1, 0))], known.dtype)


def _flattened(node: Node, known: Array) -> Array:
    axis = node.attr("axis", 1)
    axis = axis + known.ndim if axis < 0 else axis
    return known.reshape(math.prod(known.shape[:axis]), -1)


def _concat(node: Node) -> Value:
    axis, count = node.attr("axis", 1), range(len(node.inputs))
    read = _objects if _is_open(node) else _numbers
    found = np.concatenate([read(node, i) for i in count], axis)
    return _made(found, node.value(0).dtype)


def _split(node: Node) -> list[Value]:
    """The parts of a small value, if their sizes are numbers."""
    known, dtype = node.value(0).known, node.value(0).dtype
    assert known is not None
    axis = node.attr("axis", 0)
    sizes = node.ints(1) if node.has(1) else node.attr("split")
    if sizes is None:
        part = -(-known.shape[axis] // node.attr("num_outputs", node.num_outputs))
        sizes = [part] * (node.num_outputs - 1)
    parts = np.split(known, np.cumsum(sizes)[: node.num_outputs - 1], axis)
    return [_made(part, dtype) if known.dtype == object else Value(dtype, part) for part in parts]


def _expanded(node: Node, known: Array) -> Array:
    wanted = tuple(int(n) for n in _numbers(node, 1).reshape(-1))
    shape = np.broadcast_shapes(known.shape, wanted)
    if math.prod(shape) > MOST_NUMBERS:
        raise _Undecided
    return np.broadcast_to(known, shape)


def _tiled(node: Node, known: Array) -> Array:
    counts = tuple(int(n) for n in _numbers(node, 1).reshape(-1))
    if math.prod(counts) * known.size > MOST_NUMBERS:
        raise _Undecided
    return np.tile(known, counts)


def _scattered(node: Node) -> Value:
    """Rows of a small value, replaced."""
    if node.attr("reduction", "none") != "none":
        raise _Undecided
    read = _objects if _is_open(node) else _numbers
    found, index = read(node, 0).copy(), _numbers(node, 1)
    found[tuple(np.moveaxis(index, -1, 0))] = read(node, 2)
    return _made(found, node.value(0).dtype)


def _reduced(of_numbers: Any, of_two: Callable[[Any, Any], Any], empty: int | None = None) -> Rule:
    """Along any axes; sizes one after the other."""

    def rule(node: Node) -> Value:
        value, axes, keep = node.value(0), node.axes(1), node.flag("keepdims", True)
        if not axes and node.flag("noop_with_empty_axes"):
            return value
        over = tuple(axis % value.ndim for axis in axes or range(value.ndim))
        if value.is_symbolic:
            return _made(_fold(_objects(node, 0), of_two, empty, over, keep), value.dtype)
        numbers = _numbers(node, 0)
        if not numbers.size and empty is None:
            raise _Undecided
        found = of_numbers(numbers, axis=over, keepdims=keep)
        return Value(value.dtype, np.asarray(found, value.dtype.numpy))

    return rule


def _fold(
    known: Array,
    of_two: Callable[[Any, Any], Any],
    empty: int | None,
    over: tuple[int, ...],
    keep: bool,
) -> Array:
    kept = [axis for axis in range(known.ndim) if axis not in over]
    rows = known.transpose(*kept, *over).reshape(math.prod(known.shape[i] for i in kept), -1)
    if not rows.shape[1] and empty is None:
        raise _Undecided
    found = object_array([reduce(of_two, row) if len(row) else empty for row in rows])
    shape = [1 if axis in over else n for axis, n in enumerate(known.shape)]
    return found.reshape(shape if keep else [known.shape[i] for i in kept])


def _range(node: Node) -> Value:
    start, limit, step = (_objects(node, i).item() for i in range(3))
    dtype = node.value(0).dtype
    if isinstance(step, OPEN) or step == 0 or (dtype.is_float and not _is_open(node)):
        raise _Undecided
    count: Any = ratio.ceil(ratio.over(ratio.plus(limit, ratio.negative(start)), step))
    if not isinstance(count, int) or count > MOST_NUMBERS:
        raise _Undecided
    found = [ratio.plus(start, ratio.times(step, k)) for k in range(count)]
    return _made(object_array(found), dtype)


def _of_shape(node: Node) -> Value:
    """A small array of one number; larger ones are made at run time."""
    dims = [int(n) for n in _numbers(node, 0).reshape(-1)]
    if math.prod(dims) > MOST_NUMBERS:
        raise _Undecided
    given = node.attr("value")
    number = np.zeros(1, np.float32) if given is None else numpy_helper.to_array(given)
    return Value.of_array(np.full(dims, number.reshape(())))


def _compare(of_numbers: Any, of_sizes: Any) -> Rule:
    return _elementwise(of_numbers, of_sizes, BOOL)


def _logical(of_numbers: Any, of_sizes: Any) -> Rule:
    return _elementwise(of_numbers, lambda *bits: of_sizes(*(_bit(x) for x in bits)), BOOL)


def _bit(x: Any) -> Any:
    return x if isinstance(x, SYMBOLIC) else int(x)


_RULES: dict[str, Callable[[Node], Value | list[Value]]] = {
    "Abs": _elementwise(np.abs, lambda x: _largest(x, ratio.negative(x))),
    "Add": _elementwise(np.add, ratio.plus),
    "And": _logical(np.logical_and, minimum),
    "Cast": _cast,
    "CastLike": _cast,
    "Ceil": _elementwise(np.ceil, _only(ratio.ceil)),
    "Clip": _clip,
    "Concat": _concat,
    "ConstantOfShape": _of_shape,
    "Div": _divide,
    "Equal": _compare(np.equal, ratio.is_equal),
    "Expand": _moved(_expanded),
    "Flatten": _moved(_flattened),
    "Floor": _elementwise(np.floor, _only(ratio.floor)),
    "Gather": _moved(_gathered),
    "GatherND": _moved(_gathered_nd),
    "Greater": _compare(np.greater, lambda a, b: ratio.is_less(b, a)),
    "GreaterOrEqual": _compare(np.greater_equal, lambda a, b: 1 - ratio.is_less(a, b)),
    "Identity": lambda node: node.value(0),
    "Less": _compare(np.less, ratio.is_less),
    "LessOrEqual": _compare(np.less_equal, lambda a, b: 1 - ratio.is_less(b, a)),
    "Max": _variadic(np.maximum, _largest),
    "Min": _variadic(np.minimum, _smallest),
    "Mod": _modulo,
    "Mul": _elementwise(np.multiply, ratio.times),
    "Neg": _elementwise(np.negative, ratio.negative),
    "Not": _logical(np.logical_not, lambda x: 1 - x),
    "Or": _logical(np.logical_or, maximum),
    "Range": _range,
    "ReduceMax": _reduced(np.max, _largest),
    "ReduceMin": _reduced(np.min, _smallest),
    "ReduceProd": _reduced(np.prod, ratio.times, 1),
    "ReduceSum": _reduced(np.sum, ratio.plus, 0),
    "Relu": _elementwise(lambda x: np.maximum(x, 0), lambda x: _largest(x, 0)),
    "Reshape": _moved(_reshaped),
    "Round": _elementwise(np.round, _only(_no_sizes)),
    "ScatterND": _scattered,
    "Slice": _moved(_sliced),
    "Split": _split,
    "Sqrt": _elementwise(np.sqrt, _no_sizes),
    "Squeeze": _moved(_squeezed),
    "Sub": _elementwise(np.subtract, lambda a, b: ratio.plus(a, ratio.negative(b))),
    "Sum": _variadic(np.add, ratio.plus),
    "Tile": _moved(_tiled),
    "Transpose": _moved(lambda node, known: known.transpose(node.attr("perm"))),
    "Unsqueeze": _moved(_unsqueezed),
    "Where": _where,
}

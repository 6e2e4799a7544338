"""Movement ops: every result element is an operand element, or a fill, at another index.

    (tensor, attrs) --> the same elements elsewhere

They move no memory by themselves: a consumer reads through them by index arithmetic, which is
the `index` of each; those that also choose between values say so in their `element`.
Axes, starts and sizes are resolved by the frontend: no negative axes, no clamping, no
`-1`. Bounds that depend on variables become guards, so that a slice never reads past
its operand whatever the variables are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import accumulate
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from semel.errors import GraphError
from semel.ir.dims import absolute, broadcast_parts, is_one_never
from semel.ir.expr import Dim, add, evaluate, is_nonnegative, is_positive, maximum, minimum
from semel.ir.graph import Node, Rule
from semel.ir.opdef import Indices, OpDef, register
from semel.ir.types import INT64, Shape, TensorType
from semel.kernel import values as kernel
from semel.kernel.values import Value
from semel.ops.attrs import (
    ConcatAttrs,
    ExpandAttrs,
    GatherAttrs,
    PadAttrs,
    PermuteAttrs,
    ReshapeAttrs,
    SliceAttrs,
    WindowAttrs,
)
from semel.ops.elements import Elements
from semel.ops.index_maps import Gathered, reshape_index
from semel.ops.numerics import Array
from semel.ops.shapes import (
    Requirement,
    at_most,
    check,
    check_axis,
    check_count,
    check_dims,
    check_same_dtype,
    check_same_rank,
    equal,
    same_dims,
)

Env = Mapping[str, int]


def _numbers(dims: Shape, env: Env) -> tuple[int, ...]:
    return tuple(evaluate(d, env) for d in dims)


def _text(dims: tuple[Any, ...]) -> str:
    return "(" + ", ".join(str(d) for d in dims) + ")"


def _check_per_axis(op: str, x: TensorType, **fields: tuple[Any, ...]) -> None:
    for name, values in fields.items():
        if len(values) != x.rank:
            raise GraphError(op, f"{name} needs one entry per axis of {x}, got {_text(values)}.")


# ---------------------------------------------------------------- reshape, permute, expand


def _require_reshape(attrs: ReshapeAttrs, x: TensorType) -> Iterator[Requirement]:
    new = TensorType(attrs.shape, x.dtype)
    yield equal(
        x.num_elements,
        new.num_elements,
        f"the number of elements must stay, got {x.num_elements} in {x} "
        f"and {new.num_elements} in {new}.",
    )


def _infer_reshape(attrs: ReshapeAttrs, *types: TensorType) -> TensorType:
    check_count("reshape", types, 1)
    check_dims("reshape", attrs.shape)
    check("reshape", attrs, *types)
    return TensorType(attrs.shape, types[0].dtype)


def _reference_reshape(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    return arrays[0].reshape(_numbers(node.attrs.shape, env))


def _index_reshape(node: Node, operand: int, at: Indices, gathered: Gathered) -> Indices:
    return reshape_index(at, node.type.shape, node.inputs[0].type.shape)


def _infer_permute(attrs: PermuteAttrs, *types: TensorType) -> TensorType:
    check_count("permute", types, 1)
    x = types[0]
    if sorted(attrs.axes) != list(range(x.rank)):
        raise GraphError(
            "permute", f"axes must be an order of {_text(tuple(range(x.rank)))} for {x}, "
            f"got {_text(attrs.axes)}."
        )  # fmt: skip
    return TensorType(tuple(x.shape[a] for a in attrs.axes), x.dtype)


def _reference_permute(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    return arrays[0].transpose(node.attrs.axes)


def _index_permute(node: Node, operand: int, at: Indices, gathered: Gathered) -> Indices:
    result: list[Dim] = [0] * len(at)
    for position, axis in enumerate(node.attrs.axes):
        result[axis] = at[position]
    return tuple(result)


def _require_expand(attrs: ExpandAttrs, x: TensorType) -> Iterator[Requirement]:
    for axis, (old, new) in enumerate(zip(x.shape, attrs.shape, strict=True)):
        # Only the literal 1 stretches: a symbolic dim never broadcasts by accident of value.
        if old != 1 and old != new:
            yield equal(
                old,
                new,
                f"dim {axis} must be 1 or stay, got {old} in {x} and {new} in the new shape.",
            )


def _infer_expand(attrs: ExpandAttrs, *types: TensorType) -> TensorType:
    check_count("expand", types, 1)
    _check_per_axis("expand", types[0], shape=attrs.shape)
    check_dims("expand", attrs.shape)
    check("expand", attrs, *types)
    return TensorType(attrs.shape, types[0].dtype)


def _reference_expand(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    return np.broadcast_to(arrays[0], _numbers(node.attrs.shape, env))


def _index_expand(node: Node, operand: int, at: Indices, gathered: Gathered) -> Indices:
    shape = node.inputs[0].type.shape
    return tuple(0 if d == 1 else i for i, d in zip(at, shape, strict=True))


def _require_stretch(attrs: ExpandAttrs, x: TensorType) -> Iterator[Requirement]:
    for axis, (old, new) in enumerate(zip(x.shape, attrs.shape, strict=True)):
        if old not in (1, new):
            text = f"dim {axis} must be 1 or {_others(old, new)} to broadcast, got {old} in {x}."
            yield Requirement(minimum(absolute(old - 1), absolute(old - new)), text)


def _others(old: Dim, new: Dim) -> str:
    """A size as those that it is the largest of, which somebody wrote, without one of them."""
    return " or ".join(str(part) for part in broadcast_parts(new) if part != old) or str(new)


def _infer_stretch(attrs: ExpandAttrs, *types: TensorType) -> TensorType:
    check_count("stretch", types, 1)
    _check_per_axis("stretch", types[0], shape=attrs.shape)
    check_dims("stretch", attrs.shape)
    check("stretch", attrs, *types)
    return TensorType(attrs.shape, types[0].dtype)


def _index_stretch(node: Node, operand: int, at: Indices, gathered: Gathered) -> Indices:
    """Along a dim that is 1 in this run, all elements are the first: a stride of 0."""
    rows = zip(at, node.inputs[0].type.shape, node.type.shape, strict=True)
    return tuple(i if old == new else i * _stride(old) for i, old, new in rows)


def _stride(dim: Dim) -> Dim:
    """0 if the dim is 1, else 1; of a dim of 0 nothing is read."""
    return 1 if is_one_never(dim) else minimum(maximum(dim - 1, 0), 1)


def _require_agree(attrs: ExpandAttrs, x: TensorType) -> Iterator[Requirement]:
    for axis, (old, new) in enumerate(zip(x.shape, attrs.shape, strict=True)):
        if old != new:
            yield equal(old, new, f"dim {axis} must be {new}, got {old} in {x}.")


def _infer_agree(attrs: ExpandAttrs, *types: TensorType) -> TensorType:
    check_count("agree", types, 1)
    _check_per_axis("agree", types[0], shape=attrs.shape)
    check_dims("agree", attrs.shape)
    check("agree", attrs, *types)
    return TensorType(attrs.shape, types[0].dtype)


def _reference_agree(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    return arrays[0]


def _index_agree(node: Node, operand: int, at: Indices, gathered: Gathered) -> Indices:
    shape = node.inputs[0].type.shape
    return tuple(0 if d == 1 else i for i, d in zip(at, shape, strict=True))


# ---------------------------------------------------------------- slice, pad, concat


def _require_slice(attrs: SliceAttrs, x: TensorType) -> Iterator[Requirement]:
    rows = zip(attrs.starts, attrs.sizes, attrs.steps, x.shape, strict=True)
    for axis, (start, size, step, dim) in enumerate(rows):
        last = add(start, (size - 1) * step)
        lowest, highest = (start, last) if step > 0 else (last, start)
        found = f"start={start}, size={size}, step={step}"
        text = f"indices of axis {axis} of {x} must lie in [0, {dim}), got {found}."
        if size == 0:
            continue
        yield at_most(0, lowest, text)
        yield at_most(highest, dim - 1, text)


def _infer_slice(attrs: SliceAttrs, *types: TensorType) -> TensorType:
    check_count("slice", types, 1)
    _check_per_axis("slice", types[0], starts=attrs.starts, sizes=attrs.sizes, steps=attrs.steps)
    if 0 in attrs.steps:
        raise GraphError("slice", f"steps must not be 0, got {_text(attrs.steps)}.")
    check_dims("slice", attrs.sizes)
    check("slice", attrs, *types)
    return TensorType(attrs.sizes, types[0].dtype)


def _reference_slice(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    starts, sizes = _numbers(node.attrs.starts, env), _numbers(node.attrs.sizes, env)
    rows = zip(starts, sizes, node.attrs.steps, strict=True)
    return arrays[0][tuple(_as_slice(*row) for row in rows)]


def _as_slice(start: int, size: int, step: int) -> slice:
    if size == 0:
        return slice(0, 0)
    stop = start + size * step
    return slice(start, None if stop < 0 else stop, step)


def _index_slice(node: Node, operand: int, at: Indices, gathered: Gathered) -> Indices:
    rows = zip(at, node.attrs.starts, node.attrs.steps, strict=True)
    return tuple(start + i * step for i, start, step in rows)


def _window_spans(attrs: WindowAttrs) -> list[int]:
    """How far the last element of a window lies behind its first."""
    return [(size - 1) * d for size, d in zip(attrs.sizes, attrs.dilations, strict=True)]


def _require_window(attrs: WindowAttrs, x: TensorType) -> Iterator[Requirement]:
    for axis, span in zip(attrs.axes, _window_spans(attrs), strict=True):
        size = x.shape[axis]
        yield at_most(span + 1, size, f"a window of {span + 1} must fit axis {axis} of {x}.")


def _infer_window(attrs: WindowAttrs, *types: TensorType) -> TensorType:
    check_count("window", types, 1)
    (x,) = types
    counts = {len(f) for f in (attrs.axes, attrs.sizes, attrs.strides, attrs.dilations)}
    if len(counts) != 1 or len(set(attrs.axes)) != len(attrs.axes):
        raise GraphError("window", f"needs one size, stride and dilation per axis, got {attrs}.")
    for axis in attrs.axes:
        check_axis("window", axis, x)
    if min((*attrs.sizes, *attrs.strides, *attrs.dilations), default=1) < 1:
        raise GraphError("window", f"sizes, strides and dilations must be >= 1, got {attrs}.")
    check("window", attrs, x)
    shape = list(x.shape)
    for axis, stride, span in zip(attrs.axes, attrs.strides, _window_spans(attrs), strict=True):
        shape[axis] = (shape[axis] - span - 1) // stride + 1
    return TensorType((*shape, *attrs.sizes), x.dtype)


def _reference_window(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    attrs: WindowAttrs = node.attrs
    extents = tuple(span + 1 for span in _window_spans(attrs))
    views = np.lib.stride_tricks.sliding_window_view(arrays[0], extents, attrs.axes)
    rank = arrays[0].ndim
    steps = [slice(None)] * views.ndim
    for position, axis in enumerate(attrs.axes):
        steps[axis] = slice(None, None, attrs.strides[position])
        steps[rank + position] = slice(None, None, attrs.dilations[position])
    return views[tuple(steps)]


def _index_window(node: Node, operand: int, at: Indices, gathered: Gathered) -> Indices:
    attrs: WindowAttrs = node.attrs
    rank = len(at) - len(attrs.axes)
    source = list(at[:rank])
    for position, axis in enumerate(attrs.axes):
        inside = at[rank + position] * attrs.dilations[position]
        source[axis] = source[axis] * attrs.strides[position] + inside
    return tuple(source)


def _require_pad(attrs: PadAttrs, x: TensorType, fill: TensorType) -> Iterator[Requirement]:
    for axis, sides in enumerate(zip(attrs.before, attrs.after, strict=True)):
        for amount in sides:
            yield at_most(0, amount, f"pads must be >= 0, got {amount} for axis {axis} of {x}.")


def _infer_pad(attrs: PadAttrs, *types: TensorType) -> TensorType:
    check_count("pad", types, 2)
    x, fill = types
    check_same_dtype("pad", types)
    if fill.rank:
        raise GraphError("pad", f"fill must have shape (), got {fill}.")
    _check_per_axis("pad", x, before=attrs.before, after=attrs.after)
    check("pad", attrs, *types)
    rows = zip(attrs.before, x.shape, attrs.after, strict=True)
    return TensorType(tuple(add(add(b, d), a) for b, d, a in rows), x.dtype)


def _reference_pad(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    x, fill = arrays
    before = _numbers(node.attrs.before, env)
    result = np.full(_numbers(node.type.shape, env), fill, x.dtype)
    result[tuple(slice(b, b + n) for b, n in zip(before, x.shape, strict=True))] = x
    return result


def _index_pad(node: Node, operand: int, at: Indices, gathered: Gathered) -> Indices:
    if operand == 1:
        return ()
    return tuple(i - b for i, b in zip(at, node.attrs.before, strict=True))


def _element_pad(elements: Elements, node: Node, at: Indices, guard: Value | None) -> Value:
    inside: Value | None = None
    source = node.inputs[0]
    for i, before, after, size in zip(
        at, node.attrs.before, node.attrs.after, source.type.shape, strict=True
    ):
        tests = []
        if before != 0:
            tests.append(kernel.index(i) >= kernel.index(before))
        if after != 0:
            tests.append(kernel.index(i) < kernel.index(before + size))
        for test in tests:
            inside = test if inside is None else inside & test
    index = elements.moved(node, 0, at, guard)
    if inside is None:
        return elements(source, index, guard)
    value = elements(source, index, _both(guard, inside))
    return kernel.select(inside, value, elements(node.inputs[1], (), guard))


def _both(a: Value | None, b: Value) -> Value:
    return b if a is None else a & b


def _require_concat(attrs: ConcatAttrs, *types: TensorType) -> Iterator[Requirement]:
    for other in types[1:]:
        yield from same_dims(types[0], other, but=attrs.axis)


def _infer_concat(attrs: ConcatAttrs, *types: TensorType) -> TensorType:
    if not types:
        raise GraphError("concat", "needs at least one operand, got none.")
    check_same_dtype("concat", types)
    check_same_rank("concat", types)
    check_axis("concat", attrs.axis, types[0])
    check("concat", attrs, *types)
    total: Dim = 0
    for x in types:
        total = add(total, x.shape[attrs.axis])
    shape = (*types[0].shape[: attrs.axis], total, *types[0].shape[attrs.axis + 1 :])
    return TensorType(shape, types[0].dtype)


def _reference_concat(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    return np.concatenate(arrays, axis=node.attrs.axis)


#: Parts of a concatenation that have a loop nest each in its kernel; more are joined in steps.
MAX_PARTS = 128
#: More parts than this are joined before they are joined again.
MANY_PARTS = 32

#: By what nodes share: there is one question for every operand.
_offsets: WeakKeyDictionary[Rule, Indices] = WeakKeyDictionary()


def _parts_concat(node: Node) -> tuple[int, Indices]:
    axis: int = node.attrs.axis
    found = _offsets.get(node.rule)
    if found is None:
        sizes = [operand.type.shape[axis] for operand in node.inputs]
        found = _offsets[node.rule] = (0, *accumulate(sizes[:-1], add))
    return axis, found


def _index_concat(node: Node, operand: int, at: Indices, gathered: Gathered) -> Indices:
    axis, offsets = _parts_concat(node)
    return tuple(i - offsets[operand] if d == axis else i for d, i in enumerate(at))


def _element_concat(elements: Elements, node: Node, at: Indices, guard: Value | None) -> Value:
    axis, offsets = _parts_concat(node)
    position = kernel.index(at[axis])
    result: Value | None = None
    for k, (operand, offset) in enumerate(zip(node.inputs, offsets, strict=True)):
        end = offset + operand.type.shape[axis]
        if is_nonnegative(at[axis] - end) or is_positive(offset - at[axis]):
            continue
        if is_nonnegative(at[axis] - offset) and is_positive(end - at[axis]):
            return elements(operand, elements.moved(node, k, at, guard), guard)
        starts = position >= kernel.index(offset)
        inside = starts & (position < kernel.index(end))
        value = elements(operand, elements.moved(node, k, at, guard), _both(guard, inside))
        result = value if result is None else kernel.select(starts, value, result)
    if result is None:  # nothing of the concatenation can be asked for here
        return kernel.const(node.type.dtype, 0)
    return result


# ---------------------------------------------------------------- gather, take_along


def _check_indices(op: str, attrs: GatherAttrs, types: tuple[TensorType, ...]) -> None:
    check_count(op, types, 2)
    check_axis(op, attrs.axis, types[0])
    if types[1].dtype != INT64:
        raise GraphError(op, f"indices must be int64, got {types[1]}.", hint="Use check_index.")


def _infer_gather(attrs: GatherAttrs, *types: TensorType) -> TensorType:
    _check_indices("gather", attrs, types)
    x, indices = types
    shape = (*x.shape[: attrs.axis], *indices.shape, *x.shape[attrs.axis + 1 :])
    return TensorType(shape, x.dtype)


def _reference_gather(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    return np.take(arrays[0], arrays[1], axis=node.attrs.axis)


def _index_gather(node: Node, operand: int, at: Indices, gathered: Gathered) -> Indices:
    axis, rank = node.attrs.axis, node.inputs[1].type.rank
    inner = at[axis : axis + rank]
    if operand == 1:
        return inner
    return (*at[:axis], gathered(node, inner), *at[axis + rank :])


def _require_take_along(
    attrs: GatherAttrs, x: TensorType, indices: TensorType
) -> Iterator[Requirement]:
    for axis, (n, k) in enumerate(zip(x.shape, indices.shape, strict=True)):
        if axis != attrs.axis:
            yield at_most(
                k, n, f"dim {axis} of indices must not exceed x's, got {k} in {indices} "
                f"and {n} in {x}."
            )  # fmt: skip


def _infer_take_along(attrs: GatherAttrs, *types: TensorType) -> TensorType:
    _check_indices("take_along", attrs, types)
    check_same_rank("take_along", types)
    check("take_along", attrs, *types)
    return TensorType(types[1].shape, types[0].dtype)


def _reference_take_along(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    x, indices = arrays
    axis = node.attrs.axis
    rows = tuple(slice(None) if i == axis else slice(0, n) for i, n in enumerate(indices.shape))
    return np.take_along_axis(x[rows], indices, axis=axis)


def _index_take_along(node: Node, operand: int, at: Indices, gathered: Gathered) -> Indices:
    if operand == 1:
        return at
    chosen = gathered(node, at)
    return tuple(chosen if d == node.attrs.axis else i for d, i in enumerate(at))


_op = partial(OpDef, kind="movement", cost=0, is_exact=True)
#: Those that are index arithmetic alone; the others choose by value or by comparing indices.
_view = partial(_op, is_view=True)
_choice = partial(_op, cost=2)

for _each in (
    _view(
        "reshape",
        attrs=ReshapeAttrs,
        infer=_infer_reshape,
        reference=_reference_reshape,
        require=_require_reshape,
        index=_index_reshape,
        repeats=True,
        keeps_order=True,
    ),
    _view(
        "permute",
        attrs=PermuteAttrs,
        infer=_infer_permute,
        reference=_reference_permute,
        index=_index_permute,
        repeats=True,
    ),
    _view(
        "expand",
        attrs=ExpandAttrs,
        infer=_infer_expand,
        reference=_reference_expand,
        require=_require_expand,
        index=_index_expand,
        repeats=True,
    ),
    _view(
        "stretch",
        attrs=ExpandAttrs,
        infer=_infer_stretch,
        reference=_reference_expand,
        require=_require_stretch,
        index=_index_stretch,
    ),
    _view(
        "agree",
        attrs=ExpandAttrs,
        infer=_infer_agree,
        reference=_reference_agree,
        require=_require_agree,
        index=_index_agree,
        keeps_order=True,
    ),
    _view(
        "slice",
        attrs=SliceAttrs,
        infer=_infer_slice,
        reference=_reference_slice,
        require=_require_slice,
        index=_index_slice,
    ),
    _view(
        "window",
        attrs=WindowAttrs,
        infer=_infer_window,
        reference=_reference_window,
        require=_require_window,
        index=_index_window,
        slides=True,
    ),
    _choice(
        "pad",
        attrs=PadAttrs,
        infer=_infer_pad,
        reference=_reference_pad,
        require=_require_pad,
        index=_index_pad,
        element=_element_pad,
    ),
    _choice(
        "concat",
        attrs=ConcatAttrs,
        infer=_infer_concat,
        reference=_reference_concat,
        require=_require_concat,
        index=_index_concat,
        element=_element_concat,
        parts=_parts_concat,
    ),
    _choice(
        "gather",
        attrs=GatherAttrs,
        infer=_infer_gather,
        reference=_reference_gather,
        index=_index_gather,
        gathers="rows",
    ),
    _choice(
        "take_along",
        attrs=GatherAttrs,
        infer=_infer_take_along,
        reference=_reference_take_along,
        require=_require_take_along,
        index=_index_take_along,
        gathers="elements",
    ),
):
    register(_each)

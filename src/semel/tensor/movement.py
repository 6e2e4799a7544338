"""Where elements stand: no arithmetic, no copies.

    reshape permute expand pad slice flip concat stack repeat tile roll ...

All of these become the ops reshape, permute, expand, slice, pad and concat, which the
compiler turns into index arithmetic of whoever reads the result. Dims may be symbolic: one that
is literally 1 stretches in a broadcast when the graph is made (expand), one that may be 1 in the
runs where it is (stretch), and dims that must be equal are guarded (agree).

One idea: the family of functions that only move elements, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from semel.errors import GraphError
from semel.ir import questions
from semel.ir.dims import broadcast_dims, equal, is_one_never, may_stretch_to
from semel.ir.expr import (
    Dim,
    floordiv,
    maximum,
    mod,
    product,
    sum_dims,
    upper_bound,
)
from semel.ir.graph import make_node
from semel.ir.types import Shape, as_shape
from semel.ops.attrs import (
    ConcatAttrs,
    ExpandAttrs,
    GatherAttrs,
    PermuteAttrs,
    ReshapeAttrs,
    ScalarAttrs,
    SliceAttrs,
)
from semel.ops.filled import repeated
from semel.tensor.handle import (
    Array,
    Dims,
    TensorLike,
    apply,
    constant,
    convert,
    known_value,
    lift,
    normalize_axes,
    normalize_axis,
    promote,
    scalar,
    tensor_class,
    weak_kind,
    weak_scalar,
    whole_dims,
    whole_numbers,
    wrap,
)
from semel.tensor.origin import call_origin
from semel.tensor.spelling import AXES, AXIS, DIM, NEEDED, same_as, spelled

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor


# ------------------------------------------------------------ shape


def reshape(x: TensorLike, shape: Dims = (), *more: Dims, copy: bool | None = None) -> Tensor:
    """The same elements in another shape; one dim may be -1.

    Nothing is copied that need not be, whatever `copy` says: a tensor never changes.

    >>> Tensor([[1, 2, 3], [4, 5, 6]]).reshape(3, -1).tolist()
    [[1, 2], [3, 4], [5, 6]]
    """
    x = lift(x)
    wanted = _resolve(_flat((shape, *more)), x.size, x.shape)
    if wanted == x.shape:
        return x
    return apply("reshape", x, attrs=ReshapeAttrs(wanted))


@spelled(start_dim="start", end_dim="end")
def flatten(
    x: TensorLike,
    start: int = 0,
    end: int = -1,
    *,
    start_dim: int = same_as("start"),
    end_dim: int = same_as("end"),
) -> Tensor:
    """Merge the axes from `start` to `end`, both included."""
    x = lift(x)
    if x.ndim == 0:
        return x.reshape(1)
    first = normalize_axis(start, x.ndim, "flatten")
    last = normalize_axis(end, x.ndim, "flatten")
    if last < first:
        raise GraphError("flatten", f"start must not follow end, got {start} and {end}.")
    merged = product(x.shape[first : last + 1])
    return x.reshape(*x.shape[:first], merged, *x.shape[last + 1 :])


def ravel(x: TensorLike) -> Tensor:
    """All elements along one axis."""
    return lift(x).flatten()


@spelled(dim="axis")
def squeeze(
    x: TensorLike,
    axis: int | Sequence[int] | None = None,
    *,
    dim: int | Sequence[int] | None = AXIS,
) -> Tensor:
    """Drop axes of size 1: those named, or all of them.

    An axis with a symbolic size is dropped only if it is named: how many axes a result has cannot
    change from run to run. A function that `semel.jit` traces drops those that are 1 in its call.
    """
    x = lift(x)
    if axis is None:
        return x.reshape(tuple(d for d in x.shape if not _is_one(d)))
    axes = normalize_axes(axis, x.ndim, "squeeze")
    if any(is_one_never(x.shape[i]) for i in axes):
        raise GraphError("squeeze", f"axes must have size 1, got axes={axes} of {x.type}.")
    unit = agreeing(x, tuple(1 if i in axes else d for i, d in enumerate(x.shape)))
    return unit.reshape(tuple(d for i, d in enumerate(x.shape) if i not in axes))


def _is_one(dim: Dim) -> bool:
    """Whether a size is 1; a symbolic one, in the call that is traced."""
    return dim == 1 or bool(not isinstance(dim, int) and questions.compare("eq", dim, 1))


@spelled(needs=2, dim="axis")
def unsqueeze(
    x: TensorLike, axis: int | Sequence[int] = DIM, *, dim: int | Sequence[int] = AXIS
) -> Tensor:
    """Insert axes of size 1; `axis` counts in the result."""
    x = lift(x)
    given = whole_numbers(axis, "axis", "unsqueeze")
    ndim = x.ndim + len(given)
    axes = normalize_axes(given, ndim, "unsqueeze")
    rest = iter(x.shape)
    return x.reshape(tuple(1 if i in axes else next(rest) for i in range(ndim)))


@spelled(needs=3, dim="axis", sizes="shape")
def unflatten(
    x: TensorLike,
    axis: int = DIM,
    shape: Sequence[Dim] = same_as("sizes"),
    *,
    dim: int = AXIS,
    sizes: Sequence[Dim] = same_as("shape"),
) -> Tensor:
    """Split one axis into several; one of them may be -1.

    >>> semel.zeros(6, 2).unflatten(0, (2, -1)).shape
    (2, 3, 2)
    """
    x = lift(x)
    i = normalize_axis(axis, x.ndim, "unflatten")
    dims = _resolve(tuple(shape), x.shape[i], (x.shape[i],))
    return x.reshape(*x.shape[:i], *dims, *x.shape[i + 1 :])


# ------------------------------------------------------------ order of axes


@spelled(dims="axes")
def permute(
    x: TensorLike,
    axes: int | Sequence[int] = (),
    *more: int,
    dims: Sequence[int] = AXES,
) -> Tensor:
    """Result axis i is axis `axes[i]` of this tensor: `x.permute(2, 0, 1)`.

    >>> semel.zeros(2, 3, 4).permute(2, 0, 1).shape
    (4, 2, 3)
    """
    x = lift(x)
    places = normalize_axes(_flat((axes, *more)), x.ndim, "permute")
    if len(places) != x.ndim:
        raise GraphError("permute", f"needs {x.ndim} axes for {x.type}, got {places}.")
    if places == tuple(range(x.ndim)):
        return x
    return apply("permute", x, attrs=PermuteAttrs(places))


def transpose(
    x: TensorLike, *order: int | Sequence[int] | None, axes: Sequence[int] | None = None
) -> Tensor:
    """NumPy's transpose (no axes: reverse them); two axes of a larger tensor swap."""
    x = lift(x)
    if len(order) == 2 and x.ndim != 2:
        return x.swapaxes(*_flat(order))
    if axes is None and (not order or order[0] is None):
        axes, order = tuple(reversed(range(x.ndim))), ()
    return x.permute(given_dims(order, axes, "transpose"))


@spelled(needs=3, dim0="axis1", dim1="axis2")
def swapaxes(
    x: TensorLike,
    axis1: int = same_as("dim0"),
    axis2: int = same_as("dim1"),
    *,
    dim0: int = same_as("axis1"),
    dim1: int = same_as("axis2"),
) -> Tensor:
    """Two axes in each other's place."""
    x = lift(x)
    i, j = (normalize_axis(axis, x.ndim, "swapaxes") for axis in (axis1, axis2))
    order = list(range(x.ndim))
    order[i], order[j] = j, i
    return x.permute(order)


def moveaxis(
    x: TensorLike, source: int | Sequence[int], destination: int | Sequence[int]
) -> Tensor:
    """Move axes to new places; the others keep their order."""
    x = lift(x)
    sources = normalize_axes(source, x.ndim, "moveaxis")
    targets = normalize_axes(destination, x.ndim, "moveaxis")
    if len(sources) != len(targets):
        raise GraphError("moveaxis", f"needs as many targets as sources: {sources}, {targets}.")
    order = [i for i in range(x.ndim) if i not in sources]
    for target, origin in sorted(zip(targets, sources, strict=True)):
        order.insert(target, origin)
    return x.permute(order)


def matrix_transpose(x: TensorLike) -> Tensor:
    """The last two axes swapped."""
    x = lift(x)
    if x.ndim < 2:
        raise GraphError("mT", f"needs at least 2 axes, got {x.type}.")
    return x.swapaxes(-1, -2)


# ------------------------------------------------------------ broadcasting


def broadcast_to(x: TensorLike, shape: Dims, *more: Dims) -> Tensor:
    """Stretch axes of size 1, and add axes in front, to reach `shape`.

    Axes that may have size 1 stretch in the runs where they have it.

    >>> Tensor([1, 2]).broadcast_to(2, 2).tolist()
    [[1, 2], [1, 2]]
    """
    return reach(lift(x), as_shape(_flat((shape, *more)), "broadcast_to"), "broadcast_to")


def reach(x: Tensor, dims: Shape, where: str) -> Tensor:
    """`broadcast_to`, with errors that speak of `where`."""
    if len(dims) < x.ndim:
        raise GraphError(where, f"{x.type} has more axes than shape {show(dims)}.")
    attrs = x._node.attrs
    if x._node.op.is_literal and not x.shape and all(type(dim) is int for dim in dims):
        return apply("scalar", attrs=ScalarAttrs(attrs.value, attrs.dtype, dims))
    aligned = x.reshape((1,) * (len(dims) - x.ndim) + x.shape)
    for have, want in zip(aligned.shape, dims, strict=True):
        if not may_stretch(have, want):
            raise GraphError(where, f"only dims of size 1 broadcast, got {x.type} to {show(dims)}.")
    literal = tuple([w if d == 1 else d for d, w in zip(aligned.shape, dims, strict=True)])
    if literal != aligned.shape:
        aligned = apply("expand", aligned, attrs=ExpandAttrs(literal))
    wide = _stretched(literal, dims)
    if wide != literal:
        aligned = apply("stretch", aligned, attrs=ExpandAttrs(wide))
    return agreeing(aligned, dims)


def _stretched(own: Shape, wanted: Shape) -> Shape:
    """The dims with those that may stretch in a run as the wanted ones are."""
    pairs = zip(own, wanted, strict=True)
    return tuple([w if d != w and may_stretch_to(d, w) else d for d, w in pairs])


def of_shape(x: Tensor, shape: Shape, where: str, name: str) -> Tensor:
    """This tensor, whose shape must be `shape`: nothing stretches or is read in another way.

    Dims that may be equal are left for a guard.
    """
    if x.shape == shape:
        return x
    if not may_agree(x.shape, shape):
        raise GraphError(where, f"{name} must have shape {show(shape)}, got {x.type}.")
    return agreeing(x, shape)


def may_agree(a: Shape, b: Shape) -> bool:
    """Whether two shapes are the same in some run."""
    return len(a) == len(b) and all(m == n or equal(m, n) != 0 for m, n in zip(a, b, strict=True))


def may_stretch(dim: Dim, wanted: Dim) -> bool:
    """Whether a dim is 1 or the wanted one in some run."""
    return not is_one_never(dim) or equal(dim, wanted) != 0


def agreeing(x: Tensor, shape: Shape) -> Tensor:
    """This tensor in a shape that it has in every run that goes well: a guard for each dim."""
    return x if x.shape == shape else apply("agree", x, attrs=ExpandAttrs(shape))


def along(x: Tensor, axis: int, ndim: int) -> Tensor:
    """A vector as the axis `axis` of `ndim`; the others are 1."""
    return x.reshape((1,) * axis + (x.shape[0],) + (1,) * (ndim - axis - 1))


def expand(x: TensorLike, *shape: Dims) -> Tensor:
    """`broadcast_to`, where -1 keeps an axis as it is."""
    x = lift(x)
    wanted = _flat(shape)
    lead = len(wanted) - x.ndim
    kept = (1,) * max(lead, 0) + x.shape
    if lead < 0:
        raise GraphError("expand", f"{x.type} has more axes than shape {show(wanted)}.")
    pairs = zip(wanted, kept, strict=True)
    return x.broadcast_to(tuple(k if isinstance(w, int) and w == -1 else w for w, k in pairs))


def broadcast(tensors: Sequence[Tensor], where: str) -> list[Tensor]:
    """The tensors in one shape; dims that differ symbolically are left for a guard."""
    if all(t.shape == tensors[0].shape for t in tensors):
        return list(tensors)
    shape = broadcast_shapes([t.shape for t in tensors], where)
    return [t if t.shape == shape else stretch(t, shape) for t in tensors]


def stretch(x: Tensor, shape: Shape) -> Tensor:
    """`broadcast_to` without checks: dims that may be 1 stretch, others are left for a guard."""
    lead = len(shape) - x.ndim
    if lead == len(shape):
        return _repeat(x, shape)
    own, node = (1,) * lead + x.shape, x._node
    dims = tuple([w if d == 1 else d for d, w in zip(own, shape, strict=True)])
    line, function = call_origin()
    if lead:
        node = make_node("reshape", (node,), ReshapeAttrs(own), origin=line, made_by=function)
    if dims != own:
        node = make_node("expand", (node,), ExpandAttrs(dims), origin=line, made_by=function)
    wide = dims if dims == shape else _stretched(dims, shape)
    if wide != dims:
        node = make_node("stretch", (node,), ExpandAttrs(wide), origin=line, made_by=function)
    return x if node is x._node else wrap(node)


def _repeat(x: Tensor, shape: Shape) -> Tensor:
    """A 0-d tensor for all elements of a shape: without an origin, the op that uses it has one."""
    attrs = x._node.attrs
    if x._node.op.is_literal and all(type(dim) is int for dim in shape):
        return scalar(attrs.value, attrs.dtype, shape)
    return wrap(repeated(x._node, shape))


# ------------------------------------------------------------ cutting


def slice_axes(
    x: Tensor, starts: Sequence[Dim], sizes: Sequence[Dim], steps: Sequence[int]
) -> Tensor:
    # An empty slice may start anywhere; 0 is always legal.
    """Elements starts, starts + steps, ... of every axis."""
    starts = tuple(0 if n == 0 else s for s, n in zip(starts, sizes, strict=True))
    whole = all(s == 0 for s in starts) and all(s == 1 for s in steps)
    if whole and tuple(sizes) == x.shape:
        return x
    return apply("slice", x, attrs=SliceAttrs(starts, tuple(sizes), tuple(steps)))


@spelled(needs=4, dim="axis", length="size")
def narrow(
    x: TensorLike,
    axis: int = DIM,
    start: Dim = NEEDED,
    size: Dim = same_as("length"),
    *,
    dim: int = AXIS,
    length: Dim = same_as("size"),
) -> Tensor:
    """`size` elements of one axis, from `start` on."""
    x = lift(x)
    i = normalize_axis(axis, x.ndim, "narrow")
    if is_negative(start) or is_negative(size):
        raise GraphError("narrow", f"start and size must be >= 0, got {start} and {size}.")
    if isinstance(past := start + size - x.shape[i], int) and past > 0:
        raise GraphError("narrow", f"[{start}, {start + size}) must lie in axis {i} of {x.type}.")
    starts: list[Dim] = [0] * x.ndim
    sizes = list(x.shape)
    starts[i], sizes[i] = start, size
    return slice_axes(x, starts, sizes, (1,) * x.ndim)


@spelled(dim="axis", dims="axis")
def flip(
    x: TensorLike,
    axis: int | Sequence[int] | None = None,
    *,
    dim: int | Sequence[int] | None = AXIS,
    dims: int | Sequence[int] | None = AXIS,
) -> Tensor:
    """Reverse the order along the axes; all of them if None."""
    x = lift(x)
    axes = normalize_axes(axis, x.ndim, "flip")
    starts = tuple(d - 1 if i in axes else 0 for i, d in enumerate(x.shape))
    steps = tuple(-1 if i in axes else 1 for i in range(x.ndim))
    return slice_axes(x, starts, x.shape, steps)


# ------------------------------------------------------------ joining and repeating


def fill_value(x: Tensor, value: TensorLike, where: str) -> Tensor:
    """A scalar of this tensor's dtype."""
    weak = weak_kind(value)
    fill = weak_scalar(value, x.dtype) if weak else convert(lift(value), x.dtype)
    if fill.shape != ():
        raise GraphError(where, f"the fill value must be one number, got {fill.type}.")
    return fill


def take_tensors(tensors: Any, where: str) -> list[TensorLike]:
    """Several tensors, or the rows of one."""
    if not isinstance(tensors, Iterable):
        found = type(tensors).__name__
        raise GraphError(where, f"needs a list of tensors, got {found}.")
    items: list[TensorLike] = list(tensors)
    if not items:
        raise GraphError(where, "needs at least one tensor.")
    return items


@spelled(dim="axis")
def concat(
    tensors: Sequence[TensorLike], axis: int | None = 0, *, dim: int | None = AXIS
) -> Tensor:
    """The tensors one after another along an existing axis, in their common dtype.

    Without axis they are flattened first.
    """
    items = promote(take_tensors(tensors, "concat"))
    if axis is None:
        items, axis = [item.flatten() for item in items], 0
    if items[0].ndim == 0:
        raise GraphError("concat", "needs tensors with at least 1 axis, got a 0-d tensor.")
    attrs = ConcatAttrs(normalize_axis(axis, items[0].ndim, "concat"))
    return items[0] if len(items) == 1 else apply("concat", *items, attrs=attrs)


@spelled(dim="axis")
def stack(tensors: Sequence[TensorLike], axis: int = 0, *, dim: int = AXIS) -> Tensor:
    """The tensors one after another along a new axis."""
    items = [lift(t) for t in take_tensors(tensors, "stack")]
    if len({t.ndim for t in items}) > 1:
        raise GraphError(
            "stack", f"shapes must agree, got {', '.join(str(t.type) for t in items)}."
        )
    i = normalize_axis(axis, items[0].ndim + 1, "stack")
    return concat([t.unsqueeze(i) for t in items], i)


@spelled(dim="axis")
def repeat(
    x: TensorLike, repeats: TensorLike, axis: int | None = None, *, dim: int | None = AXIS
) -> Tensor:
    """Each element `repeats` times in a row, as np.repeat; without axis, of the flat tensor.

    `repeats` may be one number for each element of the axis, known when the graph is made.

    >>> Tensor([1, 2]).repeat(2).tolist()
    [1, 1, 2, 2]
    """
    x = lift(x)
    if axis is None:
        return x.flatten().repeat(repeats, 0)
    i = normalize_axis(axis, x.ndim, "repeat")
    if isinstance(repeats, (tensor_class(), np.ndarray, list, tuple)):
        return _repeat_each(x, repeats, i)
    (count,) = as_shape((repeats,), "repeat")
    wide = x.unsqueeze(i + 1)
    shape = (*wide.shape[: i + 1], count, *wide.shape[i + 2 :])
    return wide.broadcast_to(shape).flatten(i, i + 1)


def _repeat_each(x: Tensor, repeats: Any, axis: int) -> Tensor:
    """`repeat` by a number for each slice of an axis."""
    counts, size = _known_counts(lift(repeats)), x.shape[axis]
    if not isinstance(size, int) or counts.size not in (1, size):
        raise GraphError(
            "repeat", f"needs one number or one for each of {size}, got {counts.size} for {x.type}."
        )
    rows = np.repeat(np.arange(size), counts.reshape(-1))
    return apply("gather", x, constant(rows), attrs=GatherAttrs(axis))


def _known_counts(x: Tensor) -> Array:
    known, attrs = known_value(x), x._node.attrs
    if known is not None:
        counts = known.array
    elif x._node.op.is_literal and not x.node.rule.is_symbolic:
        counts = np.full(attrs.shape, attrs.value, x.dtype.numpy)
    else:
        raise GraphError("repeat", f"repeats must be known when the graph is made, got {x.type}.")
    if not x.dtype.is_integer or x.ndim > 1 or (counts < 0).any():
        raise GraphError("repeat", f"repeats must be integers >= 0 on one axis, got {x.type}.")
    return counts


def tile(x: TensorLike, repetitions: Dims, *more: Dims) -> Tensor:
    """The whole tensor repeated along each axis, as np.tile."""
    x = lift(x)
    counts = as_shape(_flat((repetitions, *more)), "tile")
    ndim = max(len(counts), x.ndim)
    counts = (1,) * (ndim - len(counts)) + counts
    shape = (1,) * (ndim - x.ndim) + x.shape
    pairs = x.reshape(tuple(d for s in shape for d in (1, s)))
    both = list(zip(counts, shape, strict=True))
    wide = pairs.broadcast_to(tuple(d for c, s in both for d in (c, s)))
    return wide.reshape(tuple(c * s for c, s in both))


@spelled(needs=2, shifts="shift", dim="axis", dims="axis")
def roll(
    x: TensorLike,
    shift: Dim | Sequence[Dim] = same_as("shifts"),
    axis: int | Sequence[int] | None = None,
    *,
    shifts: Dim | Sequence[Dim] = same_as("shift"),
    dim: int | Sequence[int] | None = AXIS,
    dims: int | Sequence[int] | None = AXIS,
) -> Tensor:
    """Rotate elements along axes; those pushed out come in on the other side.

    >>> Tensor([1, 2, 3]).roll(1).tolist()
    [3, 1, 2]
    """
    x = lift(x)
    is_one = not isinstance(shift, (Sequence, np.ndarray))
    shifts = whole_dims(shift, "shift", "roll")
    if axis is None:
        flat: Tensor = x.flatten()
        return flat.roll(sum_dims(shifts), 0).reshape(x.shape)
    axes = whole_numbers(axis, "axis", "roll")
    if is_one:
        shifts = shifts * len(axes)
    if len(shifts) != len(axes):
        raise GraphError("roll", f"needs one shift per axis, got {shifts} for axes {axes}.")
    result = x
    for amount, one in zip(shifts, axes, strict=True):
        result = _roll(result, amount, normalize_axis(one, x.ndim, "roll"))
    return result


def _roll(x: Tensor, shift: Dim, axis: int) -> Tensor:
    length = x.shape[axis]
    if length == 0 or shift == 0:
        return x
    cut = mod(length - shift, length) if isinstance(length, int) else _cut(shift, length)
    if cut == 0:
        return x
    head, tail = x.narrow(axis, 0, cut), x.narrow(axis, cut, length - cut)
    return concat([tail, head], axis)


def broadcast_shapes(shapes: Sequence[Shape], where: str) -> Shape:
    """The common shape by NumPy's rules, which decide about symbolic dims when their values do."""
    longest = max(shapes, key=len)
    if all(longest[len(longest) - len(s) :] == s for s in shapes):
        return longest
    ndim = len(longest)
    padded = [(1,) * (ndim - len(s)) + s for s in shapes]
    result: list[Dim] = []
    for dims in zip(*padded, strict=True):
        wide = [d for d in dims if d != 1]
        sizes = {d for d in wide if isinstance(d, int)}
        if len(sizes) > 1:
            raise GraphError(
                where, f"shapes must broadcast, got {' and '.join(show(s) for s in shapes)}."
            )
        result.append(wide[0] if len(set(wide)) == 1 else broadcast_dims(wide))
    return tuple(result)


def show(shape: Sequence[Any]) -> str:
    """A shape for messages: symbolic dims by name."""
    return f"[{','.join(str(d) for d in shape)}]"


def given_dims(dims: tuple[Any, ...], named: Any, where: str) -> tuple[Any, ...]:
    """`f(2, 3)`, `f((2, 3))` and `f(shape=(2, 3))` are the same call."""
    if named is None:
        return _flat(dims)
    if dims:
        raise GraphError(where, f"got {show(_flat(dims))} and, by name, {named}: give one of them.")
    return tuple(named) if isinstance(named, (tuple, list)) else (named,)


def _flat(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """`f(2, 3)` and `f((2, 3))` are the same call."""
    if len(values) == 1 and isinstance(values[0], (tuple, list)):
        return tuple(values[0])
    return values


def _resolve(dims: tuple[Any, ...], size: Dim, old: Shape) -> Shape:
    """The dims with -1 worked out so that their product is `size`."""
    unknown = [i for i, d in enumerate(dims) if isinstance(d, (int, np.integer)) and d == -1]
    if not unknown:
        return as_shape(dims, "reshape")
    rest = as_shape([d for i, d in enumerate(dims) if i not in unknown], "reshape")
    known = product(rest)
    exact = len(unknown) == 1 and known != 0
    if not exact or (isinstance(size, int) and isinstance(known, int) and size % known):
        raise GraphError("reshape", f"cannot turn {show(old)} into {show(dims)}.")
    values = list(rest)
    values.insert(unknown[0], floordiv(size, known))
    return tuple(values)


def static_dim(dim: Dim, where: str, tensor: Tensor, what: str = "an axis of fixed size") -> int:
    """A dim that must be a number."""
    if not isinstance(dim, int):
        raise GraphError(where, f"needs {what}, got {dim} of {tensor.type}.")
    return dim


def is_negative(dim: Dim) -> bool:
    """Whether dim < 0 is certain."""
    high = upper_bound(dim)
    return high is not None and high < 0


def _cut(shift: Dim, length: Dim) -> Dim:
    """Where to cut a symbolic axis, once the shift is brought into [0, length)."""
    some = maximum(length, 1)
    return mod(length - mod(shift, some), some)


# Second names.
cat = concat
concatenate = concat
expand_dims = unsqueeze
movedim = moveaxis
permute_dims = permute
repeat_interleave = repeat
swapdims = swapaxes

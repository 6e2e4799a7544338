"""Work on dequantised numbers done on the bytes, and quantised again without a detour.

    matmul(dequantise a, dequantise b)  -->  dequantise(matmul of the bytes in 32 bits)
    quantise(dequantise(acc) + bias)    -->  saturate(rint(acc * factor + bias') + zero)

Quantised models arrive as float ops between `(q - zero) * scale` and `saturate(rint(x / scale) +
zero)`. Scales that do not depend on k leave a product as one factor, and what remains is a sum of
products of integers, which `semel.passes.quantise` reads as bytes: it is exact, and the
float sum it stands for was rounded at every step. Maxima and views of dequantised numbers are
those of the bytes. What is quantised with the scale it was dequantised with is itself. And a
division by the scale of a result that is made of scaled integers becomes part of their factors.

Results differ from those of the float ops by less than these round: a quantised number may be the
next one where the exact one lies halfway. It runs first, while the bytes are there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from semel.ir.expr import product, upper_bound
from semel.ir.graph import Graph, Node, make_node, rewrite
from semel.ir.types import FLOAT32, INT8, INT32, UINT8, DType, Shape
from semel.ops.attrs import CastAttrs, ConcatAttrs, PadAttrs, ReduceAttrs, ScalarAttrs, SliceAttrs
from semel.ops.filled import filled
from semel.ops.stored import KNOWN
from semel.passes.patterns import expand_to, reshape_to
from semel.passes.quantise import is_constant_along

_BYTES = (INT8, UINT8)
#: Products of two differences of bytes that 32 bits can add up: 2**31 / 255**2.
MOST_PRODUCTS = 33_000
#: Scales between these multiply and divide a byte without leaving the normal range.
_LEAST_SCALE, _LARGEST_SCALE = 1e-30, 1e30
#: Elements up to which it is looked whether they are all the same.
_FEW = 1 << 16


def compute_on_bytes(graph: Graph) -> Graph:
    """Products, maxima and requantised views of dequantised bytes, on the bytes themselves."""
    if not any(_is_widening(node) for node in graph.nodes):
        return graph
    known = _Known()
    graph = rewrite(graph, _Dequantised(known).rule)
    return rewrite(graph, lambda node: _quantised(node, known))


def _is_widening(node: Node) -> bool:
    is_cast = node.op.name == "cast" and node.attrs.dtype == FLOAT32
    return is_cast and node.inputs[0].type.dtype in _BYTES


# ------------------------------------------------------------ steps of a scale


@dataclass(frozen=True)
class Steps:
    """(numbers - zero) * scale, of one shape; `is_low`: padding is lower than any number."""

    numbers: Node
    zero: Node  # int32
    scale: Node  # float32
    is_low: bool = False

    def seen(self, view: Node) -> Steps:
        """The same behind a view."""
        numbers = make_node(view.op.name, (self.numbers,), view.attrs)
        return Steps(numbers, _behind(self.zero, view), _behind(self.scale, view), self.is_low)

    def wide(self) -> Node:
        """numbers - zero, in 32 bits."""
        wide = make_node("cast", (self.numbers,), CastAttrs(INT32))
        return wide if _number(self.zero) == 0 else make_node("sub", (wide, self.zero))

    def value(self) -> Node:
        """The floats."""
        wide = make_node("cast", (self.numbers,), CastAttrs(FLOAT32))
        if _number(self.zero) != 0:
            wide = make_node("sub", (wide, make_node("cast", (self.zero,), CastAttrs(FLOAT32))))
        return make_node("mul", (wide, self.scale))

    def is_even(self, axes: tuple[int, ...]) -> bool:
        """Whether zero and scale are the same for all elements along the axes."""
        return all(_is_constant_along(n, axis) for n in (self.zero, self.scale) for axis in axes)


class _Dequantised:
    """Finds dequantised bytes below ops that can be computed on the bytes."""

    def __init__(self, known: _Known) -> None:
        self.known = known
        self.found: dict[Node, Steps | None] = {}

    def rule(self, node: Node) -> Node | None:
        match node.op.name:
            case "matmul" if node.type.dtype == FLOAT32:
                return self._product(node)
            case "reduce_sum" if node.type.dtype == FLOAT32:
                return self._sum_of_products(node)
            case "reduce_max" if node.type.dtype == FLOAT32:
                return self._maximum(node)
            case "cast" if node.attrs.dtype in _BYTES:
                return self._requantised(node)
        return None

    def steps(self, node: Node) -> Steps | None:
        """What a float node is dequantised from, through views, padding and joints."""
        if node not in self.found:
            self.found[node] = self._steps(node) if node.type.dtype == FLOAT32 else None
        return self.found[node]

    def _steps(self, node: Node) -> Steps | None:
        if node.op.is_view:
            below = self.steps(node.inputs[0])
            return None if below is None else below.seen(node)
        match node.op.name:
            case "mul":
                return _dequantised(node)
            case "pad":
                return self._padded(node)
            case "concat":
                return self._joined(node)
        return None

    def _padded(self, node: Node) -> Steps | None:
        """Zeros are the zero point; what never wins is the lowest byte."""
        below, fill = self.steps(node.inputs[0]), _number(node.inputs[1])
        if below is None or below.is_low or not all(map(_is_single, (below.zero, below.scale))):
            return None
        dtype = below.numbers.type.dtype
        byte = _lowest(dtype) if fill == -math.inf else _number(below.zero)
        if fill not in (0.0, -math.inf) or byte is None or not _holds(dtype, byte):
            return None
        value = make_node("scalar", (), ScalarAttrs(int(byte), dtype))
        numbers = make_node("pad", (below.numbers, value), node.attrs)
        zero, scale = (_spread(n, node.type.shape) for n in (below.zero, below.scale))
        return Steps(numbers, zero, scale, is_low=fill != 0.0)

    def _joined(self, node: Node) -> Steps | None:
        """Several of the same scale and zero point, side by side."""
        parts = [self.steps(n) for n in node.inputs]
        found = [part for part in parts if part is not None]
        if len(found) < len(parts) or any(part.is_low for part in found):
            return None
        kinds = {(_number(p.zero), _number(p.scale), p.numbers.type.dtype) for p in found}
        if len(kinds) != 1 or None in next(iter(kinds)):
            return None
        attrs: ConcatAttrs = node.attrs
        numbers = make_node("concat", [part.numbers for part in found], attrs)
        zero, scale = (_spread(n, node.type.shape) for n in (found[0].zero, found[0].scale))
        return Steps(numbers, zero, scale)

    # -------------------------------------------------------- what is computed on them

    def _product(self, node: Node) -> Node | None:
        left, right = (self.steps(n) for n in node.inputs)
        if left is None or right is None or left.is_low or right.is_low:
            return None
        rank = node.type.rank
        if not left.is_even((rank - 1,)) or not right.is_even((rank - 2,)):
            return None
        if not _fits(upper_bound(node.inputs[0].type.shape[-1])):
            return None
        matrix = expand_to(_few(right).wide(), node.inputs[1].type.shape)
        total = make_node("matmul", (left.wide(), matrix))
        return _scaled(total, _narrow(left.scale, (rank - 1,)), _narrow(right.scale, (rank - 2,)))

    def _sum_of_products(self, node: Node) -> Node | None:
        """A depthwise convolution: known filters times windows, added up."""
        terms = node.inputs[0]
        if not isinstance(node.attrs, ReduceAttrs) or not terms.op.is_product:
            return None
        axes = node.attrs.axes
        left, right = (self.steps(n) for n in terms.inputs)
        if left is None or right is None or left.is_low or right.is_low:
            return None
        if not self.known(right.numbers) or not _is_single(left.zero):
            return None
        if not left.is_even(axes) or not right.is_even(axes):
            return None
        if not _fits(upper_bound(product(terms.type.shape[a] for a in axes))):
            return None
        filters = _few(right).wide()
        wide = make_node("cast", (left.numbers,), CastAttrs(INT32))
        products = make_node("mul", (wide, expand_to(filters, wide.type.shape)))
        total = make_node("reduce_sum", (products,), node.attrs)
        if _number(left.zero) != 0:
            # The zero point leaves the sum as a number for each filter, known before any run.
            sums = make_node("reduce_sum", (filters,), node.attrs)
            less = make_node("mul", (sums, _spread(left.zero, sums.type.shape)))
            total = make_node("sub", (total, expand_to(less, total.type.shape)))
        return _scaled(total, _narrow(left.scale, axes), _narrow(right.scale, axes))

    def _maximum(self, node: Node) -> Node | None:
        """The largest byte is the largest number, where scales are positive."""
        if not isinstance(node.attrs, ReduceAttrs):
            return None
        steps = self.steps(node.inputs[0])
        if steps is None or not all(map(_is_single, (steps.zero, steps.scale))):
            return None
        scale = _number(steps.scale)
        if scale is None or not scale > 0 or (steps.is_low and not _reaches_data(node)):
            return None
        largest = make_node("reduce_max", (steps.numbers,), node.attrs)
        zero, factor = (_spread(n, node.type.shape) for n in (steps.zero, steps.scale))
        return Steps(largest, zero, factor).value()

    def _requantised(self, node: Node) -> Node | None:
        """What is quantised as it was before it was dequantised is the same bytes."""
        found = _quantising(node)
        if found is None:
            return None
        value, scale, zero = found
        steps = self.steps(value)
        if steps is None or steps.is_low or steps.numbers.type.dtype != node.type.dtype:
            return None
        is_same = (_number(steps.scale), _number(steps.zero)) == (scale, zero)
        return steps.numbers if is_same and _LEAST_SCALE < scale < _LARGEST_SCALE else None


def _dequantised(node: Node) -> Steps | None:
    """mul(sub(cast bytes, zero), scale), as `dequantize_linear` writes it."""
    difference, scale = node.inputs
    wide, zero = difference, filled(0, INT32, node.type.shape)
    if difference.op.name == "sub":
        wide, subtracted = difference.inputs
        whole = _whole(subtracted)
        if whole is None:
            return None
        zero = whole
    return Steps(wide.inputs[0], zero, scale) if _is_widening(wide) else None


def _scaled(total: Node, *scales: Node) -> Node:
    """Sums of integers as floats, times what each operand's steps are worth."""
    shape = total.type.shape
    factor = scales[0]
    for scale in scales[1:]:
        pairs = zip(factor.type.shape, scale.type.shape, strict=True)
        joint = tuple(b if a == 1 else a for a, b in pairs)
        factor = make_node("mul", (_spread(factor, joint), _spread(scale, joint)))
    wide = make_node("cast", (total,), CastAttrs(FLOAT32))
    return make_node("mul", (wide, _spread(factor, shape)))


def _few(filters: Steps) -> Steps:
    """Numbers and zero points without the axes along which they are repeated."""
    parts = (filters.numbers, filters.zero)
    rank = filters.numbers.type.rank
    even = [a for a in range(rank) if all(_is_constant_along(n, a) for n in parts)]
    numbers, zero = (_first(n, even) for n in parts)
    return Steps(numbers, zero, _spread(filled(1.0, FLOAT32, ()), numbers.type.shape))


def _reaches_data(node: Node) -> bool:
    """Whether every window that is reduced holds an element that is no padding."""
    view = node.inputs[0]
    while view.op.is_view and not view.op.slides:
        view = view.inputs[0]
    if not view.op.slides or view.inputs[0].op.name != "pad":
        return False
    window, pad = view.attrs, view.inputs[0].attrs
    assert isinstance(pad, PadAttrs)
    sizes = dict(zip(window.axes, window.sizes, strict=True))
    is_dense = all(d == 1 for d in window.dilations)
    amounts = [*enumerate(pad.before), *enumerate(pad.after)]
    return is_dense and all(
        n == 0 or (isinstance(n, int) and n < sizes.get(axis, 0)) for axis, n in amounts
    )


def _fits(count: int | None) -> bool:
    return count is not None and count <= MOST_PRODUCTS


# ------------------------------------------------------------ quantising again


def _quantising(node: Node) -> tuple[Node, float, float] | None:
    """The float, the scale and the zero point of cast(rint(x / scale) + zero) to bytes."""
    whole, zero = node.inputs[0], 0.0
    if whole.op.name == "add":
        known = _number(whole.inputs[1])
        if known is None:
            return None
        whole, zero = whole.inputs[0], known
    if whole.op.name != "rint" or whole.inputs[0].op.name != "div":
        return None
    value, divisor = whole.inputs[0].inputs
    scale = _number(divisor)
    is_usual = scale is not None and _LEAST_SCALE < scale < _LARGEST_SCALE
    return (value, scale, zero) if scale is not None and is_usual else None


def _quantised(node: Node, known: _Known) -> Node | None:
    """Scaled integers are quantised by factors: no division is left for a run."""
    if node.op.name != "cast" or node.attrs.dtype not in _BYTES:
        return None
    found = _quantising(node)
    if found is None or known(node):
        return None
    value, scale, zero = found
    value = _unbounded(value, scale, zero, node.type.dtype)
    divided = _Division(scale, known).of(value)
    if divided is None:
        return None
    whole = make_node("rint", (divided,))
    if zero != 0:
        whole = make_node("add", (whole, filled(zero, FLOAT32, node.type.shape)))
    return make_node("cast", (whole,), node.attrs)


def _unbounded(node: Node, scale: float, zero: float, dtype: DType) -> Node:
    """Without bounds, as relu has one, beyond which saturation leaves nothing to bound."""
    while node.op.name in ("max", "min"):
        bound = _number(node.inputs[1])
        if bound is None or not math.isfinite(bound):
            break
        least, step = _lowest(dtype), round(bound / scale) + zero
        if step > least if node.op.name == "max" else step < least + 255:
            break
        node = node.inputs[0]
    return node


class _Division:
    """x / scale for x made of scaled integers and numbers that are known; else None."""

    def __init__(self, scale: float, known: _Known) -> None:
        self.scale, self.known = scale, known
        self.made: dict[Node, Node | None] = {}

    def of(self, node: Node) -> Node | None:
        if node not in self.made:
            self.made[node] = self._number(node) if self.known(node) else self._computed(node)
        return self.made[node]

    def _number(self, node: Node) -> Node:
        source = _source(node)
        divided = make_node("div", (source, filled(self.scale, FLOAT32, source.type.shape)))
        return _replaced(node, divided)

    def _computed(self, node: Node) -> Node | None:
        if node.op.name == "mul":
            return self._product(node)
        if node.op.name not in ("add", "sub", "max", "min", "concat") and not node.op.is_view:
            return None
        parts = [self.of(n) for n in node.inputs]
        found = [part for part in parts if part is not None]
        if len(found) < len(parts):
            return None
        return make_node(node.op.name, found, node.attrs)

    def _product(self, node: Node) -> Node | None:
        """Integers times a known factor, which takes the division."""
        numbers, factor = node.inputs
        if not self.known(factor) or not _is_whole(numbers):
            return None
        return make_node("mul", (numbers, self._number(factor)))


def _is_whole(node: Node) -> bool:
    """Whether a float is an integer that was cast, or one less another."""
    if node.op.name == "sub":
        return all(_is_whole(n) or _number(n) is not None for n in node.inputs)
    return node.op.name == "cast" and node.inputs[0].type.dtype.is_integer


# ------------------------------------------------------------ zero points and scales


def _source(node: Node) -> Node:
    """What lies below all views."""
    while node.op.is_view:
        node = node.inputs[0]
    return node


def _is_single(node: Node) -> bool:
    """Whether all elements are surely one."""
    source = _source(node)
    return source.op.is_literal or source.type.num_elements == 1


def _number(node: Node) -> float | None:
    """The number that all elements surely are, if it is known."""
    source = _source(node)
    if source.op.is_literal:
        number: float = source.attrs.value
        return number
    if source.op.name == "constant":
        array = source.attrs.storage.array
        is_one = 0 < array.size <= _FEW and bool((array == array.flat[0]).all())
        return float(array.flat[0]) if is_one else None
    if source.op.name == "cast" and not source.inputs[0].type.dtype.is_float:
        return _number(source.inputs[0])
    return None


def _whole(node: Node) -> Node | None:
    """A zero point that was written as a float, as the integer it is."""
    number = _number(node)
    if number is not None:
        is_whole = math.isfinite(number) and float(number).is_integer()
        return filled(int(number), INT32, node.type.shape) if is_whole else None
    source = _source(node)
    if source.op.name != "cast" or source.inputs[0].type.dtype not in (*_BYTES, INT32):
        return None
    return _replaced(node, make_node("cast", source.inputs, CastAttrs(INT32)))


def _replaced(view: Node, source: Node) -> Node:
    """The views of another source."""
    if not view.op.is_view:
        return source
    return make_node(view.op.name, (_replaced(view.inputs[0], source),), view.attrs)


def _behind(node: Node, view: Node) -> Node:
    """Zero points or scales behind a view of what they belong to."""
    if _is_single(node):
        return _spread(node, view.type.shape)
    return make_node(view.op.name, (node,), view.attrs)


def _spread(node: Node, shape: Shape) -> Node:
    """One element for all of a shape, or elements stretched to it."""
    if not _is_single(node):
        return expand_to(node, shape)
    source = _source(node)
    if source.op.is_literal:
        return filled(source.attrs.value, source.type.dtype, shape)
    return expand_to(reshape_to(source, (1,) * len(shape)), shape)


def _narrow(node: Node, axes: tuple[int, ...]) -> Node:
    """Scales without the axes along which they are the same; those given are such."""
    if _is_single(node):
        return _spread(node, (1,) * node.type.rank)
    even = [a for a in range(node.type.rank) if a in axes or _is_constant_along(node, a)]
    return _first(node, even)


def _first(node: Node, axes: list[int]) -> Node:
    """The first along the axes."""
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(node.type.shape))
    if shape == node.type.shape:
        return node
    if _is_single(node):
        return _spread(node, shape)
    if node.op.name == "expand" and all(node.inputs[0].type.shape[axis] == 1 for axis in axes):
        return expand_to(node.inputs[0], shape)
    return make_node("slice", (node,), SliceAttrs((0,) * len(shape), shape, (1,) * len(shape)))


def _is_constant_along(node: Node, axis: int) -> bool:
    """Whether the elements along an axis are surely equal, and there is one to take."""
    return _is_single(node) or is_constant_along(node, axis)


class _Known:
    """Whether weights and numbers alone determine a node."""

    def __init__(self) -> None:
        self.found: dict[Node, bool] = {}

    def __call__(self, node: Node) -> bool:
        stack = [node]
        while stack:
            each = stack[-1]
            waiting = [n for n in each.inputs if n not in self.found]
            if each not in self.found and waiting:
                stack += waiting
                continue
            stack.pop()
            if each.op.kind == "leaf":
                self.found[each] = each.op.name in KNOWN
            else:
                self.found[each] = all(self.found[n] for n in each.inputs)
        return self.found[node]


def _lowest(dtype: DType) -> int:
    return -128 if dtype == INT8 else 0


def _holds(dtype: DType, value: float) -> bool:
    return _lowest(dtype) <= value <= _lowest(dtype) + 255

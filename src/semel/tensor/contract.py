"""Products of matrices.

    matmul dot outer linear einsum

`matmul` follows NumPy: 1-D operands get an axis that is dropped again, leading axes are a
batch and broadcast. A batched left operand with one right matrix becomes one tall matrix,
because that is the shape fast kernels like. `einsum` (see `semel.tensor.einsum`) reduces
everything to this and to elementwise products.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.errors import GraphError
from semel.ir.expr import Dim, product
from semel.ir.types import Shape
from semel.tensor.einsum import Operand, Term, parse
from semel.tensor.handle import TensorLike, apply, lift, promote, whole_number
from semel.tensor.movement import agreeing, broadcast_shapes, may_agree, slice_axes, stretch
from semel.tensor.reduce import drop_axes, reduce_axes

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor


def matmul(x: TensorLike, other: TensorLike) -> Tensor:
    """NumPy's `@`.

    >>> (Tensor([[1, 2]]) @ Tensor([[3], [4]])).tolist()
    [[11]]
    """
    a, b = promote((x, other))
    if a.ndim == 0 or b.ndim == 0:
        raise GraphError(
            "matmul", f"needs at least 1 axis, got {a.type} @ {b.type}.", hint="Use * instead."
        )
    rows = a.unsqueeze(0) if a.ndim == 1 else a
    columns = b.unsqueeze(1) if b.ndim == 1 else b
    _check_inner(a, b, rows.shape[-1], columns.shape[-2])
    result = _matrix_product(rows, columns)
    if a.ndim == 1:
        result = drop_axes(result, (result.ndim - 2,))
    return drop_axes(result, (result.ndim - 1,)) if b.ndim == 1 else result


def _matrix_product(a: Tensor, b: Tensor) -> Tensor:
    """Both at least 2-D, of one dtype."""
    if b.ndim == 2 and a.ndim > 2:
        tall = a.reshape(product(a.shape[:-1]), a.shape[-1])
        return apply("matmul", tall, b).reshape(*a.shape[:-1], b.shape[-1])
    batch = broadcast_shapes([a.shape[:-2], b.shape[:-2]], "matmul")
    return apply("matmul", batched(a, batch), batched(b, batch))


def batched(x: Tensor, batch: Shape) -> Tensor:
    """A stack of matrices, with these leading axes."""
    return stretch(x, (*batch, *x.shape[-2:]))


def dot(x: TensorLike, other: TensorLike) -> Tensor:
    """np.dot: a product for 0-d operands, else the last axis with the last but one."""
    x = lift(x)
    a, b = promote((x, other))
    if a.ndim == 0 or b.ndim == 0:
        return a * b
    if b.ndim <= 2:
        return a @ b
    summed = b.moveaxis(-2, 0)
    rest = summed.shape[1:]
    flat = summed.reshape(summed.shape[0], product(rest))
    return (a @ flat).reshape(*a.shape[:-1], *rest)


def outer(x: TensorLike, other: TensorLike) -> Tensor:
    """All products of one element of each, as a matrix."""
    return lift(x).flatten().unsqueeze(1) * lift(other).flatten().unsqueeze(0)


def linear(x: TensorLike, weight: TensorLike, bias: TensorLike | None = None) -> Tensor:
    """x @ weight.T + bias, with weight as (out, in)."""
    x = lift(x)
    result = x @ lift(weight).mT
    return result if bias is None else result + bias


def einsum(equation: str, *operands: TensorLike) -> Tensor:
    """np.einsum: repeated labels, ellipsis, implicit output, any number of operands.

    >>> x, y = semel.ones(2, 3), semel.ones(3, 4)
    >>> semel.einsum("ij,jk->ik", x, y).shape
    (2, 4)
    """
    tensors = promote(operands)
    terms, output = parse(equation, [t.shape for t in tensors])
    parts = [_prepared(t, term) for t, term in zip(tensors, terms, strict=True)]
    result = parts[0]
    for i, part in enumerate(parts[1:], 1):
        later = {label for p in parts[i + 1 :] for label in p.labels} | set(output)
        result = _contract_pair(result, part, later)
    return _finish(result, output)


# ------------------------------------------------------------ einsum, step by step


def _prepared(x: Tensor, term: Term) -> Operand:
    """Take diagonals of repeated labels, drop stretched axes, sum what nobody else uses."""
    wide = tuple([w if d == 1 else d for d, w in zip(x.shape, term.shape, strict=True)])
    x, labels = agreeing(x.broadcast_to(wide), term.shape), list(term.labels)
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            x = x.diagonal(0, first, second)
            labels = [k for i, k in enumerate(labels) if i not in (first, second)] + [label]
    gone = [i for i, label in enumerate(labels) if label in term.stretched]
    x = drop_axes(x, gone) if gone else x
    labels = [label for label in labels if label not in term.stretched]
    alone = [i for i, label in enumerate(labels) if label in term.summed]
    if alone:
        x = reduce_axes(x, "reduce_or" if x.dtype.kind == "b" else "reduce_sum", alone, False)
        labels = [label for label in labels if label not in term.summed]
    return Operand(x, tuple(labels))


def _contract_pair(a: Operand, b: Operand, later: set[str]) -> Operand:
    """Multiply two operands and sum the labels that end here."""
    shared = [label for label in a.labels if label in b.labels]
    batch = [label for label in shared if label in later]
    inner = [label for label in shared if label not in later]
    left = [label for label in a.labels if label not in shared]
    right = [label for label in b.labels if label not in shared]
    labels = (*batch, *left, *right)
    size = {**b.sizes(), **a.sizes()}

    def dims(names: list[str]) -> list[Dim]:
        return [size[label] for label in names]

    ones_left, ones_right = (1,) * len(left), (1,) * len(right)
    if not inner:
        x = a.ordered([*batch, *left]).reshape(*dims(batch), *dims(left), *ones_right)
        y = b.ordered([*batch, *right]).reshape(*dims(batch), *ones_left, *dims(right))
        return Operand(x * y, labels)
    lead = [product(dims(batch))] if batch else []
    m, k, n = (product(dims(names)) for names in (left, inner, right))
    x = a.ordered([*batch, *left, *inner]).reshape(*lead, m, k)
    y = b.ordered([*batch, *inner, *right]).reshape(*lead, k, n)
    result = apply("matmul", x, y)
    return Operand(result.reshape(*dims(batch), *dims(left), *dims(right)), labels)


def _finish(operand: Operand, output: tuple[str, ...]) -> Tensor:
    summed = [i for i, label in enumerate(operand.labels) if label not in output]
    x = operand.tensor
    if summed:
        x = reduce_axes(x, "reduce_or" if x.dtype.kind == "b" else "reduce_sum", summed, False)
    labels = [label for label in operand.labels if label in output]
    return x.permute([labels.index(label) for label in output])


# ------------------------------------------------------------ diagonals


def diagonal(x: TensorLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The elements where axis2's index is axis1's plus `offset`, as a last axis."""
    x = lift(x)
    square = _diagonal_first(x, whole_number(offset, "offset", "diagonal"), axis1, axis2)
    rows, columns = square.shape[-2:]
    lead = square.shape[:-2]
    if isinstance(rows, int) and isinstance(columns, int):
        length = min(rows, columns)
        flat = square.reshape(*lead, rows * columns)
        steps = (1,) * len(lead) + (columns + 1,)
        return slice_axes(flat, (0,) * flat.ndim, (*lead, length), steps)
    if not may_agree((rows,), (columns,)):
        raise GraphError("diagonal", f"needs equal symbolic axes, got {x.type}.")
    return _symbolic_diagonal(agreeing(square, (*lead, columns, columns)))


def _diagonal_first(x: Tensor, offset: int, axis1: int, axis2: int) -> Tensor:
    """The two axes last, cut so that the diagonal begins in the corner."""
    if x.ndim < 2:
        raise GraphError("diagonal", f"needs at least 2 axes, got {x.type}.")
    x = x.moveaxis((axis1, axis2), (-2, -1))
    axis = -1 if offset >= 0 else -2
    length = x.shape[axis]
    skip = min(abs(offset), length) if isinstance(length, int) else abs(offset)
    return x.narrow(axis, skip, length - skip) if skip else x


def _symbolic_diagonal(x: Tensor) -> Tensor:
    """Of square last axes: flat element i*(n+1), found as row i of rows of length n+1."""
    n = x.shape[-1]
    lead = x.shape[:-2]
    flat = x.reshape(*lead, n * n)
    widths = [(0, 0)] * len(lead) + [(0, n)]
    rows = flat.pad(widths).reshape(*lead, n, n + 1)
    return rows.narrow(-1, 0, 1).reshape(*lead, n)


def trace(x: TensorLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The sum of a diagonal."""
    return lift(x).diagonal(offset, axis1, axis2).sum(-1)


def _check_inner(a: Tensor, b: Tensor, left: Dim, right: Dim) -> None:
    if isinstance(left, int) and isinstance(right, int) and left != right:
        fits = a.shape[-1] == b.shape[-1]
        raise GraphError(
            "matmul",
            f"inner dims must agree, got {left} and {right} in {a.type} @ {b.type}.",
            hint="Did you mean x @ y.mT?" if fits and b.ndim > 1 else "",
        )


# Second names.
bmm = matmul
mm = matmul
mv = matmul

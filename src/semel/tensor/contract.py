"""Tensor, layer 5: products of matrices.

    matmul dot outer linear einsum

`matmul` follows NumPy: 1-D operands get an axis that is dropped again, leading axes are a
batch and broadcast. A batched left operand with one right matrix becomes one tall matrix,
because that is the shape fast kernels like. `einsum` (see `semel.tensor.einsum`) reduces
everything to this and to elementwise products.
"""

from __future__ import annotations

from typing import Self

from semel.errors import GraphError
from semel.ir.expr import Dim, product
from semel.ir.types import Shape
from semel.tensor.einsum import Operand, Term, parse
from semel.tensor.handle import TensorLike, whole_number
from semel.tensor.movement import broadcast_shapes
from semel.tensor.reduce import Reduce


class Contract(Reduce):
    """Matrix products."""

    __slots__ = ()

    def matmul(self, other: TensorLike) -> Self:
        """NumPy's `@`."""
        return self._matmul(self, other)

    def __matmul__(self, other: TensorLike) -> Self:
        return self._matmul(self, other)

    def __rmatmul__(self, other: TensorLike) -> Self:
        return self._matmul(other, self)

    @classmethod
    def _matmul(cls, left: TensorLike, right: TensorLike) -> Self:
        a, b = cls._promote((left, right))
        if a.ndim == 0 or b.ndim == 0:
            raise GraphError(
                "matmul", f"needs at least 1 axis, got {a.type} @ {b.type}.", hint="Use * instead."
            )
        rows = a.unsqueeze(0) if a.ndim == 1 else a
        columns = b.unsqueeze(1) if b.ndim == 1 else b
        _check_inner(a, b, rows.shape[-1], columns.shape[-2])
        result = cls._matrix_product(rows, columns)
        if a.ndim == 1:
            result = result._drop((result.ndim - 2,))
        return result._drop((result.ndim - 1,)) if b.ndim == 1 else result

    @classmethod
    def _matrix_product(cls, a: Self, b: Self) -> Self:
        """Both at least 2-D, of one dtype."""
        if b.ndim == 2 and a.ndim > 2:
            tall = a.reshape(product(a.shape[:-1]), a.shape[-1])
            return cls._apply("matmul", tall, b).reshape(*a.shape[:-1], b.shape[-1])
        batch = broadcast_shapes([a.shape[:-2], b.shape[:-2]], "matmul")
        return cls._apply("matmul", a._batched(batch), b._batched(batch))

    def _batched(self, batch: Shape) -> Self:
        return self._stretch((*batch, *self.shape[-2:]))

    def dot(self, other: TensorLike) -> Self:
        """np.dot: a product for 0-d operands, else the last axis with the last but one."""
        a, b = self._promote((self, other))
        if a.ndim == 0 or b.ndim == 0:
            return a * b
        if b.ndim <= 2:
            return a @ b
        summed = b.moveaxis(-2, 0)
        rest = summed.shape[1:]
        flat = summed.reshape(summed.shape[0], product(rest))
        return (a @ flat).reshape(*a.shape[:-1], *rest)

    def outer(self, other: TensorLike) -> Self:
        """All products of one element of each, as a matrix."""
        return self.flatten().unsqueeze(1) * self._lift(other).flatten().unsqueeze(0)

    def linear(self, weight: TensorLike, bias: TensorLike | None = None) -> Self:
        """x @ weight.T + bias, with weight as (out, in)."""
        result = self @ self._lift(weight).mT
        return result if bias is None else result + bias

    @classmethod
    def einsum(cls, equation: str, *operands: TensorLike) -> Self:
        """np.einsum: repeated labels, ellipsis, implicit output, any number of operands."""
        tensors = cls._promote(operands)
        terms, output = parse(equation, [t.shape for t in tensors])
        parts = [t._prepared(term) for t, term in zip(tensors, terms, strict=True)]
        result = parts[0]
        for i, part in enumerate(parts[1:], 1):
            later = {label for p in parts[i + 1 :] for label in p.labels} | set(output)
            result = cls._contract_pair(result, part, later)
        return cls._finish(result, output)

    # ------------------------------------------------------------ einsum, step by step

    def _prepared(self, term: Term) -> Operand[Self]:
        """Take diagonals of repeated labels, drop stretched axes, sum what nobody else uses."""
        x, labels = self.broadcast_to(term.shape), list(term.labels)
        for label in dict.fromkeys(labels):
            while labels.count(label) > 1:
                first = labels.index(label)
                second = labels.index(label, first + 1)
                x = x.diagonal(0, first, second)
                labels = [k for i, k in enumerate(labels) if i not in (first, second)] + [label]
        gone = [i for i, label in enumerate(labels) if label in term.stretched]
        x = x._drop(gone) if gone else x
        labels = [label for label in labels if label not in term.stretched]
        alone = [i for i, label in enumerate(labels) if label in term.summed]
        if alone:
            x = x._reduce("reduce_or" if x.dtype.kind == "b" else "reduce_sum", alone, False)
            labels = [label for label in labels if label not in term.summed]
        return Operand(x, tuple(labels))

    @classmethod
    def _contract_pair(cls, a: Operand[Self], b: Operand[Self], later: set[str]) -> Operand[Self]:
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
        result = cls._apply("matmul", x, y)
        return Operand(result.reshape(*dims(batch), *dims(left), *dims(right)), labels)

    @classmethod
    def _finish(cls, operand: Operand[Self], output: tuple[str, ...]) -> Self:
        summed = [i for i, label in enumerate(operand.labels) if label not in output]
        x = operand.tensor
        if summed:
            x = x._reduce("reduce_or" if x.dtype.kind == "b" else "reduce_sum", summed, False)
        labels = [label for label in operand.labels if label in output]
        return x.permute([labels.index(label) for label in output])

    # ------------------------------------------------------------ diagonals

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Self:
        """The elements where axis2's index is axis1's plus `offset`, as a last axis."""
        square = self._diagonal_first(whole_number(offset, "offset", "diagonal"), axis1, axis2)
        rows, columns = square.shape[-2:]
        lead = square.shape[:-2]
        if isinstance(rows, int) and isinstance(columns, int):
            length = min(rows, columns)
            flat = square.reshape(*lead, rows * columns)
            steps = (1,) * len(lead) + (columns + 1,)
            return flat._slice((0,) * flat.ndim, (*lead, length), steps)
        if rows != columns:
            raise GraphError("diagonal", f"needs equal symbolic axes, got {self.type}.")
        return square._symbolic_diagonal()

    def _diagonal_first(self, offset: int, axis1: int, axis2: int) -> Self:
        """The two axes last, cut so that the diagonal begins in the corner."""
        if self.ndim < 2:
            raise GraphError("diagonal", f"needs at least 2 axes, got {self.type}.")
        x = self.moveaxis((axis1, axis2), (-2, -1))
        axis = -1 if offset >= 0 else -2
        length = x.shape[axis]
        skip = min(abs(offset), length) if isinstance(length, int) else abs(offset)
        return x.narrow(axis, skip, length - skip) if skip else x

    def _symbolic_diagonal(self) -> Self:
        """Of square last axes: flat element i*(n+1), found as row i of rows of length n+1."""
        n = self.shape[-1]
        lead = self.shape[:-2]
        flat = self.reshape(*lead, n * n)
        widths = [(0, 0)] * len(lead) + [(0, n)]
        rows = flat.pad(widths).reshape(*lead, n, n + 1)
        return rows.narrow(-1, 0, 1).reshape(*lead, n)

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Self:
        """The sum of a diagonal."""
        return self.diagonal(offset, axis1, axis2).sum(-1)


def _check_inner(a: Reduce, b: Reduce, left: Dim, right: Dim) -> None:
    if isinstance(left, int) and isinstance(right, int) and left != right:
        fits = a.shape[-1] == b.shape[-1]
        raise GraphError(
            "matmul",
            f"inner dims must agree, got {left} and {right} in {a.type} @ {b.type}.",
            hint="Did you mean x @ y.mT?" if fits and b.ndim > 1 else "",
        )

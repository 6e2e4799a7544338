"""The notation of einsum: what each operand's axes are called, and what happens to them.

    "ij,jk->ik", shapes  --parse-->  one Term per operand, labels of the output

Ellipsis axes get labels of their own, aligned at the right, so that the rest of einsum knows
labels only. An axis of size 1 whose label is longer elsewhere is *stretched*: it is dropped,
which is what broadcasting it would mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semel.errors import GraphError
from semel.ir.expr import Dim
from semel.ir.types import Shape

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Term:
    """One operand: a label per axis, those dropped as stretched, those summed at once.

    `shape` holds the size of each label: dims that differ from it symbolically must be equal at
    run time, each for itself, and not their products alone.
    """

    labels: tuple[str, ...]
    shape: Shape
    stretched: frozenset[str]
    summed: frozenset[str]


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor whose axes are called `labels`, all different."""

    tensor: Tensor
    labels: tuple[str, ...]

    def sizes(self) -> dict[str, Dim]:
        return dict(zip(self.labels, self.tensor.shape, strict=True))

    def ordered(self, labels: Sequence[str]) -> Tensor:
        return self.tensor.permute([self.labels.index(label) for label in labels])


def parse(equation: str, shapes: Sequence[Shape]) -> tuple[list[Term], tuple[str, ...]]:
    """Labels of every operand and of the output; raises GraphError with the equation."""
    if not isinstance(equation, str):
        raise GraphError("einsum", f"the equation must be a string, got {equation!r}.")
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    inputs = left.split(",")
    if len(inputs) != len(shapes):
        raise GraphError(
            "einsum", f"'{equation}' names {len(inputs)} operands, got {len(shapes)} tensors."
        )
    labels = [_labels(i, s, equation) for i, s in zip(inputs, shapes, strict=True)]
    output = _output(right, labels, equation) if arrow else _implicit(labels)
    sizes = _sizes(labels, shapes, equation)
    uses = Counter(label for term in labels for label in set(term))
    terms = []
    for term, shape in zip(labels, shapes, strict=True):
        pairs = list(zip(term, shape, strict=True))
        stretched = frozenset(k for k, dim in pairs if dim == 1 and sizes[k] != 1)
        alone = frozenset(k for k in term if uses[k] == 1 and k not in output)
        dims = tuple(1 if k in stretched else sizes[k] for k in term)
        terms.append(Term(term, dims, stretched, alone))
    return terms, output


def _labels(text: str, shape: Shape, equation: str) -> tuple[str, ...]:
    """One label per axis; ellipsis axes are '...0' for the last, '...1' before it, and so on."""
    before, dots, after = text.partition("...")
    letters = before + after
    if not all(c.isalpha() and c.isascii() for c in letters):
        raise GraphError("einsum", f"labels must be letters, got '{text}' in '{equation}'.")
    hidden = len(shape) - len(letters)
    if hidden < 0 or (hidden and not dots):
        raise GraphError(
            "einsum", f"'{text}' in '{equation}' names {len(letters)} axes, got {len(shape)}."
        )
    return (*before, *(f"...{i}" for i in reversed(range(hidden))), *after)


def _output(text: str, labels: Sequence[tuple[str, ...]], equation: str) -> tuple[str, ...]:
    known = {label for term in labels for label in term}
    hidden = sorted((k for k in known if k.startswith("...")), key=lambda k: -int(k[3:]))
    before, dots, after = text.partition("...")
    output = (*before, *(hidden if dots else ()), *after)
    unknown = [k for k in output if k not in known]
    if unknown or len(set(output)) != len(output):
        raise GraphError(
            "einsum", f"output labels must be distinct and come from operands, got '{equation}'."
        )
    if hidden and not dots:
        raise GraphError("einsum", f"the output of '{equation}' must hold the ellipsis, too.")
    return output


def _implicit(labels: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Ellipsis axes, then every letter used exactly once, in alphabetical order."""
    counts = Counter(label for term in labels for label in term)
    hidden = sorted((k for k in counts if k.startswith("...")), key=lambda k: -int(k[3:]))
    return (*hidden, *sorted(k for k, n in counts.items() if n == 1 and not k.startswith("...")))


def _sizes(
    labels: Sequence[tuple[str, ...]], shapes: Sequence[Shape], equation: str
) -> dict[str, Dim]:
    """The size of each label; fixed sizes other than 1 must agree."""
    sizes: dict[str, Dim] = {}
    for term, shape in zip(labels, shapes, strict=True):
        for label, dim in zip(term, shape, strict=True):
            known = sizes.setdefault(label, dim)
            if known == 1:
                sizes[label] = dim
            elif dim not in (1, known) and isinstance(dim, int) and isinstance(known, int):
                raise GraphError(
                    "einsum",
                    f"label '{label}' of '{equation}' must have one size, got {known} and {dim}.",
                )
    return sizes

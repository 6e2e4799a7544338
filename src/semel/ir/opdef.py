"""What the compiler knows about one op.

An op is one record with all its rules, written beside its maths in `semel.ops`: what it means,
what one element of it is, how it may be fused, what its kernels are called. Stages ask the record
and never list names; only what has a kernel of its own (contract, opaque) also has a lowering in
`semel.lower`, under its name. The first fields have no defaults on purpose: an op without a
reference implementation does not import, so it cannot be merged untested.

`OPS` is the one table that imports fill: the files of `semel.ops` are its rows, and
`import semel.ops` is how anybody gets it. Why this way: docs/decisions/0052-rules-on-the-op.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from semel.errors import GraphError, InternalError
from semel.ir.expr import Dim

OPS: dict[str, OpDef] = {}

#: Kinds of ops that only say which elements are where.
_CARRYING = ("leaf", "movement", "update", "composite")

#: One index per axis.
Indices: TypeAlias = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Combiner:
    """How two elements of a reduction or a scan become one.

    `ufunc` is NumPy's, `domain` a key of `ops.shapes.DOMAINS`. `kernel` is the name by which
    kernels combine, which also says what an accumulator starts from (`kernel.values.COMBINES`);
    `fast` is the one that may be used where NaN need not come through.
    `rounds`: a step on floats rounds, so that narrow ones take part in a wider dtype.
    `needs_elements`: of nothing there is no result. `splits`: parts may be combined, and then
    their results.
    """

    name: str
    ufunc: Any
    domain: str
    kernel: str
    fast: str = ""
    rounds: bool = False
    needs_elements: bool = False
    splits: bool = True


@dataclass(frozen=True, slots=True)
class Contraction:
    """What the scheduler asks of an op that adds up products.

    `wanted(node, at, fresh)` gives the loop it adds over, made by `fresh(extent)`, and the index of
    each operand that result element `at` needs; None: all of that operand, from memory.
    `stages`: where the left operand may be computed into scratch first: "never", "narrow" (few
    columns read it) or "always".
    `is_attention`: the left operand holds scores, and what counts is their softmax.
    `makes_scores`: an attention can compute it as its scores. `widens`: weights that are stored
    narrow become wide in registers. `tiles`: how its kernel is cut is a choice. `column_bits`: of
    an element that the panels of columns are counted in, if not of the result's.
    """

    wanted: Callable[..., tuple[Dim, tuple[Indices | None, ...]]]
    stages: str = "never"
    is_attention: bool = False
    makes_scores: bool = False
    widens: bool = False
    tiles: bool = False
    column_bits: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class OpDef:
    """`infer(attrs, *types)` gives the type, `reference(node, arrays, env)` the truth in NumPy.

    `kind` tells the scheduler how it may be fused:
      leaf          input, constant
      elementwise   one result element from the operands' elements at the same index
      movement      one result element is one operand element (or a fill) at another index
      reduce        axes collapse to size 1
      contract      matmul
      update        new elements of a state, stored where the old ones lie
      opaque        a kernel of its own: sort, scan, scatter; for a loop, several
      composite     several ops in one, as people write them: `made_of` says which
    `attrs` is the class of its attributes, None for an op that has none.
    `cost` is the rough number of machine operations per result element.
    `require(attrs, *types)` gives what must hold of dims, as `ops.shapes` says; None: nothing.

    What one element is:
      value(*operands)                   from the operands' elements, in values of the kernel IR
      element(elements, node, at, guard) the same for ops that look at attributes or at the index;
                                         `elements` is an `ops.elements.Elements`
      index(node, operand, at, gathered) which element of an operand that takes; None: the same
      combiner(attrs)                    how a reduction or a scan combines
      contraction                        how a contraction does

    What else stages ask:
      is_view        every element is an operand's, at an index that arithmetic tells
      keeps_order    the operand's elements in their order: in memory both are the same
      gathers        the index is read from memory, once for "rows" or for all "elements"
      slides         neighbouring elements are overlapping runs of the operand
      parts(node)    the axis along which the operands stand one after another, and their starts
      is_product     the product of its operands
      is_approximate its reference and its kernels may differ in the last bits, of floats
      is_exact       a number that the compiler knows and one that it does not give the same bits
      specials       but for these as the last operand: with them it is another op, of other bits
      converts       it is the operand's number in another dtype
      carries        elementwise, and it takes its operands as they are: whatever their dtype is
      may_fail       a run may end there
      repeats        one number, if its operand is, if it has one
      made_of(node)  the same node written with other ops; None: it is none that is written so
      has_bodies     it runs graphs that its attributes hold, and may have several results
      opened(node)   the same node with the data that these graphs hold among its operands
      reads(node)    the operands that a kernel of its own reads from memory, by number; None: all
      moves          it is its operand, in memory of another device: a copy, no kernel
      kernel_name    what a kernel is called that computes it; "": as whoever wrote it called it
    """

    name: str
    kind: str
    attrs: type | None
    infer: Callable[..., Any]
    reference: Callable[..., Any]
    cost: int
    require: Callable[..., Iterable[Any]] | None = None
    value: Callable[..., Any] | None = None
    element: Callable[..., Any] | None = None
    index: Callable[..., Indices] | None = None
    combiner: Callable[[Any], Combiner] | None = None
    contraction: Contraction | None = None
    is_view: bool = False
    keeps_order: bool = False
    gathers: str = ""
    slides: bool = False
    parts: Callable[[Any], tuple[int, Indices]] | None = None
    is_product: bool = False
    is_approximate: bool = False
    is_exact: bool = False
    specials: tuple[float, ...] = ()
    converts: bool = False
    carries: bool = False
    may_fail: bool = False
    repeats: bool = False
    made_of: Callable[[Any], Any] | None = None
    has_bodies: bool = False
    opened: Callable[[Any], Any] | None = None
    reads: Callable[[Any], Iterable[int]] | None = None
    moves: bool = False
    kernel_name: str = ""

    @property
    def is_pointwise(self) -> bool:
        """Whether an element depends on the operands' at the same index and on nothing else."""
        return self.kind == "elementwise" and self.index is None and not self.may_fail

    @property
    def computes(self) -> bool:
        """Whether it needs numbers to compute with: a narrow operand is cast before."""
        passes_on = self.carries or self.moves or self.has_bodies
        return not passes_on and self.kind not in _CARRYING

    @property
    def is_made(self) -> bool:
        """Whether a node of it belongs to the body that it is written in: all but data does."""
        return self.kind != "leaf" or self.element is not None

    @property
    def is_literal(self) -> bool:
        """Whether it is a leaf that stands in the code of a kernel: no memory holds it."""
        return self.kind == "leaf" and self.element is not None


def register(op: OpDef) -> OpDef:
    """Add `op` to the table; a second op of the same name is our bug."""
    if op.name in OPS:
        raise InternalError(op.name, "is registered twice.")
    OPS[op.name] = op
    return op


def find_op(name: str) -> OpDef:
    """The record of an op, or a GraphError that names it."""
    if name not in OPS:
        raise GraphError(name, "is not an op.", hint="semel.ir.opdef.OPS lists all of them.")
    return OPS[name]

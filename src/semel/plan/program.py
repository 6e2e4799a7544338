"""The program: what runs, on which values, in which order.

    compiler  --Program-->  instantiate   -->  ExecutionPlan
    ExecutionPlanBuilder    --Program-->  build  -->  ExecutionPlan

A program is immutable plain data, the same for compiled plans and plans built by hand. A compiled
one is shared: each `instantiate` gives a plan with its own inputs, outputs and arena, over the
same kernels and constants. Names are for people; everything refers to values by index.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from semel.errors import PlanError, VariableError
from semel.ir.expr import (
    Dim,
    Substitution,
    Variable,
    evaluate,
    is_positive,
    mod,
    upper_bound,
    variables,
)
from semel.ir.target import Target
from semel.ir.types import INT32, INT64, Shape, TensorType
from semel.plan.pickled import reduce_program, save_program
from semel.plan.rows import PreparedKernel, PreparedOp
from semel.plan.tree import Placed, walk
from semel.plan.weights import (
    Formula,
    Param,
    Recipe,
    Weight,
    check_recipes,
    missing_data,
    needed_params,
)
from semel.runtime.free import HOST_DEVICE
from semel.runtime.kernel import CachedKernel
from semel.runtime.spec import kind_of

#: Where a value of a compiled program lies: in the IO block, in the arena, in memory of its plan
#: that keeps its contents between runs (a state), or in its weights, which are the program's own (a
#: constant) or follow from its params by a recipe (a param).
PLACES = ("io", "arena", "constant", "param", "state")
WEIGHTS = ("constant", "param")
#: Where all values of a plan built by hand lie: in memory that it was given.
GIVEN = "given"


@dataclass(frozen=True, slots=True)
class ProgramValue:
    """One tensor. `place` is one of PLACES, or GIVEN; constants and params have a `weight`.

    A state may have one too, as its first value; else that is zeros. An arena value is alive from
    row `first` to row `last`, both included. `node_ids` are the graph nodes that it holds. It lies
    on a `device`, the program's own if it names none.
    """

    name: str
    type: TensorType
    place: str
    weight: Weight | None = None
    first: int = 0
    last: int = 0
    node_ids: tuple[int, ...] = ()
    device: str = ""


@dataclass(frozen=True, slots=True)
class PlanIO:
    """A named input or output: which value, and its symbolic type.

    An input may have a `default`, for runs that are not given it. If runs read or write only a
    `part` of it, from 0 on along each axis, that is how large it is; the rest of an output stays
    as it was.
    """

    name: str
    index: int
    type: TensorType
    default: Weight | None = None
    part: Shape = ()

    def shape_at(self, values: Mapping[str, int]) -> tuple[int, ...]:
        """Its shape at these values of variables."""
        try:
            return tuple(evaluate(dim, values) for dim in self.type.shape)
        except KeyError as error:
            raise VariableError(
                "plan", f"input '{self.name}' needs {error}, never bound."
            ) from None


@dataclass(frozen=True, slots=True)
class StateRows:
    """Rows of several sequences along `axis` of a state; `lengths` is the state that counts them.

    Each grows by `grows` rows in a run or, if `counts` is the name of an input, by as many as that
    says. Those of a pool of blocks are found through the state `table`, in blocks of `block_rows`.
    """

    axis: int
    lengths: str
    grows: Dim
    counts: str = ""
    table: str = ""
    block_rows: int = 0


@dataclass(frozen=True, slots=True)
class ProgramState:
    """A tensor that is kept between runs, known by `name`: value `index`, of its largest shape.

    Where a run makes the next value in a second buffer, that is value `other`, and a run that
    succeeds lets the two change places. If rows are appended along `axis`, those before `cursor`,
    a held variable, are valid. `is_append`: a run writes behind the cursor only, so that one that
    fails leaves all that is valid as it was. `why` says, for people, why it is updated in this way.
    `rows` are those of several sequences, if it has such.
    """

    name: str
    index: int
    other: int | None = None
    axis: int | None = None
    cursor: str | None = None
    is_append: bool = False
    why: str = ""
    rows: StateRows | None = None

    @property
    def how(self) -> str:
        """How a run updates it, in a word or two."""
        if not self.why:
            return "read only"
        return "in place" if self.other is None else "double-buffered"


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """Products by groups of rows, by values: `ids` say which group, `stacks` have all matrices.

    Of a stack, only those matrices are read whose groups are among the ids, and by nobody else.
    """

    ids: tuple[int, ...]
    num_experts: int
    stacks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NodeNote:
    """What became of a node of the graph as it was written, for people.

    `became` is: the leaf it is (input, param, constant, ...) or is equal to; "kernel", computed by
    the rows at `ops`; "copy", which they are; "view", an index in these; a loop or a branch
    ("cond"), which they run; "part" of what they compute, in another form; "folded" when the graph
    was compiled; "weights", computed from params before any run; or "unused".
    """

    node: str
    became: str
    ops: tuple[int, ...] = ()
    origin: str = ""


@dataclass(frozen=True, slots=True)
class PlanVariable:
    """A variable of the plan; `capacity` is what its buffers hold if it has no maximum.

    A late one has a `limit`, and room for the most that this can be. A held one has `next`: what it
    is when a run has succeeded; nobody binds it.
    """

    variable: Variable
    initial: int | None = None
    capacity: int | None = None
    limit: Dim | None = None
    next: Dim | None = None

    @property
    def top(self) -> int | None:
        """The largest value that fits the memory there is."""
        return self.capacity if self.variable.max is None else self.variable.max

    def as_bounded(self) -> Variable:
        """The variable with its capacity as maximum."""
        return Variable(self.variable.name, self.variable.min, self.top)


def bounded_variables(
    variables: Iterable[PlanVariable], late: Iterable[PlanVariable]
) -> dict[str, Variable]:
    """All variables by name, each with the largest value that fits the memory there is."""
    known = {v.variable.name: v.as_bounded() for v in variables}
    for each in late:
        top = upper_bound(InTermsOf(known)(each.limit or 0))
        low = each.variable.min
        found = replace(each, capacity=None if top is None else max(top, low))
        known[each.variable.name] = found.as_bounded()
    return known


class InTermsOf:
    """Expressions over the variables of these names, whose bounds are what all users allow."""

    def __init__(self, known: Mapping[str, Variable]) -> None:
        self._known = known
        #: What expressions were over, whose bounds may be others.
        self._renamings: dict[tuple[Variable, ...], Substitution] = {}

    def __call__(self, value: Dim) -> Dim:
        """The expression over them."""
        if isinstance(value, int):
            return value
        found = variables(value)
        renaming = self._renamings.get(found)
        if renaming is None:
            renaming = Substitution({v: self._known[v.name] for v in found})
            self._renamings[found] = renaming
        return renaming(value)


@dataclass(frozen=True, eq=False, repr=False)
class Program:
    """Everything a plan is made from. `guards` must evaluate to 0 at every bind.

    `results` are the values that are outputs, in order; `outputs` those of them that have a name
    and a type of their own. `kept` are named values that can be read after a run like outputs,
    and are none. `after` has, for rows by position, positions that they must follow besides their
    `dependencies`; `run_order` the order to take the outermost rows up in, if one was asked for.
    Variables without a maximum grow up to `max_capacity`, if there is one. `params` are what an
    owner may replace, and `recipes` how the values of place "param" are made from them: a plan with
    other data has a program that differs in these, and in the weights of those values.
    `compile_for` compiles what it was made from for another target, by its name, with other data
    of params, by theirs, where known, and a change of the graph, or None (`plan.again`).
    `name` is that of the graph, for people, and `nodes` say what became of it. `experts` are the
    layers whose stacks need not be in memory as a whole. `placement` says how devices were chosen,
    if they were. `machines` are those that the file it came from has code for, if several.
    """

    values: tuple[ProgramValue, ...]
    rows: tuple[PreparedOp, ...]
    inputs: tuple[PlanIO, ...]
    outputs: tuple[PlanIO, ...]
    results: tuple[int, ...]
    guards: tuple[tuple[Dim, str], ...] = ()
    variables: tuple[PlanVariable, ...] = ()
    log: tuple[str, ...] = ()
    stage_seconds: dict[str, float] = field(default_factory=dict)
    compile_count: int = 0
    kept: tuple[tuple[str, int], ...] = ()
    max_capacity: int | None = None
    device: str = HOST_DEVICE
    after: dict[int, tuple[int, ...]] = field(default_factory=dict)
    run_order: tuple[int, ...] | None = None
    alias_ids: tuple[int, ...] = ()
    states: tuple[ProgramState, ...] = ()
    params: tuple[Param, ...] = ()
    recipes: tuple[Recipe, ...] = ()
    compile_for: Callable[[str, Mapping[str, Any], Any], Program] | None = None
    name: str = ""
    nodes: tuple[NodeNote, ...] = ()
    experts: tuple[ExpertLayer, ...] = ()
    placement: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()

    def __repr__(self) -> str:
        name = f"{self.name!r}, " if self.name else ""
        return (
            f"Program({name}{self.device}; {len(self.rows)} ops, {len(self.kernels)} distinct "
            f"kernels, {len(self.values)} values)"
        )

    @property
    def kernels(self) -> tuple[CachedKernel, ...]:
        """The distinct kernels that runs call, in order of first use."""
        return tuple(dict.fromkeys(k for placed in self.walk() for k in placed.row.kernels))

    @property
    def target(self) -> Target | None:
        """The machine that its own device's code is for; None if it has none, or only pointers."""
        own = kind_of(self.device)
        return next((k.target for k, kind in self.kinds.items() if k.target and kind == own), None)

    @property
    def kinds(self) -> dict[CachedKernel, str]:
        """The kind of device that each kernel is for: those of recipes are the host's."""
        found = dict.fromkeys(self.all_kernels, kind_of(HOST_DEVICE))
        for placed in self.walk():
            kind = kind_of(placed.row.device or self.device)
            found |= dict.fromkeys(placed.row.kernels, kind)
        return found

    @property
    def all_kernels(self) -> tuple[CachedKernel, ...]:
        """The distinct kernels, those of recipes last."""
        of_formulas = (row.kernel for formula in self.formulas for row in formula.rows)
        return tuple(dict.fromkeys((*self.kernels, *of_formulas)))

    @property
    def formulas(self) -> tuple[Formula, ...]:
        """The distinct formulas of its recipes."""
        return tuple(dict.fromkeys(r.formula for r in self.recipes if r.formula is not None))

    @property
    def weights(self) -> tuple[Weight, ...]:
        """The distinct weights: those that rows read, and those that recipes may need again."""
        read = (value.weight for value in self.values)
        sources = (s for recipe in self.recipes for s in recipe.sources)
        defaults = (io.default for io in self.inputs)
        found = (*read, *(param.raw for param in self.params), *sources, *defaults)
        return tuple(dict.fromkeys(each for each in found if isinstance(each, Weight)))

    @property
    def late(self) -> tuple[PlanVariable, ...]:
        """The variables that nobody binds, in the order in which a run finds them out."""
        rows = (placed.row for placed in self.walk())
        return tuple(
            PlanVariable(variable.as_variable(), limit=limit)
            for row in rows
            for variable, limit in row.late
        )

    @property
    def rooms(self) -> dict[str, Variable]:
        """By name, the variables that are the limits of late ones, and nothing that is given.

        They have no maximum: a run that finds out more than there is room for begins again.
        """
        told = {v.name for io in self.inputs for dim in io.type.shape for v in variables(dim)}
        said = {v.name for each in self.late for v in variables(each.limit or 0)}
        known = {v.variable.name: v.variable for v in self.variables if v.next is None}
        names = sorted((said & known.keys()) - told - self.extents.keys())
        return {name: known[name] for name in names if known[name].max is None}

    @property
    def extents(self) -> dict[str, Variable]:
        """By name, the variables that say how much of inputs is read, and that no shape tells."""
        told = {v.name for io in self.inputs for dim in io.type.shape for v in variables(dim)}
        found = {v.name for io in self.inputs for dim in io.part for v in variables(dim)}
        known = {v.variable.name: v.variable for v in self.variables if v.next is None}
        return {name: known[name] for name in sorted(found - told) if name in known}

    def walk(self) -> list[Placed]:
        """All rows by position."""
        return walk(self.rows)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled, a program is what a plan's file would hold."""
        return reduce_program(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a plan file for `semel.load_plan`; its code may be for another machine."""
        save_program(self, path)

    def sections(self) -> dict[int, np.ndarray[Any, Any]]:
        """The weights that a plan file stores as bytes, by their place among `saved_weights`."""
        return {i: weight.array for i, weight in enumerate(self.saved_weights)}

    @property
    def saved_weights(self) -> tuple[Weight, ...]:
        """Those of a file: not what only the file of its params still holds, or what is absent."""
        needed = needed_params(missing_data(self.params), self.recipes)
        spare = (p.raw for i, p in enumerate(self.params) if not p.is_kept and i not in needed)
        lent = set(spare) - {value.weight for value in self.values}
        return tuple(w for w in self.weights if w not in lent and not w.is_absent)

    @property
    def missing_params(self) -> tuple[str, ...]:
        """The names of the params that must be set before a run."""
        return tuple(param.name for param in self.params if param.is_missing)

    @property
    def defaults(self) -> dict[str, np.ndarray[Any, Any]]:
        """What inputs are, by name, in runs that are not given them."""
        return {io.name: io.default.array for io in self.inputs if io.default is not None}


def check_program(program: Program) -> None:
    """What must hold of the values of a compiled program before they are given memory."""
    for value in program.values:
        if value.place not in PLACES:
            raise PlanError(value.name, f"place of a value must be known, got {value.place!r}.")
        is_weight = value.place in WEIGHTS
        if value.place != "state" and is_weight != (value.weight is not None):
            raise PlanError(value.name, "a constant or a param has a weight, and nothing else has.")
        _check_weight(value)
    check_recipes(program)
    for kind, named in (("input", program.inputs), ("output", program.outputs)):
        for io in named:
            found = program.values[io.index].place
            if found != "io":
                raise PlanError(io.name, f"an {kind} of the program must lie in io, is {found}.")
    _check_states(program)
    for layer in program.experts:
        _check_experts(program, layer)
    for row in (placed.row for placed in program.walk()):
        if not all(0 <= arg < len(program.values) for arg in row.buffer_indices):
            raise PlanError("program", f"args must be values of it, got {row.buffer_indices}.")
        if isinstance(row, PreparedKernel):
            row.kernel.check_loaded()
            _check_written(program, row)


def _check_experts(program: Program, layer: ExpertLayer) -> None:
    """Every stack is a weight that has a matrix for each expert."""
    for index in (*layer.ids, *layer.stacks):
        if not 0 <= index < len(program.values):
            raise PlanError("experts", f"must be values of the program, got {index}.")
    for value in (program.values[index] for index in layer.stacks):
        shape = value.type.shape
        if value.place not in WEIGHTS or not shape or shape[0] != layer.num_experts:
            raise PlanError(
                value.name, f"must be a weight of {layer.num_experts} experts, is {value.type}."
            )


def _check_states(program: Program) -> None:
    """Every value that is kept belongs to one state, and what states say fits their values."""
    held = {v.variable.name: v for v in program.variables if v.next is not None}
    for name, variable in held.items():
        if variable.initial is None:
            raise PlanError(f"variable '{name}'", "is held, it must have a first value.")
    seen: set[int] = set()
    for state in program.states:
        where, halves = f"state '{state.name}'", [state.index]
        halves += [] if state.other is None else [state.other]
        values = [program.values[i] for i in halves if 0 <= i < len(program.values)]
        if len(values) != len(halves) or any(v.place != "state" for v in values):
            raise PlanError(where, f"must lie in values that are states, got {halves}.")
        is_shared = len(set(halves)) < len(halves) or not seen.isdisjoint(halves)
        if is_shared or any(v.type != values[0].type for v in values):
            raise PlanError(where, "must have values of its own, of one type.")
        seen.update(halves)
        shape = values[0].type.shape
        if not all(isinstance(dim, int) for dim in shape):
            raise PlanError(where, f"must have a shape of numbers, got {values[0].type}.")
        _check_cursor(where, state, shape, held)
    if len({state.name for state in program.states}) != len(program.states):
        raise PlanError("program", "each state needs a name of its own.")
    types = {state.name: program.values[state.index].type for state in program.states}
    inputs = {io.name for io in program.inputs}
    for state in program.states:
        if state.rows is not None:
            where = f"state '{state.name}'"
            _check_rows(where, state.rows, types[state.name].shape, types)
            if state.rows.counts and state.rows.counts not in inputs:
                raise PlanError(where, f"has no input '{state.rows.counts}' that counts its rows.")
    for i, value in enumerate(program.values):
        if value.place == "state" and i not in seen:
            raise PlanError(value.name, "a value that is kept must be that of a state.")


def _check_cursor(
    where: str, state: ProgramState, shape: Shape, held: Mapping[str, PlanVariable]
) -> None:
    if (state.axis is None) != (state.cursor is None):
        raise PlanError(where, "a cursor needs an axis, and an axis a cursor.")
    if state.axis is None or state.cursor is None:
        if state.is_append and state.rows is None:
            raise PlanError(where, "rows are appended behind a cursor, it has none.")
        return
    cursor = held.get(state.cursor)
    if cursor is None:
        raise PlanError(where, f"its cursor must be a held variable, got '{state.cursor}'.")
    room = shape[state.axis] if 0 <= state.axis < len(shape) else None
    low, most = cursor.variable.min, cursor.variable.max
    if room is None or most is None or low < 0 or is_positive(most - room):
        raise PlanError(where, f"'{state.cursor}' must stay inside axis {state.axis} of {shape}.")


def _check_rows(where: str, rows: StateRows, shape: Shape, types: Mapping[str, TensorType]) -> None:
    """The lengths of sequences are a state too, and so is the table of their blocks."""
    lengths, table = types.get(rows.lengths), types.get(rows.table)
    is_good = lengths is not None and lengths.dtype == INT64 and lengths.rank == 1
    is_good = is_good and 0 <= rows.axis < len(shape)
    count = lengths.shape[0] if lengths is not None and is_good else None
    if rows.table:
        is_good = is_good and table is not None and table.dtype == INT32 and table.rank == 2
        is_good = is_good and table is not None and table.shape[0] == count
        is_good = is_good and rows.block_rows > 0 and mod(shape[rows.axis], rows.block_rows) == 0
    else:
        is_good = is_good and rows.axis > 0 and shape[0] == count
    if not is_good:
        raise PlanError(where, f"its rows must be those of sequences that are states, got {rows}.")


def _check_written(program: Program, row: PreparedKernel) -> None:
    """Constants are the same in all plans, and may lie in a file: nobody writes there."""
    signature = row.kernel.signature
    for arg, spec in zip(row.buffer_indices, signature.buffers, strict=False):  # counted later
        if "w" in spec.access and program.values[arg].place in WEIGHTS:
            raise PlanError(row.name, f"'{spec.name}' is written, it must be no constant.")


def _check_weight(value: ProgramValue) -> None:
    if value.weight is None:
        return
    array = value.weight.array
    if array.shape != value.type.shape or array.dtype != value.type.dtype.numpy:
        raise PlanError(
            value.name, f"array must be {value.type}, got {array.dtype}{list(array.shape)}."
        )

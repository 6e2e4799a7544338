"""Layers of experts in a program: their stacks in a file, and a row that brings in who is needed.

    Program  --with_residency-->  Program: stacks in a StackFile, one row more for each layer

A stack is a weight whose first axis is that of experts, and that nothing but the products of its
layer read. The row comes once it is known who is routed to and before these products: it
says that it writes the ids, so that whatever follows from them waits for it. It is a fence, too:
the rows before it are over, which is how whoever keeps experts knows that a layer is.

It is in a branch: a flag of the plan says that nobody of the layer is missing, and then nothing is
called. Where it lies is told by the attributes of the row.

What the row does is the plan's own business (`Engine.use_function`). Without that, it brings
in who is needed, for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from semel.errors import PlanError, UnsupportedError
from semel.ir.types import BOOL, INT64, TensorType
from semel.plan.hoist import hoisted, numbered
from semel.plan.program import ExpertLayer, Program, ProgramValue
from semel.plan.rows import PreparedBranch, PreparedCustomFunction, PreparedOp
from semel.plan.spill import Spill
from semel.plan.tree import num_rows, walk
from semel.plan.weights import HOST, Weight
from semel.runtime.buffer import Buffer
from semel.runtime.custom import CustomFunction
from semel.runtime.stacks import StackFile, StackMemory

EXPERTS = "experts"
#: What a row does of bringing experts in: all of it, or one half.
WHOLE, BEGIN, END = "whole", "begin", "end"


class ExpertWeight(Weight):
    """A stack of experts: the array is that of its file, and kernels read a `StackMemory`."""

    __slots__ = ("file", "num_experts")

    def __init__(
        self, array: np.ndarray[Any, Any], memory: StackMemory, file: StackFile | None
    ) -> None:
        super().__init__(array, memory)
        self.num_experts, self.file = memory.count, file

    @property
    def held_bytes(self) -> int:
        memory = self._memory[HOST]
        assert isinstance(memory, StackMemory)
        return memory.held_bytes

    def succeeded_by(self, weight: Weight) -> Weight:
        """The weight that replaces this one, in a file of its own."""
        if weight.is_absent:
            return weight
        spill = Spill([weight.array])
        file = spill.write("" if self.file is None else self.file.directory)
        return stacked(weight, file, spill.offsets[0], self.num_experts)


def stacked(weight: Weight, file: StackFile | None, offset: int, num_experts: int) -> ExpertWeight:
    """The weight, whose bytes lie in a file; an absent one has none."""
    size = weight.array.nbytes
    memory = StackMemory(file, offset, num_experts, size // num_experts)
    array = weight.array
    if file is not None:
        array = np.ndarray(array.shape, array.dtype, file.bytes.data, offset)
    made = ExpertWeight(array, memory, file)
    made.is_absent = weight.is_absent
    return made


def with_residency(
    program: Program,
    numbers: Mapping[int, str],
    path: str | None,
    *,
    ahead: bool = True,
    plan_file: StackFile | None = None,
) -> Program:
    """The program with the stacks of these layers, by the names of their ids, in a file.

    Weights that are views of `plan_file` are read from there; all others are written to one.
    """
    layers = _named_layers(program, numbers)
    stacks = {i: layer.num_experts for layer in layers.values() for i in layer.stacks}
    return _with_rows(_with_stacks(program, stacks, path, plan_file), layers, ahead)


def _named_layers(program: Program, numbers: Mapping[int, str]) -> dict[int, ExpertLayer]:
    kept = dict(program.kept)
    found: dict[int, ExpertLayer] = {}
    for number, name in numbers.items():
        own = [layer for layer in program.experts if kept[name] in layer.ids and layer.stacks]
        if not own:
            raise UnsupportedError(
                f"layer {number}",
                "must have experts in stacks of its own: all that its products read for an expert "
                "must be entries of weights that have one for each, and that nothing else reads.",
                hint="Compile without experts=, or with weights that are constants or params.",
            )
        found[number] = own[0]
    return found


def _with_stacks(
    program: Program, stacks: Mapping[int, int], path: str | None, plan_file: StackFile | None
) -> Program:
    """The program with these values, by their number of experts, in files."""
    weights = {i: _weight(program.values[i]) for i in stacks}
    kinds = {weights[i]: count for i, count in stacks.items()}
    found: dict[Weight, tuple[StackFile | None, int]] = {}
    for weight in kinds if path is None else ():
        if plan_file is not None and not weight.is_absent:
            offset = plan_file.offset_of(weight.array)
            found |= {} if offset is None else {weight: (plan_file, offset)}
    others = [w for w in kinds if not w.is_absent and w not in found]
    if others or path is not None:
        spill = Spill([w.array for w in others])
        file = spill.write_to(path)
        found |= {w: (file, at) for w, at in zip(others, spill.offsets, strict=True)}
    made = {w: stacked(w, *found.get(w, (None, 0)), count) for w, count in kinds.items()}
    values = tuple(
        replace(value, weight=made[weights[i]]) if i in weights else value
        for i, value in enumerate(program.values)
    )
    params = tuple(
        replace(p, raw=made[p.raw]) if p.raw in made and not p.is_kept else p
        for p in program.params
    )
    return replace(program, values=values, params=params)


def _weight(value: ProgramValue) -> Weight:
    assert value.weight is not None, "a stack is a weight"
    return value.weight


# ---------------------------------------------------------------- rows


def _with_rows(program: Program, layers: Mapping[int, ExpertLayer], ahead: bool) -> Program:
    """The program with a row for each layer, where its ids are known; one may have them already.

    With `ahead`, ids are made as early as they can be, and where other rows come before the
    products there are two for a layer: one begins to bring experts in, the other waits for them.
    """
    there = [placed.row for placed in walk(program.rows) if placed.row.kind == EXPERTS]
    if there:
        _check_rows(program, there, layers)
        return program
    for layer in layers.values() if ahead else ():
        program = hoisted(program, layer.ids)
    ends = {number: _last_use(program.rows, layer.stacks) for number, layer in layers.items()}
    starts = {number: _where_known(program.rows, layer.ids) for number, layer in layers.items()}
    new: dict[int, list[PreparedOp]] = {}
    flags: list[ProgramValue] = []
    for number, layer in layers.items():
        at = starts[number]
        over = [other for other, end in ends.items() if end < at]
        flag = len(program.values) + len(flags)
        flags.append(ProgramValue(f"layer {number} is full", TensorType((1,), BOOL), "io"))
        first = _first_use(program.rows, layer.stacks)
        others = (row for row in program.rows[at:first] if not _touches(row, set(layer.ids)))
        places = {at: BEGIN, first: END} if ahead and any(others) else {at: WHOLE}
        for place, part in places.items():
            attrs = {"layer": number, "ids": len(layer.ids), "over": over, "flag": flag}
            values = (*layer.ids, *layer.stacks)
            row = PreparedCustomFunction(0, EXPERTS, {**attrs, "part": part}, values)
            new.setdefault(place, []).append(PreparedBranch(0, (flag,), (), (row,)))
    made = insert_rows(program, new)
    return replace(made, values=(*made.values, *flags))


def _check_rows(
    program: Program, rows: Sequence[PreparedOp], layers: Mapping[int, ExpertLayer]
) -> None:
    """Rows that a program has are those of its layers."""
    found: dict[int, tuple[int, ...]] = {}
    for row in rows:
        assert isinstance(row, PreparedCustomFunction)
        flag = row.attrs["flag"] if isinstance(row.attrs, Mapping) and "flag" in row.attrs else -1
        if not 0 <= flag < len(program.values) or program.values[flag].type.dtype != BOOL:
            raise PlanError(EXPERTS, f"a row must have the flag of its layer, got {row.attrs!r}.")
        found[row.attrs.get("layer")] = row.buffer_indices
    wanted = {number: (*layer.ids, *layer.stacks) for number, layer in layers.items()}
    if found != wanted:
        raise PlanError(EXPERTS, f"rows must be those of layers {sorted(layers)}, got others.")


def _last_use(rows: Sequence[PreparedOp], values: Iterable[int]) -> int:
    """The outermost row that touches one of these last."""
    wanted = set(values)
    return max(i for i, row in enumerate(rows) if _touches(row, wanted))


def _first_use(rows: Sequence[PreparedOp], values: Iterable[int]) -> int:
    wanted = set(values)
    return next(i for i, row in enumerate(rows) if _touches(row, wanted))


def _where_known(rows: Sequence[PreparedOp], ids: Iterable[int]) -> int:
    """The outermost row behind those that make these: the first that touches each does."""
    return 1 + max(next(i for i, row in enumerate(rows) if _touches(row, {v})) for v in ids)


def _touches(row: PreparedOp, values: set[int]) -> bool:
    return any(not values.isdisjoint(placed.row.buffer_indices) for placed in walk([row]))


def insert_rows(program: Program, new: Mapping[int, Sequence[PreparedOp]]) -> Program:
    """The program with rows before some of its outermost ones, by number.

    It is one that was compiled: nothing but bytes says who depends on whom.
    """
    rows: list[PreparedOp] = []
    position: list[int] = []  # of each old row, in the tree
    more = 0
    for i, row in enumerate(program.rows):
        rows += [*new.get(i, ()), row]
        more += sum(map(num_rows, new.get(i, ())))
        position += range(len(position) + more, len(position) + more + num_rows(row))
    return replace(
        program,
        rows=numbered(rows, 0),
        values=tuple(
            replace(v, first=position[v.first], last=position[v.last]) for v in program.values
        ),
        nodes=tuple(
            replace(note, ops=tuple(position[op] for op in note.ops)) for note in program.nodes
        ),
    )


# ---------------------------------------------------------------- the row


def _num_ids(attrs: Any) -> tuple[int, ...]:
    return tuple(range(attrs["ids"]))


def bring_routed(attrs: Any, buffers: Sequence[Buffer], variables: Mapping[str, int]) -> None:
    """Bring in who is routed to and is not there; nobody ever leaves."""
    routed = np.unique(buffers[0].array()).tolist()
    for buffer in buffers[attrs["ids"] :]:
        if isinstance(buffer.memory, StackMemory):
            buffer.memory.bring(sorted(set(routed) - set(buffer.memory.held())))


def _check_row(attrs: Any, types: Sequence[TensorType], names: Sequence[str]) -> None:
    """What can be wrong with a row from a file."""
    known = {"layer": int, "ids": int, "flag": int, "part": str, "over": list}
    is_good = isinstance(attrs, Mapping) and attrs.keys() == known.keys()
    is_good = is_good and all(isinstance(attrs[name], kind) for name, kind in known.items())
    if not is_good or not 0 < attrs["ids"] < len(types):
        raise PlanError(EXPERTS, f"a row must say which layer it is for, got {attrs!r:.200}.")
    ids = types[: attrs["ids"]]
    if any(kind.dtype != INT64 or kind.rank != 1 for kind in ids):
        raise PlanError(EXPERTS, f"ids must be int64 of one axis, got {list(map(str, ids))}.")


FUNCTIONS = {
    EXPERTS: CustomFunction(EXPERTS, "python", bring_routed, 0, None, _num_ids, _check_row, True),
}

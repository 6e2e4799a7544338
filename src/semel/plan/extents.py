"""Extents: how much of its inputs and outputs a run reads and writes.

    inputs x : f32[512, 4], of which n rows are read     set_extent("n", 100)  -->  100 rows

Tensors with an extent have their largest shape, in the caller's arrays too. What lies behind the
extent is neither read nor written, and nothing is computed for it: the sizes of all that the plan
does follow from the variable.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from semel.errors import VariableError
from semel.ir.expr import evaluate, variables
from semel.ir.types import TensorType
from semel.plan.parts import PlanParts
from semel.plan.plan_state import part_key
from semel.plan.program import PlanIO
from semel.runtime.buffer import Buffer


def check_extent(parts: PlanParts, name: str, value: int, values: Mapping[str, int]) -> None:
    """Raise unless runs can have this extent, as far as that is known before one."""
    extents = parts.program.extents
    if name not in extents:
        known = ", ".join(extents) or "none"
        raise VariableError("extent", f"must be one of the plan ({known}), got {name!r}.")
    variable = extents[name]
    if variable.max is None or not variable.min <= value <= variable.max:
        raise VariableError(
            "extent",
            f"'{name}' must lie in [{variable.min}, {variable.max}], got {value}.",
            variable=name,
            value=value,
        )
    known_then = {**values, name: value}
    for amount, text in parts.guards:
        used = {v.name for v in variables(amount)}
        if name in used and used <= known_then.keys() and evaluate(amount, known_then) != 0:
            raise VariableError(
                "extent", f"'{name}' cannot be {value}: {text}", variable=name, value=value
            )


def names_in(kind: TensorType) -> set[str]:
    """The names of the variables in a shape."""
    return {v.name for dim in kind.shape for v in variables(dim)}


def fill_part(buffer: Buffer, io: PlanIO, values: Mapping[str, int]) -> None:
    """Overwrite the part of an output that the next run is to write; its bytes become 0xFF."""
    shape = tuple(evaluate(dim, values) for dim in io.type.shape)
    part = part_key(io.part, values)
    raw = np.full(prod(shape) * io.type.dtype.size_bytes, 0xFF, np.uint8)
    buffer.put_part(shape, part, raw.view(io.type.dtype.numpy).reshape(shape)[part])

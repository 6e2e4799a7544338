"""What a caller says about the dims of a model: read, checked against what dims there are.

{"batch": 1, "seq": (1, 512), "seq_1": "seq"}  --read_dims-->  what is fixed, bounds of others
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias

from semel.errors import InputError
from semel.frontends.onnx.build import dim_name, is_open
from semel.frontends.onnx.file import Model
from semel.ir.expr import Variable
from semel.ir.fields import as_index

#: What dims are instead: numbers, other names, variables with their bounds.
Fixed: TypeAlias = "dict[str, int | str | Variable]"


def dim_names(model: Model) -> dict[str, str]:
    """What dims of inputs are called, by that and by how the model has them."""
    found: dict[str, str] = {}
    for given in model.proto.graph.input:
        if is_open(given.type):
            continue
        for axis, dim in enumerate(given.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value") or dim.dim_value < 0:
                own = dim_name(dim.dim_param, given.name, axis)
                found |= {own: own, **({dim.dim_param: own} if dim.dim_param else {})}
    return found


def read_dims(model: Model, given: Any) -> tuple[Fixed, dict[str, tuple[int, int | None]]]:
    """What says what dims are, and bounds of others; a dim that may be 0 is a variable at once."""
    if given is None:
        return {}, {}
    if not isinstance(given, Mapping):
        raise InputError("load", f"dims must map names of dims to what they are, got {given!r}.")
    names = dim_names(model)
    fixed: Fixed = {}
    bounds: dict[str, tuple[int, int | None]] = {}
    for name, said in given.items():
        if name not in names:
            known = ", ".join(sorted(set(names.values()))) or "none"
            raise InputError("load", f"dims must be of the model's ({known}), got {name!r}.")
        number = as_index(said)
        if isinstance(said, (str, Variable)):
            fixed[name] = said
        elif number is not None and number >= 0:
            fixed[name] = number
        elif isinstance(said, (tuple, list)) and len(said) == 2:
            low, high = _bounds(name, said)
            if low:
                bounds[names[name]] = low, high
            else:
                fixed[name] = Variable(names[name], 0, high)
        else:
            _refuse(name, said)
    return {name: _followed(name, fixed) for name in fixed}, bounds


def _bounds(name: str, said: Any) -> tuple[int, int | None]:
    low, high = as_index(said[0]), as_index(said[1])
    is_upper = said[1] is None or high is not None
    if low is None or not is_upper or low < 0 or (high is not None and high < low):
        _refuse(name, said)
    return low, high


def _followed(name: str, fixed: Fixed) -> int | str | Variable:
    """What a dim is if it is another one, of which something is said as well."""
    seen, said = {name}, fixed[name]
    while isinstance(said, str) and said in fixed and said not in seen:
        seen.add(said)
        said = fixed[said]
    return said


def _refuse(name: str, said: Any) -> NoReturn:
    raise InputError(
        "load",
        f"dim '{name}' must be a size, (least, largest or None), the name of another dim or a "
        f"Variable, got {said!r}.",
    )

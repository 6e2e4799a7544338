"""Models whose sizes are variables, and other sizes to run them at.

    model  --with_symbols-->  every dim of every input that is no weight has a name of its own
    model, inputs  --other_sizes-->  inputs of other sizes, and what `onnx.reference` makes of them

Which sizes go together only the operators know. So sizes are changed in several ways, the widest
first, until the standard's own shape inference and the reference both accept what comes out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

#: (number of the input, axis) -> its new size.
Sizes: TypeAlias = "dict[tuple[int, int], int]"
Found: TypeAlias = "tuple[list[Any], list[Any]]"

_MOST, _MOST_AXES = 1 << 20, 8
_WAYS: tuple[Callable[[int], int], ...] = (lambda n: n + 1, lambda n: 2 * n)


def _inputs(model: onnx.ModelProto) -> list[Any]:
    weights = {tensor.name for tensor in model.graph.initializer}
    return [given for given in model.graph.input if given.name not in weights]


def _dims(given: Any) -> list[tuple[int, Any]]:
    """The axes of an input that can be variables, with their dims."""
    if not given.type.HasField("tensor_type"):
        return []
    dims = enumerate(given.type.tensor_type.shape.dim)
    return [(axis, dim) for axis, dim in dims if dim.dim_value > 0]


def num_symbols(model: onnx.ModelProto) -> int:
    """How many dims of its inputs can be variables."""
    return sum(len(_dims(given)) for given in _inputs(model))


def with_symbols(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every dim of its inputs, weights aside, a variable of its own."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for given in _inputs(made):
        for axis, dim in _dims(given):
            name = re.sub(r"\W", "_", given.name)
            dim.dim_param = f"{name}_{axis}"
    return made


def other_sizes(
    model: onnx.ModelProto, inputs: list[Any], check: Callable[[list[Any]], None]
) -> Found | str:
    """Inputs of other sizes and what is right for them; or why there are none.

    `check` compares what the reference makes of the inputs as they are with what is expected.
    """
    names = [given.name for given in _inputs(model)]
    if sum(np.size(x) for x in inputs if isinstance(x, np.ndarray)) > _MOST:
        return "large inputs"
    try:
        evaluator = ReferenceEvaluator(model)
        check(list(evaluator.run(None, dict(zip(names, inputs, strict=False)))))
    except Exception:
        return "the reference does not do what the case expects"
    for sizes in _candidates(model, inputs):
        found = _accepted(model, evaluator, names, inputs, sizes)
        if found is not None:
            return found
    return "no other sizes are accepted"


def _candidates(model: onnx.ModelProto, inputs: list[Any]) -> Iterator[Sizes]:
    """Ways to change sizes: all of them, equal ones together, one after the other."""
    pairs = zip(_inputs(model), inputs, strict=False)
    old = {
        (i, axis): x.shape[axis]
        for i, (given, x) in enumerate(pairs)
        for axis, _ in (_dims(given) if isinstance(x, np.ndarray) else ())
    }
    # Shapes, axes and pads: their length is how many axes something has.
    plain = {at: n for at, n in old.items() if not _is_about_axes(inputs[at[0]])}
    groups = [plain, {at: n for at, n in plain.items() if n > 1}]
    groups += [{at: n for at, n in plain.items() if at[1] == 0}]
    by_size = sorted(set(plain.values()), key=lambda n: (n == 1, n))
    groups += [{at: n for at, n in plain.items() if n == size} for size in by_size]
    groups += [{at: n} for at, n in sorted(plain.items(), key=lambda item: item[1] == 1)]
    groups += [{at: n} for at, n in old.items()]
    seen: list[Sizes] = []
    for group in groups:
        for way in _WAYS:
            sizes = {at: way(n) for at, n in group.items()}
            if sizes and sizes not in seen:
                seen.append(sizes)
                yield sizes


def _is_about_axes(x: Any) -> bool:
    is_short = x.dtype.kind in "iu" and x.size <= _MOST_AXES
    return x.ndim == 1 and (is_short or x.size == 1)  # a number that is written as a vector


def _accepted(
    model: onnx.ModelProto, evaluator: Any, names: list[str], inputs: list[Any], sizes: Sizes
) -> Found | None:
    changed = [_resized(x, i, sizes) for i, x in enumerate(inputs)]
    try:
        inferred = onnx.shape_inference.infer_shapes(
            _with_sizes(model, changed), check_type=True, strict_mode=True, data_prop=True
        )
        with np.errstate(all="ignore"):
            want = list(evaluator.run(None, dict(zip(names, changed, strict=False))))
    except Exception:  # whatever they raise, they do not accept it
        return None
    for output, array in zip(inferred.graph.output, want, strict=True):
        shape = [dim.dim_value for dim in output.type.tensor_type.shape.dim]
        if isinstance(array, np.ndarray) and shape and all(shape) and shape != list(array.shape):
            return None
    return changed, want


def _resized(x: Any, number: int, sizes: Sizes) -> Any:
    """The same numbers, repeated or cut: what indexes and lengths hold stays in bounds."""
    if not isinstance(x, np.ndarray) or not any(i == number for i, _ in sizes):
        return x
    shape = tuple(sizes.get((number, axis), n) for axis, n in enumerate(x.shape))
    return np.resize(x, shape).astype(x.dtype)


def _with_sizes(model: onnx.ModelProto, inputs: list[Any]) -> onnx.ModelProto:
    """The model for arrays like these; nothing is said of its outputs' shapes."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.value_info[:]
    for given, x in zip(_inputs(made), inputs, strict=False):
        for axis, dim in _dims(given):
            dim.dim_value = x.shape[axis]
    for output in made.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    return made

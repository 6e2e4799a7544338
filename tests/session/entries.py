"""Every way to run a compiled graph, as one kind of function; and where to run it.

    ENTRIES["raw"](compiled, {"x": a})  -->  {"y": array}

Another device is one more line in `DEVICES`, and all semantic tests run on it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from semel import CompiledGraph

DEVICES = ["cpu"]

Arrays = dict[str, np.ndarray[Any, Any]]
Entry = Callable[[CompiledGraph, Mapping[str, Any]], Arrays]


def _run(c: CompiledGraph, inputs: Mapping[str, Any]) -> Arrays:
    return dict(c.run(inputs).items())


def _raw(c: CompiledGraph, inputs: Mapping[str, Any]) -> Arrays:
    return {name: view.numpy() for name, view in c.run_raw(inputs).items()}


def _slots(c: CompiledGraph, inputs: Mapping[str, Any]) -> Arrays:
    """What lies where the table of the run says, in the shapes of the outputs now."""
    places = c.run_slots([inputs.get(name) for name in c.inputs])
    found = {}
    for (offset, size), entry, buffer in zip(
        places, c.outputs.values(), c.plan.output_buffers, strict=True
    ):
        data = ctypes.string_at(c.arena_ptr + offset, size)
        found[entry.name] = np.frombuffer(data, entry.dtype.numpy).reshape(buffer.shape)
    return found


def _typed(c: CompiledGraph, inputs: Mapping[str, Any]) -> Arrays:
    given = {n: (np.ascontiguousarray(a).tobytes(), a.dtype, a.shape) for n, a in inputs.items()}
    return {
        name: np.frombuffer(data, dtype.numpy).reshape(shape)
        for name, (data, dtype, shape) in c.run_typed(given).items()
    }


def _committed(c: CompiledGraph, inputs: Mapping[str, Any]) -> Arrays:
    return dict(c.commit_no_wait(inputs).result().items())


def _pipelined(c: CompiledGraph, inputs: Mapping[str, Any]) -> Arrays:
    (only,) = c.run_pipelined([inputs])
    return dict(only.items())


def _into(c: CompiledGraph, inputs: Mapping[str, Any]) -> Arrays:
    first = c.clone().run(inputs)
    arrays = {name: np.full_like(a, 7) for name, a in first.items()}
    return dict(c.run(inputs, out=arrays).items())


ENTRIES: dict[str, Entry] = {
    "run": _run,
    "raw": _raw,
    "slots": _slots,
    "typed": _typed,
    "committed": _committed,
    "pipelined": _pipelined,
    "into": _into,
}

"""What a command works on: a plan and inputs for it, from a name on the command line.

    "demo" | "module:function"  --load_target-->  PlanTarget

The function takes no arguments and returns a plan, or what `semel.prepare` takes (a tensor,
a list, a mapping); or a pair of that and a mapping of inputs. Inputs that are not given are
made up from a seed at the variables' values: numbers around 0 for floats, zeros for
the rest, which is a legal index everywhere.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from semel.cli.encoder import QUICK, EncoderSize, build_encoder
from semel.compiler.pipeline import prepare_graph
from semel.errors import InputError
from semel.ir.expr import evaluate
from semel.plan.plan import ExecutionPlan
from semel.tensor.realize import prepare

_SEED = 20
_DEFAULT_VALUE = 64


@dataclass(frozen=True, slots=True)
class PlanTarget:
    """A plan, and the inputs that came with it."""

    name: str
    plan: ExecutionPlan
    inputs: Mapping[str, Any]


def load_target(name: str, *, threads: int | None = None, quick: bool = False) -> PlanTarget:
    """The demo's encoder, or whatever the named function returns, prepared."""
    if name == "demo":
        graph = build_encoder(QUICK if quick else EncoderSize())
        return PlanTarget(name, prepare_graph(graph, threads=threads), {})
    made = _call(name)
    inputs: Mapping[str, Any] = {}
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], Mapping):
        made, inputs = made
    plan = made if isinstance(made, ExecutionPlan) else prepare(made, threads=threads)
    return PlanTarget(name, plan, inputs)


def _call(name: str) -> Any:
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise InputError("command", f"must be 'demo' or MODULE:FUNCTION, got {name!r}.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InputError("command", f"there must be a module {module_name!r}: {error}.") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise InputError("command", f"{module_name!r} must have a function {function_name!r}.")
    return function()


def run_target(target: PlanTarget, values: Mapping[str, int]) -> None:
    """Write the inputs and execute once, so that everything is bound and warm."""
    plan = target.plan
    unknown = sorted(set(values) - set(plan.variables))
    if unknown:
        known = ", ".join(plan.variables) or "none"
        raise InputError("command", f"has no variable {unknown[0]!r}; known: {known}.")
    if not plan.inputs:
        plan.execute_with_vars(values)
        return
    given = dict(target.inputs) if target.inputs else example_inputs(plan, values)
    plan(**given)


def example_inputs(plan: ExecutionPlan, values: Mapping[str, int]) -> dict[str, Any]:
    """Inputs for these values; a variable without one is 64, or as near as its bounds allow."""
    bound = {
        v.name: values.get(v.name, max(v.min, min(_DEFAULT_VALUE, v.max or _DEFAULT_VALUE)))
        for v in (known.variable for known in plan.program.variables)
    }
    rng = np.random.default_rng(_SEED)
    found: dict[str, Any] = {}
    for name, kind in ((io.name, io.type) for io in plan.program.inputs):
        shape = tuple(evaluate(dim, bound) for dim in kind.shape)
        if kind.dtype.kind == "f":
            found[name] = rng.standard_normal(shape).astype(kind.dtype.numpy)
        else:
            found[name] = np.zeros(shape, kind.dtype.numpy)
    return found


def parse_values(texts: list[str]) -> dict[str, int]:
    """`["n=37", "m=2"]` as values of variables."""
    found: dict[str, int] = {}
    for text in texts:
        name, _, number = text.partition("=")
        if not name or not number.isdecimal():
            raise InputError("command", f"a value must look like n=37, got {text!r}.")
        found[name] = int(number)
    return found

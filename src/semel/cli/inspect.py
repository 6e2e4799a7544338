"""`semel inspect`: what a model takes and gives, what it is made of, and what it will need.

    model  -->  inputs, outputs, variables, operators, nodes that are not supported, memory

Exit code 1 if the model has nodes that are not supported; all of them are named. Memory is that of
a plan made for the sizes shown, which `--dim` chooses; nothing is run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from semel.cli.grammar import Commands, add_choices, add_command, add_inputs, add_target, parse_dims
from semel.cli.loaded import COMPILED, HOSTED, SPECIALISED, LoadedTarget, is_file, load_target
from semel.cli.report import Section, count_of, format_bytes, format_seconds, show
from semel.errors import SemelError, UnsupportedError
from semel.loading import machines_of
from semel.plan.plan import ExecutionPlan

if TYPE_CHECKING:
    from semel.frontends.onnx.describe import Description

_MOST_OPERATORS = 12
_FORMS = {
    COMPILED: "compiled once, for all sizes",
    SPECIALISED: "compiled once for each form: what inputs hold decides what is computed",
    HOSTED: "nodes about text or images run on the host, the rest is compiled",
}


@dataclass(frozen=True, slots=True)
class Named:
    """An input or output, as text."""

    name: str
    dtype: str
    shape: str


@dataclass(frozen=True, slots=True)
class Inspection:
    """All that the command found; what needs a plan is empty where there is none."""

    target: str
    form: str = ""
    producer: str = ""
    opsets: dict[str, int] = field(default_factory=dict)
    inputs: tuple[Named, ...] = ()
    outputs: tuple[Named, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    operators: dict[str, int] = field(default_factory=dict)
    unsupported: tuple[str, ...] = ()
    deciding: tuple[str, ...] = ()
    undecided: str = ""
    kernels: int | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    weights: int | None = None
    weights_bytes: int | None = None
    prepare_seconds: float | None = None
    machines: tuple[str, ...] = ()
    layouts: tuple[tuple[str, ...], ...] = ()
    again_bytes: int = 0


def run(arguments: argparse.Namespace) -> int:
    """The command: 1 if there are nodes that are not supported."""
    found = inspect_target(arguments)
    if arguments.json:
        print(json.dumps(asdict(found), indent=2))
    else:
        show(sections(found))
    return 1 if found.unsupported else 0


def inspect_target(arguments: argparse.Namespace) -> Inspection:
    """Look at the file, and at what it is compiled to, if it can be."""
    about = _file_record(arguments.target)
    try:
        target = load_target(arguments)
    except UnsupportedError as error:
        if not about:
            raise
        refused = getattr(error, "refused", None) or [str(error)]
        return Inspection(arguments.target, unsupported=tuple(refused), **about)
    return Inspection(arguments.target, **{**about, **_compiled_record(target, arguments)})


def _file_record(name: str) -> dict[str, Any]:
    """What a file says of itself, without being compiled; nothing of other targets."""
    if not is_file(name):
        return {}
    if name.endswith(".plan"):
        found = machines_of(name)
        return {
            "machines": found.names,
            "layouts": found.layouts,
            "again_bytes": found.again_bytes,
        }
    try:
        from semel.frontends.onnx.describe import describe_model  # needs onnx
    except ModuleNotFoundError:
        return {}  # loading it says what is missing
    model: Description = describe_model(name)
    return {
        "producer": model.producer,
        "opsets": model.opsets,
        "operators": model.operators,
        "weights": model.weights,
        "weights_bytes": model.weights_bytes,
        "inputs": tuple(Named(d.name, d.kind, _shape(d.shape)) for d in model.inputs),
        "outputs": tuple(Named(d.name, d.kind, _shape(d.shape)) for d in model.outputs),
    }


def _compiled_record(target: LoadedTarget, arguments: argparse.Namespace) -> dict[str, Any]:
    sizes = parse_dims(arguments.dim)
    found: dict[str, Any] = {
        "form": target.form,
        "prepare_seconds": target.seconds,
        "variables": {n: str(_bounds(v.min, v.max)) for n, v in target.variables.items()},
    }
    if target.form == COMPILED:
        plan = target.graph.plan
        inputs = target.inputs(arguments.input, sizes, arguments.seed) if arguments.input else {}
        return found | _tables(plan) | _plan_record(plan, target.sizes(inputs, sizes))
    try:
        inputs = target.inputs(arguments.input, sizes, arguments.seed)
        plan = target.plan_for(inputs)
        bound = {n: v for n, v in target.sizes(inputs, sizes).items() if n in plan.variables}
        found |= _plan_record(plan, bound)
    except SemelError as error:  # made-up inputs may well be none that it takes
        found["undecided"] = str(error)
    return found | {"deciding": tuple(target.graph.deciding_inputs)}


def _tables(plan: ExecutionPlan) -> dict[str, Any]:
    return {
        what: tuple(Named(e.name, e.dtype.name, _shape(e.shape)) for e in table.values())
        for what, table in (("inputs", plan.inputs), ("outputs", plan.outputs))
    }


def _plan_record(plan: ExecutionPlan, sizes: Mapping[str, int]) -> dict[str, Any]:
    memory = plan.memory
    known = all(name in sizes for name in plan.variables)
    memory = memory.at(**sizes) if known else memory
    parts = ("weights", "arena", "io", "state", "scratch", "naive", "peak")
    return {
        "kernels": len(plan.prepared_kernels),
        "sizes": dict(sizes),
        "memory": {part: int(getattr(memory, f"{part}_bytes")) for part in parts},
    }


def _shape(shape: Sequence[Any] | None) -> str:
    return "any" if shape is None else f"[{', '.join(map(str, shape))}]"


def _bounds(low: int, high: int | None) -> str:
    return f"{low} and more" if high is None else f"{low} to {high}"


# ---------------------------------------------------------------- text


def sections(found: Inspection) -> list[Section]:
    """The inspection as tables for people."""
    made = [Section(found.target, tuple(_about(found)))]
    head = ("name", "dtype", "shape")
    for what, named in (("inputs", found.inputs), ("outputs", found.outputs)):
        rows = tuple((each.name, each.dtype, each.shape) for each in named)
        made.append(Section(what, rows, head))
    if found.variables:
        rows = tuple(
            (name, bounds, str(found.sizes.get(name, "")))
            for name, bounds in found.variables.items()
        )
        made.append(Section("variables", rows, ("name", "bounds", "here")))
    if found.operators:
        made.append(_operators(found.operators))
    if found.unsupported:
        made.append(Section("not supported", tuple((text,) for text in found.unsupported)))
    if found.memory:
        made.append(_memory(found))
    return made


def _about(found: Inspection) -> list[tuple[str, str]]:
    rows = []
    if found.producer or found.opsets:
        opsets = ", ".join(f"{domain} {version}" for domain, version in found.opsets.items())
        rows.append(("model", f"{found.producer or 'unknown producer'}; opsets: {opsets}"))
    if found.weights_bytes is not None:
        rows.append(("weights", f"{found.weights}, {format_bytes(found.weights_bytes)}"))
    if found.form:
        rows.append(("form", _FORMS[found.form]))
    if found.machines:
        rows.append(("code for", ", ".join(found.machines)))
    if len(found.layouts) > 1:
        rows.append(("weights", _layouts(found)))
    if found.deciding:
        rows.append(("decided by", ", ".join(found.deciding)))
    if found.undecided:
        rows.append(("no plan yet", f"give it inputs (--input): {found.undecided}"))
    if found.kernels is not None and found.prepare_seconds is not None:
        rows.append(("kernels", f"{found.kernels}, ready {format_seconds(found.prepare_seconds)}"))
    return rows


def _layouts(found: Inspection) -> str:
    """Which machines read the same weights, and what the others cost."""
    alike = "; ".join(" and ".join(names) for names in found.layouts)
    return (
        f"in {len(found.layouts)} layouts ({alike}): {format_bytes(found.again_bytes)} are there "
        "again, packed for registers of another width"
    )


def _operators(counts: Mapping[str, int]) -> Section:
    rows = [(name, str(count)) for name, count in counts.items()]
    rest = rows[_MOST_OPERATORS:]
    notes = (f"and {len(rest)} others; --json has all",) if rest else ()
    title = f"operators: {count_of(sum(counts.values()), 'node')}"
    return Section(title, tuple(rows[:_MOST_OPERATORS]), ("operator", "nodes"), notes)


def _memory(found: Inspection) -> Section:
    memory = found.memory
    saved = f"{format_bytes(memory['naive'])} without sharing"
    rows = [
        ("weights", format_bytes(memory["weights"])),
        ("intermediates", f"{format_bytes(memory['arena'])} ({saved})"),
        ("inputs, outputs", format_bytes(memory["io"])),
    ]
    rows += [("states", format_bytes(memory["state"]))] if memory["state"] else []
    rows += [("scratch", format_bytes(memory["scratch"]))] if memory["scratch"] else []
    rows.append(("all", format_bytes(memory["peak"])))
    at = ", ".join(f"{name}={size}" for name, size in found.sizes.items())
    return Section(f"memory at {at}" if at else "memory", tuple(rows))


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    """The grammar of the command."""
    text = "what a model takes, gives and is made of, what is not supported, and its memory"
    parser = add_command(commands, "inspect", text, run)
    add_target(parser)
    add_inputs(parser)
    add_choices(parser)

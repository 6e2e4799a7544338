"""What a file or a pickle of a plan is made from, and a plan that goes on as it was saved.

    Engine  --pass_source-->  Program, or PlanImage of a plan built by hand  -->  plan.file.write
    values, shapes  --resume-->  Engine of a plan from a file

A program never changes, so that a compiled plan can be written at any time, runs or not. A plan
built by hand is saved with its memory: it can neither run nor change meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from semel.errors import PlanError
from semel.ir.fields import NO_LIMIT, take_items
from semel.plan.again import compile_again
from semel.plan.engine import Engine
from semel.plan.file.write import PlanImage, pack_plan, save_plan, take_image
from semel.plan.program import Program
from semel.runtime.device import DeviceCode

R = TypeVar("R")
Source = Program | PlanImage


def save_to(
    path: str | os.PathLike[str],
    engine: Engine,
    targets: Sequence[str] | None,
    about: Mapping[str, Any] | None,
) -> None:
    """Write the plan to a file, with code for each of `targets` beside that of its own."""
    others = _own_code_alone(engine) if targets is None else _programs_for(engine, targets)
    pass_source(engine, lambda source: save_plan(source, _code(engine), path, others, about))


def pack(engine: Engine) -> bytes:
    """The contents of a file of the plan."""
    return pass_source(engine, lambda source: pack_plan(source, _code(engine)))


def pass_source(engine: Engine, write: Callable[[Source], R]) -> R:
    """`write(what a file of this plan is made from)`."""
    if engine.store is not None:
        return write(engine.program)
    result: R = engine.hold.alone(_pass_image, engine, write)
    return result


def _pass_image(engine: Engine, write: Callable[[Source], R]) -> R:
    engine.state.check_alive()
    engine.bindings.detach()
    try:
        inputs = engine.state.inputs
        bound = {name: engine.bindings.input_array(name) for name in inputs}
        image = take_image(
            engine.parts,
            engine.state.bound_values(),
            {name: keeper.recorded_shape() for name, keeper in inputs.items()},
            {name: array for name, array in bound.items() if array is not None},
            tuple(engine.state.run.marks),
        )
        return write(image)
    finally:
        engine.attach()


def _code(engine: Engine) -> DeviceCode:
    """The device's own code that goes with the code of the kernels."""
    return engine.parts.device.device_code(engine.parts.program.target)


def _own_code_alone(engine: Engine) -> tuple[()]:
    """Nothing beside the plan itself; what its file had for other machines is not here."""
    machines, own = engine.program.machines, engine.program.target
    if machines:
        raise PlanError(
            "save",
            f"its file has code for {', '.join(machines)}, and the plan what it runs alone.",
            hint=f'targets=["{"" if own is None else own.name}"] saves that; where it is prepared, '
            "targets=[...] saves all.",
            machines=machines,
        )
    return ()


def _programs_for(engine: Engine, targets: Sequence[str]) -> tuple[tuple[Program, DeviceCode], ...]:
    """The plan's graph for each target, in order, with the device's code for it."""
    if isinstance(targets, str) or not isinstance(targets, Iterable):
        raise PlanError(
            "save",
            f"targets must be a list of names of machines, got {targets!r}.",
            hint='Write targets=["x86-64-v3"].',
        )
    names = take_items("save", "each of targets", str, targets)
    program = engine.program
    if program.compile_for is None and program.target and names == (program.target.name,):
        return ()
    if program.compile_for is None or not names:
        raise PlanError(
            "save",
            "targets must be names of machines, and the plan one that was prepared here: code "
            "for several machines is made from its graph.",
            hint="Save it with `targets` where it is prepared.",
        )
    programs = [compile_again("save", program, target) for target in dict.fromkeys(names)]
    device = engine.parts.device
    return tuple((program, device.device_code(program.target)) for program in programs)


def resume(
    engine: Engine,
    values: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
    marks: Sequence[int] = (),
) -> None:
    """Go on with these variables and with inputs written in these shapes, as a file has them.

    All are within bounds; guards and shapes are compared at the next run. `marks` say how much of
    the outputs earlier runs wrote.
    """
    engine.hold.alone(_resume, engine, values, shapes, marks)


def _resume(
    engine: Engine,
    values: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
    marks: Sequence[int],
) -> None:
    run = engine.state.run
    run.set_marks(dict(enumerate(min(m, NO_LIMIT) for m in marks[: len(run.marks)])))
    for name, shape in shapes.items():
        engine.state.inputs[name].record(shape)
    engine.set_values(values)

"""What a command works on, from a name on the command line.

    "model.onnx" | "model.plan" | "module:function" | "demo"  --load_target-->  LoadedTarget

A function takes no arguments and returns a plan, or what `semel.prepare` takes (a tensor, a list, a
mapping); or a pair of that and a mapping of inputs.

An ONNX model becomes one compiled graph, or one for each form that its inputs decide; text and
images stay on the host. All of them run here alike, and `plan_for` has the plan that ran.
"""

from __future__ import annotations

import importlib
import sys
import time
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from semel.cli.encoder import QUICK, EncoderSize, build_encoder
from semel.cli.feeds import (
    InputSpec,
    default_size,
    fill_inputs,
    find_sizes,
    read_inputs,
    read_value,
)
from semel.cli.grammar import parse_bounds
from semel.cli.progress import working
from semel.compiler.pipeline import prepare_graph
from semel.errors import InputError, SemelError
from semel.frontends.load import load, load_held
from semel.ir.expr import Variable, variables
from semel.plan.plan import ExecutionPlan
from semel.session.compiled import CompiledGraph
from semel.tensor.realize import prepare

COMPILED, SPECIALISED, HOSTED = "compiled", "specialised", "hosted"
_FILES = (".onnx", ".onnx.pb", ".ort", ".plan")


@dataclass(frozen=True, slots=True)
class LoadedTarget:
    """Something that runs, its inputs, those that came with it, and how long it took to get.

    `source` holds its weights as they came, which its plan does not, if the command lays them out
    for other machines.
    """

    name: str
    graph: Any
    specs: tuple[InputSpec, ...]
    given: Mapping[str, Any]
    seconds: float
    source: Any = field(default=None, repr=False)

    @property
    def form(self) -> str:
        """Whether it is compiled, compiled for each form of its inputs, or in part on the host."""
        if isinstance(self.graph, CompiledGraph):
            return COMPILED
        from semel.frontends.onnx.model import HostedGraph  # needs onnx, which is here then

        return HOSTED if isinstance(self.graph, HostedGraph) else SPECIALISED

    @property
    def variables(self) -> dict[str, Variable]:
        """What can be bound: dims of inputs, and what a plan has besides."""
        found = {v.name: v for spec in self.specs for d in spec.shape or () for v in variables(d)}
        if isinstance(self.graph, CompiledGraph):
            for known in self.graph.plan.program.variables:
                if known.limit is None and known.next is None:
                    found[known.variable.name] = known.variable
        return found

    @property
    def compile_count(self) -> int:
        """How often something was compiled."""
        graph = self.graph.plan if isinstance(self.graph, CompiledGraph) else self.graph
        return int(graph.compile_count)

    def inputs(self, texts: list[str], sizes: Mapping[str, int], seed: int) -> dict[str, Any]:
        """All inputs of a run at these sizes."""
        unknown = sorted(set(sizes) - set(self.variables))
        if unknown:
            known = ", ".join(self.variables) or "none"
            raise InputError("command", f"has no variable {unknown[0]!r}; known: {known}.")
        given = {**self.given, **read_inputs(self.specs, texts, sizes)}
        return fill_inputs(self.specs, given, sizes, seed)

    def sizes(self, inputs: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, int]:
        """Values of all variables in a run with these inputs."""
        free = {name: default_size(v) for name, v in self.variables.items()}
        return {**free, **self._initial(), **find_sizes(self.specs, inputs, sizes)}

    def _initial(self) -> dict[str, int]:
        if not isinstance(self.graph, CompiledGraph):
            return {}
        bound = self.graph.plan.variables
        return {name: value for name, value in bound.items() if value is not None}

    def run(self, inputs: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
        """The outputs by name."""
        return dict(self.call(inputs, sizes)().items())

    def call(self, inputs: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
        """A function without arguments that runs it, with nothing left to decide."""
        graph = self.graph
        if not isinstance(graph, CompiledGraph):
            return lambda: graph.run(inputs)
        own = {v.name for spec in self.specs for d in spec.shape or () for v in variables(d)}
        free = {n: v for n, v in self.sizes(inputs, sizes).items() if n not in own}
        if not free:
            return lambda: graph.run(inputs)
        return lambda: graph.run(inputs, variables=free)

    def plan_for(self, inputs: Mapping[str, Any]) -> ExecutionPlan:
        """The plan that runs these inputs."""
        graph = self.graph
        if not isinstance(graph, CompiledGraph):
            graph, _ = graph.form_of(inputs)
        plan: ExecutionPlan = graph.plan
        return plan


def load_target(arguments: Namespace, threads: int | None = None) -> LoadedTarget:
    """Load, and compile if it must be, what the arguments name; shows what is under way."""
    name: str = arguments.target
    threads = threads if threads is not None else arguments.threads
    begin = time.perf_counter()
    with working(f"prepare {name}"):
        graph, specs, given, source = _open(name, arguments, threads)
    held = source if getattr(arguments, "target_machine", ()) else None
    return LoadedTarget(name, graph, specs, given, time.perf_counter() - begin, held)


def is_file(name: str) -> bool:
    """Whether a name is that of a file, rather than of a function."""
    return name.lower().endswith(_FILES) or Path(name).is_file()


def _open(
    name: str, arguments: Namespace, threads: int | None
) -> tuple[Any, tuple[InputSpec, ...], Mapping[str, Any], Any]:
    if is_file(name):
        graph, specs, source = _load_file(name, arguments, threads)
        return graph, specs, {}, source
    if arguments.bound or arguments.freeze:
        raise InputError("command", f"--bound and --freeze are for ONNX models, {name} is none.")
    plan, given, source = _prepare_named(name, threads, arguments.quick)
    graph = CompiledGraph(plan)
    return graph, _specs_of(graph), given, source


def _load_file(
    name: str, arguments: Namespace, threads: int | None
) -> tuple[Any, tuple[InputSpec, ...], Any]:
    if not Path(name).is_file():
        raise InputError("command", f"there is no file {name!r}.")
    dims = parse_bounds(arguments.bound)
    options: dict[str, Any] = {"threads": threads}
    if name.endswith(".plan"):
        graph: Any = load(name, dims=dims or None, values=arguments.freeze or None, **options)
        return graph, _specs_of(graph), None
    if getattr(arguments, "tune", False):
        options["tune"] = True
    specs = specs_of_model(name) if arguments.freeze else ()
    values = _frozen(specs, arguments.freeze)
    graph, source = load_held(name, dims=dims, values=values, **options)
    if isinstance(graph, CompiledGraph):
        return graph, _specs_of(graph), source
    names = graph.input_names
    found = tuple(spec for spec in specs or specs_of_model(name) if spec.name in names)
    return graph, found, source


def _specs_of(graph: CompiledGraph) -> tuple[InputSpec, ...]:
    return tuple(InputSpec(e.name, e.dtype.numpy, e.shape) for e in graph.inputs.values())


def specs_of_model(path: str) -> tuple[InputSpec, ...]:
    """The inputs of a model as its file has them."""
    from semel.frontends.onnx.describe import describe_model  # needs onnx

    return tuple(InputSpec(d.name, d.dtype, d.shape) for d in describe_model(path).inputs)


def _frozen(specs: tuple[InputSpec, ...], texts: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    by_name = {spec.name: spec for spec in specs}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in by_name:
            known = ", ".join(by_name) or "none"
            raise InputError("command", f"--freeze takes an input ({known}), got {text!r}.")
        found[name] = read_value(by_name[name], value, {})
    return found


def _prepare_named(
    name: str, threads: int | None, quick: bool
) -> tuple[ExecutionPlan, Mapping[str, Any], Any]:
    if name == "demo":
        graph = build_encoder(QUICK if quick else EncoderSize())
        return prepare_graph(graph, threads=threads), {}, graph
    made = _call(name)
    inputs: Mapping[str, Any] = {}
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], Mapping):
        made, inputs = made
    plan = made if isinstance(made, ExecutionPlan) else prepare(made, threads=threads)
    return plan, inputs, made


def _call(name: str) -> Any:
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise InputError(
            "command", f"must be a .onnx or .plan file, MODULE:FUNCTION or 'demo', got {name!r}."
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InputError("command", f"there must be a module {module_name!r}: {error}.") from error
    except Exception as error:  # the user's code may raise anything
        raise _raised(module_name, error) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise InputError("command", f"{module_name!r} must have a function {function_name!r}.")
    try:
        return function()
    except SemelError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise _raised(name, error) from error


def _raised(name: str, error: Exception) -> InputError:
    hint = "--debug shows where."
    return InputError("command", f"{name} raised {type(error).__name__}: {error}.", hint=hint)

"""Models that are ready to run: compiled once, or once for each form that their inputs decide.

    semel.load("model.onnx")  -->  CompiledGraph       what it computes does not depend on content
                              -->  SpecialisedGraph    inputs hold shapes, axes, or other sequences

Of an input that decides sizes only, positive numbers are sizes that its content binds at each
run: a new one compiles nothing. Everything else that must be known (axes, steps, -1 and 0 in a
shape) is part of the form, and each form is compiled once, and counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from semel.errors import InputError, ParamError, UnsupportedError
from semel.frontends.onnx.build import (
    Built,
    Choices,
    build,
    initializers,
    input_names,
    is_data,
    is_open,
    kind_of,
    open_sizes,
    sizes_of,
)
from semel.frontends.onnx.dims import read_dims
from semel.frontends.onnx.empty import LoadedGraph, source_again
from semel.frontends.onnx.file import Model, read_model
from semel.frontends.onnx.forms import ByForm, begin
from semel.frontends.onnx.host import Split, split_host
from semel.frontends.onnx.unknown import check_operators
from semel.frontends.onnx.walk import DecidedByContent, DecidedBySizes
from semel.graph.builder import Dims, Graph
from semel.ir.expr import Dim, Variable, evaluate, variables
from semel.ir.fields import take_arrays
from semel.ir.types import as_dtype
from semel.runtime.buffer import Array, as_array_of, read_arrays
from semel.runtime.collector import fewer_collections
from semel.session.compiled import CompiledGraph
from semel.session.outputs import Outputs
from semel.session.pipeline import RunTicket
from semel.session.session import Session

#: From here on, numbers are no sizes: a slice up to the largest integer is one up to the end.
_NO_SIZE = 2**31
#: How many combinations of shapes and contents are known again without looking closer.
_MET = 256


def load_onnx(
    source: Any,
    *,
    dims: Mapping[str, Any] | None = None,
    values: Mapping[str, Any] | None = None,
    device: Any = None,
    **options: Any,
) -> CompiledGraph | SpecialisedGraph | HostedGraph:
    """The model in a file, compiled.

    `dims` says of each dim what it is: a number fixes it, a pair of numbers bounds it, a name makes
    it that of another one. `values` fixes what inputs hold. The other options are those of
    `Session.compile`.
    """
    return load_held(source, dims=dims, values=values, device=device, **options)[0]


def load_held(
    source: Any,
    *,
    dims: Mapping[str, Any] | None = None,
    values: Mapping[str, Any] | None = None,
    device: Any = None,
    **options: Any,
) -> tuple[CompiledGraph | SpecialisedGraph | HostedGraph, Graph | None]:
    """The same, and the graph of a model that is compiled once.

    That holds the weights as the model has them, as the plan does not: who saves for other
    machines holds it until then.
    """
    with fewer_collections():
        model = read_model(source)
        fixed, bounds = read_dims(model, dims)
        choices = Choices(fixed, take_arrays("load", values or {}))
        session = Session(device)
        parts = split_host(model)
        if parts is not None:
            inside = SpecialisedGraph(parts.numbers, choices, session, bounds, options)
            return HostedGraph(model, parts, inside), None
        try:
            built = build(model, choices)
        except (DecidedByContent, DecidedBySizes):
            check_operators(model)
            return SpecialisedGraph(model, choices, session, bounds, options), None
        if _is_plain(built):
            compiled = _compile(built, session, bounds, options)
            graph = _with_sizes_of_zero(compiled, source, choices, session, bounds, options)
            return graph, built.graph
        return SpecialisedGraph(model, choices, session, bounds, options), None


def _is_plain(built: Built) -> bool:
    return all(isinstance(made, str) for made in built.outputs.values())


def _compile(
    built: Built, session: Session, bounds: Dims, options: Mapping[str, Any]
) -> CompiledGraph:
    """The graph for all sizes from the least on that its windows and divisions allow."""
    least = built.graph.least_sizes()
    given = {name: bounds.get(name, (1, None)) for name in {**bounds, **least}}
    dims = {name: (max(low, least.get(name, 1)), high) for name, (low, high) in given.items()}
    return session.compile(built.graph, dims=dims, **options)


def _with_sizes_of_zero(
    compiled: CompiledGraph,
    source: Any,
    choices: Choices,
    session: Session,
    bounds: Dims,
    options: Mapping[str, Any],
) -> CompiledGraph:
    """The same, which compiles another one when a size is 0, if it can be read again."""
    if options.get("experts") is not None:
        return compiled
    again = source_again(source)

    def reopened(names: frozenset[str]) -> CompiledGraph | None:
        found = None if names & _bounded(choices, bounds) else again()
        if found is None:
            return None
        try:
            built = build(read_model(found), replace(choices, empty=names))
        except (DecidedByContent, DecidedBySizes):
            return None
        return _compile(built, session, bounds, options)

    return LoadedGraph(compiled, reopened)


def _bounded(choices: Choices, bounds: Dims) -> set[str]:
    """Dims whose sizes the caller has spoken of."""
    return {*bounds, *(dim.name for dim in choices.dims.values() if isinstance(dim, Variable))}


class SpecialisedGraph(ByForm):
    """A model that is compiled when it is known what its inputs decide; `compile_count` counts."""

    def __init__(
        self,
        model: Model,
        choices: Choices,
        session: Session,
        bounds: Dims,
        options: Mapping[str, Any],
    ) -> None:
        self._model, self._choices, self._session = model, choices, session
        self._bounds, self._options = bounds, options
        self._names = [n for n in input_names(model) if n not in choices.values]
        #: Inputs whose content decides: whether it must be known exactly.
        self._deciding: dict[str, bool] = {}
        #: Dims whose number does.
        self._sizes: set[str] = set()
        self._open = [
            given.name
            for given in model.proto.graph.input
            if given.name in self._names and is_open(given.type)
        ]
        #: Conditions of sizes that decide what is computed.
        self._conditions: list[Dim] = []
        self._forms: dict[Any, tuple[CompiledGraph, Built]] = {}
        #: The forms of shapes and deciding contents that were met lately.
        self._met: dict[Any, tuple[CompiledGraph, Built]] = {}
        self.compile_count = 0

    @property
    def deciding_inputs(self) -> list[str]:
        """Inputs whose content decides what is computed, as far as runs have found out."""
        return sorted({*self._deciding, *self._open})

    @property
    def input_names(self) -> list[str]:
        """What runs are given, in order."""
        return list(self._names)

    @property
    def forms(self) -> tuple[CompiledGraph, ...]:
        """The graphs that were compiled so far, one for each form."""
        return tuple(compiled for compiled, _ in self._forms.values())

    def run(self, *args: Any, **named: Any) -> dict[str, Any]:
        """Run with these inputs, by order, by name, or as one mapping; outputs by name."""
        compiled, built, arrays, variables = self._chosen(args, named)
        found = compiled.run(arrays, variables=variables)
        return {name: _nested(made, found) for name, made in built.outputs.items()}

    __call__ = run

    def _chosen(
        self, args: tuple[Any, ...], named: Mapping[str, Any]
    ) -> tuple[CompiledGraph, Built, dict[str, Any], dict[str, int]]:
        """The form for these inputs; what it is given, and its variables that no shape gives."""
        inputs = given_inputs(self._names, args, named)
        compiled, built = self.form_of(inputs)
        variables = {
            name: int(np.asarray(inputs[source]).reshape(-1)[position])
            for name, (source, position) in built.content.items()
        }
        arrays = {k: v for k, v in inputs.items() if k not in built.inputs}
        for name, names in built.inputs.items():
            arrays |= _flat(names, inputs[name])
        return compiled, built, arrays, variables

    def _begun(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> RunTicket[Outputs]:
        return begin(*self._chosen(args, named))

    def clone(self) -> SpecialisedGraph:
        """One of its own, whose forms share code and weights with those that are there."""
        made = SpecialisedGraph(
            self._model, self._choices, self._session, self._bounds, self._options
        )
        made._deciding, made._sizes = dict(self._deciding), set(self._sizes)
        made._conditions = list(self._conditions)
        made._forms = {key: (form.clone(), built) for key, (form, built) in self._forms.items()}
        made.compile_count = self.compile_count
        return made

    def set_params(self, arrays: Mapping[str, Any]) -> None:
        """Replace params by copies of these in all forms, those that are yet to come too: all of
        them everywhere, or none anywhere."""
        old = initializers(self._model)
        new = {
            name: self._checked(name, x, old)
            for name, x in read_arrays("set_params", arrays).items()
        }
        changed: list[CompiledGraph] = []
        try:
            for compiled, _ in self._forms.values():
                changed.append(_given(compiled, new))
        except BaseException:
            for compiled in changed:
                _given(compiled, {name: old[name] for name in new})
            raise
        # What is compiled from now on is compiled with these.
        self._model = replace(self._model, weights={**self._model.weights, **new})

    def _checked(self, name: str, data: Any, known: Mapping[str, Array]) -> Array:
        """A copy of what is given for a param, if it is one, and of its type."""
        where = f"param '{name}'"
        if name in input_names(self._model) or name not in known:
            raise ParamError("set_params", f"'{name}' must be an initializer of the model.")
        if not is_data(known[name]) or any(name in b.known for _, b in self._forms.values()):
            raise ParamError(
                where, "must be no constant: what it holds decides what is computed.", name=name
            )
        old = known[name]
        return np.array(as_array_of(data, as_dtype(old.dtype, where), old.shape, where))

    def form_of(self, inputs: Mapping[str, Any]) -> tuple[CompiledGraph, Built]:
        """The graph for what these inputs decide; compiled if it is new."""
        met = None if self._open else self._looks(inputs)
        if met is not None and met in self._met:
            return self._met[met]
        asked = self._asked()
        with fewer_collections():
            found = self._found_form(inputs)
        if asked != self._asked() or len(self._met) == _MET:
            self._met.clear()
        elif met is not None:
            self._met[met] = found
        return found

    def _asked(self) -> tuple[int, ...]:
        """Grows with what is asked of inputs before a form is chosen."""
        exact = sum(self._deciding.values())
        return len(self._conditions), len(self._sizes), len(self._deciding), exact, len(self._open)

    def _looks(self, inputs: Mapping[str, Any]) -> Any:
        """The shapes of all inputs and what the deciding ones hold, to know them again by."""
        found: list[Any] = []
        for name, value in inputs.items():
            if not isinstance(value, np.ndarray | np.generic):
                return None
            found += (name, value.shape)
        for name, is_exact in self._deciding.items():
            held = inputs[name].reshape(-1).tolist()
            found.append(tuple(held if is_exact else (_unless_size(n) for n in held)))
        return tuple(found)

    def _found_form(self, inputs: Mapping[str, Any]) -> tuple[CompiledGraph, Built]:
        while True:
            content = self._content(inputs)
            kinds = {name: kind_of(inputs[name]) for name in self._open}
            known = sizes_of(self._model, self._choices, inputs)
            sizes = {name: known[name] for name in sorted(self._sizes)}
            empty = self._empty(known, inputs)
            truths = self._truths(known)
            held = ((n, tuple(c.reshape(-1)), c.shape) for n, c in content.items())
            key = (repr(kinds), tuple(truths.values()), empty, *sizes.items(), *held)
            if key in self._forms:
                return self._forms[key]
            try:
                choices = replace(
                    self._choices,
                    content=content,
                    kinds=kinds,
                    truths=truths,
                    sizes=sizes,
                    empty=empty,
                )
                built = build(self._model, choices)
            except DecidedBySizes as error:
                self._conditions.append(error.condition)
                continue
            except DecidedByContent as error:
                self._note(error)
                continue
            compiled = _compile(built, self._session, self._bounds, self._options)
            self.compile_count += 1
            used = compiled.plan.variables
            built.content = {v: source for v, source in built.content.items() if v in used}
            return self._forms.setdefault(key, (compiled, built))

    def _note(self, found: DecidedByContent) -> None:
        before = dict(self._deciding)
        self._sizes |= found.dims
        for name in found.inputs:
            self._deciding[name] = self._deciding.get(name, False) or found.exact
        if self._deciding == before and not found.dims:  # it was a size, and that is not enough
            self._deciding |= dict.fromkeys(found.inputs, True)
        assert self._deciding != before or found.dims, found

    def _empty(self, sizes: Mapping[str, int], inputs: Mapping[str, Any]) -> frozenset[str]:
        """Dims that are 0, where nobody said what they may be: a form of its own, with guards."""
        known = _bounded(self._choices, self._bounds)
        known.update(dim for name in self._open for dim in open_sizes(name, inputs[name]))
        return frozenset(name for name, size in sizes.items() if not size and name not in known)

    def _truths(self, sizes: Mapping[str, int]) -> dict[Dim, bool]:
        """Which conditions hold for these sizes of inputs; others are not about them."""
        asked = [c for c in self._conditions if all(v.name in sizes for v in variables(c))]
        return {condition: bool(evaluate(condition, sizes)) for condition in asked}

    def _content(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        content: dict[str, Array] = {}
        for name, is_exact in self._deciding.items():
            array = np.asarray(inputs[name])
            held = np.empty(array.shape, object)
            for i, number in enumerate(array.reshape(-1).tolist()):
                held.reshape(-1)[i] = number if is_exact else _unless_size(number)
            content[name] = held
        return content


def _given(compiled: CompiledGraph, arrays: Mapping[str, Array]) -> CompiledGraph:
    """The form with those of these params that it has."""
    own = {name: array for name, array in arrays.items() if name in compiled.params}
    if own:
        compiled.set_params(own)
    return compiled


def _unless_size(number: Any) -> Any:
    """A number; None for one that is a size, and may be another: what is larger means "the end"."""
    is_size = not isinstance(number, (bool, float)) and 0 < number < _NO_SIZE
    return None if is_size else number


def given_inputs(
    names: list[str], args: tuple[Any, ...], named: Mapping[str, Any]
) -> dict[str, Any]:
    """What a run is given, by name; all of it, and nothing else."""
    if len(args) == 1 and isinstance(args[0], Mapping):
        found = dict(args[0])
    else:
        found = dict(zip(names, args, strict=False))
    found |= named
    if found.keys() != set(names) or (len(args) > len(names)):
        raise InputError("run", f"needs the inputs {', '.join(names)}, got {', '.join(found)}.")
    return found


class HostedGraph(ByForm):
    """A model of which parts are about text or images, which the host computes."""

    def __init__(self, model: Model, parts: Split, inside: SpecialisedGraph) -> None:
        self.input_names = input_names(model)
        self.output_names = [output.name for output in model.proto.graph.output]
        self._model, self._parts, self._inside = model, parts, inside

    def clone(self) -> HostedGraph:
        """One of its own, whose compiled part shares code and weights."""
        return HostedGraph(self._model, self._parts, self._inside.clone())

    def _begun(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> NoReturn:
        raise UnsupportedError(
            "commit_no_wait", "nodes of this model run on the host.", hint="run(...) waits."
        )

    @property
    def compile_count(self) -> int:
        """How many forms of the compiled part there are."""
        return self._inside.compile_count

    @property
    def forms(self) -> tuple[CompiledGraph, ...]:
        """The graphs of the compiled part, one for each form."""
        return self._inside.forms

    @property
    def host_nodes(self) -> int:
        """How many nodes run on the host."""
        parts = (self._parts.before, self._parts.behind)
        return sum(part.num_nodes for part in parts if part.outputs)

    def set_params(self, arrays: Mapping[str, Any]) -> None:
        """Replace params of the compiled part, all or none."""
        self._inside.set_params(arrays)

    @property
    def deciding_inputs(self) -> list[str]:
        """Values before the compiled part that decide what it computes, as far as is known."""
        return self._inside.deciding_inputs

    def form_of(self, inputs: Mapping[str, Any]) -> tuple[CompiledGraph, Built]:
        """The compiled part for what these inputs decide; there must be one."""
        if not self._parts.numbers.proto.graph.output:
            raise UnsupportedError("onnx", "all of this model runs on the host.")
        values = {**inputs, **self._parts.before.run(inputs)}
        return self._inside.form_of({name: values[name] for name in self._inside.input_names})

    def run(self, *args: Any, **named: Any) -> dict[str, Any]:
        """Run with these inputs, by order, by name, or as one mapping; outputs by name."""
        values = given_inputs(self.input_names, args, named)
        values |= self._parts.before.run(values)
        if self._parts.numbers.proto.graph.output:
            inside = {name: values[name] for name in self._inside.input_names}
            values |= self._inside.run(inside)
        values |= self._parts.behind.run(values)
        return {name: values[name] for name in self.output_names}

    __call__ = run


def _flat(names: Any, given: Any) -> dict[str, Any]:
    """Arrays by the names of the graph's inputs."""
    if names is None or isinstance(names, str):
        return {} if names is None else {names: given}
    found: dict[str, Any] = {}
    for name, item in zip(names, given, strict=True):
        found |= _flat(name, item)
    return found


def _nested(made: Any, found: Outputs) -> Any:
    if made is None or isinstance(made, str):
        return None if made is None else found[made]
    return [_nested(item, found) for item in made]

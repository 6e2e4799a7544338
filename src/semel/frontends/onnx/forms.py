"""What models that are compiled form by form share with graphs that are compiled once.

A run finds its form by what its inputs hold. So runs of every kind, waiting or not, clones and
params mean the same here as of a `CompiledGraph`. What is about one plan (its tables, its
addresses, its file) belongs to a form, and is refused with a word about how to get at that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn, TypeVar

from semel.errors import UnsupportedError
from semel.frontends.onnx.build import Built
from semel.ir.fields import take
from semel.session.compiled import CompiledGraph
from semel.session.outputs import Outputs
from semel.session.pipeline import RunTicket

Self = TypeVar("Self", bound="ByForm")

#: Runs that `stream` keeps under way.
_DEPTH = 4
#: What compiled graphs have beside what is here.
_OF_ONE_FORM = frozenset(name for name in dir(CompiledGraph) if not name.startswith("_"))


class ByForm(ABC):
    """Members of `ExecutableGraph` for a model that has several compiled graphs."""

    @property
    @abstractmethod
    def forms(self) -> tuple[CompiledGraph, ...]:
        """The graphs that were compiled so far."""

    @abstractmethod
    def set_params(self, arrays: Mapping[str, Any]) -> None:
        """Replace params by copies of these in all forms, those that are yet to come too: all of
        them everywhere, or none anywhere."""

    @abstractmethod
    def _begun(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> RunTicket[Outputs]:
        """Begin a run with these inputs."""

    @abstractmethod
    def clone(self: Self) -> Self:
        """One of its own over the same code and weights."""

    def clone_box(self: Self) -> Self:
        """The same."""
        return self.clone()

    def set_param(self, name: str, data: Any) -> None:
        """Replace a param by a copy of `data`."""
        self.set_params({take("set_param", "name", str, name): data})

    def commit_no_wait(self, *args: Any, **named: Any) -> RunTicket[Outputs]:
        """Begin a run and return at once; a new form is compiled before it returns."""
        return self._begun(args, named)

    def sync_pending(self) -> None:
        """Wait for all runs that were begun; the first error that nobody saw is raised."""
        for form in self.forms:
            form.sync_pending()

    def run_pipelined(self, input_sets: Iterable[Any]) -> list[Outputs]:
        """As many runs as there are sets of inputs; what each gave."""
        return list(self.stream(input_sets))

    def stream(self, input_sets: Iterable[Any]) -> Iterator[Outputs]:
        """Like `run_pipelined`, with each run's outputs as soon as they are there."""
        under_way: list[RunTicket[Outputs]] = []
        for inputs in input_sets:
            args = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
            under_way.append(self._begun(args, {}))
            if len(under_way) == _DEPTH:
                yield under_way.pop(0).result()
        for ticket in under_way:
            yield ticket.result()

    def cancel(self) -> None:
        """Let runs that are under way end at their next step."""
        for form in self.forms:
            form.cancel()

    def __getattr__(self, name: str) -> NoReturn:
        if name not in _OF_ONE_FORM:
            raise AttributeError(f"'{type(self).__name__}' has no attribute '{name}'")
        raise UnsupportedError(
            name,
            "belongs to one compiled graph, and this model has one for each form of its inputs.",
            hint=f"form_of(inputs)[0].{name} is that of these inputs.",
        )


def begin(
    compiled: CompiledGraph, built: Built, arrays: Mapping[str, Any], variables: Mapping[str, int]
) -> RunTicket[Outputs]:
    """Begin a run of one form."""
    if variables or any(not isinstance(made, str) for made in built.outputs.values()):
        raise UnsupportedError(
            "commit_no_wait",
            "needs a model whose outputs are tensors and whose sizes come from shapes.",
            hint="run(...) does it and waits.",
        )
    return compiled.commit_no_wait(dict(arrays))

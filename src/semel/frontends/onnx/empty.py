"""Models that are given nothing: sizes of 0, where nobody said that there may be such sizes.

    run(past of length 0)  -->  a second graph of the same model, for which this size may be 0

A size that may be 0 costs guards, and most never are, so that sizes are at least 1 unless `dims`
says otherwise. But the first step of an exported decoder has a past of length 0. The first run of
the kind compiles a second graph, once, and runs with a size of 0 go there. What it is made of is
read from the model's file once more: no weights are held for runs that never come.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from onnx import ModelProto

from semel.errors import InputError
from semel.frontends.onnx.file import Model
from semel.session.compiled import CompiledGraph
from semel.session.outputs import Outputs
from semel.session.pipeline import RunTicket

R = TypeVar("R")


#: A model from memory is held if it has at most so many bytes.
_SMALL = 1 << 20


def source_again(source: Any) -> Callable[[], Any]:
    """What gives the source of a model once more; None where it is not to be had as it was."""
    if isinstance(source, Model):  # whoever read it has it
        return lambda: source
    if isinstance(source, ModelProto):
        held = source.SerializeToString() if source.ByteSize() <= _SMALL else None
        return lambda: held
    if isinstance(source, (bytes, bytearray, memoryview)):
        small = bytes(source) if len(source) <= _SMALL else None
        return lambda: small
    path = Path(os.path.abspath(source))
    seen = _seen(path)
    return lambda: path if seen is not None and _seen(path) == seen else None


def _seen(path: Path) -> tuple[int, int] | None:
    """By what a file that has changed is known."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


#: Compiles a model so that these dims may be 0; None where that cannot be had.
Reopened: TypeAlias = "Callable[[frozenset[str]], CompiledGraph | None]"


class LoadedGraph(CompiledGraph):
    """A compiled graph, and another one for sizes of 0 once they have come."""

    def __init__(self, compiled: CompiledGraph, reopened: Reopened) -> None:
        super().__init__(compiled.plan, compiled.options, compiled.routers)
        compiled._handles.copy_to(self._handles)
        self._note_handles()
        self._reopened = reopened
        self._empty: CompiledGraph | None = None
        #: The dims that may be 0 there.
        self._dims: frozenset[str] = frozenset()
        self._has_new_params = False

    def run(self, *args: Any, **named: Any) -> Outputs:
        """As of a `CompiledGraph`; where a size is 0, the second graph runs."""
        try:
            return super().run(*args, **named)
        except InputError as error:
            return self._elsewhere(error, lambda empty: empty.run(*args, **named))

    __call__ = run

    def commit_no_wait(self, *args: Any, **named: Any) -> RunTicket[Outputs]:
        """The same of runs that are over later."""
        try:
            return super().commit_no_wait(*args, **named)
        except InputError as error:
            return self._elsewhere(error, lambda empty: empty.commit_no_wait(*args, **named))

    def _elsewhere(self, error: InputError, run: Callable[[CompiledGraph], R]) -> R:
        """What a run gives that was refused for sizes of 0; else what it was refused for."""
        tried: set[str] = set()
        while True:
            name = getattr(error, "variable", "")
            if getattr(error, "value", None) != 0 or name in tried or not self._may_reopen(name):
                raise error
            tried.add(name)
            try:
                return run(self._with_empty(name, error))
            except InputError as found:  # another dim is 0 as well
                error = found

    def _may_reopen(self, name: str) -> bool:
        """Whether nothing but weights and this run's inputs decides what a run gives."""
        is_alone = not self._handles and not self.options.sticky and not len(self.plan.states)
        return is_alone and (name in self._dims or not self._has_new_params)

    def _with_empty(self, name: str, error: InputError) -> CompiledGraph:
        with self._making:
            if self._empty is None or name not in self._dims:
                made = self._reopened(self._dims | {name})
                if made is None:
                    raise error
                self._empty, self._dims = made, self._dims | {name}
                self.plan.compile_count += made.plan.compile_count
            return self._empty

    # ------------------------------------------------------------ both at once

    def set_param(self, name: str, data: Any) -> None:
        super().set_param(name, data)
        self._set_too(lambda empty: empty.set_param(name, data))

    def set_params(self, arrays: Mapping[str, Any]) -> None:
        super().set_params(arrays)
        self._set_too(lambda empty: empty.set_params(arrays))

    def set_param_typed(self, name: str, data: Any, dtype: Any) -> None:
        super().set_param_typed(name, data, dtype)
        self._set_too(lambda empty: empty.set_param_typed(name, data, dtype))

    def load_params(
        self, source: Mapping[str, Any] | str | os.PathLike[str], *, strict: bool = True
    ) -> None:
        super().load_params(source, strict=strict)
        self._set_too(lambda empty: empty.load_params(source, strict=strict))

    def _set_too(self, change: Callable[[CompiledGraph], None]) -> None:
        """The same params there. The file does not have them: nothing is made of it any more."""
        with self._making:
            self._has_new_params = True
            if self._empty is not None:
                change(self._empty)

    def clone(self) -> LoadedGraph:
        made = LoadedGraph(super().clone(), self._reopened)
        made._empty = None if self._empty is None else self._empty.clone()
        made._dims, made._has_new_params = self._dims, self._has_new_params
        return made

    clone_box = fork = clone

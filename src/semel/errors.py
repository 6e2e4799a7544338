"""Every error this package raises on purpose.

    SemelError
      UserError               the caller can fix it
        GraphError            malformed graph: shape, dtype, axis, name
        UnsupportedError      well formed, but not implemented: op, dtype, custom function kind
        InputError            a plan was run with the wrong inputs: shape, dtype, name
        VariableError         a variable is unknown, out of range, unbound or breaks a guard
        IndexRangeError       an index found in the data lies outside the axis it selects from
        PlanError             a plan is malformed or used out of order
          CycleError          its dependencies form a cycle
          OrderError          an order was asked for that breaks a dependency or a hazard
          BusyError           a plan was used from inside its own run
          ParamError          a param that was declared without data must be set before a run
          StaleError          the contents are gone: never computed, failed, or overwritten
          StateError          a state is full, invalid, unknown, or given what it cannot hold
            StateFileError    a file of a snapshot is damaged, or of another version
          ReleasedError       its memory was given back
          TimedOutError       something was waited for that did not come in time
          CancelledError      a run was ended by `cancel()`
          CustomFunctionError a custom function raised, or is called wrongly
          PlanFileError       a plan file is damaged, too new, or made for another machine
        ModelError            a model file is damaged, or says what cannot be
        CodecError            encoded bytes are damaged, or do not fit
        RecompileError        a compilation happened inside `no_recompiles()`
      CompileError            a toolchain refused code that we generated
      CacheError              a cache entry or directory cannot be used; never fatal for a prepare
      DeviceError             a driver or operating system call failed
        OutOfMemoryError      ... for lack of memory; has the numbers
      InternalError           an invariant of ours broke: always our bug

A message leads with where it happened, then says what must hold and what was
found, and ends with what to do when we know it:

    [reduce_max] axes must lie in [0, 2), got axes=(3,).
"""

from __future__ import annotations

from typing import Any

from semel.written import users_call


class SemelError(Exception):
    """Base of the family. `where` is an op, a node, a stage or a driver call."""

    def __init__(self, where: str, message: str, *, hint: str = "", **fields: Any) -> None:
        self.where = where
        self.hint = hint
        for name, value in fields.items():
            setattr(self, name, value)
        super().__init__(f"[{where}] {message} {hint}".rstrip())

    def seen_at(self, where: str, **fields: Any) -> None:
        """Say also where it passed through; fields that it has already stay as they are."""
        for name, value in fields.items():
            if not hasattr(self, name):
                setattr(self, name, value)
        self.args = (f"[{where}] {self}",)

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders: pickle the fields, whatever arguments
        # a subclass's __init__ asks for.
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[SemelError], args: tuple[Any, ...], fields: dict[str, Any]) -> SemelError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


class UserError(SemelError):
    """The caller can fix it."""


class GraphError(UserError, ValueError):
    """The graph is malformed: a shape, a dtype, an axis, a name. A ValueError, as NumPy's are.

    Where a function of tensors was called, the message leads with that call, whatever it is made
    of.
    """

    def __init__(self, where: str, message: str, *, hint: str = "", **fields: Any) -> None:
        super().__init__(users_call(where), message, hint=hint, **fields)


class UnsupportedError(UserError):
    """Well formed, but not implemented here."""


class InputError(UserError):
    """A plan was run with the wrong inputs."""


class VariableError(UserError):
    """A variable is unknown, out of range, never bound, or breaks a guard."""


def broken_guard(sentence: str, found: str, **fields: Any) -> VariableError:
    """The error for a guard: its sentence begins with the call that demands it (ops/guards.py)."""
    call, _, text = sentence.partition(": ")
    where, said = (call, text) if call.isidentifier() else ("guard", sentence)
    return VariableError(where, f"{said.removesuffix('.')}. Found {found}.", **fields)


class IndexRangeError(UserError, IndexError):
    """An index read from a tensor lies outside the axis it selects from. An IndexError too.

    Fields: `op`, `index`, `size`; `origin`, the source line of the op, if it is known.
    """


class PlanError(UserError):
    """A plan is malformed, or used out of order."""


class CycleError(PlanError):
    """The dependencies of a plan form a cycle.

    Fields: `cycle`, ids of one cycle, each before its user; `positions`, the same
    operations by position; `blocked`, ids of those that merely wait for it.
    """


class OrderError(PlanError):
    """An order breaks an edge. Fields: `before`, `after` (positions), `reason`."""


class BusyError(PlanError):
    """A plan was run or changed from inside its own run."""


class ParamError(PlanError):
    """A param has no data yet, or params are loaded that do not fit.

    Fields: `params`, the names of all that must be set; of a load, names that are `missing` or
    `unexpected`, and what is `wrong` with others, by name.
    """


class StaleError(PlanError):
    """Contents that are asked for were never computed, belong to a failed run, or are gone."""


class StateError(PlanError):
    """A state is full, invalid, unknown, or given what it cannot hold."""


class StateFileError(StateError):
    """A file of a snapshot is damaged, of another version, or cannot be written. Field: `path`."""


class ReleasedError(PlanError):
    """The memory was given back."""


class TimedOutError(PlanError):
    """What was waited for did not come in time; the message names it, and where it stands."""


class CancelledError(PlanError):
    """Somebody called `cancel()`. Fields: `step`, before which the run ended, and `num_steps`."""


class CustomFunctionError(PlanError):
    """A custom function raised or is called wrongly. Fields: `op`, `kind`."""


class PlanFileError(PlanError):
    """A plan file cannot be loaded here: damaged, of another version, for another machine.

    Field: `path`; and `missing`, the CPU features that this machine lacks, or `functions`,
    the custom functions that are not registered.
    """


class ModelError(UserError):
    """A model file cannot be read or imported. Fields, where known: `path`; `node`, `op`."""


class CodecError(UserError):
    """Encoded bytes are damaged, or not those of what they are decoded into."""


class RecompileError(UserError):
    """A compilation was asked for inside `semel.no_recompiles()`."""


class CompileError(SemelError):
    """A toolchain refused code that we generated."""


class CacheError(SemelError):
    """A cache entry or directory cannot be used."""


class DeviceError(SemelError):
    """A driver or operating system call failed; `where` is the call."""


class OutOfMemoryError(DeviceError):
    """An allocation did not fit."""

    def __init__(self, device: str, requested_bytes: int, free_bytes: int) -> None:
        super().__init__(
            device,
            f"needs {requested_bytes:,} bytes, {free_bytes:,} are free.",
            hint="Lower the variables' maxima or the batch size.",
            requested_bytes=requested_bytes,
            free_bytes=free_bytes,
        )


class InternalError(SemelError):
    """An invariant of ours broke."""

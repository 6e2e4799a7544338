"""What the routers of a compiled graph decided, run by run.

    run  --CapturingReader-->  copies of ids and weights  --take-->  {layer: Capture}

The ids that experts are found by are kept values of the plan (`Graph.prepare_routed`). While
capture is on they are copied after a run, in the same operation on the plan that reads its outputs:
so they are those of that run on every entry point, whoever else runs it. Nothing is done while it
is off. Only the last run that was captured is held; what it is made into waits for who takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from semel.errors import InputError, UnsupportedError
from semel.graph.routers import Router
from semel.ir.fields import take_int
from semel.plan.engine import Engine
from semel.plan.readers import Reader, outputs_copier
from semel.runtime.buffer import Array

R = TypeVar("R")
_MOST_READERS = 64


class Capture(NamedTuple):
    """What one layer's router decided: `ids` and `weights` (tokens, k), `counts` (experts,).

    Weights are None where the graph does not say which they are.
    """

    ids: Array
    weights: Array | None
    counts: Array


class RouterCapture:
    """What was captured last, of these routers, by every `every`-th run."""

    def __init__(self, routers: Sequence[Router], every: int) -> None:
        self._routers = tuple(routers)
        self._every = every
        self._runs = 0
        self._found: tuple[Any, Callable[[Any], list[Array]]] | None = None
        self._readers: dict[Reader[Any], CapturingReader] = {}
        #: Of the kept values that are copied.
        self.names = tuple(
            name for r in self._routers for name in (r.ids, r.weights) if name is not None
        )

    @staticmethod
    def of(routers: Sequence[Router], num_experts: int | None, every: int) -> RouterCapture:
        """For all of these routers, or those with so many experts: at least one."""
        where = "moe capture"
        if not routers:
            raise UnsupportedError(
                where,
                "needs a graph with a layer of experts, this one has none.",
                hint="Layers are found by their grouped_matmul; graph.moe(...) writes one.",
            )
        if take_int(where, "every", every) < 1:
            raise InputError(where, f"every must be at least 1, got {every}.")
        if num_experts is not None:
            wanted = take_int(where, "num_experts", num_experts)
            fitting = [r for r in routers if r.num_experts == wanted]
            if not fitting:
                there = ", ".join(str(n) for n in sorted({r.num_experts for r in routers}))
                raise InputError(
                    where, f"num_experts must be that of a layer ({there}), got {wanted}."
                )
            routers = fitting
        return RouterCapture(routers, every)

    def fresh(self) -> RouterCapture:
        """One for a clone, which has seen nothing yet."""
        return RouterCapture(self._routers, self._every)

    def reader(self, reader: Reader[R]) -> Reader[R]:
        """The reader, which captures too: always the same one, unless it is for one run."""
        known = self._readers.get(reader)
        if known is None:
            known = CapturingReader(reader, self)
            if not reader.is_for_one_run:
                if len(self._readers) >= _MOST_READERS:
                    self._readers.clear()
                self._readers[reader] = known
        return known

    def take(self) -> dict[int, Capture] | None:
        """What was captured since it was last taken, by layer; None if nothing was."""
        last, self._found = self._found, None
        if last is None:
            return None
        copied, apart = last
        found = dict(zip(self.names, apart(copied), strict=True))
        return {router.layer: _capture(router, found) for router in self._routers}

    def noted(
        self, copy: Callable[[], Any], apart: Callable[[Any], list[Array]], read: Callable[[], R]
    ) -> Callable[[], R]:
        """What takes note of a run that is over, and reads its outputs: a step pays for it."""

        def both() -> R:
            runs = self._runs
            if runs % self._every == 0:
                self._found = copy(), apart
            self._runs = runs + 1
            return read()

        return both


@dataclass(frozen=True, eq=False)
class CapturingReader(Reader[Any]):
    """Reads outputs as another does, after what routers decided."""

    reader: Reader[Any]
    capture: RouterCapture

    @property
    def is_for_one_run(self) -> bool:  # type: ignore[override]
        return self.reader.is_for_one_run

    def check(self, engine: Engine) -> None:
        self.reader.check(engine)

    def prepare(self, engine: Engine) -> Callable[[], Any]:
        index = dict(engine.parts.program.kept)
        copy, apart = outputs_copier(engine, [index[name] for name in self.capture.names])
        return self.capture.noted(copy, apart, self.reader.prepare(engine))


def _capture(router: Router, found: dict[str, Array]) -> Capture:
    ids = found[router.ids].reshape(-1, router.k)
    weights = None if router.weights is None else found[router.weights].reshape(ids.shape)
    counts = np.bincount(ids.ravel(), minlength=router.num_experts).astype(np.int64, copy=False)
    return Capture(ids, weights, counts)

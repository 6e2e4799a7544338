"""Where graphs are compiled: one device, and what is common to all that runs there.

Session("cpu").compile(graph)  -->  CompiledGraph
"""

from __future__ import annotations

from typing import Any

from semel.errors import GraphError
from semel.graph.builder import Dims, Graph
from semel.runtime.device import choose_device
from semel.runtime.spec import DeviceSpec
from semel.session.compiled import CompiledGraph
from semel.session.options import Options
from semel.session.residency import ExpertResidency, residency_for


class Session:
    """A device that graphs are compiled for.

    >>> Session("cpu")
    Session('cpu')
    """

    def __init__(self, device: str | DeviceSpec | None = None) -> None:
        self.device = choose_device("Session", device)

    def __repr__(self) -> str:
        return f"Session({self.device!r})"

    def compile(
        self,
        graph: Graph,
        *,
        dims: Dims | None = None,
        extent: str | bool | None = None,
        casting: str = "exact",
        sticky: bool = False,
        depth: int = 4,
        experts: ExpertResidency | None = None,
        devices: Any = None,
        **options: Any,
    ) -> CompiledGraph:
        """Compile a graph once; what comes back runs as often as you like.

        `dims` are bounds of the variables that strings in shapes stand for. `extent` names one
        of them, or is True if there is one only: inputs and outputs with that dim then have its
        largest size, and `set_active_extent` says how many rows runs process. Without, the first
        extent that is set compiles the graph again, for the only such dim. With
        `casting="same_kind"`, arrays of another dtype of the same kind are converted. With
        `sticky`, an input that a run is not given is what it was in the run before. `depth` is
        how many asynchronous runs may be under way. With `experts`, those of its layers are in a
        file, and only some of them in memory; results are the same. `devices` are those that the
        graph may use; the session's is the plan's own, if it is among them, else the first. The
        other options are those of `semel.prepare`.
        """
        if not isinstance(graph, Graph):
            raise GraphError("compile", f"needs a semel.Graph, got {type(graph).__name__}.")
        chosen = Options(casting=casting, sticky=sticky, depth=depth)
        change = None if experts is None else residency_for("compile", self.device, experts)
        named = devices if isinstance(devices, (list, tuple)) else (self.device,)
        is_named = self.device in map(str, named)
        device = self.device if is_named else None
        plan, routers = graph.prepare_routed(
            dims=dims, extent=extent, device=device, devices=devices, change=change, **options
        )
        return CompiledGraph(plan, chosen, routers, experts)

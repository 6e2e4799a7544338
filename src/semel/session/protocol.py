"""What every compiled graph can do, whatever device it is on.

The members keep the names of the interface that they are modelled on. Here they check what they
are given, raise typed errors instead of returning False, and arrays carry their dtype and shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from semel.runtime.buffer import Array
from semel.runtime.lane import Ticket
from semel.session.capture import Capture
from semel.session.experts import LayerMasks
from semel.session.outputs import Outputs
from semel.session.residency import ResidencyStats


@runtime_checkable
class ExecutableGraph(Protocol):
    """A compiled graph, ready to run. `inputs` are arrays by name, or in order."""

    @property
    def arena_ptr(self) -> int:
        """The address that the offsets of inputs and outputs count from."""

    def set_param(self, name: str, data: Any) -> None:
        """Replace a param by a copy of `data`, from the next run on."""

    def set_param_typed(self, name: str, data: Any, dtype: Any) -> None:
        """Replace a param by these bytes of that dtype."""

    def run(self, *args: Any, **named: Any) -> Outputs:
        """Run; copies of the outputs, by name and by order."""

    def run_raw(self, *args: Any, **named: Any) -> Outputs:
        """Run; views of the outputs, which raise once another run has begun."""

    def run_slots(self, inputs: Sequence[Any]) -> tuple[tuple[int, int], ...]:
        """Run with the inputs in order; (bytes behind `arena_ptr`, bytes) of each output."""

    def run_typed(self, inputs: Mapping[str, Any]) -> Outputs:
        """Run on `(bytes, dtype)`; outputs likewise."""

    def clone_box(self) -> ExecutableGraph:
        """One of its own over the same code and weights, which goes on from here."""

    def set_active_extent(self, extent: tuple[int, int] | None) -> None:
        """Let runs process the first `actual` of `upper` rows, exactly."""

    def enable_moe_topk_capture(self, num_experts: int | None = None, every: int = 1) -> bool:
        """Let runs take note of what routers decide; True, or an error."""

    def disable_moe_topk_capture(self) -> None:
        """Capture nothing from now on."""

    def take_moe_topk_capture(self) -> dict[int, Capture] | None:
        """What the last run that was captured routed where, by layer, once."""

    def set_moe_resident_experts(self, mask: Any) -> None:
        """Let exactly these experts be in memory, in every layer."""

    def set_moe_resident_experts_per_layer(self, masks: LayerMasks) -> None:
        """Likewise with a mask for each layer."""

    def take_moe_residency_stats(self) -> dict[int, ResidencyStats] | None:
        """What runs found in memory and what they moved, by layer, once."""

    def bind_handle(self, name: str, data: Any) -> bool:
        """Give a state, or an input, a value that stays; True, or an error."""

    def read_handle(self, name: str) -> Array:
        """A copy of what a handle holds now."""

    def bind_gpu_handle(self, name: str, data: Any) -> bool:
        """Like `bind_handle`: the value lies on the device."""

    def has_gpu_handle(self, name: str) -> bool:
        """Whether there is a handle of that name."""

    def set_gpu_handle_feed(self, handle: str, output_index: int) -> bool:
        """Let an output be the handle's value after each run, without a copy."""

    def read_gpu_handle(self, name: str) -> Array:
        """Like `read_handle`."""

    def run_feed_gpu_handle(
        self, inputs: Mapping[str, Any], handle: str, output_index: int
    ) -> Array:
        """Run once with such a feed; a copy of that output."""

    def commit_no_wait(self, *args: Any, **named: Any) -> Ticket[Outputs]:
        """Begin a run and return at once."""

    def sync_pending(self) -> None:
        """Wait for all runs that were begun."""

    def run_pipelined(self, input_sets: Iterable[Any]) -> list[Outputs]:
        """As many runs as there are sets of inputs; what each gave."""

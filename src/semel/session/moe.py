"""What a compiled graph has for its layers of experts: capture of routers, and who is resident.

    CompiledGraph(MoeMembers)  -->  RouterCapture, Residency: one of each for each graph

These are members of `CompiledGraph`, in a file of their own because they belong together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from semel.errors import InputError
from semel.graph.routers import Router
from semel.session.capture import Capture, RouterCapture
from semel.session.experts import LayerMasks, Mask
from semel.session.residency import Residency, ResidencyStats, no_residency


class MoeMembers:
    """The members about experts; what they need of the graph is declared here."""

    routers: tuple[Router, ...]
    _capture: RouterCapture | None
    _experts: Residency | None
    _lock: Any

    if TYPE_CHECKING:

        def _settle(self) -> None: ...

        def _note_handles(self) -> None: ...

    # ------------------------------------------------------------ routers

    def enable_moe_topk_capture(self, num_experts: int | None = None, every: int = 1) -> bool:
        """Let every `every`-th run from now on take note of what its routers decide.

        Of all layers, or of those with `num_experts`. True, or an error. What was captured before
        is forgotten.
        """
        made = RouterCapture.of(self.routers, num_experts, every)
        self._set_capture(made)
        return True

    def disable_moe_topk_capture(self) -> None:
        """Capture nothing from now on, and forget what was."""
        self._set_capture(None)

    def take_moe_topk_capture(self) -> dict[int, Capture] | None:
        """What the last run that was captured routed where, by layer; then it is forgotten.

        None if there was none, or capture is off.
        """
        self._settle()
        with self._lock:
            return None if self._capture is None else self._capture.take()

    def _set_capture(self, capture: RouterCapture | None) -> None:
        self._settle()
        with self._lock:
            self._capture = capture
            self._note_handles()

    # ------------------------------------------------------------ experts

    def set_moe_resident_experts(self, mask: Any) -> None:
        """Let exactly these experts be in memory, in every layer: bools, one for each expert.

        It takes the place of all masks before, of this graph and its clones, and holds until
        another one, or a policy, changes it. Results do not depend on it.
        """
        layers = self._residency().store.layers
        self._settle_experts(dict.fromkeys(layers, mask))

    def set_moe_resident_experts_per_layer(self, masks: LayerMasks) -> None:
        """Likewise with a mask for each layer, by its number or in the order of layers."""
        layers = list(self._residency().store.layers)
        is_array = isinstance(masks, np.ndarray) and masks.ndim > 0
        if not is_array and not isinstance(masks, (Mapping, Sequence)):
            raise InputError(
                "moe masks",
                f"must be one for each layer, in a dict or a list, got {masks!r:.200}.",
            )
        given = masks if isinstance(masks, Mapping) else dict(zip(layers, masks, strict=False))
        if len(masks) != len(layers):
            raise InputError(
                "moe masks", f"needs a mask for each of {len(layers)} layers, got {len(masks)}."
            )
        self._settle_experts(given)

    def moe_resident_experts(self) -> dict[int, Mask]:
        """Which experts are in memory, by layer."""
        experts = self._residency()
        self._settle()
        with self._lock:
            return experts.masks()

    def take_moe_residency_stats(self) -> dict[int, ResidencyStats] | None:
        """What runs found in memory and what they moved, by layer; then it is forgotten.

        None if nothing has happened, or all experts are in memory.
        """
        self._settle()
        with self._lock:
            return None if self._experts is None else self._experts.take_stats()

    def _settle_experts(self, masks: Mapping[int, Any]) -> None:
        self._settle()
        self._residency().settle(masks)

    def _residency(self) -> Residency:
        if self._experts is None:
            raise no_residency()
        return self._experts

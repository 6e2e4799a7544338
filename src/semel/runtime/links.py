"""How bytes get from one device to another: by asking the two what they can do.

choose_strategy(source, target)  -->  SyncStrategy
"""

from __future__ import annotations

from enum import Enum

from semel.runtime.device import Device


class SyncStrategy(Enum):
    """How two devices share bytes."""

    NONE = "none"  #: one device: order on its lanes is all there is to it
    PEER_TO_PEER = "peer to peer"  #: one of them reads and writes the other's memory itself
    THROUGH_HOST = "through the host"  #: by way of memory of the host, piece by piece

    def __str__(self) -> str:
        return self.value


def choose_strategy(source: Device, target: Device) -> SyncStrategy:
    """The best way that the two devices offer."""
    if source is target:
        return SyncStrategy.NONE
    if target.reaches(source) or source.reaches(target):
        return SyncStrategy.PEER_TO_PEER
    return SyncStrategy.THROUGH_HOST

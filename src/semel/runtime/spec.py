"""Which device is meant: how devices are written, and the one form that each goes by.

    "cpu", "cpu:1", "null:0", "disk:weights.bin"  --DeviceSpec-->  kind, index, path

This is grammar alone: whether there is such a device here is a matter of the registry. The host's
processor without an index is all of it, and with one a part of its cores; of every other kind
the first device goes by the kind's name alone. A device that is a file is known by its absolute
path, so that a later change of folder changes no meaning.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import Any

from semel.errors import UnsupportedError
from semel.runtime.free import HOST_DEVICE

#: The kind whose devices are files.
DISK_KIND = "disk"

_KIND = re.compile(r"[a-z][a-z0-9_]*")
_INDEX = re.compile(r"0|[1-9][0-9]{0,3}")


class DeviceSpec:
    """One device by name: `kind` with an `index`, or for a disk the `path`. Immutable.

    Wherever a device is named, a spec and its text serve alike.
    """

    __slots__ = ("index", "kind", "path")

    kind: str  #: what it is: `cpu`, `null`, `disk`
    index: int | None  #: which of its kind; None: all of it
    path: str | None  #: where a disk begins

    def __init__(self, device: str | DeviceSpec) -> None:
        kind, index, path = _parts("DeviceSpec", device)
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "index", index)
        object.__setattr__(self, "path", path)

    @staticmethod
    def parse(device: Any, where: str = "DeviceSpec") -> DeviceSpec:
        """The spec of a device as it is written, for who asks at `where`."""
        if type(device) is DeviceSpec:
            return device
        _parts(where, device)
        return DeviceSpec(device)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"[DeviceSpec] a spec never changes, so '{name}' cannot be set.")

    def __delattr__(self, name: str) -> None:
        self.__setattr__(name, None)

    def __reduce__(self) -> tuple[type[DeviceSpec], tuple[str]]:
        return DeviceSpec, (str(self),)

    def __str__(self) -> str:
        """The form that the device goes by."""
        if self.path is not None:
            return f"{self.kind}:{self.path}"
        is_plain = self.index is None or (self.index == 0 and self.kind != HOST_DEVICE)
        return self.kind if is_plain else f"{self.kind}:{self.index}"

    def __repr__(self) -> str:
        return f"DeviceSpec({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceSpec):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[str, int | None, str | None]:
        return self.kind, self.index, self.path


@lru_cache(256)
def kind_of(device: str) -> str:
    """The kind of a device by its name: of all parts of the CPU, the CPU."""
    return DeviceSpec.parse(device).kind


def _parts(where: str, device: Any) -> tuple[str, int | None, str | None]:
    """Kind, index and path of a device as it is written."""
    if isinstance(device, DeviceSpec):
        return device._key()
    if not isinstance(device, str):
        raise _refused(where, device)
    kind, colon, rest = device.partition(":")
    if not _KIND.fullmatch(kind):
        raise _refused(where, device)
    if kind == DISK_KIND:
        if not rest or "\0" in rest:
            raise UnsupportedError(
                where, f"a disk needs the path of a file, disk:path, got {device!r}.", device=device
            )
        return kind, None, os.path.abspath(rest)
    if colon and not _INDEX.fullmatch(rest):
        raise _refused(where, device)
    if not colon:
        return kind, None if kind == HOST_DEVICE else 0, None
    return kind, int(rest), None


def _refused(where: str, device: Any) -> UnsupportedError:
    return UnsupportedError(
        where,
        f"device must be written kind, kind:index or disk:path, such as cpu or cpu:1, "
        f"got {device!r:.60}.",
        device=device,
    )

"""Which devices there are in this process, for people.

    DeviceRegistry()  -->  kinds, devices(), open(spec), register(kind, module)

Plans, buffers and files name devices by text, so that a name must mean one device wherever it is
written: all registries of a process show one table (`semel.runtime.device`). Nothing of a device is
imported before it is opened or listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from semel.errors import DeviceError, SemelError
from semel.runtime.device import (
    Device,
    add_kind,
    broken_kinds,
    find_device,
    find_spec,
    known_kinds,
    list_kind,
    open_devices,
)
from semel.runtime.spec import DeviceSpec


class DeviceRegistry:
    """The devices of this process, opened when they are first used."""

    def __repr__(self) -> str:
        opened = ", ".join(map(str, self.opened)) or "none"
        return f"DeviceRegistry(kinds: {', '.join(self.kinds)}; open: {opened})"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of devices that are known, those of installed packages among them."""
        return known_kinds()

    @property
    def opened(self) -> tuple[DeviceSpec, ...]:
        """The devices in use."""
        return open_devices()

    def devices(self, kind: str | None = None) -> tuple[DeviceSpec, ...]:
        """What is here, of all kinds or one. Imports each of them, and opens none.

        Files are devices too (`disk:path`), and nobody lists those. A kind that cannot be listed
        is left out, and `broken` says why; where it is asked for, that is raised.
        """
        if kind is not None:
            return list_kind(find_spec("DeviceRegistry", kind).kind)
        broken = self.broken
        return tuple(spec for each in self.kinds if each not in broken for spec in list_kind(each))

    @property
    def broken(self) -> Mapping[str, DeviceError]:
        """Why kinds of devices cannot be listed: packages that fail, or declare them wrongly."""
        return broken_kinds()

    def __iter__(self) -> Iterator[DeviceSpec]:
        return iter(self.devices())

    def __contains__(self, device: Any) -> bool:
        """Whether there is this device, as far as can be told without opening it."""
        try:
            spec = DeviceSpec.parse(device)
        except SemelError:
            return False
        if spec.kind not in self.kinds or spec.kind in self.broken:
            return False
        return spec.path is not None or spec in self.devices(spec.kind)

    def open(self, device: str | DeviceSpec) -> Device:
        """The device, opened if this is its first use."""
        return find_device(device)

    def register(self, kind: str, module: str | ModuleType) -> None:
        """Let devices of this kind be those of a module, by name or itself, with a `BACKEND`.

        Packages that are installed say the same with an entry point of the group `semel.devices`.
        Again with the same module: nothing. A kind that is known stays what it is.
        """
        add_kind(kind, module)

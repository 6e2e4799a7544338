"""Which devices there are in this process, for people.

    DeviceRegistry()  -->  kinds, devices(), open(spec), register(kind, module)

Plans, buffers and files name devices by text, so that a name must mean one device wherever it is
written: all registries of a process show one table (`semel.runtime.device`). Nothing of a device is
imported before it is opened or listed.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from semel.errors import SemelError
from semel.runtime.device import (
    Device,
    add_kind,
    find_device,
    import_backend,
    known_kinds,
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

        Files are devices too (`disk:path`), and nobody lists those.
        """
        kinds = self.kinds if kind is None else (DeviceSpec.parse(kind, "DeviceRegistry").kind,)
        return tuple(DeviceSpec(name) for each in kinds for name in _listed(each))

    def __iter__(self) -> Iterator[DeviceSpec]:
        return iter(self.devices())

    def __contains__(self, device: Any) -> bool:
        """Whether there is this device, as far as can be told without opening it."""
        try:
            spec = DeviceSpec.parse(device)
        except SemelError:
            return False
        if spec.kind not in self.kinds:
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


def _listed(kind: str) -> tuple[str, ...]:
    listed = import_backend(kind).BACKEND.listed
    return (kind,) if listed is None else tuple(listed())

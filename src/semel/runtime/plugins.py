"""Devices that other packages bring along.

    [project.entry-points."semel.devices"]
    mine = "my_package.backend"    -->   find_plugins().modules == {"mine": "my_package.backend"}

Packages are asked only when somebody names a kind that is not known, or wants a list of all. What
one of them declares wrongly is the concern of who uses that kind, and of nobody else.
"""

from __future__ import annotations

from typing import NamedTuple

from semel.errors import DeviceError

GROUP = "semel.devices"


class Plugins(NamedTuple):
    """The module of each kind of device that a package declares; what is wrong with others."""

    modules: dict[str, str]
    broken: dict[str, DeviceError]


def find_plugins() -> Plugins:
    """What installed packages declare."""
    from importlib.metadata import entry_points  # only who asks needs it

    found: dict[str, str] = {}
    broken: dict[str, DeviceError] = {}
    for point in entry_points(group=GROUP):
        if point.attr:
            broken[point.name] = DeviceError(
                f"entry point {GROUP}",
                f"'{point.name}' must name a module, which has a BACKEND, got {point.value!r}.",
                hint=f'Write {point.name} = "{point.module}".',
            )
        elif found.setdefault(point.name, point.module) != point.module:
            broken[point.name] = DeviceError(
                f"entry point {GROUP}",
                f"'{point.name}' must be declared once, got {found[point.name]} and "
                f"{point.module}.",
            )
    return Plugins({kind: each for kind, each in found.items() if kind not in broken}, broken)

"""Devices that other packages bring along.

    [project.entry-points."semel.devices"]
    mine = "my_package.backend"        -->   find_plugins() == {"mine": "my_package.backend"}

Packages are asked only when somebody names a kind that is not known, or wants a list of all.
"""

from __future__ import annotations

from semel.errors import DeviceError

GROUP = "semel.devices"


def find_plugins() -> dict[str, str]:
    """The module of each kind of device that an installed package declares."""
    from importlib.metadata import entry_points  # only who asks needs it

    found: dict[str, str] = {}
    for point in entry_points(group=GROUP):
        if point.attr:
            raise DeviceError(
                f"entry point {GROUP}",
                f"'{point.name}' must name a module, which has a BACKEND, got {point.value!r}.",
                hint=f'Write {point.name} = "{point.module}".',
            )
        if found.setdefault(point.name, point.module) != point.module:
            raise DeviceError(
                f"entry point {GROUP}",
                f"'{point.name}' must be declared once, got {found[point.name]} and "
                f"{point.module}.",
            )
    return found

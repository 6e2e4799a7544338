"""Which machines a plan file has code for, and which of them read weights in one layout.

file  --find_machines-->  Machines{("x86-64-v3", "aarch64"), ("x86-64-v4",)}

Kernels read packed weights in panels as wide as their registers. Machines with registers of one
width find the same bytes in the file; for another width there is another copy of what is packed.
"""

from __future__ import annotations

from dataclasses import dataclass

from semel.ir.encode import as_int, as_list, decode_type
from semel.plan.file.read import PlanFile


@dataclass(frozen=True, slots=True)
class Machines:
    """The machines of a file, in order, and those that read the same weights, together.

    `again_bytes` are what the file has beyond the largest layout: weights that are there again.
    """

    names: tuple[str, ...]
    layouts: tuple[tuple[str, ...], ...]
    again_bytes: int


def find_machines(file: PlanFile) -> Machines:
    """The machines that a file has code for."""
    found = {each.made_for.name: _weight_places(each) for each in file.variants()}
    alike: dict[frozenset[tuple[int, int]], list[str]] = {}
    for name, places in found.items():
        alike.setdefault(frozenset(places.items()), []).append(name)
    everything = {place: size for places in found.values() for place, size in places.items()}
    largest = max(sum(places.values()) for places in found.values())
    again = sum(everything.values()) - largest
    return Machines(tuple(found), tuple(map(tuple, alike.values())), again)


def _weight_places(file: PlanFile) -> dict[int, int]:
    """Where the weights that the program reads begin, and their sizes."""
    record = file.header["program"]
    entries = [*as_list(record["values"]), *as_list(record.get("params", []))]
    return {
        as_int(entry["offset"]): as_int(decode_type(entry["type"], file.dim).num_bytes)
        for entry in entries
        if entry["offset"] is not None
    }

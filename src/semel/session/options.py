"""What a caller chose when a graph was compiled, beyond what its plan knows.

Session.compile(graph, casting=, sticky=, depth=)  -->  Options  -->  its file, its clones
"""

from __future__ import annotations

from dataclasses import dataclass

from semel.errors import InputError
from semel.ir.fields import take, take_int
from semel.runtime.casting import check_casting


@dataclass(frozen=True, slots=True)
class Options:
    """How a compiled graph treats what it is given."""

    casting: str = "exact"
    sticky: bool = False
    depth: int = 4

    def __post_init__(self) -> None:
        check_casting("compile", self.casting)
        take("compile", "sticky", bool, self.sticky)
        if take_int("compile", "depth", self.depth) < 1:
            raise InputError("compile", f"depth must be at least 1, got {self.depth}.")

"""Names of files that several folders have: each with its reason (docs/decisions/0233)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import semel

#: One family of ops in the stages that it goes through.
OPS = {
    "attention", "bodies", "contract", "control", "elementwise", "evaluate", "grouped", "guards",
    "late", "loop", "loss", "movement", "own_kernel", "place", "quantise", "random", "recurrent",
    "reduce", "scalars", "window",
}  # fmt: skip
#: One thing in the layers that have a part of it.
LAYERS = {
    "builder", "dims", "errors", "experts", "explain", "extent", "hazards", "lane", "lanes", "link",
    "links", "narrow", "outputs", "pages", "profile", "readers", "report", "sequences", "show",
    "state", "states", "weights",
}  # fmt: skip
#: What each IR, each report or each device has.
KINDS = {
    "backend", "describe", "encode", "executable", "limits", "text", "verify",
}  # fmt: skip
#: Two things with one name: none should join them.
MISLEADING = {
    "form", "kernels", "memory", "order", "pipeline", "products", "table", "trace", "values",
}  # fmt: skip


def test_a_name_that_repeats_has_a_reason() -> None:
    folder = Path(semel.__file__).parent
    count = Counter(path.stem for path in folder.rglob("*.py") if path.stem != "__init__")
    repeated = {name for name, number in count.items() if number > 1}
    allowed = [OPS, LAYERS, KINDS, MISLEADING]
    assert sum(map(len, allowed)) == len(set().union(*allowed))
    assert repeated == set().union(*allowed)

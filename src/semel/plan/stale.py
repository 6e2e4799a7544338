"""Rows of an output that the last run did not write, though an earlier one did.

    writers of an output, their sizes then and now  --stale_range-->  bytes that must not be read

An output made by hand may be larger than what its kernels write at the current variables. What
nobody ever wrote there is the caller's; what a run at larger variables wrote is not a result of the
last one. The runner keeps the most that each writer wrote since the caller did (a *mark*): one
register, raised at each bind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from semel.ir.expr import Dim, evaluate


@dataclass(frozen=True, slots=True)
class Writer:
    """An operation that writes `size` bytes from `start`, counted from the output's first byte.

    `mark` is the number of its mark; None if it always writes as much.
    """

    start: int
    size: Dim
    mark: int | None


def stale_range(
    writers: Sequence[Writer],
    values: Mapping[str, int],
    marks: Sequence[int],
    wanted: tuple[int, int],
) -> tuple[int, int] | None:
    """Bytes within `wanted` that only an earlier run wrote; None if there are none."""
    now = [(w.start, w.start + evaluate(w.size, values)) for w in writers]
    for writer, (_, end) in zip(writers, now, strict=True):
        if writer.mark is None:
            continue
        low, high = max(end, wanted[0]), min(writer.start + marks[writer.mark], wanted[1])
        for start, stop in sorted(now):
            if start <= low < stop:
                low = stop
        if low < high:
            return low, high
    return None

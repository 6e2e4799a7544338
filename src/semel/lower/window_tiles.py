"""How much a tile of windows takes: what its rows of places look at stays in the cache.

    rows, places, channels --cut_windows--> Cut

Windows of neighbouring rows look at the same lines of an image. Wide ones with many channels
would leave the first-level cache before the next row comes to them, and be read from the second
as often as a window has lines, which takes as long as the arithmetic. So a tile takes a stripe of
the channels, and several rows of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from semel.ir.expr import Dim, Index, linear_coefficient, maximum, upper_bound
from semel.ir.target import Target
from semel.kernel import ir
from semel.kernel.ir import Buffer, Statement, statement_values, walk_statements, walk_values

#: Vectors of channels that a stripe has at least: lines of memory that lie side by side.
LEAST_STRIPE = 4
#: Places of a row of which no more is known; a longer one is cut.
USUAL_WIDTH = 64


@dataclass(frozen=True, slots=True)
class Cut:
    """What a tile takes: so many rows, so many places of each, and one of the stripes."""

    rows: int
    places: int
    stripes: int


def cut_windows(
    rows: Dim,
    place: Index,
    channel: Index,
    body: Sequence[Statement],
    target: Target,
    tile_elements: int,
    fewest: int,
    *,
    is_whole: bool,
) -> Cut:
    """Stripes so narrow, and parts of rows so short, that the lines a row of places looks at stay
    in the first-level cache until the next row has looked at them.

    A tile has at least the `fewest` places, and all channels if that is to be so.
    """
    width, depth = upper_bound(place.extent), upper_bound(channel.extent) or tile_elements
    lines, size = _lines_read(place, channel, body)
    stripes = 1
    if lines > 1 and isinstance(channel.extent, int) and not is_whole:
        lanes = target.lanes(32)
        vectors = -(-depth // lanes)
        room = target.l1_bytes // (size * lanes * min(width or USUAL_WIDTH, USUAL_WIDTH))
        stripes = -(-vectors // max(LEAST_STRIPE, room))
        depth = -(-vectors // stripes) * lanes
    most = max(tile_elements // max(depth, 1), fewest)
    if lines > 1:
        most = min(most, max(target.l1_bytes // (size * depth), fewest))
    places = most
    if width is not None:
        places = -(-width // max(1, (width + most // 2) // most))
    several = max(1, tile_elements // (depth * places))
    if isinstance(rows, int):
        several = -(-rows // -(-rows // several))
    return Cut(several, places, stripes)


def _lines_read(place: Index, channel: Index, body: Sequence[Statement]) -> tuple[int, int]:
    """How many lines of places the windows of a row look at, and bytes of them for each place."""
    taps = [s.index for s in walk_statements(body) if isinstance(s, ir.Loop)]
    read: dict[Buffer, tuple[int, int]] = {}
    for value in walk_values([v for s in walk_statements(body) for v in statement_values(s)]):
        step = linear_coefficient(value.data[1], place) if value.op == "load" else None
        if step is None or step == 0:
            continue
        buffer, at = value.data
        line = step * place.extent
        lines = prod(upper_bound(t.extent) or 1 for t in taps if _is_line(at, t, line))
        stride = upper_bound(step // maximum(channel.extent, 1)) or 1
        found = (lines, lines * stride * buffer.dtype.size_bytes)
        read[buffer] = max(read.get(buffer, found), found)
    return max((n for n, _ in read.values()), default=1), sum(size for _, size in read.values())


def _is_line(at: Dim, tap: Index, line: Dim) -> bool:
    """Whether a tap looks at another line of places."""
    step = linear_coefficient(at, tap)
    if isinstance(step, int) and isinstance(line, int):
        return 2 * abs(step) >= abs(line)
    return step is not None and not isinstance(step, int)

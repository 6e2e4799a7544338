"""Rows for a decoder that keeps its caches: a token in, the next token out.

    DECODE_ROWS, in the groups "decode" and "decode_quick" (`python -m benchmarks decode [--quick]`)

The decoder is that of `examples/decoder.py`, of GPT-2's size or small. A step is timed with so many
tokens in the caches, and every runtime keeps these in its own best way: none copies them between
steps. Before a sample the caches are put back to that length, which is not timed. The yardstick is
a loop that reads as many bytes as a step must: every matrix once, and what is valid of the caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from examples.decoder import GPT2, SMALL, drawn, gpt2
from tests.models import reference

from benchmarks.row import Array, Bar, Inputs, Row

if TYPE_CHECKING:
    from benchmarks.driver import RowResult

TOKEN = 17
#: Tokens of a prompt that the graph takes at once, at most.
PROMPT = 64


@dataclass(frozen=True)
class Decode:
    """A step of a decoder: `past` tokens in caches that have room for `size["room"]`."""

    size: dict[str, int]
    past: int

    @property
    def depth(self) -> int:
        """The width of a head."""
        return self.size["wide"] // self.size["heads"]

    @property
    def cache_shape(self) -> tuple[int, int, int, int]:
        """Layers, heads, tokens, depth."""
        return self.size["layers"], self.size["heads"], self.past, self.depth


def _of(size: dict[str, int], past: int, room: int | None = None) -> Decode:
    return Decode({**size, "room": room or size["room"]}, past)


#: Steps by row; those with more room are measured against the ones before them.
DECODES: dict[str, Decode] = {
    "decode_256": _of(GPT2, 256),
    "decode_256_of_4096": _of(GPT2, 256, 4096),
    "decode_1000": _of(GPT2, 1000),
    "quick_40": _of(SMALL, 40),
    "quick_40_of_512": _of(SMALL, 40, 512),
}
#: Rows that only Semel runs.
ROOMY = {"decode_256_of_4096": "decode_256", "quick_40_of_512": "quick_40"}


def decode_weights(name: str) -> dict[str, Array]:
    """The weights of a row by their names, the same in every process."""
    draw, found = drawn(), {}

    def weight(key: str, shape: tuple[int, ...]) -> Array:
        found[key] = draw(key, shape)
        return found[key]

    gpt2(weight, **DECODES[name].size)
    return found


def decode_traffic(name: str) -> int:
    """Bytes that a step must read: weights but for the table of positions, and valid caches.

    A layer has matrices of 12 squares, and biases, scales and shifts of 13 rows.
    """
    size = DECODES[name].size
    wide, words = size["wide"], size["vocabulary"]
    layers, heads, past, depth = DECODES[name].cache_shape
    weights = words * wide + layers * (12 * wide + 13) * wide + 2 * wide
    caches = 2 * layers * heads * (past + 1) * depth
    return 4 * (caches + weights)


def _inputs(name: str, rng: np.random.Generator) -> Inputs:
    shape = DECODES[name].cache_shape
    keys, values = (rng.standard_normal(shape, dtype=np.float32) for _ in range(2))
    return {"token": np.array([TOKEN]), "keys": keys, "values": values}


def _logits(name: str, inputs: Inputs) -> Array:
    weights, heads = decode_weights(name), DECODES[name].size["heads"]
    return reference.gpt2_step(TOKEN, inputs["keys"], inputs["values"], weights, heads)


def _bar(name: str) -> Bar:
    if name in ROOMY:
        text = f"1.05x of {DECODES[ROOMY[name]].size['room']} in room"
        return Bar(text, (("times", ROOMY[name], 1.05),))
    if DECODES[name].past < 1000:
        return Bar("as the best peer, 90 % of reading", (("best", "", 1.0), ("share", "", 0.9)))
    return Bar("1.1x as fast as the best peer", (("best", "", 1 / 1.1),))


def _row(name: str) -> Row:
    step = DECODES[name]
    layers, wide, room = (step.size[key] for key in ("layers", "wide", "room"))
    return Row(
        name,
        f"GPT-2 {layers}x{wide}, {step.past} of {room}",
        "decode" if name.startswith("decode") else "decode_quick",
        partial(_inputs, name),
        partial(_logits, name),
        _bar(name),
        tolerance=2e-3,
        traffic=decode_traffic(name),
        bound="read",
        statistic="p10",
    )


DECODE_ROWS: tuple[Row, ...] = tuple(_row(name) for name in DECODES)


def decode_lines(results: Sequence[RowResult]) -> list[list[str]]:
    """Tokens a second by runtime, at p10 and at the median, and the share of the read loop."""
    lines = [["decode", "thr", "runtime", "tokens/s", "median", "Semel is", "of reading"]]
    for result in results:
        if result.row not in DECODES:
            continue
        ours = result.timings.get("semel")
        for peer, timing in result.timings.items():
            if timing.error or ours is None or ours.error:
                continue
            share = decode_traffic(result.row) / timing.p10 / result.limits["read"]
            ratio = "" if peer == "semel" else f"{timing.p10 / ours.p10:.2f}x"
            rates = [f"{1 / timing.p10:.1f}", f"{1 / timing.median:.1f}"]
            lines.append([result.row, str(result.threads), peer, *rates, ratio, f"{share:.0%}"])
    return lines

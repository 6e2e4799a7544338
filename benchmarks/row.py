"""One line of the table: inputs, a reference, a bar.

    Row  --make_inputs-->  the same arrays in every process

What the rows are is in `benchmarks.rows`; this is what they are made of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Inputs = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Bar:
    """What Semel's time must stay under, in a sentence and as seconds once all are known.

    `limits` are (kind, key, amount): "time" seconds, "row" another row's time plus seconds,
    "times" another row's time times a factor,
    "best" the best peer's time on this row times a factor, "share" the time that this share of
    the row's bound allows; the key of the last two is a thread count, or empty for all. All must
    hold; one that has nothing to be held against is left out.
    """

    text: str
    limits: tuple[tuple[str, str, float], ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table, and what the machine could do at best.

    `traffic` is bytes for the bounds read and copy, operations for the bound fma.

    `statistic` is the one that the bar judges: medians for calls, p10 for throughput.
    """

    name: str
    title: str
    group: str
    inputs: Callable[[np.random.Generator], Inputs]
    reference: Callable[[Inputs], Array]
    bar: Bar
    tolerance: float = 1e-5
    traffic: int = 0
    bound: str = ""
    statistic: str = "median"


#: A row for any number of rows, of images, or any size of theirs, may take so much longer than that
#: of a fixed one.
ANY = "_any"
ANY_FACTOR = 1.05


def any_row(row: Row) -> Row:
    """The same for a size that is not known before, which Semel alone has rows for."""
    bar = Bar(f"{ANY_FACTOR}x the fixed size", (("times", row.name, ANY_FACTOR),))
    return replace(row, name=row.name + ANY, title=f"{row.title}, any size", bar=bar)


def make_inputs(row: Row) -> Inputs:
    """The row's inputs, the same in every process."""
    return row.inputs(np.random.default_rng(7))

"""A decoder whose experts move: tokens/s and bytes a token, by how many stay and who decides.

    measure_experts(threads)  -->  ExpertTable: a row for each configuration, the store by itself
                              --expert_lines, expert_bars-->  rows of cells, numbers with a bar

Every configuration writes the same text: the same prompt and draws, so the same tokens, and the
same experts asked for. They take turns, text by text, and so do the decoder without residency and
the store by itself. The time of a text is that of its steps, each the best of all rounds, since
step number 17 does the same work in each. That is checked: the tokens, the misses of all rounds but
the first, which finds other residents, and that bytes moved are those of what was missed.

What has a bar of a percent or two is measured by itself, before any other decoder takes memory:
short texts of a decoder without residency, of the same one again, capturing, and with all
residents, in random order, at several places in memory. The same one again should be 1: where it
is not, by as much as a bar, the others say nothing.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plan import PlanRow
from benchmarks.row import Array
from semel import CompiledGraph, ExpertResidency, Graph, Session
from semel.models.mixture import SMALL_MIXTURE, MixtureSize, build_mixture, gumbel, mixture_weights
from semel.session.experts import Policy

#: 453 MB of experts, 3.5 MB each.
LARGE = MixtureSize(width=384, heads=6, hidden=768)
POLICIES: tuple[Policy, ...] = ("static", "lru", "decayed")
_STEPS = 192
_PAIRED_STEPS, _PAIRED_ROUNDS = 32, 3  # rounds for each of the table's, at each place
_PLACES = 4
_DIMS = {"t": (1, 64)}
_PLAIN, _ALL, _NONE = "no residency", "all", "none"


@dataclass(frozen=True, slots=True)
class ExpertRow:
    """One configuration: seconds of a step, and what it found, missed and moved for each token."""

    resident: str
    policy: str
    step_s: float
    hits: float = 0.0
    misses: float = 0.0
    bytes_moved: float = 0.0
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ExpertTable:
    """What was measured with so many threads, and how many bytes a second the store brings in.

    `again`, `captured` and `resident` are times over that of the decoder without residency: its own
    in another turn, while it captures, and of one with all residents.
    """

    threads: int
    expert_bytes: int
    store_rate: float
    rows: tuple[ExpertRow, ...]
    again: float
    captured: float
    resident: float

    def row(self, resident: str) -> ExpertRow:
        """The first one with so many residents."""
        return next(row for row in self.rows if row.resident == resident)


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and the draws behind it."""

    prompt: Array
    noise: Array

    @property
    def beginning(self) -> Text:
        """Its first steps."""
        return Text(self.prompt, self.noise[: _PAIRED_STEPS + 1])

    @staticmethod
    def of(size: MixtureSize, steps: int, seed: int) -> Text:
        """One that begins with the first subject."""
        return Text(np.arange(8) * size.subjects, gumbel(steps + 1, size, seed))

    def begin(self, decoder: CompiledGraph) -> Array:
        """Read the prompt: the first token behind it."""
        decoder.reset()
        (token,) = decoder.run(ids=self.prompt, noise=self.noise[0], fetch=["next"])
        return np.asarray(token)

    def go_on(self, decoder: CompiledGraph, token: Array) -> Iterator[tuple[int, float]]:
        """Each further token, and the seconds of its step."""
        for noise in self.noise[1:]:
            start = time.perf_counter()
            (token,) = decoder.run(ids=token.reshape(1), noise=noise, fetch=["next"])
            yield int(token), time.perf_counter() - start


@dataclass(slots=True)
class _Contender:
    """One configuration, and what its texts took: seconds by round and step, stats by round."""

    resident: str
    policy: str
    decoder: CompiledGraph
    seconds: list[list[float]] = field(default_factory=list)
    totals: list[tuple[int, int, int]] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)

    @property
    def moves(self) -> bool:
        """Whether it has residency at all."""
        return self.resident != _PLAIN

    def write(self, text: Text, expert_bytes: int) -> list[int]:
        """Write the text once: its tokens."""
        token = text.begin(self.decoder)
        if self.moves:
            self.decoder.take_moe_residency_stats()  # what the prompt moved
        written = list(text.go_on(self.decoder, token))
        self.seconds.append([seconds for _, seconds in written])
        if self.moves:
            self._note(expert_bytes)
        return [token for token, _ in written]

    def _note(self, expert_bytes: int) -> None:
        stats = self.decoder.take_moe_residency_stats()
        assert stats is not None
        for layer, found in stats.items():
            assert found.bytes_moved == found.misses * expert_bytes, (self, layer, found)
        of = stats.values()
        totals = sum(s.hits for s in of), sum(s.misses for s in of), sum(s.bytes_moved for s in of)
        assert len(self.totals) < 2 or totals == self.totals[-1], (self.resident, self.policy)
        self.totals.append(totals)
        self.waited.append(sum(s.seconds_waited for s in of))

    def row(self) -> ExpertRow:
        """What all rounds but the first say."""
        best = np.min(self.seconds[1:], axis=0)
        step = float(best.mean())
        if not self.moves:
            return ExpertRow(self.resident, self.policy, step)
        hits, misses, moved = (total / len(best) for total in self.totals[-1])
        waited = min(self.waited[1:]) / len(best)
        return ExpertRow(self.resident, self.policy, step, hits, misses, moved, waited)


def measure_experts(
    threads: int, *, rounds: int = 9, size: MixtureSize = LARGE, steps: int = _STEPS
) -> ExpertTable:
    """All configurations in one rotation of so many rounds, after one that is dropped."""
    weights, text = mixture_weights(size), Text.of(size, steps, seed=1)
    graph = build_mixture(weights, size)
    expert_bytes = 4 * sum(rows * columns for rows, columns in size.expert_shapes.values())
    with tempfile.TemporaryDirectory() as folder:
        pairs = _paired(graph, threads, text.beginning, _PAIRED_ROUNDS * rounds)
        contenders = _contenders(graph, size, steps, threads, Path(folder))
        whole = next(c for c in contenders if c.resident == _ALL).decoder
        rates = []
        for number in range(rounds + 1):
            tokens = set()
            for contender in random.sample(contenders, len(contenders)):
                tokens.add(tuple(contender.write(text, expert_bytes)))
            assert len(tokens) == 1, "residents may not change results"
            rate = _store_rate(whole, size, expert_bytes)
            rates += [rate] if number else []
        rows = tuple(contender.row() for contender in contenders)
    return ExpertTable(threads, expert_bytes, max(rates), rows, *pairs)


def _paired(graph: Graph, threads: int, text: Text, rounds: int) -> tuple[float, float, float]:
    """Times over that of the plain decoder: of itself, capturing, and with all residents.

    Of a step, that is: the median of all steps of a text, each at its best. Where weights happen to
    lie moves a step by as much as the bars: so it is the best of several decoders of each kind, of
    which each has other memory.
    """
    session, turns = Session("cpu"), ("plain", "again", "captured", "whole")
    best = dict.fromkeys(turns, np.full(len(text.noise) - 1, np.inf))
    for _ in range(_PLACES):
        plain = session.compile(graph, dims=_DIMS, threads=threads)
        whole = session.compile(graph, dims=_DIMS, threads=threads, experts=ExpertResidency())
        for _ in range(rounds):
            for turn in random.sample(turns, len(turns)):
                decoder = whole if turn == "whole" else plain
                if turn == "captured":
                    decoder.enable_moe_topk_capture()
                written = text.go_on(decoder, text.begin(decoder))
                best[turn] = np.minimum(best[turn], [seconds for _, seconds in written])
                plain.disable_moe_topk_capture()
    again, captured, resident = (float(np.median(best[turn] / best["plain"])) for turn in turns[1:])
    return again, captured, resident


def _contenders(
    graph: Graph, size: MixtureSize, steps: int, threads: int, folder: Path
) -> list[_Contender]:
    """The decoder without residency, and with all, some and none of its experts in memory."""
    session = Session("cpu")
    plain = session.compile(graph, dims=_DIMS, threads=threads)
    profile = _profile(plain, Text.of(size, 2 * steps, seed=2))

    def contender(resident: str, policy: Policy | None, budget: int) -> _Contender:
        residency = ExpertResidency(
            budget=budget, policy=policy or "static", profile=profile, path=folder / "experts"
        )
        decoder = session.compile(graph, dims=_DIMS, threads=threads, experts=residency)
        return _Contender(resident, policy or "any", decoder)

    some = (("1/2", size.experts // 2), ("1/8", size.experts // 8))
    return [
        _Contender(_PLAIN, "-", plain),
        contender(_ALL, None, size.experts),
        *(contender(name, policy, budget) for name, budget in some for policy in POLICIES),
        contender(_NONE, None, 0),
    ]


def _profile(decoder: CompiledGraph, text: Text) -> Mapping[int, Array]:
    """How often another text asks for each expert, by layer."""
    clone = decoder.clone()
    clone.enable_moe_topk_capture()
    counts: dict[int, Array] = {}
    for _ in text.go_on(clone, text.begin(clone)):
        for layer, found in (clone.take_moe_topk_capture() or {}).items():
            counts[layer] = counts.get(layer, 0) + found.counts
    return counts


def _store_rate(decoder: CompiledGraph, size: MixtureSize, expert_bytes: int) -> float:
    """Bytes a second that come in, if all experts leave memory and come back."""
    decoder.set_moe_resident_experts(np.zeros(size.experts, bool))
    start = time.perf_counter()
    decoder.set_moe_resident_experts(np.ones(size.experts, bool))
    return size.layers * size.experts * expert_bytes / (time.perf_counter() - start)


# ------------------------------------------------------------ for people


def expert_lines(tables: Sequence[ExpertTable]) -> list[list[str]]:
    """A line for each configuration."""
    head = ["residents", "thr", "policy", "tokens/s", "of all", "hits", "misses/token"]
    lines = [[*head, "MB/token", "waited us", "of the store"]]
    for table in tables:
        base = table.row(_PLAIN).step_s
        for row in table.rows:
            speed = [f"{1 / row.step_s:.0f}", f"{base / row.step_s:.1%}"]
            lines.append(
                [row.resident, str(table.threads), row.policy, *speed, *_moved(row, table)]
            )
    return lines


def _moved(row: ExpertRow, table: ExpertTable) -> list[str]:
    asked = row.hits + row.misses
    if not asked:
        return ["-"] * 5
    share = row.bytes_moved / row.step_s / table.store_rate
    return [
        f"{row.hits / asked:.1%}",
        f"{row.misses:.2f}",
        f"{row.bytes_moved / 1e6:.2f}",
        f"{1e6 * row.waited_s:.0f}",
        f"{share:.0%}",
    ]


def store_line(table: ExpertTable) -> str:
    """How fast the store is by itself, and how near a step that moves everything comes to it."""
    none, all_ = table.row(_NONE), table.row(_ALL)
    alone = none.bytes_moved / table.store_rate
    return (
        f"store, {table.threads} thread{'s' if table.threads > 1 else ''}: "
        f"{table.store_rate / 1e9:.1f} GB/s; a step with no residents moves "
        f"{none.bytes_moved / none.step_s / 1e9:.1f} GB/s, and takes {1e6 * none.step_s:.0f} us: "
        f"{1e6 * all_.step_s:.0f} with all residents, {1e6 * alone:.0f} by the store's speed, "
        f"{1e6 * (none.step_s - all_.step_s - alone):.0f} more"
    )


def expert_bars(tables: Sequence[ExpertTable]) -> list[PlanRow]:
    """What has a bar."""
    found = []
    for table in tables:
        thr = f"{table.threads} thr"
        found += [
            PlanRow(f"no residency again, {thr}: 1 but for noise", table.again, "x", 1.01),
            PlanRow(f"capture on over off, {thr}", table.captured, "x", 1.01),
            PlanRow(f"all residents over no residency, {thr}", table.resident, "x", 1.02),
        ]
    return found


#: What a test can afford.
QUICK: dict[str, Any] = {"size": SMALL_MIXTURE, "steps": 24}

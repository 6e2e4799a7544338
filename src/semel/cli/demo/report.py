"""What the demo found out, what must hold of it, and how it reads.

DemoReport  --checks-->  sentence -> bool
parts of it  --..._lines, ..._table-->  text
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from semel.cli.demo.race import Limit, Timing
from semel.cli.demo.second_start import SecondStart
from semel.cli.report import Section, count_of, format_bytes

#: Two float32 sums of a thousand products in different orders differ by about this much.
TOLERANCE = 2e-4
COUNTED_RUNS = 100
_CACHED = 1.25


@dataclass(frozen=True, slots=True)
class Ready:
    """What preparing took and gave; kernels `compiled` now, and those that the cache had."""

    seconds: float
    operations: int
    kernels: int
    distinct_kernels: int
    compiled: int
    from_cache: int
    weights_bytes: int
    arena_bytes: int
    naive_bytes: int


@dataclass(frozen=True, slots=True)
class Generated:
    """A prompt that was read in one run, and what was written behind it, one token a run."""

    prompt: str
    text: str
    read_tokens: int
    read_seconds: float
    written_tokens: int
    written_seconds: float


@dataclass(frozen=True, slots=True)
class Contender:
    """A library and how long a step takes with it; `error` is its distance from NumPy's logits.

    `failure` is why there are no numbers.
    """

    name: str
    version: str
    timing: Timing | None = None
    error: float = 0.0
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Raced:
    """Who does a step with `past` tokens in the cache how fast, ourselves first.

    `reading` is how near the step is to the speed of memory, `arithmetic` how near a run over
    `prompt_tokens` is to that of the cores. `memory_rate` is what memory gives that no cache holds.
    """

    past: int
    prompt_tokens: int
    contenders: tuple[Contender, ...]
    reading: Limit
    arithmetic: Limit
    memory_rate: float

    @property
    def is_cached(self) -> bool:
        """Whether the bytes of a step come faster than memory could give them."""
        return self.reading.best_rate > _CACHED * self.memory_rate


@dataclass(frozen=True, slots=True)
class DemoReport:
    """Everything the demo found out."""

    model: str
    threads: int
    ready: Ready
    generated: Generated
    raced: Raced
    second: SecondStart
    is_same: bool
    errors: Mapping[int, float]
    compile_count: int
    allocated_bytes: int
    executes: int
    files: Mapping[str, str]

    @property
    def checks(self) -> dict[str, bool]:
        """What must hold, by sentence."""
        others = [c for c in self.raced.contenders if not c.failure]
        lengths = ", ".join(map(str, self.errors))
        return {
            f"prompts of {lengths} tokens: what NumPy computes within {TOLERANCE:.0e}": all(
                error <= TOLERANCE for error in self.errors.values()
            ),
            f"one step: {', '.join(c.name for c in others)} agree within {TOLERANCE:.0e}": all(
                c.error <= TOLERANCE for c in others
            ),
            "the new process wrote the same text, with the same bits": self.is_same,
            f"compiled once for all of this: prompts, steps, {self.executes:,} runs": (
                self.compile_count == 1
            ),
            f"{COUNTED_RUNS} steps leave no allocation behind": self.allocated_bytes == 0,
        }

    def json(self) -> dict[str, Any]:
        """Plain data for scripts."""
        found = asdict(self)
        for name in ("reading", "arithmetic"):
            found["raced"][name]["share"] = getattr(self.raced, name).share
        return {**found, "checks": self.checks}


def ready_lines(ready: Ready) -> list[str]:
    """What preparing took and gave."""
    found = "compiled now" if ready.compiled else "found in the cache"
    number = ready.compiled or ready.from_cache
    distinct = f"{ready.distinct_kernels} different ones, {number} {found}"
    saved = ready.naive_bytes / max(ready.arena_bytes, 1)
    return [
        f"ready after {format_s(ready.seconds)}",
        f"{ready.operations} operations became {ready.kernels} kernels ({distinct})",
        f"{format_bytes(ready.arena_bytes)} of memory between the kernels, {saved:.0f}x less than"
        " without sharing",
    ]


def generated_lines(generated: Generated) -> list[str]:
    """How fast it was read and written."""
    rate = generated.written_tokens / generated.written_seconds
    return [
        f"{generated.read_tokens} tokens read in {format_s(generated.read_seconds)}, "
        f"{generated.written_tokens} written in {format_s(generated.written_seconds)}: "
        f"{rate:,.0f} a second",
        "nothing was compiled or allocated; keys and values were appended in place",
    ]


def contenders_table(raced: Raced) -> Section:
    """Who takes how long for a step."""
    ours = raced.contenders[0].timing
    rows = []
    for c in raced.contenders:
        name = f"{c.name} {c.version}".rstrip()
        if c.timing is None or ours is None:
            rows.append((name, "-", "-", "-", "-"))
            continue
        spread = f"{c.timing.low * 1e3:.2f} to {c.timing.high * 1e3:.2f}"
        times = f"{c.timing.median / ours.median:.2f}x" if c is not raced.contenders[0] else ""
        ms = f"{c.timing.median * 1e3:.2f}"
        rows.append((name, ms, spread, f"{1 / c.timing.median:,.0f}", times))
    samples = ours.samples if ours else 0
    notes = [f"medians of {samples} steps each, all in turn; 8 of 10 steps lie in between"]
    notes += [f"{c.name} has no numbers: {c.failure}" for c in raced.contenders if c.failure]
    head = ("", "ms a step", "between", "steps a s", "takes")
    return Section("", tuple(rows), head, tuple(notes))


def limit_lines(raced: Raced) -> list[str]:
    """How near to the machine's limits that is."""
    reading, arithmetic = raced.reading, raced.arithmetic
    where = "from cache" if raced.is_cached else "from memory"
    return [
        f"a step reads {format_bytes(reading.amount)} at {reading.rate / 1e9:.1f} GB/s:",
        f"  {reading.share:.0%} of a loop that only reads the same bytes {where}",
        f"a prompt of {raced.prompt_tokens} tokens computes {arithmetic.rate / 1e9:.0f} GFLOP/s:",
        f"  {arithmetic.share:.0%} of a loop that only multiplies and adds",
    ]


def second_lines(second: SecondStart) -> list[str]:
    """How fast the second start was."""
    return [
        f"{format_s(second.load_seconds)} to load the plan, without a compiler; "
        f"{format_s(second.first_seconds)} to the first token",
        f"({format_s(second.import_seconds)} before that for Python, NumPy and `import semel`)",
    ]


def format_s(seconds: float) -> str:
    """A duration for reading aloud."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def model_line(layers: int, width: int, numbers: int, nbytes: int) -> str:
    """A decoder in a few words."""
    weights = f"{numbers / 1e6:.1f} million weights, {format_bytes(nbytes)}"
    return f"a decoder: {count_of(layers, 'layer')}, width {width}, {weights}, float32"

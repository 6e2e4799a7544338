"""Choosing between kernels that compute the same: by default, from memory, or by a race.

    kernels x Tuning --choose_kernels--> kernels, some of them cut another way

A race runs the candidates of one group in turns, so that whatever disturbs the machine
disturbs all of them; a turn counts with its fastest run, a candidate with the median of
its turns. To replace the default a candidate must be faster by `MARGIN` in the race and
again in a second race of these two alone. The winner is remembered on disk, and so is a
default that nobody beat; a prepare that does not tune uses what is remembered.

Variables have one value in a race: the one that was given, else their upper bound, cut to
`USUAL_SIZE`; a loop is measured at its first iteration. Every candidate gives the same bits, so
a choice can only cost time.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from semel.compiler.artefacts import compile_kernel
from semel.compiler.trial import Trial, make_data, make_trial, time_runs
from semel.compiler.tuning_store import ChoiceMemory, Remembered, default_memory
from semel.devices import KernelCompiler
from semel.errors import SemelError, VariableError
from semel.ir.expr import Dim, Variable, evaluate
from semel.ir.graph import Graph
from semel.ir.target import Target
from semel.kernel.text import format_kernel
from semel.lower import for_group, lower_group
from semel.lower.choices import Choice, candidate_choices
from semel.lower.lowered import LoopRegion, Lowered, nodes_of, regions_around
from semel.runtime.device import find_device
from semel.runtime.free import HOST_DEVICE
from semel.topics import Topic

#: What a candidate must gain to replace the default.
MARGIN = 0.03
#: What a variable without a given value is measured at, if its bounds allow.
USUAL_SIZE = 256
#: Turns of a race, and of the race of winner and default; those after which the hopeless leave.
TURNS, FINAL_TURNS, FIRST_TURNS = 7, 9, 2
HOPELESS = 1.25
#: How long a turn runs, and with how many runs at least and at most.
TURN_SECONDS, MIN_RUNS, MAX_RUNS = 2e-3, 3, 50
#: Less work than this at a usual rate is not worth a race: starting it costs as much.
WORTH_SECONDS = 10e-6
USUAL_FLOPS_PER_S, USUAL_BYTES_PER_S = 64e9, 16e9
#: Buffers larger than this are not made for a race.
MAX_BYTES = 1 << 30

Measure = Callable[[Trial, int], float]

_TUNE = Topic("tune")


@dataclass(frozen=True)
class Tuning:
    """How one prepare chooses: the plan's threads, what is remembered, and whether to race.

    `given` are values of variables to measure at. `measure` gives the seconds of the
    fastest of some runs of a trial; tests put their own in its place.
    """

    threads: int
    memory: ChoiceMemory
    race: bool = False
    given: Mapping[str, int] | None = None
    measure: Measure = time_runs
    device: str = HOST_DEVICE

    @property
    def may_choose(self) -> bool:
        """Whether a kernel may be cut in another way; else all need not be there at once."""
        return self.race or bool(self.memory.entries())


def tuning_for(
    target: Target,
    threads: int | None,
    tune: bool | Mapping[str, int] | None,
    device: str = HOST_DEVICE,
) -> Tuning | None:
    """The tuning that `prepare(tune=...)` asks for; None for defaults only."""
    if tune is False:
        return None
    return Tuning(
        threads=threads or find_device(device).default_threads(),
        memory=default_memory(target, device),
        race=tune is not None,
        given=tune if isinstance(tune, Mapping) else None,
        device=device,
    )


def choose_kernels(
    kernels: Sequence[Lowered],
    compiler: KernelCompiler,
    tuning: Tuning,
    variables: Sequence[Variable],
    guards: Sequence[tuple[Dim, str]],
) -> tuple[Lowered, ...]:
    """The kernels, each distinct one cut as memory or a race says."""
    known, bodies = tuning.memory.entries(), _bodies(kernels)
    late = [v for body in bodies for v in body.late]
    inside = [guard for body in bodies for guard in body.guards]
    values = None
    if tuning.race:
        values = measured_values((*variables, *late), (*guards, *inside), tuning.given)
    if values is not None:
        values |= {name: 0 for lowered in kernels for name in _counters(lowered)}
    if not known and values is None:
        return tuple(kernels)
    chooser = _Chooser(compiler, tuning, known, values)
    result = tuple(replace(chooser.replaced(it), device=it.device) for it in kernels)
    tuning.memory.add(chooser.found)
    return result


def _bodies(kernels: Sequence[Lowered]) -> list[Graph]:
    """The bodies that kernels run in: what is found out there, and what must hold."""
    regions = (region for lowered in kernels for region in regions_around(lowered.region))
    return list(dict.fromkeys(r.body for r in regions if r.body is not None))


def _counters(lowered: Lowered) -> Iterator[str]:
    """The counters of the loops that a kernel runs in."""
    for region in regions_around(lowered.region):
        if isinstance(region, LoopRegion):
            yield region.counter.name


class _Chooser:
    """The choices of one prepare; `found` is what it has learnt."""

    def __init__(
        self,
        compiler: KernelCompiler,
        tuning: Tuning,
        known: Mapping[str, Remembered],
        values: Mapping[str, int] | None,
    ) -> None:
        self.compiler, self.target = compiler, compiler.target
        self.tuning, self.known, self.values = tuning, known, values
        self.found: dict[str, Remembered] = {}
        self._chosen: dict[int, Lowered] = {}

    def replaced(self, lowered: Lowered) -> Lowered:
        """The best kernel for the group; in a body it is chosen before it is moved to its place."""
        if lowered.moved is not None:
            return lowered.moved.move(self.replaced(lowered.moved.source))
        key = id(lowered.kernel)
        if key not in self._chosen:
            self._chosen[key] = self.choose(lowered)
        return for_group(self._chosen[key], lowered.group)

    def choose(self, default: Lowered) -> Lowered:
        candidates = candidate_choices(default.group, self.target)
        if len(candidates) < 2:
            return default
        default = replace(default, text=format_kernel(default.kernel))
        key = self.compiler.key(default.text, (str(self.tuning.threads),))
        entry = self.found.get(key) or self.known.get(key)
        if self.values is not None and not _answers(entry, default, self.values):
            raced = self._race(default, candidates)
            if raced is not None:
                entry = self.found[key] = raced
        chosen = default if entry is None else self._apply(default, candidates, entry)
        _TUNE("%s: %s", chosen.kernel.name, chosen.choice)
        return chosen

    def _apply(self, default: Lowered, candidates: Sequence[Choice], entry: Remembered) -> Lowered:
        """The kernel as `entry` says; the default if its choice is no candidate any more."""
        choice = next((c for c in candidates if c.name == entry.choice), None)
        if choice is None:
            return default
        if choice == candidates[0]:
            return replace(default, choice=f"{choice.name} (default, {_where(entry)} none faster)")
        why = f"tuned, {_where(entry)} {entry.ratio:.2f} of the default's time"
        lowered = lower_group(default.group, self.target, choice)
        return replace(lowered, choice=f"{choice.name} ({why})")

    def _race(self, default: Lowered, candidates: Sequence[Choice]) -> Remembered | None:
        assert self.values is not None
        if not _is_worth_it(default, self.values):
            return None
        try:
            trials = self._trials(default, candidates, self.values)
            _TUNE("%s: racing %s", default.kernel.name, ", ".join(t.name for t in trials))
            winner, ratio = race(trials, self.tuning.measure)
        except SemelError as error:
            _TUNE.warning("[tune] %s keeps its default: %s", default.kernel.name, error)
            return None
        threads = self.tuning.threads
        values = {v.name: self.values[v.name] for v in default.kernel.variables}
        return Remembered(winner, round(ratio, 4), default.kernel.name, threads, values)

    def _trials(
        self, default: Lowered, candidates: Sequence[Choice], values: Mapping[str, int]
    ) -> list[Trial]:
        """One for each candidate with code of its own, the default first."""
        data = make_data([n for n in nodes_of(default) if n not in default.group.outputs], values)
        trials: list[Trial] = []
        texts: set[str] = set()
        for choice in candidates:
            lowered = lower_group(default.group, self.target, choice)
            kernel = compile_kernel(lowered.kernel, self.compiler)
            if kernel.text in texts:
                continue
            texts.add(kernel.text)
            threads = self.tuning.threads
            device = self.tuning.device
            trials.append(make_trial(choice.name, lowered, kernel, data, values, threads, device))
        return trials


def _answers(entry: Remembered | None, default: Lowered, values: Mapping[str, int]) -> bool:
    """Whether what is remembered was measured at these values."""
    wanted = {v.name: values[v.name] for v in default.kernel.variables}
    return entry is not None and sorted(entry.values.values()) == sorted(wanted.values())


def _where(entry: Remembered) -> str:
    threads = "1 thread" if entry.threads == 1 else f"{entry.threads} threads"
    sizes = "".join(f"{name}={value}, " for name, value in entry.values.items())
    return f"at {sizes}{threads}:"


def _is_worth_it(lowered: Lowered, values: Mapping[str, int]) -> bool:
    flops = evaluate(lowered.kernel.flops, values)
    nbytes = evaluate(lowered.kernel.bytes, values)
    seconds = flops / USUAL_FLOPS_PER_S + nbytes / USUAL_BYTES_PER_S
    return seconds >= WORTH_SECONDS and nbytes <= MAX_BYTES


# ------------------------------------------------------------------------------- race


def race(trials: Sequence[Trial], measure: Measure) -> tuple[str, float]:
    """The winner's name and its time as a ratio of the default's, which is the first trial."""
    default = trials[0]
    if len(trials) == 1:
        return default.name, 1.0
    runs = _runs(measure(default, MIN_RUNS))
    times = _take_turns(trials, runs, measure)
    best = min(trials, key=lambda t: statistics.median(times[t.name]))
    if best is default:
        return default.name, 1.0
    gain = statistics.median(times[best.name]) / statistics.median(times[default.name])
    if gain > 1 - MARGIN:
        return default.name, 1.0
    ratio = _final(default, best, runs, measure)
    return (best.name, ratio) if ratio <= 1 - MARGIN else (default.name, 1.0)


def _runs(seconds: float) -> int:
    wanted = int(TURN_SECONDS / seconds) if seconds > 0 else MAX_RUNS
    return min(max(wanted, MIN_RUNS), MAX_RUNS)


def _take_turns(trials: Sequence[Trial], runs: int, measure: Measure) -> dict[str, list[float]]:
    """Seconds by turn of each; every other round goes backwards, and the hopeless leave early."""
    times: dict[str, list[float]] = {t.name: [] for t in trials}
    alive = list(trials)
    for turn in range(TURNS):
        for trial in alive if turn % 2 == 0 else reversed(alive):
            times[trial.name].append(measure(trial, runs))
        if turn + 1 == FIRST_TURNS:
            limit = HOPELESS * min(min(t) for t in times.values())
            alive = [t for t in alive if t is trials[0] or min(times[t.name]) <= limit]
    return times


def _final(default: Trial, best: Trial, runs: int, measure: Measure) -> float:
    """The median of the ratios of turns that follow each other at once."""
    ratios = []
    for _ in range(FINAL_TURNS):
        first = measure(default, runs)
        ratios.append(measure(best, runs) / first if first > 0 else 1.0)
    return statistics.median(ratios)


# ------------------------------------------------------------------------------ values


def measured_values(
    variables: Sequence[Variable],
    guards: Sequence[tuple[Dim, str]],
    given: Mapping[str, int] | None,
) -> dict[str, int] | None:
    """A value for every variable that all guards accept; None if none was found.

    Raises VariableError for a given value that the plan itself would not accept.
    """
    given = dict(given or {})
    _check_given(variables, given)
    sizes = (USUAL_SIZE, *(1 << e for e in range(12, -1, -1)))
    unknown = [v for v in variables if v.name not in given]
    for size in dict.fromkeys(sizes):
        values = {**given, **{v.name: _cut(v, size) for v in unknown}}
        broken = _broken_guard(guards, values)
        if broken is None:
            return values
        if not unknown:
            raise VariableError("tune", f"values must satisfy: {broken}, got {given}.")
    for values in _small_values(unknown, given):
        if _broken_guard(guards, values) is None:
            return values
    _TUNE.warning("[tune] no values were found that satisfy the guards; give them: tune={...}")
    return None


def _small_values(unknown: Sequence[Variable], given: Mapping[str, int]) -> list[dict[str, int]]:
    """Every combination of a few values near the minima, for guards that tie variables."""
    if len(unknown) > 3:
        return []
    ranges = [range(v.min, min(v.min + 16, v.max or v.min + 16) + 1) for v in unknown]
    names = [v.name for v in unknown]
    return [{**given, **dict(zip(names, p, strict=True))} for p in product(*ranges)]


def _check_given(variables: Sequence[Variable], given: Mapping[str, int]) -> None:
    known = {v.name: v for v in variables}
    for name, value in given.items():
        if name not in known:
            names = ", ".join(known) or "none"
            raise VariableError("tune", f"has no variable {name!r}; known: {names}.")
        low, high = known[name].min, known[name].max
        if type(value) is not int or value < low or (high is not None and value > high):
            top = "..." if high is None else high
            raise VariableError(
                "tune", f"{name} must be an integer in [{low}, {top}], got {value!r}."
            )


def _cut(variable: Variable, size: int) -> int:
    top = size if variable.max is None else min(variable.max, size)
    return max(variable.min, top)


def _broken_guard(guards: Sequence[tuple[Dim, str]], values: Mapping[str, int]) -> str | None:
    return next((text for dim, text in guards if evaluate(dim, values) != 0), None)

"""`semel demo`: the story, in order.

    threads, quick  --tell-->  DemoReport, and a screen that is told meanwhile

A decoder with weights from a seed is prepared once. It reads a prompt, writes while one watches,
races other libraries at one step, starts again from a plan file in a new process, and is checked:
at many lengths against NumPy, bit for bit against its second start, for compiles and allocations.
The exit code is 0 only if every check holds; speed is shown and never a check.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import tracemalloc
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np

import semel
from semel.cache.folder import PrivateFolder
from semel.cache.kernels import default_cache
from semel.cli.demo.peers import OTHERS, Moment, NumpyDecoder, Peer, installed, open_peer
from semel.cli.demo.race import Arithmetic, Loop, Reading, Timing, limit_of, race
from semel.cli.demo.report import (
    COUNTED_RUNS,
    Contender,
    DemoReport,
    Generated,
    Raced,
    Ready,
    contenders_table,
    generated_lines,
    limit_lines,
    model_line,
    ready_lines,
    second_lines,
)
from semel.cli.demo.screen import Screen, open_screen
from semel.cli.demo.second_start import start_again, write_tokens
from semel.cli.demo.vocabulary import make_words
from semel.cli.grammar import Commands, add_command, parse_threads
from semel.cli.progress import heard
from semel.cli.report import Section, format_bytes
from semel.config import settings
from semel.devices import choose_target
from semel.errors import CacheError
from semel.ir import expr
from semel.models.gpt2 import Gpt2Size, build_gpt2, gpt2_weights
from semel.models.weights import Array
from semel.plan.plan import ExecutionPlan
from semel.runtime.free import HOST_DEVICE

SEED = 20
QUICK = Gpt2Size(layers=2, width=128, heads=2, vocabulary=512, room=320)
#: Most tokens of a prompt; lengths of prompts that are checked.
_MOST, _LENGTHS = 64, (1, 7, 16, 37, 64)
_PAST = 128
OURS = "semel"
#: What became of a node that was an operation.
_COMPUTED = ("kernel", "copy", "view", "part", "folded")
#: Bytes of memory that no cache holds, at least.
_LARGE = 128 << 20


@dataclass(frozen=True, slots=True)
class _Amounts:
    """How long it all takes: tokens read, written, and written again; seconds of the race."""

    prompt: int = 48
    written: int = 96
    again: int = 16
    seconds: float = 1.0


def run(arguments: argparse.Namespace) -> int:
    """The command: tell it; 0 if every check holds."""
    screen = open_screen(quiet=arguments.json)
    report = _Demo(screen, arguments.threads, arguments.quick, not arguments.no_peers).tell()
    if arguments.json:
        print(json.dumps(report.json(), indent=2))
    failed = [text for text, holds in report.checks.items() if not holds]
    for text in failed:
        print(f"semel demo: a check failed: {text}.", file=sys.stderr)
    return 1 if failed else 0


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    """The grammar of the command."""
    text = "prepare a decoder once, watch it write, race others, check every number"
    parser = add_command(commands, "demo", text, run)
    parser.add_argument("--threads", type=parse_threads, metavar="N", help="default: all our cores")
    parser.add_argument("--quick", action="store_true", help="a smaller model, less measuring")
    parser.add_argument("--no-peers", action="store_true", help="compare with NumPy alone")


def run_demo(*, threads: int | None = None, quick: bool = False, peers: bool = True) -> DemoReport:
    """Do all of it without a word."""
    return _Demo(open_screen(quiet=True), threads, quick, peers).tell()


class _Demo:
    """One telling; each method is a part of it."""

    def __init__(self, screen: Screen, threads: int | None, quick: bool, peers: bool) -> None:
        self._screen, self._threads = screen, threads
        self._size = QUICK if quick else Gpt2Size()
        self._amounts = _Amounts(32, 48, 8, 0.3) if quick else _Amounts()
        self._packages = [*(installed() if peers else ()), "numpy"]  # it spins, so it is last
        self._words = make_words(self._size.vocabulary, SEED)
        self._prompt = _tokens(self._size.vocabulary, self._amounts.prompt)
        self._executes = 0

    def tell(self) -> DemoReport:
        screen, size, amounts = self._screen, self._size, self._amounts
        screen.line("Semel: prepare once, execute many.")
        screen.part("1. Prepare, once")
        with screen.working("drawing weights from a seed"):
            weights = gpt2_weights(size, SEED)
        count, nbytes = (
            sum(n) for n in zip(*((a.size, a.nbytes) for a in weights.values()), strict=True)
        )
        model = model_line(size.layers, size.width, count, nbytes)
        screen.line(model)
        plan, ready = self._prepare(weights)
        self._lines(ready_lines(ready))

        screen.part(
            f"2. Read {amounts.prompt} tokens in one run, write {amounts.written}, each in one"
        )
        generated = self._write(plan)
        self._lines(generated_lines(generated))
        screen.line("(the weights come from a seed, so the words mean nothing)")

        threads = f"{plan.threads} thread{'' if plan.threads == 1 else 's'}"
        screen.part(f"3. The same step with others: {_PAST} tokens in the cache, {threads}")
        raced = self._race(plan, self._moment(weights))
        screen.table(contenders_table(raced))
        self._lines(limit_lines(raced))

        screen.part("4. Start again from a file, in a new process")
        folder = _open_folder()
        file = folder / "decoder.plan"
        plan.save(file)
        with screen.working("starting another Python"):
            second = start_again(file, self._prompt, amounts.again, plan.threads)
        self._lines(second_lines(second))

        screen.part("5. Check")
        with screen.working("against NumPy, and bit for bit"):
            ours = write_tokens(plan, self._prompt, amounts.again)
            errors = self._errors(plan, weights)
        allocated = self._allocated(plan)  # behind it: the thread that shows it allocates too
        report = DemoReport(
            model,
            plan.threads,
            ready,
            generated,
            raced,
            second,
            ours == second.written,
            errors,
            plan.compile_count,
            allocated,
            self._executes,
            {"plan": str(file), "profile": str(self._profile(plan, folder))},
        )
        self._end(report)
        return report

    def _lines(self, lines: list[str]) -> None:
        for line in lines:
            self._screen.line(line)

    def _run(self, plan: ExecutionPlan, ids: Array) -> tuple[int, Array]:
        """The next token, and the logits it was drawn by."""
        self._executes += 1
        token, logits = plan(ids=ids)
        return int(token), logits

    def _prepare(self, weights: dict[str, Array]) -> tuple[ExecutionPlan, Ready]:
        before = default_cache().status
        begin = time.perf_counter()
        with self._screen.working("preparing") as say, heard(say):
            graph = build_gpt2(weights, self._size, SEED)
            plan = graph.prepare(dims={"t": (1, _MOST)}, threads=self._threads)
        seconds, now = time.perf_counter() - begin, default_cache().status
        memory, explained = plan.memory, plan.explain()
        ready = Ready(
            seconds,
            sum(node.became in _COMPUTED for node in explained.nodes),
            explained.num_kernels,
            explained.num_distinct_kernels,
            now.misses - before.misses,
            now.disk_hits + now.memory_hits - before.disk_hits - before.memory_hits,
            memory.weights_bytes,
            memory.arena_bytes,
            memory.naive_bytes,
        )
        return plan, ready

    def _write(self, plan: ExecutionPlan) -> Generated:
        """Read the prompt and write, word by word."""
        written: list[str] = []
        words = self._words
        with self._screen.stream() as word:
            prompt = [words[i] for i in self._prompt]
            word("> " + " ".join(prompt[:6]) + " ...")
        begin = time.perf_counter()
        token, _ = self._run(plan, self._prompt)
        read = time.perf_counter() - begin
        with self._screen.stream() as word:
            begin = time.perf_counter()
            for _ in repeat(None, self._amounts.written):
                written.append(words[token])
                word(words[token])
                token, _ = self._run(plan, np.array([token]))
            seconds = time.perf_counter() - begin
        return Generated(
            " ".join(prompt), " ".join(written), len(prompt), read, len(written), seconds
        )

    def _moment(self, weights: dict[str, Array]) -> Moment:
        """Some tokens into a text, as NumPy has computed it."""
        decoder = NumpyDecoder(weights, self._size)
        decoder.run(_tokens(self._size.vocabulary, _PAST))
        keys, values = (held[:, :, :_PAST].copy() for held in (decoder.keys, decoder.values))
        return Moment(weights, self._size, keys, values, int(self._prompt[0]))

    def _race(self, plan: ExecutionPlan, moment: Moment) -> Raced:
        """All in turn, on clones: one at the moment, and one that reads prompts."""
        stepping, reading = plan.clone(), plan.clone()
        stepping.states.reset()
        self._run(stepping, _tokens(self._size.vocabulary, _MOST))
        for begin in range(_MOST, _PAST, _MOST):
            self._run(stepping, _tokens(self._size.vocabulary, _PAST)[begin : begin + _MOST])
        token = np.array([moment.token])

        def step() -> Array:
            stepping.states.truncate(_PAST)
            return self._run(stepping, token)[1]

        def prompt() -> None:
            reading.states.truncate(0)
            self._run(reading, self._prompt)

        peers, failures = self._peers(moment, plan.threads)
        known = {OURS: Peer("Semel", semel.__version__, step), **peers}
        prompt()
        steps, flops = _step_bytes(moment), _flops(reading)
        loops: dict[str, Loop] = {
            "read": Reading(plan.threads, steps),
            "memory": Reading(plan.threads, max(4 * choose_target(HOST_DEVICE).l3_bytes, _LARGE)),
            "compute": Arithmetic(plan.threads, flops),
        }
        work = {name: peer.step for name, peer in known.items()}
        with self._screen.working("measuring all in turn") as say:
            found = race(
                {"prompt": prompt, **work},
                loops,
                self._amounts.seconds,
                lambda now: say(", ".join(f"{known[n].name} {now[n] * 1e3:.2f} ms" for n in known)),
            )
        yardstick = peers["numpy"].step()
        contenders = [
            Contender(
                peer.name, peer.version, Timing.of(found[name]), _distance(peer.step(), yardstick)
            )
            for name, peer in known.items()
        ]
        return Raced(
            _PAST,
            len(self._prompt),
            (*contenders, *failures),
            limit_of(steps, found[OURS], found["read"]),
            limit_of(flops, found["prompt"], found["compute"]),
            loops["memory"].amount / min(found["memory"]),
        )

    def _peers(self, moment: Moment, threads: int) -> tuple[dict[str, Peer], list[Contender]]:
        """Those that work, and those that do not."""
        peers: dict[str, Peer] = {}
        failures = []
        for package in self._packages:
            name = OTHERS.get(package, "NumPy")
            with self._screen.working(f"opening {name}"):
                try:
                    peers[package] = open_peer(package, moment, threads)
                    peers[package].step()
                except Exception as error:  # theirs have no class of their own
                    peers.pop(package, None)
                    failures.append(Contender(name, "", failure=f"{type(error).__name__}: {error}"))
        return peers, failures

    def _errors(self, plan: ExecutionPlan, weights: dict[str, Array]) -> dict[int, float]:
        """The distance from NumPy's logits behind prompts of so many tokens, and a step more."""
        found = {}
        for length in _LENGTHS:
            ids = _tokens(self._size.vocabulary, length)
            decoder = NumpyDecoder(weights, self._size)
            plan.states.reset()
            found[length] = max(
                _distance(self._run(plan, given)[1], decoder.run(given)) for given in (ids, ids[:1])
            )
        return found

    def _allocated(self, plan: ExecutionPlan) -> int:
        """Python memory that a hundred steps leave behind, as tracemalloc sees it."""
        execute = plan.execute
        plan.states.truncate(_MOST)

        def steps(number: int) -> None:
            for _ in repeat(None, number):
                execute()
            self._executes += number

        steps(1)
        tracemalloc.start()
        try:
            steps(COUNTED_RUNS)  # the first traced run pays for tracing itself
            before, _ = tracemalloc.get_traced_memory()
            steps(COUNTED_RUNS)
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        return max(after - before, 0)

    def _profile(self, plan: ExecutionPlan, folder: Path) -> Path:
        """A page that shows where the time of a step goes."""
        file = folder / "profile.html"
        plan.states.truncate(_MOST)
        plan.execute_profiled(limits=False).html(file)
        return file

    def _end(self, report: DemoReport) -> None:
        """What was checked, what was written, and where to go on."""
        screen = self._screen
        rows = tuple(("ok  " if holds else "FAIL", text) for text, holds in report.checks.items())
        screen.table(Section("", rows))
        screen.part("Written, to look at or remove")
        plan, page = (Path(report.files[name]) for name in ("plan", "profile"))
        screen.line(f"{plan}  ({format_bytes(plan.stat().st_size)}: the decoder, ready to run)")
        screen.line(f"{page}  (where the time of a step goes: open it in a browser)")
        screen.part("Next")
        screen.table(
            Section(
                "",
                (
                    ("semel run model.onnx", "a model of yours; --compare onnxruntime checks it"),
                    ("semel bench model.onnx", "how fast it is at which size"),
                    ("semel doctor", "what Semel sees of this machine"),
                    ("semel demo", "once more: the kernels are in the cache now"),
                ),
            )
        )


def _tokens(vocabulary: int, number: int) -> Array:
    """Tokens of a prompt, the same at every call."""
    return np.random.default_rng(SEED).integers(0, vocabulary, number)


def _distance(found: Array, expected: Array) -> float:
    """The largest difference of two results."""
    return float(np.abs(found - expected).max())


def _step_bytes(moment: Moment) -> int:
    """What a step must read: every matrix once, one row of the positions, what is in the caches."""
    weights = sum(a.nbytes for name, a in moment.weights.items() if name != "wpe.weight")
    return weights + moment.keys.nbytes + moment.values.nbytes


def _flops(plan: ExecutionPlan) -> int:
    """Floating-point operations that the kernels of a plan need at the sizes of its last run."""
    flops, bound = 0, {name: value or 0 for name, value in plan.variables.items()}
    for op in plan.prepared_kernels:
        signature = op.kernel.signature
        names = zip(signature.variables, op.runtime_vars, strict=True)
        flops += expr.evaluate(signature.flops, {own.name: bound[of.name] for own, of in names})
    return flops


def _open_folder() -> Path:
    """A folder that only we can change: in that of the kernel cache, or else a new one."""
    folder = settings().cache_dir / "demo"
    if settings().cache:
        with suppress(CacheError, OSError):
            PrivateFolder(folder).replace("README", b"Written by `semel demo`; may be removed.\n")
            return folder
    return Path(tempfile.mkdtemp(prefix="semel-demo-"))

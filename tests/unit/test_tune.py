"""Tuning: who wins a race, what is remembered, and what a prepare makes of it. No test times."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.codegen.lowering import lower_graph
from tests.odd_files import ODD_FILES

import semel
from semel import Tensor, Variable
from semel.cache.folder import PrivateFolder
from semel.compiler import tune
from semel.compiler.pipeline import compile_graph, prepare_graph
from semel.compiler.trial import Trial
from semel.compiler.tune import Tuning, measured_values, race, tuning_for
from semel.compiler.tuning_store import ChoiceMemory, Remembered, default_memory, machine_facts
from semel.config import override
from semel.devices.cpu.toolchain import host_target
from semel.errors import VariableError
from semel.ir.graph import Graph
from semel.lower.choices import candidate_choices
from semel.lower.register_tiles import register_tile
from semel.ops.guards import guards
from semel.plan.instantiate import instantiate
from semel.plan.program import Program
from semel.plan.rows import PreparedKernel
from semel.tensor.realize import build_graph

RNG = np.random.default_rng(3)
WEIGHT = RNG.standard_normal((96, 200)).astype(np.float32)
N = Variable("n", 1, 512)


def trials(*names: str) -> list[Trial]:
    nothing: Any = None  # nobody runs them
    return [Trial(name, nothing) for name in names]


def by_name(seconds: Mapping[str, float]) -> Callable[[Trial, int], float]:
    return lambda trial, runs: seconds[trial.name]


def linear() -> Tensor:
    return (Tensor.input("x", (N, 96)) @ Tensor(WEIGHT) + 1).relu()


def favours(word: str, factor: float = 0.5) -> Callable[[Trial, int], float]:
    """Candidates with `word` in their name take `factor` of the time of all others."""
    return lambda trial, runs: 1e-3 * (factor if word in trial.name else 1.0)


def memory(directory: Path | None = None) -> ChoiceMemory:
    return ChoiceMemory(directory, machine_facts(host_target()))


def never(trial: Trial, runs: int) -> float:
    raise AssertionError(f"{trial.name} was measured")


def calls_of(program: Program) -> list[PreparedKernel]:
    return [p.row for p in program.walk() if isinstance(p.row, PreparedKernel)]


def choices(outputs: Tensor, tuning: Tuning | None) -> list[str]:
    program = compile_graph(build_graph(outputs), host_target(), tuning=tuning)
    return [row.notes.choice for row in calls_of(program)]


# ------------------------------------------------------------------------------- race


def test_the_fastest_wins_and_its_ratio_is_told() -> None:
    times = {"default": 1.0, "a": 0.9, "b": 0.8, "c": 2.0}
    assert race(trials(*times), by_name(times)) == ("b", 0.8)


def test_the_default_stays_unless_it_is_beaten_by_the_margin() -> None:
    times = {"default": 1.0, "a": 1 - tune.MARGIN + 0.001}
    assert race(trials(*times), by_name(times)) == ("default", 1.0)
    assert race(trials("default"), never) == ("default", 1.0)


def test_a_candidate_that_was_lucky_once_loses_the_final() -> None:
    calls = {"default": 0, "lucky": 0}

    def measure(trial: Trial, runs: int) -> float:
        calls[trial.name] += 1
        is_first_race = calls["lucky"] <= tune.TURNS
        return 0.5 if trial.name == "lucky" and is_first_race else 1.0

    assert race(trials("default", "lucky"), measure) == ("default", 1.0)


def test_one_bad_turn_changes_nothing() -> None:
    turns = itertools.count()

    def measure(trial: Trial, runs: int) -> float:
        noise = 50.0 if next(turns) % 7 == 3 else 1.0
        return noise * {"default": 1.0, "good": 0.7, "bad": 1.1}[trial.name]

    assert race(trials("default", "good", "bad"), measure)[0] == "good"


def test_candidates_take_turns_and_hopeless_ones_leave_early() -> None:
    seen: list[str] = []
    times = {"default": 1.0, "near": 0.99, "hopeless": 3.0}

    def measure(trial: Trial, runs: int) -> float:
        seen.append(trial.name)
        return times[trial.name]

    race(trials(*times), measure)
    assert seen[1:4] == ["default", "near", "hopeless"]
    assert seen[4:7] == ["hopeless", "near", "default"]
    assert seen.count("hopeless") == tune.FIRST_TURNS
    assert seen.count("near") == tune.TURNS


def test_short_kernels_run_often_in_a_turn_and_long_ones_a_few_times() -> None:
    for seconds, runs in ((1e-5, tune.MAX_RUNS), (0.0, tune.MAX_RUNS), (1.0, tune.MIN_RUNS)):
        asked: set[int] = set()

        def measure(trial: Trial, n: int, s: float = seconds, asked: set[int] = asked) -> float:
            asked.add(n)
            return s

        race(trials("default", "other"), measure)
        assert asked == {tune.MIN_RUNS, runs}


# ------------------------------------------------------------------------------ values


def test_a_variable_is_measured_at_its_upper_bound_cut_to_a_usual_size() -> None:
    wanted = (Variable("a", 1, 64), Variable("b", 1, 4096), Variable("c", 1000), Variable("d", 1))
    assert measured_values(wanted, (), None) == {"a": 64, "b": 256, "c": 1000, "d": 256}
    assert measured_values(wanted[:2], (), {"b": 4000}) == {"a": 64, "b": 4000}


def test_guards_hold_for_what_is_measured() -> None:
    n = Variable("n", 1, 201)
    graph = Graph((Tensor.input("x", (n, 3)).reshape(n // 8, 24).node,))
    assert measured_values((n,), guards(graph), None) == {"n": 128}
    m = Variable("m", 1, 50)
    pair = Graph(((Tensor.input("x", (n + 2,)) @ Tensor.input("y", (m,))).node,))
    values = measured_values((m, n), guards(pair), None)
    assert values is not None and values["m"] == values["n"] + 2


def test_given_values_must_be_legal() -> None:
    with pytest.raises(VariableError, match=r"\[tune\] has no variable 'k'; known: n"):
        measured_values((N,), (), {"k": 3})
    for bad in (0, 513, 2.5, True):
        with pytest.raises(VariableError, match=r"n must be an integer in \[1, 512\], got"):
            measured_values((N,), (), {"n": bad})  # type: ignore[dict-item]
    graph = Graph((Tensor.input("x", (N, 3)).reshape(N // 8, 24).node,))
    with pytest.raises(VariableError, match="values must satisfy"):
        measured_values((N,), guards(graph), {"n": 9})


def test_prepare_refuses_values_it_cannot_tune_at() -> None:
    with pytest.raises(VariableError, match="has no variable 'rows'"):
        linear().prepare(tune={"rows": 64})


# ----------------------------------------------------------------------------- choosing


def test_the_winner_is_used_and_explained() -> None:
    tuning = Tuning(1, memory(), race=True, measure=favours("height=4", 0.8))
    (choice,) = choices(linear(), tuning)
    assert "height=4 " in choice
    assert choice.endswith("(tuned, at n=256, 1 thread: 0.80 of the default's time)")
    plan = instantiate(compile_graph(build_graph(linear()), host_target(), tuning=tuning))
    assert f"cut: {choice}" in str(plan.explain())
    assert plan.explain().json()["ops"][0]["choice"] == choice


def test_a_tuned_plan_gives_the_bits_of_the_default_one() -> None:
    x = RNG.standard_normal((77, 96)).astype(np.float32)
    expected = linear().prepare(tune=False)(x=x).tobytes()
    for word in ("rows=48", "rows=96", "panels=8", "panels=1", "height=4"):
        for threads in (1, 2):
            tuning = Tuning(threads, memory(), race=True, measure=favours(word))
            program = compile_graph(build_graph(linear()), host_target(), tuning=tuning)
            assert instantiate(program, threads=threads)(x=x).tobytes() == expected, word


def test_what_won_is_remembered_for_prepares_that_do_not_measure(tmp_path: Path) -> None:
    first = Tuning(2, memory(tmp_path), race=True, measure=favours("panels=1"))
    tuned = choices(linear(), first)
    later = Tuning(2, memory(tmp_path), measure=never)
    assert choices(linear(), later) == tuned
    # Equal sizes are not measured again; other threads and other sizes know nothing of it.
    assert choices(linear(), replace(later, race=True)) == tuned
    assert "(default)" in choices(linear(), replace(later, threads=1))[0]
    again = replace(first, given={"n": 8}, measure=favours("panels=8"))
    assert "n=8, 2 threads" in choices(linear(), again)[0]


def test_a_default_that_nobody_beats_is_remembered_too(tmp_path: Path) -> None:
    even = Tuning(1, memory(tmp_path), race=True, measure=lambda trial, runs: 1e-3)
    (choice,) = choices(linear(), even)
    assert choice.endswith("(default, at n=256, 1 thread: none faster)")
    again = Tuning(1, memory(tmp_path), race=True, measure=never)
    assert choices(linear(), again) == [choice]


def test_prepare_with_tune_false_asks_nobody(tmp_path: Path) -> None:
    with override(cache_dir=tmp_path, target="native"):
        tuning = tuning_for(host_target(), 1, True)
        assert tuning is not None and tuning.race and tuning.given is None
        choices(linear(), replace(tuning, measure=favours("height=4")))
        remembered = prepare_graph(build_graph(linear()), threads=1)
        refused = prepare_graph(build_graph(linear()), threads=1, tune=False)
    assert "tuned" in remembered.explain().ops[0].choice
    assert "(default)" in refused.explain().ops[0].choice
    assert "tune" not in refused.program.stage_seconds


def test_tuning_really_runs() -> None:
    """The true clock: whatever wins, the numbers are right."""
    x = RNG.standard_normal((300, 96)).astype(np.float32)
    with override(cache=False):
        plan = linear().prepare(tune={"n": 300}, threads=2)
        plain = linear().prepare(tune=False, threads=1)
    assert "at n=300, 2 threads" in plan.explain().ops[0].choice
    assert plan(x=x).tobytes() == plain(x=x).tobytes()


def test_each_distinct_group_is_raced_once() -> None:
    raced: list[str] = []

    def measure(trial: Trial, runs: int) -> float:
        raced.append(trial.name)
        return 1e-3

    x = Tensor.input("x", (N, 96))
    square = [Tensor(RNG.standard_normal((96, 96)).astype(np.float32)) for _ in range(3)]
    y = x
    for weight in square:
        y = (y @ weight).relu()
    one = len(candidates_of(y)[0])
    choices(y, Tuning(1, memory(), race=True, measure=measure))
    assert len(set(raced)) <= one
    assert len(raced) <= 1 + one * tune.TURNS


def test_small_work_is_not_raced() -> None:
    y = Tensor.input("x", (4, 8)) @ Tensor(WEIGHT[:8, :8])
    assert "(default)" in choices(y, Tuning(1, memory(), race=True, measure=never))[0]


def test_elementwise_loops_may_be_widened_and_sums_may_not() -> None:
    x = Tensor.input("x", (1 << 20,))
    (chosen,) = choices(x.exp(), Tuning(1, memory(), race=True, measure=favours("registers=1")))
    assert chosen.startswith("registers=1 (tuned")
    for outputs in (x.sum(), x.reshape(1024, 1024).softmax(-1)):
        for group_choices in candidates_of(outputs):
            assert len(group_choices) == 1 or "auto" in group_choices[0].name


def test_a_kernel_that_fails_in_a_race_keeps_its_default(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(trial: Trial, runs: int) -> float:
        raise semel.UserError("trial", "cannot run.")

    with caplog.at_level(logging.WARNING, "semel.tune"):
        assert "(default)" in choices(linear(), Tuning(1, memory(), race=True, measure=fails))[0]
    assert "keeps its default: [trial] cannot run." in caplog.text


def candidates_of(outputs: Tensor) -> list[Any]:
    target = host_target()
    return [candidate_choices(k.group, target) for k in lower_graph([outputs])[1]]


# ------------------------------------------------------------------------------ memory

WON = Remembered("panels=1", 0.75, "matmul", 2, {"n": 64})


def test_choices_come_back_from_disk(tmp_path: Path) -> None:
    memory(tmp_path).add({"key": WON})
    memory(tmp_path).add({"other": replace(WON, ratio=0.5)})
    assert memory(tmp_path).entries() == {"key": WON, "other": replace(WON, ratio=0.5)}
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_file_is_read_again_when_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    read = PrivateFolder.read

    def counted(folder: PrivateFolder, name: str, limit: int) -> bytes:
        reads.append(name)
        return read(folder, name, limit)

    monkeypatch.setattr(PrivateFolder, "read", counted)
    asked = memory(tmp_path)
    assert asked.entries() == {}
    assert reads == []
    memory(tmp_path).add({"key": WON})
    reads.clear()
    assert asked.entries() == asked.entries() == {"key": WON}
    assert len(reads) == 1
    memory(tmp_path).add({"key": replace(WON, ratio=0.5)})
    assert asked.entries() == {"key": replace(WON, ratio=0.5)}


def test_machines_do_not_share_choices(tmp_path: Path) -> None:
    facts = machine_facts(host_target())
    ChoiceMemory(tmp_path, facts).add({"key": WON})
    for name, value in (("model", "another"), ("cores", 99), ("l2_bytes", 1), ("semel", "9.9")):
        assert facts[name] != value
        assert ChoiceMemory(tmp_path, {**facts, name: value}).entries() == {}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"format": 99}', "\x00\xff", "[" * 100_000],
    ids=["empty", "cut", "list", "null", "version", "binary", "deep"],
)
def test_a_damaged_file_is_reported_and_replaced(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    kept = memory(tmp_path)
    kept.add({"key": WON})
    assert kept.path is not None
    kept.path.write_text(text)
    with caplog.at_level(logging.WARNING, "semel.tune"):
        assert memory(tmp_path).entries() == {}
    assert "cannot be used and is taken for empty" in caplog.text
    memory(tmp_path).add({"new": WON})
    assert memory(tmp_path).entries() == {"new": WON}


@pytest.mark.parametrize("field", ["ratio", "threads", "values"])
@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "1" * 400, "null"])
def test_numbers_that_are_none_are_reported(tmp_path: Path, field: str, number: str) -> None:
    kept = memory(tmp_path)
    kept.add({"key": WON})
    assert kept.path is not None
    text = json.dumps(json.loads(kept.path.read_text()))
    old = {"ratio": '"ratio": 0.75', "threads": '"threads": 2', "values": '"n": 64'}[field]
    assert old in text
    kept.path.write_text(text.replace(old, old.split(": ")[0] + ": " + number))
    assert set(memory(tmp_path).entries()) <= {"key"}


@pytest.mark.parametrize("kind", ODD_FILES)
def test_what_is_no_file_of_ours_is_reported(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    kept = memory(tmp_path)
    kept.add({"key": WON})
    path = kept.path
    assert path is not None
    path.unlink()
    ODD_FILES[kind](path)
    with caplog.at_level(logging.WARNING, "semel.tune"):
        doubted = memory(tmp_path)
        assert doubted.entries() == {} == doubted.entries()
    assert caplog.text.count("cannot be used and is taken for empty") == 1


def test_a_folder_that_others_may_write_is_not_believed(tmp_path: Path) -> None:
    memory(tmp_path).add({"key": WON})
    (tmp_path / "tuned-1").chmod(0o777)
    assert memory(tmp_path).entries() == {}
    assert memory(tmp_path).clear() == 0


def test_a_file_of_another_machine_under_our_name_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = memory(tmp_path)
    kept.add({"key": WON})
    assert kept.path is not None
    record = json.loads(kept.path.read_text())
    record["machine"]["cores"] = 99
    kept.path.write_text(json.dumps(record))
    assert memory(tmp_path).entries() == {}
    assert "another machine's" in caplog.text


def test_a_remembered_choice_that_is_no_candidate_is_passed_over(tmp_path: Path) -> None:
    first = Tuning(1, memory(tmp_path), race=True, measure=favours("panels=1"))
    choices(linear(), first)
    path = first.memory.path
    assert path is not None
    path.write_text(path.read_text().replace("lanes=", "lanes=7"))
    assert "(default)" in choices(linear(), Tuning(1, memory(tmp_path)))[0]


def test_a_disk_that_refuses_is_reported_and_the_process_remembers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tuned-1").write_text("a file is in the way")
    kept = memory(tmp_path)
    kept.add({"key": WON})
    assert "cannot be kept" in caplog.text
    assert kept.entries() == {"key": WON}


def test_clearing_forgets_all(tmp_path: Path) -> None:
    kept = memory(tmp_path)
    kept.add({"key": WON})
    assert kept.clear() == 1
    assert kept.entries() == {}
    with override(cache=False):
        assert default_memory(host_target()).path is None


def test_the_default_tile_fits_the_registers() -> None:
    tile = register_tile(host_target())
    vectors = tile.lanes * 32 // host_target().vector_bits
    assert tile.height * vectors + vectors < host_target().vector_registers


# ------------------------------------------------------------------------------ loops


@pytest.mark.parametrize("word", ["rows=48", "rows=96", "registers=1"])
def test_kernels_of_a_loop_are_chosen_and_give_the_same_bits(word: str) -> None:
    steps = Variable("steps", 0, 64)
    x = Tensor.input("x", (steps, 96, 256))
    weight = Tensor(RNG.standard_normal((256, 256)).astype(np.float32) / 16)

    def body(step: Any, states: Any) -> Any:
        new = (states[0] @ weight + x[step]).tanh()
        return [new, states[1] * 0.5 + new.flip(0)], [new]

    zero = Tensor.zeros(96, 256)
    finals, stacked = Tensor.loop(steps, [zero, zero], body)
    graph = build_graph([*finals, *stacked])
    data = RNG.standard_normal((9, 96, 256)).astype(np.float32)
    tuned = compile_graph(
        graph,
        host_target(),
        tuning=Tuning(1, memory(), race=True, measure=favours(word)),
    )
    assert any(word in c and "tuned" in c for c in (r.notes.choice for r in calls_of(tuned)))
    found = instantiate(tuned, threads=2)(x=data)
    want = instantiate(compile_graph(graph, host_target()), threads=1)(x=data)
    assert [a.tobytes() for a in found] == [a.tobytes() for a in want]

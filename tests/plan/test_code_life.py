"""Native code is in memory while a plan, a program or a report needs it, and no longer."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import semel
from semel import Tensor
from semel.compiler import programs
from semel.compiler.artefacts import loaded_kernels
from semel.compiler.eager import forget_eager
from semel.compiler.programs import forget_programs
from semel.devices.cpu.codespace import SLAB_BYTES, code_space
from semel.plan.plan import ExecutionPlan

X = np.arange(4, dtype=np.float32)


def forget_code() -> None:
    """Let go of the code that is held for whoever may want it again."""
    forget_programs()
    forget_eager()
    loaded_kernels.forget()


@pytest.fixture(autouse=True)
def _forget(settled: None) -> Iterator[None]:
    """The runner is there, and what other tests dropped is not, so that bytes can be counted."""
    _plan(0)
    forget_code()
    gc.collect()
    yield
    forget_code()


def _plan(number: int, threads: int = 1) -> ExecutionPlan:
    """A kernel that no other number has, nor any other test."""
    x = Tensor.input("x", (4,), "float32").maximum(-54321.0)
    return (x + float(number)).prepare(threads=threads)


def _num_mappings() -> int:
    """Of code: what else the process maps meanwhile is its own business."""
    slabs = [(slab.base, slab.base + slab.size) for slab in code_space._slabs]
    found = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(number, 16) for number in line.split()[0].split("-"))
        found += any(start < last and first < end for first, last in slabs)
    return found


def test_code_goes_with_the_last_plan_that_needs_it() -> None:
    before = code_space.used_bytes
    plan = _plan(1)
    clone = plan.clone()
    held = code_space.used_bytes
    assert held > before
    forget_code()
    del plan
    assert code_space.used_bytes == held
    np.testing.assert_array_equal(clone(x=X), X + 1)
    del clone
    assert code_space.used_bytes == before


def test_equal_kernels_of_two_plans_are_one_until_both_are_gone() -> None:
    first = _plan(1)
    held = code_space.used_bytes
    second = _plan(1)
    assert second.kernels[0].address == first.kernels[0].address
    assert code_space.used_bytes == held
    del first
    np.testing.assert_array_equal(second(x=X), X + 1)


def test_kernels_that_nobody_needs_take_bounded_memory_and_few_mappings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = code_space.used_bytes, code_space.num_slabs
    monkeypatch.setattr(loaded_kernels, "_kept", 8)
    monkeypatch.setattr(programs, "MAX_PROGRAMS", 8)
    for number in range(8):
        _plan(number)
    held, mappings = code_space.used_bytes, _num_mappings()
    for number in range(8, 40):
        plan = _plan(number)
        np.testing.assert_array_equal(plan(x=X), X + number)
        del plan
    assert code_space.used_bytes == held
    assert _num_mappings() <= mappings + 8
    forget_code()
    assert (code_space.used_bytes, code_space.num_slabs) == before


def test_kernels_held_by_plans_share_mappings() -> None:
    forget_code()  # whatever other tests left; what follows is counted from there
    mappings, used_bytes = _num_mappings(), code_space.used_bytes
    plans = [_plan(number) for number in range(40)]
    assert _num_mappings() - mappings < 20
    assert code_space.used_bytes - used_bytes < SLAB_BYTES
    for number in random.Random(0).sample(range(40), 20):
        plans[number].release_all_buffers()
        plans[number] = _plan(number + 1000)
    for number, plan in enumerate(plans):
        result = plan(x=X)
        assert result[0] in (number, number + 1000)


def test_the_latest_kernels_are_found_again_without_a_load() -> None:
    address = _plan(1).kernels[0].address
    _plan(2)
    assert _plan(1).kernels[0].address == address


def test_code_of_a_plan_file_goes_with_its_plans(tmp_path: Path) -> None:
    _plan(1).save(tmp_path / "a.plan")
    forget_code()
    before = code_space.used_bytes
    first, second = (semel.load_plan(tmp_path / "a.plan") for _ in range(2))
    assert first.kernels[0].address == second.kernels[0].address
    del first
    np.testing.assert_array_equal(second(x=X), X + 1)
    del second
    assert code_space.used_bytes == before


def test_a_report_shows_the_kernels_of_a_plan_that_is_gone() -> None:
    plan = _plan(1)
    plan(x=X)
    report, explained = plan.execute_profiled(limits=False), plan.explain()
    text = plan.kernels[0].text
    del plan
    forget_code()
    gc.collect()
    _plan(2)
    assert [op.kernel.text for op in report if op.kernel is not None] == [text]
    assert "add" in str(report)
    assert "add" in str(explained)


def test_code_is_freed_while_other_plans_run_on_workers() -> None:
    """Threads make, run and drop plans; what is freed can be touched by nobody."""
    wrong: list[int] = []
    rows = 400
    x = np.ones((rows, rows), np.float32)

    def work(seed: int) -> None:
        rng = random.Random(seed)
        held: list[tuple[int, ExecutionPlan]] = []
        for _ in range(25):
            if len(held) > 2:
                held.pop(rng.randrange(len(held)))
                forget_code()
            number = rng.randrange(12)
            made = (Tensor.input("x", (rows, rows), "float32") + float(number)).exp().sum()
            held.append((number, made.prepare(threads=3)))
            number, plan = rng.choice(held)
            result = plan(x=x - number - 1)
            if abs(float(result) - rows * rows) > 1:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_child_frees_code_of_its_own() -> None:
    plans = [_plan(number) for number in range(3)]
    child = os.fork()
    if not child:
        forget_code()
        before = code_space.used_bytes
        plans.pop()
        good = code_space.used_bytes < before and plans[1](x=X)[0] == 1 and _plan(9)(x=X)[0] == 9
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [plan(x=X)[0] for plan in plans] == [0, 1, 2]


# ---------------------------------------------------------------- the end of the process

#: A kernel that takes longer than the rest of the process: the thread is inside it at the end.
_ENDING = """
import builtins, os, sys, threading, time
from semel.devices.cpu import elf, runtime  # modules that the thread keeps are emptied, not freed
from tests.plan.build import Sketch
from tests.plan.kernels import TILE

class Late:  # what is left in builtins goes last, after all that modules hold
    def __init__(self, sleep):
        self.sleep = sleep
    def __del__(self):
        self.sleep(0.1)

s = Sketch(4000 * TILE)
s.op("slow", "x", "out")
plan = s.build("out", threads={threads})
small = Sketch(8 * TILE)
small.op("slow", "x", "out")
small.build("out", threads=2).execute()
inside = threading.Event()

def run():
    inside.set()
    while True:
        plan.execute()

thread = threading.Thread(target=run, daemon=True)
thread.start()
inside.wait()
time.sleep(0.02)
builtins.late = Late(time.sleep)
{end}
"""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("del plan, s", 0),
        ("sys.exit(3)", 3),
        ("os._exit(4)", 4),
        ("threading.Thread(target=sys.exit).start()", 0),
    ],
)
def test_a_process_may_end_while_a_daemon_thread_runs(threads: int, end: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ENDING.format(threads=threads, end=end)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, "")

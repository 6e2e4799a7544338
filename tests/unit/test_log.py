"""SEMEL_LOG: who speaks about what, to whom, and who does not."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from tests.unit.test_tune import favours, linear, memory

import semel
from semel import Tensor, Variable
from semel.cache.kernels import KernelCache
from semel.compiler.pipeline import compile_graph
from semel.compiler.programs import forget_programs
from semel.compiler.tune import Tuning
from semel.config import LOG_TOPICS, override, read_settings
from semel.devices.cpu.toolchain import host_target
from semel.errors import UserError
from semel.plan.plan import ExecutionPlan
from semel.tensor.realize import build_graph
from semel.topics import Topic


def _prepare() -> ExecutionPlan:
    """Two kernels, compiled anew, of a variable without a maximum."""
    forget_programs()
    x = Tensor.input("x", (Variable("n", 1), 64))
    return (x.cumsum(0) @ Tensor(np.ones((64, 8), np.float32))).prepare(threads=1)


def _told(caplog: pytest.LogCaptureFixture, topic: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == f"semel.{topic}"]


def _topics(caplog: pytest.LogCaptureFixture) -> set[str]:
    return {r.name for r in caplog.records}


def test_nothing_is_told_to_who_did_not_ask(caplog: pytest.LogCaptureFixture) -> None:
    _prepare()(x=np.ones((100, 64), np.float32))
    assert not caplog.records
    assert not any(Topic(name).is_on for name in LOG_TOPICS)


def test_the_schedule_is_told_with_its_reasons(caplog: pytest.LogCaptureFixture) -> None:
    with override(log=frozenset({"schedule"})):
        plan = _prepare()
    assert plan.program is not None
    assert _topics(caplog) == {"semel.schedule"}
    assert _told(caplog, "schedule")[1:] == list(plan.program.log)
    assert len(plan.program.log) > 1


def test_what_is_found_again_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with override(log=frozenset({"compile"})):
        x = Tensor.input("x", (Variable("n", 1), 64))
        forget_programs()
        first, second = (x * 3).prepare(threads=1), (x * 3).prepare(threads=1)
    assert (first.compile_count, second.compile_count) == (1, 0)
    assert _told(caplog, "compile")[-1] == "output0: found again, nothing is compiled"


def test_kernels_and_stages_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with override(log=frozenset({"compile"})):
        plan = _prepare()
    told = "\n".join(_told(caplog, "compile"))
    assert plan.program is not None
    for call in plan.prepared_kernels:
        assert f"kernel {call.name} is {call.kernel.entry_point}, " in told
    assert "output0: compiled; ms by stage: graph " in told


def test_the_cache_tells_by_key_where_it_looked(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    with override(log=frozenset({"cache"})):
        cache = KernelCache(tmp_path)
        cache.get("key")
        cache.put("key", b"code")
        cache.get("key")
        again = KernelCache(tmp_path)
        again.get("key")
        again.discard("key", "it is damaged")
    found = _told(caplog, "cache")
    assert found[:3] == ["key: not found", "key: found in memory", "key: found on disk"]
    assert found[3].endswith(": it is damaged")


def test_memory_is_told_value_by_value(caplog: pytest.LogCaptureFixture) -> None:
    with override(log=frozenset({"memory"})):
        plan = _prepare()
    told = "\n".join(_told(caplog, "memory"))
    assert f"= {plan.memory.peak_bytes} bytes" in told
    for buffer in plan.explain().buffers:
        assert buffer.name in told


def test_a_plan_from_a_file_tells_where_its_values_lie(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    _prepare().save(tmp_path / "a.plan")
    with override(log=frozenset({"memory"})):
        plan = semel.load_plan(tmp_path / "a.plan", threads=1)
    assert f"= {plan.memory.peak_bytes} bytes" in "\n".join(_told(caplog, "memory"))


def test_growth_is_told(caplog: pytest.LogCaptureFixture) -> None:
    plan = _prepare()
    with override(log=frozenset({"plan"})):
        plan(x=np.ones((3, 64), np.float32))
        assert not caplog.records
        plan(x=np.ones((100, 64), np.float32))
    (told,) = _told(caplog, "plan")
    assert told.startswith("grew for n=100: room up to n=128, ")
    assert told.endswith(f"{plan.memory.peak_bytes} bytes")


def test_tuning_tells_who_ran_and_who_won(caplog: pytest.LogCaptureFixture) -> None:
    tuning = Tuning(1, memory(), race=True, measure=favours("height=4", 0.8))
    with override(log=frozenset({"tune"})):
        compile_graph(build_graph(linear()), host_target(), tuning=tuning)
    raced, chosen = _told(caplog, "tune")
    assert ": racing " in raced
    assert "0.80 of the default's time" in chosen


def test_a_program_may_listen_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "semel.schedule"):
        _prepare()
    assert _topics(caplog) == {"semel.schedule"}
    record = caplog.records[0]
    assert record.levelno == logging.DEBUG
    assert record.pathname.endswith("pipeline.py")


def test_all_is_everything(caplog: pytest.LogCaptureFixture) -> None:
    with override(log=frozenset({"all"})):
        assert all(Topic(name).is_on for name in LOG_TOPICS)


def test_an_execute_asks_no_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _prepare()
    x = np.ones((5, 64), np.float32)
    plan(x=x)

    def fail(self: Topic) -> bool:
        raise AssertionError("somebody asked whether to tell something")

    monkeypatch.setattr(Topic, "is_on", property(fail))
    plan(x=x)
    plan.execute()


@pytest.mark.parametrize("text", ["scheduler", "schedule,caches"])
def test_a_topic_that_is_not_there_is_refused(text: str) -> None:
    known = "all, cache, compile, memory, plan, schedule, tune"
    with pytest.raises(UserError, match=f"SEMEL_LOG must name some of {known}, got "):
        read_settings({"SEMEL_LOG": text})


_PROGRAM = """
import numpy as np
from semel import Tensor, Variable
{setup}
x = Tensor.input("x", (Variable("n", 1), 8))
(x * 2).prepare(threads=1)(x=np.ones((100, 8), np.float32))
"""


def _run(tmp_path: Path, setup: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"SEMEL_LOG": "all", "SEMEL_CACHE_DIR": str(tmp_path)}
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(setup=setup)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )


def _speakers(lines: Iterable[str]) -> set[str]:
    return {line.split(":")[0].removeprefix("semel.") for line in lines}


def test_without_handlers_topics_go_to_stderr(tmp_path: Path) -> None:
    done = _run(tmp_path)
    assert not done.stdout
    assert _speakers(done.stderr.splitlines()) == LOG_TOPICS - {"tune"}


def test_with_handlers_they_go_there(tmp_path: Path) -> None:
    file = tmp_path / "log.txt"
    setup = f"import logging; logging.basicConfig(filename={str(file)!r}, format='%(name)s:')"
    done = _run(tmp_path, setup)
    assert not done.stderr
    assert _speakers(file.read_text().splitlines()) == LOG_TOPICS - {"tune"}

"""Other processes compile kernels: the same code, whatever becomes of them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest
from tests.codegen.lowering import lower_graph

import semel
from semel import Tensor
from semel.config import override
from semel.devices import choose_target
from semel.devices.cpu import crew as crews
from semel.devices.cpu.compiler import CpuCompiler
from semel.devices.cpu.crew import LEAST_KERNELS, Crew, open_crew
from semel.errors import CompileError
from semel.kernel.ir import Kernel

Asked = tuple[Kernel, str]


@pytest.fixture(scope="module")
def asked() -> list[Asked]:
    """Different kernels, more than a member takes at once."""
    x = Tensor.input("x", (16, 48))
    made = []
    for number in range(LEAST_KERNELS):
        _, kernels = lower_graph([(x * (number + 1.5)).exp().sum(number % 2)])
        made += [(kernel.kernel, f"k{number}") for kernel in kernels]
    return made[:LEAST_KERNELS]


@pytest.fixture(scope="module")
def wanted(asked: Sequence[Asked]) -> list[bytes]:
    return [_compiler().compile(*each) for each in asked]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes that a test starts, all of which must be gone behind it."""
    found: list[subprocess.Popen[bytes]] = []
    start = crews._start

    def noted() -> subprocess.Popen[bytes]:
        found.append(start())
        return found[-1]

    monkeypatch.setattr(crews, "_start", noted)
    yield found
    assert all(process.poll() is not None for process in found)


def _compiler() -> CpuCompiler:
    return CpuCompiler(choose_target("cpu"))


def _counted(here: list[str]) -> Callable[[Kernel, str], bytes]:
    def compile_here(kernel: Kernel, entry: str) -> bytes:
        here.append(entry)
        return _compiler().compile(kernel, entry)

    return compile_here


def _crew(members: int, here: list[str] | None = None) -> Crew:
    return Crew(choose_target("cpu"), members, _counted([] if here is None else here))


@pytest.mark.parametrize("members", [1, 2])
def test_code_is_the_same_whoever_compiles_it(
    members: int,
    asked: Sequence[Asked],
    wanted: Sequence[bytes],
    started: list[subprocess.Popen[bytes]],
) -> None:
    here: list[str] = []

    def slowly() -> Iterator[Asked]:
        """As kernels come that are lowered one by one."""
        for each in asked:
            yield each
            time.sleep(0.02)

    assert list(_crew(members, here).compile_all(slowly())) == wanted
    assert len(started) == members
    assert len(here) < len(asked)  # some were made there


def test_forms_that_no_pipe_holds_make_nobody_wait(
    asked: Sequence[Asked], wanted: Sequence[bytes], started: list[subprocess.Popen[bytes]]
) -> None:
    note = "a line of a graph" * 8192  # twice what a pipe holds
    large = [(replace(kernel, notes=(note,)), entry) for kernel, entry in asked]
    assert list(_crew(1).compile_all(large)) == wanted


@pytest.mark.parametrize(
    "begin",
    [
        "import nothing_of_this_name",
        "import sys; sys.stdin.buffer.readline(); print('hello')",
        "import sys; sys.stdout.buffer.write(b'\\xff' * 64); sys.stdout.flush(); sys.stdin.read()",
        "import sys; sys.stdin.close()",
    ],
)
def test_a_process_that_is_no_member_is_left(
    begin: str,
    asked: Sequence[Asked],
    wanted: Sequence[bytes],
    started: list[subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crews, "_BEGIN", begin)
    monkeypatch.setattr(crews, "_PATIENCE_S", 2.0)
    here: list[str] = []
    assert list(_crew(1, here).compile_all(asked)) == wanted
    assert sorted(here) == sorted(entry for _, entry in asked)


def test_a_member_of_other_sources_is_left(
    asked: Sequence[Asked],
    wanted: Sequence[bytes],
    started: list[subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crews, "who_compiles", lambda: "somebody else")
    here: list[str] = []
    assert list(_crew(1, here).compile_all(asked)) == wanted
    assert len(here) == len(asked)


def test_a_member_that_dies_or_hangs_is_done_without(
    asked: Sequence[Asked],
    wanted: Sequence[bytes],
    started: list[subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crews, "_PATIENCE_S", 1.0)

    def until(stop: Callable[[subprocess.Popen[bytes]], None]) -> Iterator[Asked]:
        for number, each in enumerate(asked):
            yield each
            if number == 4:
                stop(started[-1])

    assert list(_crew(1).compile_all(until(lambda process: process.kill()))) == wanted
    hung = _crew(1).compile_all(until(lambda process: process.send_signal(19)))  # it is stopped
    assert list(hung) == wanted


def test_a_kernel_that_fails_there_fails_here_with_its_error(
    asked: Sequence[Asked], started: list[subprocess.Popen[bytes]]
) -> None:
    broken = (asked[0][0], "no name\n")
    with pytest.raises(CompileError, match="must be valid"):
        list(_crew(1).compile_all([*asked[:3], broken, *asked[3:]]))


def test_who_stops_asking_waits_for_nobody(
    asked: Sequence[Asked], started: list[subprocess.Popen[bytes]]
) -> None:
    codes = _crew(2).compile_all(asked)
    next(codes)
    codes.close()
    assert len(started) == 2


def test_an_interruption_while_processes_start_leaves_none(
    asked: Sequence[Asked],
    started: list[subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who is interrupted keeps what it has of them: nobody else ends what nobody knows."""
    setup = crews.write_frame

    def interrupted(there: IO[bytes], data: bytes) -> None:
        if len(started) == 2:
            raise KeyboardInterrupt
        setup(there, data)

    monkeypatch.setattr(crews, "write_frame", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(_crew(2).compile_all(asked))
        left = [process.poll() for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert None not in left


@pytest.mark.parametrize("place", [None, b"/nowhere", 3])
def test_what_is_no_text_in_the_path_is_passed_over(
    place: object,
    asked: Sequence[Asked],
    wanted: Sequence[bytes],
    started: list[subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As imports do."""
    monkeypatch.setattr(sys, "path", [*sys.path, place])
    assert list(_crew(1).compile_all(asked)) == wanted


def test_a_directory_that_is_gone_leaves_no_process(tmp_path: Path) -> None:
    code = """
    import os, sys
    os.rmdir(os.getcwd())
    from semel import Tensor, prepare
    from semel.devices.cpu import crew as crews
    start, found = crews.subprocess.Popen, []
    crews.subprocess.Popen = lambda *args, **given: found.append(start(*args, **given)) or found[-1]
    x = Tensor.input("x", (64, 33))
    prepare([(x * (n + 1.5)).softmax(n % 2)[: n + 1].copy() for n in range(40)])
    print(len(found), [each.poll() is None for each in found])
    for each in found:
        each.kill()
    """
    gone = tmp_path / "gone"
    gone.mkdir()
    environment = {
        **os.environ,
        "SEMEL_COMPILE_PROCESSES": "1",
        "SEMEL_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join(os.path.abspath(p) for p in sys.path if p),
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        cwd=gone,
    )
    assert done.stdout.split() == ["1", "[False]"]


def test_the_child_of_a_fork_leaves_the_processes_to_its_parent(
    asked: Sequence[Asked], wanted: Sequence[bytes], started: list[subprocess.Popen[bytes]]
) -> None:
    child = 0

    def forked() -> Iterator[Asked]:
        nonlocal child
        for number, each in enumerate(asked):
            yield each
            if number == 5:
                child = os.fork()

    codes: list[bytes] = []
    try:
        codes = list(_crew(1).compile_all(forked()))
    finally:
        if child == 0:
            os._exit(0 if codes == wanted else 1)
    assert codes == wanted
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_few_kernels_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    target, here = choose_target("cpu"), _counted([])
    with override(compile_processes=2):
        assert open_crew(target, LEAST_KERNELS - 1, here) is None
        many = open_crew(target, 100, here)
        assert many is not None and many._count == 2
    with override(compile_processes=0):
        assert open_crew(target, 100, here) is None
    with override(compile_processes=2):
        for name in ("/usr/bin/uwsgi", "", None):
            monkeypatch.setattr(sys, "executable", name)
            assert open_crew(target, 100, here) is None


def test_a_graph_of_many_kernels_is_compiled_with_helpers(tmp_path: Path) -> None:
    """In a process of its own, whose modules lie where only its own path says."""
    code = f"""
    import sys
    sys.path.insert(0, {str(Path(semel.__file__).parent.parent)!r})
    import numpy as np
    from semel import Tensor, prepare
    from semel.devices.cpu import crew as crews
    lost = []
    crews._Member._lose = lambda member, reason: lost.append(reason)
    x = Tensor.input("x", (64, 33))
    outputs = [(x * (n + 1.5)).softmax(n % 2)[: n + 1].copy() for n in range(40)]
    plan = prepare(outputs)
    data = np.random.default_rng(0).standard_normal((64, 33), dtype=np.float32)
    found = plan(x=data)
    print(len(plan.kernels), lost, float(sum(np.abs(y).sum() for y in found)))
    """
    said = []
    for processes in ("2", "0"):
        environment = {
            **os.environ,
            "SEMEL_COMPILE_PROCESSES": processes,
            "SEMEL_CACHE_DIR": str(tmp_path / processes),
        }
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
            cwd=tmp_path,
        )
        said.append(done.stdout)
    assert said[0] == said[1]
    assert int(said[0].split()[0]) >= LEAST_KERNELS
    assert "[]" in said[0]

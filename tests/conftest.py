"""What every test gets: a kernel cache of its own run, and settings put back afterwards.

With `--target x86-64-v3` plans are compiled for that, as with SEMEL_TARGET, and so are the kernels
of tests that go without a plan. With SEMEL_SKIPS=listed, a skip whose reason is not in skips.txt
fails the run: what is not tested must be known.

What plans and compiled graphs mean is tested on each device of a table; in the long mode, all tests
of their folders are.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from semel import config
from semel.compiler.eager import forget_eager
from semel.compiler.known_kernels import known_kernels
from semel.compiler.programs import forget_programs
from semel.devices import check_runs_here, choose_target
from semel.errors import UserError

_HERE = Path(__file__).parent
_LIST = _HERE / "skips.txt"

#: Where tests of what plans and compiled graphs mean run; another device is one line.
DEVICES = (
    "cpu",
    "cpu:1",
)
#: Which those are, by folder.
SEMANTIC = {
    "plan": "amounts bind calls control edges loops members nested order ownership reads rebind "
    "release run scopes swap tables validation",
    "session": "fetch handles pipeline runs semantics specification",
    "state": "failures graphs moves plans snapshots",
    "graph": "declared defaults in_sessions once",
}


# Everywhere the same examples, however slow the machine is; others in the long mode.
settings.register_profile(
    "semel",
    derandomize=not os.environ.get("SEMEL_FUZZ_SECONDS"),
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("semel")


@pytest.fixture(scope="session")
def session_cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache per run: no test depends on, or leaves behind, kernels of another run."""
    return tmp_path_factory.mktemp("kernel-cache")


def _is_semantic(path: Path) -> bool:
    """Whether the tests of a file run on all devices."""
    names = SEMANTIC.get(path.parent.name) if path.parent.parent == _HERE else None
    if names is None:
        return False
    return bool(os.environ.get("SEMEL_FUZZ_SECONDS")) or path.stem[len("test_") :] in names.split()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if _is_semantic(metafunc.definition.path):
        metafunc.parametrize("_device", DEVICES, indirect=True)


@pytest.fixture
def _device(request: pytest.FixtureRequest) -> str | None:
    """Where plans are of which a test says nothing else."""
    device: str | None = getattr(request, "param", config.settings().device)
    return device


#: The generators of modules, by module, and how each was when its module was imported.
_generators: dict[str, list[tuple[np.random.Generator, Any]]] = {}


def pytest_collection_finish(session: pytest.Session) -> None:
    of_tests = {item.path: str(item.path) for item in session.items}
    for name, module in list(sys.modules.items()):
        path = Path(getattr(module, "__file__", None) or "")
        if name.startswith("tests.") or path in of_tests:
            made = [g for g in vars(module).values() if isinstance(g, np.random.Generator)]
            place = of_tests.get(path, "")  # those of no test are for all tests
            _generators.setdefault(place, []).extend((g, g.bit_generator.state) for g in made)


@pytest.fixture(autouse=True)
def _own_numbers(request: pytest.FixtureRequest) -> None:
    """What a test draws is the same whatever ran before it."""
    for place in ("", str(request.path)):
        for generator, state in _generators.get(place, ()):
            generator.bit_generator.state = state


@pytest.fixture(autouse=True)
def _own_settings(session_cache_dir: Path, _device: str | None) -> Iterator[None]:
    forget_programs()  # what other tests compiled is none of this one's business
    forget_eager()
    known_kernels.forget()
    with config.override(cache_dir=session_cache_dir, device=_device):
        yield


@pytest.fixture
def settled() -> Iterator[None]:
    """For tests that count what the process holds: the garbage of earlier tests is gone, and no
    collection comes in the middle.
    """
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def listed_reasons() -> list[re.Pattern[str]]:
    """The reasons for which tests may be skipped."""
    lines = _LIST.read_text().splitlines()
    return [re.compile(line) for line in lines if line and not line.startswith("#")]


class SkipsAreListed:
    """Fails a run in which a test was skipped for a reason that nobody wrote down."""

    def __init__(self) -> None:
        self._known = listed_reasons()
        self._unlisted: list[str] = []

    def _take(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = text.removeprefix("Skipped: ")
        if not any(known.fullmatch(reason) for known in self._known):
            self._unlisted.append(f"{report.nodeid}: {reason}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._take(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._take(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._unlisted and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._unlisted:
            terminalreporter.section("skipped for a reason that is not in tests/skips.txt")
            terminalreporter.write_line("\n".join(sorted(set(self._unlisted))))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--target", metavar="NAME", help="what to compile for, if this machine has it")


def pytest_report_header(config: pytest.Config) -> str:
    return f"compiled for {choose_target('cpu').name}"


def pytest_configure(config: pytest.Config) -> None:
    target = config.getoption("--target")
    if target is not None:
        try:
            check_runs_here("target", "cpu", choose_target("cpu", target))
        except UserError as error:
            raise pytest.UsageError(str(error)) from error
        os.environ["SEMEL_TARGET"] = target  # before the settings are read; workers inherit it
    is_worker = hasattr(config, "workerinput")
    if os.environ.get("SEMEL_SKIPS") == "listed" and not is_worker:
        config.pluginmanager.register(SkipsAreListed())

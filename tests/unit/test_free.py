"""Free memory: the machine's, cut by the limits of control groups, in both versions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from semel import OutOfMemoryError, Tensor, Variable
from semel.runtime import free
from semel.runtime.allocator import allocate
from semel.runtime.cgroup import cgroup_folders
from semel.runtime.free import Sources, free_bytes

MIB = 1 << 20
MACHINE = "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\nSwapFree: 0 kB\n"
MACHINE_BYTES = 8 << 30
NO_LIMIT_V1 = "9223372036854771712"


def _sources(folder: Path, files: dict[str, str], own: str, meminfo: str = MACHINE) -> Sources:
    for name, text in files.items():
        path = folder / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    (folder / "cgroup").mkdir(exist_ok=True)
    (folder / "own").write_text(own)
    (folder / "meminfo").write_text(meminfo)
    return Sources(folder / "meminfo", folder / "cgroup", folder / "own")


def _v2(limit: int | str, used: int, stat: str = "", at: str = "") -> dict[str, str]:
    return {
        f"{at}memory.max": str(limit),
        f"{at}memory.current": str(used),
        f"{at}memory.stat": stat,
    }


def _v1(limit: int | str, used: int, stat: str = "", at: str = "") -> dict[str, str]:
    return {
        f"memory/{at}memory.limit_in_bytes": str(limit),
        f"memory/{at}memory.usage_in_bytes": str(used),
        f"memory/{at}memory.stat": stat,
    }


FILE_PAGES = "anon 7\ninactive_file 1000\nactive_file 200\nslab_reclaimable 30\nfile 5000"
FILE_PAGES_V1 = "inactive_file 9\ntotal_inactive_file 1000\ntotal_active_file 200\ntotal_rss 7"


@pytest.mark.parametrize(
    ("files", "own", "wanted"),
    [
        ({}, "", MACHINE_BYTES),
        (_v2("max", 5 * MIB), "0::/", MACHINE_BYTES),
        (_v2(100 * MIB, 30 * MIB), "0::/", 70 * MIB),
        (_v2(100 * MIB, 30 * MIB, FILE_PAGES), "0::/", 70 * MIB + 1230),
        (_v2(100 * MIB, 500, FILE_PAGES), "0::/", 100 * MIB),  # no more than there is
        (_v2(10 * MIB, 30 * MIB), "0::/", 0),
        (_v2(MACHINE_BYTES * 2, 0), "0::/", MACHINE_BYTES),
        # The path that the host knows is not mounted in the container: the root is ours.
        (_v2(100 * MIB, 30 * MIB), "0::/docker/abc", 70 * MIB),
        # The tightest of all groups around us, whichever it is.
        (_v2(100 * MIB, 0, at="a/") | _v2(40 * MIB, 0, at="a/b/"), "0::/a/b", 40 * MIB),
        (_v2(30 * MIB, 0, at="a/") | _v2(40 * MIB, 0, at="a/b/"), "0::/a/b", 30 * MIB),
        (_v2(30 * MIB, 0, at="a/c/"), "0::/a/b", MACHINE_BYTES),
        # A group over its `high` is slowed down and not killed.
        (_v2("max", 5 * MIB) | {"memory.high": str(MIB)}, "0::/", MACHINE_BYTES),
        (_v1(NO_LIMIT_V1, 5 * MIB), "4:memory:/", MACHINE_BYTES),
        (_v1(100 * MIB, 30 * MIB), "4:memory:/", 70 * MIB),
        (_v1(100 * MIB, 30 * MIB, FILE_PAGES_V1), "4:memory:/x", 70 * MIB + 1200),
        (_v1(100 * MIB, 0, at="a/") | _v1(40 * MIB, 0, at="a/b/"), "4:memory:/a/b", 40 * MIB),
        (_v1(100 * MIB, 30 * MIB), "3:cpu,cpuacct:/\n4:memory:/\n0::/", 70 * MIB),
        (_v1(100 * MIB, 30 * MIB), "3:cpu:/", MACHINE_BYTES),
        (_v2("soon", 5 * MIB), "0::/", MACHINE_BYTES),
        (_v2(100 * MIB, 30 * MIB), "not such a file", MACHINE_BYTES),
    ],
)
def test_what_is_free(tmp_path: Path, files: dict[str, str], own: str, wanted: int) -> None:
    assert free_bytes(_sources(tmp_path, files, own)) == wanted


@pytest.mark.parametrize(
    ("swap", "room"),
    [
        ({}, 50),
        ({"memory.swap.max": "max"}, 50),
        ({"memory.swap.max": str(20 * MIB), "memory.swap.current": str(5 * MIB)}, 15),
        ({"memory.swap.max": "0"}, 0),
        ({"memory.swap.max": str(MIB), "memory.swap.current": str(5 * MIB)}, 0),
    ],
)
def test_swap_counts_as_far_as_the_group_may_use_it(
    tmp_path: Path, swap: dict[str, str], room: int
) -> None:
    meminfo = MACHINE.replace("SwapFree: 0", f"SwapFree: {50 * 1024}")
    sources = _sources(tmp_path, _v2(100 * MIB, 30 * MIB) | swap, "0::/", meminfo)
    assert free_bytes(sources) == (70 + room) * MIB


@pytest.mark.parametrize(("both", "used", "room"), [(110, 35, 5), (100, 30, 0), (500, 30, 50)])
def test_swap_of_the_first_version_is_what_both_together_leave(
    tmp_path: Path, both: int, used: int, room: int
) -> None:
    meminfo = MACHINE.replace("SwapFree: 0", f"SwapFree: {50 * 1024}")
    swap = {
        "memory/memory.memsw.limit_in_bytes": str(both * MIB),
        "memory/memory.memsw.usage_in_bytes": str(used * MIB),
    }
    sources = _sources(tmp_path, _v1(100 * MIB, 30 * MIB) | swap, "4:memory:/", meminfo)
    assert free_bytes(sources) == (70 + room) * MIB


def test_a_system_that_says_nothing_refuses_nothing(tmp_path: Path) -> None:
    assert free_bytes(_sources(tmp_path, {}, "", "")) is None
    assert free_bytes(Sources(tmp_path / "a", tmp_path / "b", tmp_path / "c")) is None


def test_folders_end_at_the_mount(tmp_path: Path) -> None:
    found = list(cgroup_folders(tmp_path, "0::/a/b\n", "memory"))
    assert found == [tmp_path / "a" / "b", tmp_path / "a", tmp_path]


@pytest.fixture
def small_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 MiB are left."""
    monkeypatch.setattr(free, "SOURCES", _sources(tmp_path, _v2(130 * MIB, 30 * MIB), "0::/"))


@pytest.mark.usefixtures("small_container")
def test_a_block_that_cannot_fit_is_refused() -> None:
    with pytest.raises(OutOfMemoryError, match="104,857,600 are free") as caught:
        allocate(101 * MIB)
    assert caught.value.free_bytes == 100 * MIB  # type: ignore[attr-defined]
    assert allocate(90 * MIB).is_alive


@pytest.mark.usefixtures("small_container")
def test_a_plan_whose_parts_fit_but_not_together_is_refused() -> None:
    """Nothing is allocated: pages that are not touched would be promised twice."""
    x = Tensor.input("x", (15 << 20,), "float32")
    with pytest.raises(OutOfMemoryError, match="are free"):
        (x + 1).prepare(threads=1)
    y = Tensor.input("x", (10 << 20,), "float32")
    assert (y + 1).prepare(threads=1).memory.io_bytes > 80 * MIB


@pytest.mark.usefixtures("small_container")
def test_a_plan_that_cannot_grow_stays_as_it_is() -> None:
    x = Tensor.input("x", (Variable("n", 1), 1 << 10), "float32")
    plan = (x + 1).prepare(threads=1)
    ones = np.ones((2, 1 << 10), np.float32)
    assert (plan(x=ones) == 2).all()
    with pytest.raises(OutOfMemoryError, match="are free"):
        plan.execute_with_vars(n=1 << 20)
    assert (plan(x=ones) == 2).all()

"""Parts of the CPU as devices: which cores are whose, and plans that run on one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import semel
from semel.config import override
from semel.devices.cpu.partition import CpuPartition, cpus_in_order, share_of
from semel.devices.cpu.runtime import CpuDevice
from semel.runtime.device import find_device


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_parts_are_disjoint_and_together_all_or_shared_and_never_empty(
    size: int, count: int
) -> None:
    cpus = [3 * i + 1 for i in range(size)]
    parts = [share_of(cpus, index, count) for index in range(count)]
    assert all(parts)
    if size >= count:
        assert [cpu for part in parts for cpu in part] == cpus
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    else:
        assert {cpu for part in parts for cpu in part} <= set(cpus)


def _topology(root: Path, places: dict[int, tuple[int, int]]) -> Path:
    for cpu, (socket, core) in places.items():
        folder = root / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{socket}\n")
        (folder / "core_id").write_text(f"{core}\n")
    return root


def test_neighbours_stay_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    # Two sockets with two cores each; the second thread of a core is numbered four later.
    places = {cpu: (cpu % 4 // 2, cpu % 2) for cpu in range(8)}
    assert cpus_in_order(_topology(tmp_path, places)) == [0, 4, 1, 5, 2, 6, 3, 7]
    assert cpus_in_order(tmp_path / "nothing") == list(range(8))


def test_a_partition_has_its_share_of_the_cores_and_the_code_of_the_whole() -> None:
    whole, parts = find_device("cpu"), [find_device(f"cpu:{k}") for k in range(2)]
    assert isinstance(whole, CpuDevice)
    assert whole.cpus == ()
    for index, part in enumerate(parts):
        assert isinstance(part, CpuPartition)
        assert (part.name, part.is_host) == (f"cpu:{index}", True)
        assert part.default_threads() == part.facts()["cores"] >= 1
        assert part.facts()["model"] == whole.facts()["model"]
        assert set(part.cpus) <= os.sched_getaffinity(0)
        assert part.device_code() is whole.device_code()
        with override(threads=1):
            assert part.default_threads() == 1
    if len(os.sched_getaffinity(0)) > 1:
        assert not set(parts[0].cpus) & set(parts[1].cpus)


@pytest.mark.parametrize("device", ["cpu:0", "cpu:1"])
def test_a_plan_of_a_partition_is_as_any_other(device: str, tmp_path: Path) -> None:
    x = semel.Tensor.input("x", (4, 8), "float32")
    y = (x @ np.eye(8, dtype=np.float32) + 1).relu()
    data = np.linspace(-2, 2, 32, dtype=np.float32).reshape(4, 8)
    plan = y.prepare(device=device)
    assert plan.device == device
    assert {buffer.device for buffer in plan.buffers} == {device}
    np.testing.assert_array_equal(plan(x=data), y.prepare()(x=data))
    plan.save(tmp_path / "plan")
    again = semel.load_plan(tmp_path / "plan")
    assert again.device == device
    np.testing.assert_array_equal(again(x=data), plan(x=data))


def test_code_is_in_memory_once_for_all_parts() -> None:
    x = semel.Tensor.input("x", (5, 7), "float32")
    y = (x * 3).exp().sum(-1)
    plans = [y.prepare(device=device) for device in ("cpu", "cpu:0", "cpu:1")]
    kernels = [plan.prepared_ops[0] for plan in plans]
    assert len({kernel.kernel.address for kernel in kernels}) == 1  # type: ignore[union-attr]


_WORKERS = """
import os, sys, time
from tests.plan.build import Sketch
from tests.plan.kernels import TILE
from semel.runtime.device import find_device

s = Sketch(64 * TILE, device="cpu:{part}")
s.op("who", "x", "out")
plan = s.build("out", threads=2)
before = set(os.listdir("/proc/self/task"))
until = time.monotonic() + 100
plan.execute()
while 1 not in plan.output_buffer.numpy():
    assert time.monotonic() < until, "no worker helped"
    time.sleep(0.01)
    plan.execute()
workers = [int(t) for t in set(os.listdir("/proc/self/task")) - before]
assert len(workers) == 1 == find_device("cpu:{part}").pool().num_workers, workers
assert find_device("cpu").pool().num_workers == 0
cpus = set(find_device("cpu:{part}").cpus)
assert os.sched_getaffinity(workers[0]) <= cpus, (os.sched_getaffinity(workers[0]), cpus)
"""


@pytest.mark.parametrize("part", [0, 1])
def test_workers_of_a_partition_stay_on_its_cores(part: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WORKERS.format(part=part)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")

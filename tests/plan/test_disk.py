"""Files as devices: bytes come back unchanged; what goes wrong is told, and nothing is lost."""

from __future__ import annotations

import errno
import gc
import os
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.forks import in_child

import semel
from semel import Buffer, DeviceRegistry, Tensor, UnifiedExecutor, Variable, config, load_plan
from semel.devices.disk import block_file as disk_file
from semel.devices.disk.backend import DiskDevice
from semel.errors import (
    CancelledError,
    DeviceError,
    GraphError,
    InputError,
    OutOfMemoryError,
    PlanError,
    UnsupportedError,
)
from semel.executor.transfer import PIECE_BYTES
from semel.ir.types import TensorType, as_dtype
from semel.plan.builder import ExecutionPlanBuilder
from semel.plan.rows import PreparedCopy
from semel.runtime import device as table
from semel.runtime.device import find_device
from semel.runtime.links import SyncStrategy, choose_strategy

BEFORE = b"what was here before"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "blocks.bin"
    made.write_bytes(BEFORE)
    return made


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies in many pieces, that do not end where buffers do."""
    monkeypatch.setattr(disk_file, "PIECE_BYTES", 1000)


def device_of(path: Path) -> DiskDevice:
    found = find_device(f"disk:{path}")
    assert isinstance(found, DiskDevice)
    return found


def numbers(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


# ---------------------------------------------------------------- memory


def test_buffers_keep_what_they_are_given(path: Path) -> None:
    buffers = [Buffer.empty((100, 7), "float32", f"disk:{path}") for _ in range(3)]
    assert not buffers[1].numpy().any()
    for seed, buffer in enumerate(buffers):
        buffer.copyin(numbers(100, 7, seed=seed))
    for seed, buffer in enumerate(buffers):
        np.testing.assert_array_equal(buffer.numpy(), numbers(100, 7, seed=seed))
        assert buffer.device == f"disk:{path}"


def test_what_was_in_the_file_stays_and_its_length_comes_back(path: Path) -> None:
    buffers = [Buffer.empty((5000,), "uint8", f"disk:{path}") for _ in range(3)]
    for buffer in buffers:
        buffer.copyin(np.full(5000, 255, np.uint8))
    assert path.read_bytes()[: len(BEFORE)] == BEFORE
    long = path.stat().st_size
    assert long > 3 * 5000
    del buffer
    del buffers[1]  # the gap is used again, and is zeros
    gc.collect()
    again = Buffer.empty((5000,), "uint8", f"disk:{path}")
    assert path.stat().st_size == long
    assert not again.numpy().any()
    del again, buffers
    gc.collect()
    assert path.read_bytes() == BEFORE


def test_views_and_part_writes(path: Path) -> None:
    whole = Buffer.empty((16,), "int32", f"disk:{path}")
    whole.view(16, 8).copyin(np.array([7, 8], np.int32))
    assert whole.numpy().tolist() == [0] * 4 + [7, 8] + [0] * 10


def test_a_file_of_somebody_else_is_read_where_it_lies(tmp_path: Path) -> None:
    data = numbers(64, 32)
    path = tmp_path / "weights.bin"
    path.write_bytes(b"head" + data.tobytes())
    found = Buffer.from_file(path, (64, 32), "float32", byte_offset=4)
    np.testing.assert_array_equal(found.numpy(), data)
    with pytest.raises(DeviceError, match=r"must lie within the file's 8196 bytes"):
        Buffer.from_file(path, (64, 32), "float32", byte_offset=5)
    with pytest.raises(InputError, match="there is no file"):
        Buffer.from_file(tmp_path / "none", (1,), "float32")
    assert not (tmp_path / "none").exists()


def test_a_file_that_holds_nothing_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new.bin"
    disk = f"disk:{path}"
    store = device_of(path)
    assert not path.exists(), "a device that is opened has nothing to keep yet"
    w = Tensor.input("w", (64, 64), device=disk)
    with pytest.raises(GraphError, match="only stores"):
        (w + 1).prepare()
    assert not path.exists()
    for _ in range(2):
        buffer = Buffer.empty((64,), "float32", disk)
        buffer.copyin(numbers(64))
        np.testing.assert_array_equal(buffer.numpy(), numbers(64))
        assert path.stat().st_size > 0
        del buffer
        gc.collect()
        assert not path.exists()

    def full(fd: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OutOfMemoryError, match=r"new\.bin"):
        store.allocate(100)
    assert not path.exists()


def test_a_released_block_is_read_by_nobody(path: Path) -> None:
    memory = device_of(path).allocate(100)
    memory.release()
    assert not memory.is_alive
    with pytest.raises(DeviceError, match="was released"):
        memory.copy_out(0, 10)


def test_a_file_is_not_looked_at_in_place(path: Path) -> None:
    with pytest.raises(DeviceError, match="cannot be looked at in place"):
        Buffer.empty((4,), "float32", f"disk:{path}").borrow().array()


# ---------------------------------------------------------------- plans


def layers(path: Path, count: int, size: int, rows: int = 4) -> Tensor:
    y = Tensor.input("x", (rows, size))
    for k in range(count):
        weight = Tensor.input(f"w{k}", (size, size), device=f"disk:{path}")
        y = (y @ weight.to("cpu")).relu()
    return y


def fed(count: int, size: int, rows: int = 4) -> dict[str, np.ndarray[Any, Any]]:
    weights = {f"w{k}": numbers(size, size, seed=k) / size**0.5 for k in range(count)}
    return {"x": numbers(rows, size, seed=99), **weights}


def in_memory(count: int, size: int, rows: int = 4) -> np.ndarray[Any, Any]:
    y = Tensor.input("x", (rows, size))
    for k in range(count):
        y = (y @ Tensor.input(f"w{k}", (size, size)).to("cpu")).relu()
    result: np.ndarray[Any, Any] = y.prepare()(**fed(count, size, rows))
    return result


@pytest.mark.usefixtures("small_pieces")
def test_weights_in_a_file_give_the_same_bits(path: Path) -> None:
    plan = layers(path, 5, 48).prepare()
    want = in_memory(5, 48)
    np.testing.assert_array_equal(plan(**fed(5, 48)), want)
    for _ in range(20):
        plan.execute()
        np.testing.assert_array_equal(plan.output_buffer.numpy(), want)


def test_copies_come_one_reader_early_into_room_for_two(path: Path) -> None:
    plan = layers(path, 5, 64).prepare()
    names = [op.name for op in plan.prepared_ops]
    assert names == ["copy", "copy"] + ["matmul_relu", "copy"] * 3 + ["matmul_relu"] * 2
    assert {(op.device, op.lane) for op in plan.prepared_ops if op.name == "copy"} == {
        (f"disk:{path}", "copy")
    }
    weight = 64 * 64 * 4
    assert 2 * weight <= plan.memory.devices["cpu"].arena_bytes < 3 * weight


def test_several_copies_for_one_reader_come_together(path: Path) -> None:
    x = Tensor.input("x", (4, 32))
    for k in range(3):
        w = Tensor.input(f"w{k}", (32, 32), device=f"disk:{path}").to("cpu")
        b = Tensor.input(f"b{k}", (32,), device=f"disk:{path}").to("cpu")
        x = (x @ w + b).relu()
    kinds = [op.kind for op in x.prepare().prepared_ops]
    assert kinds == ["copy"] * 4 + ["kernel"] + ["copy"] * 2 + ["kernel"] * 2


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_what_loops_and_branches_read_comes_before_them(path: Path, sign: float) -> None:
    def graph(where: str) -> Tensor:
        x = Tensor.input("x", (8, 8), device="cpu")
        w = [Tensor.input(f"w{k}", (8, 8), device=where).to("cpu") for k in range(4)]
        h = (x @ w[0]).relu()
        h = semel.while_loop(lambda r: r.sum() < 100.0, lambda r: (r @ w[1]).abs() + 1, h)
        h = semel.cond(h.sum() * sign > 0, lambda: h @ w[2], lambda: h - w[2])
        return h @ w[3]

    arrays = {"x": numbers(8, 8), **{f"w{k}": numbers(8, 8, seed=k) for k in range(4)}}
    plan = graph(f"disk:{path}").prepare()
    want = graph("cpu").prepare()(**arrays)
    np.testing.assert_array_equal(plan(**arrays), want)
    kinds = [type(op).__name__ for op in plan.prepared_ops]
    assert kinds[:3] == ["PreparedCopy", "PreparedCopy", "PreparedKernel"]


def test_results_go_to_a_file_and_stay_there(path: Path) -> None:
    x = Tensor.input("x", (4, 8))
    plan = (x * 2).to(f"disk:{path}").prepare()
    data = numbers(4, 8)
    np.testing.assert_array_equal(plan(x=data), data * 2)
    assert plan.output_buffer.device == f"disk:{path}"
    assert (data * 2).tobytes() in path.read_bytes()


def test_sizes_of_copies_follow_variables(path: Path) -> None:
    n = Variable("n", 1, 4000)
    x = Tensor.input("x", (n,), device=f"disk:{path}")
    plan = (x.to("cpu") + 1).prepare()
    for size in (4000, 3, 1000):
        data = numbers(size)
        np.testing.assert_array_equal(plan(x=data), data + 1)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("step", [400, -400, 4000])
def test_copies_inside_a_file_may_overlap(path: Path, step: int) -> None:
    memory = device_of(path).allocate(20_000)
    start, size = 6000, 5000
    kind = TensorType((size,), as_dtype("uint8", "test"))
    name = f"disk:{path}"
    source = Buffer.window(memory, start, size, kind, name)
    target = Buffer.window(memory, start + step, size, kind, name)
    data = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    source.copyin(data)
    builder = ExecutionPlanBuilder(name)
    builder.add_buffer(0, target)
    builder.add_buffer(1, source)
    builder.add_op(PreparedCopy(0, (0, 1)))
    builder.set_output_buffer(0)
    builder.build().execute()
    np.testing.assert_array_equal(target.numpy(), data)


def test_from_file_to_file_by_way_of_the_host(tmp_path: Path) -> None:
    one, two = (f"disk:{tmp_path / name}" for name in ("a", "b"))
    x = Tensor.input("x", (300,), device=one)
    plan = x.to(two).prepare()
    data = numbers(300)
    np.testing.assert_array_equal(plan(x=data), data)
    assert [op.device for op in plan.prepared_ops] == [one, two]


def test_files_reach_the_host_and_not_each_other(tmp_path: Path) -> None:
    one, two = (find_device(f"disk:{tmp_path / name}") for name in ("a", "b"))
    assert choose_strategy(one, find_device("cpu:1")) is SyncStrategy.PEER_TO_PEER
    assert choose_strategy(find_device("cpu"), one) is SyncStrategy.PEER_TO_PEER
    assert choose_strategy(one, two) is SyncStrategy.THROUGH_HOST


def test_nothing_is_computed_in_a_file(path: Path) -> None:
    x = Tensor.input("x", (4,), device=f"disk:{path}")
    with pytest.raises(GraphError, match=r"blocks.bin only stores .*test_disk.py"):
        (x + 1).to("cpu").prepare()
    with pytest.raises(UnsupportedError, match="stores and computes nothing"):
        (Tensor.input("x", (4,)) + 1).prepare(device=f"disk:{path}")


def test_weights_are_told_how_to_be_in_a_file(path: Path) -> None:
    x, disk = Tensor.input("x", (4, 4)), f"disk:{path}"
    hint = r'only stores.*Tensor.input\(name, shape, device="disk:'
    with pytest.raises(UnsupportedError, match=hint):
        (x @ Tensor.param("w", numbers(4, 4), device=disk).to("cpu")).prepare()
    with pytest.raises(UnsupportedError, match=hint):
        (x @ Tensor(numbers(4, 4)).to(disk).to("cpu")).prepare()


def random_graph(seed: int, disk: str | None) -> Tensor:
    """Inputs, sums and products on devices and in a file; all on one device without a `disk`."""
    rng = random.Random(seed)

    def place(device: str) -> str:
        return "cpu" if disk is None else device

    lie = ["cpu", "cpu:1", disk or "disk"]
    values = [Tensor.input(f"x{k}", (24, 24), device=place(rng.choice(lie))) for k in range(4)]
    for _ in range(12):
        where = place(rng.choice(["cpu", "cpu:1"]))
        one, other = (rng.choice(values[-6:]).to(where) for _ in range(2))
        made = one @ other * 0.1 if rng.random() < 0.5 else one - other
        values.append(made.to(place(lie[2])) if rng.random() < 0.3 else made)
    return values[-1].to("cpu")


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("seed", range(25))
def test_random_graphs_with_files_have_the_same_bits(path: Path, seed: int) -> None:
    arrays = {f"x{k}": numbers(24, 24, seed=k) for k in range(4)}
    near = random_graph(seed, None).prepare()
    names = [io.name for io in near.program.inputs]
    want = near(**{name: arrays[name] for name in names})
    with config.override(debug=frozenset({"jitter"})):
        plan = random_graph(seed, f"disk:{path}").prepare()
        for _ in range(3):
            np.testing.assert_array_equal(plan(**{name: arrays[name] for name in names}), want)


def test_transfers_of_an_executor_go_to_files_and_back(tmp_path: Path) -> None:
    one, two = (f"disk:{tmp_path / name}" for name in ("a", "b"))
    size = 3 * (1 << 20) // 4 + 5
    buffers = [Buffer.empty((size,), "float32", device) for device in ("cpu:0", one, two, "cpu:1")]
    buffers[0].copyin(numbers(size))
    with UnifiedExecutor() as executor:
        for device in ("cpu:0", "cpu:1", one, two):
            executor.add_device(device)
        for source, target in pairwise(buffers):
            executor.execute_transfer(source, target)
        executor.synchronize_all(timeout=60)
        told = [(record.strategy, record.staged_bytes) for record in executor.transfers]
    np.testing.assert_array_equal(buffers[3].numpy(), numbers(size))
    assert told == [
        (SyncStrategy.PEER_TO_PEER, 0),
        (SyncStrategy.THROUGH_HOST, 1 << 20),
        (SyncStrategy.PEER_TO_PEER, 0),
    ]


def test_what_is_staged_is_one_piece_that_is_used_again(tmp_path: Path) -> None:
    """However large the buffers, and however many copies there are."""
    one, two = (f"disk:{tmp_path / name}" for name in ("a", "b"))
    with UnifiedExecutor() as executor:
        contexts = [executor.add_device(device) for device in ("cpu:0", one, two)]
        pieces = []
        for size in (PIECE_BYTES + 1, 3 * PIECE_BYTES, 5, 2 * PIECE_BYTES):
            first, last = (Buffer.empty((size,), "uint8", device) for device in (one, two))
            first.copyin(np.arange(size, dtype=np.uint8))
            executor.execute_transfer(first, last).wait(100)
            np.testing.assert_array_equal(last.numpy(), np.arange(size, dtype=np.uint8))
            pieces.append(contexts[2].staging._bytes)
        assert all(piece is pieces[0] for piece in pieces) and pieces[0].size == PIECE_BYTES
        assert [context.staging._bytes.size for context in contexts[:2]] == [0, 0]


def test_clones_and_saved_plans(path: Path, tmp_path: Path) -> None:
    plan = layers(path, 2, 32).prepare()
    want = plan(**fed(2, 32))
    clone = plan.clone()
    np.testing.assert_array_equal(clone(**fed(2, 32)), want)
    plan.save(tmp_path / "plan.semel")
    loaded = load_plan(tmp_path / "plan.semel", trust=True)
    np.testing.assert_array_equal(loaded(**fed(2, 32)), want)


@pytest.mark.parametrize("is_image", [False, True])
def test_a_stranger_names_no_files(path: Path, tmp_path: Path, is_image: bool) -> None:
    saved = tmp_path / "plan.semel"
    if is_image:
        builder = ExecutionPlanBuilder(f"disk:{path}")
        builder.add_buffer(0, Buffer.empty((4,), "float32"))
        builder.add_buffer(1, Buffer.empty((4,), "float32", f"disk:{path}"))
        builder.add_op(PreparedCopy(0, (0, 1)))
        builder.set_output_buffer(0)
        builder.build().save(saved)
    else:
        layers(path, 1, 8).prepare().save(saved)
    table._open.pop(f"disk:{path}")
    gc.collect()
    path.unlink(missing_ok=True)
    with pytest.raises(PlanError, match=r"must not name files, it names disk:.*blocks.bin"):
        load_plan(saved, trust=False)
    assert not path.exists()


def test_a_profile_counts_all_bytes_of_a_copy(path: Path) -> None:
    plan = layers(path, 2, 512).prepare()
    plan(**fed(2, 512))
    copies = [p for p in plan.execute_profiled() if p.kind == "copy"]
    assert [p.bytes for p in copies] == [2 * 512 * 512 * 4] * 2
    assert all(p.elapsed > 0 for p in copies)


# ---------------------------------------------------------------- trouble


@pytest.mark.parametrize(
    ("written", "error", "match"),
    [
        ("disk:", UnsupportedError, "needs the path of a file"),
        ("disk", UnsupportedError, "needs the path of a file"),
        ("disk:a\0b", UnsupportedError, "needs the path of a file"),
        ("disk:{tmp}/none/file", DeviceError, r"There is no folder .*/none"),
        ("disk:{tmp}", DeviceError, "cannot be opened: Is a directory"),
        ("disk:/dev/null", DeviceError, "must be a file, and is something else"),
        ("disk:{tmp}/" + "a" * 300, DeviceError, "cannot be opened: File name too long"),
    ],
)
def test_paths_that_are_none(
    written: str, error: type[Exception], match: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=match):
        Buffer.empty((4,), "float32", written.format(tmp=tmp_path))


def test_files_are_there_for_a_registry(path: Path) -> None:
    registry = DeviceRegistry()
    assert f"disk:{path}" in registry
    assert "disk" in registry.kinds
    assert all(spec.kind != "disk" for spec in registry.devices())  # nobody lists files


def test_a_file_that_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "fixed.bin"
    path.write_bytes(np.arange(4, dtype=np.int32).tobytes())
    really_open = os.open

    def refuse(name: Any, flags: int, *rest: Any, **more: Any) -> int:  # root may write anything
        if str(name) == str(path) and flags & os.O_RDWR:
            raise PermissionError(13, "Permission denied")
        return really_open(name, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    found = Buffer.from_file(path, (4,), "int32")
    assert found.numpy().tolist() == [0, 1, 2, 3]
    with pytest.raises(DeviceError, match=r"fixed.bin cannot be written, it can be read"):
        found.copyin(np.zeros(4, np.int32))
    with pytest.raises(DeviceError, match="so nothing can be put there"):
        Buffer.empty((4,), "int32", f"disk:{path}")
    assert found.numpy().tolist() == [0, 1, 2, 3]


def test_a_full_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Buffer.empty((8,), "int32", f"disk:{path}")
    kept.copyin(np.arange(8, dtype=np.int32))
    size = path.stat().st_size

    def full(fd: int, start: int, count: int) -> None:
        os.ftruncate(fd, start + count // 2)  # it got so far
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OutOfMemoryError, match=r"disk:.*needs 4,000,000 bytes, .* are free"):
            Buffer.empty((1_000_000,), "int32", f"disk:{path}")
    assert path.stat().st_size == size
    assert kept.numpy().tolist() == list(range(8))
    assert not Buffer.empty((1000,), "int32", f"disk:{path}").numpy().any()


def test_a_real_limit_of_size_is_an_error_not_a_signal(tmp_path: Path) -> None:
    code = f"""
import resource
from semel import Buffer
from semel.errors import OutOfMemoryError
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
try:
    Buffer.empty((1 << 20,), "uint8", "disk:{tmp_path}/f")
except OutOfMemoryError as error:
    print("refused", Buffer.empty((1 << 10,), "uint8", "disk:{tmp_path}/f").numpy().sum())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout.strip() == "refused 0", done.stderr


def test_a_file_that_became_shorter_fails_the_run_and_nothing_else(path: Path) -> None:
    plan = layers(path, 3, 64).prepare()
    given = fed(3, 64)
    want = plan(**given)
    whole = path.read_bytes()
    os.truncate(path, 4096)
    with pytest.raises(DeviceError, match=r"somebody has made it shorter") as caught:
        plan.execute()
    told = vars(caught.value)
    assert told["device"] == f"disk:{path}" and plan.prepared_ops[told["row"]].name == "copy"
    assert "test_disk.py" in told["origin"]
    with UnifiedExecutor() as executor, pytest.raises(DeviceError, match=r"\[copy .* -> cpu\]"):
        executor.add_device(f"disk:{path}")
        executor.add_device("cpu")
        far = next(buffer for buffer in reversed(plan.buffers) if buffer.device != "cpu")
        executor.execute_transfer(far, Buffer.empty((64, 64), "float32")).wait(100)
    other = (Tensor.input("x", (4,)) + 1).prepare()
    assert other(x=np.zeros(4, np.float32)).tolist() == [1, 1, 1, 1]
    path.write_bytes(whole)
    plan.execute()
    np.testing.assert_array_equal(plan.output_buffer.numpy(), want)


def test_a_read_that_fails_is_told_with_its_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = layers(path, 3, 64).prepare()
    want = plan(**fed(3, 64))

    def broken(*_: Any) -> int:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", broken)
        for _ in range(3):
            with pytest.raises(DeviceError, match=r"cannot read .*blocks.bin: Input/output error"):
                plan.execute()
    plan.execute()
    np.testing.assert_array_equal(plan.output_buffer.numpy(), want)


@pytest.mark.usefixtures("small_pieces")
def test_a_long_copy_can_be_cancelled_between_pieces(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, data = f"disk:{path}", numbers(10_000)
    source, target = Buffer.empty((10_000,), "float32", name), Buffer.empty((10_000,), "float32")
    source.copyin(data)
    builder = ExecutionPlanBuilder(name)
    for index, buffer in enumerate((target, source)):
        builder.add_buffer(index, buffer)
    builder.add_op(PreparedCopy(0, (0, 1)))
    builder.set_output_buffer(0)
    plan = builder.build()
    really_read, reads = os.preadv, list[int]()

    def read(fd: int, to: Any, start: int) -> int:
        reads.append(start)
        if len(reads) == 3:
            plan.cancel()
        return really_read(fd, to, start)

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", read)
        with pytest.raises(CancelledError, match="cancel"):
            plan.execute()
    assert len(reads) == 3
    plan.execute()
    np.testing.assert_array_equal(target.numpy(), data)


def test_two_processes_do_not_put_blocks_into_one_file(path: Path) -> None:
    held = Buffer.empty((4,), "int32", f"disk:{path}")
    held.copyin(np.arange(4, dtype=np.int32))
    code = f"""
from semel import Buffer
from semel.errors import DeviceError
try:
    Buffer.empty((4,), "int32", "disk:{path}")
except DeviceError as error:
    print(error)
print(Buffer.from_file("{path}", (4,), "uint8").numpy().tobytes().decode())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False
    )
    assert "another process keeps its blocks" in done.stdout, done.stderr
    assert done.stdout.endswith(BEFORE[:4].decode() + "\n")
    assert held.numpy().tolist() == [0, 1, 2, 3]


def test_the_child_of_a_fork_takes_no_room_from_its_parent(path: Path) -> None:
    held = Buffer.empty((4,), "int32", f"disk:{path}")
    held.copyin(np.arange(4, dtype=np.int32))
    before = path.stat().st_size

    def child() -> None:
        assert held.numpy().tolist() == [0, 1, 2, 3]
        with pytest.raises(DeviceError, match="was opened before a fork"):
            Buffer.empty((4,), "int32", f"disk:{path}")

    in_child(child)
    assert path.stat().st_size == before
    assert held.numpy().tolist() == [0, 1, 2, 3]

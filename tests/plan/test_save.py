"""Plan files: what comes back, what is refused, and what a load does not do."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import semel
from semel import Tensor, Variable, loading
from semel.config import override
from semel.devices.cpu import backend
from semel.devices.cpu.toolchain import host_target
from semel.errors import IndexRangeError, PlanFileError, RecompileError, SemelError
from semel.ir.signature import BufferSpec, CheckInfo, KernelSignature
from semel.ir.target import Target, target_for
from semel.plan.file.format import FORMAT, PAGE_BYTES, PageChecksum, Prefix
from semel.plan.file.write import PlanImage, Storage
from semel.plan.instantiate import instantiate
from semel.plan.plan import ExecutionPlan
from semel.plan.program import (
    ExpertLayer,
    NodeNote,
    PlanIO,
    PlanVariable,
    Program,
    ProgramState,
    ProgramValue,
)
from semel.plan.row import KernelNotes, RuntimeVar
from semel.plan.rows import (
    PreparedBranch,
    PreparedBufferView,
    PreparedCopy,
    PreparedCustomFunction,
    PreparedKernel,
    PreparedLoop,
    PreparedRebind,
    PreparedSignal,
    PreparedWait,
)
from semel.plan.weights import Formula, Param, Recipe
from semel.runtime import job
from semel.runtime.buffer import Array
from semel.runtime.device import DeviceCode, find_device
from semel.runtime.kernel import CachedKernel

ROWS = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
INDICES = np.array([4, 0, 2])
WEIGHTS = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
TABLE = np.arange(15, dtype=np.float16).reshape(5, 3)


def small_plan() -> ExecutionPlan:
    """softmax(x @ w) + table[i]: two constants, a variable, a check, two kernels or more."""
    n = Variable("n", 1, 16)
    x, i = Tensor.input("x", (n, 4), "float32"), Tensor.input("i", (n,), "int64")
    taken = semel.take(Tensor(TABLE), i, axis=0).cast("float32")
    out = semel.softmax(x @ Tensor(WEIGHTS), axis=-1) + taken
    return semel.prepare({"out": out}, threads=1)


def expected() -> Array:
    powers = np.exp(ROWS @ WEIGHTS)
    return powers / powers.sum(-1, keepdims=True) + TABLE[INDICES].astype(np.float32)


def run(plan: ExecutionPlan) -> Array:
    result: Array = plan(x=ROWS, i=INDICES)
    return result


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with the small plan."""
    place = tmp_path / "small.plan"
    small_plan().save(place)
    return place


def header_of(data: bytes) -> Any:
    _, _, _, size, *_ = Prefix.LAYOUT.unpack_from(data)
    return json.loads(data[64 : 64 + size])


def resigned(data: bytes, change: Callable[[Any], None] | None = None, **words: Any) -> bytes:
    """The file with its header or prefix changed, and all checksums right again."""
    _, *values, _ = Prefix.LAYOUT.unpack_from(data)
    prefix = dict(zip([f.name for f in fields(Prefix)], values, strict=True))
    header = header_of(data)
    if change is not None:
        change(header)
    text = json.dumps(header).encode()
    blobs = data[64 + prefix["header_bytes"] : prefix["constants_offset"]]
    constants = data[prefix["constants_offset"] :]
    front = text + blobs
    front += bytes(-(64 + len(front)) % PAGE_BYTES)
    prefix |= {
        "header_bytes": len(text),
        "constants_offset": 64 + len(front),
        "file_bytes": 64 + len(front) + len(constants),
        "front_checksum": zlib.crc32(front),
    }
    return Prefix(**{**prefix, **words}).pack() + front + constants


def refused(data: bytes, message: str) -> PlanFileError:
    with pytest.raises(PlanFileError, match=message) as caught:
        loading.plan_from_bytes(data)
    return caught.value


# ---------------------------------------------------------------- what comes back


def test_a_loaded_plan_gives_the_same_bits(path: Path) -> None:
    loaded = semel.load_plan(path)
    assert np.array_equal(run(loaded), run(small_plan()))
    np.testing.assert_allclose(run(loaded), expected(), rtol=1e-5)
    assert tuple(loaded.inputs) == ("x", "i")
    assert loaded.compile_count == 0


def test_a_loaded_plan_is_a_whole_plan(path: Path) -> None:
    """Variables, bounds, checks, text, origins and log are those of the saved one."""
    made, loaded = small_plan(), semel.load_plan(path, threads=1)
    assert loaded.variables == made.variables
    assert loaded.memory.weights_bytes == made.memory.weights_bytes
    assert [k.signature for k in loaded.kernels] == [k.signature for k in made.kernels]
    assert [k.text for k in loaded.kernels] == [k.text for k in made.kernels]
    assert len(loaded.program.log) == len(made.program.log) > 0
    notes = [op.notes for op in loaded.prepared_kernels]
    assert notes == [op.notes for op in made.prepared_kernels]
    assert any(n.nodes for n in notes) and any(n.reason for n in notes)
    assert any(n.choice for n in notes) and any(n.check_origins for n in notes)
    # A node that another test wrote too, and still holds, has that place among its origins.
    origins = [op.origins for op in loaded.prepared_kernels]
    assert all(any("test_save.py" in line for line in lines) for lines in origins if lines)
    assert any(origins)
    with pytest.raises(IndexRangeError, match=r"\[-5, 5\), got 5"):
        loaded(x=ROWS, i=np.array([0, 5, 1]))
    with pytest.raises(semel.InputError, match="n=17"):
        loaded(x=np.ones((17, 4), np.float32), i=np.zeros(17, np.int64))


def test_guards_are_checked_after_a_load(tmp_path: Path) -> None:
    n, m = Variable("n", 1, 8), Variable("m", 1, 8)
    x, y = Tensor.input("x", (n,), "float32"), Tensor.input("y", (m,), "float32")
    (x + y).prepare().save(tmp_path / "sum.plan")
    loaded = semel.load_plan(tmp_path / "sum.plan")
    assert loaded(x=np.ones(3, np.float32), y=np.ones(3, np.float32)).tolist() == [2, 2, 2]
    with pytest.raises(semel.VariableError, match=r"^\[add\]"):
        loaded(x=np.ones(3, np.float32), y=np.ones(4, np.float32))


def test_a_loaded_plan_grows(tmp_path: Path) -> None:
    n = Variable("n", 1)
    x = Tensor.input("x", (n, 4), "float32")
    (x @ Tensor(WEIGHTS)).prepare().save(tmp_path / "grow.plan")
    loaded = semel.load_plan(tmp_path / "grow.plan")
    rows = np.random.default_rng(0).standard_normal((1000, 4), dtype=np.float32)
    np.testing.assert_allclose(loaded(x=rows), rows @ WEIGHTS, rtol=1e-4, atol=1e-5)
    assert loaded.growths == 1


def test_every_dtype_and_odd_shapes_come_back(tmp_path: Path) -> None:
    arrays: dict[str, Array] = {
        d.name: np.arange(1, 8).astype(d.numpy) for d in semel.ir.types.DTYPES
    }
    arrays |= {"scalar": np.array(3, np.float32), "empty": np.zeros((0, 3), np.float32)}
    plan = semel.prepare({n: Tensor(np.asarray(a)) for n, a in arrays.items()})
    plan.save(tmp_path / "dtypes.plan")
    results = semel.load_plan(tmp_path / "dtypes.plan")()
    for array, result in zip(arrays.values(), results, strict=True):
        assert np.array_equal(array, result) and np.asarray(array).dtype == result.dtype


def test_a_plan_without_constants_comes_back(tmp_path: Path) -> None:
    (Tensor.input("x", (3,), "float32") * 2).prepare().save(tmp_path / "double.plan")
    assert semel.load_plan(tmp_path / "double.plan")(x=np.ones(3, np.float32)).tolist() == [2, 2, 2]


def test_same_plan_same_bytes_and_a_loaded_plan_saves_its_file(path: Path) -> None:
    again, third = path.with_name("again.plan"), path.with_name("third.plan")
    semel.load_plan(path).save(again)
    semel.load_plan(again).save(third)
    assert path.read_bytes() == again.read_bytes() == third.read_bytes()


def test_a_load_needs_no_compiler(path: Path) -> None:
    code = (
        "import json, sys, semel, numpy as np\n"
        "plan = semel.load_plan(sys.argv[1])\n"
        "out = plan(x=np.ones((1, 4), np.float32), i=np.array([0]))\n"
        "print(json.dumps(['llvmlite' in sys.modules, plan.compile_count, out.shape]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        check=True,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "SEMEL_CACHE": "0"},
    )
    assert json.loads(done.stdout) == [False, 0, [1, 3]]


def test_code_is_loaded_once(path: Path) -> None:
    first, second = semel.load_plan(path), semel.load_plan(path)
    assert [k.address for k in first.kernels] == [k.address for k in second.kernels]


def test_the_memory_limit_holds_for_a_load(path: Path) -> None:
    with pytest.raises(semel.OutOfMemoryError, match="100 are free"):
        semel.load_plan(path, memory_limit=100)


#: Of each record: the fields that a file holds, and those that belong to a process.
FIELDS: dict[type, tuple[str, str]] = {
    Program: (
        "name nodes values rows inputs outputs results kept guards variables log device after "
        "run_order alias_ids states params recipes experts placement",
        "stage_seconds compile_count max_capacity compile_for machines",
    ),
    # Ids of nodes mean something in plans built by hand only.
    ProgramValue: ("name type place weight first last node_ids device", ""),
    Param: ("name type version raw is_kept is_missing", "id"),
    Recipe: ("value sources formula sizes", "params"),  # which its sources say
    Formula: ("rows types num_sources name", ""),
    CachedKernel: ("signature entry_point code text form target", "address owner"),
    KernelSignature: (
        "name buffers variables tiles scratch_bytes checks flops bytes host_parallel_safe",
        "",
    ),
    BufferSpec: ("name dtype access size tile_stride", ""),
    CheckInfo: ("op what size unsigned", "origin"),  # the origin is an op's, not the kernel's
    PlanImage: ("program buffers storages values shapes marks", ""),
    Storage: ("size_bytes is_own data device", "id"),
    ProgramState: ("name index other axis cursor is_append why rows", ""),
    PlanVariable: ("variable initial capacity next", "limit"),  # which a rebind says
    PlanIO: ("name index type default part", ""),
    RuntimeVar: ("name min_val max_val", ""),
    PreparedKernel: (
        "id ast kernel device buffer_indices output_indices vals fixedvars dependencies "
        "runtime_vars notes lane",
        "buffer_ptrs buffer_ids",
    ),
    KernelNotes: ("check_origins nodes reason choice name template where", ""),
    NodeNote: ("node became ops origin", ""),
    ExpertLayer: ("ids num_experts stacks", ""),
    PreparedCopy: ("id buffer_indices dependencies device lane size", ""),
    PreparedBufferView: ("id buffer_indices byte_offset byte_size dependencies device lane", ""),
    PreparedBranch: ("id buffer_indices then orelse dependencies device lane", ""),
    PreparedLoop: ("id counter trip body test dependencies buffer_indices device lane", ""),
    PreparedSignal: ("id signal value dependencies buffer_indices device lane", ""),
    PreparedWait: ("id signal value dependencies buffer_indices device lane", ""),
    PreparedRebind: ("id variables buffer_indices limits guards dependencies device lane", ""),
    PreparedCustomFunction: (
        "id kind attrs buffer_indices fixedvars dependencies runtime_vars device lane",
        "",
    ),
}


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: kind.__name__)
def test_no_field_is_forgotten(kind: type) -> None:
    """A new field is saved by plan.save, read by load and listed here, or left out on purpose.

    That those of plans built by hand come back is shown in test_save_by_hand.
    """
    saved, left_out = (set(names.split()) for names in FIELDS[kind])
    assert not saved & left_out
    assert {f.name for f in fields(kind)} == saved | left_out


# ---------------------------------------------------------------- constants


def test_constants_are_shared_and_read_only(tmp_path: Path) -> None:
    """A second process that loads the file has no pages of its own for the constants."""
    weights = np.random.default_rng(0).standard_normal((512, 1024), dtype=np.float32)
    plan = (Tensor.input("x", (1, 512), "float32") @ Tensor(weights)).prepare()
    place = tmp_path / "weights.plan"
    plan.save(place)
    here = semel.load_plan(place)
    code = (
        "import sys, semel, numpy as np\n"
        "plan = semel.load_plan(sys.argv[1])\n"
        "plan(x=np.ones((1, 512), np.float32))\n"
        "print(open('/proc/self/smaps').read())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(place)],
        check=True,
        capture_output=True,
        text=True,
        timeout=240,
    )
    head, _, rest = done.stdout.partition(str(place))
    assert head.rsplit("\n", 1)[-1].split()[1].startswith("r--")
    numbers = dict(line.split(":") for line in rest.splitlines()[1:23])
    in_kb = {name: int(value.split()[0]) for name, value in numbers.items() if "kB" in value}
    assert in_kb["Shared_Clean"] * 1024 >= weights.nbytes
    assert in_kb["Private_Dirty"] == in_kb["Shared_Dirty"] == in_kb["Anonymous"] == 0
    (value,) = (v for v in here.program.values if v.weight is not None)
    assert value.weight is not None and not value.weight.array.flags.writeable


def test_constants_lie_on_cache_lines(path: Path) -> None:
    loaded = semel.load_plan(path)
    assert loaded.program is not None
    constants = [
        b
        for b, v in zip(loaded.buffers, loaded.program.values, strict=True)
        if v.weight is not None
    ]
    assert len(constants) == 2
    assert all(b.address % 64 == 0 for b in constants)


# ---------------------------------------------------------------- what is refused


def test_a_flipped_bit_anywhere_is_refused(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for at in [*range(64), *range(64, len(data), 11), len(data) - 1]:
        data[at] ^= 1 << at % 8
        with pytest.raises(PlanFileError, match=r"^\[load_plan\]"):
            loading.plan_from_bytes(bytes(data))
        data[at] ^= 1 << at % 8
    assert np.array_equal(run(loading.plan_from_bytes(bytes(data))), run(semel.load_plan(path)))


def test_exchanged_and_zeroed_pages_of_constants_are_noticed() -> None:
    pages = np.random.default_rng(0).integers(0, 256, (4, PAGE_BYTES), dtype=np.uint8)

    def value(array: Array) -> int:
        checksum = PageChecksum()
        checksum.update(np.ascontiguousarray(array).reshape(-1))
        return checksum.value

    exchanged, zeroed, moved = pages[[1, 0, 2, 3]], pages.copy(), np.roll(pages, 8, axis=1)
    zeroed[2] = 0
    assert len({value(a) for a in (pages, exchanged, zeroed, moved)}) == 4


def test_damaged_constants_pass_only_without_verify(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(PlanFileError, match=r"damaged.*constants"):
        semel.load_plan(path)
    semel.load_plan(path, verify=False)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file whose constants are summed up on a thread."""
    weights = np.random.default_rng(3).standard_normal((1024, 1024), np.float32)
    place = tmp_path_factory.mktemp("large") / "plan"
    (Tensor.input("x", (2, 1024)) @ weights).prepare().save(place)
    return place.read_bytes()


@pytest.mark.parametrize("at", [-1, -(1 << 20), -(4 << 20)])
def test_damage_of_large_constants_is_found_before_a_plan_is_there(
    large: bytes, tmp_path: Path, at: int
) -> None:
    place = tmp_path / "plan"
    place.write_bytes(large)
    x = np.ones((2, 1024), np.float32)
    want = semel.load_plan(place)(x=x)
    assert loading.plan_from_bytes(large)(x=x).tobytes() == want.tobytes()
    data = bytearray(large)
    data[at] ^= 1
    place.unlink()
    place.write_bytes(data)
    with pytest.raises(PlanFileError, match=r"damaged.*constants"):
        semel.load_plan(place)
    with pytest.raises(PlanFileError, match=r"damaged.*constants"):
        loading.plan_from_bytes(bytes(data))
    semel.load_plan(place, verify=False)


def test_of_a_damaged_file_the_damage_is_told_whatever_else_is_found(
    large: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "plan"
    place.write_bytes(large)

    def fail(*_: object, **__: object) -> None:
        raise ValueError("made of what is damaged")

    monkeypatch.setattr(loading, "read_program", fail)
    with pytest.raises(PlanFileError, match="made of what is damaged"):
        semel.load_plan(place)
    place.unlink()
    place.write_bytes(large[:-1] + bytes([large[-1] ^ 1]))
    with pytest.raises(PlanFileError, match=r"damaged.*constants"):
        semel.load_plan(place)


def test_without_threads_constants_are_summed_up_all_the_same(
    large: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(job, "start_new_thread", refuse)
    loading.plan_from_bytes(large)
    with pytest.raises(PlanFileError, match=r"damaged.*constants"):
        loading.plan_from_bytes(large[:-1] + bytes([large[-1] ^ 1]))


@pytest.mark.parametrize("size", [0, 5, 8, 63, 64, 1000, -4096, -1])
def test_a_cut_off_file_is_refused(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(PlanFileError, match=r"cut off|must start with") as caught:
        semel.load_plan(path)
    assert str(path) in str(caught.value)


def test_another_kind_of_file_is_refused(path: Path) -> None:
    path.write_text("print('hello')\n" * 100)
    with pytest.raises(PlanFileError, match="must start with"):
        semel.load_plan(path)


def test_a_missing_file_is_a_plan_file_error(tmp_path: Path) -> None:
    with pytest.raises(PlanFileError, match="No such file"):
        semel.load_plan(tmp_path / "none.plan")


@pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1])
def test_another_format_is_refused(path: Path, other: int) -> None:
    data = resigned(path.read_bytes(), format=other)
    assert f"got {other}" in str(refused(data, "another version"))


def test_code_of_another_abi_is_refused_and_can_be_rebuilt(path: Path) -> None:
    data = resigned(path.read_bytes(), abi=99)
    refused(data, r"kernel ABI 1, got 99.*recompile=True")
    path.write_bytes(data)
    np.testing.assert_allclose(run(semel.load_plan(path, recompile=True)), expected(), rtol=1e-5)


def test_missing_cpu_features_are_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weaker = _without("sse4.2", "popcnt")
    _pretend(monkeypatch, weaker)
    with pytest.raises(PlanFileError, match=r"popcnt, sse4\.2.*recompile=True") as caught:
        semel.load_plan(path)
    assert caught.value.missing == ("popcnt", "sse4.2")  # type: ignore[attr-defined]


def test_code_for_another_architecture_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pretend(monkeypatch, target_for("aarch64", ("neon",)))
    with pytest.raises(PlanFileError, match=r"code must be for aarch64, got x86_64"):
        semel.load_plan(path)


def _break(path: str, value: Any) -> Callable[[Any], None]:
    *where, last = [int(k) if k.isdigit() else k for k in path.split(".")]

    def change(header: Any) -> None:
        for key in where:
            header = header[key]
        header[last] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _break("program.rows.0.kernel", 9),
        _break("program.rows.0.kind", "python"),
        _break("program.rows", None),
        _break("program.values.0.type.0", "float31"),
        _break("program.values.3.offset", 1 << 40),
        _break("program.values.3.offset", -64),
        _break("program.values.3.offset", 3),
        _break("program.inputs.0.1", 77),
        _break("dims.0.1", "not a name"),
        _break("dims.1", ["sum", [1, [5]]]),
        _break("dims.1", ["eval", "1"]),
        _break("kernels.0.code", [0, 1 << 40]),
        _break("kernels.0.code", [-8, 8]),
        _break("kernels.0.entry", "nobody"),
        _break("kernels.0.target", 4),
        _break("targets.0.features", "avx"),
    ],
)
def test_a_malformed_header_is_refused(path: Path, change: Callable[[Any], None]) -> None:
    refused(resigned(path.read_bytes(), change), "bytes: ")


def test_mutilated_headers_never_escape_the_error_family(path: Path) -> None:
    """Whatever stands in the records, a load works or raises an error of ours."""
    data, chance = path.read_bytes(), random.Random(0)
    odd: list[Any] = [None, -1, 3, 1 << 70, "x", [], {}, [[0]], True, 0.5]

    def mutilate(node: Any) -> None:
        while isinstance(node, (list, dict)) and node:
            key = chance.choice(list(node) if isinstance(node, dict) else range(len(node)))
            if chance.random() < 0.4 or not isinstance(node[key], (list, dict)):
                node[key] = chance.choice(odd)
                return
            node = node[key]

    outcomes = set()
    for _ in range(300):
        try:
            loading.plan_from_bytes(resigned(data, mutilate))
            outcomes.add("loaded")
        except SemelError:
            outcomes.add("refused")
    assert outcomes == {"loaded", "refused"}


# ---------------------------------------------------------------- rebuilding


def _pretend(monkeypatch: pytest.MonkeyPatch, target: Target) -> None:
    """Let this machine be another one."""
    there = replace(backend.BACKEND, target=lambda: target)
    monkeypatch.setattr(backend, "BACKEND", there)


def _without(*names: str) -> Target:
    host = host_target()
    return target_for(host.arch, tuple(f for f in host.features if f not in names))


_AVX512 = tuple(f for f in host_target().features if f.startswith("avx512"))


@pytest.mark.parametrize("missing", [(), _AVX512], ids=["host", "no avx512"])
def test_kernels_are_rebuilt_for_another_cpu(
    path: Path, monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...]
) -> None:
    target = _without(*missing)
    _pretend(monkeypatch, target)
    with override(target="native"):
        loaded = semel.load_plan(path, recompile=True)
    np.testing.assert_allclose(run(loaded), expected(), rtol=1e-5)
    assert loaded.compile_count == 1
    found = {k.target.key for k in loaded.kernels if k.target is not None}
    assert found == {target.key}


def test_without_trust_no_code_of_the_file_runs(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poison(header: Any) -> None:
        for kernel in header["kernels"]:
            kernel["code"] = kernel["text"]  # not code at all
            kernel["signature"] = None
        header["runner"]["code"] = kernel["text"]

    offered: list[DeviceCode] = []
    monkeypatch.setattr(find_device("cpu"), "offer_code", offered.append)
    path.write_bytes(resigned(path.read_bytes(), poison))
    with pytest.raises(PlanFileError, match="its records must be those of a plan"):
        semel.load_plan(path)
    assert offered
    offered.clear()
    np.testing.assert_allclose(run(semel.load_plan(path, trust=False)), expected(), rtol=1e-5)
    assert not offered


def test_a_kernel_form_that_makes_no_sense_is_refused(path: Path) -> None:
    data = path.read_bytes()
    form = header_of(data)["kernels"][0]["form"]
    _, _, _, size, *_ = Prefix.LAYOUT.unpack_from(data)
    start = 64 + size + form[0]
    kernel = data[start : start + form[1]]
    assert kernel.count(b'"load"') > 0
    path.write_bytes(resigned(data.replace(kernel, kernel.replace(b'"load"', b'"jump"'))))
    with pytest.raises(PlanFileError, match="known op"):
        semel.load_plan(path, trust=False)


def test_rebuilding_inside_no_recompiles_is_an_error(path: Path) -> None:
    with semel.no_recompiles():
        semel.load_plan(path)
        with pytest.raises(RecompileError, match=r"small\.plan would be compiled"):
            semel.load_plan(path, recompile=True)


# ---------------------------------------------------------------- writing


@pytest.mark.parametrize("place", ["missing/a.plan", "."])
def test_an_unwritable_place_leaves_nothing_behind(tmp_path: Path, place: str) -> None:
    with pytest.raises(PlanFileError, match="writable"):
        small_plan().save(tmp_path / place)
    assert not list(tmp_path.iterdir())
    assert not list(tmp_path.parent.glob(".*.tmp"))


def test_a_failed_write_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()

    def no_space(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(PlanFileError, match="No space left"):
        (Tensor.input("x", (3,), "float32") * 2).prepare().save(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_plan_survives_the_replacement_of_its_file(path: Path) -> None:
    loaded = semel.load_plan(path)
    (Tensor.input("x", (3,), "float32") * 2).prepare().save(path)
    np.testing.assert_allclose(run(loaded), expected(), rtol=1e-5)


# ---------------------------------------------------------------- pickling


def _work(plan: ExecutionPlan) -> tuple[Array, int, bool]:
    return run(plan), plan.compile_count, "llvmlite" in sys.modules


@pytest.mark.slow
def test_a_worker_process_executes_a_pickled_plan() -> None:
    plan = small_plan()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        result, compile_count, has_compiler = pool.apply(_work, (plan,))
    assert np.array_equal(result, run(plan))
    assert (compile_count, has_compiler) == (0, False)


_PROGRAM = """
import pickle, sys
import numpy as np
from semel.plan.instantiate import instantiate
with open(sys.argv[1], "rb") as file:
    program = pickle.load(file)
rows, indices = np.load(sys.argv[2]), np.load(sys.argv[3])
np.save(sys.argv[4], instantiate(program, threads=1)(x=rows, i=indices))
"""


def test_another_process_makes_plans_of_a_pickled_program(tmp_path: Path) -> None:
    plan = small_plan()
    assert plan.program is not None
    names = [tmp_path / name for name in ("program", "x.npy", "i.npy", "out.npy")]
    names[0].write_bytes(pickle.dumps(plan.program))
    np.save(names[1], ROWS)
    np.save(names[2], INDICES)
    subprocess.run([sys.executable, "-c", _PROGRAM, *map(str, names)], check=True, timeout=240)
    assert np.load(names[3]).tobytes() == run(plan).tobytes()


def test_a_pickled_program_is_the_file_of_its_plan(path: Path) -> None:
    program = pickle.loads(pickle.dumps(semel.load_plan(path).program))
    copy = path.with_name("copy.plan")
    instantiate(program).save(copy)
    assert copy.read_bytes() == path.read_bytes()


def test_a_pickled_plan_keeps_its_limits() -> None:
    n = Variable("n", 1)
    made = (Tensor.input("x", (n,), "float32") * 2).prepare(threads=2, memory_limit=4096)
    copy = pickle.loads(pickle.dumps(made))
    assert (copy.threads, copy.memory_limit) == (2, 4096)
    with pytest.raises(semel.OutOfMemoryError, match="4,096 are free"):
        copy(x=np.ones(100_000, np.float32))

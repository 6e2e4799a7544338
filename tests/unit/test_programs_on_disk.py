"""Programs on disk: what is found there is what compiling would have given."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.test_layers import MAY_IMPORT

import semel
from semel import Graph, RecompileError, Tensor, Variable, config
from semel.cache.kernels import KernelCache, default_cache
from semel.cache.key import CODE_SOURCES, value_key
from semel.compiler import programs_on_disk
from semel.compiler.programs import forget_programs
from semel.errors import ParamError
from semel.ir.types import TensorType, as_dtype
from semel.plan.plan import ExecutionPlan

N = Variable("n", 1, 64)
DATA = np.arange(12, dtype=np.float32).reshape(3, 4) / 7
WEIGHTS = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)


@pytest.fixture(autouse=True)
def _all_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Graphs of all sizes are kept, in a folder of the test's own."""
    monkeypatch.setattr(programs_on_disk, "MIN_NODES", 1)
    with config.override(cache_dir=tmp_path / "cache"):
        yield


def _hits() -> int:
    return default_cache().status.program_hits


def _entries() -> int:
    return sum(entry.kind == "program" for entry in default_cache().entries())


def _twice(prepare: Callable[[], ExecutionPlan]) -> tuple[ExecutionPlan, ExecutionPlan]:
    """What is compiled, and what is found on disk after everything was forgotten."""
    made = prepare()
    forget_programs()
    before = _hits()
    found = prepare()
    assert _hits() == before + 1
    return made, found


def _model(scale: Any = 2.0, weights: np.ndarray = WEIGHTS) -> Tensor:
    x = Tensor.input("x", (N, 4), "float32")
    return (
        x @ Tensor.param("w", weights) * Tensor(np.array([1, 2, 3, scale], np.float32))
    ).softmax(-1)


def test_what_is_found_gives_the_same_bits_and_counts_as_compiled() -> None:
    made, found = _twice(lambda: _model().prepare())
    assert (made.compile_count, found.compile_count) == (1, 1)
    for rows in (3, 1):
        assert made(x=DATA[:rows]).tobytes() == found(x=DATA[:rows]).tobytes()
    assert [op.name for op in made.prepared_ops] == [op.name for op in found.prepared_ops]
    assert made.program.log == found.program.log
    assert made.program.nodes == found.program.nodes != ()


def test_another_process_finds_it(tmp_path: Path) -> None:
    code = """
        import sys, numpy as np, semel
        from pathlib import Path
        from semel import Tensor, Variable, config
        from semel.cache.kernels import KernelCache, default_cache
        from semel.compiler import programs_on_disk
        programs_on_disk.MIN_NODES = 1
        with config.override(cache_dir=Path(sys.argv[1])):
            x = Tensor.input("x", (Variable("n", 1, 64), 4), "float32")
            w = Tensor.param("w", np.eye(4, dtype=np.float32) * float(sys.argv[2]))
            plan = (x @ w + Tensor(np.float32([1, 2, 3, 4]))).softmax(-1).prepare()
            y = plan(x=np.ones((2, 4), np.float32))
            print(default_cache().status.program_hits, default_cache().status.misses, y.sum())
    """
    text = textwrap.dedent(code)

    def run(seed: int, scale: float) -> list[str]:
        given = [sys.executable, "-c", text, str(tmp_path / "other"), str(scale)]
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        return subprocess.run(
            given, env=environment, capture_output=True, text=True, check=True, timeout=120
        ).stdout.split()

    assert run(1, 1.0)[0] == "0"
    hits, misses, total = run(2, 3.0)  # params are no part of what is looked for
    assert (hits, misses) == ("1", "0") and float(total) == pytest.approx(2, abs=1e-5)


def test_other_data_of_params_is_the_same_program() -> None:
    _model().prepare()
    forget_programs()
    other = np.ascontiguousarray(WEIGHTS[::-1])
    before = _hits()
    found = _model(weights=other).prepare()
    assert _hits() == before + 1
    want = semel.prepare(_model(weights=other), fusion=False)(x=DATA)
    np.testing.assert_allclose(found(x=DATA), want, rtol=1e-6)
    found.set_param("w", WEIGHTS)
    assert found(x=DATA).tobytes() == _model().prepare()(x=DATA).tobytes()
    assert found.params["w"].version == 1


@pytest.mark.parametrize(
    "other",
    [
        lambda: _model(3.0).prepare(),
        lambda: _model().prepare(fusion=False),
        lambda: _model().prepare(keep_params=True),
        lambda: _model().exp().prepare(),
        lambda: semel.prepare({"z": _model()}),
        lambda: _model().prepare(target="x86-64-v2"),
    ],
    ids=["constant", "fusion", "keep_params", "op", "name", "target"],
)
def test_what_differs_is_compiled(other: Callable[[], ExecutionPlan]) -> None:
    _model().prepare()
    forget_programs()
    before = _hits(), _entries()
    other()
    assert (_hits(), _entries()) == (before[0], before[1] + 1)


def test_sources_that_changed_are_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    _model().prepare()
    forget_programs()
    monkeypatch.setattr(programs_on_disk, "sources_key", lambda sources: "others")
    before = _hits()
    _model().prepare()
    assert _hits() == before


def test_the_key_covers_all_that_a_compile_imports() -> None:
    reached, left = set(), {"compiler", "loading"}
    while left:
        layer = left.pop()
        reached.add(layer)
        left |= MAY_IMPORT[layer] - reached
    known = {source.removesuffix(".py") for source in (*programs_on_disk.SOURCES, *CODE_SOURCES)}
    assert reached - {"compiler"} <= known and "compiler" in known


def test_a_small_graph_is_compiled_sooner_than_it_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(programs_on_disk, "MIN_NODES", 100)
    _model().prepare()
    assert _entries() == 0
    y = _model()
    for _ in range(50):
        y = (y * 1.5).relu()
    y.prepare()
    assert _entries() == 1


def test_constants_that_are_large_are_not_written_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs_on_disk, "MAX_CONSTANT_BYTES", 8)
    _model().prepare()
    assert _entries() == 0


def test_tensors_find_their_buffers() -> None:
    def prepare() -> tuple[ExecutionPlan, Tensor, Tensor]:
        x = Tensor.input("x", (N, 4), "float32")
        hidden = x @ Tensor(WEIGHTS)
        return hidden.relu().prepare(keep={"hidden": hidden}), x, hidden

    made, _, _ = prepare()
    made(x=DATA)
    forget_programs()
    found, x, hidden = prepare()
    found(x=DATA)
    assert _hits() == 1
    assert found.buffer(x) is found.buffers[0]
    buffer = found.buffer(hidden)
    assert buffer is found.kept["hidden"]
    np.testing.assert_array_equal(buffer.numpy(), made.kept["hidden"].numpy())


def test_inside_no_recompiles_the_disk_changes_nothing() -> None:
    _model().prepare()
    forget_programs()
    with semel.no_recompiles(), pytest.raises(RecompileError, match="would be compiled"):
        _model().prepare()


def test_without_a_disk_everything_is_compiled() -> None:
    with config.override(cache=False):
        _model().prepare()
        forget_programs()
        assert _model().prepare().compile_count == 1


def test_weights_are_held_once_by_what_is_compiled_and_what_is_found() -> None:
    w = Tensor.param("w", np.linspace(0, 1, 64 * 64, dtype=np.float32).reshape(64, 64))
    x = Tensor.input("x", (N, 64), "float32")

    def weights(plan: ExecutionPlan) -> set[int]:
        return {id(v.weight) for v in plan.program.values if v.place == "param"}

    first = (x @ w).prepare()
    del first
    forget_programs()
    found, compiled = (x @ w).prepare(), (x @ w).relu().prepare()
    assert _hits() == 1
    assert weights(found) == weights(compiled) != set()


def test_params_without_data_wait_for_it() -> None:
    def compiled() -> Any:
        g = Graph("g")
        x = g.input("x", (3, 4), "float32")
        g.output("y", x @ g.param("w", shape=(4, 4)) + g.param("b", np.ones(4, np.float32)))
        return semel.Session().compile(g)

    compiled()
    forget_programs()
    found = compiled()
    assert _hits() == 1
    with pytest.raises(ParamError, match="w"):
        found.run(DATA)
    found.set_param("w", WEIGHTS)
    np.testing.assert_allclose(found.run(DATA)["y"], DATA @ WEIGHTS + 1, rtol=1e-6)


def test_states_defaults_and_bodies_are_kept() -> None:
    def compiled() -> Any:
        g = Graph("g")
        x = g.input("x", (4,), "float32", default=np.arange(1, 5, dtype=np.float32))
        s = g.state("s", (4,), init=np.arange(5, 9, dtype=np.float32))
        _, total = Tensor.while_loop(
            lambda at: at[0] < 3, lambda at: (at[0] + 1, at[1] + x), (Tensor(0), s)
        )
        s.replace(total)
        g.output("y", total * 2)
        return semel.Session().compile(g)

    made = compiled()
    forget_programs()
    found = compiled()
    assert _hits() == 1
    for _ in range(2):
        assert made.run()["y"].tobytes() == found.run()["y"].tobytes()
    assert (
        made.run(np.zeros(4, np.float32))["y"].tobytes()
        == found.run(np.zeros(4, np.float32))["y"].tobytes()
    )


@pytest.mark.parametrize("damage", [b"", b"\0" * 300, b"\xff" * 40])
def test_an_entry_that_is_no_program_is_replaced(
    damage: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[str] = []

    def find(cache: KernelCache, key: str) -> bytes | None:
        keys.append(key)
        return get_program(cache, key)

    get_program = KernelCache.get_program
    monkeypatch.setattr(KernelCache, "get_program", find)
    want = _model().prepare()(x=DATA)
    forget_programs()
    default_cache().put_program(keys[0], damage)  # whole, and nonsense
    assert _model().prepare()(x=DATA).tobytes() == want.tobytes()
    assert _entries() == 1
    forget_programs()
    before = _hits()
    _model().prepare()
    assert _hits() == before + 1


def test_a_file_that_is_damaged_is_replaced(tmp_path: Path) -> None:
    want = _model().prepare()(x=DATA)
    (file,) = (tmp_path / "cache").rglob("*.program")
    data = bytearray(file.read_bytes())
    for place in (0, len(data) // 2, len(data) - 1):
        forget_programs()
        file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        before = _hits()
        assert _model().prepare()(x=DATA).tobytes() == want.tobytes()
        assert _hits() == before
    forget_programs()
    _model().prepare()
    assert _hits() == before + 1


def test_values_of_other_packages_have_no_key() -> None:
    kind = TensorType((N, 4), as_dtype("float32", "test"))
    keys = [value_key(v) for v in (kind, (1, "a", None, 2.5), (1.0,), (1,), (True,), (N + 1,))]
    assert None not in keys and len(set(keys)) == len(keys)
    assert value_key((N + 1, 1 + N)) is not None
    assert value_key((1, test_values_of_other_packages_have_no_key)) is None
    assert value_key((1, Path("/"))) is None
    assert value_key((1, lambda: 2)) is None


def test_equal_parts_of_a_key_are_equal_whether_they_are_one_object_or_two() -> None:
    def kind(size: Any) -> TensorType:
        return TensorType((size, 4), as_dtype("float32", "test"))

    one, other = kind(N * 2 + 1), kind(N * 2 + 2)
    again = kind(2 * N + 1)
    assert again is not one
    assert value_key((one, one, other)) == value_key((one, again, other))
    keys = [
        value_key(each)
        for each in ((one, one), (one, other), (other, one), (one, one, one), (one, other, one))
    ]
    assert len({*keys, value_key((one, other, other))}) == 6


def test_nodes_of_bodies_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph of few nodes, one of which is a loop of many."""

    def prepare() -> ExecutionPlan:
        def body(step: Any, states: tuple[Tensor, ...]) -> tuple[list[Tensor], list[Tensor]]:
            (x,) = states
            for _ in range(20):
                x = (x * 0.5 + 1).tanh()
            return [x], []

        (last,), _ = Tensor.loop(3, [Tensor.input("x", (8,))], body)
        return last.prepare()

    monkeypatch.setattr(programs_on_disk, "MIN_NODES", 48)
    made, found = _twice(prepare)
    data = np.linspace(-1, 1, 8, dtype=np.float32)
    assert made(x=data).tobytes() == found(x=data).tobytes()

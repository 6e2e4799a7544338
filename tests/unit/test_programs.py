"""Programs that are found again: what counts as the same graph, and how long it is known."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import semel
from semel import RecompileError, Tensor, Variable, config
from semel.compiler import programs
from semel.compiler.pipeline import compile_graph
from semel.compiler.programs import MAX_PROGRAMS, SMALL_BYTES, forget_programs
from semel.compiler.tuning_store import ChoiceMemory, Remembered
from semel.devices.cpu.toolchain import host_target
from semel.ir.form import graph_form
from semel.plan.instantiate import instantiate
from semel.plan.plan import ExecutionPlan
from semel.tensor.realize import build_graph

N = Variable("n", 1, 64)
DATA = np.arange(12, dtype=np.float32).reshape(3, 4)


def _model(scale: Any = 2.0, name: str = "x", rows: Variable = N, dtype: str = "float32") -> Tensor:
    return (Tensor.input(name, (rows, 4), dtype) * scale).softmax(-1)


def test_the_first_prepare_compiles_whatever_the_kernel_cache_holds() -> None:
    for _ in range(2):
        assert _model().prepare().compile_count == 1
        forget_programs()


def test_the_same_graph_is_compiled_once() -> None:
    y = _model()
    first, second = y.prepare(), y.prepare()
    assert (first.compile_count, second.compile_count) == (1, 0)
    assert second.explain().compile_count == 0
    assert first.kernels == second.kernels
    assert first(x=DATA).tobytes() == second(x=DATA).tobytes()
    assert first.buffers[0].address != second.buffers[0].address


def test_a_graph_that_is_written_again_is_the_same() -> None:
    first = _model().prepare()
    gc.collect()  # its nodes are gone: those of the next one have other ids
    x = Tensor.input("x", (N, 4), "float32")
    hidden = x * 2.0
    y = hidden.softmax(-1)
    second = y.prepare()
    assert second.compile_count == 0
    buffer = second.buffer(x)
    assert buffer is second.buffers[0]
    assert second.buffer(y) is second.output_buffer
    assert first(x=DATA).tobytes() == second(x=DATA).tobytes()


def test_kept_tensors_are_found_by_the_nodes_of_the_later_graph() -> None:
    def prepare() -> tuple[ExecutionPlan, Tensor]:
        hidden = Tensor.input("x", (N, 4), "float32") @ w
        return hidden.relu().prepare(keep={"hidden": hidden}), hidden

    w = Tensor(np.eye(4, dtype=np.float32) - 1)
    wanted, _ = prepare()
    wanted(x=DATA)
    gc.collect()
    plan, hidden = prepare()
    plan(x=DATA)
    buffer = plan.buffer(hidden)
    assert plan.compile_count == 0
    assert buffer is plan.kept["hidden"]
    np.testing.assert_array_equal(buffer.numpy(), wanted.kept["hidden"].numpy())


@pytest.mark.parametrize(
    "other",
    [
        lambda: _model(3.0).prepare(),
        lambda: _model(name="z").prepare(),
        lambda: _model().exp().prepare(),
        lambda: semel.prepare({"y": _model()}),
        lambda: semel.prepare([_model(), _model()]),
        lambda: _model().prepare(fusion=False),
        lambda: _model().prepare(keep=[Tensor.input("x", (N, 4), "float32") * 2.0]),
        lambda: (
            (Tensor.input("x", (Variable("n", 2, 64), 4), "float32") * 2.0).softmax(-1).prepare()
        ),
        lambda: (Tensor.input("x", (N, 4), "float64") * 2.0).softmax(-1).prepare(),
        lambda: (Tensor.input("x", (N, 4), "float32") * -0.0).softmax(-1).prepare(),
    ],
)
def test_another_graph_or_other_options_compile(other: Any) -> None:
    zero = _model(0.0).prepare()
    known = _model().prepare()
    assert (zero.compile_count, known.compile_count, other().compile_count) == (1, 1, 1)


def test_what_only_the_plan_needs_does_not_compile() -> None:
    _model().prepare()
    for options in ({"threads": 1}, {"memory_limit": 1 << 20}, {"bindings": {"n": 3}}):
        assert _model().prepare(**options).compile_count == 0
    with config.override(arena=False):
        assert _model().prepare().compile_count == 0


# ---------------------------------------------------------------- constants


def test_constants_are_compared_by_identity() -> None:
    array = np.ones(4, np.float32)
    shared, equal = Tensor(array), Tensor(array.copy())
    assert _model(shared).prepare().compile_count == 1
    assert _model(shared).prepare().compile_count == 0
    assert _model(equal).prepare().compile_count == 1


def test_forms_are_equal_but_for_the_data_of_constants() -> None:
    def form(*constants: Tensor) -> Any:
        y = _model()
        for c in constants:
            y = y + c
        return graph_form(build_graph(y))

    a, b = Tensor(np.zeros(4, np.float32)), Tensor(np.ones(4, np.float32))
    wide = Tensor(np.ones((1, 4), np.float32))
    assert form(a, b).key == form(b, a).key == form(a, Tensor(np.ones(4, np.float32))).key
    assert hash(form(a, b).key) == hash(form(b, a).key)
    assert form(a, b).storages == form(b, a).storages[::-1]
    assert form(a, b).key != form(a, a).key  # shared in another way
    assert form(a).key != form(wide).key


def test_loops_are_compared_with_their_bodies() -> None:
    def total(factor: Tensor, start: Tensor) -> Tensor:
        x = Tensor.input("x", (3, 4), "float32")
        (last,), _ = Tensor.loop(3, [start], lambda s, h: ([h[0] * factor + x[s]], []))
        return last

    factor, start = Tensor(np.full(4, 2, np.float32)), Tensor.zeros(4)
    y = total(factor, start)
    assert (y.prepare().compile_count, y.prepare().compile_count) == (1, 0)
    assert total(factor, start).prepare().compile_count == 0  # traced again
    assert total(Tensor(np.full(4, 2, np.float32)), start).prepare().compile_count == 1


def test_random_numbers_of_other_keys_are_other_graphs() -> None:
    key = Tensor.input("key", (2,), "uint32")
    assert semel.randn(4, key=key).prepare().compile_count == 1
    plan = semel.randn(4, key=key).prepare()
    assert plan.compile_count == 0
    one, two = (plan(key=np.array([k, 0], np.uint32)) for k in (1, 2))
    assert one.tobytes() != two.tobytes()
    assert semel.randn(4).numpy().tobytes() != semel.randn(4).numpy().tobytes()


@pytest.mark.parametrize("columns", [4, 1 << 13])
def test_constants_die_with_the_tensors_and_plans_that_use_them(columns: int) -> None:
    forget_programs()
    weights = Tensor(np.ones(columns, np.float32))
    storage = weakref.ref(weights.node.attrs.storage)
    plan = (Tensor.input("x", (N, columns)) * weights).softmax(-1).prepare()
    again = plan.clone()
    del weights, plan
    gc.collect()
    assert (storage() is None) == (columns > 4)  # what is small is the plan's
    del again
    gc.collect()
    assert storage() is None  # the cache holds the program, and no data
    assert len(programs._known) == 1
    Tensor(1.0).prepare()  # whoever asks next clears the place
    assert len(programs._known) == 1


def test_large_programs_are_known_while_somebody_has_them() -> None:
    weights = Tensor(np.ones(SMALL_BYTES, np.float32))
    y = (Tensor.input("x", (SMALL_BYTES,), "float32") * weights).sum()
    plan = y.prepare()
    program = weakref.ref(plan.program)
    assert y.prepare().compile_count == 0
    del plan
    gc.collect()
    assert program() is None
    assert y.prepare().compile_count == 1


def test_a_large_program_is_known_by_its_latest_plan() -> None:
    weights = Tensor(np.ones(SMALL_BYTES, np.float32))

    def make() -> ExecutionPlan:
        return (Tensor.input("x", (SMALL_BYTES,), "float32") * weights).sum().prepare()

    plan = make()
    for _ in range(2):
        gc.collect()
        plan = make()  # the one before it goes
        assert plan.compile_count == 0


def test_only_so_many_are_known() -> None:
    program, form = _model().prepare().program, graph_form(build_graph(_model()))
    assert program is not None
    for i in range(MAX_PROGRAMS):
        assert _model().prepare().compile_count == 0  # asked for all the time
        programs.keep_program(programs.Request(("other", i), form), program)
    for i in range(MAX_PROGRAMS):
        programs.keep_program(programs.Request(("another", i), form), program)
    assert _model().prepare().compile_count == 1


# ---------------------------------------------------------------- what compiles all the same


def test_a_known_graph_is_allowed_inside_no_recompiles() -> None:
    y = _model()
    y.prepare()
    with semel.no_recompiles():
        assert y.prepare().compile_count == 0
        assert y.prepare()(x=DATA).shape == (3, 4)
        with pytest.raises(RecompileError, match="would be compiled inside"):
            _model(7.0).prepare()


def test_a_dump_is_written_at_every_prepare(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with config.override(dump=tmp_path / name):
            assert _model().prepare().compile_count == 1
        assert list((tmp_path / name).iterdir())


def test_a_graph_that_was_not_verified_is_compiled_to_be_verified() -> None:
    _model().prepare()
    with config.override(verify=True):
        assert _model().prepare().compile_count == 1


def test_what_is_remembered_later_is_used(monkeypatch: pytest.MonkeyPatch) -> None:

    _model().prepare()
    found = {"k": Remembered("wide", 0.5, "k", 1, {})}
    monkeypatch.setattr(ChoiceMemory, "entries", lambda self: found)
    assert _model().prepare().compile_count == 1
    assert _model().prepare().compile_count == 0
    assert _model().prepare(tune=False).compile_count == 0  # as at first, without any


def test_files_and_clones_count_as_they_did(tmp_path: Path) -> None:
    plan = _model().prepare()
    plan.save(tmp_path / "a.plan")
    assert semel.load_plan(tmp_path / "a.plan").compile_count == 0
    assert semel.load_plan(tmp_path / "a.plan", recompile=True).compile_count == 1
    assert plan.clone().compile_count == 1


def test_plans_of_a_compiled_program_were_compiled_once() -> None:
    program = compile_graph(build_graph(_model()), host_target())
    for plan in (instantiate(program), instantiate(program, threads=2)):
        assert (plan.compile_count, plan.explain().compile_count) == (1, 1)


# ---------------------------------------------------------------- threads and processes


def test_threads_that_prepare_one_graph_get_equal_plans() -> None:
    y, results = _model(), []

    def work() -> None:
        results.append(y.prepare(threads=1)(x=DATA).tobytes())

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results) == 4 and len(set(results)) == 1
    assert y.prepare().compile_count == 0


def test_a_child_knows_what_its_parent_compiled() -> None:
    y = _model()
    wanted = y.prepare(threads=1)(x=DATA).tobytes()
    pid = os.fork()
    if pid == 0:
        plan = y.prepare(threads=1)
        os._exit(0 if plan.compile_count == 0 and plan(x=DATA).tobytes() == wanted else 1)
    assert os.waitpid(pid, 0)[1] == 0

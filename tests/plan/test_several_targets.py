"""One file with code for several machines: equal parts once, and the best that runs is taken."""

from __future__ import annotations

import gc
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import semel
from semel import Tensor
from semel.config import override
from semel.devices import lacking
from semel.devices.cpu.toolchain import host_target
from semel.errors import PlanError, PlanFileError, UnsupportedError
from semel.ir.graph import Graph, attr_bodies
from semel.ir.target import named_target
from semel.loading import machines_of
from semel.plan.file.machines import Machines
from semel.plan.file.read import map_file, parse_file

ALL = ("x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64")
HERE = [name for name in ALL if not lacking("cpu", named_target(name))]
ELSEWHERE = [name for name in ALL if name not in HERE]
RNG = np.random.default_rng(5)
WEIGHTS = [RNG.standard_normal((512, 512)).astype(np.float32) for _ in range(2)]
DATA = RNG.standard_normal((9, 512)).astype(np.float32)


def tensors() -> list[Tensor]:
    return [Tensor(weight) for weight in WEIGHTS]


def model(weights: list[Tensor]) -> Tensor:
    x = Tensor.input("x", (9, 512))
    for weight in weights:
        x = (x @ weight).gelu().layer_norm()
    return x.softmax(-1)


def targets_in(path: Path) -> list[str]:
    data, private = map_file(path)
    file = parse_file(data, private, str(path), verify=True)
    return [each.made_for.name for each in file.variants()]


def test_a_file_has_all_that_was_asked_for_and_the_best_is_loaded(tmp_path: Path) -> None:
    weights = tensors()
    plan = model(weights).prepare()
    plan.save(tmp_path / "plan", targets=ALL)
    assert targets_in(tmp_path / "plan") == list(ALL)
    loaded = semel.load_plan(tmp_path / "plan")
    assert loaded.target == HERE[-1]
    assert loaded.compile_count == 0
    assert loaded(x=DATA).tobytes() == plan(x=DATA).tobytes()
    assert f"code for {HERE[-1]}" in str(loaded.explain())


@pytest.mark.parametrize("name", HERE)
def test_code_for_each_machine_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    weights = tensors()
    plan = model(weights).prepare()
    plan.save(tmp_path / "plan", targets=[ELSEWHERE[0], name])
    loaded = semel.load_plan(tmp_path / "plan")
    assert loaded.target == name
    assert loaded(x=DATA).tobytes() == plan(x=DATA).tobytes()


def test_what_is_equal_is_stored_once(tmp_path: Path) -> None:
    weights = tensors()
    plan = model(weights).prepare()
    raw = sum(weight.nbytes for weight in WEIGHTS)
    sizes = {}
    for names in (("x86-64-v3",), ("aarch64",), ("x86-64-v3", "aarch64")):
        plan.save(tmp_path / "plan", targets=names)
        sizes[names] = (tmp_path / "plan").stat().st_size - raw
    one, other, both = sizes.values()
    assert both <= one + other  # panels of 16 columns for both: the weights are there once
    plan.save(tmp_path / "plan", targets=("x86-64-v3", "x86-64-v4", "aarch64"))
    wide = (tmp_path / "plan").stat().st_size
    assert wide < 2 * raw + 4 * max(one, other)  # panels of 64 columns: once more


def test_a_file_for_other_machines_alone_is_refused_or_compiled_here(tmp_path: Path) -> None:
    weights = tensors()
    plan = model(weights).prepare()
    is_x86 = host_target().arch == "x86_64"
    others = ["aarch64", "aarch64+dotprod"] if is_x86 else ["x86-64-v3", "x86-64-v4"]
    plan.save(tmp_path / "plan", targets=others)
    with pytest.raises(PlanFileError, match=f"code for {others[0]}, .* runs none of it"):
        semel.load_plan(tmp_path / "plan")
    rebuilt = semel.load_plan(tmp_path / "plan", recompile=True)
    assert rebuilt(x=DATA).tobytes() == plan(x=DATA).tobytes()


def test_targets_must_be_known_and_the_graph_too(tmp_path: Path) -> None:
    weights = tensors()
    plan = model(weights).prepare()
    with pytest.raises(UnsupportedError, match=r"must be one of .*x86-64-v3"):
        plan.save(tmp_path / "plan", targets=["pentium"])
    with pytest.raises(PlanError, match=r"a list of names of machines, got 'aarch64'\. Write"):
        plan.save(tmp_path / "plan", targets="aarch64")
    with pytest.raises(PlanError, match="targets must be a str, got 3"):
        plan.save(tmp_path / "plan", targets=[3])  # type: ignore[list-item]
    with pytest.raises(PlanError, match="targets must be names of machines"):
        plan.save(tmp_path / "plan", targets=[])
    assert not (tmp_path / "plan").exists()
    plan.save(tmp_path / "plan")
    with pytest.raises(PlanError, match="one that was prepared here"):
        semel.load_plan(tmp_path / "plan").save(tmp_path / "other", targets=HERE)


def test_a_plan_does_not_hold_weights_for_other_machines(tmp_path: Path) -> None:
    weights = tensors()
    plan = model(weights).prepare()
    del weights
    gc.collect()
    with pytest.raises(PlanError, match="must be there to be laid out once more"):
        plan.save(tmp_path / "plan", targets=HERE)
    plan.save(tmp_path / "plan")


def test_params_that_were_replaced_are_saved_as_the_plan_has_them(tmp_path: Path) -> None:
    weight, other = Tensor.param("w", WEIGHTS[0]), Tensor(WEIGHTS[1])
    plan = (Tensor.input("x", (9, 512)) @ weight @ other).prepare(keep_params=True)
    plan.set_param("w", WEIGHTS[1])
    want = plan(x=DATA).tobytes()
    plan.save(tmp_path / "plan", targets=HERE)
    loaded = semel.load_plan(tmp_path / "plan")
    assert loaded(x=DATA).tobytes() == want
    loaded.set_param("w", WEIGHTS[0])
    plan.set_param("w", WEIGHTS[0])
    assert loaded(x=DATA).tobytes() == plan(x=DATA).tobytes() != want


def test_replaced_params_of_which_only_packed_data_is_held_are_refused(tmp_path: Path) -> None:
    weight = Tensor.param("w", WEIGHTS[0])
    plan = (Tensor.input("x", (9, 512)) @ weight).prepare()
    plan.save(tmp_path / "plan", targets=HERE)
    loaded = semel.load_plan(tmp_path / "plan")
    assert loaded(x=DATA).tobytes() == plan(x=DATA).tobytes()
    plan.set_param("w", WEIGHTS[1])
    with pytest.raises(PlanError, match="w was replaced, and only what is made of it is held"):
        plan.save(tmp_path / "other", targets=HERE)
    assert not (tmp_path / "other").exists()


def test_params_that_the_plan_holds_need_no_tensor(tmp_path: Path) -> None:
    weight = Tensor.param("w", WEIGHTS[0])
    plan = (Tensor.input("x", (9, 512)) @ weight).prepare(keep_params=True)
    del weight
    gc.collect()
    plan.save(tmp_path / "plan", targets=HERE)
    assert semel.load_plan(tmp_path / "plan")(x=DATA).tobytes() == plan(x=DATA).tobytes()


def test_what_is_kept_is_kept_for_every_machine(tmp_path: Path) -> None:
    weight = Tensor(WEIGHTS[0])
    product = Tensor.input("x", (9, 512)) @ weight
    plan = product.relu().prepare(keep={"product": product})
    plan.save(tmp_path / "plan", targets=ALL)
    loaded = semel.load_plan(tmp_path / "plan")
    assert loaded(x=DATA).tobytes() == plan(x=DATA).tobytes()
    assert list(loaded.kept) == ["product"]
    assert loaded.kept["product"].numpy().tobytes() == plan.kept["product"].numpy().tobytes()


def test_constants_in_the_bodies_of_loops_are_found_again(tmp_path: Path) -> None:
    held: list[Tensor] = []

    def body(step: Any, states: tuple[Tensor, ...]) -> tuple[list[Tensor], list[Tensor]]:
        held.extend(tensors())
        return [(states[0] @ held[0]).tanh() + held[1][0]], []

    (last,), _ = Tensor.loop(3, [Tensor.input("x", (9, 512))], body)
    inside = [body for node in Graph((last.node,)).nodes for body in attr_bodies(node.attrs)]
    assert any(node.op.name == "constant" for graph in inside for node in graph.nodes)
    plan = last.prepare()
    plan.save(tmp_path / "plan", targets=ALL)
    loaded = semel.load_plan(tmp_path / "plan")
    assert loaded(x=DATA).tobytes() == plan(x=DATA).tobytes()


def test_a_loaded_plan_says_that_it_has_code_for_one_machine(tmp_path: Path) -> None:
    weights = tensors()
    plan = model(weights).prepare()
    plan.save(tmp_path / "plan", targets=ALL)
    loaded = semel.load_plan(tmp_path / "plan")
    with pytest.raises(PlanError, match=f"code for x86-64-v2, .*targets=..{HERE[-1]}.. saves that"):
        loaded.save(tmp_path / "other")
    with pytest.raises(PlanError, match="must be names of machines"):
        loaded.save(tmp_path / "other", targets=[ELSEWHERE[0]])
    assert not (tmp_path / "other").exists()
    loaded.save(tmp_path / "other", targets=[HERE[-1]])
    assert targets_in(tmp_path / "other") == [HERE[-1]]
    again = semel.load_plan(tmp_path / "other")
    assert again(x=DATA).tobytes() == plan(x=DATA).tobytes()
    again.save(tmp_path / "third")  # that is all its file had
    assert pickle.loads(pickle.dumps(loaded))(x=DATA).tobytes() == plan(x=DATA).tobytes()


def test_a_file_says_which_machines_read_weights_alike(tmp_path: Path) -> None:
    weights = tensors()
    model(weights).prepare().save(tmp_path / "plan", targets=ALL)
    found = machines_of(tmp_path / "plan")
    assert found.names == ALL
    assert found.layouts == (("x86-64-v2",), ("x86-64-v3", "aarch64"), ("x86-64-v4",))
    raw = sum(weight.nbytes for weight in WEIGHTS)
    assert 2 * raw <= found.again_bytes < 3 * raw
    plain = (Tensor.input("x", (3,)) + 1).prepare()
    plain.save(tmp_path / "one")
    assert machines_of(tmp_path / "one") == Machines((plain.target,), ((plain.target,),), 0)


def test_the_log_says_which_was_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    weights = tensors()
    model(weights).prepare().save(tmp_path / "plan", targets=ALL)
    with override(log=frozenset({"plan"})):
        semel.load_plan(tmp_path / "plan")
    told = [record.getMessage() for record in caplog.records]
    assert any(f"code for {HERE[-1]}, of {', '.join(ALL)}" in line for line in told)


def test_a_prepared_plan_says_its_target() -> None:
    plan = (Tensor.input("x", (3,)) + 1).prepare(target=HERE[0])
    assert plan.target == HERE[0]
    assert (Tensor.input("x", (3,)) + 1).prepare().target == host_target().name

"""Plans over devices of two targets: each kernel, and the layout of its weights, for its own."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.plan import lesser
from tests.plan.forge import forged

import semel
from semel import Tensor, UnsupportedError, Variable
from semel.compiler.placement import Place
from semel.compiler.spread import open_spread
from semel.devices.cpu.toolchain import host_target
from semel.errors import PlanFileError
from semel.ir.target import named_target
from semel.runtime import device as table
from semel.tensor.realize import build_graph

pytestmark = pytest.mark.skipif(
    host_target().arch != "x86_64" or host_target().vector_bits == 128,
    reason="needs x86-64 with fma to compare",
)

N = Variable("n", 1, 64)
X = np.random.default_rng(1).standard_normal((37, 96), dtype=np.float32)
A = np.random.default_rng(2).standard_normal((96, 80), dtype=np.float32)
B = np.random.default_rng(3).standard_normal((80, 50), dtype=np.float32)


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(table.MODULES, "lesser", "tests.plan.lesser")
    yield
    table._open.pop("lesser", None)


def model(there: str, back: str) -> Tensor:
    """Two layers, each on a device of its own, and a body that loops on the second one."""
    x = Tensor.input("x", (N, 96))
    h = (x @ Tensor.param("a", A)).gelu().to(there)
    (h,), _ = Tensor.loop(3, [h], lambda step, state: ([state[0] * 0.5 + step], []))
    return (h @ Tensor.param("b", B)).softmax(-1).to(back).sum(0)


def targets(plan: Any) -> set[str]:
    return {kernel.target.name for kernel in plan.program.kernels if kernel.target}


def test_each_kernel_is_for_its_device() -> None:
    alone = model("cpu", "cpu").prepare(device="cpu")
    both = model("lesser", "cpu").prepare(device="cpu")
    turned = model("cpu", "lesser").prepare(device="lesser")
    assert targets(alone) == {host_target().name}
    assert targets(both) == {host_target().name, "x86-64-v2"}
    assert both.target == host_target().name and turned.target == "x86-64-v2"
    for rows in (37, 5, 1):
        expected = alone(x=X[:rows])
        np.testing.assert_array_equal(both(x=X[:rows]), expected)
        np.testing.assert_array_equal(turned(x=X[:rows]), expected)


def test_products_of_bytes_are_for_their_device() -> None:
    rng = np.random.default_rng(4)
    left = rng.integers(0, 255, (9, 128), np.uint8)
    weights = rng.integers(-128, 127, (128, 48), np.int8)

    def product(where: str) -> Tensor:
        x = Tensor.input("x", (9, 128), "uint8")
        return (x + 0).to(where).matmul_integer(Tensor(weights)).to("cpu")

    plans = [product(where).prepare(device="cpu") for where in ("cpu", "lesser")]
    for plan in plans:
        np.testing.assert_array_equal(plan(x=left), left.astype(np.int32) @ weights)
    (kernel,) = (k for k in plans[1].program.kernels if "matmul" in k.name)
    assert kernel.target == lesser.target()


def test_weights_of_both_follow_their_params() -> None:
    plan = model("lesser", "cpu").prepare(device="cpu")
    twin = plan.clone()
    plan.set_param("b", B[::-1].copy())
    fresh = model("cpu", "cpu").prepare(device="cpu")
    np.testing.assert_array_equal(twin(x=X), fresh(x=X))
    fresh.set_param("b", B[::-1].copy())
    np.testing.assert_array_equal(plan(x=X), fresh(x=X))


@pytest.mark.parametrize("how", [{}, {"recompile": True}, {"trust": False}], ids=str)
def test_files_have_code_for_both(how: dict[str, Any], tmp_path: Path) -> None:
    plan = model("lesser", "cpu").prepare(device="cpu")
    plan.save(tmp_path / "both.plan")
    loaded = semel.load_plan(tmp_path / "both.plan", **how)
    assert targets(loaded) == targets(plan)
    np.testing.assert_array_equal(loaded(x=X), plan(x=X))
    again = pickle.loads(pickle.dumps(plan))
    np.testing.assert_array_equal(again(x=X), plan(x=X))


def test_a_file_that_calls_a_kernel_elsewhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "both.plan"
    model("lesser", "cpu").prepare(device="cpu").save(path)

    def exchanged(header: Any) -> None:
        for record in header["kernels"]:
            record["kind"] = {"cpu": "lesser", "lesser": "cpu"}[record["kind"]]

    path.write_bytes(forged(path.read_bytes(), exchanged))
    with pytest.raises(PlanFileError, match=r"must not be called on"):
        semel.load_plan(path, trust=False)


def test_programs_are_found_again_for_the_same_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor.input("x", (N, 96))
    y = (x @ Tensor(A)).to("lesser").exp().to("cpu")
    assert [y.prepare(device="cpu").compile_count for _ in range(2)] == [1, 0]
    backend = replace(lesser.BACKEND, target=lambda: named_target("x86-64-v3"))
    monkeypatch.setattr(lesser, "BACKEND", backend)
    again = y.prepare(device="cpu")
    assert again.compile_count == 1
    assert "x86-64-v3" in targets(again)


def test_tuning_leaves_the_others_alone() -> None:
    plan = model("lesser", "cpu").prepare(device="cpu", tune={"n": 8})
    np.testing.assert_array_equal(plan(x=X), model("cpu", "cpu").prepare(device="cpu")(x=X))


def test_a_lesser_target_is_asked_for_of_the_plans_own_device() -> None:
    plan = model("lesser", "cpu").prepare(device="cpu", target="x86-64-v3")
    assert targets(plan) == {"x86-64-v3", "x86-64-v2"}


def test_devices_that_are_chosen_from_have_one_target() -> None:
    assert named_target("x86-64-v2") == lesser.target()
    graph = build_graph(model("cpu", "cpu"))
    places = (Place("cpu", 1), Place("lesser", 1))
    with pytest.raises(UnsupportedError, match=r"must have one target(?s:.*)\.to\(\"lesser"):
        open_spread(graph, "cpu", places)

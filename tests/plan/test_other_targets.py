"""Plans for a lesser machine, programs for another one, and what cannot run here."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import semel
from semel import Tensor, Variable
from semel.compiler.pipeline import compile_graph
from semel.config import override
from semel.devices import choose_target, lacking
from semel.devices.cpu.elf import link_image, undefined_symbols
from semel.devices.cpu.toolchain import host_target
from semel.errors import PlanFileError, UnsupportedError, UserError
from semel.ir.target import Target, named_target
from semel.plan.instantiate import instantiate
from semel.plan.program import Program
from semel.runtime.device import find_device
from semel.tensor.realize import build_graph

X86 = host_target().arch == "x86_64"
OTHER = "aarch64" if X86 else "x86-64-v3"
#: What the host can run, from little to much.
LESSER = [
    name
    for name in ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64")
    if not lacking("cpu", named_target(name))
]
ROWS = Variable("n", 1, 9)
DATA = np.random.default_rng(0).standard_normal((5, 70)).astype(np.float32)


def model() -> Tensor:
    weights = np.random.default_rng(1).standard_normal((70, 33)).astype(np.float32)
    return (Tensor.input("x", (ROWS, 70)) @ Tensor(weights)).gelu().softmax(-1)


def targets_of(program: Program) -> set[str]:
    return {kernel.target.name for kernel in program.kernels if kernel.target}


@pytest.mark.parametrize("name", LESSER)
def test_a_plan_for_a_lesser_machine_runs_here(name: str) -> None:
    plan = semel.prepare(model(), target=name)
    assert targets_of(plan.program) == {name}
    np.testing.assert_allclose(plan(x=DATA), model().prepare()(x=DATA), rtol=2e-5)


@pytest.mark.parametrize("name", LESSER)
def test_the_settings_name_the_target_too(name: str) -> None:
    with override(target=name):
        plan = model().prepare()
        assert targets_of(plan.program) == {name}
        assert targets_of(model().prepare(target="native").program) == {host_target().name}
        assert (Tensor([1.0, 2.0]) * 3).numpy().tolist() == [3.0, 6.0]


def test_a_plan_for_each_target_is_compiled_for_it() -> None:
    """Neither programs nor kernels of one target are found for another."""
    output = model()
    plans = [semel.prepare(output, target=name) for name in (*LESSER, "native")]
    codes = [plan.program.kernels[0].code for plan in plans]
    assert len(set(codes)) == len(LESSER) + (host_target().name not in LESSER)
    again = semel.prepare(output, target=LESSER[0])
    assert again.compile_count == 0
    assert again.program.kernels[0].code == codes[0]


def test_what_this_machine_cannot_run_is_not_prepared() -> None:
    arch = named_target(OTHER).arch
    message = rf"code for {OTHER} .*this machine.* lacks {arch}\. plan\.save\(file, targets="
    with pytest.raises(UnsupportedError, match=message):
        semel.prepare(model(), target=OTHER)
    with override(target=OTHER), pytest.raises(UnsupportedError, match=f"lacks {arch}"):
        (Tensor([1.0]) + 1).numpy()


@pytest.mark.skipif(not X86, reason="names features of x86-64")
def test_features_that_this_machine_lacks_are_named() -> None:
    lacks = sorted({"amx-tile", "amx-int8"} - set(host_target().features))
    name = f"{LESSER[-1]}+amx-tile+amx-int8"
    if not lacks:
        semel.prepare(model(), target=name)
        return
    with pytest.raises(UnsupportedError, match=f"lacks {', '.join(lacks)}") as caught:
        semel.prepare(model(), target=name)
    assert sorted(vars(caught.value)["missing"]) == lacks


@pytest.mark.parametrize("bad", ["x86-64-v9", "aarch64+avx2", "", 3])
def test_a_target_must_have_a_name_that_we_know(bad: object) -> None:
    with pytest.raises(UserError, match="target"):
        semel.prepare(model(), target=bad)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def foreign() -> Program:
    return compile_graph(build_graph(model()), named_target(OTHER))


def test_a_program_for_another_machine_is_compiled(foreign: Program) -> None:
    assert targets_of(foreign) == {OTHER}
    for kernel in foreign.kernels:
        assert not undefined_symbols(kernel.code or b"")
        _, symbols = link_image(kernel.code or b"", 0x40_0000)
        assert kernel.entry_point in symbols


def test_a_program_for_another_machine_is_no_plan_here(foreign: Program) -> None:
    with pytest.raises(UnsupportedError, match=f"code is for {OTHER}, which this machine cannot"):
        instantiate(foreign)


def test_a_file_for_another_machine_says_so_here(foreign: Program, tmp_path: Path) -> None:
    """And has what that machine needs: it is compiled again here, and gives the same numbers."""
    path = tmp_path / "other.plan"
    foreign.save(path)
    with pytest.raises(PlanFileError, match=f"code must be for {host_target().arch}"):
        semel.load_plan(path)
    with pytest.raises(PlanFileError, match="code must be for"):
        pickle.loads(pickle.dumps(foreign))
    again = semel.load_plan(path, recompile=True)
    np.testing.assert_allclose(again(x=DATA), model().prepare()(x=DATA), rtol=2e-5)


def test_a_file_brings_the_runner_for_its_machine() -> None:
    device = find_device("cpu")
    code = device.device_code(named_target(OTHER))
    assert code.target.name == OTHER
    assert set(undefined_symbols(code.runner)) <= {"memmove"}
    for name in LESSER:
        made_for = device.device_code(named_target(name)).target
        assert set(made_for.features) <= set(named_target(name).features)
    assert device.device_code().target == host_target()


def test_a_file_is_compiled_again_for_what_the_settings_say(
    foreign: Program, tmp_path: Path
) -> None:
    foreign.save(tmp_path / "other.plan")
    with override(target=LESSER[0]):
        plan = semel.load_plan(tmp_path / "other.plan", recompile=True)
    assert targets_of(plan.program) == {LESSER[0]}


def test_native_is_what_the_machine_has() -> None:
    with override(target="native"):
        assert choose_target("cpu") == choose_target("cpu", " Native ") == host_target()
    assert isinstance(choose_target("null", "aarch64"), Target)

"""Commands on ONNX models and plan files."""

from __future__ import annotations

import csv
import json
import logging
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import semel
from semel import config
from semel.cli import bench, progress
from semel.cli.bench import BenchRow, Kernels, Times, advise
from semel.cli.compare import differences
from semel.cli.main import build_parser, main

onnx = pytest.importorskip("onnx")
models: Any = pytest.importorskip("tests.cli.models")

Capture = pytest.CaptureFixture[str]


def told(capsys: Capture, *argv: object, code: int = 0) -> Any:
    """What a command says as JSON."""
    assert main([*map(str, argv), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def said(capsys: Capture, *argv: object, code: int = 0) -> str:
    assert main([*map(str, argv)]) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


# ---------------------------------------------------------------- inspect


def test_inspect_tells_what_a_model_takes_and_needs(tmp_path: Path, capsys: Capture) -> None:
    path = models.product(tmp_path)
    found = told(capsys, "inspect", path, "--dim", "seq=512")
    assert found["form"] == "compiled"
    assert found["inputs"] == [{"name": "x", "dtype": "float32", "shape": "[batch, seq, 16]"}]
    assert found["outputs"][0]["shape"] == "[batch, seq, 8]"
    assert found["operators"] == {"MatMul": 1, "Relu": 1}
    assert found["opsets"]["ai.onnx"] == 17
    assert found["sizes"] == {"batch": 1, "seq": 512}
    assert found["memory"]["weights"] == 16 * 8 * 4
    assert found["memory"]["io"] >= 512 * (16 + 8) * 4
    smaller = told(capsys, "inspect", path, "--dim", "seq=2")
    assert smaller["memory"]["io"] < found["memory"]["io"]
    assert "memory at batch=1, seq=512" in said(capsys, "inspect", path, "--dim", "seq=512")
    bounded = told(capsys, "inspect", path, "--bound", "seq=2..9", "--bound", "batch=3")
    assert bounded["variables"] == {"seq": "2 to 9"}
    assert bounded["sizes"] == {"seq": 9}


def test_inspect_names_every_node_that_is_not_supported(tmp_path: Path, capsys: Capture) -> None:
    path = models.unsupported(tmp_path)
    found = told(capsys, "inspect", path, code=1)
    assert len(found["unsupported"]) == 2
    assert "Foo 'first'" in found["unsupported"][0]
    assert "Bar 'second'" in found["unsupported"][1]
    assert [name["name"] for name in found["inputs"]] == ["x"]
    assert main(["inspect", str(path)]) == 1
    assert "not supported" in capsys.readouterr().out


def test_inspect_says_what_inputs_decide(tmp_path: Path, capsys: Capture) -> None:
    path = models.reshape(tmp_path)
    given = ["--input", "x=[1,2,3,4,5,6]", "--input", "shape=[2,3]"]
    undecided = told(capsys, "inspect", path)  # made up: a shape of zeros
    assert "size 1 of the shape is 0" in undecided["undecided"]
    assert undecided["deciding"] == ["shape"]
    found = told(capsys, "inspect", path, *given)
    assert (found["form"], found["deciding"]) == ("specialised", ["shape"])
    assert found["kernels"] >= 1
    assert "what inputs hold decides" in said(capsys, "inspect", path, *given)
    text = told(capsys, "inspect", models.upper(tmp_path))
    assert text["form"] == "hosted"
    assert "x: text [n] cannot be made up" in text["undecided"]


# ---------------------------------------------------------------- run


def test_run_agrees_with_other_programs(tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("onnxruntime")
    path = models.product(tmp_path)
    for peer in ("onnxruntime", "reference"):
        found = told(capsys, "run", path, "--dim", "seq=5", "--compare", peer)
        assert found["outputs"]["y"]["shape"] == [1, 5, 8]
        assert [each["is_small"] for each in found["compared"]] == [True]
    assert f"against {peer}" in said(capsys, "run", path, "--compare", peer)
    compared = ["--compare", "reference", "--tolerance", "-1"]
    assert told(capsys, "run", path, *compared, code=1)["compared"][0]["is_small"] is False


def test_run_takes_arrays_files_and_numbers(tmp_path: Path, capsys: Capture) -> None:
    path, x = models.product(tmp_path), np.ones((2, 3, 16))  # float64: brought to float32
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "all.npz", x=x)
    out = tmp_path / "out.npz"
    for given in (f"x={tmp_path}/x.npy", f"{tmp_path}/x.npy", f"{tmp_path}/all.npz"):
        said(capsys, "run", path, "--input", given, "--save", out)
        w = onnx.numpy_helper.to_array(onnx.load(path).graph.initializer[0])
        expected = np.maximum(x.astype(np.float32) @ w, 0)
        np.testing.assert_allclose(np.load(out)["y"], expected, rtol=1e-5, atol=1e-5)
    view = ["run", models.reshape(tmp_path), "--input", "x=[1,2,3,4]", "--input", "shape=[2,2]"]
    found = told(capsys, *view, "--compare", "reference")
    assert found["outputs"]["y"]["values"] == [1, 2, 3, 4]
    found = told(capsys, "run", models.upper(tmp_path), "--input", 'x=["ab", "c"]')
    assert found["outputs"]["y"]["values"] == ["AB", "C"]


def test_run_takes_images(tmp_path: Path, capsys: Capture) -> None:
    image = pytest.importorskip("PIL.Image")
    picture = tmp_path / "red.png"
    image.new("RGB", (6, 4), (255, 0, 51)).save(picture)
    path = models.colour(tmp_path)
    found = told(capsys, "run", path, "--input", picture)
    assert found["inputs"]["x"]["shape"] == [1, 3, 4, 6]
    np.testing.assert_allclose(found["outputs"]["y"]["values"], [1, 0, 0.2], atol=1e-6)
    found = told(capsys, "run", path, "--input", picture, "--dim", "H=8", "--dim", "W=2")
    assert found["inputs"]["x"]["shape"] == [1, 3, 8, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.onnx"], "there is no file 'nothing.onnx'"),
        (["PATH", "--dim", "zap=3"], "has no variable 'zap'; known: batch, seq"),
        (["PATH", "--dim", "seq=1,2"], "takes one value of seq"),
        (["PATH", "--dim", "seq"], "a value must look like n=37"),
        (["PATH", "--bound", "seq=?"], "a bound must look like seq=1..512"),
        (["PATH", "--freeze", "q=1"], "--freeze takes an input (x)"),
        (["PATH", "--input", "q=1"], "an input must be NAME=VALUE of x"),
        (["PATH", "--input", "x=[1"], "must be a file or JSON"),
        (["PATH", "--input", 'x=["a"]'], "x: float32 [batch, seq, 16] cannot be"),
        (["PATH", "--input", "x=none.npy"], "none.npy: must be a file of arrays"),
        (["PATH", "--input", "x=none.png"], "x: float32 [batch, seq, 16] is no image"),
        (["PATH", "--input", "x=[1]"], "with rank 3, got (1,)"),
        (["demo", "--quick", "--compare", "reference"], "demo is none"),
        (["demo", "--quick", "--bound", "seq=3"], "are for ONNX models"),
    ],
)
def test_wrong_arguments_are_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.setattr(progress, "_QUIET_S", float("inf"))  # however slow the machine is
    path = str(models.product(tmp_path))
    argv = ["run", *(path if text == "PATH" else text for text in arguments)]
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("semel: ")
    assert error.count("\n") == 1


def test_debug_shows_where_and_bugs_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    path = models.product(tmp_path)
    assert "Traceback" in said(capsys, "run", path, "--input", "x=[1]", "--debug", code=2)
    assert told(capsys, "run", path, "--input", "x=[1]", code=2)["kind"] == "InputError"

    def fail(*_: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr("semel.cli.run.load_target", fail)
    assert "ValueError: no (this is a bug of semel" in said(capsys, "run", path, code=3)
    (tmp_path / "theirs.py").write_text("def f():\n    raise ValueError('mine')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "theirs:f raised ValueError: mine" in said(capsys, "explain", "theirs:f", code=2)


def test_differences_are_seen() -> None:
    y = np.array([1.0, np.nan, np.inf, -4.0], np.float32)
    pairs = [
        (y, y, True),
        (y + np.float32(1e-5), y, True),
        (y * np.float32(1.01), y, False),
        (y.astype(np.float64), y, False),
        (y[:3], y, False),
        (np.nan_to_num(y), y, False),
        ([y, None], [y, None], True),
        ([y], [y, y], False),
        (np.array(["a"], object), np.array(["a"], object), True),
        (np.array(["a"], object), np.array(["b"], object), False),
    ]
    for ours, theirs, is_small in pairs:
        (found,) = differences({"y": ours}, {"y": theirs}, None)
        assert found.is_small is is_small, (ours, theirs)


# ---------------------------------------------------------------- bench


def test_bench_measures_a_grid(tmp_path: Path, capsys: Capture) -> None:
    path = models.product(tmp_path)
    grid = ["bench", path, "--dim", "seq=2,4", "--runs", 3, "--warm-up", 1, "--threads", "1,2"]
    found = told(capsys, *grid, "--compare", "reference")
    points = [(row["threads"], row["sizes"]["seq"]) for row in found["rows"]]
    assert points == [(1, 2), (1, 4), (2, 2), (2, 4)]
    for row in found["rows"]:
        assert row["times"]["runs"] == row["other"]["runs"] == 3
        assert 0 < row["times"]["least"] <= row["times"]["p50"] <= row["times"]["p99"]
        assert row["kernels"]["count"] >= 1
        assert row["compile_count"] == 1
    assert found["advice"]
    table = said(capsys, *grid, "--format", "md").splitlines()
    assert table[0].startswith("| batch | seq | threads | p50 | p90 | p99 | kernels | host |")
    assert len(table) == 2 + 4 + 2
    lines = list(csv.DictReader(StringIO(said(capsys, *grid, "--format", "csv"))))
    assert [line["seq"] for line in lines] == ["2", "4", "2", "4"]
    assert "at least 3 runs each" in said(capsys, *grid)


def _row(least: float, kernel: float, **more: Any) -> BenchRow:
    times = Times(9, least, least, least * more.pop("spread", 1.0), least, least)
    kernels = Kernels(kernel, 5, "big", more.pop("share", 0.1))
    known: dict[str, Any] = {"threads": 2, "sizes": {}, "compile_count": 1, "other": None, **more}
    return BenchRow(times=times, kernels=kernels, **known)


def test_advice_is_about_what_costs_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "available_cores", lambda: 4)
    assert "The call costs more" in advise([_row(1e-5, 1e-6)])
    assert "spread widely" in advise([_row(1e-2, 9e-3, spread=3.0)])
    assert "try --threads 4" in advise([_row(1e-2, 9e-3, threads=1)])
    assert "big takes 60%" in advise([_row(1e-2, 9e-3, share=0.6)])
    assert "spread over 5 kernels" in advise([_row(1e-2, 9e-3), _row(1e-5, 1e-6)])
    assert "compiled 3 times" in advise([_row(1e-2, 9e-3, compile_count=3)])


# ---------------------------------------------------------------- compile, profile, explain


def test_a_compiled_model_runs_from_its_file(tmp_path: Path, capsys: Capture) -> None:
    path, plan = models.product(tmp_path), tmp_path / "product.plan"
    written = told(capsys, "compile", path, "-o", plan)
    assert written["bytes"] == plan.stat().st_size
    ours, theirs = (told(capsys, "run", file, "--dim", "seq=7") for file in (plan, path))
    assert ours["outputs"] == theirs["outputs"]
    assert told(capsys, "inspect", plan)["memory"]["weights"] == 512
    assert told(capsys, "bench", plan, "--runs", 2)["rows"][0]["times"]["runs"] == 2
    assert "chosen when a model is compiled" in said(
        capsys, "run", plan, "--bound", "seq=3", code=2
    )
    assert said(capsys, "compile", plan, code=2).startswith("semel: [compile] needs -o")


def test_a_model_is_compiled_for_several_machines(tmp_path: Path, capsys: Capture) -> None:
    path, plan, one = models.packed(tmp_path), tmp_path / "two.plan", tmp_path / "one.plan"
    told(capsys, "compile", path, "-o", one, "--for", "x86-64-v2")
    told(capsys, "compile", path, "-o", plan, "--for", "x86-64-v3", "--for", "aarch64")
    x = np.random.default_rng(2).standard_normal((3, 4, 8, 8)).astype(np.float32)
    want = semel.load(path).run(x=x)["y"]
    loaded = semel.load(plan)
    assert loaded.plan.target in ("x86-64-v3", "aarch64")
    assert loaded.run(x=x)["y"].tobytes() == want.tobytes()
    found = told(capsys, "inspect", plan)
    assert found["machines"] == ["x86-64-v3", "aarch64"]
    assert sorted(name for names in found["layouts"] for name in names) == ["aarch64", "x86-64-v3"]
    assert "code for  x86-64-v3, aarch64" in said(capsys, "inspect", plan)
    raw = sum(onnx.numpy_helper.to_array(w).nbytes for w in onnx.load(path).graph.initializer)
    assert one.stat().st_size < 3 * raw  # what was read to be laid out again is not in the file
    with pytest.raises(semel.PlanError, match=r"is gone.*or prepare with keep_params=True"):
        semel.load(path).save(tmp_path / "gone.plan", targets=["x86-64-v3"])
    kept = semel.load(path, keep_params=True)
    kept.save(plan, targets=["x86-64-v3", "aarch64"])
    assert semel.load(plan).run(x=x)["y"].tobytes() == want.tobytes()


@pytest.mark.parametrize("name", ["demo", "tests.cli.test_models:made"])
def test_what_is_no_model_is_compiled_for_several_machines(
    name: str, tmp_path: Path, capsys: Capture
) -> None:
    plan = tmp_path / "two.plan"
    quick = ["--quick"] if name == "demo" else []
    told(capsys, "compile", name, *quick, "-o", plan, "--for", "x86-64-v3", "--for", "aarch64")
    assert semel.load(plan).plan.target in ("x86-64-v3", "aarch64")


def made() -> semel.Tensor:
    """What a module that is named on the command line returns."""
    return semel.Tensor.input("x", (4, 64)) @ semel.Tensor(np.ones((64, 48), np.float32))


def test_a_plan_needs_inputs_that_decide_to_be_fixed(tmp_path: Path, capsys: Capture) -> None:
    path, plan = models.reshape(tmp_path), tmp_path / "reshape.plan"
    assert "--freeze NAME=VALUE" in said(capsys, "compile", path, "-o", plan, code=2)
    assert not plan.exists()
    said(capsys, "compile", path, "-o", plan, "--freeze", "shape=[2,3]", "--bound", "n=6")
    assert told(capsys, "run", plan)["outputs"]["y"]["shape"] == [2, 3]
    text = models.upper(tmp_path)
    assert "on the host" in said(capsys, "compile", text, "-o", plan, code=2)


def test_profile_and_explain_take_models(tmp_path: Path, capsys: Capture) -> None:
    path = models.product(tmp_path)
    report = told(capsys, "profile", path, "--dim", "seq=9", "--runs", 1)
    assert report["run"]["variables"] == {"batch": 1, "seq": 9}
    assert "from MatMul 'product'" in said(capsys, "explain", path)
    given = ["--input", "x=[1,2]", "--input", "shape=[1,2]"]
    assert told(capsys, "explain", models.reshape(tmp_path), *given)["ops"]


# ---------------------------------------------------------------- cache


def test_cache_lists_prunes_and_explains(tmp_path: Path, capsys: Capture) -> None:
    path = models.product(tmp_path)
    with config.override(cache=True, cache_dir=tmp_path / "cache"):
        found = told(capsys, "cache", "explain", path, "--bound", "batch=13")
        # A size that no other test uses, so that its kernels are not already loaded.
        assert found["prepare"]["not_found"] >= 1
        assert "target" in found["key"]
        assert "an entry is found by" in said(capsys, "cache", "explain")
        entries = told(capsys, "cache", "ls")
        assert sum(entry["bytes"] for entry in entries) == told(capsys, "cache")["bytes"]
        assert "just now" in said(capsys, "cache", "ls")
        said(capsys, "cache", "prune", "--days", 1)
        assert len(told(capsys, "cache", "ls")) == len(entries)
        said(capsys, "cache", "prune", "--max-bytes", "0K")
        assert told(capsys, "cache", "ls") == []
    assert "prune needs" in said(capsys, "cache", "prune", code=2)
    assert "clear takes no model" in said(capsys, "cache", "clear", path, code=2)


# ---------------------------------------------------------------- around commands


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command_and_option(shell: str, capsys: Capture) -> None:
    script = said(capsys, "completion", shell)
    for command in build_parser()._subparsers._group_actions[0].choices:  # type: ignore[union-attr]
        assert command in script
    for word in ("onnxruntime", "prune", "max-bytes" if shell == "fish" else "--max-bytes"):
        assert word in script


def test_bash_completes(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "script").write_text(said(capsys, "completion", "bash"))
    ask = "COMP_WORDS=({}); COMP_CWORD={}; _semel; echo ${{COMPREPLY[@]}}"
    asked = [("semel pro", 1), ("semel run --comp", 2), ("semel run --compare o", 3)]
    lines = "\n".join(ask.format(words, position) for words, position in asked)
    done = subprocess.run(
        ["bash", "-c", f"source {tmp_path}/script\n{lines}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["profile", "--compare", "onnxruntime"]


def test_python_m_semel_is_the_command() -> None:
    command = [sys.executable, "-W", "error", "-m", "semel", "--version"]
    assert subprocess.run(command, capture_output=True, check=True).stdout.startswith(b"semel ")


def test_long_work_is_told(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    logger = logging.getLogger("semel.compile")
    level = logger.level
    monkeypatch.setattr(progress, "_QUIET_S", 0.0)
    with progress.working("prepare x") as say:
        logger.debug("stage %s", "artefacts")
        logger.debug("%s: %d bytes of code", "k", 9)
        say("half")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "semel: prepare x: making machine code (0 s)",
        "semel: prepare x: making machine code, 1 kernel (0 s)",
        "semel: prepare x: half (0 s)",
    ]
    assert (logger.level, logger.handlers) == (level, [])
    monkeypatch.setattr(progress, "_QUIET_S", 60.0)
    with progress.working("prepare x") as say:
        say("quick")
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_line_that_moves(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr(progress, "_is_rich", lambda: True)
    with progress.working("prepare [x]") as say:
        say("half")
    assert capsys.readouterr().err.count("\n") <= 1

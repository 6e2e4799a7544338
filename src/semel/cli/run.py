"""`semel run`: run a model once, and show or keep what comes out.

    model, inputs  -->  outputs: a table, JSON, or an .npz file

With `--compare`, the same inputs go through another program, and the command fails where the
results differ by more than the tolerance.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from semel.cli.compare import PEERS, Difference, check_comparable, differences, open_peer, run_peer
from semel.cli.grammar import Commands, add_choices, add_command, add_inputs, add_target, parse_dims
from semel.cli.loaded import LoadedTarget, load_target
from semel.cli.report import Section, format_seconds, show

_SHOWN = 8


def run(arguments: argparse.Namespace) -> int:
    """The command: 1 if another program was asked and differs."""
    check_comparable(arguments)
    target = load_target(arguments)
    sizes = parse_dims(arguments.dim)
    inputs = target.inputs(arguments.input, sizes, arguments.seed)
    begin = time.perf_counter()
    outputs = target.run(inputs, sizes)
    seconds = time.perf_counter() - begin
    found: tuple[Difference, ...] = ()
    if arguments.compare:
        peer = open_peer(arguments.compare, target.name, arguments.threads)
        theirs = run_peer(arguments.compare, peer, inputs)
        found = differences(outputs, theirs, arguments.tolerance)
    if arguments.save:
        save(arguments.save, outputs)
    if arguments.json:
        print(json.dumps(_record(target, inputs, outputs, seconds, found), indent=2))
    else:
        show(_sections(target, outputs, seconds, found, arguments.compare))
    return 0 if all(each.is_small for each in found) else 1


def save(path: str, outputs: Mapping[str, Any]) -> None:
    """Keep outputs in one file; those that are no arrays are left out."""
    arrays: dict[str, Any] = {
        name: value for name, value in outputs.items() if isinstance(value, np.ndarray)
    }
    np.savez(path, **arrays)
    for name in sorted(outputs.keys() - arrays.keys()):
        print(f"semel run: {name} is no array and is not saved", file=sys.stderr)


def _record(
    target: LoadedTarget,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    seconds: float,
    found: tuple[Difference, ...],
) -> dict[str, Any]:
    return {
        "target": target.name,
        "prepare_seconds": target.seconds,
        "run_seconds": seconds,
        "compile_count": target.compile_count,
        "inputs": {name: _described(value) for name, value in inputs.items()},
        "outputs": {name: _summary(value) for name, value in outputs.items()},
        "compared": [{**asdict(each), "is_small": each.is_small} for each in found],
    }


def _described(value: Any) -> dict[str, Any]:
    array = np.asarray(value) if not isinstance(value, (list, tuple)) else None
    if array is None:
        return {"dtype": "sequence", "shape": [len(value)]}
    return {"dtype": str(array.dtype), "shape": list(array.shape)}


def _summary(value: Any) -> dict[str, Any]:
    """Dtype, shape and, of numbers, their range; all of them where they are few."""
    found = _described(value)
    if isinstance(value, (list, tuple)) or value is None:
        return found
    array = np.asarray(value)
    if array.dtype.kind not in "OSU" and array.size:
        numbers = array.astype(np.float64)
        finite = numbers[np.isfinite(numbers)]
        if finite.size:
            ends = {"min": finite.min(), "max": finite.max(), "mean": finite.mean()}
            found |= {name: float(number) for name, number in ends.items()}
        found["not_finite"] = int(numbers.size - finite.size)
    if array.size <= _SHOWN and array.dtype.kind in "biuOSU":
        found["values"] = array.reshape(-1).tolist()
    elif array.size <= _SHOWN and not found.get("not_finite"):
        found["values"] = array.reshape(-1).astype(np.float64).tolist()
    return found


def _sections(
    target: LoadedTarget,
    outputs: Mapping[str, Any],
    seconds: float,
    found: tuple[Difference, ...],
    peer: str | None,
) -> list[Section]:
    rows = tuple((name, *_cells(_summary(value))) for name, value in outputs.items())
    notes = (f"prepared in {format_seconds(target.seconds)}, first run {format_seconds(seconds)}",)
    made = [Section(target.name, rows, ("output", "dtype", "shape", "min", "mean", "max"), notes)]
    if peer:
        compared = tuple(
            (each.output, f"{each.error:.1e}", f"{each.tolerance:.0e}", _verdict(each))
            for each in found
        )
        head = ("output", "error", "allowed", "verdict")
        note = "errors are shares of an output's largest number"
        made.append(Section(f"against {peer}", compared, head, (note,)))
    return made


def _cells(summary: Mapping[str, Any]) -> tuple[str, ...]:
    shape = "x".join(map(str, summary["shape"])) or "scalar"
    numbers = (f"{summary[k]:.4g}" if k in summary else "-" for k in ("min", "mean", "max"))
    return summary["dtype"], shape, *numbers


def _verdict(each: Difference) -> str:
    if each.found != each.expected:
        return f"FAIL: {each.found}, not {each.expected}"
    return "ok" if each.is_small else "FAIL"


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    """The grammar of the command."""
    text = "run a model once on given or made-up inputs, and compare it with other programs"
    parser = add_command(commands, "run", text, run)
    add_target(parser)
    add_inputs(parser)
    add_choices(parser)
    parser.add_argument("--compare", choices=PEERS, help="run that too; 1 if results differ")
    parser.add_argument(
        "--tolerance", type=float, metavar="X", help="as a share of the largest number; 1e-3"
    )
    parser.add_argument("--save", metavar="FILE.npz", help="keep the outputs")

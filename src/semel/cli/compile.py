"""`semel compile`: compile a model once, into a file that loads in milliseconds.

model.onnx  -->  model.plan  -->  `semel run model.plan`, `semel.load("model.plan")`
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from semel.cli.grammar import Commands, add_choices, add_command, add_target
from semel.cli.loaded import HOSTED, is_file, load_target
from semel.cli.progress import working
from semel.cli.report import count_of, format_bytes, format_seconds
from semel.errors import InputError, UnsupportedError
from semel.session.compiled import CompiledGraph


def run(arguments: argparse.Namespace) -> int:
    """The command: load, save, and say what was written."""
    path = _output(arguments)
    target = load_target(arguments)
    graph = target.graph
    if not isinstance(graph, CompiledGraph):
        raise _open_form(target.name, target.form)
    begin = time.perf_counter()
    with working(f"write {path}"):
        graph.save(path, targets=arguments.target_machine or None)
    saved = time.perf_counter() - begin
    size = path.stat().st_size
    if arguments.json:
        record = {"path": str(path), "bytes": size, "kernels": len(graph.plan.kernels)}
        record |= {"prepare_seconds": target.seconds, "save_seconds": saved}
        print(json.dumps(record, indent=2))
    else:
        took = f"compiled in {format_seconds(target.seconds)}"
        kernels = count_of(len(graph.plan.kernels), "kernel")
        print(f"Wrote {path}: {format_bytes(size)}, {kernels}, {took}.")
    return 0


def _output(arguments: argparse.Namespace) -> Path:
    """Where to write; beside us, under the model's name, if nobody says."""
    if arguments.output:
        return Path(arguments.output)
    if not is_file(arguments.target) or arguments.target.endswith(".plan"):
        raise InputError("compile", "needs -o FILE.plan.")
    return Path(Path(arguments.target).name).with_suffix(".plan")


def _open_form(name: str, form: str) -> UnsupportedError:
    if form == HOSTED:
        return UnsupportedError(
            "compile", f"{name} works on text or images on the host; a plan file has kernels only."
        )
    return UnsupportedError(
        "compile",
        f"what inputs of {name} hold decides what is computed, so there is no one plan.",
        hint="Fix them: --freeze NAME=VALUE; `semel inspect` names them.",
    )


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    """The grammar of the command."""
    text = "compile a model into a plan file, which loads in milliseconds and needs no compiler"
    parser = add_command(commands, "compile", text, run)
    add_target(parser)
    parser.add_argument("-o", "--output", metavar="FILE.plan", help="default: the model's name")
    add_choices(parser)
    parser.add_argument("--tune", action="store_true", help="measure other choices of kernels")
    parser.add_argument(
        "--for",
        dest="target_machine",
        action="append",
        default=[],
        metavar="MACHINE",
        help="a machine that the file has code for: x86-64-v3, ...; default: this one",
    )

"""Arguments that several commands share, and how they are read.

add_command(commands, "run", ...)  -->  a parser with --json and --debug
add_target(parser), add_choices(parser), add_inputs(parser)
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from semel.config import MAX_THREADS
from semel.errors import InputError

Commands = argparse._SubParsersAction  # what `add_subparsers` returns has no public name
Command = Callable[[argparse.Namespace], int]


def add_command(
    commands: Commands[argparse.ArgumentParser], name: str, text: str, run: Command
) -> argparse.ArgumentParser:
    """A command with what all of them have; `run` returns the exit code."""
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.add_argument("--json", action="store_true", help="the report as JSON on stdout")
    parser.add_argument("--debug", action="store_true", help="show where an error comes from")
    parser.set_defaults(run=run)
    return parser


def add_target(parser: argparse.ArgumentParser, *, is_optional: bool = False) -> None:
    """What to work on."""
    parser.add_argument(
        "target",
        metavar="MODEL",
        nargs="?" if is_optional else None,
        help="model.onnx, model.plan, MODULE:FUNCTION, or 'demo'",
    )


def add_choices(parser: argparse.ArgumentParser, *, threads: bool = True) -> None:
    """What is decided when a model is compiled."""
    parser.add_argument(
        "--bound",
        action="append",
        default=[],
        metavar="DIM=LOW..HIGH",
        help="bounds of a dim of an ONNX model; DIM=N fixes it, DIM=OTHER makes it that one",
    )
    parser.add_argument(
        "--freeze",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="fix what an input of an ONNX model holds: a file or JSON",
    )
    if threads:
        parser.add_argument(
            "--threads", type=parse_threads, metavar="N", help="default: all our cores"
        )
    parser.add_argument("--quick", action="store_true", help="demo: a smaller model")


def add_inputs(parser: argparse.ArgumentParser, *, is_grid: bool = False) -> None:
    """What a run is given."""
    parser.add_argument(
        "--dim",
        "--set",
        dest="dim",
        action="append",
        default=[],
        metavar="NAME=N,N..." if is_grid else "NAME=N",
        help="sizes to run at, one after the other" if is_grid else "the size of a dim in this run",
    )
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="[NAME=]VALUE",
        help="a .npy, .npz or image file, or JSON; what is not given is made up",
    )
    parser.add_argument("--seed", type=int, default=20, metavar="N", help="of what is made up")


def parse_threads(text: str) -> int:
    """A number of threads."""
    if not text.isdecimal() or not 1 <= int(text) <= MAX_THREADS:
        raise argparse.ArgumentTypeError(f"must be an integer in [1, {MAX_THREADS}], got {text!r}")
    return int(text)


def parse_dims(texts: list[str]) -> dict[str, int]:
    """`["n=37", "m=2"]` as values of variables."""
    grid = parse_grid(texts)
    several = [name for name, values in grid.items() if len(values) > 1]
    if several:
        raise InputError("command", f"takes one value of {several[0]}; `semel bench` takes more.")
    return {name: values[0] for name, values in grid.items()}


def parse_grid(texts: list[str]) -> dict[str, list[int]]:
    """`["n=16,128", "m=2"]` as lists of values of variables."""
    found: dict[str, list[int]] = {}
    for text in texts:
        name, _, numbers = text.partition("=")
        values = numbers.split(",")
        if not name or not all(value.isdecimal() for value in values):
            raise InputError("command", f"a value must look like n=37, got {text!r}.")
        found[name] = [int(value) for value in values]
    return found


def parse_bounds(texts: list[str]) -> dict[str, Any]:
    """`["seq=1..512", "batch=4"]` as `semel.load` takes dims."""
    found: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        low, dots, high = value.partition("..")
        if dots and low.isdecimal() and high.isdecimal():
            found[name] = int(low), int(high)
        elif value.isdecimal():
            found[name] = int(value)
        elif value.isidentifier():
            found[name] = value
        if not name or name not in found:
            raise InputError("command", f"a bound must look like seq=1..512, got {text!r}.")
    return found


def parse_json(text: str, name: str) -> Any:
    """A value that is written as JSON."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            "command", f"the value of {name!r} must be a file or JSON, got {text!r}."
        ) from error

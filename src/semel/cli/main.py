"""The `semel` command: parse, dispatch, and turn errors into one line and an exit code.

    argv  --main-->  exit code

0: all is well. 1: a check that the command makes failed. 2: the command could not be run,
because of its arguments or of a Semel error. Each command is a module with one `run`
function that takes the parsed arguments and returns the code.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

import semel
from semel.cli import cache, demo, doctor, explain, profile
from semel.config import MAX_THREADS
from semel.errors import SemelError

_INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: that of the process); the exit code."""
    arguments = build_parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = arguments.run
    try:
        code = command(arguments)
        sys.stdout.flush()
    except SemelError as error:
        print(f"semel: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader (head, less) has seen enough; keep Python from flushing at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except KeyboardInterrupt:
        return _INTERRUPTED
    return code


def build_parser() -> argparse.ArgumentParser:
    """The grammar of the command line; each subcommand names the function that runs it."""
    parser = argparse.ArgumentParser(
        prog="semel", description="An ML compiler and runtime: prepare once, execute many."
    )
    parser.add_argument("--version", action="version", version=f"semel {semel.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_demo(commands)
    _add_cache(commands)
    _add_doctor(commands)
    explain.add_parser(commands)
    profile.add_parser(commands)
    return parser


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "compile a small transformer once, run it at many lengths, check every number"
    parser = commands.add_parser("demo", help=text, description=text.capitalize() + ".")
    parser.add_argument("--threads", type=_threads, metavar="N", help="default: all our cores")
    parser.add_argument("--quick", action="store_true", help="a smaller model, less measuring")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    parser.set_defaults(run=demo.run)


def _add_cache(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "the compiled kernels that are kept on disk"
    parser = commands.add_parser("cache", help=text, description=text.capitalize() + ".")
    parser.add_argument("action", nargs="?", choices=("info", "clear"), default="info")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    parser.set_defaults(run=cache.run)


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "what Semel sees of this machine, and whether it works here"
    parser = commands.add_parser("doctor", help=text, description=text.capitalize() + ".")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    parser.set_defaults(run=doctor.run)


def _threads(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_THREADS:
        raise argparse.ArgumentTypeError(f"must be an integer in [1, {MAX_THREADS}], got {text!r}")
    return int(text)

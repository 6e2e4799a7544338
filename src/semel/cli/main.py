"""The `semel` command: parse, dispatch, and turn errors into one line and an exit code.

    argv  --main-->  exit code

0: all is well. 1: a check that the command makes failed. 2: the command could not be run,
because of its arguments or of a Semel error. 3: a bug of ours. 130: Ctrl-C. Each command is a
module with a `run` function that takes the parsed arguments and returns the code. `--debug` shows
where an error comes from; with `--json`, it is an object on stdout too.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Sequence

import semel
from semel.cli import (
    bench,
    cache,
    compile,
    completion,
    doctor,
    explain,
    inspect,
    profile,
    run,
)
from semel.cli.demo import command as demo
from semel.cli.grammar import Command, add_command
from semel.errors import InternalError, SemelError

_WRONG, _BUG = 2, 3
_INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: that of the process); the exit code."""
    arguments = build_parser().parse_args(argv)
    command: Command = arguments.run
    try:
        code = command(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (head, less) has seen enough; keep Python from flushing at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:  # a user gets a line, whatever it is
        return _tell(error, arguments)
    return code


def _tell(error: Exception, arguments: argparse.Namespace) -> int:
    """Say what went wrong; the exit code."""
    is_bug = not isinstance(error, (SemelError, OSError)) or isinstance(error, InternalError)
    text = f"{type(error).__name__}: {error}" if is_bug else str(error)
    if arguments.debug:
        traceback.print_exception(error)
    elif is_bug:
        text += " (this is a bug of semel; --debug shows where)"
    if arguments.json:
        print(json.dumps({"error": text, "kind": type(error).__name__}, indent=2))
    print(f"semel: {text}", file=sys.stderr)
    return _BUG if is_bug else _WRONG


def build_parser() -> argparse.ArgumentParser:
    """The grammar of the command line; each subcommand names the function that runs it."""
    parser = argparse.ArgumentParser(
        prog="semel", description="An ML compiler and runtime: prepare once, execute many."
    )
    parser.add_argument("--version", action="version", version=f"semel {semel.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (inspect, run, bench, profile, explain, compile, cache):
        module.add_parser(commands)
    demo.add_parser(commands)
    add_command(
        commands, "doctor", "what Semel sees of this machine, and whether it works", doctor.run
    )
    completion.add_parser(commands, build_parser)
    return parser

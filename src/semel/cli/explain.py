"""`semel explain`: what a plan consists of, and why.

    "demo" | "module:function"  -->  text, or JSON

Nothing runs: kernels, buffers and steps are known once a plan is prepared. With `--set` the
plan is executed once at those values, so that the text can give numbers for them.
"""

from __future__ import annotations

import argparse
import json

from semel.cli.target import load_target, parse_values, run_target


def run(arguments: argparse.Namespace) -> int:
    """The command: prepare and explain."""
    target = load_target(arguments.target, threads=arguments.threads, quick=arguments.quick)
    values = parse_values(arguments.set)
    if values:
        run_target(target, values)
    explanation = target.plan.explain()
    print(json.dumps(explanation.json(), indent=2) if arguments.json else explanation)
    return 0


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The grammar of the command."""
    text = "which ops became which kernels and why, buffers, and what each variable changes"
    parser = commands.add_parser("explain", help=text, description=text.capitalize() + ".")
    parser.add_argument("target", metavar="MODULE:FUNCTION", help="or 'demo'")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=N", help="a variable")
    parser.add_argument("--json", action="store_true", help="the explanation as JSON")
    parser.add_argument("--threads", type=int, metavar="N", help="default: all our cores")
    parser.add_argument("--quick", action="store_true", help="demo: a smaller model")
    parser.set_defaults(run=run)

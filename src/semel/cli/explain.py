"""`semel explain`: what a plan consists of, and why.

    model | "module:function" | "demo"  -->  text, or JSON

Kernels, buffers and steps are known once a plan is prepared. With `--dim` or `--input` the plan is
executed once, so that the text can give numbers for those sizes; so is a model whose inputs decide
what is computed, because only a run tells which plan is meant.
"""

from __future__ import annotations

import argparse
import json

from semel.cli.grammar import Commands, add_choices, add_command, add_inputs, add_target, parse_dims
from semel.cli.loaded import COMPILED, load_target


def run(arguments: argparse.Namespace) -> int:
    """The command: prepare and explain."""
    target = load_target(arguments)
    sizes = parse_dims(arguments.dim)
    if sizes or arguments.input or target.form != COMPILED:
        inputs = target.inputs(arguments.input, sizes, arguments.seed)
        target.run(inputs, sizes)
        plan = target.plan_for(inputs)
    else:
        plan = target.graph.plan
    explanation = plan.explain()
    if arguments.json:
        print(json.dumps(explanation.json(), indent=2))
    else:
        print(explanation if arguments.all else explanation.folded())
    return 0


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    """The grammar of the command."""
    text = "which ops became which kernels and why, buffers, and what each variable changes"
    parser = add_command(commands, "explain", text, run)
    add_target(parser)
    add_inputs(parser)
    add_choices(parser)
    parser.add_argument("--all", action="store_true", help="all layers, not one of equal ones")

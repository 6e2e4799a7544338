"""`semel profile`: run a plan under the profiler and show where the time goes.

    model | "module:function" | "demo", sizes  -->  table, and with options JSON, trace, page

The plan runs a few times first: what is shown are medians of several profiled runs, so that
neither the first touch of memory nor a busy neighbour is blamed on a kernel. Tables are as wide as
the terminal; what is piped is not cut.
"""

from __future__ import annotations

import argparse
import json
import sys

from semel.cli.grammar import Commands, add_choices, add_command, add_inputs, add_target, parse_dims
from semel.cli.loaded import load_target
from semel.cli.report import terminal_width
from semel.plan.plan import ExecutionPlan
from semel.plan.report.profile import ProfileReport

_WARM_UP = 3


def run(arguments: argparse.Namespace) -> int:
    """The command: profile, show, and write the files that were asked for."""
    target = load_target(arguments)
    sizes = parse_dims(arguments.dim)
    inputs = target.inputs(arguments.input, sizes, arguments.seed)
    target.run(inputs, sizes)
    report = profile_several(target.plan_for(inputs), arguments.runs)
    if arguments.json:
        print(json.dumps(report.json(), indent=2))
    else:
        print(report.table(None if arguments.all else arguments.top, terminal_width()))
    if arguments.html:
        report.html(arguments.html)
        print(f"semel profile: wrote {arguments.html}", file=sys.stderr)
    if arguments.trace:
        report.chrome_trace(arguments.trace)
        print(f"semel profile: wrote {arguments.trace}", file=sys.stderr)
    return 0


def profile_several(plan: ExecutionPlan, runs: int) -> ProfileReport:
    """Medians of so many profiled runs, after some that warm it up."""
    for _ in range(_WARM_UP):
        plan.execute()
    return plan.execute_profiled(runs=max(runs, 1))


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    """The grammar of the command."""
    text = "where the time of a plan goes: every op, lane, rate and share of the limit"
    parser = add_command(commands, "profile", text, run)
    add_target(parser)
    add_inputs(parser)
    add_choices(parser)
    parser.add_argument("--html", metavar="FILE", help="write one offline page")
    parser.add_argument("--trace", metavar="FILE", help="write a trace for Perfetto")
    parser.add_argument("--runs", type=int, default=9, metavar="N", help="medians of N runs")
    parser.add_argument("--top", type=int, default=30, metavar="N", help="the N longest ops")
    parser.add_argument("--all", action="store_true", help="all ops in order of execution")

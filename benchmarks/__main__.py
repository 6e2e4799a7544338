"""`python -m benchmarks [calls|eager|gemm|conv|...]`: measure, print, write JSON.

arguments  -->  table on stdout, progress on stderr, results in --json FILE
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.decode import decode_lines
from benchmarks.devices import measure_devices
from benchmarks.driver import VARIANT, RowResult, installed_peers, is_tree, measure
from benchmarks.experts import (
    QUICK,
    ExpertTable,
    expert_bars,
    expert_lines,
    measure_experts,
    store_line,
)
from benchmarks.graphs import graph_lines, measure_graphs
from benchmarks.pairs import measure_pairs
from benchmarks.peers import NAMES
from benchmarks.plan import measure_plan, plan_lines
from benchmarks.prepare import measure_prepare, prepare_lines
from benchmarks.report import align, document, limits_line, table
from benchmarks.rows import ROWS
from benchmarks.session import measure_session
from benchmarks.startup import measure_startup, startup_lines
from semel.devices import check_runs_here, choose_target
from semel.errors import UserError

_GROUPS = (
    "calls",
    "eager",
    "elementwise",
    "gemm",
    "conv",
    "models",
    "decode",
    "experts",
    "plan",
    "session",
    "devices",
    "startup",
    "prepare",
    "all",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmarks that `argv` asks for."""
    arguments = _parse(argv)
    if arguments.target is not None:  # here, and in the processes that are started
        os.environ["SEMEL_TARGET"] = arguments.target
    group = arguments.group
    if group == "decode" and arguments.quick:
        group = "decode_quick"
    rows = [
        row
        for row in ROWS.values()
        if (row.group == group or (group == "all" and not row.group.endswith("_quick")))
        and (not arguments.rows or row.name in arguments.rows)
    ]
    peers = [
        *installed_peers(arguments.peers),
        *(f"semel{VARIANT}{it}" for it in arguments.against),
    ]
    results: list[RowResult] = []
    versions: dict[str, str] = {}
    for threads in arguments.threads if rows else ():
        measured, found = measure(
            rows, threads, peers=peers, rounds=arguments.rounds, progress=_progress
        )
        results += measured
        versions |= found
    plan = measure_plan() if arguments.group in ("plan", "all") else []
    plan += measure_session() if arguments.group in ("session", "all") else []
    if arguments.group in ("devices", "all"):
        plan += [*measure_devices(), *measure_pairs()]
    experts = _measure_experts(arguments) if arguments.group in ("experts", "all") else []
    plan += expert_bars(experts)
    startup = measure_startup() if arguments.group in ("startup", "all") else {}
    prepare = measure_prepare() if arguments.group in ("prepare", "all") else []
    graphs = measure_graphs() if arguments.group in ("prepare", "all") else []
    if results:
        print(table(results))
        print(limits_line(results))
    if arguments.group == "decode":
        print(align(decode_lines(results)))
    if experts:
        print(align(expert_lines(experts)), *map(store_line, experts), sep="\n")
    if plan:
        print(align(plan_lines(plan)))
    if startup:
        print(align(startup_lines(startup)))
    if prepare:
        print(align(prepare_lines(prepare)), align(graph_lines(graphs)), sep="\n")
    if arguments.json:
        found = document(results, versions, startup, plan, [*prepare, *graphs], experts)
        text = json.dumps(found, indent=1)
        Path(arguments.json).write_text(text + "\n")
    return 0


def _measure_experts(arguments: argparse.Namespace) -> list[ExpertTable]:
    options = QUICK if arguments.quick else {}
    found = []
    for threads in arguments.threads:
        _progress(f"experts, {threads} thread{'s' if threads > 1 else ''}")
        found.append(measure_experts(threads, rounds=arguments.rounds, **options))
    return found


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("group", nargs="?", choices=_GROUPS, default="all")
    parser.add_argument("--threads", type=_counts, default=[1, 2], metavar="1,2")
    parser.add_argument("--rounds", type=int, default=7, help="after one that is dropped")
    parser.add_argument(
        "--target", type=_target, metavar="NAME", help="what Semel compiles for: x86-64-v3, ..."
    )
    parser.add_argument(
        "--against",
        type=_variants,
        default=[],
        metavar="WHAT,..",
        help="Semel once more in the same rotation: for another target, or that of another tree",
    )
    parser.add_argument("--json", metavar="FILE", help="write everything measured")
    parser.add_argument("--rows", type=_names(ROWS), metavar="ROW,..", help=", ".join(ROWS))
    parser.add_argument(
        "--peers", type=_names(NAMES), default=list(NAMES), metavar="PEER,..", help=", ".join(NAMES)
    )
    parser.add_argument("--quick", action="store_true", help="decode, experts: a small model")
    arguments = parser.parse_args(argv)
    if arguments.quick and arguments.group not in ("decode", "experts"):
        parser.error(f"--quick is of the groups decode and experts, got {arguments.group}")
    if arguments.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {arguments.rounds}")
    return arguments


def _target(text: str) -> str:
    """The name of a target, if this machine can run it."""
    try:
        check_runs_here("target", "cpu", choose_target("cpu", text))
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _variants(text: str) -> list[str]:
    """Trees and targets, each checked."""
    return [word if is_tree(word) else _target(word) for word in text.split(",")]


def _counts(text: str) -> list[int]:
    counts = [int(word) for word in text.split(",") if word.isdecimal() and int(word) > 0]
    if len(counts) != len(text.split(",")):
        raise argparse.ArgumentTypeError(f"must be thread counts such as 1,2, got {text!r}")
    return counts


class _names:  # noqa: N801  (used like a function)
    """A comma list of words from a table."""

    def __init__(self, known: Iterable[str]) -> None:
        self._known = tuple(known)

    def __call__(self, text: str) -> list[str]:
        words = text.split(",")
        unknown = [word for word in words if word not in self._known]
        if unknown:
            known = ", ".join(self._known)
            raise argparse.ArgumentTypeError(f"must be among {known}, got {', '.join(unknown)}")
        return words


def _progress(text: str) -> None:
    print(f"... {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())

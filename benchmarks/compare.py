"""`python -m benchmarks.compare OLD.json NEW.json`: what became slower; fails past a threshold.

    two result files  -->  a table of Semel's p10 times; exit code 1 if a row got worse

Times are first scaled by how the machine itself ran in both files: calls by its arithmetic,
rows bound by memory by its bandwidth. A row that is in one file only is listed, not judged.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import FORMAT, align
from benchmarks.rows import ROWS

Key = tuple[str, int]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the comparison; 1 if any row is slower than the threshold allows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--threshold", type=float, default=0.15, help="allowed slowdown")
    arguments = parser.parse_args(argv)
    old, new = read(arguments.old), read(arguments.new)
    lines = [["row", "thr", "old us", "new us", "ratio", ""]]
    worse = False
    for key in [*old, *(k for k in new if k not in old)]:
        ratio = compare(old.get(key), new.get(key))
        slower = ratio is not None and ratio > 1 + arguments.threshold
        worse = worse or slower
        verdict = "SLOWER" if slower else ""
        lines.append(
            [*_name(key), _time(old.get(key)), _time(new.get(key)), _ratio(ratio), verdict]
        )
    print(align(lines))
    return 1 if worse else 0


def read(path: Path) -> dict[Key, dict[str, Any]]:
    """The results of a file by row and thread count."""
    try:
        document = json.loads(path.read_text())
        results = document["results"] if document["format"] == FORMAT else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"compare: {path} must be a file of results: {error}") from error
    if results is None:
        raise SystemExit(f"compare: {path} must have format {FORMAT}, got {document['format']}.")
    return {(r["row"], r["threads"]): r for r in results}


def compare(old: dict[str, Any] | None, new: dict[str, Any] | None) -> float | None:
    """New time over old time, corrected for the machine; None if either is missing."""
    before, after = _seconds(old), _seconds(new)
    if old is None or new is None or not before or not after:
        return None
    row = ROWS.get(new["row"])
    rate = row.bound if row is not None and row.bound else "fma"
    was, now = old["limits"].get(rate), new["limits"].get(rate)
    return after / before * (now / was if was and now else 1.0)


def _seconds(result: dict[str, Any] | None) -> float:
    timing = (result or {}).get("timings", {}).get("semel", {})
    return 0.0 if timing.get("error") else float(timing.get("p10", 0.0))


def _name(key: Key) -> tuple[str, str]:
    row = ROWS.get(key[0])
    return (row.title if row else key[0]), str(key[1])


def _time(result: dict[str, Any] | None) -> str:
    seconds = _seconds(result)
    return f"{seconds * 1e6:.2f}" if seconds else "-"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


if __name__ == "__main__":
    sys.exit(main())

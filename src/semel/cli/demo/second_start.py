"""A process that has only a plan file: it loads it, writes, and says when it did what.

    plan file, prompt, number of tokens, begin  -->  JSON: seconds since `begin`, tokens, digest

`begin` is `time.monotonic()` of the process that started this one: one clock for both.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from semel.errors import PlanError
from semel.loading import load_plan
from semel.plan.plan import ExecutionPlan

_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Written:
    """What a decoder wrote: tokens, and a digest of the last logits, bit for bit."""

    tokens: tuple[int, ...]
    digest: str


@dataclass(frozen=True, slots=True)
class SecondStart:
    """Seconds: for Python and its imports, for loading, for the first token; and what it wrote."""

    import_seconds: float
    load_seconds: float
    first_seconds: float
    written: Written


def write_tokens(plan: ExecutionPlan, prompt: ArrayLike, number: int) -> Written:
    """Read the prompt and write so many tokens, from the beginning."""
    plan.states.reset()
    ids, tokens, logits = np.asarray(prompt, np.int64), [], b""
    for _ in range(number):
        token, found = plan(ids=ids)
        logits = found.tobytes()
        ids = token.reshape(1)
        tokens.append(int(token))
    return Written(tuple(tokens), hashlib.sha256(logits).hexdigest())


def start_again(path: Path, prompt: Iterable[int], number: int, threads: int) -> SecondStart:
    """Do it in a new process."""
    prompt = [int(token) for token in prompt]
    given = json.dumps([str(path), prompt, number, threads, time.monotonic()])
    command = [sys.executable, "-m", __name__, given]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        raise PlanError(
            "demo", f"a start in a new process must end well, it said: {str(said).strip()[-400:]}"
        ) from error
    found: dict[str, Any] = json.loads(done.stdout)
    imported, loaded, first = found["times"]
    written = Written(tuple(found["tokens"]), found["digest"])
    return SecondStart(imported, loaded - imported, first - loaded, written)


def main(argument: str) -> int:
    """The new process."""
    path, prompt, number, threads, begin = json.loads(argument)
    times = [time.monotonic() - begin]
    plan = load_plan(path, threads=threads)
    times.append(time.monotonic() - begin)
    plan(ids=np.array(prompt, np.int64))
    times.append(time.monotonic() - begin)
    written = write_tokens(plan, prompt, number)
    print(json.dumps({"times": times, "tokens": written.tokens, "digest": written.digest}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

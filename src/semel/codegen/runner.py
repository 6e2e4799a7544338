"""The native plan runner and the worker loop, as LLVM IR.

    emit_runner(arch)  -->  LLVM IR text: entries, run, rebind, walk, recruit, worker, signals, lane

`i64 @entry_k()` runs the plan whose header lies in `@slots[k]`: a call without arguments is
the cheapest that ctypes has. A run rebinds if variables changed, then walks the steps. A
step that is worth it is published in one word, `epoch << 32 | next chunk`; participants take
chunks by moving that word forward. Each publication has an epoch of its own, and tables change
only while nothing is published, so that whoever moves the word owns a chunk of the step as it
is now, however late it comes. If nobody comes, the caller does everything: nothing here can
deadlock. Control steps decide where the walk goes on: a loop's two ends, a branch, a jump, and
a rebind, which takes sizes from memory. Only the end of a loop goes back, and it looks at the
clock: every loop can be interrupted. Before each step one word says whether somebody wants the run
to come back, or to look at the clock every time, since it has a limit.

Invariants: a worker touches a plan's memory only between accepting a lane (mailbox = lane | 1)
and clearing that lane's TAKEN; a run ends after every lane is back. Every wait spins for a
bounded time, then blocks on a futex. Kernels run in the default floating-point mode whatever
the caller's is, and of several failed checks the lowest (row, tile) is reported: so neither
bits nor errors depend on who ran what.

A profiled run takes a second set of the same functions, derived from their text: there the
call of a row reads the clock and writes an event (`_timed`). The first set knows nothing
of it and pays nothing for it.

The text is LLVM IR with short forms for words, atomics, loops and conditions
(`semel.codegen.runner_forms`).
"""

from __future__ import annotations

import re

from semel.codegen.runner_bind import BIND, COMMIT, REBIND
from semel.codegen.runner_forms import expand_forms
from semel.codegen.runner_lane import LANE
from semel.codegen.runner_machine import MACHINE, SYSTEM, SYSTEM_CALLS
from semel.codegen.runner_points import CHUNKS, POINTS
from semel.codegen.runner_share import SHARE, WORKER
from semel.codegen.runner_signal import SIGNAL
from semel.codegen.runner_walk import EVENTS, RUN, WALK
from semel.errors import UnsupportedError
from semel.ir import abi


def emit_runner(arch: str) -> str:
    """The whole module for one architecture; deterministic."""
    if arch not in MACHINE:
        raise UnsupportedError("runner", f"architecture must be x86_64 or aarch64, got {arch}.")
    names = {f"@{kind.__name__}.{m.name}": str(int(m)) for kind in _CONSTANTS for m in kind}
    names |= {
        "@LANE_BYTES": str(abi.LANE_WORDS * abi.WORD_BYTES),
        "@EVENT_WORDS": str(abi.EVENT_WORDS),
        "@BASE_WORDS": str(abi.BASE_WORDS),
        "@WORKER_BYTES": str(abi.WORKER_WORDS * abi.WORD_BYTES),
        "@LARGE_NS": str(abi.LARGE_NS),
        "@MANY_TIMES": str(_MANY_TIMES),
        "@WAKE_NS": str(abi.WAKE_NS),
        "@NO_CLAIM": str(abi.NO_CLAIM),
        "@ONLY_MOVED": str(abi.ONLY_MOVED),
        "@STOP": str(abi.STOP),
        "@HAS_LIMIT": str(abi.HAS_LIMIT),
        "@COME_BACK": str(abi.COME_BACK),
        "@SUBMISSION_BYTES": str(abi.SUBMISSION_WORDS * abi.WORD_BYTES),
        "@TIMES_BYTES": str(abi.TIMES_WORDS * abi.WORD_BYTES),
        "@MAX_SUBMISSIONS": str(abi.MAX_SUBMISSIONS),
        "@END_IDLE": str(abi.END_IDLE),
        "@END_NOW": str(abi.END_NOW),
        "@MASK_BYTES": str(abi.MASK_WORDS * abi.WORD_BYTES),
        "@MASK_BITS": str(abi.MASK_WORDS * 64),
    }
    names |= {f"@SYS_{name}": str(number) for name, number in SYSTEM_CALLS[arch].items()}
    parts = (MACHINE[arch], SYSTEM, SIGNAL, REBIND, BIND, COMMIT, POINTS, CHUNKS, EVENTS)
    walking = expand_forms("\n".join((WALK, SHARE, RUN, WORKER)))
    text = "\n".join((expand_forms("\n".join(parts)), walking, _timed(walking), expand_forms(LANE)))
    text = re.sub(r"@[A-Z]\w*(?:\.\w+)?", lambda m: names[m.group()], text)
    # Without `nounwind` every function would carry an unwind table that nobody reads.
    return re.sub(r"(?m)^(define .*) \{$", r"\1 nounwind {", text + "\n" + _entries())


#: More iterations than this are as good as any number, where work is estimated.
_MANY_TIMES = 1 << 20
_CONSTANTS = (abi.Call, abi.Code, abi.Opcode, abi.RowKind, abi.Verdict)


def _timed(text: str) -> str:
    """Every function on the way from a run to the call of a row, once more, with events."""
    functions = {
        name: body
        for body, name in re.findall(r"(?ms)^(define internal [^\n]*?@(\w+)\(.*?^}\n)", text)
    }
    seeds = {"call_row", "count_step", "cross"}
    found = set(seeds)
    while callers := {
        name
        for name, body in functions.items()
        if name not in found and any(f" @{callee}(" in body for callee in found)
    }:
        found |= callers
    bodies = [functions[name] for name in functions if name in found - seeds]
    copies = re.sub(rf"@({'|'.join(sorted(found))})\(", r"@\1_timed(", "\n".join(bodies))
    return copies.replace("define internal i64 @run_timed(", "define dso_local i64 @run_timed(")


def _entries() -> str:
    count = abi.NUM_ENTRIES
    lines = [f"@slots = dso_local global [{count} x ptr] zeroinitializer, align 64"]
    for k in range(count):
        slot = f"getelementptr ([{count} x ptr], ptr @slots, i64 0, i64 {k})"
        lines.append(
            f"define dso_local i64 @entry_{k}() {{\n  %h = load ptr, ptr {slot}, align 8\n"
            f"  %code = tail call i64 @run(ptr %h)\n  ret i64 %code\n}}"
        )
    return "\n".join(lines) + "\n"

"""Workers run where the thread that they work for may run, also after that was changed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

#: Workers are the threads that Python does not know.
_SCRIPT = """
import os, sys, threading, time
import numpy as np
from tests.plan.build import Sketch
from tests.plan.kernels import TILE

s = Sketch(64 * TILE)
s.op("who", "x", "out")
plan = s.build("out", threads=2)
cpus = sorted(os.sched_getaffinity(0))
other = {{int(t) for t in os.listdir("/proc/self/task")}}

def masks():
    workers = {{int(t) for t in os.listdir("/proc/self/task")}} - other
    return [os.sched_getaffinity(t) for t in workers]

def run_until(is_done, pause):
    until = time.monotonic() + 100
    while time.monotonic() < until:
        time.sleep(pause)
        plan.execute()
        if is_done():
            return
    sys.exit(f"not seen: {{cpus}}, {{masks()}}")

def has_helped():
    return 1 in plan.output_buffer.numpy()

run_until(has_helped, 0.01)
assert len(masks()) == 1 and masks()[0] <= set(cpus), masks()
"""

_CASES = {
    # The calling thread is confined; the worker sleeps and is woken.
    "woken": """
time.sleep(0.1)
os.sched_setaffinity(0, cpus[:1])
run_until(has_helped, 0.05)
assert masks() == [set(cpus[:1])], masks()
""",
    # The worker is not idle for long enough to sleep.
    "awake": """
os.sched_setaffinity(0, cpus[:1])
run_until(lambda: masks() == [set(cpus[:1])], 0)
""",
    # As `taskset -a -p` does it: every thread of the process.
    "all threads": """
for t in os.listdir("/proc/self/task"):
    os.sched_setaffinity(int(t), cpus[:1])
for _ in range(3):
    run_until(has_helped, 0.05)
    assert masks() == [set(cpus[:1])], masks()
""",
    # And back: what is allowed again is used again.
    "widened": """
os.sched_setaffinity(0, cpus[:1])
run_until(lambda: masks() == [set(cpus[:1])], 0.01)
os.sched_setaffinity(0, cpus)
run_until(lambda: masks()[0] - set(cpus[:1]), 0.01)
assert masks()[0] <= set(cpus), masks()
""",
    # Two callers with CPUs of their own.
    "callers": """
def call(cpu):
    other.add(threading.get_native_id())
    os.sched_setaffinity(0, {{cpu}})
    run_until(lambda: masks() == [{{cpu}}], 0.01)

for cpu in (cpus[0], cpus[-1], cpus[0]):
    thread = threading.Thread(target=call, args=(cpu,))
    thread.start()
    thread.join()
    assert masks() == [{{cpu}}], masks()
""",
}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
@pytest.mark.parametrize("case", _CASES)
def test_workers_follow_their_caller(case: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", (_SCRIPT + _CASES[case]).format()],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")

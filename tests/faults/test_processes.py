"""Ctrl-C, forks and the end of the process while lanes are busy, and while a device hangs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_BEGIN = """
import os, signal, threading, time
import numpy as np
from tests.executor.rig import Gate, executor_of
from tests.faults.backend import FAULTS, faulty
from tests.faults.rig import PATIENCE, X, alone, spread, write
from semel.errors import *
from semel.runtime import laned
laned._PATIENCE_S = 0.2
device = faulty()

def soon():
    def kill():
        assert FAULTS.is_reached.wait(PATIENCE)
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=kill, daemon=True).start()

def run_busy(plan):
    write(plan)
    plan.execute()
    good = plan.output_buffer.numpy()
    FAULTS.plan(KIND)
    return good

def child_of(action):
    pid = os.fork()
    if not pid:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    return pid

def end_of(pid):
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""

#: Ctrl-C gets through, whatever the device does; after a reset the plan is as before.
_INTERRUPTED = """
for plan in (MADE(),):
    good = run_busy(plan)
    try:
        soon()
        plan.execute()
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError("not interrupted")
    device.reset()
    plan.execute()
    np.testing.assert_array_equal(plan.output_buffer.numpy(), good)
"""

_SYNCHRONIZED = """
executor = executor_of("cpu:1", "faulty")
plan = alone()
good = run_busy(plan)
ticket = executor.submit(plan)
try:
    soon()
    executor.synchronize_all(PATIENCE)
except KeyboardInterrupt:
    pass
else:
    raise AssertionError("not interrupted")
executor.context("faulty").reset(PATIENCE)
assert isinstance(ticket.exception(PATIENCE), DeviceError)
np.testing.assert_array_equal(executor.submit(plan).result(PATIENCE), good)
"""

#: What the lanes were at is the parent's; the child computes on lanes of its own.
_FORKED = """
executor = executor_of("cpu:1", "faulty")
plan, other = MADE(), alone("cpu:1")
expected = other(x=X)
good = run_busy(plan)
ticket = executor.submit(plan) if plan.device == "faulty" else None
thread = threading.Thread(target=lambda: None if ticket else failing(plan))
def failing(plan):
    try:
        plan.execute()
    except DeviceError:
        pass
thread.start()
assert FAULTS.is_reached.wait(PATIENCE)

def child():
    device.reset()
    np.testing.assert_array_equal(other(x=X), expected)
    write(plan)
    plan.execute()
    np.testing.assert_array_equal(plan.output_buffer.numpy(), good)
    if ticket:
        assert isinstance(ticket.exception(PATIENCE), PlanError)
        np.testing.assert_array_equal(executor.submit(plan).result(PATIENCE), good)
    executor.submit(other).result(PATIENCE)

end_of(child_of(child))
device.reset()
thread.join(PATIENCE)
if ticket:
    assert isinstance(ticket.exception(PATIENCE), DeviceError)
plan.execute()
np.testing.assert_array_equal(plan.output_buffer.numpy(), good)
"""

#: The process ends while the device hangs, within a bounded time and in silence.
_EXIT = """
executor = executor_of("cpu:0", "cpu:1", "faulty")
plan, native = alone(), spread("cpu:1")
run_busy(plan)
write(native)
executor.submit(plan)
for _ in range(200):
    executor.submit(native)
assert FAULTS.is_reached.wait(PATIENCE)
"""

CASES = {
    "ctrl-C in a plan of a device that hangs": ("hangs", "alone", _INTERRUPTED),
    "ctrl-C in a plan over devices, one hangs": ("hangs", "spread", _INTERRUPTED),
    "ctrl-C in a plan over devices, one is stuck": ("is stuck", "spread", _INTERRUPTED),
    "ctrl-C in synchronize_all": ("hangs", "alone", _SYNCHRONIZED),
    "fork beside a run that hangs": ("hangs", "alone", _FORKED),
    "fork beside a run that is stuck": ("is stuck", "alone", _FORKED),
    "fork beside a run over devices": ("is stuck", "spread", _FORKED),
    "exit while a device hangs": ("hangs", "alone", _EXIT),
    "exit while a device is stuck": ("is stuck", "alone", _EXIT),
}


@pytest.mark.parametrize("case", CASES)
def test_of_a_process(case: str) -> None:
    kind, made, code = CASES[case]
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-c",
            f"KIND = {kind!r}\n{_BEGIN}\nMADE = {made}\n{code}",
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=os.getcwd(),
    )
    assert (done.returncode, done.stderr) == (0, "")

"""A device that fails, hangs or is late in the middle of a plan: who, where, and what goes on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.faults.backend import FAULTS, FaultyDevice
from tests.faults.rig import Array, X, alone, be_impatient, spread, write

from semel import ExecutionPlan, Tensor, Variable
from semel.errors import DeviceError, OutOfMemoryError, TimedOutError

PLANS: dict[str, Callable[[], ExecutionPlan]] = {"alone": alone, "spread": spread}


@pytest.fixture(params=PLANS)
def made(request: pytest.FixtureRequest) -> ExecutionPlan:
    plan = PLANS[request.param]()
    write(plan)
    return plan


def expected(plan: ExecutionPlan) -> Array:
    """What it gives while nothing is wrong."""
    plan.execute()
    return plan.output_buffer.numpy()


def check_place(error: DeviceError | TimedOutError) -> None:
    """It names device, row and origin, in words and as fields."""
    assert error.device == "faulty"  # type: ignore[union-attr]
    assert error.row >= 0  # type: ignore[union-attr]
    assert "rig.py" in error.origin  # type: ignore[union-attr]
    assert f"op {error.op} (" in str(error)  # type: ignore[union-attr]
    assert ") on faulty, from " in str(error)


def test_a_device_that_fails_is_named_and_the_plan_runs_again(made: ExecutionPlan) -> None:
    good = expected(made)
    for _ in range(3):
        FAULTS.plan("raises")
        with pytest.raises(DeviceError, match="launch failed with code 719") as caught:
            made.execute()
        check_place(caught.value)
        with pytest.raises(Exception, match=r"failed|last run|never"):
            made.output_buffer.numpy()
        np.testing.assert_array_equal(expected(made), good)


@pytest.mark.parametrize("at", [0, 1])
def test_the_row_is_the_one_that_failed(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    monkeypatch.setattr(FAULTS, "at", at)
    plan = alone()
    write(plan)
    FAULTS.plan("raises")
    with pytest.raises(DeviceError, match="launch failed") as caught:
        plan.execute()
    assert caught.value.row == at  # type: ignore[attr-defined]
    assert plan.prepared_ops[at].name in str(caught.value)


def test_a_device_that_is_late_changes_nothing(made: ExecutionPlan) -> None:
    good = expected(made)
    FAULTS.plan("is late", 0.05)
    made.execute_limited(timeout=30)
    np.testing.assert_array_equal(made.output_buffer.numpy(), good)


def test_a_device_that_hangs_is_given_up_in_time(
    made: ExecutionPlan, device: FaultyDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_impatient(monkeypatch)
    good, other = expected(made), alone("cpu:1")
    FAULTS.plan("hangs")
    with pytest.raises(TimedOutError, match=r"must be over within 0\.3 s") as caught:
        made.execute_limited(timeout=0.3)
    check_place(caught.value)
    other(x=X)  # goes on
    device.reset()
    np.testing.assert_array_equal(expected(made), good)


def test_a_plan_on_a_device_that_still_hangs_says_so(device: FaultyDevice) -> None:
    plan = alone()
    write(plan)
    good = expected(plan)
    FAULTS.plan("hangs")
    with pytest.raises(TimedOutError, match="must be over") as caught:
        plan.execute_limited(timeout=0.05)
    assert "still hangs" in caught.value.__notes__[0]
    for _ in range(2):
        with pytest.raises(DeviceError, match="still hangs"):
            plan.execute()
    device.reset()
    np.testing.assert_array_equal(expected(plan), good)


def test_a_device_that_does_not_come_back_keeps_nobody(
    device: FaultyDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread is in the middle of a call that does not end."""
    be_impatient(monkeypatch)
    plan, other = spread(), spread("cpu:1")
    write(plan)
    good = expected(plan)
    FAULTS.plan("is stuck")
    with pytest.raises(TimedOutError, match=r"must be over within 0\.1 s") as caught:
        plan.execute_limited(timeout=0.1)
    assert "faulty/compute" in caught.value.__notes__[0]
    for use in (plan.execute, plan.release_all_buffers, lambda: plan.execute_limited(timeout=1)):
        with pytest.raises(DeviceError, match=r"faulty/compute.*Reset the device"):
            use()
    np.testing.assert_array_equal(other(x=X), good)
    device.reset()
    np.testing.assert_array_equal(expected(plan), good)
    assert plan.engine.executable._held == []  # type: ignore[attr-defined]
    plan.release_all_buffers()


def test_memory_outlives_the_plan_that_a_device_still_uses(
    device: FaultyDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_impatient(monkeypatch, 0.05)
    plan = spread()
    write(plan)
    FAULTS.plan("is stuck")
    with pytest.raises(TimedOutError, match="must be over"):
        plan.execute_limited(timeout=0.05)
    held = plan.engine.executable._held  # type: ignore[attr-defined]
    assert held == [plan.engine.pins]
    lane = plan.engine.executable._others[0].lane  # type: ignore[attr-defined]
    del plan
    assert len(held) == 1
    device.reset()
    lane.sync(100)


def test_a_failure_in_growing_is_not_a_row_s() -> None:
    """Only what a run met at a row names one."""
    n = Variable("n", 1, None)
    plan = (Tensor.input("x", (n, 8)) + 1).prepare(device="cpu:1", memory_limit=1 << 20)
    with pytest.raises(OutOfMemoryError, match="free") as caught:
        plan(x=np.zeros((1 << 20, 8), np.float32))
    assert not hasattr(caught.value, "row")

"""Memory by its protocol: buffers work on memory that cannot be looked at in place."""

from __future__ import annotations

import numpy as np
import pytest
from tests.plan.far import FarMemory

from semel import Buffer
from semel.errors import DeviceError, ReleasedError, UnsupportedError
from semel.ir.types import FLOAT32, TensorType
from semel.runtime.allocator import allocate
from semel.runtime.memory import Memory
from semel.runtime.spec import DeviceSpec


def far_buffer(memory: Memory, rows: int = 3) -> Buffer:
    return Buffer.window(memory, 64, rows * 8, TensorType((rows, 2), FLOAT32))


ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)


def test_a_buffer_of_another_device_is_copied_in_and_out() -> None:
    memory = FarMemory(128)
    buffer = far_buffer(memory)
    buffer.copyin(ROWS.T.copy().T)  # any strides
    np.testing.assert_array_equal(buffer.numpy(), ROWS)
    target = np.zeros((2, 3), np.float32).T
    buffer.copyout(target)
    np.testing.assert_array_equal(target, ROWS)
    np.testing.assert_array_equal(np.asarray(buffer.view(8, 8)), ROWS[1])
    assert memory.copies == ["in", "out", "out", "out"]


def test_what_is_not_the_hosts_cannot_be_borrowed() -> None:
    buffer = far_buffer(FarMemory(128))
    with pytest.raises(DeviceError, match="cannot be looked at in place"):
        buffer.borrow().array()


def test_an_empty_buffer_is_copied_too() -> None:
    buffer = far_buffer(FarMemory(128), rows=0)
    buffer.copyin(ROWS[:0])
    assert buffer.numpy().shape == (0, 2)


def test_released_memory_is_refused() -> None:
    memory = FarMemory(128)
    buffer = far_buffer(memory)
    memory.release()
    for use in (lambda: buffer.copyin(ROWS), buffer.numpy):
        with pytest.raises(ReleasedError, match="its memory was released"):
            use()


def test_memory_of_the_host_is_filled_duplicated_and_pinned() -> None:
    memory = allocate(100)
    memory.fill(7, 10, 20)
    assert memory.view(9, 12).tolist() == [0, *[7] * 10, 0]
    twin = memory.duplicate()
    twin.fill(1)
    assert (twin.size_bytes, twin.view(0, 2).tolist()) == (100, [1, 1])
    assert memory.view(9, 2).tolist() == [0, 7]
    pin = memory.pin()
    address = memory.address
    memory.release()
    assert isinstance(pin, np.ndarray)
    assert pin.ctypes.data == address


def test_buffers_are_made_on_devices_by_name() -> None:
    assert Buffer.empty((2,), "float32").device == "cpu"
    assert Buffer.empty((2,), "float32", "cpu:0").device == "cpu:0"
    assert Buffer.empty((2,), "float32", DeviceSpec("cpu:1")).device == "cpu:1"
    with pytest.raises(UnsupportedError, match=r"\[Buffer.empty\] device must be one of"):
        Buffer.empty((2,), "float32", "gpu")
    with pytest.raises(UnsupportedError, match=r"divided into 2 \(cpu:0 to cpu:1\), got cpu:2"):
        Buffer.empty((2,), "float32", "cpu:2")

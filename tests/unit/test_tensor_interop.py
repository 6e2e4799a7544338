"""Tensors shown to NumPy, DLPack and Python: copies or read-only views, never aliases."""

from __future__ import annotations

import gc
import mmap
import pickle
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from semel import GraphError, Tensor

DTYPES = ["bool", "int8", "uint16", "int32", "int64", "uint64", "float16", "float32", "float64"]


def values(dtype: Any) -> np.ndarray:
    return np.arange(6).reshape(2, 3).astype(dtype)


class OnlyDLPack:
    """A producer that speaks DLPack and nothing else."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] = (1, 0)) -> None:
        self.array, self.device = array, device

    def __dlpack__(self, **options: Any) -> object:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class OldDLPack(OnlyDLPack):
    """A producer from before version 1.0."""

    def __dlpack__(self) -> object:  # type: ignore[override]
        return self.array.__dlpack__()


@pytest.mark.parametrize("dtype", DTYPES)
def test_dlpack_out_and_in(dtype: str) -> None:
    tensor = Tensor(values(dtype))
    np.testing.assert_array_equal(np.from_dlpack(tensor), values(dtype))  # type: ignore[arg-type]
    assert Tensor.from_dlpack(tensor).numpy().dtype == np.dtype(dtype)


def test_dlpack_carries_bfloat16() -> None:
    array = values(ml_dtypes.bfloat16)
    back = Tensor.from_dlpack(Tensor(array)).numpy()
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("kind", [OnlyDLPack, OldDLPack])
def test_tensor_reads_what_only_speaks_dlpack(kind: type[OnlyDLPack]) -> None:
    source = np.arange(24, dtype=np.int32).reshape(2, 3, 4)[:, ::-1, ::2]
    np.testing.assert_array_equal(Tensor(kind(source)).numpy(), source)
    empty = np.zeros((0, 3), np.float32)
    assert Tensor(kind(empty)).shape == (0, 3)


def test_dlpack_copies_unless_told_otherwise() -> None:
    tensor = Tensor(values("float32"))
    taken = np.from_dlpack(tensor)  # type: ignore[arg-type]
    taken[:] = 9
    assert tensor.numpy()[0, 1] == 1
    view = np.from_dlpack(tensor, copy=False)  # type: ignore[arg-type]
    assert not view.flags.writeable


def test_dlpack_memory_outlives_the_tensor() -> None:
    taken = np.from_dlpack(Tensor(values("int32")), copy=False)  # type: ignore[arg-type]
    gc.collect()
    np.testing.assert_array_equal(taken, values("int32"))


def test_dlpack_refuses_other_devices_and_streams() -> None:
    tensor = Tensor([1.0])
    assert tensor.__dlpack_device__() == (1, 0)
    with pytest.raises(BufferError, match="dl_device"):
        tensor.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="stream"):
        tensor.__dlpack__(stream=1)
    with pytest.raises(GraphError, match=r"CPU memory, got device \(2, 0\)"):
        Tensor.from_dlpack(OnlyDLPack(np.zeros(1), (2, 0)))
    with pytest.raises(GraphError, match="needs an object with __dlpack__, got list"):
        Tensor.from_dlpack([1])


@pytest.mark.parametrize("dtype", [*DTYPES, ml_dtypes.bfloat16])
def test_numpy_reads_a_tensor(dtype: Any) -> None:
    tensor = Tensor(values(dtype))
    np.testing.assert_array_equal(np.asarray(tensor), values(dtype))
    assert np.asarray(tensor).dtype == np.dtype(dtype)
    assert np.asarray(tensor, np.float64).dtype == np.float64


def test_numpy_gives_an_array_of_ones_own() -> None:
    tensor = Tensor(values("float32"))
    tensor.numpy()[:] = 9
    assert tensor.numpy()[0, 1] == 1


def test_asarray_is_a_read_only_view_that_keeps_the_value_alive() -> None:
    tensor = Tensor(values("float32"))
    view = np.asarray(tensor)
    assert not view.flags.writeable
    tensor[0] = 5
    gc.collect()
    np.testing.assert_array_equal(view, values("float32"))


def test_array_protocol_says_when_it_must_copy() -> None:
    tensor = Tensor([1.0])
    assert not tensor.__array__(copy=False).flags.writeable
    with pytest.raises(ValueError, match="needs a copy"):
        tensor.__array__(np.float64, copy=False)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the buffer protocol needs Python 3.12")
def test_buffer_protocol() -> None:
    view = memoryview(Tensor(values("int32")))  # type: ignore[arg-type]
    assert view.shape == (2, 3) and view.readonly


def test_python_numbers() -> None:
    assert float(Tensor(1.5)) == 1.5
    assert int(Tensor([3])) == 3
    assert Tensor([[2]]).item() == 2
    assert bool(Tensor(True))
    assert [10, 20][Tensor(1)] == 20
    assert Tensor([[1.5, 2.5]], "bfloat16").tolist() == [[1.5, 2.5]]
    with pytest.raises(TypeError, match="only integer tensors"):
        [10][Tensor(0.0)]


def test_pickle_holds_the_value() -> None:
    back = pickle.loads(pickle.dumps(Tensor(values("float32"))))
    np.testing.assert_array_equal(back.numpy(), values("float32"))


def mapped(path: Path, access: int) -> mmap.mmap:
    path.write_bytes(np.arange(64, dtype=np.float32).tobytes())
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), 0, access=access)


def test_what_nobody_can_write_is_used_where_it_lies(tmp_path: Path) -> None:
    read_only = mapped(tmp_path / "a", mmap.ACCESS_READ)
    for source in (read_only, memoryview(read_only)[16:], np.arange(64.0).tobytes()):
        array = np.frombuffer(source, np.float32)
        assert np.shares_memory(np.asarray(Tensor(array)), array)
    matrix = np.frombuffer(read_only, np.float32).reshape(8, 8)
    total = Tensor(matrix).sum().numpy()
    np.testing.assert_array_equal(total, matrix.sum())


def test_what_somebody_may_write_is_copied(tmp_path: Path) -> None:
    writable = mapped(tmp_path / "a", mmap.ACCESS_WRITE)
    own = np.arange(64, dtype=np.float32)
    sealed = own.view()
    sealed.flags.writeable = False
    unaligned = np.frombuffer(memoryview(bytes(261))[1:], np.float32)
    sources = [
        own,
        sealed,
        np.frombuffer(memoryview(writable).toreadonly(), np.float32),
        np.frombuffer(bytearray(256), np.float32),
        np.frombuffer(own.tobytes(), np.float32)[::2],
        unaligned,
    ]
    for source in sources:
        assert not np.shares_memory(np.asarray(Tensor(source)), source)
    turned = Tensor(np.frombuffer(memoryview(writable).toreadonly(), np.float32))
    writable[:4] = b"\0\0\xc0\x7f"  # NaN, behind everybody's back
    assert turned.numpy()[0] == 0

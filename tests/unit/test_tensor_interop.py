"""Tensors shown to NumPy, DLPack and Python: copies or read-only views, never aliases."""

from __future__ import annotations

import gc
import mmap
import pickle
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import semel
from semel import GraphError, Tensor
from semel.runtime import interop

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


@pytest.mark.parametrize("kind", [np.asanyarray, OnlyDLPack, OldDLPack])
def test_memory_is_borrowed_where_the_caller_promises(kind: Any) -> None:
    """Nothing is copied, and the owner's memory lives as long as the last tensor over it."""

    class Owner(np.ndarray):
        """One that a weak reference can follow."""

    array = np.arange(6, dtype=np.float32).reshape(2, 3).view(Owner)
    gone = weakref.ref(array)
    borrowed = semel.from_dlpack(kind(array), copy=False)
    assert np.shares_memory(np.asarray(borrowed), array)
    doubled = borrowed * 2
    del array, borrowed
    gc.collect()
    np.testing.assert_array_equal(doubled.numpy(), values("float32") * 2)
    assert gone() is not None
    del doubled
    gc.collect()
    assert gone() is None


def test_what_cannot_lie_where_it_is_is_not_borrowed() -> None:
    matrix = np.arange(6.0).reshape(2, 3)
    unaligned = np.frombuffer(memoryview(bytes(33))[1:], np.float64)
    for source in (matrix.T, matrix[:, ::2], unaligned):
        with pytest.raises(BufferError, match=r"C order and aligned .* leave copy=False out"):
            semel.from_dlpack(OnlyDLPack(source), copy=False)
        np.testing.assert_array_equal(semel.from_dlpack(OnlyDLPack(source)).numpy(), source)
    assert semel.from_dlpack(np.zeros((0, 3)), copy=False).shape == (0, 3)
    kept = semel.from_dlpack(matrix, copy=True, device="cpu")
    matrix[:] = 9
    assert kept.numpy()[0, 1] == 1 and kept.device == "cpu"


def test_a_tensor_is_taken_as_it_is() -> None:
    lazy = Tensor.input("x", (3,)) + 1
    for copy in (None, True, False):
        assert semel.from_dlpack(lazy, copy=copy).id == lazy.id


def test_a_capsule_says_whether_it_is_a_copy_and_may_be_written() -> None:
    tensor = Tensor(values("float32"))

    def flags(**options: Any) -> int:
        capsule = tensor.__dlpack__(max_version=(1, 0), **options)
        return int(interop._opened(capsule, interop._from_dlpack)[1].flags)

    assert [flags(), flags(copy=True), flags(copy=False)] == [2, 2, 1]


def test_torch_and_tensors_share_memory_if_told_to() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    theirs = torch.arange(6.0).reshape(2, 3)
    ours = semel.from_dlpack(theirs, copy=False)
    assert np.asarray(ours).ctypes.data == theirs.data_ptr()
    assert torch.from_dlpack(ours, copy=False).data_ptr() == theirs.data_ptr()
    torch.from_dlpack(ours).add_(1)  # its own copy
    assert ours.numpy()[0, 0] == 0
    half = semel.from_dlpack(torch.ones(3, dtype=torch.bfloat16), copy=False)
    assert half.dtype == "bfloat16" and half.tolist() == [1, 1, 1]
    with pytest.raises(BufferError, match="C order"):
        semel.from_dlpack(theirs.T, copy=False)


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


# ---------------------------------------------------------------- what cannot be read as it is

MASKED = np.ma.array([1.0, 2.0, 3.0], mask=[False, True, False], dtype=np.float32)
X = Tensor.input("x", (3,))


def plan_of_x() -> Any:
    return (X * 2).prepare(threads=1)


ENTRANCES: dict[str, Callable[[Any], Any]] = {
    "Tensor": Tensor,
    "param": lambda a: Tensor.param("p", a),
    "operand": lambda a: X + a,
    "Buffer": semel.Buffer,
    "call": lambda a: plan_of_x()(x=a),
    "copyin": lambda a: plan_of_x().buffer(X).copyin(a),
    "bind_input": lambda a: plan_of_x().bind_input("x", a),
    "bind_output": lambda a: plan_of_x().bind_output("output0", a),
}


@pytest.mark.parametrize("name", ENTRANCES)
def test_a_masked_array_is_refused_everywhere(name: str) -> None:
    """Its mask would be lost, and what it hides be computed with."""
    with pytest.raises(semel.UserError, match=r"must not be a masked array: call \.filled"):
        ENTRANCES[name](MASKED)


@pytest.mark.parametrize(
    "data",
    [[MASKED, MASKED], [1.0, np.ma.masked, 2.0], (MASKED,), [[[MASKED]]], [[1.0], (MASKED,)]],
)
def test_masked_arrays_in_lists_are_refused(data: Any) -> None:
    for entrance in (Tensor, lambda a: plan_of_x()(x=a)):
        with pytest.raises(semel.UserError, match="must not be a masked array"):
            entrance(data)


@pytest.mark.parametrize("key", [np.ma.array([0, 1]), np.ma.array([True, False, True])])
def test_masked_arrays_are_no_indices(key: Any) -> None:
    with pytest.raises(semel.GraphError, match="indices must not be a masked array"):
        X[key]


class Guarded:
    """An array of another library that only its owner may export, as torch has it."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise RuntimeError("needs a gradient, use detach()")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("needs a gradient, use detach()")


READERS = [n for n in ENTRANCES if not n.startswith("bind")]


@pytest.mark.parametrize("name", READERS)
def test_what_another_library_says_is_passed_on(name: str) -> None:
    with pytest.raises(semel.UserError, match=r"needs a gradient, use detach\(\)"):
        ENTRANCES[name](Guarded())


class Nowhere(Guarded):
    """Data without a place, as torch's meta tensors are."""

    def __dlpack_device__(self) -> tuple[int, int]:
        raise ValueError("Unknown device type meta")


@pytest.mark.parametrize("name", READERS)
def test_data_that_is_nowhere_is_refused(name: str) -> None:
    with pytest.raises(semel.UserError, match="Unknown device type meta"):
        ENTRANCES[name](Nowhere())


class HalfInCapsule:
    """What torch does with bfloat16: NumPy cannot have it, DLPack can."""

    def __init__(self) -> None:
        self.tensor = Tensor(np.array([1, 2, 3], ml_dtypes.bfloat16))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise TypeError("Got unsupported ScalarType BFloat16")

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options)


def test_bfloat16_of_other_libraries_is_read_everywhere() -> None:
    x = Tensor.input("x", (3,), "bfloat16")
    plan = (x * 2).prepare(threads=1)
    assert plan(x=HalfInCapsule()).tolist() == [2, 4, 6]
    buffer = plan.buffer(x)
    assert buffer is not None
    buffer.copyin(HalfInCapsule())
    assert Tensor(HalfInCapsule()).dtype == semel.Buffer(HalfInCapsule()).dtype == "bfloat16"
    with pytest.raises(semel.InputError, match="dtype must be float32, got bfloat16"):
        plan_of_x()(x=HalfInCapsule())


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    half = torch.tensor([1, 2, 3], dtype=torch.bfloat16)
    x = Tensor.input("x", (3,), "bfloat16")
    assert (x * 2).prepare(threads=1)(x=half).tolist() == [2, 4, 6]
    grad = torch.ones(3, requires_grad=True)
    for name in READERS:
        with pytest.raises(semel.UserError, match="detach"):
            ENTRANCES[name](grad)
    assert plan_of_x()(x=grad.detach()).tolist() == [2, 2, 2]
    assert plan_of_x()(x=torch.ones(6)[::2]).tolist() == [2, 2, 2]


def test_a_list_that_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(GraphError, match=r"^\[Tensor\] data must be"):
        Tensor(endless)

"""Reading .safetensors files, and files that only look like it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from semel.errors import InputError
from semel.frontends.safetensors import load_safetensors, save_safetensors


def write(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def row(dtype: str, shape: list[int], start: int, stop: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def test_arrays_come_back_by_name(tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray] = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array([1, -2], np.int64),
        "half": np.array([0.5, -3], ml_dtypes.bfloat16),
        "none": np.zeros((0, 4), np.float16),
        "one": np.array(True),
    }
    names = {"float32": "F32", "int64": "I64", "bfloat16": "BF16", "float16": "F16", "bool": "BOOL"}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, array in arrays.items():
        end = len(data) + array.nbytes
        header[name] = row(names[array.dtype.name], list(array.shape), len(data), end)
        data += array.tobytes()
    found = load_safetensors(write(tmp_path / "m.safetensors", header, data))
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    assert not found["a"].flags.writeable


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray] = {
        "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "half": np.array([0.5, -3, 7], ml_dtypes.bfloat16),
        "none": np.zeros((0, 4), np.int8),
        "one": np.array(2.5),
    }
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"old")
    save_safetensors(path, arrays)
    found = load_safetensors(path)
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]


def test_float8_is_what_the_reference_library_reads(tmp_path: Path) -> None:
    theirs, torch = pytest.importorskip("safetensors.torch"), pytest.importorskip("torch")
    names = ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
    codes = np.arange(256, dtype=np.uint8)
    arrays = {name: codes.view(getattr(ml_dtypes, f"float8_{name}")) for name in names}
    path = tmp_path / "m.safetensors"
    save_safetensors(path, arrays)
    for name, array in load_safetensors(path).items():
        assert array.dtype == arrays[name].dtype and (array.view(np.uint8) == codes).all()
    del arrays["e8m0fnu"]  # the format has it, their library for PyTorch does not
    save_safetensors(path, arrays)
    for name, tensor in theirs.load_file(path).items():
        assert tensor.dtype == getattr(torch, f"float8_{name}")
        assert (tensor.view(torch.uint8).numpy() == codes).all()


def test_a_dtype_the_format_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"m.safetensors: c\] dtype must be one of .* got complex64"
    ):
        save_safetensors(tmp_path / "m.safetensors", {"c": np.zeros(2, np.complex64)})
    assert not list(tmp_path.iterdir())


BROKEN: list[tuple[str, Any, str]] = [
    ("not JSON", b"{", "the header must be JSON"),
    ("a list", [], "the header must be an object, got list"),
    ("no dtype", {"a": {"shape": [1]}}, r"m.safetensors: a\] needs dtype, shape and data_offsets"),
    ("unknown dtype", {"a": row("F8", [1], 0, 1)}, "dtype must be one of .* got 'F8'"),
    (
        "past the end",
        {"a": row("F32", [4], 0, 16)},
        "arrays must cover the 8 bytes of data, got 16",
    ),
    ("a gap", {"a": row("U8", [4], 4, 8)}, r"a\] must begin where another ends, at 0, got 4"),
    (
        "an overlap",
        {"a": row("U8", [8], 0, 8), "b": row("U8", [1], 3, 4)},
        r"b\] must begin where another ends, at 8, got 3",
    ),
    ("bytes of nobody", {"a": row("U8", [4], 0, 4)}, "must cover the 8 bytes of data, got 4"),
    ("dtype in a list", {"a": row(["U8"], [8], 0, 8)}, r"dtype must be one of .*\['U8'\]"),  # type: ignore[arg-type]
    ("a number that is true", {"a": row("U8", [True, 8], 0, 8)}, "shape must be a list of sizes"),
    ("a number that is no integer", {"a": row("U8", [8.0], 0, 8)}, "shape must be a list of sizes"),  # type: ignore[list-item]
    ("more than 64 bits", {"a": row("U8", [1 << 62, 4, 0], 0, 0)}, "must fit 64 bits"),
    (
        "a size past NumPy",
        {"a": row("U8", [8], 0, 8), "b": row("U8", [0, 1 << 63], 8, 8)},
        "shape must be one that an array has",
    ),
    ("NaN", b'{"a": NaN}', "a value must not be NaN"),
    ("infinite", b'{"__metadata__": {"a": 1e999}}', "a number must be finite"),
    ("half a character", b'{"\\ud800": 1}', "the header must be JSON"),
    ("deep", b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}", "nested at most 127 deep"),
    ("metadata of numbers", {"__metadata__": {"a": 1}}, "must map strings to strings"),
    ("a name twice", b'{"a": 1, "a": 2}', "names must be distinct, got 'a' twice"),
    (
        "a field twice",
        b'{"a": {"dtype": "U8", "dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}',
        "must have dtype once",
    ),
    ("wrong size", {"a": row("F32", [3], 0, 8)}, r"F32\[3\] takes 12 bytes, got 8"),
    ("negative", {"a": row("U8", [-1], 0, 0)}, "shape must be a list of sizes"),
    ("before the start", {"a": row("U8", [4], -4, 0)}, "data_offsets must be a list of sizes"),
]


@pytest.mark.parametrize(("header", "message"), [r[1:] for r in BROKEN], ids=[r[0] for r in BROKEN])
def test_a_broken_file_is_refused(tmp_path: Path, header: Any, message: str) -> None:
    path = write(tmp_path / "m.safetensors", header, bytes(8))
    with pytest.raises(InputError, match=message):
        load_safetensors(path)


@pytest.mark.parametrize("content", [b"", b"abc", (1 << 40).to_bytes(8, "little") + b"{}"])
def test_a_file_too_short_for_its_header_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"at least 8 bytes|must end inside the file"):
        load_safetensors(path)

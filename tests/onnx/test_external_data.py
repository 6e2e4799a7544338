"""Weights in files beside a model: which are opened, what must be in them, what is read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import semel
from semel.errors import ModelError

onnx = pytest.importorskip("onnx")

W = np.arange(64, dtype=np.float32).reshape(8, 8)
X = np.ones((2, 8), np.float32)
FLOAT = 1


def entry(location: str | None = "w.bin", **said: Any) -> Any:
    """A tensor whose numbers lie in a file; `dims` and `kind` are its own."""
    dims, kind = said.pop("dims", (8, 8)), said.pop("kind", FLOAT)
    tensor = onnx.TensorProto(name="w", dims=dims)
    tensor.data_type = kind
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, **said}.items():
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
    return tensor


def written(folder: Path, tensor: Any, text: str = "") -> Path:
    """A model that reads this tensor, in a folder."""
    text = text or "g (float[n, 8] x) => (float[n, 8] y) { y = MatMul (x, w) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    model.graph.initializer.append(tensor)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One with weights in it and in a folder below, and others outside."""
    made = tmp_path / "model"
    (made / "sub").mkdir(parents=True)
    for path in (made / "w.bin", made / "sub" / "w.bin", tmp_path / "outside.bin"):
        path.write_bytes(W.tobytes())
    return made


def check(path: Path, want: Any = W) -> None:
    np.testing.assert_allclose(semel.load(path).run(X)["y"], X @ want)


def test_weights_lie_beside_the_model_or_below(folder: Path) -> None:
    check(written(folder, entry()))
    check(written(folder, entry("sub/w.bin")))
    check(written(folder, entry("./w.bin", offset=0, length=256)))


@pytest.mark.parametrize("offset", [4, 2, 64])
def test_weights_begin_anywhere(folder: Path, offset: int) -> None:
    """Behind others in the file, in the middle of a page, of a vector, of a number."""
    (folder / "w.bin").write_bytes(bytes(offset) + W.tobytes() + b"more")
    check(written(folder, entry(offset=offset, length=256)))


BEFORE = {
    "bfloat16": np.float32,
    "int8": np.int8,
    "float8e4m3fn": np.float32,
    "int4": np.int8,
    "uint2": np.uint8,
}


@pytest.mark.parametrize("kind", BEFORE)
def test_numbers_of_all_widths(folder: Path, kind: str) -> None:
    code = onnx.TensorProto.DataType.Value(kind.upper())
    numbers = np.arange(64).reshape(8, 8) % 4
    dtype = onnx.helper.tensor_dtype_to_np_dtype(code)
    raw = onnx.numpy_helper.from_array(numbers.astype(dtype)).raw_data
    (folder / "w.bin").write_bytes(raw)
    text = "g (float[n, 8] x) => (float[n, 8] y) { v = Cast <to = 1> (w) y = MatMul (x, v) }"
    path = written(folder, entry(kind=code), text)
    model = onnx.load(path, load_external_data=False)
    model.opset_import[0].version, model.ir_version = 25, 13
    path.write_bytes(model.SerializeToString())
    check(path, numbers)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "absolute": (lambda: entry("/etc/passwd"), "must lie in a file beside the model"),
    "above": (lambda: entry("../outside.bin"), "must lie in a file beside the model"),
    "below and above": (lambda: entry("sub/../w.bin"), "must lie in a file beside the model"),
    "link": (lambda: entry("link.bin"), "must lie in a file beside the model"),
    "link to a folder": (lambda: entry("out/outside.bin"), "must lie in a file beside the model"),
    "no name": (lambda: entry(""), "must lie in a file beside the model"),
    "no entry": (lambda: entry(None), "must lie in a file beside the model"),
    "zero byte": (lambda: entry("w\0.bin"), "must lie in a file beside the model"),
    "ring": (lambda: entry("ring"), "must be readable"),
    "long name": (lambda: entry("w" * 5000), "must be readable"),
    "missing": (lambda: entry("none.bin"), r"must be readable.*none\.bin"),
    "folder": (lambda: entry("sub"), "must be a file"),
    "pipe": (lambda: entry("pipe"), "must be a file"),
    "offset out of the file": (lambda: entry(offset=64), "must be 256 bytes inside of w.bin"),
    "offset far out": (lambda: entry(offset=10**30), "must be 256 bytes inside of w.bin"),
    "offset below": (lambda: entry(offset=-4), "must be 256 bytes inside of w.bin"),
    "offset no number": (lambda: entry(offset="a"), "must say offset and length"),
    "offset of many digits": (lambda: entry(offset="9" * 5000), "must say offset and length"),
    "length too small": (lambda: entry(length=12), "must be 256 bytes"),
    "length no multiple": (lambda: entry(length=255), "must be 256 bytes"),
    "length out of the file": (lambda: entry(length=512), "must be 256 bytes"),
    "length below": (lambda: entry(length=-1), "must be 256 bytes"),
    "dims below": (lambda: entry(dims=(-8, -8)), r"must have no negative dims, got \[-8, -8\]"),
    "dims huge": (lambda: entry(dims=(2**40, 2**40)), f"must be {2**82} bytes"),
    "type unknown": (lambda: entry(kind=99), "must be one of the standard's, got 99"),
    "type undefined": (lambda: entry(kind=0), "must be one of the standard's, got 0"),
    "text": (lambda: entry(kind=8), "must not be text in an external"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_damaged_entries_are_refused(folder: Path, name: str) -> None:
    (folder / "link.bin").symlink_to("../outside.bin")
    (folder / "out").symlink_to("..")
    (folder / "ring").symlink_to("ring")
    os.mkfifo(folder / "pipe")
    make, message = REFUSED[name]
    with pytest.raises(ModelError, match=message):
        semel.load(written(folder, make()))


INSIDE: dict[str, tuple[dict[str, Any], str]] = {
    "type unknown": ({"kind": 99, "dims": (64,)}, "must be one of the standard's, got 99"),
    "dims below": ({"kind": FLOAT, "dims": (-64,)}, "must have no negative dims"),
    "dims huge": ({"kind": FLOAT, "dims": (2**40, 2**40)}, "must hold what its type says"),
}


@pytest.mark.parametrize("name", INSIDE)
def test_damaged_tensors_in_the_message_are_refused(folder: Path, name: str) -> None:
    said, message = INSIDE[name]
    tensor = entry(**said)
    tensor.ClearField("external_data")
    tensor.data_location, tensor.raw_data = onnx.TensorProto.DEFAULT, W.tobytes()
    with pytest.raises(ModelError, match=message):
        semel.load(written(folder, tensor))


def test_a_model_from_memory_has_no_files(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"a model from memory has no folder\..*from its path"):
        semel.load(written(folder, entry()).read_bytes())


def test_an_empty_file_holds_tensors_of_no_elements(folder: Path) -> None:
    (folder / "w.bin").write_bytes(b"")
    text = "g (float[n, 8] x) => (float[m, 8] y) { y = Concat <axis = 0> (x, w) }"
    np.testing.assert_array_equal(
        semel.load(written(folder, entry(dims=(0, 8)), text)).run(X)["y"], X
    )


def test_tensors_of_sub_graphs_and_functions_lie_in_files(folder: Path) -> None:
    text = """g (float[n, 8] x) => (float[n, 8] y) {
        yes = Constant <value = bool {1}> ()
        s = If (yes) <then_branch = a () => (p) { p = MatMul (x, v) },
                      else_branch = b () => (q) { q = Identity (x) }>
        y = own.more (s)
    }
    <domain: "own", opset_import: ["" : 17]>
    more (a) => (b) { w = Constant <value = float[1] {1}> () b = MatMul (a, w) }"""
    path = written(folder, entry(), text.replace("g (", "g (", 1))
    model = onnx.load(path, load_external_data=False)
    model.opset_import.add(domain="own", version=1)
    inner = entry("sub/w.bin")
    inner.name = "v"
    model.graph.node[1].attribute[0].g.initializer.append(inner)
    model.functions[0].node[0].attribute[0].t.CopyFrom(entry())
    path.write_bytes(model.SerializeToString())
    check(path, W @ W)


# ---------------------------------------------------------------- links


def test_a_folder_may_be_a_link(folder: Path, tmp_path: Path) -> None:
    written(folder, entry())
    (tmp_path / "link").symlink_to(folder)
    check(tmp_path / "link" / "model.onnx")


def cache_of_links(root: Path) -> Path:
    """As model hubs lay out their caches: a snapshot of links into a folder of blobs."""
    blobs, snapshot = root / "blobs", root / "snapshots" / "main" / "onnx"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    shutil.move(written(blobs, entry("model.data")), blobs / "a0")
    (blobs / "b1").write_bytes(W.tobytes())
    (snapshot / "model.onnx").symlink_to("../../../blobs/a0")
    (snapshot / "model.data").symlink_to("../../../blobs/b1")
    return snapshot


def test_a_cache_of_links_loads(tmp_path: Path) -> None:
    check(cache_of_links(tmp_path / "hub") / "model.onnx")


def test_data_beside_the_file_that_a_link_leads_to(folder: Path, tmp_path: Path) -> None:
    written(folder, entry())
    (tmp_path / "m.onnx").symlink_to(folder / "model.onnx")
    check(tmp_path / "m.onnx")


def test_other_links_out_of_a_cache_are_refused(tmp_path: Path) -> None:
    snapshot = cache_of_links(tmp_path / "hub")
    (tmp_path / "outside").write_bytes(W.tobytes())
    (snapshot / "model.data").unlink()
    (snapshot / "model.data").symlink_to(tmp_path / "outside")
    with pytest.raises(ModelError, match="must lie in a file beside the model"):
        semel.load(snapshot / "model.onnx")


# ---------------------------------------------------------------- size

LARGE = """
import resource, sys
import numpy as np, semel
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
y = semel.load(sys.argv[1], threads=1).run(i=np.array([0, int(sys.argv[2])]))["y"]
print(y[0, 0], y[1, 0], (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


def test_a_file_of_more_than_2_gb_is_mapped(folder: Path) -> None:
    rows = (1 << 31) // 4096 + 4096
    with open(folder / "w.bin", "wb") as file:
        file.truncate(rows * 4096)
        file.seek((rows - 1) * 4096)
        file.write(np.full(1024, 3, np.float32).tobytes())
    text = "g (int64[k] i) => (float[k, 1024] y) { y = Gather <axis = 0> (w, i) }"
    path = written(folder, entry(dims=(rows, 1024)), text)
    done = subprocess.run(
        [sys.executable, "-c", LARGE, str(path), str(rows - 1)],
        capture_output=True,
        text=True,
        check=True,
    )
    first, last, grown = done.stdout.split()
    assert (float(first), float(last)) == (0.0, 3.0)
    assert int(grown) < 400, "a fifth of the file at most: the compiler is in it"

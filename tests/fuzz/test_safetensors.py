"""Files that are changed at random: accepted exactly if the reference library accepts them."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from tests.fuzz.long import long, search

from semel.errors import InputError
from semel.frontends.safetensors import load_safetensors

reference = pytest.importorskip("safetensors", reason="the reference library is not installed")
#: What NumPy has no dtype for, or a file may say in two ways: refused here alone.
STRICTER = ("dtype must be one of", "names must be distinct", "shape must be one that an array has")
ODD: list[Any] = [
    None, True, -1, 0, 1, 3, 4, 8, 1 << 31, 1 << 62, 1 << 64, 0.0, 4.0, 1e300, "", "a", "F32", "U8",
    "F8_E4M3", "C64", "é", [], [0], [4], [0, 4], [4, 4], [0, 1 << 62], {}, {"a": "b"}, {"a": 1},
]  # fmt: skip


def valid(rng: Random) -> tuple[dict[str, Any], bytes]:
    header: dict[str, Any] = {}
    if rng.random() < 0.4:
        header["__metadata__"] = {"format": "pt"}
    end = 0
    for i in range(rng.randrange(4)):
        dtype, itemsize = rng.choice([("F32", 4), ("U8", 1), ("I64", 8), ("BF16", 2), ("BOOL", 1)])
        shape = [rng.randrange(4) for _ in range(rng.randrange(3))]
        size = itemsize * int(np.prod(shape))
        header[f"t{i}"] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    return header, bytes(rng.randrange(2) for _ in range(end))


def mutilated(node: Any, rng: Random) -> None:
    """Replace, move, remove or double something somewhere inside."""
    while isinstance(node, (list, dict)) and node:
        key = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
        if rng.random() < 0.3 or not isinstance(node[key], (list, dict)) or not node[key]:
            match rng.randrange(5):
                case 0:
                    del node[key]
                case 1 if isinstance(node, list):
                    node.insert(key, deepcopy(rng.choice(ODD)))
                case 2 if type(node[key]) is int:
                    node[key] += rng.choice((-1, 1, 4, -4))
                case 3 if isinstance(node, dict):
                    node[rng.choice(["x", "dtype", "t9", "__metadata__"])] = deepcopy(node[key])
                case _:
                    node[key] = deepcopy(rng.choice(ODD))
            return
        node = node[key]


def changed_text(text: bytes, rng: Random) -> bytes:
    """A few bytes of the JSON replaced, doubled or removed."""
    data = bytearray(text)
    for _ in range(rng.randrange(1, 3)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[at:at] = rng.choice(
                    [b" ", b"0", b"-", b",", b'"', b"\\u0041", b"NaN", b"\xff"]
                )
            case 1:
                del data[at : at + rng.randrange(1, 4)]
            case 2:
                part = data[at : at + rng.randrange(1, 60)]
                data[at:at] = part
            case _:
                data[at : at + 1] = bytes([rng.randrange(256)])
    return bytes(data)


def make_file(rng: Random) -> bytes:
    header, data = valid(rng)
    for _ in range(rng.choice((0, 1, 1, 2))):
        mutilated(header, rng)
    text = json.dumps(header).encode()
    if rng.random() < 0.4:
        text = changed_text(text, rng)
    length = len(text) + (rng.choice((-1, 1, 8, 1 << 40)) if rng.random() < 0.05 else 0)
    if rng.random() < 0.1:
        data = rng.choice((data + b"x", data[:-1], b""))
    return max(length, 0).to_bytes(8, "little") + text + data


def check(rng: Random, path: Path) -> str:
    content = make_file(rng)
    path.write_bytes(content)
    try:
        want = dict(reference.deserialize(content))
    except Exception:  # one of several types, with the version of the library
        want = None
    try:
        got = load_safetensors(path)
    except InputError as error:
        known = any(text in str(error) for text in STRICTER) or "got ['" in str(error)
        assert want is None or known or _is_odd_form(content), f"refused: {error}\n{content!r}"
        return "refused"
    assert want is not None, f"accepted, and the library does not\n{content!r}"
    assert got.keys() == want.keys()
    for name, array in got.items():
        assert list(array.shape) == want[name]["shape"]
        assert array.tobytes() == bytes(want[name]["data"])
    return "accepted"


def _is_odd_form(content: bytes) -> bool:
    """A row that is a list, or a dtype that is an object: the library reads them all the same."""
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    rows = [row for name, row in header.items() if name != "__metadata__"]
    return any(isinstance(row, list) or isinstance(row.get("dtype"), dict) for row in rows)


def test_changed_files_are_judged_as_the_library_does(tmp_path: Path) -> None:
    outcomes = [check(Random(seed), tmp_path / "a.safetensors") for seed in range(1500)]
    assert outcomes.count("accepted") > 200
    assert outcomes.count("refused") > 200


@long
def test_newly_changed_files_are_judged_as_the_library_does(tmp_path: Path) -> None:
    search(lambda seed: check(Random(seed), tmp_path / "a.safetensors"))

"""Models that are changed at random: a typed error, or the numbers of the reference.

The changed ones are cases of the official suite, small and of many operators. A change is to the
bytes of the file or to the message: nodes that are gone, doubled or rewired, other attributes,
dims, types and numbers. Whatever a model says, loading it and running it neither crashes nor
raises anything but errors of ours.

The same of weights in files beside the model: inputs of a case become such weights, and where they
lie, what they are and the file itself are changed.
"""

from __future__ import annotations

import os
import tempfile
import warnings
import zlib
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from tests.fuzz.long import long, search

import semel
from semel.errors import InternalError, SemelError

onnx = pytest.importorskip("onnx")
suite = pytest.importorskip("tests.onnx.suite")
reference = pytest.importorskip("onnx.reference")

_ODD = (-(2**31), -7, -2, -1, 0, 1, 2, 3, 5, 100)  # a size of 2**31 is just large


def _is_small(case: Any) -> bool:
    return case.kind == "node" and case.source.model is not None and "image" not in case.name


NAMES = [n for n, c in suite.cases().items() if _is_small(c) and zlib.crc32(n.encode()) % 7 == 0]


def changed(model: Any, rng: Random) -> Any:
    """A copy with something changed; None if its bytes are no message any more."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        _change(made, rng)
    if rng.random() < 0.25:
        data = bytearray(made.SerializeToString())
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(data)
    return bytes(made.SerializeToString())


def _change(made: Any, rng: Random) -> None:
    graph = made.graph
    if not graph.node:
        return
    node = rng.choice(list(graph.node))
    names = [v.name for v in graph.input] + [n for each in graph.node for n in each.output]
    match rng.randrange(9):
        case 0 if len(graph.node) > 1:
            graph.node.remove(node)
        case 1 if node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice([*names, "", "nobody"])
        case 2 if node.input:
            node.input.pop()
        case 3:
            node.op_type = rng.choice(["Add", "Reshape", "Concat", "Nothing", node.op_type])
        case 4 | 5 if node.attribute:
            _change_attribute(rng.choice(list(node.attribute)), rng)
        case 6 if graph.input:
            _change_type(rng.choice(list(graph.input)), rng)
        case 7:
            made.opset_import[0].version = rng.choice((0, 1, 6, 7, 9, 11, 13, 18, 21, 99))
        case _:
            node.input.append(rng.choice([*names, ""]))


def _change_attribute(attribute: Any, rng: Random) -> None:
    if attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(_ODD)
    elif attribute.HasField("i"):
        attribute.i = rng.choice(_ODD)
    elif attribute.HasField("f"):
        attribute.f = rng.choice((0.0, -1.0, 1e30, float("nan")))
    elif attribute.HasField("s"):
        attribute.s = rng.choice((b"", b"constant", b"\xff", b"linear"))
    else:
        attribute.name = "other"


def _change_type(given: Any, rng: Random) -> None:
    kind = given.type.tensor_type
    if kind.shape.dim and rng.random() < 0.7:
        dim = rng.choice(list(kind.shape.dim))
        if rng.random() < 0.5:
            dim.dim_param = rng.choice(("n", "?", "core_id", "a b"))
        else:
            dim.dim_value = rng.choice((-1, 0, 1, 2, 7))
    else:
        kind.elem_type = rng.choice((0, 1, 6, 7, 9, 11, 99))


def _feed(model: Any, data: list[Any]) -> dict[str, Any]:
    """The case's arrays, cast and cut to what the model now says, where that is possible."""
    weights = {tensor.name for tensor in model.graph.initializer}
    names = [v.name for v in model.graph.input if v.name not in weights]
    return dict(zip(names, data, strict=False))


def check(rng: Random) -> str:
    case = suite.cases()[rng.choice(NAMES)]
    content = changed(case.model, rng)
    data, _ = next(iter(case.data()))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return _judge(case, content, data)


def _judge(case: Any, content: bytes, data: list[Any], source: Any = None) -> str:
    """What becomes of a model, which is `source` where its weights lie in files."""
    try:
        proto = onnx.ModelProto.FromString(content)
        feed = _feed(proto, data)
    except Exception:
        feed = {}
    try:
        found = semel.load(source or content, threads=1).run(feed)
        names = [output.name for output in onnx.ModelProto.FromString(content).graph.output]
        ours = [found[name] for name in names]
    except InternalError:
        raise
    except SemelError:
        return "refused"
    return _compared(case, content, feed, ours)


def _compared(case: Any, content: bytes, feed: dict[str, Any], ours: list[Any]) -> str:
    """Where the reference takes a model and is of one mind with itself, we must agree with it."""
    if "Random" in case.name or "bernoulli" in case.name or "dropout" in case.name:
        return "ran"
    if _is_disputed(case.model, onnx.ModelProto.FromString(content)):
        return "ran"
    try:
        onnx.checker.check_model(content, full_check=True)
        want = reference.ReferenceEvaluator(onnx.ModelProto.FromString(content)).run(None, feed)
        again = reference.ReferenceEvaluator(onnx.ModelProto.FromString(content)).run(None, feed)
    except Exception:
        return "ran"
    for have, expected, twice in zip(ours, want, again, strict=True):
        if not isinstance(expected, np.ndarray) or expected.dtype.kind not in "fiub":
            return "ran"
        if not np.array_equal(expected, twice, equal_nan=expected.dtype.kind == "f"):
            return "ran"
        if have.shape != expected.shape or have.dtype != expected.dtype:
            return "ran"  # the reference leaves both to NumPy, and checks neither
        np.testing.assert_allclose(have, expected, rtol=1e-2, atol=1e-3, err_msg=case.name)
    return "equal"


def _is_disputed(before: Any, model: Any) -> bool:
    """Whether the reference does not do what the standard says; each of these was looked at."""
    version = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0)
    known = [node.SerializeToString() for node in before.graph.node]
    for node in model.graph.node:
        number = {a.name: a.f for a in node.attribute if a.HasField("f")}
        whole = {a.name: a.i for a in node.attribute if a.HasField("i")}
        roots = {a.name: a.ints for a in node.attribute if a.ints}
        match node.op_type:
            # Pads count as elements there; the axes behind `axis` are no part of the sum there.
            case "AveragePool" if version < 7:
                return True
            case "Softmax" | "LogSoftmax" | "Hardmax" if version < 13:
                return True
            # A scale of 0 is none there; of others the root is taken there.
            case "Attention" if number.get("scale", 1.0) <= 0:
                return True
            # A target that no leaf has is the largest number there, and nothing is transformed.
            case "TreeEnsemble" if whole.get("aggregate_function", 1) > 1:
                return True
            case "TreeEnsemble" if whole.get("post_transform", 0):
                return True
            # Sets of members are handed out as nodes are met there, not as they are written.
            case "TreeEnsemble" if [*roots.get("tree_roots", ())] != [0]:
                return True
            # What does not fit into a whole number has no defined value.
            case "Cast" | "CastLike" if node.SerializeToString() not in known:
                return True
        if any(not abs(f) < 1e9 for f in number.values()):  # differences of huge numbers
            return True
    return False


# ---------------------------------------------------------------- weights in files

_PLACES = ("w.bin", "none.bin", "../w.bin", "/dev/zero", "pipe", ".", "", "w\0", "link")
_NUMBERS = ("0", "1", "4", "-4", "1000000", "x", str(2**63), "9" * 5000)


def check_external(rng: Random) -> str:
    case = suite.cases()[rng.choice(NAMES)]
    data, _ = next(iter(case.data()))
    arrays = [isinstance(x, np.ndarray) and x.dtype.kind in "fiub" for x in data]
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with np.errstate(all="ignore"):
            path, left = _with_files(case, data, arrays, Path(name), rng)
            try:
                whole = onnx.load(path).SerializeToString()  # by the reader of the standard
            except Exception:
                whole = b""
            return _judge(case, whole, left, path)


def _with_files(
    case: Any, data: list[Any], arrays: list[bool], folder: Path, rng: Random
) -> tuple[Path, list[Any]]:
    """A model whose inputs are weights in a file, all or some, and the inputs that are left."""
    made, left, stored = onnx.ModelProto(), [], bytearray()
    made.CopyFrom(case.model)
    for given, x, is_array in zip(case.model.graph.input, data, arrays, strict=False):
        if not is_array or rng.random() < 0.3:
            left.append(x)
            continue
        tensor = onnx.numpy_helper.from_array(x, given.name)
        stored += bytes(rng.choice((0, 0, 1, 4, 64)))
        said = {
            "location": "w.bin",
            "offset": str(len(stored)),
            "length": str(len(tensor.raw_data)),
        }
        stored += tensor.raw_data
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        if rng.random() < 0.3:
            _damage(tensor, said, rng)
        for key, value in said.items():
            tensor.external_data.add(key=key, value=value)
        made.graph.initializer.append(tensor)
    if stored and rng.random() < 0.1:
        del stored[rng.randrange(len(stored)) :]
    (folder / "w.bin").write_bytes(stored)
    (folder / "link").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe")
    (folder / "model.onnx").write_bytes(made.SerializeToString())
    return folder / "model.onnx", left


def _damage(tensor: Any, said: dict[str, str], rng: Random) -> None:
    match rng.randrange(6):
        case 0:
            said["location"] = rng.choice(_PLACES)
        case 1 | 2:
            said[rng.choice(("offset", "length"))] = rng.choice(_NUMBERS)
        case 3:
            said.pop(rng.choice(list(said)))
        case 4 if tensor.dims:
            tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice((-1, 0, 1, 3, 2**40, 2**62))
        case _:
            tensor.data_type = rng.choice((0, 1, 6, 7, 8, 9, 10, 11, 14, 16, 17, 22, 23, 99))


def test_changed_models_are_refused_or_right() -> None:
    outcomes = Counter(check(Random(seed)) for seed in range(150))
    assert outcomes["refused"] > 30 and outcomes["equal"] > 10


def test_changed_weights_in_files_are_refused_or_right() -> None:
    outcomes = Counter(check_external(Random(seed)) for seed in range(120))
    assert outcomes["refused"] > 20 and outcomes["equal"] > 20


@long
def test_newly_changed_weights_in_files_are_refused_or_right() -> None:
    search(lambda seed: check_external(Random(seed)))


@long
def test_newly_changed_models_are_refused_or_right() -> None:
    search(lambda seed: check(Random(seed)))

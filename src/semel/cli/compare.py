"""Other programs that run ONNX models, to compare results and times with.

"onnxruntime" | "reference", path  --open_peer-->  inputs -> outputs by name
ours, theirs  --differences-->  Difference for each output
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from semel.errors import InputError, UnsupportedError

PEERS = ("onnxruntime", "reference")
#: As shares of an output's largest number.
TOLERANCE, HALF_TOLERANCE = 1e-3, 2e-2

Peer = Callable[[Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Difference:
    """How far an output is from another program's: `error` is a share of the largest number."""

    output: str
    error: float
    tolerance: float
    found: str
    expected: str

    @property
    def is_small(self) -> bool:
        """Whether dtype and shape are the same, and all numbers near enough."""
        return self.found == self.expected and self.error <= self.tolerance


def check_comparable(arguments: Namespace) -> None:
    """Refuse to compare what other programs do not run, before it is prepared."""
    name: str = arguments.target
    if arguments.compare and not name.lower().endswith((".onnx", ".onnx.pb", ".ort")):
        raise InputError("command", f"--compare runs the ONNX model itself, and {name} is none.")


def open_peer(which: str, path: str, threads: int | None) -> Peer:
    """The model in another program; that must be installed."""
    try:
        return _onnxruntime(path, threads) if which == "onnxruntime" else _reference(path)
    except ModuleNotFoundError as error:
        package = "onnx" if which == "reference" else which
        raise UnsupportedError(
            "command", f"--compare {which} needs that package.", hint=f"pip install {package}"
        ) from error


def _onnxruntime(path: str, threads: int | None) -> Peer:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads or 0
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no class of their own
        raise UnsupportedError("onnxruntime", f"does not take the model: {error}") from error
    names = [output.name for output in session.get_outputs()]
    known = {given.name for given in session.get_inputs()}
    return lambda inputs: dict(
        zip(names, session.run(names, {k: inputs[k] for k in inputs if k in known}), strict=True)
    )


def _reference(path: str) -> Peer:
    from onnx.reference import ReferenceEvaluator

    try:
        evaluator = ReferenceEvaluator(path)
    except Exception as error:  # its errors have no class of their own
        raise UnsupportedError("reference", f"does not take the model: {error}") from error
    names = list(evaluator.output_names)
    return lambda inputs: dict(zip(names, evaluator.run(names, dict(inputs)), strict=True))


def run_peer(which: str, peer: Peer, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Their outputs; what they raise is an error of theirs."""
    try:
        return peer(inputs)
    except Exception as error:  # theirs have no class of their own
        raise UnsupportedError(which, f"cannot run the model: {error}") from error


def differences(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], tolerance: float | None
) -> tuple[Difference, ...]:
    """One for each output that they have."""
    return tuple(_difference(name, ours[name], theirs[name], tolerance) for name in theirs)


def _difference(name: str, ours: Any, theirs: Any, tolerance: float | None) -> Difference:
    if not isinstance(theirs, np.ndarray) or theirs.dtype.kind in "OSU":
        pairs = list(zip(_flat(ours), _flat(theirs), strict=False))
        same = len(_flat(ours)) == len(_flat(theirs)) and all(_same(a, b) for a, b in pairs)
        return Difference(name, 0.0 if same else 1.0, tolerance or 0.0, "items", "items")
    ours = np.asarray(ours)
    found, expected = (f"{a.dtype} {list(a.shape)}" for a in (ours, theirs))
    default = HALF_TOLERANCE if theirs.dtype.itemsize < 4 else TOLERANCE
    limit = default if tolerance is None else tolerance
    return Difference(name, _error(ours, theirs), limit, found, expected)


def _error(ours: Any, theirs: Any) -> float:
    """The largest difference as a share of the largest number; infinite where one is no number."""
    if ours.shape != theirs.shape:
        return float("inf")
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    finite = np.isfinite(b)
    if (
        not np.array_equal(a[~finite], b[~finite], equal_nan=True)
        or not np.isfinite(a[finite]).all()
    ):
        return float("inf")
    largest = max(float(np.abs(b[finite]).max(initial=0.0)), 1e-6)
    return float(np.abs(a[finite] - b[finite]).max(initial=0.0)) / largest


def _flat(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [value]


def _same(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    x, y = np.asarray(a), np.asarray(b)
    if x.dtype.kind in "OSU" or y.dtype.kind in "OSU":
        return bool(x.tolist() == y.tolist())
    return x.shape == y.shape and _error(x, y) <= TOLERANCE

"""The official suite of ONNX (`onnx.backend.test`): its cases, and what we make of each.

    python -m tests.onnx.suite [PATTERN] [--symbolic] [--failed] [--list]

With `--symbolic`, every dim of every input that is no weight is a variable.
"""

from __future__ import annotations

import argparse
import collections
import re
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

import semel
from semel.errors import SemelError, UnsupportedError

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")


@dataclass(frozen=True)
class Case:
    """One model with inputs and expected outputs."""

    name: str
    kind: str
    source: Any

    @property
    def model(self) -> onnx.ModelProto:
        if self.source.model is not None:
            return self.source.model
        return onnx.load(self._folder / "model.onnx") if not self._light else onnx.load(self._light)

    @property
    def _folder(self) -> Path:
        return Path(self.source.model_dir)

    @property
    def _light(self) -> Path | None:
        if self.kind != "real":
            return None
        return Path(onnx.__file__).parents[1] / self.source.url

    def data(self) -> Iterator[tuple[list[Any], list[Any]]]:
        """Inputs and expected outputs."""
        if self.source.data_sets is not None:
            for inputs, outputs in self.source.data_sets:
                yield [_plain(x) for x in inputs], [_plain(x) for x in outputs]
        elif self._light is not None:
            yield self._light_data()
        else:
            for folder in sorted(self._folder.glob("test_data_set*")):
                yield tuple(_read(folder, what, self.model) for what in ("input", "output"))  # type: ignore[misc]

    def _light_data(self) -> tuple[list[Any], list[Any]]:
        assert self._light is not None
        graph = self.model.graph
        weights = {tensor.name for tensor in graph.initializer}
        inputs = [
            Runner.generate_dummy_data(given, seed=0, name=self.source.model_name, random=False)
            for given in graph.input
            if given.name not in weights
        ]
        expected = onnx.TensorProto.FromString(
            self._light.with_name(f"{self._light.stem}_output_0.pb").read_bytes()
        )
        return inputs, [numpy_helper.to_array(expected)]


def _plain(given: Any) -> Any:
    """What the suite has as a message, as the array it is of."""
    if isinstance(given, onnx.TensorProto):
        return numpy_helper.to_array(given)
    if isinstance(given, onnx.SequenceProto):
        return numpy_helper.to_list(given)
    return numpy_helper.to_optional(given) if isinstance(given, onnx.OptionalProto) else given


def _read(folder: Path, what: str, model: onnx.ModelProto) -> list[Any]:
    infos = model.graph.input if what == "input" else model.graph.output
    found = []
    for i in range(len(list(folder.glob(f"{what}_*.pb")))):
        data = (folder / f"{what}_{i}.pb").read_bytes()
        match infos[i].type.WhichOneof("value"):
            case "sequence_type":
                found.append(numpy_helper.to_list(onnx.SequenceProto.FromString(data)))
            case "optional_type":
                found.append(numpy_helper.to_optional(onnx.OptionalProto.FromString(data)))
            case _:
                found.append(numpy_helper.to_array(onnx.TensorProto.FromString(data)))
    return found


@cache
def cases() -> dict[str, Case]:
    """All cases by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [(kind, case) for kind in KINDS for case in load_model_tests(kind=kind)]
    return {case.name: Case(case.name, kind, case) for kind, case in found}


def check(case: Case, symbolic: bool = False) -> None:
    """Run a case and compare: dtypes, shapes, and values within the suite's tolerance."""
    model = with_symbols(case.model) if symbolic else case.model
    compiled = semel.load(model, threads=1)
    names = [output.name for output in model.graph.output]
    for inputs, expected in case.data():
        found = compiled.run(*inputs)
        ours = [found[name] for name in names]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compare(expected, ours, case)


def compare(expected: list[Any], ours: list[Any], case: Case) -> None:
    """The suite's own comparison, item by item of sequences (its own takes arrays for lists)."""
    assert len(expected) == len(ours)
    for want, found in zip(expected, ours, strict=True):
        if isinstance(want, (list, tuple)):
            assert isinstance(found, (list, tuple)) and len(found) == len(want)
            compare(list(want), list(found), case)
        else:
            rtol, atol = case.source.rtol, case.source.atol
            Runner.assert_similar_outputs([want], [found], rtol, atol, case.name)


def with_symbols(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every dim of its inputs, weights aside, a variable of its own."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    weights = {tensor.name for tensor in made.graph.initializer}
    for given in made.graph.input:
        if given.name in weights or not given.type.HasField("tensor_type"):
            continue
        for axis, dim in enumerate(given.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value > 0:
                name = re.sub(r"\W", "_", given.name)
                dim.dim_param = f"{name}_{axis}"
    return made


def _outcome(case: Case, symbolic: bool) -> str:
    try:
        check(case, symbolic)
    except UnsupportedError as error:
        return f"unsupported: {str(error)[:160]}"
    except SemelError as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    except AssertionError as error:
        return f"wrong: {' '.join(str(error).split())[:160]}"
    except Exception as error:
        return f"raw {type(error).__name__}: {str(error)[:160]}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pattern", nargs="?", default="")
    parser.add_argument("--symbolic", action="store_true")
    parser.add_argument("--list", action="store_true", help="every failure, not only kinds of them")
    given = parser.parse_args()
    np.seterr(all="ignore")
    chosen = [c for name, c in cases().items() if re.search(given.pattern, name)]
    failures: dict[str, str] = {}
    begin = time.perf_counter()
    for case in chosen:
        outcome = _outcome(case, given.symbolic)
        if outcome:
            failures[case.name] = outcome
            if given.list:
                print(f"{case.name}: {outcome}", flush=True)
    kinds = collections.Counter(re.split(r"[:\d]", outcome)[0] for outcome in failures.values())
    passed = len(chosen) - len(failures)
    print(f"{passed} of {len(chosen)} pass, {time.perf_counter() - begin:.0f} s; {dict(kinds)}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())

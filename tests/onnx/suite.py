"""The official suite of ONNX (`onnx.backend.test`): its cases, and what we make of each.

    python -m tests.onnx.suite [PATTERN] [--symbolic | --unfolded] [--list] [--report FILE]

With `--symbolic`, every dim of every input that is no weight is a variable, and what was compiled
runs at the case's sizes and at others, where `onnx.reference` says what is right. Counted are the
native kernels of what was compiled, and what is left to the host: calls of functions in plans, and
nodes about text and images. Constants are folded as always, but inputs are none: a case without a
kernel computes nothing, or is about what inputs hold. With `--unfolded`, initializers and Constants
are inputs too, so that there is nothing to fold.
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
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner
from tests.onnx.sizes import num_symbols, other_sizes, with_symbols
from tests.onnx.unfolded import with_inputs_only

import semel
from semel.errors import SemelError, UnsupportedError
from semel.plan.rows import PreparedCustomFunction, PreparedKernel
from semel.plan.tree import walk

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


@dataclass
class Work:
    """What was compiled for a case, and how far it was tried; `sizes` says why at one size only."""

    kernels: int = 0
    host: int = 0
    compiled: int = 0
    sizes: str = ""
    failure: str = ""


def check(case: Case, symbolic: bool = False, unfolded: bool = False) -> Work:
    """Run a case and compare: dtypes, shapes, and values within the suite's tolerance."""
    model = with_symbols(case.model) if symbolic else case.model
    constants: dict[str, Any] = {}
    weights = {tensor.name for tensor in model.graph.initializer}
    names = [given.name for given in model.graph.input if given.name not in weights]
    if unfolded:
        model, constants = with_inputs_only(model)
    compiled = semel.load(model, threads=1)
    work = Work()
    for inputs, expected in case.data():
        if constants:
            named = constants | dict(zip(names, inputs, strict=True))
            _run(case, model, compiled, [named], expected)
            continue
        _run(case, model, compiled, inputs, expected)
        if not symbolic:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = other_sizes(case.model, inputs, partial(compare, case, expected))
        if isinstance(found, str):
            work.sizes = found
        else:
            _run(case, model, compiled, *found, is_own=True)
    _count(compiled, work)
    return work


def _run(
    case: Case,
    model: Any,
    compiled: Any,
    inputs: list[Any],
    expected: list[Any],
    is_own: bool = False,
) -> None:
    found = compiled.run(*inputs)
    ours = [found[output.name] for output in model.graph.output]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compare(case, expected, ours, is_own)


def _count(compiled: Any, work: Work) -> None:
    for graph in getattr(compiled, "forms", (compiled,)):
        rows = [placed.row for placed in walk(graph.plan.program.rows)]
        work.kernels += sum(isinstance(row, PreparedKernel) for row in rows)
        work.host += sum(isinstance(row, PreparedCustomFunction) for row in rows)
        work.compiled += graph.plan.compile_count
    work.host += getattr(compiled, "host_nodes", 0)


def compare(case: Case, expected: list[Any], ours: list[Any], is_own: bool = False) -> None:
    """The suite's own comparison, item by item of sequences (its own takes arrays for lists)."""
    assert len(expected) == len(ours)
    for want, found in zip(expected, ours, strict=True):
        if isinstance(want, (list, tuple)):
            assert isinstance(found, (list, tuple)) and len(found) == len(want)
            compare(case, list(want), list(found), is_own)
        else:
            if np.asarray(want).dtype.kind in "SU":
                np.testing.assert_array_equal(np.asarray(found, str), want)
                continue
            rtol, atol = _tolerance(case, want, is_own)
            Runner.assert_similar_outputs([want], [found], rtol, atol, case.name)


def _tolerance(case: Case, want: Any, is_own: bool) -> tuple[float, float]:
    """The suite's, for its own numbers; the reference rounds halves step by step."""
    rtol, atol = float(case.source.rtol), float(case.source.atol)
    if not is_own:
        return rtol, atol
    is_half = str(np.asarray(want).dtype) in ("float16", "bfloat16")
    return (1e-2, 4e-3) if is_half else (rtol, max(atol, 1e-6))


def outcome(case: Case, symbolic: bool, unfolded: bool = False) -> Work:
    """What became of a case."""
    try:
        return check(case, symbolic, unfolded)
    except UnsupportedError as error:
        return Work(failure=f"unsupported: {str(error)[:160]}")
    except SemelError as error:
        return Work(failure=f"{type(error).__name__}: {str(error)[:200]}")
    except AssertionError as error:
        return Work(failure=f"wrong: {' '.join(str(error).split())[:160]}")
    except Exception as error:
        return Work(failure=f"raw {type(error).__name__}: {str(error)[:160]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pattern", nargs="?", default="")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--symbolic", action="store_true", help="every dim of inputs is a variable")
    kind.add_argument("--unfolded", action="store_true", help="constants are inputs")
    parser.add_argument("--list", action="store_true", help="every failure, not only kinds of them")
    parser.add_argument("--report", type=Path, help="a line for each case, as Markdown")
    given = parser.parse_args()
    np.seterr(all="ignore")
    chosen = [c for name, c in cases().items() if re.search(given.pattern, name)]
    if given.symbolic:
        chosen = [case for case in chosen if num_symbols(case.model)]
    found: dict[str, Work] = {}
    begin = time.perf_counter()
    for number, case in enumerate(chosen, 1):
        work = found[case.name] = outcome(case, given.symbolic, given.unfolded)
        if work.failure and given.list:
            print(f"{case.name}: {work.failure}", flush=True)
        _progress(number, len(chosen), found, time.perf_counter() - begin)
    print(f"{summary(found)}, {time.perf_counter() - begin:.0f} s")
    if given.report:
        given.report.write_text(report(found))
    return any(work.failure for work in found.values())


def _progress(done: int, count: int, found: dict[str, Work], seconds: float) -> None:
    if done % 50 and done < count:
        return
    failed = sum(bool(work.failure) for work in found.values())
    print(f"... {done} of {count}, {failed} failed, {seconds:.0f} s", file=sys.stderr, flush=True)


def summary(found: dict[str, Work]) -> str:
    """How many passed, in which ways the others failed, and what ran where."""
    failed = [work.failure for work in found.values() if work.failure]
    kinds = collections.Counter(re.split(r"[:\d]", failure)[0] for failure in failed)
    passed = [work for work in found.values() if not work.failure]
    single = collections.Counter(work.sizes for work in passed if work.sizes)
    lines = [
        f"{len(passed)} of {len(found)} pass; {dict(kinds)}",
        f"{sum(w.kernels for w in passed)} native kernels in {sum(w.compiled for w in passed)} "
        f"compiled graphs, {sum(not w.kernels for w in passed)} cases need none",
        f"{sum(w.host for w in passed)} host calls in {sum(w.host > 0 for w in passed)} cases",
    ]
    if single:
        lines.append(f"at one size only: {dict(single)}")
    return "\n".join(lines)


def report(found: dict[str, Work]) -> str:
    """A table with a line for each case."""
    lines = ["| case | kernels | host calls | graphs | result |", "|---|---|---|---|---|"]
    for name, work in found.items():
        result = work.failure or (f"passes, at one size: {work.sizes}" if work.sizes else "passes")
        result = result.replace("|", "/")
        lines.append(f"| {name} | {work.kernels} | {work.host} | {work.compiled} | {result} |")
    return "\n".join([*lines, "", summary(found), ""])


if __name__ == "__main__":
    sys.exit(main())

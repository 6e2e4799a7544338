"""Every operation, every executor: the result is NumPy's."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from tests.ops.case import Case, Spec
from tests.ops.cases import CASES
from tests.ops.cases_reduce import np_normalized, np_softmax

from semel import Tensor, Variable
from semel.devices import choose_target, lacking
from semel.ir.graph import Graph
from semel.ir.target import named_target
from semel.ops.evaluate import evaluate
from semel.tensor.random import random_bits

Execute = Callable[[Tensor, Mapping[str, np.ndarray]], np.ndarray]


def run_oracle(tensor: Tensor, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    graph = Graph((tensor.node,))
    used = {node.attrs.name for node in graph.inputs}
    return evaluate(graph, {k: v for k, v in inputs.items() if k in used})[0]


def run_compiled(tensor: Tensor, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    used = {node.attrs.name for node in Graph((tensor.node,)).inputs}
    if not used:
        return tensor.numpy()
    result: np.ndarray = tensor.prepare()(**{k: v for k, v in inputs.items() if k in used})
    return result


def run_for_less(tensor: Tensor, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    used = {node.attrs.name for node in Graph((tensor.node,)).inputs}
    plan = tensor.prepare(target=LESS)
    result: np.ndarray = plan(**{k: v for k, v in inputs.items() if k in used})
    return result


#: What most machines have: code for it is other code than that for a larger one.
LESS = "x86-64-v3"
EXECUTORS = {"oracle": run_oracle, "compiled": run_compiled}
if choose_target("cpu").name != LESS and not lacking("cpu", named_target(LESS)):
    EXECUTORS[LESS] = run_for_less


@pytest.fixture(params=EXECUTORS)
def execute(request: pytest.FixtureRequest) -> Execute:
    if request.param == "compiled" and importlib.util.find_spec("semel.compiler.pipeline") is None:
        pytest.skip("this build has no compiler")
    return EXECUTORS[request.param]


def named(arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
    return {f"x{i}": array for i, array in enumerate(arrays)}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_reference(case: Case, execute: Execute) -> None:
    arrays = case.arrays()
    case.check(execute(case.run(*case.symbols()), named(arrays)), arrays)


N = Variable("n", 0, 64)
K = Variable("k", 1, 64)
# The sizes stand for (n, k) at run time.
SYMBOLIC = [
    Case("exp", lambda x: x.exp() + 1, lambda x: np.exp(x) + 1, (Spec((5, 7)),)),
    Case("mean", lambda x: x.mean(1), lambda x: x.mean(1), (Spec((5, 7)),), atol=1e-6),
    Case("sum_all", lambda x: x.sum(), lambda x: x.sum(), (Spec((5, 7)),), atol=1e-5),
    Case("var", lambda x: x.var(-1), lambda x: x.var(-1), (Spec((5, 7)),), atol=1e-6),
    Case("softmax", lambda x: x.softmax(-1), np_softmax, (Spec((5, 7)),), rtol=1e-5),
    Case("layer_norm", lambda x: x.layer_norm(), lambda x: np_normalized(x, -1, 1e-5),
         (Spec((5, 7)),), rtol=1e-4, atol=1e-5),
    Case("gram", lambda x: x @ x.T, lambda x: x @ x.T, (Spec((5, 7)),), rtol=1e-5, atol=1e-5),
    Case("einsum", lambda x: x.einsum("ij,ik->jk", x, x), lambda x: x.T @ x, (Spec((5, 7)),),
         rtol=1e-5, atol=1e-5),
    Case("flip", lambda x: x.flip(), np.flip, (Spec((5, 7)),)),
    Case("flatten", lambda x: x.T.flatten(), lambda x: x.T.reshape(-1), (Spec((5, 7)),)),
    Case("half_of_it", lambda x: x[:, : K // 2], lambda x: x[:, : x.shape[1] // 2],
         (Spec((5, 7)),)),
    Case("every_second", lambda x: x[::2, ::-2], lambda x: x[::2, ::-2], (Spec((5, 7)),)),
    Case("last_column", lambda x: x[:, K - 1], lambda x: x[:, -1], (Spec((5, 7)),)),
    Case("last_by_minus_one", lambda x: x[:, -1], lambda x: x[:, -1], (Spec((5, 7)),)),
    Case("pad_and_concat", lambda x: Tensor.concat([x, x.pad(((0, 0), (1, 0)))], 1),
         lambda x: np.concatenate([x, np.pad(x, ((0, 0), (1, 0)))], 1), (Spec((5, 7)),)),
    Case("roll", lambda x: x.roll(2, 1), lambda x: np.roll(x, 2, 1), (Spec((5, 7)),)),
    Case("arange", lambda x: x * Tensor.arange(K), lambda x: x * np.arange(x.shape[1]),
         (Spec((5, 7)),)),
    Case("times_dim", lambda x: x * K, lambda x: x * x.shape[1], (Spec((5, 7)),)),
    Case("argmax", lambda x: x.argmax(1), lambda x: x.argmax(1), (Spec((5, 7)),)),
    Case("cumsum", lambda x: x.cumsum(1), lambda x: x.cumsum(1), (Spec((5, 7)),), atol=1e-5),
    Case("sort", lambda x: x.sort(1), lambda x: np.sort(x, 1), (Spec((5, 7)),)),
    Case("tril", lambda x: x.tril(), np.tril, (Spec((5, 7)),)),
    Case("take_first", lambda x: x[:, [0, -1]], lambda x: x[:, [0, -1]], (Spec((5, 7)),)),
    Case("repeat", lambda x: x.repeat(2, 1), lambda x: x.repeat(2, 1), (Spec((5, 7)),)),
    Case("causal", lambda x: x.scaled_dot_product_attention(x, x, is_causal=True, scale=1.0),
         lambda x: np_softmax(np.where(np.tri(len(x)), x @ x.T, -np.inf)) @ x, (Spec((5, 7)),),
         rtol=1e-4, atol=1e-5),
    Case("diagonal", lambda x: (x @ x.T).diagonal(), lambda x: (x @ x.T).diagonal(),
         (Spec((5, 7)),), rtol=1e-5, atol=1e-5),
]  # fmt: skip


@pytest.mark.parametrize("sizes", [(5, 7), (1, 1), (3, 64), (17, 2)], ids=str)
@pytest.mark.parametrize("case", SYMBOLIC, ids=lambda case: case.name)
def test_symbolic_dims_give_what_fixed_ones_do(
    case: Case, sizes: tuple[int, int], execute: Execute
) -> None:
    tensor = case.run(*case.symbols([(N, K)]))
    arrays = [Spec(sizes).make(7)]
    case.check(execute(tensor, named(arrays)), arrays)


@pytest.mark.parametrize("shape", [(), (5,), (3, 7)])
def test_random_numbers_depend_on_key_and_place_only(
    shape: tuple[int, ...], execute: Execute
) -> None:
    def draw(seed: int) -> np.ndarray:
        return execute(Tensor.rand(shape, key=Tensor.key(seed)), {})

    assert np.array_equal(draw(1), draw(1))
    assert not np.array_equal(draw(1), draw(2))
    assert (draw(1) >= 0).all() and (draw(1) < 1).all()


def test_normal_numbers_are_normal(execute: Execute) -> None:
    for dtype in ("float32", "float64"):
        x = execute(Tensor.randn(4000, key=Tensor.key(3), dtype=dtype), {})
        assert abs(x.mean()) < 0.06 and abs(x.std() - 1) < 0.06


def test_integers_cover_their_range(execute: Execute) -> None:
    x = execute(Tensor.randint(-2, 3, (500,), key=Tensor.key(4), dtype="int8"), {})
    assert set(np.unique(x)) == {-2, -1, 0, 1, 2}


def test_dropout_keeps_the_mean(execute: Execute) -> None:
    x = execute(Tensor.ones(4000).dropout(0.25, key=Tensor.key(5)), {})
    assert set(np.unique(x)) == {0.0, np.float32(1 / 0.75)}
    assert abs(x.mean() - 1) < 0.05


def test_split_keys_differ_from_each_other_and_from_draws(execute: Execute) -> None:
    keys = execute(Tensor.split_key(Tensor.key(9), 3), {})
    drawn = execute(random_bits(Tensor.key(9), (3, 2)), {})
    assert len({tuple(k) for k in [*keys.tolist(), *drawn.tolist()]}) == 6

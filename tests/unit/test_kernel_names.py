"""Kernels are called after what they compute; their code goes by what it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import semel
from semel import Tensor, Variable, load_plan
from semel.models import minilm
from semel.plan.report import page


def data(*shape: int) -> Tensor:
    size = int(np.prod(shape))
    return Tensor(np.linspace(0.1, 2, size, dtype=np.float32).reshape(shape))


X = Tensor.input("x", (Variable("n", 1, 64), 48))
IMAGE = Tensor.input("image", (1, 16, 6, 6))
STATISTICS = [data(16), data(16), data(16), data(16)]
HEADS = [Tensor.input(name, (2, 8, 16)) for name in "qkv"]


def names(*outputs: Tensor, **options: Any) -> list[str]:
    plan = semel.prepare(list(outputs), threads=1, tune=False, **options)
    return [op.name for op in plan.explain().ops if op.kind == "kernel"]


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("softmax", X.softmax),
        ("layer_norm", lambda: X.layer_norm(data(48), data(48))),
        ("rms_norm", lambda: semel.rms_norm(X, data(48))),
        ("add_layer_norm", (X + 1).layer_norm),
        ("gelu", X.gelu),
        ("silu", X.silu),
        ("mean", lambda: X.mean(-1)),
        ("sum", lambda: X.sum(-1)),
        ("mul_add", lambda: X * 2 + 1),
        ("matmul_add_gelu", (X @ data(48, 32) + data(32)).gelu),
        ("linear_relu", lambda: X.linear(data(32, 48), data(32)).relu()),
        ("attention", lambda: semel.scaled_dot_product_attention(*HEADS)),
        ("attention", lambda: (HEADS[0] @ HEADS[1].mT).softmax() @ HEADS[2]),
        (
            "conv_depthwise_bn_relu",
            lambda: (
                IMAGE.conv2d(data(16, 1, 3, 3), groups=16, padding=1).batch_norm(*STATISTICS).relu()
            ),
        ),
        ("max_pool", lambda: IMAGE.max_pool(2)),
        ("argsort", X.argsort),
        ("permute", lambda: X.permute(1, 0)),
        ("flip_slice", lambda: X.flip(1)),
        ("mul_concat", lambda: Tensor.concat([X, X * 2], 1)),
    ],
)
def test_a_kernel_is_named_after_what_it_computes(name: str, made: Any) -> None:
    assert names(made()) == [name]


PAIRS = Tensor.input("pairs", (3, 64, 2))
SQUARE = Tensor.input("square", (5, 5))


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("rfft", lambda: semel.fft.rfft(Tensor.input("x", (3, 64)))),
        ("fft", lambda: semel.fft.fft(PAIRS)),
        ("irfft", lambda: semel.fft.irfft(PAIRS)),
        ("stft", lambda: semel.fft.stft(Tensor.input("x", (3, 64)), 16)),
        ("fftshift", lambda: semel.fft.fftshift(Tensor.input("x", (3, 64)))),
        ("cholesky", lambda: semel.linalg.cholesky(SQUARE)),
        ("lu", lambda: semel.linalg.lu(SQUARE)),
        ("qr", lambda: semel.linalg.qr(SQUARE)),
        ("eigh", lambda: semel.linalg.eigh(SQUARE)),
        ("svd", lambda: semel.linalg.svd(SQUARE)),
        ("det", lambda: semel.linalg.det(SQUARE)),
        ("inv", lambda: semel.linalg.inv(SQUARE)),
    ],
)
def test_all_kernels_of_a_function_are_named_after_it(name: str, made: Any) -> None:
    """Whatever it is made of, in the bodies of its loops and in their states, too."""
    outputs = made()
    found = names(*(outputs if isinstance(outputs, tuple) else (outputs,)))
    assert {each.split("_")[0] for each in found} == {name}


def test_loops_that_are_written_out_are_named_after_what_they_do() -> None:
    last = Tensor.while_loop(lambda x: x.sum() < 9, lambda x: x.tanh() + 1, SQUARE)
    assert set(names(last)) == {"while_loop", "while_loop_reshape", "sum_lt", "tanh_add"}


def test_what_is_moved_for_a_function_says_so() -> None:
    y = IMAGE.conv2d(data(16, 16, 3, 3), padding=1).batch_norm(*STATISTICS).relu()
    assert names(y) == ["conv_pad", "conv_bn_relu"]


def test_a_long_name_says_how_much_is_left_out() -> None:
    y = ((X * 2 + 1).tanh() - X.sin()).exp().abs()
    assert names(y) == ["mul_add_tanh_and_4_more"]


def test_whoever_calls_our_functions_is_not_the_one_they_are_named_after() -> None:
    size = minilm.EncoderSize(layers=1, width=32, heads=2, hidden=64, vocabulary=50, positions=16)
    weights = minilm.minilm_weights(size)
    ids, mask = (Tensor.input(name, (1, 8), "int64") for name in ("ids", "mask"))
    found = set(names(minilm.build_minilm(ids, mask, weights, size)))
    assert {"attention", "layer_norm", "linear_gelu", "linear_add"} <= found


def test_calls_with_different_names_share_their_code() -> None:
    plan = semel.prepare([X.relu(), Tensor.input("y", X.shape).maximum(0)], threads=1)
    first, second = plan.prepared_kernels
    assert (first.name, second.name) == ("relu", "maximum")
    assert first.kernel is second.kernel
    assert len(plan.kernels) == 1


def test_the_last_way_in_which_something_was_written_names_it() -> None:
    """What was written before, by whomever, has no say in it."""
    x = Tensor.input("x", (4, 6))
    kept = x.mean(-1)
    assert names(x.sum(-1)) == ["sum"] and kept is not None


def test_what_passes_find_again_is_named_after_what_is_written_now() -> None:
    """Nodes that a rule makes may be those of a graph that was prepared before."""
    x = Tensor.input("x", (8, 64))
    before = semel.prepare(semel.var(x, axis=-1), threads=1)
    assert names(semel.layer_norm(x)) == ["layer_norm"]
    assert names(x.std(axis=-1)) == ["std"]
    assert before.prepared_kernels[0].name == "var"


def test_operators_are_not_named_after_functions_that_used_them_before() -> None:
    x = Tensor.input("x", (3, 7))
    kept = x.silu()
    assert names(x * x.sigmoid()) == ["sigmoid_mul"] and kept is not None


def test_code_is_called_after_its_first_call() -> None:
    x = Tensor.input("x", (7, 13))
    for name, y in (("softmax", x.softmax()), ("linear_relu", x.linear(data(3, 13)).relu())):
        plan = semel.prepare(y, threads=1)
        assert [kernel.name for kernel in plan.kernels] == [name]


def test_names_are_no_part_of_what_nodes_are() -> None:
    assert X.relu().node is X.maximum(0).node


def test_profiles_files_and_dumps_show_the_names(tmp_path: Any) -> None:
    with semel.config.override(dump=tmp_path / "dump"):
        plan = semel.prepare(Tensor.input("x", (3, 5)).softmax(), threads=1)
    (dumped,) = (tmp_path / "dump").glob("*kernel*")
    assert dumped.name == "03-kernel-0-softmax.txt"
    plan(x=np.zeros((3, 5), np.float32))
    profiles = plan.execute_profiled()
    assert [p.name for p in profiles] == ["softmax"]
    plan.save(tmp_path / "plan.semel")
    (kernel,) = load_plan(tmp_path / "plan.semel").prepared_kernels
    assert kernel.name == "softmax"


def test_in_assembly_a_symbol_is_the_name_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = semel.prepare(Tensor.input("x", (3, 5)).softmax(), threads=1)
    plan(x=np.zeros((3, 5), np.float32))
    (kernel,) = plan.kernels
    text = f"<{kernel.entry_point}>:\n  jmp <{kernel.entry_point}+0x10>"
    monkeypatch.setattr(page, "disassemble", lambda code: text)
    _, (source,) = page.kernel_sources(plan.execute_profiled())
    assert source["assembly"] == "<softmax>:\n  jmp <softmax+0x10>"

"""Semel: what is timed is `plan.execute()` of a row prepared once, or the call named."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np
from examples.decoder import drawn, gpt2

import semel
from benchmarks.checkpoints import bench_minilm_weights
from benchmarks.decode import DECODES, PROMPT, TOKEN
from benchmarks.models import (
    CONVS,
    GEMMS,
    GEMV,
    LSTMS,
    SENTENCES,
    conv_weight,
    gemm_name,
    gemm_weights,
    lstm_weights,
)
from benchmarks.peers.semel_quantised import TensorOps, integer_product
from benchmarks.peers.semel_slow import STEPS_OF
from benchmarks.permuted import EPSILON, FIRST, JOINED, LAST, SPACE
from benchmarks.quantised import QUANTISED, QuantisedOps
from benchmarks.row import ANY
from benchmarks.rows import PASSES, SIDE, Inputs
from benchmarks.slow_paths import OF_ANY_SIZE
from semel import Tensor, Variable
from semel.compiler.eager import forget_eager
from semel.compiler.programs import forget_programs
from semel.ir.expr import Dim, product
from semel.models.decoder import DECODER, build_decoder_step, decoder_weights
from semel.models.minilm import build_minilm
from semel.models.resnet import build_resnet, resnet_weights
from semel.plan.plan import ExecutionPlan

VERSION = semel.__version__
Pair = tuple[Callable[[], Any], Callable[[], Any]]
Triple = tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]


def setup(threads: int) -> None:
    """Every plan of this process uses so many participants."""
    semel.set_num_threads(threads)


def _execute(output: Tensor, inputs: Inputs) -> Pair:
    plan = output.prepare()
    plan(**{name: inputs[name] for name in plan.inputs})
    return plan.execute, plan.output_buffer.numpy


def _inputs(arrays: Inputs) -> dict[str, Tensor]:
    return {name: Tensor.input(name, array.shape, array.dtype) for name, array in arrays.items()}


def _row(make: Callable[..., Tensor]) -> Callable[[Inputs], Pair]:
    """The row that computes `make(**inputs)`."""
    return lambda arrays: _execute(make(**_inputs(arrays)), arrays)


def _any_image(make: Callable[[Tensor], Tensor]) -> Callable[[Inputs], Pair]:
    """The row that computes `make(x)` of images whose height and width are not known before."""

    def build(arrays: Inputs) -> Pair:
        images, channels = arrays["x"].shape[:2]
        shape = (images, channels, Variable("height", 1, None), Variable("width", 1, None))
        return _execute(make(Tensor.input("x", shape)), arrays)

    return build


def _call_add(arrays: Inputs) -> Pair:
    tensors = _inputs(arrays)
    plan = (tensors["x"] + tensors["y"]).prepare()
    x, y = arrays["x"], arrays["y"]
    return (lambda: plan(x=x, y=y)), (lambda: plan(x=x, y=y))


def _chain(arrays: Inputs) -> Pair:
    x = Tensor.input("x", arrays["x"].shape)
    for weight in arrays["weights"]:
        x = (x @ Tensor(weight)).relu()
    return _execute(x, arrays)


def _means(x: Tensor) -> Tensor:
    for i in range(PASSES):
        x = (x + x.mean(i % 2, keepdims=True)) * 0.5
    return x


def _symbolic_plan(arrays: Inputs) -> ExecutionPlan:
    """Every kernel depends on n, and no input does: it can be rebound without new data."""
    n = Variable("n", 1, 4 * SIDE)
    x = Tensor.input("x", (SIDE,))
    steps = Tensor.arange(n).cast("float32").reshape(n, 1)
    plan = _means(x + steps).prepare()
    buffer = plan.buffer(x)
    assert buffer is not None
    buffer.copyin(arrays["x"])
    plan.execute_with_vars(n=SIDE)
    return plan


def _symbolic(arrays: Inputs) -> Pair:
    plan = _symbolic_plan(arrays)
    return plan.execute, plan.output_buffer.numpy


def _rebind(arrays: Inputs) -> Pair:
    plan = _symbolic_plan(arrays)
    sizes = cycle((SIDE - 1, SIDE + 1))  # on average the size that is not rebound

    def result() -> Any:
        plan.execute_with_vars(n=SIDE)
        return plan.output_buffer.numpy()

    return (lambda: plan.execute_with_vars(n=next(sizes))), result


def _gemm(size: tuple[int, int, int], gelu: bool) -> Callable[[Inputs], Pair]:
    def make(x: Tensor) -> Tensor:
        matrix, bias = gemm_weights(size)
        return (x @ matrix + bias).gelu() if gelu else x @ matrix

    return _row(make)


def _any_gemm(size: tuple[int, int, int]) -> Callable[[Inputs], Pair]:
    """The product of a number of rows that is not known before."""

    def build(arrays: Inputs) -> Pair:
        x = Tensor.input("x", (Variable("rows", 0, 4096), size[1]))
        return _execute(x @ gemm_weights(size)[0], arrays)

    return build


def _conv(name: str, images: Dim = 1) -> Callable[[Inputs], Pair]:
    """Channels last on both sides, or first."""
    _, _, _, kernel, groups = CONVS[name]

    def build_first(arrays: Inputs) -> Pair:
        image = Tensor.input("x", (images, *arrays["x"].shape[1:]))
        return _execute(image.conv2d(conv_weight(name), padding=kernel // 2, groups=groups), arrays)

    def build(arrays: Inputs) -> Pair:
        x = arrays["x"].transpose(0, 2, 3, 1).copy()
        image = Tensor.input("x", (images, *x.shape[1:])).permute(0, 3, 1, 2)
        y = image.conv2d(conv_weight(name), padding=kernel // 2, groups=groups)
        run, result = _execute(y.permute(0, 2, 3, 1), {"x": x})
        return run, lambda: result().transpose(0, 3, 1, 2)

    return build_first if name.endswith("first") else build


def _lstm(name: str) -> Callable[[Inputs], Pair]:
    _, batch, size, _ = LSTMS[name]

    def build(arrays: Inputs) -> Pair:
        x = Tensor.input("x", (Variable("steps", 0, 1000), batch, size))
        return _execute(x.lstm(*lstm_weights(name))[0], arrays)

    return build


def _minilm(arrays: Inputs) -> Pair:
    batch, length = arrays["ids"].shape[0], Variable("length", 1, 512)
    ids, mask = (Tensor.input(name, (batch, length), "int64") for name in ("ids", "mask"))
    return _execute(build_minilm(ids, mask, bench_minilm_weights()), arrays)


def _decoder(arrays: Inputs) -> Pair:
    shape = (DECODER.layers, DECODER.heads, Variable("past", 0, 1024), DECODER.depth)
    keys, values = Tensor.input("keys", shape), Tensor.input("values", shape)
    token = Tensor.input("token", (1,), "int64")
    plan = semel.prepare(list(build_decoder_step(token, keys, values, decoder_weights())))
    plan(**arrays)
    return plan.execute, plan.output_buffers[0].numpy


def _decode(name: str) -> Callable[[Inputs], Triple]:
    """The token in, the next token out; the logits are there for who wants them."""
    step = DECODES[name]

    def build(arrays: Inputs) -> Triple:
        graph = gpt2(drawn(), **step.size)
        plan = graph.prepare(dims={"t": (1, PROMPT)})
        ids, (chosen, logits) = plan.buffer(graph.inputs["ids"]), plan.output_buffers
        assert ids is not None
        plan.states.write(
            {
                f"h.{layer}.{part}": entry
                for part in ("keys", "values")
                for layer, entry in enumerate(arrays[part])
            }
        )
        plan(ids=arrays["token"])

        def run() -> int:
            ids.copyin(np.array([TOKEN]))
            plan.execute()
            return chosen.numpy().item()

        return run, logits.numpy, lambda: plan.states.truncate(step.past)

    return build


def _call_jit(arrays: Inputs) -> Pair:
    x, y = arrays["x"], arrays["y"]
    function = semel.jit(lambda x, y: x + y)
    return (lambda: function(x, y)), (lambda: function(x, y).numpy())


def _new_number(function: Callable[[Tensor, int], Any]) -> Callable[[Inputs], Pair]:
    """A row that computes `function(x, i)` with another i each time, without a plan."""

    def build(arrays: Inputs) -> Pair:
        x, numbers = Tensor(arrays["x"]), cycle(range(SIDE))
        for i in range(3):
            function(x, i)  # a number becomes data when a second one is seen
        return (lambda: function(x, next(numbers))), (lambda: function(x, 2))

    return build


def _eager_data(arrays: Inputs) -> Pair:
    x, y = arrays["x"], Tensor(arrays["y"])

    def run() -> Any:
        return (Tensor(x) + y).numpy()

    return run, run


def _eager_node(arrays: Inputs) -> Pair:
    """NumPy's function on tensors, without the value."""
    x: Any = Tensor(arrays["x"])
    return (lambda: np.add(x, x)), (lambda: np.add(x, x).numpy())


def _eager_form(arrays: Inputs) -> Pair:
    """A value whose graph is unknown to the process, its kernels not."""
    x = Tensor(arrays["x"])

    def run() -> Any:
        forget_eager()
        return (x * 2 + 1).sum().item()

    return run, run


def _eager_prepare(arrays: Inputs) -> Pair:
    """A plan of such a graph."""
    x = Tensor.input("x", arrays["x"].shape)

    def run() -> Any:
        forget_programs()
        return ((x * 2) + 1).sum().prepare()

    return run, lambda: run()(**arrays)


def _upsampled(x: Tensor) -> Tensor:
    """As importers write a resize that repeats whole pixels."""
    n, c, h, w = x.shape
    return x.reshape(n, c, h, 1, w, 1).expand(n, c, h, 2, w, 2).reshape(n, c, h * 2, w * 2)


def _max_pool(x: Tensor) -> Tensor:
    return x.max_pool(3, 2, 1)


def _instance_norm(x: Tensor) -> Tensor:
    y = x.permute(FIRST)
    scale = (y.var(SPACE, keepdims=True) + EPSILON).rsqrt()
    return (y - y.mean(SPACE, keepdims=True)) * scale


def _joined(name: str) -> Callable[[Tensor], Tensor]:
    _, order, joined = JOINED[name]

    def make(x: Tensor) -> Tensor:
        turned = x.permute(order)
        *kept, _ = turned.shape[: len(joined)]
        return turned.reshape(*kept, product(turned.shape[len(kept) :]))

    return make


def _any_joined(name: str) -> Callable[[Inputs], Pair]:
    """All sizes but the last one are found when it runs."""
    *sizes, last = JOINED[name][0]
    dims = tuple(Variable(f"d{k}", 1, 4 * n) for k, n in enumerate(sizes))
    return lambda arrays: _execute(_joined(name)(Tensor.input("x", (*dims, last))), arrays)


def _quantised(model: Callable[[QuantisedOps, Tensor], Tensor]) -> Callable[[Inputs], Pair]:
    return _row(lambda x: model(TensorOps(), x))


BUILD: dict[str, Callable[[Inputs], Pair]] = {
    **{gemm_name(size, g): _gemm(size, g) for size in (*GEMMS, GEMV) for g in (False, True)},
    **{gemm_name(size, gelu=False) + ANY: _any_gemm(size) for size in GEMMS},
    **{name: _conv(name) for name in CONVS},
    **{name + ANY: _conv(name, Variable("images", 0, 16)) for name in CONVS},
    **{name: _lstm(name) for name in LSTMS},
    **dict.fromkeys(SENTENCES, _minilm),
    **{name: _quantised(model) for name, (model, _) in QUANTISED.items()},
    "matmul_integer": _row(integer_product),
    **{name: _row(step) for name, step in STEPS_OF.items()},
    **{name + ANY: _any_image(STEPS_OF[name]) for name in OF_ANY_SIZE},
    "resnet50": _row(lambda x: build_resnet(x, resnet_weights())),
    "decoder": _decoder,
    **{name: _decode(name) for name in DECODES},
    "tiny_add": _row(lambda x, y: x + y),
    "call_add": _call_add,
    "call_jit": _call_jit,
    "chain": _chain,
    "unfusable": _row(_means),
    "symbolic": _symbolic,
    "rebind": _rebind,
    "eager_sum": _new_number(lambda x, i: (x * i).sum().item()),
    "eager_element": _new_number(lambda x, i: float(x[i, 4])),
    "eager_data": _eager_data,
    "eager_node": _eager_node,
    "eager_form": _eager_form,
    "eager_prepare": _eager_prepare,
    "softmax": _row(lambda x: x.softmax(-1)),
    "layer_norm": _row(lambda x, weight, bias: x.layer_norm(weight, bias)),
    "gelu": _row(lambda x: x.gelu()),
    "sum": _row(lambda x: x.sum()),
    "tanh": _row(lambda a, b, c, d: (a * b + c).tanh() * d),
    **{name: _row(_joined(name)) for name in JOINED},
    **{name + ANY: _any_joined(name) for name in JOINED},
    "turned": _row(lambda x: x.T),
    "turned_add": _row(lambda x: x + x.T),
    "max_pool": _row(_max_pool),
    "max_pool" + ANY: _any_image(_max_pool),
    "upsample_add": _row(lambda x, y: _upsampled(x) + y),
    "permuted_mean": _row(lambda x: x.permute(FIRST).mean(SPACE)),
    "permuted_squares": _row(lambda x: (x.permute(0, 2, 1) ** 2).sum(-1)),
    "instance_norm": _row(_instance_norm),
    "permuted_layer_norm": _row(lambda x: x.permute(LAST).layer_norm(eps=EPSILON)),
}

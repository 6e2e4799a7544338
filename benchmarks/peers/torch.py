"""PyTorch, eager, under inference mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (everybody's name for it)

from benchmarks.peers import torch_models
from benchmarks.peers.torch_slow import STEPS_OF
from benchmarks.permuted import EPSILON, FIRST, JOINED, LAST, SPACE
from benchmarks.rows import PASSES, Inputs

VERSION = torch.__version__
Pair = tuple[Callable[[], Any], Callable[[], Any]]


def setup(threads: int) -> None:
    """Torch's own pool; inference mode for the life of the process."""
    torch.set_num_threads(threads)
    torch.inference_mode().__enter__()


def _row(function: Callable[..., Any]) -> Callable[[Inputs], Pair]:
    def build(arrays: Inputs) -> Pair:
        values = [torch.from_numpy(array) for array in arrays.values()]

        def run() -> Any:
            return function(*values)

        return run, lambda: run().numpy()

    return build


def _made(make: Callable[[], Callable[..., Any]]) -> Callable[[Inputs], Pair]:
    """A row whose function has weights to make, which no other row needs."""

    def build(arrays: Inputs) -> Pair:
        return _row(make())(arrays)

    return build


def _call_add(arrays: Inputs) -> Pair:
    x, y = arrays["x"], arrays["y"]

    def run() -> Any:
        return torch.add(torch.from_numpy(x), torch.from_numpy(y)).numpy()

    return run, run


def _chain(x: Any, weights: Any) -> Any:
    for weight in weights.unbind():
        x = torch.relu(x @ weight)
    return x


def _means(x: Any) -> Any:
    for i in range(PASSES):
        x = (x + x.mean(i % 2, keepdim=True)) * 0.5
    return x


BUILD: dict[str, Callable[[Inputs], Pair]] = {
    **torch_models.BUILD,
    **{name: _made(make) for name, make in STEPS_OF.items()},
    "tiny_add": _row(torch.add),
    "call_add": _call_add,
    "call_jit": _call_add,
    "chain": _row(_chain),
    "unfusable": _row(_means),
    "softmax": _row(lambda x: torch.softmax(x, -1)),
    "layer_norm": _row(lambda x, weight, bias: F.layer_norm(x, (x.shape[-1],), weight, bias)),
    "gelu": _row(F.gelu),
    "sum": _row(torch.sum),
    "tanh": _row(lambda a, b, c, d: torch.tanh(a * b + c) * d),
    **{
        name: _row(lambda x, order=order, joined=joined: x.permute(order).reshape(joined))
        for name, (_, order, joined) in JOINED.items()
    },
    "turned": _row(lambda x: x.T.contiguous()),
    "turned_add": _row(lambda x: x + x.T),
    "max_pool": _row(lambda x: F.max_pool2d(x, 3, 2, 1)),
    "upsample_add": _row(lambda x, y: F.interpolate(x, scale_factor=2) + y),
    "permuted_mean": _row(lambda x: x.permute(FIRST).mean(SPACE)),
    "permuted_squares": _row(lambda x: x.permute(0, 2, 1).square().sum(-1)),
    "instance_norm": _row(lambda x: F.instance_norm(x.permute(FIRST), eps=EPSILON).contiguous()),
    "permuted_layer_norm": _row(lambda x: F.layer_norm(x.permute(LAST), x.shape[1:2]).contiguous()),
}

"""What windows ask for again and again is computed once, where it costs least."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import semel
from semel import Tensor
from semel.ir.graph import Graph, Node
from semel.passes import run_passes
from semel.schedule.group import Group
from semel.schedule.groups import build_schedule

RNG = np.random.default_rng(3)


def _weights(*shape: int) -> Tensor:
    return Tensor((RNG.standard_normal(shape) / 8).astype(np.float32))


def _groups(y: Tensor) -> tuple[Group, ...]:
    return build_schedule(run_passes(Graph((y.node,)))).groups


def _sliding(groups: tuple[Group, ...]) -> Group:
    """The group that reads windows."""
    (found,) = (g for g in groups if any(n.op.slides for n in g.inside) and g.reduces)
    return found


def _names(group: Group) -> set[str]:
    return {n.op.name for n in group.inside}


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda y: y.relu(),
    "hardswish": lambda y: y * ((y + 3).clip(0, 6) / 6),
    "silu": lambda y: y.silu(),
    "sigmoid twice": lambda y: y * y.sigmoid(),
    "gelu": lambda y: y.gelu(),
    "mish": lambda y: y * y.softplus().tanh(),
}


@pytest.mark.parametrize("batch", [1, semel.Variable("n", 1, 8)])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_between_convolutions_follows_the_first(
    name: str, batch: int | semel.Variable
) -> None:
    x = Tensor.input("x", (batch, 16, 12, 12))
    y = ACTIVATIONS[name](x.conv2d(_weights(32, 16, 1, 1)))
    z = y.conv2d(_weights(32, 1, 5, 5), padding=2, groups=32)
    groups = _groups(z)
    arithmetic = [n for n in _sliding(groups).inside if n.op.kind == "elementwise"]
    assert len(arithmetic) == 1, "the products that are added up, and nothing else"
    (first,) = (g for g in groups if g.contract is not None)
    assert any(n.op.kind == "elementwise" for n in first.inside)


def test_what_is_dear_is_stored_before_windows_read_it() -> None:
    x = Tensor.input("x", (1, 32, 12, 12))
    groups = _groups(x.tanh().conv2d(_weights(32, 1, 3, 3), padding=1, groups=32))
    assert "tanh" not in _names(_sliding(groups))


def test_what_is_cheap_is_computed_by_windows_that_overlap_little() -> None:
    x = Tensor.input("x", (1, 32, 12, 12))
    (group,) = (g for g in _groups(x.relu().max_pool(2, stride=2)) if g.reduces)
    assert "max" in _names(group) or "relu" in _names(group)


def test_the_numbers_are_those_of_the_reference() -> None:
    n = semel.Variable("n", 1, 4)
    x = Tensor.input("x", (n, 16, 9, 7))
    first, second = _weights(32, 16, 1, 1), _weights(32, 1, 5, 5)
    plan = (x.conv2d(first).silu().conv2d(second, padding=2, groups=32)).prepare()
    data = RNG.standard_normal((3, 16, 9, 7)).astype(np.float32)
    y = np.einsum("nchw,oc->nohw", data, first.numpy()[:, :, 0, 0])
    y = np.pad(y / (1 + np.exp(-y)), ((0, 0), (0, 0), (2, 2), (2, 2)))
    expected = sum(
        y[:, :, i : i + 9, j : j + 7] * second.numpy()[:, 0, i, j].reshape(32, 1, 1)
        for i in range(5)
        for j in range(5)
    )
    np.testing.assert_allclose(plan(x=data), expected, rtol=1e-4, atol=1e-5)


def test_parts_that_stand_side_by_side_are_computed_on_the_way() -> None:
    """An index that runs over all of a concatenation leaves each part, where a guard says no."""
    x = Tensor.input("x", (17,))
    groups = _groups(semel.concat([x[1:], x[:1] * 0.5, (x[:2] + 1).exp()]) * 2)
    assert len(groups) == 1


# ---------------------------------------------------------------- several that read one input


def _conv(y: Tensor, channels: int, **options: int) -> Tensor:
    groups = options.get("groups", 1)
    return y.conv2d(_weights(channels, 32 // groups, 3, 3), **options)


SHARING: dict[str, Callable[[Tensor], list[Tensor]]] = {
    "branches": lambda y: [_conv(y, 16, padding=1), _conv(y, 24, padding=1)],
    "without padding": lambda y: [_conv(y, 16), _conv(y, 24)],
    "steps of two": lambda y: [_conv(y, 16, stride=2), _conv(y, 24, stride=2)],
    "a gate": lambda y: [_conv(y, 16, padding=1).sigmoid() * _conv(y, 16, padding=1).tanh()],
    "groups": lambda y: [_conv(y, 16, padding=1, groups=4), _conv(y, 32, padding=1, groups=4)],
    "depthwise": lambda y: [_conv(y, 32, padding=1, groups=32), _conv(y, 32, padding=1, groups=32)],
    "unlike windows": lambda y: [_conv(y, 16, padding=1), _conv(y, 16, padding=2, dilation=2)],
}


@pytest.mark.parametrize("batch", [1, semel.Variable("n", 1, 8)])
@pytest.mark.parametrize("before", ["input", "silu", "convolution and silu"])
@pytest.mark.parametrize("name", SHARING)
def test_windows_that_several_read_are_not_stored(
    name: str, before: str, batch: int | semel.Variable
) -> None:
    """Each takes them from the input itself; what is dear below them is computed once."""
    y = Tensor.input("x", (batch, 32, 12, 12))
    if before == "convolution and silu":
        y = y.conv2d(_weights(32, 32, 1, 1))
    y = y if before == "input" else y.silu()
    groups = build_schedule(run_passes(Graph(tuple(z.node for z in SHARING[name](y))))).groups
    stored = [n for g in groups for n in g.outputs]
    assert not any(_is_of_windows(n) for n in stored)
    sigmoids = [g for g in groups for n in g.inside if n.op.name == "sigmoid"]
    assert len(sigmoids) == (before != "input") + (name == "a gate")
    if before == "convolution and silu" and name == "without padding":
        (first,) = (g for g in groups if "sigmoid" in _names(g))
        assert first.contract is not None


def _is_of_windows(node: Node) -> bool:
    while node.op.kind == "movement":
        if node.op.slides:
            return True
        node = node.inputs[0]
    return False


def test_branches_of_one_input_in_numbers() -> None:
    data = RNG.standard_normal((2, 32, 9, 9)).astype(np.float32)
    batch = semel.Variable("n", 1, 4)

    def branches(x: Tensor) -> list[Tensor]:
        y = x.silu()
        return [y.conv2d(w, padding=1) for w in weights]

    weights = [_weights(n, 32, 3, 3) for n in (16, 24)]
    alone = [branches(Tensor(data))[k].numpy() for k in range(2)]
    for size, threads in ((2, 1), (2, 2), (batch, 2)):
        x = Tensor.input("x", (size, 32, 9, 9))
        found = semel.prepare(branches(x), threads=threads)(x=data)
        for each, other in zip(found, alone, strict=True):
            assert each.tobytes() == other.tobytes()

"""Control flow that is decided during the run.

    trip, initial states, body(step, states)  -->  final states, stacked values
    cond(states), body(states), initial       -->  final states
    predicate, then(), orelse()               -->  what one of them gives

Each function is called once, with tensors that stand for the states and a `step` that may be used
wherever a dim may, as in `x[step]`. What it makes becomes a graph of its own (tensor/body.py), and
bodies may hold further loops and branches. What no iteration of a loop changes is computed outside,
once, if that cannot fail; of what a branch makes nothing is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semel.errors import GraphError
from semel.ir.expr import Dim, Expr, Fn, Index, LateVariable, Variable, is_positive, variables
from semel.ir.fields import NO_LIMIT
from semel.ir.graph import Node, make_node, no_scope
from semel.ir.types import BOOL, as_shape
from semel.ops.attrs import CondAttrs, LoopAttrs, loop_step
from semel.ops.bodies import free_level, replace_steps
from semel.tensor.body import (
    Closing,
    Traced,
    changing_nodes,
    next_trace,
    own_nodes,
    stand_in,
    traced_step,
)
from semel.tensor.handle import TensorLike, lift, tensor_class, weak_kind, weak_scalar, wrap
from semel.tensor.movement import agreeing, may_agree
from semel.tensor.origin import call_origin

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

_DIMS = (int, Variable, Expr, Fn, Index)
_TAKE_APART = "Both functions are given what init is, in one piece: a, b = states takes it apart."


def loop(
    trip: Dim,
    states: Sequence[TensorLike],
    body: Callable[[Any, tuple[Tensor, ...]], tuple[Sequence[TensorLike], Sequence[TensorLike]]],
    *,
    backward: Sequence[bool] = (),
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Run `states, values = body(step, states)` for step = 0, 1, ..., trip - 1.

    The result is (final states, stacked): each value of all iterations along a new first
    axis, the one of iteration s at row s, or, where `backward` says so, at row trip - 1 - s.
    A state keeps its shape and dtype. `trip` may be symbolic, and 0. Nothing runs in
    Python but the one call that says what an iteration does.

    >>> x = Tensor([1.0, 2.0, 3.0])
    >>> (last,), (sums,) = Tensor.loop(3, [Tensor(0.0)], lambda s, h: ([h[0] + x[s]], [h[0]]))
    >>> last.item(), sums.tolist()
    (6.0, [0.0, 1.0, 3.0])
    """
    count = _checked_trip("loop", "trip", trip)
    _check_function("loop", "body", body, ("step", "states"))
    initial = _first_states(states)
    counts: list[int] = []

    def iteration(step: Index, inside: Sequence[Tensor]) -> list[Tensor]:
        after, values = _checked_pair(body(step, tuple(inside)), len(initial))
        counts.append(len(values))
        return [*_states(after, initial), *(lift(v) for v in values)]

    made = _Loop(count, initial, iteration)
    turned = tuple(backward) or (False,) * counts[0]
    if len(turned) != counts[0]:
        raise GraphError("loop", f"backward must say so of {counts[0]} values, got {len(turned)}.")
    results = made.results(turned)
    return tuple(results[: len(initial)]), tuple(results[len(initial) :])


def collecting_loop(
    goes_on: TensorLike,
    states: Sequence[TensorLike],
    body: Callable[[Any, tuple[Tensor, ...]], tuple[Any, Sequence[Any], Sequence[Any]]],
    max_trips: Dim | None,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Tensor]:
    """Run `goes_on, states, values = body(step, states)` while `goes_on`, at most so many times.

    The result is (final states, stacked values, how many iterations there were); rows behind those
    of the last iteration are zero.
    """
    initial = [lift(s) for s in states]
    first = _one_bool(goes_on, "loop", "the condition")
    counts: list[int] = []

    def iteration(step: Index, inside: Sequence[Tensor]) -> list[Tensor]:
        more, after, values = body(step, tuple(inside))
        counts.append(len(values))
        truth = _one_bool(more, "loop", "the condition")
        return [*_states(after, initial), *(lift(v) for v in values), truth]

    trip = _checked_trip("loop", "max_trips", NO_LIMIT if max_trips is None else max_trips)
    made = _Loop(trip, initial, iteration, condition=first.node)
    *results, count = made.results((False,) * counts[0])
    return tuple(results[: len(initial)]), tuple(results[len(initial) :]), count


def while_loop(
    cond: Callable[[Any], TensorLike],
    body: Callable[[Any], Any],
    init: Any,
    max_trips: Dim | None = None,
) -> Any:
    """Run `states = body(states)` while `cond(states)` is true, at most `max_trips` times.

    `init` is a tensor, or a tuple or list of tensors, and so is what both functions are
    given, what `body` returns, and the result: the final states. A state keeps its shape and
    dtype; `cond` returns one bool. Nothing runs in Python but the calls that say what
    an iteration does. Without `max_trips` a condition that stays true never ends.

    >>> Tensor.while_loop(lambda x: x < 100, lambda x: x * 3, Tensor(1.0)).item()
    243.0
    """
    limit = NO_LIMIT if max_trips is None else max_trips
    trip = _checked_trip("while_loop", "max_trips", limit)
    _check_function("while_loop", "cond", cond, ("states",), _TAKE_APART)
    _check_function("while_loop", "body", body, ("states",), _TAKE_APART)
    shape, values = _several(init, "while_loop", "init")
    initial = [lift(value) for value in values]
    if not initial:
        raise GraphError("while_loop", "needs a state.")

    def test(states: Sequence[Tensor]) -> list[Tensor]:
        return [_one_bool(cond(shape(states)), "while_loop", "what cond returns")]

    def iteration(step: Index, inside: Sequence[Tensor]) -> list[Tensor]:
        _, after = _several(body(shape(inside)), "while_loop", "what body returns")
        if len(after) != len(initial):
            raise GraphError(
                "while_loop", f"body must return {len(initial)} states, got {len(after)}."
            )
        states = _states(after, initial)
        # After the last of `max_trips` iterations nothing is asked that could fail.
        may_go_on = None if max_trips is None else lambda: lift(step + 1) < trip
        return [*states, _asked(Traced(test, states), may_go_on)]

    may_begin = None if is_positive(trip) else lambda: lift(trip) > 0
    first = _asked(Traced(test, initial), may_begin)
    made = _Loop(trip, initial, iteration, condition=first.node)
    return shape(made.results(())[: len(initial)])


def cond(
    predicate: TensorLike,
    then: Callable[..., Any],
    orelse: Callable[..., Any],
    *operands: TensorLike,
) -> Any:
    """What `then(*operands)` gives where `predicate`, one bool, is true, else `orelse(...)`.

    Only one of the two runs, and nothing of the other: what is made inside of it takes no
    time and cannot fail. Tensors that are made outside are computed there. Both return
    a tensor, or a tuple or list of tensors, of the same shapes and dtypes.

    >>> x = Tensor([3.0, 4.0])
    >>> Tensor.cond(x.sum() > 5, lambda: x / 2, lambda: x * 2).tolist()
    [1.5, 2.0]
    """
    names = tuple(f"operand{k}" for k in range(len(operands)))
    for what, function in (("then", then), ("orelse", orelse)):
        _check_function("cond", what, function, names, "Write lambda: x for a tensor x.")
    truth = _one_bool(predicate, "cond", "the predicate")
    given = [lift(each) for each in operands]
    shapes: list[_Shape] = []
    first: list[Tensor] = []

    def run(function: Callable[..., Any]) -> list[Tensor]:
        shape, values = _several(function(*given), "cond", "what a body returns")
        shapes.append(shape)
        made = [lift(value) for value in values]
        if len(shapes) == 1:
            first.extend(made)
        elif len(made) == len(first):
            made = [_of_same_shape(x, like) for x, like in zip(made, first, strict=True)]
        return made

    one, other = Traced(run, then), Traced(run, orelse)
    if shapes[0] != shapes[1] or len(one.outputs) != len(other.outputs):
        raise GraphError(
            "cond",
            "both bodies must return a tensor, or tuples or lists of as many, got "
            f"{shapes[0].of(one.outputs)} and {shapes[1].of(other.outputs)}.",
        )
    if not one.outputs:
        raise GraphError("cond", "the bodies must return a tensor.")
    nodes = _branch(truth.node, one, other)
    return shapes[0]([wrap(node) for node in nodes])


# ------------------------------------------------------------ what functions are given


def _check_function(
    where: str, what: str, function: Any, arguments: Sequence[str], hint: str = ""
) -> None:
    """Refuse what cannot be called with these arguments, before anything is traced."""
    if not callable(function):
        raise GraphError(
            where, f"{what} must be a function, got {type(function).__name__}.", hint=hint
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # it has none to ask: it is called
    try:
        signature.bind(*arguments)
    except TypeError as error:
        called = f"{what}({', '.join(arguments)})"
        raise GraphError(
            where, f"{what} must be a function that is called as {called}, got {error}.", hint=hint
        ) from None


def _one_bool(value: TensorLike, where: str, what: str) -> Tensor:
    """One bool, of shape ()."""
    found = lift(value)
    if found.dtype != BOOL or found.size != 1:
        raise GraphError(where, f"{what} must be one bool, got {found.type}.")
    return found if found.ndim == 0 else found.reshape(())


def _first_states(states: Any) -> list[Tensor]:
    """The states before the first iteration; the rows of one tensor are none."""
    if isinstance(states, tensor_class()):
        found = f"states must be a sequence of tensors, got {states.type}."
        raise GraphError("loop", found, hint="Write [x] for one state x.")
    return [lift(s) for s in states]


def _states(after: Sequence[TensorLike], initial: Sequence[Tensor]) -> list[Tensor]:
    """The next states; a Python number takes the dtype of a state that is one number."""
    return [
        weak_scalar(value, before.dtype)
        if weak_kind(value) and before.ndim == 0
        else _of_same_shape(lift(value), before)
        for value, before in zip(after, initial, strict=True)
    ]


def _of_same_shape(x: Tensor, other: Tensor) -> Tensor:
    """A tensor in the shape of another, by a guard where it may have it; else as it is.

    Sizes that the other's body finds out are no sizes here.
    """
    is_late = any(isinstance(v, LateVariable) for d in other.shape for v in variables(d))
    may_agree_here = not is_late and may_agree(x.shape, other.shape)
    return agreeing(x, other.shape) if may_agree_here else x


def _asked(test: Traced, may_ask: Callable[[], Tensor] | None) -> Tensor:
    """A condition; if computing it may fail, False where `may_ask` says not to."""
    if may_ask is None or not test.may_fail():
        return wrap(test.here()[0])
    return wrap(_branch(may_ask().node, test, Traced(lambda: [lift(False)]))[0])


def _several(value: Any, where: str, what: str) -> tuple[_Shape, list[Any]]:
    """One tensor or several, as a list, and how they stood together."""
    if not isinstance(value, (tuple, list)):
        return _Shape(None), [value]
    if any(isinstance(each, (tuple, list)) for each in value):
        raise GraphError(where, f"{what} must be a tensor, or a tuple or list of tensors.")
    return _Shape(tuple if isinstance(value, tuple) else list), list(value)


@dataclass(frozen=True)
class _Shape:
    """How tensors stand together: one by itself (None), a tuple or a list."""

    kind: type[tuple[Any, ...]] | type[list[Any]] | None

    def __call__(self, tensors: Sequence[Any]) -> Any:
        return tensors[0] if self.kind is None else self.kind(tensors)

    def of(self, tensors: Sequence[Any]) -> str:
        return "a tensor" if self.kind is None else f"a {self.kind.__name__} of {len(tensors)}"


class _Loop:
    """A loop whose body was traced; `results` makes its nodes."""

    def __init__(
        self,
        trip: Dim,
        initial: Sequence[Tensor],
        iteration: Callable[[Index, Sequence[Any]], Sequence[Tensor]],
        condition: Node | None = None,
    ) -> None:
        self.trip, self.initial, self.condition = trip, initial, condition
        trace, (self.origin, self.made_by) = next_trace(), call_origin()
        step = traced_step(trip, trace)
        states: list[Node] = []

        def run() -> Sequence[Tensor]:
            states.extend(stand_in(f"state {k}", s.type, trace) for k, s in enumerate(initial))
            return iteration(step, [wrap(n) for n in states])

        traced = Traced(run)
        is_optional = condition is not None or not is_positive(trip)
        inside = changing_nodes(traced, set(states), step, may_be_skipped=is_optional)
        closing = Closing(len(initial) + (condition is not None))
        body = closing.close(traced, states, inside)
        self.level = free_level(body)
        self.captured = closing.captured
        with no_scope():
            self.body = replace_steps(body, {step: loop_step(trip, self.level)})

    def results(self, backward: tuple[bool, ...]) -> list[Any]:
        first = () if self.condition is None else (self.condition,)
        operands = (*(t.node for t in self.initial), *first, *self.captured)
        by, origin = self.made_by, self.origin
        nodes = [
            make_node("loop", operands, self._attrs(backward, k), origin=origin, made_by=by)
            for k in range(len(self.body.values))
        ]
        return [wrap(node) for node in nodes]

    def _attrs(self, backward: tuple[bool, ...], output: int) -> LoopAttrs:
        has_condition = self.condition is not None
        return LoopAttrs(
            self.trip, self.body, len(self.initial), backward, output, self.level, has_condition
        )


def _branch(predicate: Node, then: Traced, orelse: Traced) -> list[Node]:
    """The results of a branch between two traced bodies."""
    closing = Closing(first=1)
    bodies = [closing.close(each, (), own_nodes(each)) for each in (then, orelse)]
    operands, (origin, by) = (predicate, *closing.captured), call_origin()
    made = [CondAttrs(bodies[0], bodies[1], k) for k in range(len(then.outputs))]
    return [make_node("cond", operands, attrs, origin=origin, made_by=by) for attrs in made]


def _checked_trip(where: str, what: str, trip: Any) -> Dim:
    if isinstance(trip, bool) or not isinstance(trip, _DIMS):
        raise GraphError(where, f"{what} must be an int or an expression, got {trip!r}.")
    if isinstance(trip, int) and trip < 0:
        raise GraphError(where, f"{what} must be >= 0, got {trip}.")
    (count,) = as_shape((trip,), where)
    return count


def _checked_pair(returned: Any, num_states: int) -> tuple[list[Any], list[Any]]:
    """What a body returned, as two lists: as many states as there are, and something at all."""
    is_pair = isinstance(returned, tuple) and len(returned) == 2
    if not is_pair or any(isinstance(part, tensor_class()) for part in returned):
        raise GraphError(
            "loop",
            f"the body must return (next states, values to stack), got {type(returned).__name__}.",
            hint="Both are sequences of tensors, and may be empty.",
        )
    after, values = list(returned[0]), list(returned[1])
    if len(after) != num_states:
        raise GraphError("loop", f"the body must return {num_states} states, got {len(after)}.")
    if not after and not values:
        raise GraphError("loop", "needs a state or a value to stack.")
    return after, values

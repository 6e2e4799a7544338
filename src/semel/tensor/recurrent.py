"""Recurrent cells over sequences: LSTM, GRU, RNN.

    x [steps, batch, in], W, R, B  -->  Y [steps, directions, batch, hidden], Y_h[, Y_c]

Operands, their shapes and their meaning are those of ONNX. What the input contributes to all
steps is one matmul before the loop; a step is one matmul of the state and one kernel for the
gates. Both directions run in one loop, the reverse one from the last step to the first.

With `sequence_lens`, rows whose sequence is over keep their state, and their outputs are 0.
The reverse direction reaches the last element of a shorter row later, and until then the row
keeps its initial state: so each row is read from its own end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from semel.errors import GraphError
from semel.ir.expr import Dim, Index
from semel.ir.types import Shape
from semel.tensor import activations, unary
from semel.tensor.control import loop
from semel.tensor.elementwise import choose, clip
from semel.tensor.handle import TensorLike, dim_value, lift, scalar
from semel.tensor.indexing import check_index
from semel.tensor.movement import agreeing, concat, may_agree, slice_axes, stretch

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

#: A name, or a name with the numbers that its formula has: ("LeakyRelu", 0.2).
Activation: TypeAlias = "str | tuple[str, float] | tuple[str, float, float]"
_Function: TypeAlias = "Callable[..., Tensor]"

DIRECTIONS = ("forward", "reverse", "bidirectional")

#: name -> (function of (x, alpha, beta), default alpha, default beta)
ACTIVATIONS: Mapping[str, tuple[Callable[[Tensor, float, float], Tensor], float, float]] = {
    "Sigmoid": (lambda x, a, b: unary.sigmoid(x), 0.0, 0.0),
    "Tanh": (lambda x, a, b: unary.tanh(x), 0.0, 0.0),
    "Relu": (lambda x, a, b: activations.relu(x), 0.0, 0.0),
    "Affine": (lambda x, a, b: x * a + b, 1.0, 0.0),
    "LeakyRelu": (lambda x, a, b: activations.leaky_relu(x, a), 0.01, 0.0),
    "ThresholdedRelu": (lambda x, a, b: choose(x >= a, x, x * 0), 1.0, 0.0),
    "ScaledTanh": (lambda x, a, b: unary.tanh(x * b) * a, 1.0, 1.0),
    "HardSigmoid": (lambda x, a, b: clip(x * a + b, 0, 1), 0.2, 0.5),
    "Elu": (lambda x, a, b: activations.elu(x, a), 1.0, 0.0),
    "Softsign": (lambda x, a, b: activations.softsign(x), 0.0, 0.0),
    "Softplus": (lambda x, a, b: activations.softplus(x), 0.0, 0.0),
}


def lstm(
    x: TensorLike,
    w: TensorLike,
    r: TensorLike,
    b: TensorLike | None = None,
    *,
    initial_h: TensorLike | None = None,
    initial_c: TensorLike | None = None,
    sequence_lens: TensorLike | None = None,
    peepholes: TensorLike | None = None,
    direction: str = "forward",
    activations: Sequence[Activation] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    batch_first: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """(Y, Y_h, Y_c) of a long short-term memory, as ONNX defines LSTM.

    x is [steps, batch, in], w [directions, 4*hidden, in], r [directions, 4*hidden, hidden],
    both in the order of the gates i, o, f, c; b is [directions, 8*hidden], that of w and
    then that of r; peepholes [directions, 3*hidden] in the order i, o, f. Activations are
    (f, g, h) for each direction, by default Sigmoid, Tanh, Tanh. `clip` bounds what goes into
    f and g (h sees the memory as it is), and `input_forget` couples the gates: f = 1 - i.
    With `batch_first`, x is [batch, steps, in], Y [batch, steps, directions, hidden] and
    states are [batch, directions, hidden], the initial ones too.
    """
    x = lift(x)
    call = _Call.of("lstm", x, w, r, b, 4, direction, sequence_lens, batch_first)
    functions = call.functions(activations, ("Sigmoid", "Tanh", "Tanh"), clip)
    h, c = call.states("initial_h", initial_h), call.states("initial_c", initial_c)
    if peepholes is None:
        weights: Sequence[Tensor | None] = [None] * call.directions
    else:
        weights = call.checked("peepholes", peepholes, (call.directions, 3 * call.hidden))

    def cell(d: int, gates: _Gates, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (f, g, out), before = functions[d], states[1]
        peep = weights[d]
        pi, po, pf = (None,) * 3 if peep is None else call.split(peep, 3)
        i, o, forget, new = call.split(gates(states[0]), 4)
        i = f(_peep(i, pi, before))
        forget = 1 - i if input_forget else f(_peep(forget, pf, before))
        after = forget * before + i * g(new)
        return f(_peep(o, po, after)) * out(after, clip=False), after

    y, (y_h, y_c) = call.run([h, c], cell)
    return y, y_h, y_c


def gru(
    x: TensorLike,
    w: TensorLike,
    r: TensorLike,
    b: TensorLike | None = None,
    *,
    initial_h: TensorLike | None = None,
    sequence_lens: TensorLike | None = None,
    direction: str = "forward",
    activations: Sequence[Activation] | None = None,
    clip: float | None = None,
    linear_before_reset: bool = False,
    batch_first: bool = False,
) -> tuple[Tensor, Tensor]:
    """(Y, Y_h) of gated recurrent units, as ONNX defines GRU.

    w is [directions, 3*hidden, in], r [directions, 3*hidden, hidden], in the order of the
    gates z, r, h; b is [directions, 6*hidden]. Activations are (f, g) for each direction,
    by default Sigmoid, Tanh. With `linear_before_reset` the reset gate is applied after
    the state's matmul, which then is one for all gates. Other options as in `lstm`.
    """
    x = lift(x)
    call = _Call.of("gru", x, w, r, b, 3, direction, sequence_lens, batch_first)
    functions = call.functions(activations, ("Sigmoid", "Tanh"), clip)
    linear = bool(linear_before_reset)
    if linear:
        call.kept = 2

    def cell(d: int, gates: _Gates, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (f, g), (before,) = functions[d], states
        if linear:
            x_z, x_r, x_h = call.split(gates.input(), 3)
            s_z, s_r, s_h = call.split(gates.state(before), 3)
            update, reset = f(x_z + s_z), f(x_r + s_r)
            new = g(x_h + reset * s_h)
        else:
            update, reset = (f(t) for t in call.split(gates(before, 0, 2), 2))
            new = g(gates(reset * before, 2, 3))
        return ((1 - update) * new + update * before,)

    y, (y_h,) = call.run([call.states("initial_h", initial_h)], cell)
    return y, y_h


def rnn(
    x: TensorLike,
    w: TensorLike,
    r: TensorLike,
    b: TensorLike | None = None,
    *,
    initial_h: TensorLike | None = None,
    sequence_lens: TensorLike | None = None,
    direction: str = "forward",
    activations: Sequence[Activation] | None = None,
    clip: float | None = None,
    batch_first: bool = False,
) -> tuple[Tensor, Tensor]:
    """(Y, Y_h) of a simple recurrent network, as ONNX defines RNN.

    w is [directions, hidden, in], r [directions, hidden, hidden], b [directions, 2*hidden].
    The activation is one for each direction, by default Tanh. Other options as in `lstm`.
    """
    x = lift(x)
    call = _Call.of("rnn", x, w, r, b, 1, direction, sequence_lens, batch_first)
    functions = call.functions(activations, ("Tanh",), clip)

    def cell(d: int, gates: _Gates, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (functions[d][0](gates(states[0])),)

    y, (y_h,) = call.run([call.states("initial_h", initial_h)], cell)
    return y, y_h


def _peep(gate: Tensor, weight: Tensor | None, state: Tensor) -> Tensor:
    """The gate with what it sees of the memory."""
    return gate if weight is None else gate + weight * state


# ---------------------------------------------------------------- one call


@dataclass
class _Call:
    """One call of a cell: its operands, checked, time first, weights one per direction.

    The first `kept` gates take the bias of the state before the loop, the others in it.
    """

    where: str
    x: Tensor
    gates: int
    direction: str
    batch_first: bool
    hidden: int = 0
    kept: int = 0
    w: list[Tensor] = field(default_factory=list)
    r: list[Tensor] = field(default_factory=list)
    input_bias: list[Tensor | None] = field(default_factory=list)
    state_bias: list[Tensor | None] = field(default_factory=list)
    lens: Tensor | None = None

    @staticmethod
    def of(
        where: str,
        x: Tensor,
        w: TensorLike,
        r: TensorLike,
        b: TensorLike | None,
        gates: int,
        direction: str,
        lens: TensorLike | None,
        batch_first: bool,
    ) -> _Call:
        if direction not in DIRECTIONS:
            raise GraphError(where, f"direction must be one of {DIRECTIONS}, got {direction!r}.")
        if x.ndim != 3 or not x.dtype.is_float:
            raise GraphError(where, f"x must be floats [steps, batch, in], got {x.type}.")
        x = x.swapaxes(0, 1) if batch_first else x
        call = _Call(where, x, gates, direction, batch_first)
        call._take_weights(lift(w), lift(r), b)
        call._take_lens(lens)
        return call

    def _take_weights(self, w: Tensor, r: Tensor, b: TensorLike | None) -> None:
        if r.ndim != 3 or not isinstance(r.shape[2], int):
            raise GraphError(
                self.where, f"r must be [directions, {self.gates}*hidden, hidden], got {r.type}."
            )
        self.hidden, self.kept = r.shape[2], self.gates
        rows = self.gates * self.hidden
        self.r = self.checked("r", r, (self.directions, rows, self.hidden))
        self.w = self.checked("w", w, (self.directions, rows, self.x.shape[2]))
        bias: Sequence[Tensor | None] = [None] * self.directions
        if b is not None:
            bias = self.checked("b", b, (self.directions, 2 * rows))
        self.input_bias = [None if t is None else t[:rows] for t in bias]
        self.state_bias = [None if t is None else t[rows:] for t in bias]

    def _take_lens(self, lens: TensorLike | None) -> None:
        if lens is None:
            return
        found = lift(lens)
        if not found.dtype.is_integer or not may_agree(found.shape, (self.batch,)):
            raise GraphError(
                self.where,
                f"sequence_lens must be integers [{self.batch}], one per row, got {found.type}.",
            )
        found = agreeing(found, (self.batch,))
        # As int64: lengths may come in a dtype that does not hold all steps.
        self.lens = check_index(found, self.steps + 1, self.where, "sequence length")

    def checked(self, name: str, value: TensorLike, shape: Shape) -> list[Tensor]:
        """An operand of this shape and of x's dtype, by direction."""
        found = lift(value)
        if not may_agree(found.shape, shape) or found.dtype != self.x.dtype:
            dims = ", ".join(map(str, shape))
            raise GraphError(
                self.where, f"{name} must be {self.x.dtype}[{dims}], got {found.type}."
            )
        found = agreeing(found, shape)
        return [found[d] for d in range(shape[0])] if isinstance(shape[0], int) else []

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    @property
    def steps(self) -> Dim:
        dim: Dim = self.x.shape[0]
        return dim

    @property
    def batch(self) -> Dim:
        dim: Dim = self.x.shape[1]
        return dim

    def split(self, t: Tensor, count: int) -> list[Tensor]:
        """The gates that lie beside each other along the last axis."""
        return [t[..., k * self.hidden : (k + 1) * self.hidden] for k in range(count)]

    def states(self, name: str, value: TensorLike | None) -> list[Tensor]:
        """The initial states [1, batch, hidden], one per direction; zeros if not given."""
        shape = (1, self.batch, self.hidden)
        if value is None:
            zero = stretch(scalar(0.0, self.x.dtype), shape)
            return [zero] * self.directions
        found = lift(value)
        if self.batch_first and found.ndim == 3:
            found = found.swapaxes(0, 1)
        per_direction = self.checked(name, found, (self.directions, self.batch, self.hidden))
        return [t.reshape(shape) for t in per_direction]

    def functions(
        self, given: Sequence[Activation] | None, default: Sequence[str], clip: float | None
    ) -> list[list[_Function]]:
        """The activations of each direction, with what goes into them clipped."""
        names: Sequence[Activation] = list(default) * self.directions if given is None else given
        if len(names) != len(default) * self.directions:
            raise GraphError(
                self.where,
                f"activations must be {len(default)} per direction, "
                f"{len(default) * self.directions} in all, got {len(names)}.",
            )
        if clip is not None and not clip > 0:
            raise GraphError(self.where, f"clip must be > 0, got {clip}.")
        made = [_activation(self.where, name, clip) for name in names]
        return [made[d * len(default) : (d + 1) * len(default)] for d in range(self.directions)]

    # ------------------------------------------------------------ running

    def run(
        self,
        states: Sequence[Sequence[Tensor]],
        cell: Callable[[int, _Gates, tuple[Tensor, ...]], tuple[Tensor, ...]],
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The outputs of all steps and the final states, as ONNX lays them out."""
        inputs = [self._projected(d) for d in range(self.directions)]
        initial = [states[k][d] for d in range(self.directions) for k in range(len(states))]
        count = len(states)

        def body(step: Index, now: tuple[Tensor, ...]) -> tuple[list[Tensor], list[Tensor]]:
            after: list[Tensor] = []
            values: list[Tensor] = []
            for d in range(self.directions):
                at = self.steps - 1 - step if self._is_backward(d) else step
                own = now[d * count : (d + 1) * count]
                rows = (self.batch, self.gates * self.hidden)
                here = slice_axes(inputs[d], (at * self.batch, 0), rows, (1, 1))
                made, value = self._masked(at, own, cell(d, _Gates(self, d, here), own))
                after += made
                values.append(value)
            return after, values

        backward = [self._is_backward(d) for d in range(self.directions)]
        final, stacked = loop(self.steps, initial, body, backward=backward)
        y = concat(stacked, 1)
        ends = [concat(final[k::count], 0) for k in range(count)]
        if not self.batch_first:
            return y, tuple(ends)
        return y.permute(2, 0, 1, 3), tuple(t.swapaxes(0, 1) for t in ends)

    def _is_backward(self, d: int) -> bool:
        return self.direction == "reverse" or d == 1

    def _masked(
        self, at: Dim, before: Sequence[Tensor], after: Sequence[Tensor]
    ) -> tuple[list[Tensor], Tensor]:
        """Next states and the step's output; rows that have ended stand still and give 0."""
        if self.lens is None:
            return list(after), after[0]
        runs = (self.lens > dim_value(at)).reshape(1, self.batch, 1)
        kept = [choose(runs, a, b) for a, b in zip(after, before, strict=True)]
        return kept, choose(runs, after[0], scalar(0.0, self.x.dtype))

    def _projected(self, d: int) -> Tensor:
        """What the input adds to the gates, in rows for all steps, with every bias it can take."""
        rows = self.x.reshape(self.steps * self.batch, self.x.shape[2])
        flat = rows @ self.w[d].T
        input_bias, state_bias = self.input_bias[d], self.state_bias[d]
        if input_bias is not None and state_bias is not None:
            cut = self.kept * self.hidden
            if self.kept < self.gates:
                rest = (self.gates - self.kept) * self.hidden
                state_bias = state_bias[:cut].pad(((0, rest),))
            flat = flat + (input_bias + state_bias)
        return flat


@dataclass(frozen=True, slots=True)
class _Gates:
    """What goes into the gates of one direction in one step; `rows` is the input's part.

    States and gates are [1, batch, ...], as the results are laid out; matmuls are of rows.
    """

    call: _Call
    d: int
    rows: Tensor

    def input(self) -> Tensor:
        """The part of the input."""
        return self._as_gates(self.rows)

    def state(self, h: Tensor) -> Tensor:
        """The part of the state, with its bias where that was left out before the loop."""
        call, found = self.call, self._as_rows(h) @ self.call.r[self.d].T
        bias, cut = call.state_bias[self.d], call.kept * call.hidden
        if bias is not None and call.kept < call.gates:
            found = found + bias[cut:].pad(((cut, 0),))
        return self._as_gates(found)

    def __call__(self, h: Tensor, first: int = 0, last: int | None = None) -> Tensor:
        """Gates `first` to `last` together."""
        size = self.call.hidden
        own = slice(first * size, (self.call.gates if last is None else last) * size)
        return self._as_gates(self._as_rows(h) @ self.call.r[self.d][own].T + self.rows[:, own])

    def _as_rows(self, h: Tensor) -> Tensor:
        return h.reshape(self.call.batch, self.call.hidden)

    def _as_gates(self, rows: Tensor) -> Tensor:
        return rows.reshape(1, *rows.shape)


def _activation(where: str, given: Activation, bound: float | None) -> _Function:
    name, *numbers = (given,) if isinstance(given, str) else given
    if name not in ACTIVATIONS or len(numbers) > 2:
        known = ", ".join(ACTIVATIONS)
        raise GraphError(
            where, f"activations must be names out of {known}, with alpha and beta, got {given!r}."
        )
    function, *defaults = ACTIVATIONS[name]
    alpha, beta = (*numbers, *defaults[len(numbers) :])

    def apply(x: Tensor, clip: bool = True) -> Tensor:
        inside = x if bound is None or not clip else x.clip(-bound, bound)
        return function(inside, alpha, beta)

    return apply

"""Random graphs with states against the oracle, over random sequences of what users do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from tests.state.drawn import MOST, WIDTH, draw_graph

import semel
from semel.errors import VariableError
from semel.ops.stateful import StateReference
from semel.plan.plan import ExecutionPlan

DIMS = {"t": (1, MOST)}


class Model:
    """The oracle beside a plan: what is done to the one is done to the other, and compared."""

    def __init__(self, plan: ExecutionPlan, reference: StateReference) -> None:
        self.plan, self.reference = plan, reference
        self.saved: tuple[Any, Any] | None = None

    def run(self, x: np.ndarray) -> None:
        try:
            wanted = self.reference.run({"x": x})
        except VariableError:
            with pytest.raises(semel.StateError, match="must end at or before"):
                self.plan(x=x)
            return
        found = self.plan(x=x)
        for one, other in zip(wanted, found if isinstance(found, tuple) else [found], strict=True):
            np.testing.assert_allclose(other, one, rtol=2e-4, atol=2e-4)

    def compare(self) -> None:
        assert self.plan.states.cursors == self.reference.held
        for name, info in self.plan.states.items():
            wanted = self.reference.states[name]
            wanted = wanted if info.rows is None else wanted[: info.rows]
            np.testing.assert_allclose(self.plan.states.read(name), wanted, rtol=2e-4, atol=2e-4)

    def truncate(self, share: float) -> None:
        for name, rows in self.plan.states.cursors.items():
            count = int(rows * share)
            self.plan.states.truncate(count, name)
            self.reference.held[name] = count

    def reset(self) -> None:
        self.plan.states.reset()
        self.reference.reset()

    def save(self) -> None:
        states = {n: a.copy() for n, a in self.reference.states.items()}
        self.saved = self.plan.states.snapshot(), (states, dict(self.reference.held))

    def restore(self) -> None:
        if self.saved is not None:
            snapshot, (states, held) = self.saved
            self.plan.states.restore(snapshot)
            self.reference.states, self.reference.held = dict(states), dict(held)

    def clone(self) -> None:
        old, self.plan = self.plan, self.plan.clone()
        old.states.reset()


@given(st.data())
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_states_are_what_the_oracle_says(data: Any) -> None:
    graph = draw_graph(data.draw)
    built = graph.build(DIMS)
    fusion = data.draw(st.booleans())
    plan = graph.prepare(dims=DIMS, threads=data.draw(st.integers(1, 2)), fusion=fusion)
    note(str([(s.name, s.how, s.why) for s in plan.states.values()]))
    model = Model(plan, StateReference(built))
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    for _ in range(6):
        match data.draw(st.integers(0, 8)):
            case 0:
                model.truncate(data.draw(st.sampled_from([0.0, 0.5, 1.0])))
            case 1:
                model.reset()
            case 2:
                model.save()
            case 3:
                model.restore()
            case 4:
                model.clone()
            case _:
                count = data.draw(st.integers(1, MOST))
                model.run(rng.standard_normal((count, WIDTH), dtype=np.float32))
        model.compare()

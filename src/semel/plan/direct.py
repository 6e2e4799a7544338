"""Runs of one plan over arrays that nobody changes, with as little around them as can be.

    direct_call(plan, names)  -->  DirectCall: (arrays, variables) -> results

Small arrays are copied into the plan's inputs. A large one is read where it lies: the input's
base moves there for this run and back after it, so that the plan keeps no array alive. All
shapes of inputs are fixed, and whoever has the call has the plan to himself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from semel.plan.readers import output_copier
from semel.runtime.buffer import Array
from semel.runtime.runstate import RunState

if TYPE_CHECKING:
    from semel.plan.plan import ExecutionPlan

#: From here on an array is read where it lies: writing its address costs as much as copying this.
LENT_FROM_BYTES = 16 << 10

#: An input's own memory, and its base if it may be read elsewhere; else it is always copied.
Slot = tuple[Array, int | None]


class DirectCall:
    """A plan, and where its inputs and outputs lie; `size_bytes` is what it holds.

    The memory of inputs that are read elsewhere is never touched: no page of it is there.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        slots: Sequence[Slot],
        outputs: Sequence[Callable[[], Array]],
        run: RunState,
        own_bytes: int,
    ) -> None:
        self.plan = plan
        lent = [(base, view) for view, base in slots if base is not None]
        self.size_bytes = own_bytes - sum(view.nbytes for _, view in lent)
        self._slots, self._outputs, self._run = slots, outputs, run
        self._own = [(base, _address(view)) for base, view in lent]

    def __call__(self, arrays: Sequence[Any], values: Mapping[str, int]) -> list[Array]:
        """Run; fresh arrays of the outputs. Arrays and numbers stand in the order of the names."""
        run = self._run
        try:
            for (view, base), array in zip(self._slots, arrays, strict=True):
                if base is not None and array.flags.aligned:
                    run.set_base(base, _address(array))
                else:
                    view[...] = array
            if values:
                self.plan.execute_with_vars(values)
            else:
                self.plan.execute()
            return [copy() for copy in self._outputs]
        finally:
            for base, address in self._own:
                run.set_base(base, address)


def direct_call(plan: ExecutionPlan, names: Sequence[str]) -> DirectCall:
    """A short way to run this plan, whose shapes are all fixed; inputs in the order of `names`."""
    return plan.engine.hold.alone(_direct_call, plan, names)


def _direct_call(plan: ExecutionPlan, names: Sequence[str]) -> DirectCall:
    engine = plan.engine
    engine.state.check_alive()
    buffers, keepers = engine.parts.buffers, engine.state.inputs
    slots: list[Slot] = []
    for name in names:
        keeper = keepers[name]
        view = buffers[keeper.index].array(keeper.shape_now())
        is_lent = view.nbytes >= LENT_FROM_BYTES and keeper.index not in engine.parts.outputs
        slots.append((view, engine.linked.bases[keeper.index] if is_lent else None))
        keeper.record(view.shape)
    outputs = [output_copier(engine, i) for i in engine.parts.outputs]
    return DirectCall(plan, slots, outputs, engine.state.run, engine.own_bytes)


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])

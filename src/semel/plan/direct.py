"""Runs of one plan over arrays that nobody changes, with as little around them as can be.

    plan.direct_call(names)  -->  DirectCall: (arrays, variables) -> results

Small arrays are copied into the plan's inputs. A large one is read where it lies: its address
stands in the rows for this run and the plan's own is put back after it, so that the plan keeps
no array alive. All shapes are fixed, and whoever has the call has the plan to himself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from semel.runtime.buffer import Array
from semel.runtime.optable import Words

if TYPE_CHECKING:
    from semel.plan.plan import ExecutionPlan

#: From here on an array is read where it lies: writing its address costs as much as copying this.
LENT_FROM_BYTES = 16 << 10

#: An input's own memory, and the words of the table that hold its address; none: always copied.
Slot = tuple[Array, Sequence[int]]


class DirectCall:
    """A plan, and where its inputs and outputs lie; `size_bytes` is what it holds.

    The memory of inputs that are read elsewhere is never touched: no page of it is there.
    """

    def __init__(
        self, plan: ExecutionPlan, slots: Sequence[Slot], outputs: Sequence[Array], words: Words
    ) -> None:
        self.plan = plan
        untouched = sum(view.nbytes for view, places in slots if places)
        self.size_bytes = plan.memory.own_bytes - untouched
        self._slots, self._outputs, self._words = slots, outputs, words
        self._own = [(i, int(words[i])) for _, places in slots for i in places]

    def __call__(self, arrays: Sequence[Any], values: Mapping[str, int]) -> list[Array]:
        """Run; fresh arrays of the outputs. Arrays and numbers stand in the order of the names."""
        words = self._words
        try:
            for (view, places), array in zip(self._slots, arrays, strict=True):
                if places and array.flags.aligned:
                    address = array.__array_interface__["data"][0]
                    for place in places:
                        words[place] = address
                else:
                    view[...] = array
            if values:
                self.plan.execute_with_vars(values)
            else:
                self.plan.execute()
            return [output.copy() for output in self._outputs]
        finally:
            for place, address in self._own:
                words[place] = address

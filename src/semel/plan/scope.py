"""What the rows of one plan refer to: its variables, its functions, the sizes of its buffers.

    kernel signature x plan variables  --RowScope.bind-->  BoundKernel

Symbolic quantities of a kernel are renamed to the plan's variables once per (kernel, variables)
and shared by all its calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from semel.errors import PlanError
from semel.ir.expr import Dim, Substitution, Variable, substitute, upper_bound, variables
from semel.plan.row import BoundKernel
from semel.plan.rows import PreparedCustomFunction, PreparedKernel, PreparedOp
from semel.runtime.buffer import Buffer
from semel.runtime.custom import CustomFunction


class RowScope:
    """Renames kernels' variables to the plan's; each distinct combination once."""

    def __init__(
        self,
        variables: Mapping[str, Variable],
        functions: Mapping[str, CustomFunction],
        buffers: Sequence[Buffer],
    ) -> None:
        self._variables, self._functions, self._buffers = variables, functions, buffers
        self._known: dict[tuple[object, ...], BoundKernel] = {}
        #: By what variables of kernels stand for.
        self._renaming: dict[tuple[object, ...], Substitution] = {}
        #: By identity, the row with it: each is asked for several times.
        self._asked: dict[int, tuple[PreparedKernel, BoundKernel]] = {}

    def names(self, row: PreparedKernel) -> dict[Variable, Dim]:
        """For each variable of the kernel, what it stands for in the plan."""
        return dict(zip(row.kernel.signature.variables, self.values(row), strict=True))

    def values(self, row: PreparedKernel | PreparedCustomFunction) -> tuple[Dim, ...]:
        """The values behind the variables of a call, in their order."""
        fixed = row.fixedvars
        return tuple(
            fixed[var.name] if var.name in fixed else self._variables[var.name]
            for var in row.runtime_vars
        )

    def function(self, row: PreparedCustomFunction) -> CustomFunction:
        """The function behind a call."""
        return self._functions[row.kind]

    def size_bytes(self, index: int) -> int:
        """How many bytes a buffer has."""
        return self._buffers[index].capacity_bytes

    def dim(self, value: Dim) -> Dim:
        """An expression of a row in the plan's variables."""
        return substitute(value, {v: self._variables[v.name] for v in variables(value)})

    def bind(self, row: PreparedKernel) -> BoundKernel:
        """The kernel of `row` in the plan's variables."""
        asked = self._asked.get(id(row))
        if asked is not None:
            return asked[1]
        key = (id(row.kernel), row.runtime_vars, *sorted(row.fixedvars.items()))
        if key not in self._known:
            self._known[key] = self._bind(row)
        self._asked[id(row)] = row, self._known[key]
        return self._known[key]

    def _bind(self, row: PreparedKernel) -> BoundKernel:
        names, signature = self.names(row), row.kernel.signature
        key = tuple(names.items())
        renamed = self._renaming.get(key)
        if renamed is None:
            renamed = self._renaming[key] = Substitution(names)
        specs = signature.buffers
        return BoundKernel(
            values=tuple(names[v] for v in signature.variables),
            tiles=renamed(signature.tiles),
            flops=renamed(signature.flops),
            bytes=renamed(signature.bytes),
            tile_bytes=tuple(
                None if s.tile_stride is None else renamed(s.tile_stride) * s.dtype.size_bytes
                for s in specs
            ),
            sizes_bytes=tuple(renamed(s.size) * s.dtype.size_bytes for s in specs),
            scratch_bytes=renamed(signature.scratch_bytes),
        )

    def scratch_bytes(self, rows: Sequence[PreparedOp]) -> int:
        """What one participant needs for any kernel of these rows at any legal value."""
        most = 0
        for row in rows:
            if isinstance(row, PreparedKernel):
                wanted = row.kernel.signature.scratch_bytes
                if not isinstance(wanted, int):
                    wanted = self.bind(row).scratch_bytes
                top = upper_bound(wanted)
                if top is None:
                    raise PlanError(
                        row.name, f"scratch of {wanted} bytes must have an upper bound."
                    )
                most = max(most, top)
        return most

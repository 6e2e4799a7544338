"""The choices that lowering has for one group, none of which changes a bit of the result.

    Group x Target --candidate_choices--> (default, others worth a try ...)

The default follows from the target alone; `compiler.tune` may measure the others. Only
what leaves every element's order of arithmetic alone may be a choice: how much of the
result lives in registers and how much one tile covers, but not how many lanes share a sum.
To give tuning more to choose from, add to `_tiles`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from semel.ir.target import Target
from semel.lower.contract import contract_tile
from semel.lower.register_tiles import RegisterTile
from semel.schedule.group import Group


@dataclass(frozen=True, slots=True)
class Choice:
    """How one kernel is cut: `tile` for a contraction, else `registers` a vector loop fills.

    None leaves it to lowering, which looks at the work of each loop.
    """

    tile: RegisterTile | None = None
    registers: int | None = None

    @property
    def name(self) -> str:
        """All of it as text: what `explain` shows, and what is remembered on disk."""
        if self.tile is not None:
            return _tile_name(self.tile)
        return f"registers={self.registers or 'auto'}"


def _tile_name(tile: RegisterTile) -> str:
    return " ".join(f"{f.name}={getattr(tile, f.name)}" for f in fields(tile))


def is_empty(group: Group) -> bool:
    """Whether the group stores nothing, whatever the variables are."""
    return all(node.type.num_elements == 0 for node in group.outputs)


def default_choice(group: Group, target: Target) -> Choice:
    """What lowering does unless it is told otherwise."""
    if group.contraction is None or not group.contraction.tiles:
        return Choice()  # attention and grouped products cut themselves
    return Choice(tile=contract_tile(group, target))


def candidate_choices(group: Group, target: Target) -> tuple[Choice, ...]:
    """The default, then others that may be faster; a single one if there is no choice."""
    first = default_choice(group, target)
    if is_empty(group):
        return (first,)
    if first.tile is not None:
        others = [Choice(tile=tile) for tile in _tiles(first.tile)]
        return tuple(dict.fromkeys([first, *others]))
    # Lanes of a reduction are its partial sums: only loops without one may be widened.
    if group.kind == "loops" and not group.reduces:
        return (first, *(Choice(registers=n) for n in (1, 2, 4)))
    return (first,)


def _tiles(tile: RegisterTile) -> Iterator[RegisterTile]:
    """Tiles of more or fewer rows and panels, and row blocks of other heights.

    `lanes` stays: constant operands are packed for it before anything is lowered.
    """
    yield replace(tile, rows=2 * tile.rows)
    yield replace(tile, rows=4 * tile.rows)
    yield replace(tile, panels=2 * tile.panels)
    yield replace(tile, rows=2 * tile.rows, panels=max(tile.panels // 2, 1))
    yield replace(tile, panels=max(tile.panels // 2, 1))
    yield replace(tile, panels=1)
    low = max((h for h in range(1, tile.height) if tile.rows % h == 0), default=1)
    yield replace(tile, height=low)

"""Schedule to kernels: every group becomes one kernel, a loop or a branch those of its bodies.

    Schedule x Target --lower_schedule, lower_groups--> Lowered of every group

The kind of a group picks the rule: loops, contraction or an op with a kernel of its
own. Math functions are then replaced by arithmetic, and only then, when the work of
a loop body is known, is the number of lanes of each vector loop chosen. How a kernel is
cut is a `Choice`: the default one, or another that `compiler.tune` has found faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from semel.ir.expr import Index
from semel.ir.target import Target
from semel.kernel import ir
from semel.kernel.ir import Kernel, Statement
from semel.kernel.math import expand_kernel_math
from semel.kernel.shared_lanes import (
    elements_at_once,
    registers_at_once,
    sum_lanes,
    widest_total,
)
from semel.lower.attention import lower_attention
from semel.lower.byte_dot import lower_words
from semel.lower.choices import Choice, default_choice, is_empty
from semel.lower.contract import lower_contract
from semel.lower.grouped import lower_grouped
from semel.lower.loop import lower_bodies
from semel.lower.lowered import Lowered, Region, finish_kernel, make_buffers, nodes_of
from semel.lower.moved_bytes import with_moved_bytes
from semel.lower.nests import lower_loops
from semel.lower.own_kernel import lower_opaque
from semel.lower.share_kernels import KernelKey, SharedKernels, args_like, shared_kernel
from semel.lower.states import place_states, state_homes
from semel.schedule.group import Group, Schedule
from semel.schedule.names import kernel_name

#: Groups that are counted for what they are.
_FEW = 16
#: Two lines of the cache.
STRIP_BITS = 1024

_NOWHERE: Mapping[str, Target] = MappingProxyType({})
_RULES = {"loops": lower_loops, "contract": lower_contract, "opaque": lower_opaque}
_CONTRACTIONS = {
    "softmax_matmul": lower_attention,
    "grouped_matmul": lower_grouped,
    "matmul_words": lower_words,
    "matmul_small_words": lower_words,
}


def lower_schedule(
    schedule: Schedule,
    target: Target,
    region: Region | None = None,
    others: SharedKernels | None = None,
    elsewhere: Mapping[str, Target] = _NOWHERE,
) -> tuple[Lowered, ...]:
    """The kernels of a schedule, in its order; groups that compute alike share one.

    `region` is where they run, if the schedule is that of a body. `others` are kernels of other
    schedules, which groups may share, too. `elsewhere` are the targets of devices that have
    another one.
    """
    return tuple(lower_groups(schedule, target, region, others, elsewhere))


def lower_groups(
    schedule: Schedule,
    target: Target,
    region: Region | None = None,
    others: SharedKernels | None = None,
    elsewhere: Mapping[str, Target] = _NOWHERE,
) -> Iterator[Lowered]:
    """The same one after the other, so that one may be compiled while the next is lowered."""
    homes = state_homes(schedule.states)
    known: dict[Any, Lowered] = {}
    for group in schedule.groups:
        there = elsewhere.get(group.device, target)
        found = _lower(group, schedule, there, region, known, others)
        if homes:
            found = [place_states(it, homes) for it in found]
        if group.device:  # with all that is inside
            found = [replace(it, device=group.device) for it in found]
        yield from found


def count_kernels(schedule: Schedule, target: Target) -> int:
    """How many different kernels a schedule has at most; a few groups are not compared."""
    groups = [group for group in schedule.groups if group.body is None]
    if len(groups) < _FEW:
        return len(groups)
    return len({KernelKey(group, target) for group in groups})


def _lower(
    group: Group,
    schedule: Schedule,
    target: Target,
    region: Region | None,
    known: dict[Any, Lowered],
    others: SharedKernels | None,
) -> list[Lowered]:
    """The kernels of one group; `known` are those of groups before it."""
    if group.body is not None:
        return lower_bodies(group, schedule.graph, region, target, lower_schedule)
    key = KernelKey(group, target)
    first = known.get(key)
    if first is not None:
        return [for_group(first, group)]
    shared = None if others is None else others.find(key)
    first = lower_group(group, target) if shared is None else shared.for_group(group)
    if others is not None and shared is None and (made := shared_kernel(first)) is not None:
        others.add(key, made)
    known[key] = first
    return [first]


def lower_group(group: Group, target: Target, choice: Choice | None = None) -> Lowered:
    """The kernel of one group, cut as `choice` says or by default."""
    chosen = choice or default_choice(group, target)
    lowered = _rule(group, chosen)(group, target)
    kernel = expand_kernel_math(with_moved_bytes(lowered))
    if not lowered.has_lanes:
        kernel = choose_lanes(kernel, chosen.registers, target.vector_bits)
    text = "" if chosen == Choice() else f"{chosen.name} (default)"
    return replace(lowered, kernel=kernel, choice=text)


def for_group(first: Lowered, group: Group) -> Lowered:
    """The kernel of a group for another one that computes alike, on tensors of its own."""
    return replace(first, args=args_like(first.group, nodes_of(first), group), group=group)


def _rule(group: Group, choice: Choice) -> Callable[[Group, Target], Lowered]:
    if is_empty(group):
        return _lower_nothing
    if group.contract is not None and group.contract.op.name in _CONTRACTIONS:
        return _CONTRACTIONS[group.contract.op.name]
    if choice.tile is not None:
        return partial(lower_contract, tile=choice.tile)
    return _RULES[group.kind]


def template_name(group: Group) -> str:
    """What kind of kernel a group becomes."""
    if is_empty(group):
        return "nothing"
    if group.contract is not None and group.contract.op.name in _CONTRACTIONS:
        return group.contract.op.name
    return group.kind


def _lower_nothing(group: Group, target: Target) -> Lowered:
    """A kernel of no tiles: nothing is stored, whatever the variables are."""
    buffers = make_buffers(group.outputs, list(dict.fromkeys(group.reads)))
    tile = Index("tile", 0)
    kernel = finish_kernel(kernel_name(group), list(buffers.values()), [], tile, (), [], flops=0)
    return Lowered(kernel, tuple(buffers), group)


def choose_lanes(
    kernel: Kernel, registers: int | None = None, vector_bits: int = STRIP_BITS
) -> Kernel:
    """Give vector loops their lanes, now that the work of their bodies is known.

    The lanes of a reduction are its partial sums, those of every machine (`kernel.shared_lanes`).
    Other loops fill `registers` of this one, or several if their bodies are light enough; those
    that walk down a strip of rows make it two lines of the cache wide, which come together.
    """
    return replace(kernel, body=tuple(_widen(s, registers, vector_bits) for s in kernel.body))


def _widen(statement: Statement, registers: int | None, vector_bits: int) -> Statement:
    match statement:
        case ir.Loop(lanes=lanes) if lanes > 1:
            bits = widest_total(statement)
            if bits is not None:
                return replace(statement, lanes=sum_lanes(bits))
            narrow = elements_at_once(statement)
            lanes *= narrow
            several = registers_at_once(statement)
            most = statement.stop - statement.start
            if narrow > 1 and isinstance(most, int):  # lines of an image: one whole vector at least
                while several > 1 and lanes * several > most:
                    several //= 2
            if several > 1 and any(isinstance(s, ir.Loop) and not s.unroll for s in statement.body):
                several = max(several, STRIP_BITS // vector_bits)
            return replace(statement, lanes=lanes * (registers or several))
        case ir.Loop() | ir.If():
            body = tuple(_widen(s, registers, vector_bits) for s in statement.body)
            return replace(statement, body=body)
        case _:
            return statement

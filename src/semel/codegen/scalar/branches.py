"""Branches and atomics as text: what kernels and the plan runner have in common.

Each function gives lines of LLVM IR, or an instruction to give a name to.
"""

from __future__ import annotations


def jump(to: str) -> str:
    """Go on at a label."""
    return f"  br label %{to}"


def branch(condition: str, then: str, other: str) -> str:
    """Go on at one of two labels."""
    return f"  br i1 {condition}, label %{then}, label %{other}"


def phi(kind: str, *ways: tuple[str, str]) -> str:
    """The value that comes with the block we come from; `ways` are (value, label)."""
    return f"phi {kind} " + ", ".join(f"[{value}, %{label}]" for value, label in ways)


def atomic_load(place: str, order: str) -> str:
    """A word that other threads may change meanwhile."""
    return f"load atomic i64, ptr {place} {order}, align 8"


def atomic_store(place: str, value: str, order: str) -> str:
    """Write a word that other threads may read meanwhile."""
    return f"store atomic i64 {value}, ptr {place} {order}, align 8"


def compare_exchange(place: str, old: str, new: str, order: str, failed: str) -> str:
    """Replace a word if it is as expected; gives what was there, and whether it was."""
    return f"cmpxchg ptr {place}, i64 {old}, i64 {new} {order} {failed}"

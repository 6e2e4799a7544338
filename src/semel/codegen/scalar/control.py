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

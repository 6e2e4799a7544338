"""Machine code as text, where the machine has a disassembler.

    object code  --disassemble-->  assembly, or ""

Our code generator carries none, so this asks `objdump`. A report is worth having without it.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import tempfile
from functools import lru_cache

_TIMEOUT_S = 20
_MAX_LINES = 3000


@lru_cache(maxsize=256)
def disassemble(code: bytes) -> str:
    """The functions in an object file; empty if no disassembler is installed or it fails."""
    program = shutil.which("objdump")
    if program is None:
        return ""
    with tempfile.NamedTemporaryFile(suffix=".o") as file:
        file.write(code)
        file.flush()
        style = ["-M", "intel"] if platform.machine() in ("x86_64", "AMD64") else []
        command = [program, "-d", "--no-show-raw-insn", *style, file.name]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S
            )
        except (OSError, subprocess.SubprocessError):
            return ""
    lines = [line for line in done.stdout.splitlines() if file.name not in line]
    left = len(lines) - _MAX_LINES
    if left > 0:
        lines = [*lines[:_MAX_LINES], f"... {left} more lines"]
    return "\n".join(lines).strip()

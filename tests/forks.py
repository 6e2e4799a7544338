"""What a forked child does, for tests."""

from __future__ import annotations

import os
from collections.abc import Callable


def in_child(action: Callable[[], object]) -> None:
    """`action()` in a forked child, which must end well."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0

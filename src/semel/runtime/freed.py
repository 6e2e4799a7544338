"""Giving something back when the memory of its holder is freed, and not a moment before.

    token = when_freed(action, *args)  -->  `action(*args)` once nobody holds the token

A destructor and the callback of a weak reference come too early for that: of a cycle that nobody
can reach, the collector calls all of them, in any order, before it frees anything, and a user's
destructor among them may still run the plan that our own has just taken apart. A token is an
object that the collector does not track, so that only its own end is seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

Token = np.ndarray[Any, np.dtype[np.uint8]]


def when_freed(action: Callable[..., object], *args: Any) -> Token:
    """What to hold as long as `action(*args)` must not happen; it never does at the very end.

    `action` may run on any thread at any moment, must not wait, and must not refer to the holder.
    """
    token: Token = np.empty(0, np.uint8)  # arrays can be referred to weakly, and are not tracked
    weakref.finalize(token, action, *args).atexit = False
    return token

"""Fewer looks for cycles, while a compile makes many objects that live on.

    with fewer_collections(): ...  -->  Python's collector comes once in `RARE` objects

By default it comes once in 700 new objects, and a compile of a hundred kernels makes millions:
without this it takes a tenth of the time and finds next to nothing. The setting is the process's.
Whoever changes it meanwhile keeps what they set.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

RARE = 20_000  #: few enough that what a compile leaves behind is a few MiB


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Let the collector come rarely, if it comes at all and not so rarely already.

    Of two at a time the first one to end sets what it found: the other is as fast as before.
    """
    before = gc.get_threshold()
    if not 0 < before[0] < RARE:
        yield
        return
    ours = (RARE, *before[1:])
    gc.set_threshold(*ours)
    try:
        yield
    finally:
        if gc.get_threshold() == ours:
            gc.set_threshold(*before)

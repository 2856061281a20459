"""The collector of cycles of references, paused during work that makes very many objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """Let no objects be searched for cycles meanwhile; what became garbage goes soon after.

    The collector walks whatever is young each time some hundred objects were added, and all there
    are each time a quarter was.  Printing a kernel makes 100,000 that nearly all go by themselves:
    a third of its time were those walks.  Several threads may pause it; it runs again when the
    first of them is done, so it is never left off.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()

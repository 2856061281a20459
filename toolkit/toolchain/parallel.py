"""What a build on this machine needs so that the parts of kernels run on several cores."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from toolkit.paths import RUNTIME_C


@dataclass(frozen=True, slots=True)
class Parallel:
    """Flags for every file and for the linker, and sources beside the model's."""

    flags: tuple[str, ...] = ()
    sources: tuple[Path, ...] = ()


PARALLEL = {
    "port": Parallel(
        ("-DNST_PARALLEL=2", "-pthread"), (RUNTIME_C / "port" / "host" / "nst_threads.c",)
    ),
    "openmp": Parallel(("-fopenmp",)),
    "none": Parallel(),
}
"""What runs parts: POSIX threads of our own (nst_threads.c), OpenMP, or the caller alone.

Our own start a part sooner (0.2 us against 0.6), and their caller takes back parts that no thread
has begun; OpenMP's waits for all its threads, 8 ms where another process has the core.
"""


def parallel_build(threads: int, how: str) -> Parallel:
    """Return what a build for `threads` threads needs; `how` is a name of `PARALLEL`."""
    return PARALLEL[how] if threads > 1 else Parallel()

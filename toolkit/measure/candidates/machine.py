"""What the core that measures can do at best: multiply-adds of float32, and reading memory.

Both are measured, by kernels in C of the target's vectors, so that a percentage of the peak is of
this machine and not of a data sheet (Williams, Waterman and Patterson, Roofline, CACM 2009).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolkit.targets.target import Target

CHAINS, STEPS = 12, 4096
"""Of `nst_machine_fma`, in runtime_c/port/host/nst_machine.c."""

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_LEAST_MEMORY, _MOST_MEMORY = 64 << 20, 256 << 20


@dataclass(frozen=True, slots=True)
class Machine:
    """`flops`: operations of float32 a second, a multiply-add counted as two; `bandwidth`: bytes
    read a second, by the level of memory that holds them."""

    flops: float
    bandwidth: Mapping[str, float]


def vector_bytes(target: Target) -> int:
    """Return the bytes of a vector; all hosts have such of 16, which compilers use unasked."""
    return max(target.isa.vector_bytes, 16)


def fma_flops(target: Target) -> int:
    """Return the operations of one run of `nst_machine_fma`."""
    return 2 * CHAINS * STEPS * vector_bytes(target) // 4


def buffer_sizes(target: Target) -> dict[str, int]:
    """Return the bytes to read of each level of memory: half of a cache, four times the last."""
    sizes = {"L1": target.l1_bytes // 2, "L2": target.l2_bytes // 2}
    last = max(target.l2_bytes, *(_bytes(p) for p in _CACHES.glob("index*/size")), 0)
    sizes["DRAM"] = min(max(4 * last, _LEAST_MEMORY), _MOST_MEMORY)
    whole = 8 * vector_bytes(target)
    return {level: size - size % whole for level, size in sizes.items() if size >= whole}


def _bytes(path: Path) -> int:
    """Read a size such as 32768K."""
    try:
        found = re.fullmatch(r"(\d+)([KM]?)\s*", path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
    return int(found[1]) << {"": 0, "K": 10, "M": 20}[found[2]] if found else 0

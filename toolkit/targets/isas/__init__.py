"""The instruction sets, one table each."""

from __future__ import annotations

from toolkit.targets.isa import Isa
from toolkit.targets.isas.neon import NEON
from toolkit.targets.isas.scalar import ARM_FPU, SCALAR
from toolkit.targets.isas.x86 import AVX2, AVX512

ISAS: dict[str, Isa] = {isa.name: isa for isa in (SCALAR, ARM_FPU, AVX2, AVX512, NEON)}

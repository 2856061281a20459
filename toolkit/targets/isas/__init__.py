"""The instruction sets, one table each."""

from __future__ import annotations

from dataclasses import replace

from toolkit.targets.isa import Isa
from toolkit.targets.isas.armv7em import ARMV7EM
from toolkit.targets.isas.helium import HELIUM
from toolkit.targets.isas.neon import NEON
from toolkit.targets.isas.neon_integer import NEON_DOT_TENSORS
from toolkit.targets.isas.scalar import SCALAR
from toolkit.targets.isas.x86 import AVX2, AVX512
from toolkit.targets.isas.x86_integer import AVX512VNNI_TENSORS, AVXVNNI_TENSORS
from toolkit.targets.tensor import TensorIntrinsic

AVXVNNI = replace(
    AVX2, name="avxvnni", guard="defined(__AVXVNNI__)", tensors={**AVX2.tensors, **AVXVNNI_TENSORS}
)
AVX512VNNI = replace(
    AVX512,
    name="avx512vnni",
    guard="defined(__AVX512VNNI__)",
    tensors={**AVX512.tensors, **AVX512VNNI_TENSORS},
)
NEON_DOT = replace(
    NEON,
    name="neon_dot",
    guard="defined(__ARM_FEATURE_DOTPROD)",
    tensors={**NEON.tensors, **NEON_DOT_TENSORS},
)

_ALL = (SCALAR, AVX2, AVXVNNI, AVX512, AVX512VNNI, NEON, NEON_DOT, ARMV7EM, HELIUM)

ISAS: dict[str, Isa] = {isa.name: isa for isa in _ALL}

TENSOR_INTRINSICS: dict[str, TensorIntrinsic] = {
    name: intrinsic for isa in ISAS.values() for name, intrinsic in isa.tensors.items()
}

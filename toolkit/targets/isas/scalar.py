"""Cores without vectors: plain C."""

from __future__ import annotations

from toolkit.targets.isa import Isa

SCALAR = Isa("scalar", "", "", registers=16)
ARM_FPU = Isa("arm_fpu", "", "", registers=32)
"""Armv7E-M and Armv8-M cores with a single-precision FPU: 32 registers s0..s31 (Arm ARM, A2.5)."""

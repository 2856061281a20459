"""Cores without vectors: plain C."""

from __future__ import annotations

from toolkit.targets.isa import Isa

SCALAR = Isa("scalar", "", "", registers=16)

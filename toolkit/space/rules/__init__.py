"""Ansor: sketches by derivation over the blocks of a kernel, one rule a file.

Source: Zheng et al., "Ansor: Generating High-Performance Tensor Programs for Deep Learning" (OSDI
2020), section 4.
"""

from __future__ import annotations

from toolkit.space.rules.add_cache_stage import ADD_CACHE_STAGE
from toolkit.space.rules.always_inline import ALWAYS_INLINE
from toolkit.space.rules.multi_level_tiling import MULTI_LEVEL_TILING
from toolkit.space.rules.multi_level_tiling_fused import MULTI_LEVEL_TILING_FUSED
from toolkit.space.rules.reduction_factorisation import REDUCTION_FACTORISATION
from toolkit.space.rules.skip import SKIP
from toolkit.space.rules.state import Rule

RULES: tuple[Rule, ...] = (
    ALWAYS_INLINE,
    MULTI_LEVEL_TILING_FUSED,
    ADD_CACHE_STAGE,
    REDUCTION_FACTORISATION,
    MULTI_LEVEL_TILING,
    SKIP,
)
"""The rules of the space `ansor`, in the order in which they are asked."""

"""AutoTVM: schedules written by hand for known operators, with knobs."""

from __future__ import annotations

from toolkit.space.templates.config import Template
from toolkit.space.templates.products import conv2d, depthwise, gemm, gemv

TEMPLATES: tuple[Template, ...] = (
    Template("conv2d", conv2d),
    Template("depthwise", depthwise),
    Template("gemm", gemm),
    Template("gemv", gemv),
)
"""The templates of the space `autotvm`; the first that fits a kernel is taken."""

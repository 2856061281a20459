"""Schedule steps, one file each.  `STEPS` maps a step's name in a trace to its class."""

from __future__ import annotations

from toolkit.schedule.steps.annotate import Annotate, Parallel, Unroll, Vectorize
from toolkit.schedule.steps.base import Step
from toolkit.schedule.steps.cache_read import CacheRead
from toolkit.schedule.steps.cache_write import CacheWrite
from toolkit.schedule.steps.compute_at import ComputeAt
from toolkit.schedule.steps.decompose_reduction import DecomposeReduction
from toolkit.schedule.steps.fold_zero_point import FoldZeroPoint
from toolkit.schedule.steps.fuse import Fuse
from toolkit.schedule.steps.im2col import Im2col
from toolkit.schedule.steps.inline import Inline
from toolkit.schedule.steps.merge_dims import MergeDims
from toolkit.schedule.steps.merge_reduction import MergeReduction
from toolkit.schedule.steps.pack import Pack
from toolkit.schedule.steps.pad import PadConstant
from toolkit.schedule.steps.pad_read import PadRead
from toolkit.schedule.steps.partition import Partition
from toolkit.schedule.steps.prefetch import Prefetch
from toolkit.schedule.steps.reorder import Reorder
from toolkit.schedule.steps.reverse_compute_at import ReverseComputeAt
from toolkit.schedule.steps.reverse_inline import ReverseInline
from toolkit.schedule.steps.rfactor import RFactor
from toolkit.schedule.steps.roll_storage import RollStorage
from toolkit.schedule.steps.shift_operand import ShiftOperand
from toolkit.schedule.steps.split import Split
from toolkit.schedule.steps.split_choice import SplitChoice
from toolkit.schedule.steps.storage_align import StorageAlign
from toolkit.schedule.steps.tensorize import Tensorize
from toolkit.schedule.steps.transform_layout import TransformLayout
from toolkit.schedule.steps.unfold import Unfold
from toolkit.schedule.steps.widen_read import WidenRead
from toolkit.schedule.steps.winograd import Winograd

STEPS: dict[str, type[Step]] = {
    "Winograd": Winograd,
    "Im2col": Im2col,
    "Unfold": Unfold,
    "ShiftOperand": ShiftOperand,
    "FoldZeroPoint": FoldZeroPoint,
    "Split": Split,
    "Fuse": Fuse,
    "Reorder": Reorder,
    "Partition": Partition,
    "SplitChoice": SplitChoice,
    "Unroll": Unroll,
    "Vectorize": Vectorize,
    "Parallel": Parallel,
    "Tensorize": Tensorize,
    "Prefetch": Prefetch,
    "Annotate": Annotate,
    "Inline": Inline,
    "ReverseInline": ReverseInline,
    "ComputeAt": ComputeAt,
    "ReverseComputeAt": ReverseComputeAt,
    "CacheWrite": CacheWrite,
    "CacheRead": CacheRead,
    "WidenRead": WidenRead,
    "PadRead": PadRead,
    "PadConstant": PadConstant,
    "Pack": Pack,
    "TransformLayout": TransformLayout,
    "MergeDims": MergeDims,
    "MergeReduction": MergeReduction,
    "StorageAlign": StorageAlign,
    "RollStorage": RollStorage,
    "RFactor": RFactor,
    "DecomposeReduction": DecomposeReduction,
}

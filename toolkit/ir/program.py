"""`Program`: kernels, the calls that run them, and where every tensor lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from toolkit.ir.loop import PrimFunc
from toolkit.ir.types import TensorType


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A kernel of the program: the scheduled function, and what its generated comment says.

    `inplace` maps an input's name to the output whose storage it shares in every call.
    """

    name: str
    func: PrimFunc
    comment: tuple[str, ...]
    inplace: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Call:
    """Run a kernel.  `outputs`, `inputs` and `scratch` name tensors of the program."""

    kernel: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    scratch: tuple[str, ...]
    nodes: tuple[str, ...]
    """Names of the model's nodes that the call computes."""


@dataclass(frozen=True, slots=True)
class Jump:
    """Go on at step `target`."""

    target: int


@dataclass(frozen=True, slots=True)
class JumpIfNot:
    """Go on at step `target` if the bool tensor `cond` is false."""

    cond: str
    target: int


@dataclass(frozen=True, slots=True)
class Fork:
    """The calls that follow run side by side: `counts[0]` of them on one core, in order, the next
    `counts[1]` on another, and so on.

    To run them one after another is right too, so who walks steps may pass over a fork.
    """

    counts: tuple[int, ...]


Step = Call | Jump | JumpIfNot | Fork


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A model ready to print.

    `output_names`: the model's names of `outputs`, which differ where an output is a copy of a
    constant.  `offsets` gives the arena offset in bytes of every tensor that is not a constant;
    `lower_bound_bytes` is the largest sum of tensors alive at once, which no plan can undercut.
    `threads`: the parts in which parallel loops run.
    """

    name: str
    kernels: tuple[Kernel, ...]
    steps: tuple[Step, ...]
    types: Mapping[str, TensorType]
    consts: Mapping[str, np.ndarray]
    offsets: Mapping[str, int]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    output_names: tuple[str, ...]
    arena_bytes: int
    lower_bound_bytes: int
    digest: str
    threads: int = 1

    @property
    def weights_bytes(self) -> int:
        """Bytes of all constants."""
        return sum(int(v.nbytes) for v in self.consts.values())

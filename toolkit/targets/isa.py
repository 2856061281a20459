"""What an instruction set offers a kernel: vector types, and C text beside its meaning.

The style is Exo's (Ikarashi et al., PLDI 2022): an intrinsic is data, stated once, and tests
compile every one and compare it with its meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from toolkit.targets.tensor import TensorIntrinsic


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """A vector operation: C text with {0}, {1}, ... for operands, and its meaning in NumPy.

    `ulps`: the largest error, in units in the last place, of a function that stands in for one of
    <math.h>; 0 for operations that are exact or rounded once.
    """

    c: str
    meaning: Callable[..., Any]
    ulps: float = 0.0


@dataclass(frozen=True, slots=True)
class VectorType:
    """A vector of `lanes` elements, and what can be done with it.

    Keys of `ops`: `add`, `sub`, `mul`, `div`, `min`, `max` (of a NaN, whatever is cheapest),
    `nanmin`, `nanmax` (NaN wins), `fma` (a*b+c), `fma_n` (the same, b a scalar), `fma_lane`
    (b a lane of a vector, {3}), `hsum`, `hmax`,
    `hmin` (across lanes), names of scalar functions; `load`, `store` (unaligned), `load_n`,
    `store_n` (the first n lanes), `fill_n` (x from lane n on), `set1`, `zero`, `map` (a scalar
    function lane by lane), `select_lt`, `select_le`, `select_eq`; `from_T`, `rint_T` (converted
    from T, the latter rounded), and of int32 `load_T`, `store_T` and their `_n` of a narrower T,
    and fixed-point arithmetic (`isas/integer.py`).
    """

    c_type: str
    lanes: int
    ops: Mapping[str, Intrinsic]
    long_type: str = ""
    """C type of an int64 for each lane, where there are sums of them."""


@dataclass(frozen=True, slots=True)
class Isa:
    """An instruction set.  `registers`: of vectors, or of floats where there are none."""

    name: str
    header: str
    guard: str
    """Preprocessor condition under which the intrinsics exist."""
    registers: int
    vectors: Mapping[str, VectorType] = field(default_factory=dict)
    tensors: Mapping[str, TensorIntrinsic] = field(default_factory=dict)

    def with_libm(self) -> Isa:
        """Return the set without functions that stand in for those of <math.h>."""
        vectors = {
            dtype: replace(v, ops={n: op for n, op in v.ops.items() if not op.ulps})
            for dtype, v in self.vectors.items()
        }
        return replace(self, vectors=vectors)

    def lanes(self, dtype: str) -> int:
        """Return the lanes of a vector of `dtype`; 1 where there is none."""
        vector = self.vectors.get(dtype)
        return vector.lanes if vector else 1

    @property
    def vector_bytes(self) -> int:
        """Bytes of a vector of floats, or of one float where there are no vectors."""
        return 4 * self.lanes("float32")

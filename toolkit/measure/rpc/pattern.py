"""Test data that both sides make: words of a seed, and copies that are not regular in memory.

FILL makes the elements of `pattern` on the board, PERMUTE carries out the loops of `strided`, so
that neither weights nor inputs pass the serial port.  Both are what `nst_rpc.c` does, bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from toolkit.measure.rpc.messages import FillKind, PERMUTE_RANK

KINDS: dict[str, FillKind] = {
    "int8": FillKind.INT8,
    "uint8": FillKind.INT8,
    "bool": FillKind.INT8,
    "int16": FillKind.INT16,
    "uint16": FillKind.INT16,
    "int32": FillKind.INT32,
    "uint32": FillKind.INT32,
    "float32": FillKind.FLOAT32,
}
"""Element types that FILL makes."""

Loop = tuple[int, int, int]
"""Extent, bytes a turn in the target, bytes a turn in the source."""


def words(seed: int, first: int, count: int) -> np.ndarray:
    """Return words `first`... of a seed, as uint32: the last steps of MurmurHash3 of a counter."""
    with np.errstate(over="ignore"):
        it = np.arange(first, first + count, dtype=np.uint64).astype(np.uint32)
        it = np.uint32(seed) + it * np.uint32(0x9E3779B9)
        it = (it ^ (it >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        it = (it ^ (it >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        return it ^ (it >> np.uint32(16))


def pattern(
    dtype: str, seed: int, count: int, *, low: int = 0, span: int = 0, positive: bool = False
) -> np.ndarray:
    """Return `count` elements as FILL makes them.

    float32: nearly normal, from -4 to 4 and not zero (their magnitudes with `positive`), of 24
    significant bits; integers: `low` plus a word modulo `span`, which 0 leaves as it is, cut to the
    type.
    """
    it = words(seed, 0, count)
    if dtype == "float32":
        total = sum((it >> np.uint32(s)) & np.uint32(0xFF) for s in (0, 8, 16, 24))
        below = ((it >> np.uint32(5)) & np.uint32(0x3FFF)) | np.uint32(1)
        signed = (np.asarray(total, np.int32) - 510) * 16384 + below.astype(np.int32)
        return (np.abs(signed) if positive else signed).astype(np.float32) * np.float32(2**-21)
    if span:
        it = it % np.uint32(span)
    with np.errstate(over="ignore"):
        it = it + np.uint32(low & 0xFFFFFFFF)
    return it.astype(f"u{np.dtype(dtype).itemsize}").view(dtype)


def strided(places: np.ndarray, element_bytes: int) -> list[Loop] | None:
    """Return loops that copy element `places[i]` of the source to element i of the target.

    None when that takes more than PERMUTE has, or the places are not regular.
    """
    flat = places.reshape(-1).astype(np.int64)
    if not flat.size or flat.min() < 0 or flat[0] != 0:
        return None
    loops: list[Loop] = []
    block = 1
    while block < flat.size:
        # The block so far is regular; see how often it comes again at one distance.
        starts = flat[::block]
        step = int(starts[1] - starts[0])
        same = np.flatnonzero(np.diff(starts) != step)
        extent = int(same[0]) + 1 if same.size else starts.size
        if step < 0 or extent < 2 or flat.size % (block * extent):
            return None
        loops.insert(0, (extent, block * element_bytes, step * element_bytes))
        block *= extent
    if len(loops) > PERMUTE_RANK or not np.array_equal(_places(loops, element_bytes), flat):
        return None
    return loops


def _places(loops: Sequence[Loop], element_bytes: int) -> np.ndarray:
    """Return which element of the source each element of the target is."""
    places = np.zeros(1, np.int64)
    for extent, _, step in loops:
        turns = np.arange(extent, dtype=np.int64) * (step // element_bytes)
        places = (places[:, None] + turns[None, :]).reshape(-1)
    return places

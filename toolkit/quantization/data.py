"""Calibration samples: arrays named like the inputs, axis 0 counting samples."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from toolkit.errors import NestlingError
from toolkit.ir.types import TensorType
from toolkit.samples import IN, Samples

MAX_SAMPLES = 256
"""More tell ranges little: in the order of the file, the first ones are taken."""


def calibration_samples(
    arrays: Mapping[str, np.ndarray],
    types: Mapping[str, TensorType],
    *,
    label: str = "the calibration data",
    limit: int = MAX_SAMPLES,
) -> Samples:
    """Return the samples that arrays by name hold of a model's inputs, at most `limit`.

    An input is the array in__NAME, else NAME; else x, where there is one input, as labelled data
    has it.  Samples may leave out axes of 1.  Raises `NestlingError` for what is missing, of
    another type or shape, empty or of unequal length.
    """
    inputs: dict[str, np.ndarray] = {}
    for name, kind in types.items():
        keys = list(dict.fromkeys([IN + name, name, *(["x"] if len(types) == 1 else [])]))
        key = next((k for k in keys if k in arrays), None)
        if key is None:
            raise NestlingError(
                f"{label}: has no samples of input {name!r}: no array {' or '.join(keys)}.",
                state=[f"it has: {', '.join(arrays) or 'nothing'}"],
            )
        inputs[name] = _fitted(arrays[key], kind, f"{label}: {key}")
    counts = {n: len(a) for n, a in inputs.items()}
    if len(set(counts.values())) > 1:
        raise NestlingError(
            f"{label}: its arrays have different numbers of samples (axis 0).",
            state=[f"{n}: {c}" for n, c in counts.items()],
        )
    count = next(iter(counts.values()), 0)
    if not count:
        raise NestlingError(f"{label}: holds no samples, and ranges come from samples.")
    return Samples({n: a[:limit] for n, a in inputs.items()}, {}, min(count, limit), label)


def _fitted(array: np.ndarray, kind: TensorType, what: str) -> np.ndarray:
    """Return samples in the shape the model takes."""
    if array.ndim == 0:
        raise NestlingError(f"{what} is a scalar; axis 0 must count samples.")
    plain = tuple(n for n in array.shape[1:] if n != 1) == tuple(n for n in kind.shape if n != 1)
    if str(array.dtype) != kind.dtype or not plain:
        raise NestlingError(
            f"{what} is {array.dtype}{list(array.shape)}: {len(array)} samples of "
            f"{array.dtype}{list(array.shape[1:])}; the model takes {kind}."
        )
    return array.reshape(len(array), *kind.shape)

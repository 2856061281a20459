"""Sample data in `.npz` files: `in__NAME`, `out__NAME`, or x and y; axis 0 counts samples."""

from __future__ import annotations

import math
import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, IO

import numpy as np

from toolkit.errors import NestlingError
from toolkit.ir.types import DTYPES, TensorType

IN, OUT = "in__", "out__"


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Inputs, and the outputs expected of them where known; axis 0 of each array counts samples."""

    inputs: Mapping[str, np.ndarray]
    expected: Mapping[str, np.ndarray]
    count: int
    label: str

    def input(self, index: int) -> dict[str, np.ndarray]:
        """Return the inputs of one sample."""
        return {name: array[index] for name, array in self.inputs.items()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each input, without the axis of samples."""
        return {name: array.shape[1:] for name, array in self.inputs.items()}

    def take(self, indices: Sequence[int]) -> Samples:
        """Return the samples of the given positions."""
        rows = np.asarray(indices, dtype=np.int64)
        return Samples(
            {n: a[rows] for n, a in self.inputs.items()},
            {n: a[rows] for n, a in self.expected.items()},
            len(rows),
            self.label,
        )


def read_arrays(path: Path, prefixes: tuple[str, ...] = ("",)) -> dict[str, np.ndarray | None]:
    """Read a `.npz` file: by name the arrays whose names start so, None for the others."""
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise NestlingError(
                f"{path}: holds one bare array.",
                hint="write named arrays: np.savez(path, in__NAME=array), axis 0 counting samples",
            )
        with loaded as archive:
            return {
                n: np.asarray(archive[n]) if n.startswith(prefixes) else None for n in archive.files
            }
    except FileNotFoundError:
        raise NestlingError(f"{path}: there is no such file.") from None
    except IsADirectoryError:
        raise NestlingError(f"{path}: is a folder, not a .npz file.") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, KeyError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise NestlingError(f"{path}: is not a readable .npz file: {reason}.") from None


def read_samples(path: Path) -> Samples:
    """Read a `.npz` file; arrays with other names than `in__*` and `out__*` are ignored."""
    every = read_arrays(path, (IN, OUT))
    names = list(every)
    arrays = {n: a for n, a in every.items() if a is not None}
    if not arrays:
        raise NestlingError(
            f"{path}: has no array named in__NAME or out__NAME.",
            state=[f"it has: {', '.join(names) or 'nothing'}"],
        )
    for name, array in arrays.items():
        if array.ndim == 0:
            raise NestlingError(f"{path}: {name} is a scalar; axis 0 must count samples.")
        if str(array.dtype) not in DTYPES:
            raise NestlingError(f"{path}: {name} is of type {array.dtype}, which no model takes.")
    counts = {array.shape[0] for array in arrays.values()}
    if len(counts) != 1:
        raise NestlingError(
            f"{path}: its arrays have different numbers of samples (axis 0).",
            state=[f"{n}: {list(a.shape)}" for n, a in arrays.items()],
        )
    (count,) = counts
    if count == 0:
        raise NestlingError(f"{path}: holds no samples: axis 0 of its arrays is 0.")
    return Samples(
        {n.removeprefix(IN): a for n, a in arrays.items() if n.startswith(IN)},
        {n.removeprefix(OUT): a for n, a in arrays.items() if n.startswith(OUT)},
        count,
        str(path),
    )


def check_samples(samples: Samples, types: Mapping[str, TensorType]) -> None:
    """Refuse samples that lack an input of `types`, or have it of another type or shape."""
    for name, kind in types.items():
        array = samples.inputs.get(name)
        if array is None:
            raise NestlingError(
                f"{samples.label}: has no array {IN}{name}.",
                state=[
                    f"the model's inputs: {', '.join(f'{n}: {t}' for n, t in types.items())}",
                    f"in the file: {', '.join(IN + n for n in samples.inputs) or 'no in__ array'}",
                ],
            )
        if str(array.dtype) != kind.dtype or array.shape[1:] != kind.shape:
            found = f"{array.dtype}{list(array.shape)}"
            raise NestlingError(
                f"{samples.label}: {IN}{name} is {found}: {samples.count} samples of "
                f"{array.dtype}{list(array.shape[1:])}; the model takes {kind}."
            )


def random_samples(types: Mapping[str, TensorType], *, count: int = 1, seed: int = 1) -> Samples:
    """Make inputs: floats from N(0, 1), wide integers from 0..9, bytes over their range."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    for name, kind in types.items():
        shape, info = (count, *kind.shape), DTYPES[kind.dtype]
        if info.kind == "f":
            arrays[name] = rng.standard_normal(shape).astype(kind.dtype)
        elif info.kind == "b":
            arrays[name] = rng.integers(0, 2, shape).astype(bool)
        elif info.nbytes > 1:
            arrays[name] = rng.integers(0, 10, shape).astype(kind.dtype)
        else:
            limits = np.iinfo(kind.dtype)
            arrays[name] = rng.integers(limits.min, limits.max + 1, shape).astype(kind.dtype)
    return Samples(arrays, {}, count, f"random inputs, seed {seed}")


def write_samples(
    path: Path, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]
) -> None:
    """Write inputs and outputs as `read_samples` reads them; nothing is left when it fails."""
    arrays: dict[str, Any] = {IN + n: a for n, a in inputs.items()}
    arrays.update({OUT + n: a for n, a in outputs.items()})
    write_whole(path, lambda file: np.savez(file, **arrays))


def write_whole(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Let `write` fill a file beside `path` that takes its place; nothing is left when it fails."""
    temporary: Path | None = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            write(file)
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise NestlingError(f"cannot write {path}: {error.strerror}.") from None


# -- labels ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Accuracy:
    """`right` of `count` labelled samples."""

    right: int
    count: int

    @property
    def share(self) -> float:
        """The part that is right, 0..1."""
        return self.right / self.count


@dataclass(frozen=True, slots=True, eq=False)
class Labelled:
    """`x`: samples along axis 0, as the model's one input takes them; `y`: a class for each."""

    name: str
    x: np.ndarray
    y: np.ndarray

    def accuracy(
        self, run: Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
    ) -> Accuracy:
        """Run every sample; of equal largest elements the first counts."""
        found = (next(iter(run({self.name: x}).values())) for x in self.x)
        right = sum(int(np.argmax(y)) == int(label) for y, label in zip(found, self.y, strict=True))
        return Accuracy(right, len(self.y))


def read_labelled(path: Path, inputs: Mapping[str, TensorType]) -> Labelled:
    """Read arrays `x` and `y` of a .npz file for a model of one input; x may lack axes of 1."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {n: np.asarray(archive[n]) for n in ("x", "y") if n in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, KeyError) as error:
        raise NestlingError(f"--labels {path}: is not a readable .npz file: {error}") from None
    if len(arrays) != 2:
        raise NestlingError(f"--labels {path}: needs arrays x (samples) and y (classes).")
    if len(inputs) != 1:
        raise NestlingError(f"--labels {path}: the model has {len(inputs)} inputs, not one.")
    ((name, kind),) = inputs.items()
    x, y = arrays["x"], arrays["y"]
    if y.ndim != 1 or y.dtype.kind not in "iu" or len(y) != len(x) or not len(y):
        raise NestlingError(
            f"--labels {path}: y is {y.dtype}{list(y.shape)}, not an integer for each of "
            f"{len(x)} samples."
        )
    if str(x.dtype) != kind.dtype or math.prod(x.shape[1:]) != kind.size:
        raise NestlingError(
            f"--labels {path}: its samples are {x.dtype}{list(x.shape[1:])}; "
            f"the model takes {kind}."
        )
    return Labelled(name, x.reshape(len(x), *kind.shape), y)

"""DFT and STFT against NumPy's FFT; TensorScatter against a loop."""

from __future__ import annotations

import itertools

import numpy as np

from tests.op_batch import Case, compare, found


def transformed(
    x: np.ndarray, axis: int, count: int, *, inverse: bool, onesided: bool
) -> np.ndarray:
    z = x[..., 0].astype(np.complex128)
    if x.shape[-1] == 2:
        z = z + 1j * x[..., 1]
    if inverse and onesided:
        return np.fft.irfft(z, count, axis)[..., None].astype(x.dtype)
    y = np.fft.ifft(z, count, axis) if inverse else np.fft.fft(z, count, axis)
    if onesided:
        y = np.take(y, range(count // 2 + 1), axis)
    return np.stack([y.real, y.imag], -1).astype(x.dtype)


def test_dft_of_any_length_and_side(rng: np.random.Generator) -> None:
    cases, wanted = [], []
    for extent, given, inverse, onesided, parts in itertools.product(
        (1, 5, 8), (None, 4, 7, 12), (False, True), (False, True), (1, 2)
    ):
        if onesided and parts == (1 if inverse else 2):
            continue  # ONNX halves what is symmetric: of a real signal, or back to one
        if onesided and inverse and extent == 1 and given is None:
            continue
        dtype = (np.float32, np.float64)[extent == 5]
        x = rng.standard_normal((2, extent, 3, parts)).astype(dtype)
        default = 2 * (extent - 1) if inverse and onesided else extent
        count = default if given is None else given
        length = None if given is None else np.array(given)
        cases.append(
            Case(
                "DFT",
                {"inverse": int(inverse), "onesided": int(onesided)},
                [x, length, np.array(1)],
                constant=frozenset((1, 2)),
            )
        )
        wanted.append(transformed(x, 1, count, inverse=inverse, onesided=onesided))
    problems = compare(cases, found(cases), wanted, 1e-6)
    assert not problems, "\n".join(problems)


def test_stft_with_and_without_window(rng: np.random.Generator) -> None:
    cases, wanted = [], []
    for hop, count, onesided, parts, window in itertools.product(
        (1, 3), (4, 7), (0, 1), (1, 2), ("none", "constant", "input")
    ):
        x = rng.standard_normal((2, 11, parts)).astype(np.float32)
        w = None if window == "none" else rng.standard_normal(count).astype(np.float32)
        constant = (1, 2, 3) if window == "constant" else (1, 3)
        cases.append(
            Case(
                "STFT",
                {"onesided": onesided},
                [x, np.array(hop), w, np.array(count)],
                constant=frozenset(constant),
            )
        )
        frames = np.stack([x[:, i : i + count] for i in range(0, 11 - count + 1, hop)], 1)
        if w is not None:
            frames = frames * w[:, None]
        wanted.append(transformed(frames, 2, count, inverse=False, onesided=bool(onesided)))
    problems = compare(cases, found(cases), wanted, 1e-6)
    assert not problems, "\n".join(problems)


def test_tensor_scatter_at_known_and_given_starts(rng: np.random.Generator) -> None:
    cases, wanted = [], []
    for mode, axis, kind, dtype in itertools.product(
        ("linear", "circular"), (1, -2, -1), ("none", "constant", "input"), (np.float32, np.int16)
    ):
        past = (9 * rng.standard_normal((3, 5, 6, 4))).astype(dtype)
        shape = list(past.shape)
        shape[axis] = 2
        update = (9 * rng.standard_normal(shape)).astype(dtype)
        extent = past.shape[axis]
        top = extent - 2 if mode == "linear" else extent - 1
        starts = None if kind == "none" else np.array([0, top, min(2, top)])
        constant = frozenset((2,)) if kind == "constant" else frozenset[int]()
        attrs = {"mode": mode, "axis": axis}
        cases.append(Case("TensorScatter", attrs, [past, update, starts], constant=constant))
        want = past.copy()
        for b in range(3):
            row, new = (
                np.moveaxis(want[b], axis % 4 - 1, 0),
                np.moveaxis(update[b], axis % 4 - 1, 0),
            )
            for s in range(2):
                row[((0 if starts is None else starts[b]) + s) % extent] = new[s]
        wanted.append(want)
    problems = compare(cases, found(cases, opset=24), wanted)
    assert not problems, "\n".join(problems)

"""UNIDIRECTIONAL_SEQUENCE_LSTM, of floats and of 8-bit integers with a 16-bit cell state."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from toolkit.frontend.tflite.multiplier import quantized_multiplier, tables
from toolkit.frontend.tflite.site import Site, Variable
from toolkit.ir.types import TensorType

Family = Callable[[Site], list[str]]

# Positions of operands, by gate: input, forget, cell, output (TFLite's kernels/lstm_shared.h).
_W = {"i": 1, "f": 2, "c": 3, "o": 4}
_R = {"i": 5, "f": 6, "c": 7, "o": 8}
_BIAS = {"i": 12, "f": 13, "c": 14, "o": 15}
_PEEPHOLES, _PROJECTION, _NORMS = (9, 10, 11), (16, 17), (20, 21, 22, 23)
_H, _C = 18, 19

_GATE_SCALE = 2.0**-12
"""Of what the gates' functions take."""


def _checked(site: Site) -> None:
    """Refuse the forms of the operator that are not here."""
    for positions, what in (
        (_PEEPHOLES, "peephole connections"), (_PROJECTION, "a projection"),
        (_NORMS, "layer normalisation"),
    ):  # fmt: skip
        if any(site.has(p) for p in positions):
            raise site.refuse(f"{what} of an LSTM are not supported yet")
    if not site.has(_W["i"]):
        raise site.refuse("an LSTM whose input gate is coupled to its forget gate is not supported")
    if site.activation() != "TANH":
        raise site.refuse(f"an LSTM with activation {site.activation()} is not supported")


def _state(site: Site, position: int, dtype: str) -> tuple[str, Variable]:
    """Return a state before the run, and the variable it is kept in between runs."""
    info = site.info(position)
    if not info.is_variable or info.dtype != dtype:
        raise site.refuse(f"its state '{info.name}' is no variable of type {dtype}")
    key = f"tensor {site.op.inputs[position]}"
    variable = site.build.variables.get(key)
    if variable is None:
        zero = 0 if info.quant is None else int(info.quant.zero_point[0])
        initial = np.full(info.shape, zero, dtype)
        variable = Variable(site.build.unique(info.name or f"state_{position}"), initial)
        site.build.variables[key] = variable
        site.build.types[variable.name] = TensorType(info.shape, dtype)
    return variable.current or variable.name, variable


def _steps_first(site: Site, x: str) -> str:
    """Turn [batch, steps, k] into [steps, batch, k], or back, unless the file has it so."""
    if site.option("TimeMajor"):
        return x
    return site.one("Transpose", x, perm=(1, 0, 2))


def _keep(variable: Variable, name: str) -> None:
    variable.current, variable.written = name, True


def lstm(site: Site) -> list[str]:
    """All steps of an LSTM; its states are kept from run to run."""
    _checked(site)
    kinds = {site.info(p).dtype for p in (0, *_W.values(), *_R.values())}
    if kinds == {"float32"}:
        return _float_lstm(site)
    if kinds == {"int8"} and site.info(_C).dtype == "int16":
        return _integer_lstm(site)
    raise site.refuse(f"an LSTM of {' and '.join(sorted(kinds))} data is not supported yet")


def _joined(site: Site, positions: dict[str, int], gates: str, what: str) -> np.ndarray:
    """Return constant operands of the gates one after the other; absent biases are zeros."""
    n = site.info(_R["f"]).shape[1]
    return np.concatenate(
        [
            site.value(positions[g], what) if site.has(positions[g]) else np.zeros(n, np.float32)
            for g in gates
        ]
    )


def _float_lstm(site: Site) -> list[str]:
    if site.option("CellClip"):
        raise site.refuse("an LSTM of floats that clips its cell is not supported")
    (h, kept_h), (c, kept_c) = _state(site, _H, "float32"), _state(site, _C, "float32")
    batch, n = site.type(h).shape
    order = "iofc"
    bias = _joined(site, _BIAS, order, "bias")
    shape = site.const(np.array([1, batch, n]), "shape", "int64")
    y, h_n, c_n = site.emit(
        "LSTM", _steps_first(site, site.name(0)),
        site.const(_joined(site, _W, order, "weights")[None], "w"),
        site.const(_joined(site, _R, order, "weights")[None], "r"),
        site.const(np.concatenate([bias, np.zeros_like(bias)])[None], "b"), "",
        site.one("Reshape", h, shape), site.one("Reshape", c, shape), count=3, hidden_size=n,
    )  # fmt: skip
    flat = site.const(np.array([batch, n]), "shape", "int64")
    _keep(kept_h, site.one("Reshape", h_n, flat))
    _keep(kept_c, site.one("Reshape", c_n, flat))
    steps = site.type(y).shape[0]
    rows = site.const(np.array([steps, batch, n]), "shape", "int64")
    return [_steps_first(site, site.one("Reshape", y, rows))]


def _integer_lstm(site: Site) -> list[str]:
    """Scales of the gates' products to 2**-12, zero points into biases."""
    x_scale, x_zero = site.per_tensor(site.info(0))
    h_scale, h_zero = site.per_tensor(site.info(_H))
    c_scale, c_zero = site.per_tensor(site.info(_C))
    hidden_scale, hidden_zero = _hidden(site)
    bits = -math.log2(float(c_scale))
    if bits != round(bits) or not 9 <= bits <= 15 or c_zero:
        raise site.refuse(f"its cell state has scale {c_scale} and zero point {c_zero}")
    order = "ifoc"
    n = site.info(_R["f"]).shape[1]
    w, r = (_joined(site, part, order, "weights") for part in (_W, _R))
    bias = _joined(site, _BIAS, order, "bias").astype(np.int64)

    def scales(part: dict[str, int], scale: np.float32) -> list[float]:
        # In float32, as TFLite multiplies them.
        of = [np.float32(scale) * site.per_tensor(site.info(part[g]))[0] for g in order]
        return [float(s / np.float32(_GATE_SCALE)) for s in of for _ in range(n)]

    (x_multiplier, x_shift), (r_multiplier, r_shift) = (
        tables(scales(part, scale)) for part, scale in ((_W, x_scale), (_R, h_scale))
    )
    multiplier, shift = quantized_multiplier(2.0**-15 / float(hidden_scale) * 2.0**-15)
    clip = float(site.option("CellClip"))
    (h, kept_h), (c, kept_c) = _state(site, _H, "int8"), _state(site, _C, "int16")
    y, h_n, c_n = site.emit(
        "Lstm", _steps_first(site, site.name(0)), site.const(w.T, "w"), site.const(r.T, "r"),
        site.const(bias - x_zero * w.astype(np.int64).sum(axis=1), "x_bias", "int32"),
        site.const(-h_zero * r.astype(np.int64).sum(axis=1), "r_bias", "int32"),
        *(site.const(a, "scale") for a in (x_multiplier, x_shift, r_multiplier, r_shift)),
        h, c, count=3, domain="tflite", cell_bits=round(bits), multiplier=multiplier, shift=shift,
        zero_point=hidden_zero,
        clip=int(min(max(clip / float(c_scale), -32768.0), 32767.0)) if clip > 0 else 0,
    )  # fmt: skip
    _keep(kept_h, h_n)
    _keep(kept_c, c_n)
    return [_steps_first(site, y)]


def _hidden(site: Site) -> tuple[np.float32, int]:
    """Return scale and zero point of the hidden state: of the fifth intermediate tensor."""
    if len(site.op.intermediates) < 5:
        raise site.refuse("the scale of its hidden state is missing")
    return site.per_tensor(site.graph.tensors[site.op.intermediates[4]])


TABLE: dict[str, Family] = {"UNIDIRECTIONAL_SEQUENCE_LSTM": lstm}

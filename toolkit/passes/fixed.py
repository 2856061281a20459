"""TFLite's requantisation as the cheapest arithmetic that is proven equal; what others share of it.

TFLite rounds a product twice.  That is monotone in the int32 sum, so `passes.requantise` finds its
steps by bisection and proves

    clamp((acc * multiplier + offset - (acc < 0) * below) >> shift, low, high)

equal to it: one long multiplication whose high word is the result, with bias, rounding and zero
points in the offset.  `below` is 0 but where TFLite's results can be negative: it rounds half away
from zero.  What is not proven stays as it was imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toolkit.ir.graph import Node
from toolkit.ir.types import DTYPES, int_range
from toolkit.passes.edit import Edit
from toolkit.passes.pairs import Pairs, sum_form, values_of
from toolkit.passes.requantise import Fixed, fixed_form, float_form, Staircase, steps_of

LARGEST = 2**31 - 1

# -- sums ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """int32 sums `name`, to each of which a constant is added; all by channel, int64."""

    name: str
    added: np.ndarray
    least: np.ndarray
    most: np.ndarray

    def with_bias(self, bias: np.ndarray) -> Sums:
        return Sums(self.name, self.added + bias, self.least, self.most)

    @property
    def fits(self) -> bool:
        """Whether what is added never wraps."""
        low, high = self.least + self.added, self.most + self.added
        return bool((low >= -LARGEST - 1).all() and (high <= LARGEST).all())


def limits_of_products(
    rows: np.ndarray, dtype: str, zero: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and the largest sum of (x - zero) * row for each row, padding included."""
    least, most = (v - zero for v in int_range(dtype))
    positive, negative = rows.clip(min=0).sum(axis=1), rows.clip(max=0).sum(axis=1)
    # 0, the value in the padding, lies between the two, as the zero point is of the type.
    return positive * least + negative * most, positive * most + negative * least


def product_sums(edit: Edit, name: str) -> Sums | None:
    """Return what is known of the sums that a product of constant weights, or of pairs, makes."""
    node = edit.producer(name)
    if node is None:
        return None
    if node.op_id == "tflite:Product":
        zeros = edit.ints(node, 2)
        if zeros is None:
            return None
        ranges = [int_range(edit.dtype(n)) for n in node.inputs[:2]]
        reach = [max(z - low, high - z) for z, (low, high) in zip(zeros, ranges, strict=True)]
        most = np.array([reach[0] * reach[1]], np.int64)
        return Sums(name, np.zeros(1, np.int64), -most, most)
    if node.op_id not in ("ConvInteger", "MatMulInteger"):
        return None
    weight = edit.value(node.inputs[1])
    x_zero, w_zero = (zero_point(edit, node, p) for p in (2, 3))
    if x_zero is None or w_zero is None:
        return None
    if node.op_id == "MatMulInteger" and (weight is None or weight.ndim != 2):
        most = np.array([edit.shape(node.inputs[0])[-1]], np.int64)
        for operand, zero in zip(node.inputs[:2], (x_zero, w_zero), strict=True):
            low, high = int_range(edit.dtype(operand))
            most *= max(zero - low, high - zero)
        return Sums(name, np.zeros(1, np.int64), -most, most)
    if weight is None:
        return None
    last = node.op_id == "MatMulInteger" or node.attrs.get("nestling_layout") == "NHWC"
    wide = np.moveaxis(weight.astype(np.int64), -1 if last else 0, 0)
    rows = wide.reshape(len(wide), -1) - w_zero
    least, most = limits_of_products(rows, edit.dtype(node.inputs[0]), x_zero)
    return Sums(name, np.zeros(len(rows), np.int64), least, most)


def zero_point(edit: Edit, node: Node, position: int) -> int | None:
    """Return a zero point, 0 where it is absent; None where it is several, or not constant."""
    if position >= len(node.inputs) or not node.inputs[position]:
        return 0
    found = edit.ints(node, position)
    return found[0] if found is not None and len(found) == 1 else None


def sums_of(edit: Edit, name: str) -> Sums | None:
    """Return the sums behind `name`, a constant bias along the last axis taken off."""
    add = edit.by(name, "Add")
    if add is None:
        return product_sums(edit, name)
    for position in (0, 1):
        bias = edit.value(add.inputs[1 - position])
        if bias is None or bias.ndim > 1:
            continue
        found = product_sums(edit, add.inputs[position])
        if found is not None and bias.size in (1, len(found.added)):
            return found.with_bias(bias.reshape(-1).astype(np.int64))
    return None


# -- TFLite -------------------------------------------------------------------------------------


def rounded_twice(total: np.ndarray, multiplier: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Return total * multiplier * 2**(shift - 31): half up at 2**31, then half away from zero."""
    left, right = np.maximum(shift, 0), np.maximum(-shift, 0)
    high = ((total << left) * multiplier + (1 << 30)) >> 31
    half = np.where(right > 0, (np.int64(1) << right >> 1) - (high < 0), 0)
    result: np.ndarray = (high + half) >> right
    return result


def rounded_once(total: np.ndarray, multiplier: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Return total * multiplier * 2**(shift - 31), half up."""
    bits = 31 - shift
    result: np.ndarray = (total * multiplier + (np.int64(1) << (bits - 1))) >> bits
    return result


@dataclass(frozen=True, slots=True, eq=False)
class _Scaled:
    """A tflite:Requantize with constant parameters: `multiplier`, `shift` and sums by channel."""

    sums: Sums
    multiplier: np.ndarray
    shift: np.ndarray
    zero: int
    low: int
    high: int
    single: bool

    @property
    def reach(self) -> int:
        """The largest magnitude that is multiplied."""
        low, high = self.sums.least + self.sums.added, self.sums.most + self.sums.added
        return int((np.maximum(np.abs(low), np.abs(high)) << np.maximum(self.shift, 0)).max())

    def stairs(self, bias: np.ndarray) -> Staircase:
        """Return the staircase of sums to which all but `bias` was added."""
        sums, m, s = self.sums, self.multiplier[:, None], self.shift[:, None]
        limits = sums.least + sums.added - bias, sums.most + sums.added - bias
        function = rounded_once if self.single else rounded_twice
        steps = steps_of(
            lambda x: function(x + bias[:, None], m, s) + self.zero, limits,
            low=self.low, high=self.high,
        )  # fmt: skip
        slope = self.multiplier * 2.0 ** (self.shift - 31.0)
        return Staircase(
            steps, *limits, self.zero, self.low, self.high, slope, bias.astype(np.float64)
        )


def _scaled(edit: Edit, node: Node) -> _Scaled | None:
    """Return what a tflite:Requantize computes, if nothing in it can wrap."""
    sums = sums_of(edit, node.inputs[0])
    multiplier, shift, zero = (edit.value(n) for n in node.inputs[1:4])
    if sums is None or multiplier is None or shift is None or zero is None or not sums.fits:
        return None
    count = (max(len(sums.added), len(multiplier)),)
    m, s = (np.broadcast_to(v.astype(np.int64), count) for v in (multiplier, shift))
    added, least, most = (np.broadcast_to(v, count) for v in (sums.added, sums.least, sums.most))
    low, high, single = (node.attrs.get(k, 0) for k in ("low", "high", "single"))
    sums = Sums(sums.name, added, least, most)
    found = _Scaled(sums, m, s, int(zero), low, high, bool(single))
    return None if found.reach > LARGEST else found


def tflite(edit: Edit, node: Node) -> bool:
    """tflite:Requantize(sum + bias) -> Requantize(sum), or of sum + bias where signs matter."""
    found = _scaled(edit, node)
    if found is None:
        return False
    proven = fixed_form(found.stairs(found.sums.added))
    if proven is not None:
        return _become(edit, node, found.sums.name, proven)
    if found.single:
        return False
    # One unit of the first rounding lower where the sum is negative.
    nothing = np.zeros(len(found.shift), np.int64)
    proven = fixed_form(found.stairs(nothing), 2.0 ** np.minimum(found.shift, 0.0))
    return proven is not None and _become(edit, node, node.inputs[0], proven)


def half_up(edit: Edit, node: Node) -> bool:
    """Let the second rounding of tflite:Requantize be half up where no result below zero is kept.

    The two roundings differ in ties of negative products, which are limited to `low` anyway.
    """
    found = None if node.attrs.get("half_up") else _scaled(edit, node)
    if found is None or found.single or found.low < found.zero or found.reach >= 2**30:
        return False
    edit.replace(node, node.with_(attrs={**node.attrs, "half_up": 1}))
    return True


def tflite_sum(edit: Edit, node: Node) -> bool:
    """tflite:Add(a, b) -> RequantizeSum(a, b): its four roundings are a table of pairs."""
    zeros, multipliers, shifts = (edit.value(n) for n in node.inputs[2:5])
    if zeros is None or multipliers is None or shifts is None:
        return False
    kinds = edit.dtype(node.inputs[0]), edit.dtype(node.inputs[1])
    if any(k not in ("int8", "uint8") for k in kinds):
        return False
    z, m, s = (v.astype(np.int64) for v in (zeros, multipliers, shifts))
    left = node.attrs["left_shift"]
    if max(int(s.max()), 0) + left + 9 > 31:
        return False
    a, b = (rounded_twice((values_of(k) - z[n]) << left, m[n], s[n]) for n, k in enumerate(kinds))
    low, high = node.attrs["low"], node.attrs["high"]
    results = np.clip(rounded_twice(np.add.outer(a, b), m[2], s[2]) + z[2], low, high)
    real = m * 2.0 ** (s - 31.0)
    slopes = tuple(float(real[n] * real[2]) * 2.0**left for n in (0, 1))
    return become_sum(edit, node, node.inputs[:2], Pairs(kinds, results, low, high, slopes))


def become_sum(edit: Edit, node: Node, operands: Sequence[str], pairs: Pairs) -> bool:
    """Replace a node by RequantizeSum of two operands where a form is proven."""
    form = sum_form(pairs)
    if form is None:
        return False
    names = (
        edit.const(np.array(form.multipliers, np.int32), "multipliers"),
        edit.const(np.array(form.offset, np.int32), "offset"),
    )
    attrs = {
        "to": DTYPES[edit.dtype(node.outputs[0])].onnx, "low": pairs.low, "high": pairs.high,
        "shift": form.shift,
    }  # fmt: skip
    return edit.become(node, "RequantizeSum", (*operands, *names), attrs)


def _become(edit: Edit, node: Node, acc: str, proven: Fixed, *, axis: int = -1) -> bool:
    """Replace a node by Requantize of `acc` in a proven form."""
    out = node.outputs[0]
    dtype, rank = edit.dtype(out), len(edit.shape(out))
    tables = [(proven.multiplier, "multiplier"), (proven.offset, "offset")]
    if proven.below is not None:
        tables.append((proven.below, "below"))
    names = [edit.const(t if len(t) > 1 or rank == 0 else t.reshape(()), n) for t, n in tables]
    attrs = {
        "to": DTYPES[dtype].onnx, "low": node.attrs["low"], "high": node.attrs["high"],
        "axis": axis, "shift": proven.shift,
    }  # fmt: skip
    return edit.become(node, "Requantize", (acc, *names), attrs)


# -- forms --------------------------------------------------------------------------------------


def parameters(
    edit: Edit, stairs: Staircase, skipped: np.ndarray, *, fixed: bool
) -> tuple[tuple[str, str], dict[str, int]] | None:
    """Return constants of a proven form for sums from which `skipped` was not subtracted."""
    forms = (_fixed, _float) if fixed else (_float, _fixed)
    for form in forms:
        found = form(edit, stairs, skipped)
        if found is not None:
            return found
    return None


def _fixed(
    edit: Edit, stairs: Staircase, skipped: np.ndarray
) -> tuple[tuple[str, str], dict[str, int]] | None:
    proven = fixed_form(stairs)
    if proven is None:
        return None
    offset = proven.offset - skipped * proven.multiplier.astype(np.int64)
    names = edit.const(proven.multiplier, "multiplier"), edit.const(offset, "offset")
    return names, {"shift": proven.shift}


def _float(
    edit: Edit, stairs: Staircase, skipped: np.ndarray
) -> tuple[tuple[str, str], dict[str, int]] | None:
    proven = float_form(stairs)
    if proven is None:
        return None
    multiplier, bias = proven
    total = bias.astype(np.int64) - skipped
    if (np.abs(total) >= 2**30).any():
        return None
    return (edit.const(multiplier, "multiplier"), edit.const(total.astype(np.int32), "bias")), {}

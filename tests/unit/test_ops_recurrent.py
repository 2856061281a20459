"""RNN, GRU and LSTM compute what onnxruntime computes, for random shapes and attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.op_batch import Case, check, compare, expected, found
from toolkit.errors import UnsupportedError
from toolkit.ir.compute import placeholder
from toolkit.ir.graph import Node
from toolkit.ops import apply_op
from toolkit.ops.recurrent import RECURRENT_OPS

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
STATES = {"RNN": 1, "GRU": 1, "LSTM": 2}
SIMPLE = ("Relu", "Tanh", "Sigmoid", "Softsign", "Softplus")
WITH_ALPHA = ("LeakyRelu", "ThresholdedRelu", "Elu")
WITH_BOTH = ("Affine", "ScaledTanh", "HardSigmoid")


def values(rng: np.random.Generator, *size: int, dtype: str = "float32") -> np.ndarray:
    return (rng.standard_normal(size) * 0.7).astype(dtype)


def recurrent_case(rng: np.random.Generator, op: str, **attrs: Any) -> Case:
    """Return a case with random shapes, direction, optional operands and outputs."""
    direction = str(rng.choice(["forward", "reverse", "bidirectional"]))
    d = 2 if direction == "bidirectional" else 1
    steps, batch, width, n = (int(v) for v in rng.integers(1, 5, 4))
    gates = GATES[op]
    x, w, r = (
        values(rng, *size)
        for size in ((steps, batch, width), (d, gates * n, width), (d, gates * n, n))
    )
    operands: list[np.ndarray | None] = [x, w, r]
    operands.append(values(rng, d, 2 * gates * n) if rng.integers(3) else None)
    lens = rng.integers(1, steps + 1, batch).astype(np.int32)
    operands.append(lens if rng.integers(2) else None)
    for _ in range(STATES[op]):
        operands.append(values(rng, d, batch, n) if rng.integers(2) else None)
    if op == "LSTM":
        operands.append(values(rng, d, 3 * n) if rng.integers(2) else None)
    while operands[-1] is None:
        operands.pop()
    constant = frozenset({1, 2, 3} if rng.integers(3) else ())
    attrs = {"hidden_size": n, "direction": direction, **attrs}
    return Case(op, attrs, operands, int(rng.integers(1, 2 + STATES[op])), constant)


def activations(rng: np.random.Generator, op: str, directions: int) -> dict[str, Any]:
    """Return random activations, and alphas and betas for those that take some."""
    names = [
        str(rng.choice([*SIMPLE, *WITH_ALPHA, *WITH_BOTH]))
        for _ in range(FUNCTIONS[op] * directions)
    ]
    alphas = [float(rng.uniform(0.1, 0.9)) for n in names if n in WITH_ALPHA + WITH_BOTH]
    betas = [float(rng.uniform(0.1, 0.9)) for n in names if n in WITH_BOTH]
    attrs: dict[str, Any] = {"activations": names}
    if alphas:
        attrs["activation_alpha"] = alphas
    if betas:
        attrs["activation_beta"] = betas
    return attrs


@pytest.mark.parametrize("op", GATES)
def test_layers_agree_with_onnxruntime(op: str) -> None:
    rng = np.random.default_rng(0)
    cases = [recurrent_case(rng, op) for _ in range(6)]
    match op:
        case "GRU":
            cases += [recurrent_case(rng, op, linear_before_reset=1) for _ in range(4)]
        case "LSTM":
            cases += [recurrent_case(rng, op, input_forget=1) for _ in range(3)]
    check(cases, rtol=2e-5)


def test_layers_clip_and_apply_any_activation() -> None:
    rng = np.random.default_rng(1)
    cases = [recurrent_case(rng, op, clip=0.3) for op in GATES for _ in range(2)]
    for op in (*GATES, *GATES):
        case = recurrent_case(rng, op)
        directions = 2 if case.attrs["direction"] == "bidirectional" else 1
        case.attrs.update(activations(rng, op, directions))
        cases.append(case)
    check(cases, rtol=2e-5)


def test_every_activation_of_the_specification_is_known() -> None:
    rng = np.random.default_rng(2)
    x, w, r = values(rng, 3, 1, 2), values(rng, 1, 2, 2), values(rng, 1, 2, 2)
    names = (*SIMPLE, *WITH_ALPHA, *WITH_BOTH)
    cases = []
    for name in names:
        attrs: dict[str, Any] = {"hidden_size": 2, "activations": [name]}
        if name in ("ScaledTanh", "Affine"):  # onnxruntime's defaults are not the specification's
            attrs |= {"activation_alpha": [0.7], "activation_beta": [0.4]}
        if name == "ThresholdedRelu":
            attrs |= {"activation_alpha": [0.7]}
        cases.append(Case("RNN", attrs, [x, w, r], 2))
    check(cases, rtol=2e-5)


def swapped(case: Case, outputs: list[np.ndarray]) -> tuple[Case, list[np.ndarray]]:
    """Return the case with layout=1, batch first, and its outputs, from those of layout 0."""
    operands = list(case.operands)
    for position in (0, 5, 6):
        array = operands[position] if position < len(operands) else None
        if array is not None:
            operands[position] = np.ascontiguousarray(np.swapaxes(array, 0, 1))
    moved = [
        np.transpose(y, (2, 0, 1, 3)) if y.ndim == 4 else np.swapaxes(y, 0, 1) for y in outputs
    ]
    attrs = {**case.attrs, "layout": 1}
    return Case(case.op, attrs, operands, case.outputs, case.constant), moved


def test_batch_first_gives_the_same_values() -> None:
    """onnxruntime has no layout 1, so its values for layout 0 are transposed."""
    rng = np.random.default_rng(3)
    cases, want = [], []
    for op in ("RNN", "GRU", "GRU", "LSTM", "LSTM"):
        case = recurrent_case(rng, op)
        if op == "LSTM" and len(case.operands) > 7:
            case = Case(op, case.attrs, case.operands[:7], case.outputs, case.constant)
        first, outputs = swapped(case, expected([case]))
        cases.append(first)
        want += outputs
    problems = compare(cases, found(cases), want, 2e-5)
    assert not problems, "\n".join(problems)


def test_double_precision_agrees_with_the_reference() -> None:
    rng = np.random.default_rng(4)
    cases = []
    for op, gates in GATES.items():
        size = ((3, 2, 4), (1, gates * 3, 4), (1, gates * 3, 3))
        operands = [values(rng, *s, dtype="float64") for s in size]
        cases.append(Case(op, {"hidden_size": 3}, operands, 2))
    check(cases, reference=True, rtol=1e-12)


@pytest.mark.parametrize(
    ("op", "attrs", "shapes", "reason"),
    [
        ("GRU", {}, [(3, 1, 2), (1, 9, 2), (1, 9, 4)], r"W has shape \[1, 9, 2\]"),
        ("LSTM", {"direction": "bidirectional"}, [(3, 1, 2), (1, 8, 2), (1, 8, 2)], "W has shape"),
        ("RNN", {"activations": ["Sin"]}, [(3, 1, 2), (1, 2, 2), (1, 2, 2)], "'Sin' is unknown"),
        (
            "LSTM",
            {"activations": ["Tanh"]},
            [(3, 1, 2), (1, 8, 2), (1, 8, 2)],
            "takes 3 activations",
        ),
        ("RNN", {"direction": "up"}, [(3, 1, 2), (1, 2, 2), (1, 2, 2)], "direction 'up'"),
        ("RNN", {"hidden_size": 3}, [(3, 1, 2), (1, 2, 2), (1, 2, 2)], "hidden_size is 3"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(
    op: str, attrs: dict[str, Any], shapes: list[tuple[int, ...]], reason: str
) -> None:
    node = Node("n", op, tuple(f"x{i}" for i in range(len(shapes))), ("y",), attrs)
    with pytest.raises(UnsupportedError, match=reason):
        apply_op(RECURRENT_OPS[op], node, [placeholder(s, "float32") for s in shapes], 22)

"""Operators of 8-bit integers, one a model, give LiteRT's reference results bit for bit.

`REFERENCE` holds the first 64 bits of the SHA-256 of what BUILTIN_REF of ai-edge-litert 2.3.0
answered for the same files and inputs.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

import toolkit
from tests.tflite_maker import model_of, Operand
from toolkit.errors import UnsupportedError

pytestmark = pytest.mark.needs("gcc")

REFERENCE = {
    "ADD_int8_0": "b7b0df0558cc8eb7",
    "ADD_int8_1": "61c6631c6fb636c4",
    "ADD_int8_3": "61c6631c6fb636c4",
    "SUB_int8_0": "156e6807fa8a0098",
    "SUB_int8_1": "5c2fb17c2f8ff42d",
    "SUB_int8_3": "5c2fb17c2f8ff42d",
    "MUL_int8_0": "3b61f5e94e18f003",
    "MUL_int8_1": "f4c546456034b45c",
    "MUL_int8_3": "f4c546456034b45c",
    "TANH_int8": "12d78ff6745ad356",
    "LOGISTIC_int8": "e38acfb747270f3a",
    "LEAKY_int8": "f17138321550aef1",
    "RELU_int8": "f97874005b478bd1",
    "RELU6_int8": "f97874005b478bd1",
    "QUANT_int8": "32a3e79436a93007",
    "QUANTF_int8": "510b125bc9e959a9",
    "DEQ_int8": "cd7f00484261ad01",
    "SOFTMAX_int8": "9f63a4737a4446c7",
    "ADD_uint8_0": "26ef863191d6a0d6",
    "ADD_uint8_1": "1170daf81d92647c",
    "ADD_uint8_3": "1170daf81d92647c",
    "SUB_uint8_0": "339ea7afbaba32d4",
    "SUB_uint8_1": "8a8d51aaa78abfba",
    "SUB_uint8_3": "8a8d51aaa78abfba",
    "MUL_uint8_0": "e6d0a5f239a22016",
    "MUL_uint8_1": "1761d707e0d708b7",
    "MUL_uint8_3": "1761d707e0d708b7",
    "TANH_uint8": "680687ad0edfc60d",
    "LOGISTIC_uint8": "8a498343214fd87e",
    "LEAKY_uint8": "14a7dc41f6f809b6",
    "RELU_uint8": "10301a4b92911fcf",
    "RELU6_uint8": "10301a4b92911fcf",
    "CAT_uint8": "38c47429f903b9db",
    "QUANT_uint8": "58e0b455f17ca871",
    "QUANTF_uint8": "bfb324a5de7dbef2",
    "DEQ_uint8": "85c77c54648d5c51",
    "SOFTMAX_uint8": "52f2b83b00337179",
}
SHAPE = (64, 256)


def case(name: str) -> tuple[bytes, list[Operand]]:
    """Return the model of a case, and its inputs."""
    words = name.split("_")
    dtype = next(w for w in words if w.endswith("int8"))
    zero, low = (3, -128) if dtype == "int8" else (130, 0)
    x = Operand(SHAPE, dtype, 0.05, zero)
    y = Operand(SHAPE, dtype, 0.03, zero - 1)
    match words[0]:
        case "ADD" | "SUB" | "MUL" as op:
            a = Operand(SHAPE, dtype, 0.031, zero)
            b = Operand(SHAPE, dtype, 0.017, zero - 7)
            y = Operand(SHAPE, dtype, 0.02 if op == "MUL" else 0.04, zero - 2)
            number = int(words[2])
            options = f"{op.capitalize()}Options"
            return model_of(op, [a, b], y, options, FusedActivationFunction=number), [a, b]
        case "TANH":
            x = Operand(SHAPE, dtype, 0.03, zero)
            y = Operand(SHAPE, dtype, 1 / 128, 0 if dtype == "int8" else 128)
            return model_of("TANH", [x], y), [x]
        case "LOGISTIC":
            return model_of("LOGISTIC", [x], Operand(SHAPE, dtype, 1 / 256, low)), [x]
        case "SOFTMAX":
            y = Operand(SHAPE, dtype, 1 / 256, low)
            return model_of("SOFTMAX", [x], y, "SoftmaxOptions", Beta=1.0), [x]
        case "LEAKY":
            y = Operand(SHAPE, dtype, 0.04, zero - 1)
            return model_of("LEAKY_RELU", [x], y, "LeakyReluOptions", Alpha=0.1), [x]
        case "CAT":
            b = Operand(SHAPE, dtype, 0.03, zero + 4)
            y = Operand((128, 256), dtype, 0.05, zero)
            return model_of("CONCATENATION", [x, b], y, "ConcatenationOptions", Axis=0), [x, b]
        case "QUANT":
            return model_of("QUANTIZE", [x], y, "QuantizeOptions"), [x]
        case "QUANTF":
            x = Operand(SHAPE, "float32")
            return model_of("QUANTIZE", [x], y, "QuantizeOptions"), [x]
        case "DEQ":
            y = Operand(SHAPE, "float32")
            return model_of("DEQUANTIZE", [x], y, "DequantizeOptions"), [x]
    return model_of(words[0], [x], y), [x]


@pytest.mark.parametrize("name", REFERENCE)
def test_an_operator_gives_the_bits_of_the_reference(name: str) -> None:
    data, inputs = case(name)
    rng = np.random.default_rng(5)
    with toolkit.build(toolkit.compile(toolkit.load(data))) as built:
        (found,) = built(*(x.random(rng) for x in inputs))
    assert hashlib.sha256(found.tobytes()).hexdigest()[:16] == REFERENCE[name]


def test_what_the_reference_refuses_is_refused() -> None:
    """int8 operands of different scales cannot be joined in TFLite."""
    data, _ = case("CAT_int8")
    with pytest.raises(UnsupportedError, match=r"operator 0 \(CONCATENATION"):
        toolkit.load(data)

"""Type rules of operators outside ai.onnx that `onnx` itself has no rule for.

A rule is a function (attrs, input types) -> output types.  Only shapes and types are said here;
whether an operator can be compiled is for `ops` to say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolkit.errors import ModelError
from toolkit.ir.types import TensorType

Types = Sequence[TensorType | None]
Rule = Callable[[Mapping[str, Any], Types], list[TensorType]]


def _at(types: Types, position: int) -> TensorType:
    kind = types[position] if position < len(types) else None
    if kind is None:
        raise ModelError(f"input {position} is required")
    return kind


def _first(types: Types) -> TensorType:
    return _at(types, 0)


def _rows(types: Types) -> int:
    shape = _first(types).shape
    return 1 if len(shape) < 2 else shape[0]


def _same(attrs: Mapping[str, Any], types: Types) -> list[TensorType]:
    return [_first(types)]


def _as_float(attrs: Mapping[str, Any], types: Types) -> list[TensorType]:
    return [TensorType(_first(types).shape, "float32")]


def _classifier(attrs: Mapping[str, Any], types: Types) -> list[TensorType]:
    strings = attrs.get("classlabels_strings", ())
    integers = attrs.get("classlabels_int64s", ()) or attrs.get("classlabels_ints", ())
    rows, classes = _rows(types), len(strings) or len(integers)
    label = "string" if strings else "int64"
    return [TensorType((rows,), label), TensorType((rows, classes), "float32")]


def _tree_regressor(attrs: Mapping[str, Any], types: Types) -> list[TensorType]:
    return [TensorType((_rows(types), int(attrs.get("n_targets", 1))), "float32")]


def _linear_regressor(attrs: Mapping[str, Any], types: Types) -> list[TensorType]:
    return [TensorType((_rows(types), int(attrs.get("targets", 1))), "float32")]


def _svm_regressor(attrs: Mapping[str, Any], types: Types) -> list[TensorType]:
    return [TensorType((_rows(types), 1), "float32")]


def _extractor(attrs: Mapping[str, Any], types: Types) -> list[TensorType]:
    data, picks = _first(types), _at(types, 1)
    lead = data.shape[:-1] if len(data.shape) > 1 else (1,)
    return [TensorType((*lead, picks.size), data.dtype)]


def _feature_vectorizer(attrs: Mapping[str, Any], types: Types) -> list[TensorType]:
    width = sum(math.prod(t.shape[1:]) for t in types if t is not None)
    return [TensorType((_rows(types), width), "float32")]


def _gemm(attrs: Mapping[str, Any], types: Types) -> list[TensorType]:
    a, b = _at(types, 0), _at(types, 3)
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise ModelError(f"{list(a.shape)} and {list(b.shape)} are not both matrices")
    rows = a.shape[1] if attrs.get("transA") else a.shape[0]
    columns = b.shape[0] if attrs.get("transB") else b.shape[1]
    scaled = len(types) > 8 and types[8] is not None
    return [TensorType((rows, columns), a.dtype if scaled else "float32")]


def _broadcast(a: int, b: int) -> Rule:
    def rule(attrs: Mapping[str, Any], types: Types) -> list[TensorType]:
        left, right = _at(types, a), _at(types, b)
        rank = max(len(left.shape), len(right.shape))
        padded = [(1,) * (rank - len(t.shape)) + t.shape for t in (left, right)]
        shape = tuple(y if x == 1 else x for x, y in zip(*padded, strict=True))
        return [TensorType(shape, left.dtype)]

    return rule


RULES: Mapping[str, Rule] = {
    "ai.onnx.ml:ArrayFeatureExtractor": _extractor,
    "ai.onnx.ml:Binarizer": _same,
    "ai.onnx.ml:FeatureVectorizer": _feature_vectorizer,
    "ai.onnx.ml:Imputer": _same,
    "ai.onnx.ml:LinearClassifier": _classifier,
    "ai.onnx.ml:LinearRegressor": _linear_regressor,
    "ai.onnx.ml:Normalizer": _as_float,
    "ai.onnx.ml:SVMClassifier": _classifier,
    "ai.onnx.ml:SVMRegressor": _svm_regressor,
    "ai.onnx.ml:Scaler": _as_float,
    "ai.onnx.ml:TreeEnsembleClassifier": _classifier,
    "ai.onnx.ml:TreeEnsembleRegressor": _tree_regressor,
    "com.microsoft:BiasGelu": _same,
    "com.microsoft:FastGelu": _same,
    "com.microsoft:Gelu": _same,
    "com.microsoft:QGemm": _gemm,
    "com.microsoft:QLinearAdd": _broadcast(0, 3),
    "com.microsoft:QLinearLeakyRelu": _same,
    "com.microsoft:QLinearMul": _broadcast(0, 3),
    "com.microsoft:QLinearSigmoid": _same,
    "com.microsoft:QLinearSoftmax": _same,
    "com.microsoft:QuickGelu": _same,
}

"""Model files to `Graph`: ONNX here, TFLite in `frontend.tflite`.  Knows no loop nests or C."""

from toolkit.frontend.functions import expand_function_graph, expand_function_op
from toolkit.frontend.onnx import load_onnx
from toolkit.frontend.reference import CannotEvaluate, evaluate

__all__ = [
    "CannotEvaluate",
    "evaluate",
    "expand_function_graph",
    "expand_function_op",
    "load_onnx",
]

"""TFLite models to `Graph`: the file, its operators by family, and the walk over them."""

from toolkit.frontend.tflite.load import load_tflite, State
from toolkit.frontend.tflite.read import is_tflite

__all__ = ["State", "is_tflite", "load_tflite"]

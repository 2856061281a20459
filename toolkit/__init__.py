"""nestling: turns a trained ONNX model into a small, fast, proven C library."""

__version__ = "0.1.0"

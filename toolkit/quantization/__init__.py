"""Post-training quantisation: a float model and samples -> an ONNX model on 8-bit integers.

`run.quantize_model` does it; `docs/quantize.md` is the user's view.
"""

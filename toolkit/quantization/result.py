"""What quantising made, and what it lost."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from toolkit.quantization.settings import Settings
from toolkit.samples import Accuracy, write_whole


@dataclass(frozen=True, slots=True)
class LayerReport:
    """A layer of the quantised model: its operators, precision, and its output's ratio in dB."""

    name: str
    ops: tuple[str, ...]
    precision: str
    snr_db: float
    weights_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Quantized:
    """A quantised model and what it lost: ratios over the calibration samples, sizes, accuracy."""

    proto: onnx.ModelProto
    settings: Settings | None
    """None: weights of float16."""
    samples: int
    layers: tuple[LayerReport, ...]
    outputs_db: Mapping[str, float]
    weights_before: int
    weights_after: int
    accuracy_before: Accuracy | None = None
    accuracy_after: Accuracy | None = None
    notes: tuple[str, ...] = field(default=())

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the ONNX file; nothing is left, and nothing lost, when that fails."""
        data = self.proto.SerializeToString()
        write_whole(Path(path), lambda file: file.write(data))

    def as_json(self) -> dict[str, Any]:
        """Return the keys of `quantize --json`."""
        before, after = self.accuracy_before, self.accuracy_after
        choices: dict[str, Any] = {"fp16": "weights"}
        if self.settings is not None:
            choices = {
                "method": self.settings.method,
                "activations": self.settings.activations,
                "per_channel": self.settings.per_channel,
            }
        return {
            **choices,
            "samples": self.samples,
            "outputs_db": dict(self.outputs_db),
            "weights_bytes_before": self.weights_before,
            "weights_bytes": self.weights_after,
            "accuracy_float": None if before is None else before.share,
            "accuracy": None if after is None else after.share,
            "layers": [
                {
                    "name": r.name, "ops": list(r.ops), "precision": r.precision,
                    "snr_db": r.snr_db, "weights_bytes": r.weights_bytes,
                }
                for r in self.layers
            ],
            "notes": list(self.notes),
        }  # fmt: skip

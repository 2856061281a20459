"""Peers of `nestling bench`: what they read, what they are given, what they refuse."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.small_models import dense
from toolkit import bench
from toolkit.errors import NestlingError


class FakeInterpreter:
    """What `open_litert` uses of LiteRT: one input `x`, and a count of runs."""

    made: FakeInterpreter

    def __init__(self, path: str, num_threads: int) -> None:
        if path == "bad":
            raise ValueError("Could not open 'bad'.")
        self.path, self.threads = path, num_threads
        self.runs, self.given, self.shape = 0, {}, (1, 3)
        self._interpreter = self
        FakeInterpreter.made = self

    def get_input_details(self) -> list[dict[str, Any]]:
        return [{"name": "x", "index": 7, "shape": np.array([1, 3])}]

    def resize_tensor_input(self, index: int, shape: tuple[int, ...]) -> None:
        assert index == 7
        self.shape = shape

    def allocate_tensors(self) -> None:
        pass

    def set_tensor(self, index: int, value: np.ndarray) -> None:
        assert value.shape == self.shape
        self.given[index] = value

    def Invoke(self) -> None:
        assert self.given
        self.runs += 1


@pytest.fixture
def litert(monkeypatch: pytest.MonkeyPatch) -> None:
    package, module = types.ModuleType("ai_edge_litert"), types.ModuleType("interpreter")
    package.__spec__ = importlib.machinery.ModuleSpec("ai_edge_litert", None)
    module.Interpreter = FakeInterpreter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ai_edge_litert", package)
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", module)
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"{name} 9")


def test_litert_runs_a_tflite_file_on_the_given_inputs(litert: None) -> None:
    x = np.ones((5, 3), np.float32)
    peer = bench.open_litert(None, "m.tflite", {"x": x, "state": x}, threads=2)
    fake = FakeInterpreter.made
    assert (fake.path, fake.threads, fake.shape) == ("m.tflite", 2, (5, 3))
    assert list(fake.given) == [7]
    before = fake.runs
    assert len(peer.time(4)) == 4
    assert fake.runs == before + 4
    assert (peer.name, peer.version) == ("litert", "ai-edge-litert 9")


def test_what_litert_says_is_passed_on(litert: None) -> None:
    with pytest.raises(NestlingError, match=r"--vs litert: it cannot run the model: Could not"):
        bench.open_litert(None, "bad", {})


def test_each_kind_of_file_has_a_peer_that_reads_it(tmp_path: Path) -> None:
    model = onnx.load(dense(tmp_path / "m.onnx"))
    assert bench.default_peer(model) == "onnxruntime"
    assert bench.default_peer(None) == "litert"
    assert {"onnxruntime", "litert"} <= set(bench.PEERS)
    with pytest.raises(NestlingError, match="onnxruntime: it reads no TFLite files"):
        bench.open_onnxruntime(None, "m.tflite", {})
    with pytest.raises(NestlingError, match="litert: it reads TFLite files only"):
        bench.open_litert(model, "m.onnx", {})


def test_a_peer_that_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NestlingError, match="--vs litert: ai-edge-litert is not installed") as told:
        bench.open_litert(None, "m.tflite", {})
    assert told.value.hint == "pip install ai-edge-litert"

"""The same model gives the same bytes: twice, in two folders, on two days, under any hash seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.onnx_cases import case_named, tiers

REPO = Path(__file__).resolve().parents[2]

SCRIPT = """
import datetime, hashlib, json, os, sys, time

shift = float(sys.argv[1])
real = time.time
time.time = lambda: real() + shift
class Date(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)
class Day(datetime.date):
    @classmethod
    def today(cls):
        return cls.fromtimestamp(time.time())
datetime.datetime, datetime.date = Date, Day

from toolkit.errors import NestlingError
from toolkit.pipeline import compile_model, load, Options

digests = {}
for path in sys.argv[2:]:
    for options in (
        Options(target="generic"),
        Options(target="x86-64-v3", executor="aot", weights="incbin"),
    ):
        try:
            compiled = compile_model(load(path), options)
        except NestlingError as error:
            digests[f"{path} {options.target}"] = str(error).replace(path, "")
            continue
        for name, data in compiled.bundle().items():
            key = f"{path} {options.target} {name}"
            digests[key] = hashlib.sha256(data).hexdigest()
            assert os.getcwd().encode() not in data, f"{key} holds a path"
print(json.dumps(digests))
"""


def write_models(folder: Path, step: int) -> list[str]:
    """Write models to `folder`; return their file names."""
    names = []
    for tier in ("A1", "expanded", "pytorch-operator"):
        for name in tiers()[tier][::step]:
            model = case_named(name).model
            onnx.save(model, folder / f"{name}.onnx")
            names.append(f"{name}.onnx")
    return names


def generate(folder: Path, names: list[str], hash_seed: str, shift_s: int) -> dict[str, str]:
    """Generate C from models in a process of its own; return digests by file."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(shift_s), *names],
        capture_output=True, text=True, timeout=600, check=False, cwd=folder,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(REPO), "TZ": "UTC"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, str] = json.loads(done.stdout)
    return result


def check_twice(tmp_path: Path, step: int) -> None:
    one, two = tmp_path / "one", tmp_path / "two" / "déjà vu"
    one.mkdir()
    two.mkdir(parents=True)
    names = write_models(one, step)
    assert write_models(two, step) == names
    first = generate(one, names, "1", 0)
    second = generate(two, list(names), "2", 86400 * 400)
    assert len(first) > 2 * len(names)
    assert first == second, [key for key in first if first[key] != second.get(key)]


def test_generated_files_are_the_same_bytes_again(tmp_path: Path) -> None:
    check_twice(tmp_path, 29)


@pytest.mark.full
def test_files_of_all_cases_are_the_same_bytes_again(tmp_path: Path) -> None:
    check_twice(tmp_path, 1)


def test_the_order_of_models_does_not_matter(tmp_path: Path) -> None:
    """No state is carried from one model to the next in a process."""
    names = write_models(tmp_path, 60)
    assert generate(tmp_path, names, "0", 0) == generate(tmp_path, names[::-1], "0", 0)


def test_the_demo_model_is_the_same_bytes_again(tmp_path: Path) -> None:
    (tmp_path / "demo.onnx").write_bytes((REPO / "examples" / "fsdd_dscnn.onnx").read_bytes())
    first = generate(tmp_path, ["demo.onnx"], "7", 0)
    assert first == generate(tmp_path, ["demo.onnx"], "8", 86400)

"""How values on the command line are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from toolkit.cli import options
from toolkit.errors import NestlingError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("16000", np.array(16000)),
        ("-0x10", np.array(-16)),
        ("1.5", np.array(1.5)),
        ("1e-3", np.array(1e-3)),
        ("true", np.array(True)),
        ("False", np.array(False)),
        ("[1,2,3]", np.array([1, 2, 3])),
        ("1,2,3", np.array([1, 2, 3])),
        ("[5]", np.array([5])),
        ("[]", np.array([], np.int64)),
        ("[0.5, -1]", np.array([0.5, -1.0])),
        ("nan", np.array(np.nan)),
    ],
)
def test_values(text: str, value: np.ndarray) -> None:
    found = options._value("--set x", text)
    assert found.shape == value.shape
    assert found.dtype == value.dtype
    assert np.array_equal(found, value, equal_nan=value.dtype.kind == "f")


def test_a_value_from_a_file(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.int8).reshape(2, 3)
    np.save(tmp_path / "v.npy", array)
    assert np.array_equal(options._value("--set x", str(tmp_path / "v.npy")), array)
    (tmp_path / "w.npy").write_bytes(b"rubbish")
    with pytest.raises(NestlingError, match="cannot be read"):
        options._value("--set x", str(tmp_path / "w.npy"))


@pytest.mark.parametrize(
    ("text", "shape"),
    [("1x3x224x224", (1, 3, 224, 224)), ("7", (7,)), ("1,2", (1, 2)), ("[1, 2]", (1, 2)),
     ("0x4", (0, 4)), ("scalar", ())],
)  # fmt: skip
def test_shapes(text: str, shape: tuple[int, ...]) -> None:
    assert options._shape("--input-shape x", text) == shape


@pytest.mark.parametrize("text", ["x", "1x", "1x-3", "1.5", "axb"])
def test_shapes_that_are_none(text: str) -> None:
    with pytest.raises(NestlingError, match="not a shape"):
        options._shape("--input-shape x", text)


def test_a_name_may_hold_an_equals_sign() -> None:
    assert options._pairs("--dim", ("a=b=3",), options._size) == {"a=b": 3}

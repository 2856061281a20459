"""Names, literals and weights in C: identifiers are valid, distinct; values read back exactly."""

from __future__ import annotations

import math
import re
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from toolkit.codegen.c_expr import c_type, float_text, int_text
from toolkit.codegen.model import weight_blob
from toolkit.codegen.names import c_name, c_names
from toolkit.codegen.weights import weight_text
from toolkit.ir.types import DTYPES, int_range

IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wsign-conversion",
          "-Werror")  # fmt: skip

HARD_NAMES = [
    "", "_", "__x", "0", "9a", "a b", "a-b", "a/b:0", "x.y", "Ü", "日本", "int", "float", "for",
    "class", "template", "nst_x", "isnan", "floorf", "exp", "I", "NULL", "main", "arena", "errno",
    "a__b", "x" * 300, "a\nb", '"', "*/", "true", "and", "restrict",
]  # fmt: skip


def floats(dtype: str, rng: np.random.Generator, count: int) -> list[float]:
    """Return values of every size, and the edges of the type."""
    info = np.finfo(dtype)
    size = info.bits // 8
    raw = rng.integers(0, 256, size=(count, size), dtype=np.uint8).tobytes()
    with np.errstate(invalid="ignore"):  # signalling NaNs
        values = np.frombuffer(raw, dtype=dtype).astype(np.float64)
    edges = [0.0, -0.0, 1.0, 0.1, 1e10, 1e16, 123456789.0, float(info.max), float(info.tiny),
             float(info.smallest_subnormal), -float(info.max), 1 / 3, 16777217.0]  # fmt: skip
    narrow = np.array(edges, dtype=dtype).astype(np.float64)
    return [*narrow.tolist(), *(v for v in values.tolist() if math.isfinite(v))]


def integers(dtype: str, rng: np.random.Generator) -> list[int]:
    low, high = int_range(dtype)
    near = [0, 1, low, low + 1, high, high - 1, -1, 2**31 - 1, 2**31, -(2**31), 2**32 - 1]
    span = high - low
    drawn = [low + int(x * span) for x in rng.random(20)]
    return [v for v in (*near, *drawn) if low <= v <= high]


def run_c(text: str, folder: Path, compiler: str) -> bytes:
    """Compile a program strictly and return what it prints."""
    source, program = folder / "t.c", folder / "t"
    source.write_text(text, encoding="utf-8")
    built = subprocess.run(
        [compiler, *STRICT, str(source), "-o", str(program), "-lm"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr[:3000]
    return subprocess.run([str(program)], capture_output=True, check=True).stdout


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_literals_read_back_exactly(
    compiler: str, rng: np.random.Generator, tmp_path: Path, need_tool: Callable[[str], str]
) -> None:
    arrays: dict[str, np.ndarray] = {}
    lines = ["#include <stdint.h>", "#include <stdio.h>", "#include <math.h>"]
    for dtype, info in DTYPES.items():
        if info.kind == "b":
            continue
        values = (
            [*floats(dtype, rng, 200), math.inf, -math.inf]
            if info.kind == "f"
            else integers(dtype, rng)
        )
        arrays[dtype] = np.array(values, dtype=dtype)
        texts = [
            float_text(float(v), dtype) if info.kind == "f" else int_text(int(v), dtype)
            for v in arrays[dtype]
        ]
        lines.append(f"static const {c_type(dtype)} {dtype}_[] = {{ {', '.join(texts)} }};")
    lines.append("int main(void) {")
    for dtype in arrays:
        lines.append(f"    if (fwrite({dtype}_, 1, sizeof {dtype}_, stdout) == 0) return 1;")
    lines.append("    return 0;\n}\n")
    raw = run_c("\n".join(lines), tmp_path, need_tool(compiler))
    for dtype, wanted in arrays.items():
        got = np.frombuffer(raw[: wanted.nbytes], dtype=dtype)
        raw = raw[wanted.nbytes :]
        different = [(w, g) for w, g in zip(wanted, got, strict=True) if w.tobytes() != g.tobytes()]
        assert not different, (dtype, different[:5])
    assert not raw


def test_float_text_is_short() -> None:
    assert float_text(1.0, "float32") == "1.0f"
    assert float_text(0.1, "float32") == "0.1f"
    assert float_text(float(np.float32(0.1)), "float32") == "0.1f"
    assert float_text(1e10, "float64") == "10000000000.0"
    assert float_text(math.nan, "float32") == "NAN"


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_read_back_exactly(dtype: str, rng: np.random.Generator) -> None:
    for size in (0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 1000):
        raw = rng.integers(0, 256, size=size * DTYPES[dtype].nbytes, dtype=np.uint8).tobytes()
        value = np.frombuffer(raw, dtype="uint8" if dtype == "bool" else dtype)
        text = weight_text("w", value, "")
        words = [
            int(w, 16) for w in ",".join(text.lines).replace("u", "").replace("l", "").split(",")
        ]
        assert len(words) == text.words
        packed = struct.pack(f"<{len(words)}Q", *words)
        assert packed[: len(raw)] == raw
        assert not any(packed[len(raw) :])
        assert len(packed) < len(raw) + 8 or not raw


def test_weights_compile_to_their_bytes(
    rng: np.random.Generator, tmp_path: Path, need_tool: Callable[[str], str]
) -> None:
    value = rng.integers(0, 256, size=997, dtype=np.uint8)
    text = weight_text("w", value, "")
    body = ",\n".join(text.lines)
    raw = run_c(
        "#include <stdint.h>\n#include <stdio.h>\n"
        f"static const uint64_t w[{text.words}] = {{ {body} }};\n"
        "int main(void) { return fwrite(w, 1, sizeof w, stdout) == 0; }\n",
        tmp_path, need_tool("gcc"),
    )  # fmt: skip
    assert raw[:997] == value.tobytes()


def test_the_blob_holds_every_constant_aligned(rng: np.random.Generator) -> None:
    arrays = [
        rng.integers(0, 256, size=int(rng.integers(0, 200)), dtype=np.uint8) for _ in range(30)
    ]
    blob, offsets = weight_blob(arrays, 64)
    for array, offset in zip(arrays, offsets, strict=True):
        assert offset % 64 == 0
        assert blob[offset : offset + array.nbytes] == array.tobytes()


@pytest.mark.parametrize("text", HARD_NAMES)
def test_any_text_becomes_an_identifier(text: str) -> None:
    name = c_name(text)
    assert IDENTIFIER.fullmatch(name)
    assert name != "nst_x"
    assert "__" not in name
    assert name.isascii()


def test_names_are_distinct_valid_in_c_and_the_same_again(
    rng: np.random.Generator, tmp_path: Path, need_tool: Callable[[str], str]
) -> None:
    letters = [*"ab_.0- ", "x", "X", "/", ":"]
    drawn = ["".join(rng.choice(letters, size=int(rng.integers(1, 5)))) for _ in range(300)]
    texts = [*HARD_NAMES, *drawn]
    names = c_names(texts)
    assert names == c_names(texts)
    assert set(names) == set(texts)
    assert len(set(names.values())) == len(set(texts))
    declared = "\n".join(f"    int {name} = 0; (void){name};" for name in names.values())
    for compiler, flags in (("gcc", ("-std=c99",)), ("g++", ("-x", "c++"))):
        source = tmp_path / "names.c"
        source.write_text(
            "#include <math.h>\n#include <stdint.h>\n#include <string.h>\n"
            f"void f(void);\nvoid f(void) {{\n{declared}\n}}\n"
        )
        done = subprocess.run(
            [need_tool(compiler), *flags, "-Wall", "-Wextra", "-Wno-shadow", "-Werror",
             "-fsyntax-only", str(source)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[:2000]

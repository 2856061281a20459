"""What `compile` writes is what a firmware team can use: it builds without a warning, and runs."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import toolkit
import toolkit.cli
from tests import small_models
from toolkit.toolchain.compiler import STRICT_FLAGS

pytestmark = pytest.mark.needs("gcc")

REPO = Path(__file__).resolve().parents[2]
DIGITS = REPO / "examples" / "fsdd_dscnn.onnx"
CXX_FLAGS = tuple(f for f in STRICT_FLAGS if f != "-Wmissing-prototypes")


def bundle(model: Path, folder: Path, *options: object) -> Path:
    """Compile on the command line; return the folder."""
    code = toolkit.cli.run(["compile", str(model), "-o", str(folder), *map(str, options)])
    assert code == 0
    return folder


def build(folder: Path, compiler: str, *flags: str) -> Path:
    """Build a bundle's example as its README says, with strict flags; return the program."""
    sources = [*(folder / "src").glob("*.c"), *(folder / "example").glob("*.c")]
    program = folder / "example" / "main"
    done = subprocess.run(
        [compiler, *flags, f"-I{folder / 'include'}", f"-I{folder / 'src'}", *map(str, sources),
         "-lm", "-o", str(program)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return program


def run(program: Path) -> str:
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize(
    ("executor", "weights"), [("graph", "c"), ("aot", "incbin"), ("aot", "c"), ("graph", "incbin")]
)
@pytest.mark.needs("gcc")
def test_the_example_builds_strictly_and_gives_the_recorded_answers(
    tmp_model_dir: Path, executor: str, weights: str
) -> None:
    out = bundle(
        DIGITS, tmp_model_dir / "out", "--executor", executor, "--weights", weights,
        "--input", f"{DIGITS}.npz", "--target", "generic",
    )  # fmt: skip
    said = run(build(out, "gcc", "-std=c99", "-O1", *STRICT_FLAGS))
    assert said.startswith("output: ")
    assert "all outputs are as recorded" in said


@pytest.mark.parametrize(
    ("compiler", "flags"),
    [
        ("gcc", ("-std=c99", *STRICT_FLAGS)),
        ("clang", ("-std=c99", *STRICT_FLAGS)),
        ("g++", ("-x", "c++", "-std=c++11", *CXX_FLAGS)),
    ],
)
def test_awkward_names_build_strictly(
    tmp_path: Path, need_tool: Callable[[str], str], compiler: str, flags: tuple[str, ...]
) -> None:
    need_tool(compiler)
    model = small_models.awkward(tmp_path / "struct.onnx")
    for name in ("int", "1 model!", "nst_x", "main"):
        out = bundle(model, tmp_path / "out", "--name", name, "--target", "generic")
        said = run(build(out, compiler, "-O0", *flags))
        assert len(said.splitlines()) == len(small_models.AWKWARD_NAMES[1::2])


@pytest.mark.parametrize("name", ["nst", "math", "string", "Stdint", "features", "nst_functions"])
def test_a_model_called_like_a_header(tmp_path: Path, name: str) -> None:
    model = small_models.dense(tmp_path / f"{name}.onnx")
    out = bundle(model, tmp_path / "out", "--target", "generic")
    assert run(build(out, "gcc", "-std=c99", *STRICT_FLAGS)) == "y: 0.5 0 0 1\n"


def test_operators_called_like_generated_symbols(tmp_path: Path) -> None:
    kinds = ("Run", "Model", "Nodes", "Operands", "Consts", "Inputs", "Outputs", "W0", "A", "A_T",
             "K_Run", "Main", "Int")  # fmt: skip
    nodes, last = [], "x"
    for kind in kinds:
        nodes.append(helper.make_node(kind, [last], [f"y_{kind}"], domain="d"))
        last = f"y_{kind}"
    outputs = {f"y_{k}": (2,) for k in kinds}
    model = small_models.save(tmp_path / "m.onnx", nodes, {"x": (2,)}, outputs, domain="d")
    (tmp_path / "ops.py").write_text(
        "from toolkit.ir.compute import compute\n"
        "def add(n): return lambda ctx, x: compute(x.shape, lambda i: x[i] + float(n), 'y')\n"
        f"OPS = {{f'd:{{k}}': add(n) for n, k in enumerate({kinds})}}\n"
    )
    out = bundle(model, tmp_path / "out", "--target", "generic", "--ops", tmp_path / "ops.py")
    said = run(build(out, "gcc", "-std=c99", *STRICT_FLAGS)).splitlines()
    totals = [sum(range(n + 1)) for n in range(len(kinds))]
    assert said == [f"y_{k}: {t} {t}" for k, t in zip(kinds, totals, strict=True)]


def test_an_example_with_zero_inputs_runs(tmp_path: Path) -> None:
    out = bundle(small_models.dense(tmp_path / "m.onnx"), tmp_path / "out", "--target", "generic")
    assert run(build(out, "gcc", "-std=c99", *STRICT_FLAGS)) == "y: 0.5 0 0 1\n"


def test_an_example_whose_answer_is_wrong_says_so(tmp_path: Path) -> None:
    model = small_models.dense(tmp_path / "m.onnx")
    x = np.zeros((1, 1, 3), np.float32)
    np.savez(tmp_path / "d.npz", in__x=x, out__y=np.full((1, 1, 4), 3, np.float32))
    out = bundle(model, tmp_path / "out", "--input", tmp_path / "d.npz", "--target", "generic")
    program = build(out, "gcc", "-std=c99", *STRICT_FLAGS)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "y: is not what was recorded")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64",
                                   "uint64", "float64", "bool"])  # fmt: skip
def test_every_element_type_is_printed_and_compared(tmp_path: Path, dtype: str) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = small_models.save(
        tmp_path / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], {"x": (3,)}, {"y": (3,)},
        dtypes={"x": kind, "y": kind},
    )  # fmt: skip
    x = np.array([[1, 0, 1]]).astype(dtype)
    np.savez(tmp_path / "d.npz", in__x=x, out__y=x)
    out = bundle(model, tmp_path / "out", "--input", tmp_path / "d.npz", "--target", "generic")
    said = run(build(out, "gcc", "-std=c99", *STRICT_FLAGS))
    assert said == "y: 1 0 1\nall outputs are as recorded\n"


@pytest.mark.parametrize("parallel", ["AUTO", "OPENMP", "THREADS", "NONE"])
@pytest.mark.needs("cmake", "gcc")
def test_cmake_builds_it_for_threads_beside_a_model_of_one(tmp_path: Path, parallel: str) -> None:
    one = bundle(small_models.dense(tmp_path / "one.onnx"), tmp_path / "two" / "one")
    two = bundle(
        DIGITS,
        tmp_path / "two" / "two",
        "--name",
        "two",
        "--threads",
        2,
        "--input",
        f"{DIGITS}.npz",
    )
    assert (two / "port" / "nst_threads.c").exists()
    assert not (one / "port").exists()
    assert json.loads((two / "model.json").read_text())["threads"] == 2
    (tmp_path / "two" / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.13)\nproject(two C)\n"
        "add_subdirectory(one)\nadd_subdirectory(two)\n"
        "add_executable(main two/example/main.c two/example/recorded.c)\n"
        "target_link_libraries(main two one)\n"
    )
    for step in (
        ["cmake", f"-DNESTLING_PARALLEL={parallel}", "-S", str(tmp_path / "two"), "-B",
         str(tmp_path / "build")],
        ["cmake", "--build", str(tmp_path / "build"), "--verbose"],
    ):  # fmt: skip
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert ("-fopenmp" in done.stdout) == (parallel in ("AUTO", "OPENMP"))
    assert ("nst_threads.c" in done.stdout) == (parallel == "THREADS")
    assert "all outputs are as recorded" in run(tmp_path / "build" / "main")


@pytest.mark.needs("cmake", "gcc")
@pytest.mark.parametrize("weights", ["c", "incbin"])
def test_cmake_builds_it_alone_and_two_models_in_one_project(tmp_path: Path, weights: str) -> None:
    cmake = ("cmake", "-DCMAKE_BUILD_TYPE=Debug")
    data = ("--input", f"{DIGITS}.npz")
    out = bundle(DIGITS, tmp_path / "a b" / "digits", "--weights", weights, *data)
    for step in ([*cmake, "-S", str(out), "-B", str(tmp_path / "build1")],
                 ["cmake", "--build", str(tmp_path / "build1")]):  # fmt: skip
        subprocess.run(step, check=True, capture_output=True)
    assert "as recorded" in run(tmp_path / "build1" / "fsdd_dscnn_example")
    bundle(small_models.dense(tmp_path / "m.onnx"), tmp_path / "a b" / "other", "--name", "other")
    (tmp_path / "a b" / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.13)\nproject(two C)\n"
        "add_subdirectory(digits)\nadd_subdirectory(other)\n"
        "add_executable(two main.c)\ntarget_link_libraries(two fsdd_dscnn other)\n"
    )
    (tmp_path / "a b" / "main.c").write_text(
        '#include "fsdd_dscnn.h"\n#include "other.h"\n'
        "static uint8_t a[FSDD_DSCNN_ARENA_BYTES] NST_ALIGNED(NST_ARENA_ALIGN);\n"
        "static uint8_t b[OTHER_ARENA_BYTES] NST_ALIGNED(NST_ARENA_ALIGN);\n"
        "int main(void) { return fsdd_dscnn_run(a) != NST_OK || other_run(b) != NST_OK; }\n"
    )
    for step in ([*cmake, "-S", str(tmp_path / "a b"), "-B", str(tmp_path / "build2")],
                 ["cmake", "--build", str(tmp_path / "build2")]):  # fmt: skip
        subprocess.run(step, check=True, capture_output=True)
    subprocess.run([str(tmp_path / "build2" / "two")], check=True)


def test_bin_weights_are_read_from_an_address_or_a_symbol(tmp_path: Path) -> None:
    out = bundle(
        DIGITS, tmp_path / "out", "--weights", "bin", "--input", f"{DIGITS}.npz", "--target",
        "generic",
    )  # fmt: skip
    blob = (out / "src" / "fsdd_dscnn_weights.bin").read_bytes()
    digest = hashlib.sha256(blob).hexdigest()
    assert digest in (out / "src" / "fsdd_dscnn_weights.c").read_text()
    assert digest in (out / "include" / "fsdd_dscnn.h").read_text()
    facts = json.loads((out / "model.json").read_text())
    assert facts["weights_file"]["sha256"] == digest
    # What a linker script or a flash image would do: the file's bytes behind a symbol.
    text = ",".join(map(str, blob))
    (out / "example" / "blob.c").write_text(
        f"#include <stdint.h>\nextern const uint8_t fsdd_dscnn_weights_bin[];\n"
        f"const uint8_t fsdd_dscnn_weights_bin[] __attribute__((aligned(64))) = {{{text}}};\n"
    )
    assert "as recorded" in run(build(out, "gcc", "-std=c99", *STRICT_FLAGS))
    define = "-DFSDD_DSCNN_WEIGHTS_ADDRESS=0x90000000"
    weights = out / "src" / "fsdd_dscnn_weights.c"
    subprocess.run(
        ["gcc", "-std=c99", *STRICT_FLAGS, define, f"-I{out / 'include'}", "-c", str(weights), "-o",
         str(tmp_path / "w.o")], check=True,
    )  # fmt: skip


def test_model_json_says_what_the_header_says(tmp_path: Path) -> None:
    out = bundle(DIGITS, tmp_path / "out")
    facts = json.loads((out / "model.json").read_text())
    header = (out / "include" / "fsdd_dscnn.h").read_text()

    def macro(name: str) -> int:
        found = re.search(rf"#define FSDD_DSCNN_{name} (\d+)u", header)
        assert found, name
        return int(found[1])

    assert facts["arena_bytes"] == macro("ARENA_BYTES")
    assert facts["arena_lower_bound_bytes"] == macro("ARENA_LOWER_BOUND_BYTES")
    assert facts["weights_bytes"] == macro("WEIGHTS_BYTES")
    (given,), (made,) = facts["inputs"], facts["outputs"]
    assert (given["name"], given["dtype"], given["shape"]) == ("input", "float32", [1, 1, 48, 32])
    assert given["offset"] == macro("INPUT_0_OFFSET")
    assert (made["bytes"], made["shape"]) == (macro("OUTPUT_0_BYTES"), [1, 10])
    assert sorted(facts["files"]) == sorted(
        str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()
    )
    calls = [s for s in facts["steps"] if "kernel" in s]
    assert sum(k["calls"] for k in facts["kernels"]) == len(calls)
    assert {c["kernel"] for c in calls} == {k["name"] for k in facts["kernels"]}


def test_the_passes_are_dumped_before_and_after(tmp_path: Path) -> None:
    bundle(DIGITS, tmp_path / "out", "--dump-passes", tmp_path / "passes")
    lines = (tmp_path / "passes" / "passes.txt").read_text().splitlines()
    names = [line.partition(":")[0] for line in lines]
    assert any(n.endswith("_fuse") for n in names)
    before = {n: (tmp_path / "passes" / f"{n}.before.txt").read_text() for n in names}
    after = {n: (tmp_path / "passes" / f"{n}.after.txt").read_text() for n in names}
    for first, second in pairwise(names):
        assert after[first] == before[second]
    assert before[names[0]].startswith("graph ")


def test_a_bundle_written_over_itself_is_the_same(tmp_path: Path) -> None:
    model = small_models.dense(tmp_path / "m.onnx")
    out = bundle(model, tmp_path / "out")
    first = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    bundle(model, tmp_path / "out")
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == first
    assert list(tmp_path.glob(".nestling*")) == []

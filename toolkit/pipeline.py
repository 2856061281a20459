"""From a model file to C, to a built library, to a running model: what the commands and the API share."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from toolkit.codegen.model import ModelFiles, model_files
from toolkit.codegen.names import c_name
from toolkit.errors import NestlingError
from toolkit.frontend import load_onnx
from toolkit.ir.graph import Graph
from toolkit.ir.program import Program
from toolkit.ir.types import TensorType
from toolkit.lowering.lower import lower
from toolkit.measure.host import HostSession
from toolkit.ops import OPS, Op
from toolkit.packaging.bundle import place, runtime_files, write_folder
from toolkit.passes.manager import Dump, run_passes
from toolkit.paths import RUNTIME_C
from toolkit.toolchain.compiler import build_shared, find_compiler
from toolkit import __version__


@dataclass(frozen=True, slots=True)
class Options:
    """Choices of code generation.  `align`: bytes of arena alignment per tensor."""

    executor: str = "graph"
    weights: str = "c"
    align: int = 64
    cflags: tuple[str, ...] = ("-O3", "-march=native")


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """An imported model: the graph as imported, its digest, and what import had to say."""

    graph: Graph
    name: str
    digest: str
    notes: tuple[str, ...] = ()
    ops: Mapping[str, Op] = field(default_factory=lambda: OPS)


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A model as C text, with the program it was printed from."""

    name: str
    program: Program
    graph: Graph
    files: ModelFiles
    options: Options
    notes: tuple[str, ...]

    def input_types(self) -> dict[str, TensorType]:
        """Map the model's inputs to their types, in order."""
        return {n: self.program.types[n] for n in self.program.inputs}

    def output_types(self) -> dict[str, TensorType]:
        """Map the model's outputs, by the model's names, to their types, in order."""
        return {
            n: self.program.types[p]
            for n, p in zip(self.graph.outputs, self.program.outputs, strict=True)
        }

    def write(self, folder: Path) -> None:
        """Write the library: generated files and the runtime, all or nothing."""
        write_folder(folder, {**place(self.files.files), **runtime_files()})


def load(
    path: str | Path,
    *,
    dims: Mapping[str, int] | None = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    pins: Mapping[str, np.ndarray] | None = None,
    name: str | None = None,
    ops: Mapping[str, Op] | None = None,
) -> Model:
    """Import a model file with all shapes fixed; raise `NestlingError` for what cannot be compiled."""
    file = Path(path)
    notes: list[str] = []
    graph = load_onnx(
        file, dims=dims or {}, input_shapes=input_shapes or {}, pins=pins or {}, notes=notes
    )
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return Model(graph, c_name(name or file.stem), digest, tuple(notes), ops or OPS)


def compile_model(model: Model, options: Options = Options(), *, dump: Dump | None = None) -> Compiled:
    """Optimise, lower and print a model."""
    graph = run_passes(model.graph, model.ops, dump=dump)
    program = lower(graph, model.ops, name=model.name, align=options.align, digest=model.digest)
    files = model_files(
        program, executor=options.executor, weights=options.weights, version=__version__,
        model_digest=model.digest,
    )  # fmt: skip
    return Compiled(model.name, program, graph, files, options, model.notes)


class BuiltModel:
    """A model built for the host and loaded in a child process; call it with NumPy arrays."""

    def __init__(self, compiled: Compiled, folder: Path | None = None, *, timeout_s: float = 60.0) -> None:
        self.compiled = compiled
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="nestling-"))
            self._cleanup = weakref.finalize(self, shutil.rmtree, folder, True)
        self.folder = folder
        self.library = build_host(compiled, folder)
        self.timeout_s = timeout_s
        self._session: HostSession | None = None

    def session(self) -> HostSession:
        """Return the running child process, starting it when there is none."""
        if self._session is None or self._session.process.poll() is not None:
            self._session = HostSession(
                self.library, self.compiled.name, timeout_s=self.timeout_s
            ).__enter__()
        return self._session

    def close(self) -> None:
        """End the child process."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def __enter__(self) -> BuiltModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run once; return outputs by name."""
        raw = pack_inputs(self.compiled, inputs)
        return unpack_outputs(self.compiled, self.session().run(raw).outputs)

    def __call__(self, *args: np.ndarray, **named: np.ndarray) -> list[np.ndarray]:
        """Run once on positional or named inputs; return the outputs in order."""
        inputs = dict(zip(self.compiled.program.inputs, args, strict=False)) | named
        return list(self.run(inputs).values())


def build_host(compiled: Compiled, folder: Path) -> Path:
    """Write the library below `folder` and build it with the system compiler; return the .so file."""
    compiled.write(folder / "lib")
    src, include = folder / "lib" / "src", folder / "lib" / "include"
    port = RUNTIME_C / "port" / "host"
    sources = [*sorted(src.glob("*.c")), port / "nst_bench.c"]
    flags = [*compiled.options.cflags, f"-I{port}", f"-Wa,-I{src}"]
    if compiled.options.weights == "bin":
        raise NestlingError(
            "--weights bin leaves the weights to your linker; to run on the host use c or incbin."
        )
    return build_shared(
        find_compiler(), sources, [include], folder / f"{compiled.name}.so", flags=flags
    )


def pack_inputs(compiled: Compiled, inputs: Mapping[str, np.ndarray]) -> bytes:
    """Return all inputs' raw bytes in the model's order; refuse what has another shape or type."""
    parts = []
    for name, kind in compiled.input_types().items():
        if name not in inputs:
            raise NestlingError(
                f"input {name!r} is missing.",
                state=[f"{n}: {t}" for n, t in compiled.input_types().items()],
            )
        array = np.asarray(inputs[name])
        if tuple(array.shape) != kind.shape or str(array.dtype) != kind.dtype:
            raise NestlingError(
                f"input {name!r} is {array.dtype}{list(array.shape)}, the model takes {kind}."
            )
        parts.append(np.ascontiguousarray(array).tobytes())
    return b"".join(parts)


def unpack_outputs(compiled: Compiled, raw: bytes) -> dict[str, np.ndarray]:
    """Return the outputs by name from their concatenated raw bytes."""
    result, at = {}, 0
    for name, kind in compiled.output_types().items():
        array = np.frombuffer(raw, dtype=np.dtype(kind.dtype), count=kind.size, offset=at)
        result[name] = array.reshape(kind.shape).copy()
        at += kind.nbytes
    return result



"""From a model to C text: what the commands, the Python API and the ONNX backend share.

Running what was compiled is the business of `toolkit.runners`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from toolkit.codegen.model import model_files, ModelFiles
from toolkit.codegen.names import kernel_symbol, library_name
from toolkit.errors import NestlingError, UnsupportedError
from toolkit.frontend import load_onnx
from toolkit.frontend.tflite import is_tflite, load_tflite, State
from toolkit.ir.graph import Graph
from toolkit.ir.program import Program
from toolkit.ir.types import TensorType
from toolkit.lowering.lower import lower
from toolkit.lowering.recorded import Recorded, recorded_traces
from toolkit.ops import infer_node, Op, OPS
from toolkit.packaging.bundle import Bundle, bundle_files, library_files, write_bundle
from toolkit.packaging.write import write_folder
from toolkit.passes.arithmetic import arithmetic_of
from toolkit.passes.manager import Dump, passes_for, run_passes
from toolkit.passes.zero_points import counted_from
from toolkit.schedule.default import Trace
from toolkit.schedule.threads import team_of
from toolkit.search.packs import ShippedPacks, TraceSource
from toolkit.targets.target import get_target, Target, TARGETS
from toolkit.toolchain.parallel import PARALLEL
from toolkit.version import __version__

EXECUTORS = ("graph", "aot")
WEIGHTS = ("c", "incbin", "bin")
MATH = ("fast", "libm")

MAX_THREADS = 64

Source = str | os.PathLike[str] | bytes | onnx.ModelProto


@dataclass(frozen=True, slots=True)
class Options:
    """Choices of code generation.

    `target`: a name of `TARGETS`, or 'host', this machine.  `exact`: no graph pass, and no
    algorithm, that may change the rounding of results.  `align`: bytes of arena alignment per
    tensor; None leaves it to the target.  `cflags`: how the host's compiler optimises what is built
    here to run, besides the target's flags; a bundle is compiled with its user's own.  `math`:
    'fast' puts vector functions with stated error (`targets/isas/shared.py`) in place of those of
    <math.h> where the target has vectors; 'libm' calls <math.h> lane by lane.  `threads`: the cores
    that share the work of a run.  `integers`: quantised subgraphs on the stored integers, wherever
    that is proven equal to exact arithmetic, instead of in float32; `exact` leaves that out.
    `parallel`: what runs threads in what is built here: 'port' (POSIX threads), 'openmp', or
    'none', the caller alone.
    """

    executor: str = "graph"
    weights: str = "c"
    target: str = "host"
    exact: bool = False
    align: int | None = None
    cflags: tuple[str, ...] = ("-O3",)
    math: str = "fast"
    threads: int = 1
    parallel: str = "port"
    integers: bool = True

    def __post_init__(self) -> None:
        for what, value, known in (
            ("executor", self.executor, EXECUTORS),
            ("weights", self.weights, WEIGHTS),
            ("math", self.math, MATH),
            ("parallel", self.parallel, tuple(PARALLEL)),
        ):
            if value not in known:
                names = ", ".join(known)
                raise NestlingError(f"{what} {value!r} is unknown; it is one of {names}.")
        if not 1 <= self.threads <= MAX_THREADS:
            raise NestlingError(f"threads {self.threads} is not within 1..{MAX_THREADS}.")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Model:
    """An imported model: the graph as imported, its digest, and what import had to say.

    `traces`: schedules for kernels, by the key of their base functions.  `records`: where those of
    the other kernels are looked up, in order.
    """

    graph: Graph
    name: str
    digest: str
    notes: tuple[str, ...] = ()
    ops: Mapping[str, Op] = field(default_factory=lambda: OPS)
    source: Source | None = None
    pins: Mapping[str, np.ndarray] = field(default_factory=dict)
    traces: Mapping[str, Trace] = field(default_factory=dict)
    records: tuple[TraceSource, ...] = (ShippedPacks(),)
    states: Mapping[str, State] = field(default_factory=dict)
    """Inputs that hold what the model keeps from run to run, and the outputs they come from."""

    @property
    def inputs(self) -> dict[str, TensorType]:
        """The inputs and their types, in order; pinned ones are none."""
        return {n: self.graph.types[n] for n in self.graph.inputs}

    def __repr__(self) -> str:
        shown = ", ".join(f"{n}: {t}" for n, t in self.inputs.items())
        return f"<Model {self.name}: {len(self.graph.nodes)} nodes, inputs {shown or 'none'}>"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Compiled:
    """A model as C text, with the program it was printed from."""

    name: str
    program: Program
    graph: Graph
    files: ModelFiles
    options: Options
    target: Target
    model: Model
    recorded: Recorded
    """What records said of its kernels."""
    floats: tuple[str, ...] = ()
    """With `integers`: the nodes between quantised tensors that compute in float, and why."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What import and compiling had to say."""
        return (*self.model.notes, *self.floats)

    @property
    def inputs(self) -> dict[str, TensorType]:
        """The model's inputs and their types, in order."""
        return {n: self.program.types[n] for n in self.program.inputs}

    @property
    def outputs(self) -> dict[str, TensorType]:
        """The model's outputs, by the model's names, and their types, in order."""
        return {
            n: self.program.types[p]
            for n, p in zip(self.graph.outputs, self.program.outputs, strict=True)
        }

    @property
    def arena_bytes(self) -> int:
        """Bytes of the buffer that the caller provides."""
        return max(self.program.arena_bytes, 8)

    @property
    def weights_bytes(self) -> int:
        """Bytes of all constant tensors."""
        return self.program.weights_bytes

    def bundle(
        self,
        inputs: Mapping[str, np.ndarray] | None = None,
        outputs: Mapping[str, np.ndarray] | None = None,
    ) -> dict[str, bytes]:
        """Return the bundle's files by path.

        `inputs` is what its example runs on (zeros without), `outputs` what it should answer.
        """
        return bundle_files(
            Bundle(
                name=self.name,
                program=self.program,
                output_names=self.graph.outputs,
                files=self.files,
                executor=self.options.executor,
                weights=self.options.weights,
                version=__version__,
                digest=self.model.digest,
                records=self.recorded.digest,
                target=self.target.name,
                cflags=TARGETS[self.target.name].cflags,
                pinned={n: np.asarray(v).tolist() for n, v in self.model.pins.items()},
                inputs=inputs or {},
                outputs=outputs or {},
            )
        )

    def __repr__(self) -> str:
        return (
            f"<Compiled {self.name} for {self.target.name}: {len(self.program.kernels)} kernels, "
            f"arena {self.arena_bytes:,} bytes, weights {self.weights_bytes:,} bytes>"
        )

    def kernel_lines(self, kernel: str) -> tuple[str, int, int]:
        """Return where a kernel is defined: file of `src`, first line and last."""
        head = f"NST_KERNEL void {kernel_symbol(self.name, kernel)}("
        file = f"{self.name}.c"
        text = self.files.files[file]
        assert isinstance(text, str), "C is text"
        lines = text.splitlines()
        first = next(n for n, line in enumerate(lines, 1) if line.startswith(head))
        return file, first, lines.index("}", first) + 1

    def write(self, folder: str | os.PathLike[str], **example: Any) -> dict[str, bytes]:
        """Write the bundle, all or nothing; return its files.  `example`: see `bundle`."""
        files = self.bundle(**example)
        write_bundle(Path(folder), files)
        return files

    def write_library(self, folder: Path) -> None:
        """Write only what a build needs: generated files and the runtime."""
        write_folder(folder, library_files(self.files))


def load(
    source: Source,
    *,
    dims: Mapping[str, int] | None = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    pins: Mapping[str, Any] | None = None,
    name: str | None = None,
    ops: Mapping[str, Op] | None = None,
    records: Sequence[TraceSource] | None = None,
) -> Model:
    """Import a model (a path, bytes or a ModelProto; ONNX or TFLite) with all shapes fixed.

    `dims` fixes named dimensions, `input_shapes` whole inputs, `pins` turns inputs into constants;
    `ops` adds operators, by 'domain:Name', to those nestling has.  `name` prefixes all C symbols.
    `records`: where compiling looks for traces (`toolkit.search.packs.open_source` reads a file of
    them), the packs that nestling ships if not given.
    Raises `NestlingError` for what cannot be read or compiled.
    """
    notes: list[str] = []
    states: dict[str, State] = {}
    table = {**OPS, **ops} if ops else OPS
    fixed = {n: np.asarray(v) for n, v in (pins or {}).items()}
    try:
        graph = _imported(source, table, dims or {}, input_shapes or {}, fixed, notes, states)
    except UnsupportedError as error:
        raise _with_hint(error) from None
    if isinstance(source, onnx.ModelProto):
        digest, stem = graph.digest(), source.graph.name or "model"
    elif isinstance(source, bytes):
        digest, stem = hashlib.sha256(source).hexdigest(), "model"
    else:
        digest, stem = _file_digest(Path(source)), Path(source).stem
    sources = (ShippedPacks(),) if records is None else tuple(records)
    return Model(
        graph, library_name(name or stem), digest, tuple(notes), table, source, fixed,
        records=sources, states=states,
    )  # fmt: skip


def _imported(
    source: Source,
    table: Mapping[str, Op],
    dims: Mapping[str, int],
    input_shapes: Mapping[str, tuple[int, ...]],
    pins: Mapping[str, np.ndarray],
    notes: list[str],
    states: dict[str, State],
) -> Graph:
    """Import by the front end for the kind of file: TFLite files name themselves."""
    infer = partial(infer_node, table)
    if is_tflite(source):
        assert not isinstance(source, onnx.ModelProto)
        return load_tflite(
            source, dims=dims, input_shapes=input_shapes, pins=pins, notes=notes, states=states,
            infer=infer,
        )  # fmt: skip
    return load_onnx(
        source,
        dims=dims,
        input_shapes=input_shapes,
        pins=pins,
        notes=notes,
        infer=infer,
        check=infer,
        implemented=table.keys(),
    )


def _file_digest(path: Path) -> str:
    """Return the SHA-256 of a model file; with external data, of it and then of those files."""
    data = path.read_bytes()
    state = hashlib.sha256(data)
    if b"location" in data and not is_tflite(data):  # else no tensor can name a file
        model = onnx.load_model_from_string(data)
        for tensor in model.graph.initializer:
            fields = {entry.key: entry.value for entry in tensor.external_data}
            file = path.parent / fields.get("location", "")
            if fields and file.is_file():
                with file.open("rb") as stream:
                    stream.seek(int(fields.get("offset", 0)))
                    state.update(stream.read(int(fields.get("length", -1))))
    return state.hexdigest()


def _with_hint(error: UnsupportedError) -> UnsupportedError:
    """Return the error, with the way out when operators of somebody's own domain are its cause."""
    unknown = re.compile(r"operator (?!ai\.onnx)[\w.]+:\w+ is not supported")
    own = any(unknown.search(line) for line in error.state)
    if error.hint or not own:
        return error
    hint = "operators of a domain of your own can be written in Python: --ops FILE"
    return UnsupportedError(error.what, state=error.state, hint=hint)


def compile_model(
    model: Model, options: Options = Options(), *, dump: Dump | None = None
) -> Compiled:
    """Optimise, lower and print a model."""
    target = get_target(options.target)
    floats: list[str] = []
    passes = passes_for(
        arithmetic_of(target.isa),
        note=floats.append if options.integers else None,
        zero=counted_from(target.isa),
    )
    graph = run_passes(model.graph, model.ops, passes=passes, dump=dump, exact=options.exact)
    if options.math == "libm":
        target = replace(target, isa=target.isa.with_libm())
    recorded = recorded_traces(graph, model.ops, model.records, target.name)
    program = lower(
        graph,
        model.ops,
        name=model.name,
        isa=target.isa,
        align=options.align or target.align,
        digest=model.digest,
        traces={**recorded.traces, **model.traces},
        team=team_of(target, options.threads),
        exact=options.exact,
    )
    files = model_files(
        program,
        executor=options.executor,
        weights=options.weights,
        version=__version__,
        model_digest=model.digest,
        records_digest=recorded.digest,
        isa=target.isa,
    )
    return Compiled(
        model.name, program, graph, files, options, target, model, recorded, tuple(floats)
    )

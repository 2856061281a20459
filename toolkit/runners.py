"""A compiled model made to run: as a library in a child process here, or as firmware on a board.

Both kinds take NumPy arrays and return NumPy arrays, and tell what a run costs.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from toolkit.codegen.names import c_name
from toolkit.errors import BoardError, NestlingError
from toolkit.ir.program import Call
from toolkit.ir.types import TensorType
from toolkit.measure.board import BoardRun, BoardSession, RUN_TIMEOUT_S
from toolkit.measure.closing import Closing
from toolkit.measure.estimate import CycleEstimate, estimate_cycles
from toolkit.measure.flashing import flash
from toolkit.measure.host import HostSession
from toolkit.measure.ledger import LEDGER
from toolkit.measure.usb_ports import find_port, Port
from toolkit.paths import RUNTIME_C
from toolkit.pipeline import Compiled
from toolkit.targets.board import Board, load_board
from toolkit.targets.target import get_target
from toolkit.toolchain.compiler import build_shared, find_compiler
from toolkit.toolchain.firmware import build_firmware, FirmwareArtifact
from toolkit.toolchain.parallel import parallel_build
from toolkit.toolchain.sizes import read_elf

HOST_TIMEOUT_S = 60.0
"""What one run may take on the host."""

_TURN_S = 2.0
"""Time of one request to the child process, at most about."""

_PROFILE_TURNS = 25
"""A profile is the median of this many means: the system's interruptions fall into few of them."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a model takes: `per_inference` in `unit` (the median of the runs), and bytes.

    Flash is the model, the runtime and the weights; RAM is the arena, static data and stack, all
    without what only serves measuring.  None: not known there.
    """

    unit: str
    per_inference: float
    runs: int
    flash_bytes: int | None
    weights_bytes: int
    ram_bytes: int | None
    arena_bytes: int
    stack_bytes: int | None

    def as_json(self) -> dict[str, Any]:
        """Return the keys of `run --json`."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class StepCost:
    """The cost of one step of the model, per run."""

    index: int
    kernel: str
    nodes: tuple[str, ...]
    cost: float


class Runner(Protocol):
    """What the commands need of something that runs a compiled model."""

    compiled: Compiled

    def run(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run once; return outputs by name."""

    def measure(self, inputs: Mapping[str, Any], runs: int) -> tuple[dict[str, np.ndarray], Cost]:
        """Run often; return the outputs of the last run, and the cost."""

    def profile(self, inputs: Mapping[str, Any], runs: int) -> list[StepCost]:
        """Return the cost of every step that ran."""

    def close(self) -> None:
        """Let go of processes and files."""


class BuiltModel(Closing):
    """A model built with the system compiler and loaded in a child process.

    Call it with NumPy arrays, in the order of the inputs or by name; it returns a list of arrays in
    the order of the outputs.  A context manager; without `with`, it is closed when collected.
    """

    def __init__(
        self, compiled: Compiled, folder: Path | None = None, *, timeout_s: float = HOST_TIMEOUT_S
    ) -> None:
        self.compiled = compiled
        self.timeout_s = timeout_s
        self.folder, self._cleanup = _folder(self, folder)
        self.library = build_host(compiled, self.folder)
        self._session: HostSession | None = None
        self._stack: tuple[bytes, int | None] | None = None
        """What the last inputs take of the stack."""

    def __repr__(self) -> str:
        inputs, outputs = ", ".join(self.compiled.inputs), ", ".join(self.compiled.outputs)
        return f"<BuiltModel {self.compiled.name}: ({inputs}) -> ({outputs})>"

    def session(self) -> HostSession:
        """Return the running child process, starting it when there is none."""
        if self._session is None or self._session.process.poll() is not None:
            self.close()
            self._session = HostSession(
                self.library, self.compiled.name, timeout_s=self.timeout_s
            ).__enter__()
        return self._session

    def close(self) -> None:
        """End the child process; the next run starts another."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def run(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run once; return outputs by name."""
        raw = b"".join(pack_inputs(self.compiled, inputs))
        return unpack_outputs(self.compiled, self.session().run(raw).outputs)

    def __call__(self, *args: Any, **named: Any) -> list[np.ndarray]:
        """Run once; return the outputs in order."""
        return list(self.run(bind(self.compiled, args, named)).values())

    def measure(
        self, inputs: Mapping[str, Any], runs: int = 1
    ) -> tuple[dict[str, np.ndarray], Cost]:
        """Run often; return the outputs of the last run, and the cost in seconds."""
        raw = b"".join(pack_inputs(self.compiled, inputs))
        session = self.session()
        # The first run finds caches and pages cold: it counts only when it is the only one.
        done = session.run(raw)
        times = list(done.ns)
        # In turns, so that a time limit bounds a few seconds' work, whatever `runs` is.
        turn = max(1, min(runs, int(_TURN_S * 1e9 / max(times[0], 1))))
        if runs > 1:
            times.clear()
        while len(times) < runs:
            done = session.run(raw, min(turn, runs - len(times)))
            times.extend(done.ns)
        if self._stack is None or self._stack[0] != raw:
            self._stack = raw, session.stack(raw)
        stack = self._stack[1]
        arena = self.compiled.arena_bytes
        cost = Cost(
            unit="seconds",
            per_inference=statistics.median(times) * 1e-9,
            runs=runs,
            flash_bytes=read_elf(self.library).flash_bytes,
            weights_bytes=self.compiled.weights_bytes,
            ram_bytes=None if stack is None else arena + stack,
            arena_bytes=arena,
            stack_bytes=stack,
        )
        return unpack_outputs(self.compiled, done.outputs), cost

    def profile(self, inputs: Mapping[str, Any], runs: int = 1) -> list[StepCost]:
        """Return the seconds of every step, per run; needs the graph executor."""
        if self.compiled.options.executor != "graph":
            raise NestlingError("a profile needs the graph executor (--executor graph).")
        raw = b"".join(pack_inputs(self.compiled, inputs))
        session = self.session()
        first = session.profile(raw)
        turn = max(1, min(runs // _PROFILE_TURNS, int(_TURN_S * 1e9 / max(sum(first), 1))))
        turns = [session.profile(raw, turn) for _ in range(max(1, runs // turn))]
        medians = [statistics.median(times) / turn for times in zip(*turns, strict=True)]
        return step_costs(self.compiled, {i: ns * 1e-9 for i, ns in enumerate(medians) if ns})

    def trace(self, inputs: Mapping[str, Any]) -> list[tuple[int, Call, dict[str, np.ndarray]]]:
        """Run step by step; return each call that ran, after its index, with its outputs."""
        program = self.compiled.program
        data = b"".join(pack_inputs(self.compiled, inputs))
        result: list[tuple[int, Call, dict[str, np.ndarray]]] = []
        node, session = 0, self.session()
        while node < len(program.steps):
            step = program.steps[node]
            names = step.outputs if isinstance(step, Call) else ()
            spans = [(program.offsets[n], program.types[n].nbytes) for n in names]
            status, following, parts = session.step(node, data, spans)
            if isinstance(step, Call):
                made = {
                    n: _array(part, program.types[n]) for n, part in zip(names, parts, strict=True)
                }
                result.append((node, step, made))
            if status == 1:
                break
            node = following
        return result


class PortOwner:
    """Who of several has a board's port: the one who takes it makes the last one close it."""

    def __init__(self) -> None:
        self._owner: Closing | None = None

    def take(self, owner: Closing) -> None:
        """Give the port to `owner`."""
        if self._owner is not None and self._owner is not owner:
            self._owner.close()
        self._owner = owner


class BoardModel(Closing):
    """A model as firmware on a board: in QEMU, or behind a port.

    `port`: as `find_port` takes it.  A board behind a port whose firmware takes code is given the
    model; one that runs another firmware, or none, is flashed where its data says how.  `owner`:
    shared by models that take turns on one port.
    """

    def __init__(
        self,
        compiled: Compiled,
        board: Board,
        port: str | None = None,
        folder: Path | None = None,
        *,
        timeout_s: float = RUN_TIMEOUT_S,
        owner: PortOwner | None = None,
    ) -> None:
        self.compiled, self.board, self.timeout_s = compiled, board, timeout_s
        self._owner = owner
        self.folder, self._cleanup = _folder(self, folder)
        self.firmware = build_board(compiled, board, self.folder)
        self._session: BoardSession | None = None
        self._port = port

    def session(self) -> BoardSession:
        """Return the open session, starting the board when there is none."""
        if self._session is None:
            port = open_port(self.board, self._port)
            if self._owner is not None:
                self._owner.take(self)
            self._session = open_session(self.board, self.firmware, port, self.timeout_s)
        return self._session

    def close(self) -> None:
        """Close the port and end QEMU."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def run(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run once; return outputs by name."""
        done = self.session().run(pack_inputs(self.compiled, inputs))
        return unpack_outputs(self.compiled, b"".join(done.outputs))

    def measure(
        self, inputs: Mapping[str, Any], runs: int = 1
    ) -> tuple[dict[str, np.ndarray], Cost]:
        """Run often; return the outputs of the last run, and the cost in the board's unit."""
        raw = pack_inputs(self.compiled, inputs)
        done = [self.session().run(raw) for _ in range(runs)]
        firmware = self.firmware
        cost = board_cost(
            self.board, done, flash_bytes=firmware.flash_bytes,
            weights_bytes=firmware.weights_bytes, static_ram_bytes=firmware.static_ram_bytes,
            arena_bytes=firmware.arena_bytes,
        )  # fmt: skip
        return unpack_outputs(self.compiled, b"".join(done[-1].outputs)), cost

    def profile(self, inputs: Mapping[str, Any], runs: int = 1) -> list[StepCost]:
        """Return the cost of every step, in the board's unit."""
        done = self.session().run(pack_inputs(self.compiled, inputs), profile=True)
        return step_costs(self.compiled, dict(done.node_ticks or {}))

    def estimate(self, inputs: Mapping[str, Any]) -> CycleEstimate:
        """Estimate the cycles of a run, in a QEMU of its own; see `measure.estimate`."""
        raw = pack_inputs(self.compiled, inputs)
        return estimate_cycles(self.board, self.firmware, raw, timeout_s=self.timeout_s)


def open_board(name: str) -> tuple[Board | None, str | None]:
    """Read `NAME[@PORT]`; return (None, None) for the host, else the board and its port."""
    board_name, _, port = name.partition("@")
    board = load_board(board_name)
    if board.compiler is None:
        if port:
            raise NestlingError(f"board {board_name!r} has no port.")
        return None, None
    return board, port or None


def open_port(board: Board, port: str | None) -> Port | None:
    """Return the port of a board, as `find_port` does; None where a QEMU of our own is started."""
    return None if port is None and board.qemu is not None else find_port(board, port)


def board_cost(
    board: Board,
    done: Sequence[BoardRun],
    *,
    flash_bytes: int,
    weights_bytes: int,
    static_ram_bytes: int,
    arena_bytes: int,
) -> Cost:
    """Return what runs on a board cost, in its unit, and the bytes of the firmware's model."""
    stack = max(d.stack_bytes for d in done)
    return Cost(
        unit=board.unit,
        per_inference=statistics.median(d.ticks for d in done),
        runs=len(done),
        flash_bytes=flash_bytes,
        weights_bytes=weights_bytes,
        ram_bytes=arena_bytes + static_ram_bytes + stack,
        arena_bytes=arena_bytes,
        stack_bytes=stack,
    )


def flasher(board: Board, port: Port | None) -> Callable[[FirmwareArtifact], None] | None:
    """Return what writes a board's flash, and counts that; None where nothing can."""
    if port is None or not board.flashing:
        return None
    usb_serial = port.serial_number

    def write(firmware: FirmwareArtifact) -> None:
        flash(board, firmware.elf, usb_serial=usb_serial, ledger=LEDGER)

    return write


def open_session(
    board: Board, firmware: FirmwareArtifact, port: Port | None, timeout_s: float = RUN_TIMEOUT_S
) -> BoardSession:
    """Return an open session with a board that runs `firmware`, flashed where that is needed."""
    url = port.url if port else None
    try:
        return BoardSession(board, firmware, url, run_timeout_s=timeout_s).__enter__()
    except BoardError:
        write = flasher(board, port)
        if write is None:
            raise
        write(firmware)
        return BoardSession(board, firmware, url, run_timeout_s=timeout_s).__enter__()


def board_target(board: Board | None) -> str:
    """Return the name of the target whose code a board runs; None is the host."""
    return "host" if board is None else board.target


def build_host(compiled: Compiled, folder: Path) -> Path:
    """Write the library below `folder`, build it with the system compiler; return the .so file."""
    compiled.write_library(folder / "lib")
    src, include = folder / "lib" / "src", folder / "lib" / "include"
    port = RUNTIME_C / "port" / "host"
    sources = [*sorted(src.glob("*.c")), port / "nst_bench.c"]
    if compiled.options.weights == "bin":
        # The user's linker places the file; here a second unit stands in for it.
        blob = folder / "weights_blob.c"
        symbol = f"{compiled.name}_weights_bin"
        blob.write_text(
            f'__asm__(".section .rodata\\n.balign 64\\n.globl {symbol}\\n{symbol}:\\n"\n'
            f'    ".incbin \\"{compiled.name}_weights.bin\\"\\n.byte 0\\n.previous\\n");\n'
            "typedef int blob_unit_is_not_empty;\n"
        )
        sources.append(blob)
    parallel = parallel_build(compiled.options.threads, compiled.options.parallel)
    sources.extend(parallel.sources)
    target_flags = get_target(compiled.options.target).cflags
    flags = [*target_flags, *compiled.options.cflags, *parallel.flags, f"-I{src}"]
    return build_shared(
        find_compiler(),
        sources,
        [include, port],
        folder / f"{compiled.name}.so",
        flags=flags,
        libs=("-lm", "-lpthread"),
    )


def build_board(compiled: Compiled, board: Board, folder: Path) -> FirmwareArtifact:
    """Write the library below `folder` and link it as firmware for `board`."""
    if compiled.options.weights == "bin":
        raise NestlingError(
            "weights in a file of their own (bin) cannot be linked into firmware here.",
            hint="use --weights c or incbin",
        )
    compiled.write_library(folder / "lib")
    src, include = folder / "lib" / "src", folder / "lib" / "include"
    sources = [src / name for name in compiled.files.files if name.endswith(".c")]
    return build_firmware(
        board, sources, [include, src], compiled.name, f"{compiled.name}.h", folder / board.name
    )


def _folder(owner: object, folder: Path | None) -> tuple[Path, Any]:
    """Return a folder to build in: the given one, or one that is removed with its owner."""
    if folder is not None:
        return folder, None
    made = Path(tempfile.mkdtemp(prefix="nestling-"))
    return made, weakref.finalize(owner, shutil.rmtree, made, True)


def bind(compiled: Compiled, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return positional and named arrays by input name.

    An input whose name is no Python identifier may be named by its C identifier.
    """
    names = list(compiled.inputs)
    if len(args) > len(names):
        raise NestlingError(f"{len(args)} inputs given; the model has {len(names)}.")
    by_ident = {c_name(n): n for n in names}
    bound = dict(zip(names, args, strict=False))
    for name, value in named.items():
        target = name if name in names else by_ident.get(name, name)
        if target in bound:
            raise NestlingError(f"input {target!r} is given twice.")
        bound[target] = value
    return bound


def pack_inputs(compiled: Compiled, inputs: Mapping[str, Any]) -> list[bytes]:
    """Return the inputs' raw bytes in the model's order; refuse another name, shape or type."""
    kinds = compiled.inputs
    listing = [f"{n}: {t}" for n, t in kinds.items()]
    for name in inputs:
        if name not in kinds:
            raise NestlingError(f"the model has no input {name!r}.", state=["inputs:", *listing])
    parts = []
    for name, kind in kinds.items():
        if name not in inputs:
            raise NestlingError(f"input {name!r} is missing.", state=["inputs:", *listing])
        array = np.asarray(inputs[name])
        if tuple(array.shape) != kind.shape or str(array.dtype) != kind.dtype:
            given = f"{array.dtype}{list(array.shape)}"
            raise NestlingError(f"input {name!r} is {given}, the model takes {kind}.")
        parts.append(np.ascontiguousarray(array).tobytes())
    return parts


def unpack_outputs(compiled: Compiled, raw: bytes) -> dict[str, np.ndarray]:
    """Return the outputs by name from their concatenated raw bytes."""
    result, at = {}, 0
    for name, kind in compiled.outputs.items():
        result[name] = _array(raw[at : at + kind.nbytes], kind)
        at += kind.nbytes
    return result


def _array(raw: bytes, kind: TensorType) -> np.ndarray:
    return np.frombuffer(raw, dtype=np.dtype(kind.dtype)).reshape(kind.shape).copy()


def step_costs(compiled: Compiled, costs: Mapping[int, float]) -> list[StepCost]:
    """Name the steps of a profile."""
    result = []
    for index, step in enumerate(compiled.program.steps):
        if isinstance(step, Call) and index in costs:
            result.append(StepCost(index, step.kernel, step.nodes, costs[index]))
    return result

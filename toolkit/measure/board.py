"""A model on a board: started in QEMU or reached through a port, fed, run, timed and read.

    with BoardSession(board, firmware) as session:
        run = session.run([x.tobytes()])

A QEMU of our own is a child process with its serial port on a pty; it dies with the thread that
made the session.  Everything has a deadline, and whatever goes wrong ends in one BoardError or
MeasureError.
"""

from __future__ import annotations

import ctypes
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from toolkit.errors import BoardError, MeasureError, NestlingError, ToolchainError
from toolkit.measure.rpc.client import BoardCrashed, BoardSilent, RpcClient
from toolkit.measure.rpc.messages import (
    FAULT_TEXT,
    FaultKind,
    FaultReply,
    FEATURE_BEAT,
    FEATURE_LOAD,
    InfoReply,
    REGION_ARENA,
    TensorReply,
)
from toolkit.measure.rpc.transport import PortStuck, SerialTransport
from toolkit.targets.board import Board
from toolkit.toolchain.compiler import build_shared, find_compiler
from toolkit.toolchain.firmware import FirmwareArtifact
from toolkit.toolchain.loaded import link_model, LoadedCode
from toolkit.toolchain.sizes import read_elf

RUN_TIMEOUT_S = 120.0
"""What one run of a model may take, by the host's clock."""

QUIET_S = 20.0
"""A board that sends no beat for so long while a kernel runs is lost: they come each second."""

_OK, _DONE = 0, 1
"""Of `nst_status`: what a run returns, and what its last step does."""

_START_TIMEOUT_S = 10.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)

# Armv7-M Architecture Reference Manual, B3.2.15: the Configurable Fault Status Register.
_CFSR_BITS: tuple[tuple[int, str], ...] = (
    (0, "instruction access violation"),
    (1, "data access violation"),
    (3, "access violation on return from exception"),
    (4, "access violation on entry to exception"),
    (8, "bus error on instruction fetch"),
    (9, "precise bus error"),
    (10, "imprecise bus error"),
    (11, "bus error on return from exception"),
    (12, "bus error on entry to exception"),
    (16, "undefined instruction"),
    (17, "invalid state"),
    (18, "invalid return to pc"),
    (19, "no coprocessor"),
    (24, "unaligned access"),
    (25, "division by zero"),
)


@dataclass(frozen=True, slots=True)
class BoardRun:
    """One run: the outputs' bytes, its cost in `unit`, the model's stack, perhaps cost by node."""

    outputs: list[bytes]
    ticks: int
    unit: str
    stack_bytes: int
    node_ticks: dict[int, int] | None = None
    """Cost by index of node, in the order they ran; a node in a loop has the sum of its runs."""


class BoardFault(MeasureError):
    """The model stopped on the board, which restarted; `kind` says why."""

    def __init__(self, what: str, kind: FaultKind) -> None:
        super().__init__(what)
        self.kind = kind


def qemu_arguments(board: Board, elf: Path, serial: str = "pty") -> list[str]:
    """Return the command that boots an ELF file; `serial`: what QEMU makes of the console.

    The console goes through a multiplexer with one user, because that keeps 32 bytes, which the
    emulated processor takes without waiting for QEMU's other thread: several times faster.  Its
    escape character is none that a byte can be.

    Raises BoardError for a board without QEMU, ToolchainError when it is not installed.
    """
    if board.qemu is None:
        raise BoardError(
            f"board '{board.name}' has no QEMU; name its port: --board {board.name}@PORT"
        )
    program = shutil.which(board.qemu.program)
    if program is None:
        raise ToolchainError(
            f"{board.qemu.program}, which runs board '{board.name}', is not on PATH",
            hint=f"apt-get install {board.qemu.package}",
        )
    if board.qemu.plugin is not None:
        raise BoardError(f"board '{board.name}' is a program of this system: it needs no boot")
    console = ("-chardev", f"{serial},id=console,mux=on", "-echr", "256")
    quiet = ("-display", "none", "-monitor", "none", "-serial", "chardev:console")
    return [program, *board.qemu.args, *quiet, *console, "-kernel", str(elf)]


def user_arguments(board: Board, plugin: Path, elf: Path, folder: Path) -> list[str]:
    """Return the command that runs a program in user mode, with a counter of instructions.

    `folder`: where the plug-in is built and the counter kept; of this run alone.
    """
    assert board.qemu is not None, "who has a plug-in has a QEMU"
    program = shutil.which(board.qemu.program)
    if program is None:
        raise ToolchainError(
            f"{board.qemu.program}, which runs board '{board.name}', is not on PATH",
            hint=f"apt-get install {board.qemu.package}",
        )
    library = build_shared(find_compiler(), [plugin], [], folder / "plugin.so")
    counter = folder / "counter"
    counter.write_bytes(bytes(4096))
    loaded = f"file={library},counter={counter}"
    return [program, *board.qemu.args, "-plugin", loaded, str(elf), str(counter)]


class Qemu:
    """A QEMU child process that boots an ELF file, or runs it in user mode.

    Its serial port is `port`: with `tcp_port` that is a TCP port of this computer, else a pseudo
    terminal; a program in user mode chooses its port itself.  `options`: more of QEMU's, at boot.
    """

    def __init__(
        self, board: Board, elf: Path, tcp_port: int | None = None, options: Sequence[str] = ()
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="nestling-qemu-")
        plugin = board.qemu.plugin if board.qemu else None
        if plugin is not None and tcp_port is None:
            arguments = user_arguments(board, plugin, elf, Path(self._folder.name))
        else:
            serial = "pty" if tcp_port is None else tcp_serial(tcp_port)
            arguments = [*qemu_arguments(board, elf, serial), *options]
        self.board = board
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `close`)
        self._process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is for us
            preexec_fn=_die_with_parent,  # noqa: PLW1509 (one system call, no lock)
        )
        self._held = -1
        try:
            if tcp_port is not None:
                self.port = f"socket://127.0.0.1:{tcp_port}"
                return
            self.port = self._find_port()
            # QEMU looks whether somebody has the pty open when the machine starts, and then once a
            # second: be there at once, and stay.
            if plugin is None:
                self._held = os.open(self.port, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        except BaseException:
            self.close()
            raise

    def _find_port(self) -> str:
        """Read the name of the pty, which QEMU prints first of all, or of a program's socket."""
        assert self._process.stdout is not None
        said = b""
        end = time.monotonic() + _START_TIMEOUT_S
        while (left := end - time.monotonic()) > 0:
            if not select.select([self._process.stdout], [], [], left)[0]:
                break
            part = os.read(self._process.stdout.fileno(), 4096)
            said += part
            if found := re.search(rb"(?:char device redirected to|serves at) (\S+)[ \n]", said):
                return found[1].decode()
            if not part:
                self._process.wait(_START_TIMEOUT_S)
                break
        raise BoardError(self.epitaph() or f"QEMU named no serial port in {_START_TIMEOUT_S:.0f} s")

    def log(self) -> str:
        """Return what QEMU complained about."""
        self._log.seek(0)
        return self._log.read().decode("utf-8", "replace")

    def alive(self) -> bool:
        """Tell whether the process runs."""
        return self._process.poll() is None

    def epitaph(self) -> str | None:
        """Return a sentence on how QEMU ended; None while it lives."""
        code = self._process.poll()
        if code is None:
            return None
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        first = next((line for line in self.log().splitlines() if line.strip()), "")
        return f"QEMU of board '{self.board.name}' ended {how}" + (f": {first}" if first else "")

    def close(self) -> None:
        """End the process."""
        if self.alive():
            self._process.kill()
        self._process.wait()
        if self._held >= 0:
            os.close(self._held)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()
        self._folder.cleanup()


def tcp_serial(port: int) -> str:
    """Return what QEMU calls a console that is a TCP port of this computer, for one at a time."""
    return f"socket,host=127.0.0.1,port={port},server=on,wait=off,nodelay=on"


def _die_with_parent() -> None:
    """In the child: be killed when the thread that started it ends (prctl(2))."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class BoardSession:
    """A model's firmware, running on a board; a context manager.

    With `port` (a pyserial URL) the firmware must already run there, or one that takes code into
    RAM (`nestling boards image`), which is given the model; without, the board is started in QEMU,
    with `qemu_options` besides its own.  `run_timeout_s` bounds one run.
    """

    def __init__(
        self,
        board: Board,
        firmware: FirmwareArtifact,
        port: str | None = None,
        *,
        run_timeout_s: float = RUN_TIMEOUT_S,
        qemu_options: Sequence[str] = (),
    ) -> None:
        self.board = board
        self.firmware = firmware
        self.run_timeout_s = run_timeout_s
        self._qemu_options = qemu_options
        self._port = port
        self._elf = firmware.elf
        self._loaded: LoadedCode | None = None
        self._lost_model = False  # by a restart
        self._qemu: Qemu | None = None
        self._client: RpcClient | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self) -> None:
        port = self._port
        if port is None:
            self._qemu = Qemu(self.board, self.firmware.elf, options=self._qemu_options)
            port = self._qemu.port
        try:
            self._client = RpcClient(
                SerialTransport(port, self.board.serial_baud), baud=self.board.serial_baud
            )
            self._client.synchronise()
            self.info: InfoReply = self._client.info()
            if self.info.features & FEATURE_LOAD:
                self._load()
            self._check_firmware(port)
            self.inputs = self._tensors(output=False, count=self.info.input_count)
            self.outputs = self._tensors(output=True, count=self.info.output_count)
        except BoardError as error:
            raise self._explain(error) from None
        self._empty = self._cost(self.info.empty_start, self.info.empty_stop)

    def _load(self) -> None:
        """Give the model to a server that takes code: its arena first, then code and weights."""
        assert self._client is not None
        region = self._client.region(REGION_ARENA)
        at = self.firmware.arena_bytes + -(region.address + self.firmware.arena_bytes) % 64
        if self._loaded is None:
            folder = self.firmware.elf.with_name("loaded")
            self._loaded = link_model(self.firmware, region.address + at, folder)
            self._elf = self._loaded.elf
        loaded = self._loaded
        assert loaded.model is not None
        if at + len(loaded.code) > region.nbytes:
            raise BoardError(
                f"the model's code, weights and arena take {at + len(loaded.code)} bytes; board "
                f"'{self.board.name}' has {region.nbytes} bytes of RAM to load them into"
            )
        self._client.load(loaded.code, at, model=at + loaded.model, run=at + loaded.entry)
        self.info = self._client.info()

    def _check_firmware(self, port: str) -> None:
        info, firmware = self.info, self.firmware
        if info.model_digest != firmware.model_digest:
            raise BoardError(
                f"the board on {port} runs another model (digest {info.model_digest:08x}, "
                f"not {firmware.model_digest:08x}): flash {firmware.elf}"
            )
        if info.clock_hz != self.board.clock_hz:
            raise BoardError(
                f"the board on {port} counts {info.clock_hz} ticks a second, "
                f"board '{self.board.name}' {self.board.clock_hz}: is it that board?"
            )

    def _tensors(self, *, output: bool, count: int) -> tuple[TensorReply, ...]:
        assert self._client is not None
        return tuple(self._client.tensor(output=output, index=i) for i in range(count))

    @property
    def client(self) -> RpcClient:
        """The open connection."""
        if self._client is None:
            raise BoardError(f"the session with board '{self.board.name}' is not open")
        return self._client

    def run(
        self, inputs: Sequence[bytes], *, profile: bool = False, limit_ms: int | None = None
    ) -> BoardRun:
        """Write the inputs (row-major, little-endian), run the model once, read the outputs.

        With `profile` the cost of each node is taken; its dispatch by the executor (about a dozen
        instructions) counts as the node's, and there is no figure for the stack.  `limit_ms`: of
        the board's own time, after which it stops the run; `run_timeout_s` bounds it too.
        """
        if profile:
            self._need_nodes()
        client = self.client
        try:
            self._write_inputs(inputs)
            result = client.run(
                timeout_s=self.run_timeout_s,
                limit_ms=self._limit_ms() if limit_ms is None else limit_ms,
                beat_ms=beat_ms(self.board),
                quiet_s=QUIET_S if self.info.features & FEATURE_BEAT else None,
                profile=profile,
            )
            self._check_status(result.reply.result, _DONE if profile else _OK)
            outputs = [client.read(t.nbytes, t.offset) for t in self.outputs]
        except BoardError as error:
            raise self._explain(error) from None
        nodes: dict[int, int] | None = None
        if profile:
            nodes = {}
            for event in result.nodes:
                cost = self.cost(event.start, event.stop)
                nodes[event.node] = nodes.get(event.node, 0) + cost
            ticks, stack_bytes = sum(nodes.values()), 0
        else:
            ticks = self.cost(result.reply.start, result.reply.stop)
            stack_bytes = result.reply.stack_bytes
        return BoardRun(
            outputs=outputs,
            ticks=ticks,
            unit=self.board.unit,
            stack_bytes=stack_bytes,
            node_ticks=nodes,
        )

    def walk(self, inputs: Sequence[bytes], stops: Sequence[int]) -> Iterator[int]:
        """Write the inputs and run the model once, in parts; the arena may be read in between.

        Each number of `stops`, which ascend, comes when the node of that index has just run;
        those that the flow of the model passes over do not come.
        """
        self._need_nodes()
        try:
            self._write_inputs(inputs)
            node = 0
            for stop in stops:
                if stop < node:
                    continue
                result = self.client.run(
                    timeout_s=self.run_timeout_s, limit_ms=self._limit_ms(),
                    profile=True, first=node, stop=stop + 1,
                )  # fmt: skip
                node = result.reply.node
                self._check_status(result.reply.result, _OK, _DONE)
                if result.nodes and result.nodes[-1].node == stop:
                    yield stop
                if result.reply.result == _DONE:
                    return
        except BoardError as error:
            raise self._explain(error) from None

    def read(self, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read ranges of the arena: offset and size in bytes of each."""
        try:
            return [self.client.read(nbytes, offset) for offset, nbytes in places]
        except BoardError as error:
            raise self._explain(error) from None

    def crc(self, offset: int, nbytes: int) -> int:
        """Return the CRC-32 of a range of the arena."""
        try:
            return self.client.crc(nbytes, offset)
        except BoardError as error:
            raise self._explain(error) from None

    @property
    def line_bytes_per_s(self) -> float | None:
        """What the line carries in a second; None for a QEMU of our own, which has none."""
        return None if self._qemu is not None else self.board.serial_baud / 10

    def _write_inputs(self, inputs: Sequence[bytes]) -> None:
        """Write the inputs, after the model where a restart lost it."""
        sizes = [t.nbytes for t in self.inputs]
        if [len(data) for data in inputs] != sizes:
            raise MeasureError(
                f"the model on board '{self.board.name}' takes inputs of {sizes} bytes, "
                f"not {[len(data) for data in inputs]}"
            )
        if self._loaded is not None and self._lost_model:
            self._load()
            self._lost_model = False
        for data, tensor in zip(inputs, self.inputs, strict=True):
            self.client.write(data, tensor.offset, buffer_bytes=self.info.buffer_bytes)

    def _need_nodes(self) -> None:
        if not self.info.node_count:
            raise MeasureError(
                f"the model on board '{self.board.name}' has no table of nodes: it is not the one "
                "of the graph executor"
            )

    def _check_status(self, status: int, *right: int) -> None:
        if status not in right:
            raise MeasureError(
                f"the model on board '{self.board.name}' returned nst_status {status}"
            )

    def cost(self, start: int, stop: int) -> int:
        """Return what passed between two readings of the board's clock, without the reading."""
        return self._cost(start, stop) - self._empty

    def _cost(self, start: int, stop: int) -> int:
        return self.board.from_ticks(stop) - self.board.from_ticks(start)

    def _limit_ms(self) -> int:
        """The time limit the board keeps itself, by its own clock: a little before ours."""
        return min(int(self.run_timeout_s * beat_ms(self.board)), 0xFFFFFFFF)

    def _explain(self, error: BoardError) -> NestlingError:
        """Turn what the client noticed into what happened."""
        if self._qemu is not None:
            # A dead QEMU is noticed by its closed pty; give the process a moment to be reaped.
            end = time.monotonic() + (0.0 if isinstance(error, BoardCrashed) else 0.5)
            while self._qemu.alive() and time.monotonic() < end:
                time.sleep(0.01)
            if epitaph := self._qemu.epitaph():
                return MeasureError(epitaph)
        self._lost_model = self._loaded is not None and isinstance(error, BoardCrashed)
        if isinstance(error, BoardCrashed) and error.fault is not None:
            return board_fault(self.board, error.fault, self._elf)
        if isinstance(error, BoardSilent | PortStuck):
            return BoardError(f"board '{self.board.name}': {error.what}")
        return error

    def close(self) -> None:
        """Let go of the port and end our QEMU."""
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._qemu is not None:
            self._qemu.close()
            self._qemu = None


def beat_ms(board: Board) -> int:
    """Return a second of the host in milliseconds of the board's own time, at most about."""
    return int(1000 * (board.qemu.time_scale if board.qemu else 1.0))


def board_fault(board: Board, fault: FaultReply, elf: Path) -> BoardFault:
    """Say in one sentence what stopped a program: kind, function of `elf`, cause and address."""
    try:
        kind = FaultKind(fault.kind)
    except ValueError:  # a reason this program does not know
        kind = FaultKind.NONE
    where = f"the model on board '{board.name}'"
    symbol = read_elf(elf).function_at(fault.pc) if fault.pc else None
    at = f" in {symbol.name} (pc 0x{fault.pc:08x})" if symbol else f" at pc 0x{fault.pc:08x}"
    match kind:
        case FaultKind.STACK:
            what = f"overflowed its stack of {board.stack_bytes} bytes"
        case FaultKind.LIMIT:
            what = f"did not end within its time limit: it was stopped{at}"
        case FaultKind.EXCEPTION:
            causes = [text for bit, text in _CFSR_BITS if fault.cause >> bit & 1]
            cause = ", ".join(causes) or "HardFault"
            address = f" at address 0x{fault.address:08x}" if fault.address else ""
            what = f"crashed{at}: {cause}{address}"
        case _:
            what = f"stopped: {FAULT_TEXT[kind]}{at}"
    return BoardFault(f"{where} {what}", kind)

"""`BoardMeasurer`: candidates built into firmware, or loaded into RAM, and measured on a board.

An image holds as many candidates as fit; behind a port whose server takes code (`Loader`) nothing
is flashed.  A candidate that faults, or runs longer than its limit in the board's own time,
restarts the board and costs nobody else.  Under QEMU with `-icount` costs
are exact counts of instructions, the same in every run, whatever else the host does.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import BoardError, MeasureError, ToolchainError
from toolkit.ir.loop import Loop, PrimFunc
from toolkit.measure.board import BoardFault, BoardSession
from toolkit.measure.candidates.builder import code_bytes
from toolkit.measure.candidates.compare import Comparison, comparisons
from toolkit.measure.candidates.data import flash_bytes, ram_bytes
from toolkit.measure.candidates.host import HostMeasurer
from toolkit.measure.candidates.image import (
    build_image,
    command,
    explain,
    read_reply,
    Trial,
)
from toolkit.measure.candidates.loaded import Answer, Loader
from toolkit.measure.candidates.source import Alter, print_candidate, Unfit
from toolkit.measure.closing import Closing
from toolkit.measure.rpc.client import BoardSilent, open_client
from toolkit.measure.rpc.messages import FaultKind, FEATURE_LOAD
from toolkit.measure.rpc.transport import held_open
from toolkit.search.result import MeasureResult, Status
from toolkit.space.task import Candidate
from toolkit.targets.board import Board
from toolkit.targets.target import get_target, Target
from toolkit.toolchain.firmware import FirmwareArtifact
from toolkit.toolchain.loaded import LoadedCode

IMAGE_TRIALS = 24
"""Most candidates in one image."""

_SLOWEST = 150
"""Cycles or instructions an iteration of the plain loops may take at most, before any candidate of
the task has been measured: software division and exp are that slow, multiply-adds ten times
faster."""
_LOSER = 20
"""A candidate that takes so many times the best is stopped."""
_RESERVE = 200_000
"""Ticks that every limit leaves for what surrounds the kernel, and ..."""
_AROUND = 60
"""... ticks a byte of its operands and a byte of its outputs: filled, guarded and compared."""
_HOST_TICKS_PER_S = 5_000_000
"""Far slower than any board or QEMU: a run beyond this is a lost board."""


@dataclass(frozen=True, slots=True)
class _Image:
    """Firmware and its candidates, by their position among those asked for."""

    trials: dict[int, Trial]
    firmware: FirmwareArtifact | LoadedCode
    folder: Path


class BoardMeasurer(Closing):
    """Builds, checks and times candidates on `board`; implements `search.result.Measurer`.

    `port`: a pyserial URL; None starts the board in QEMU.  `flash`: what brings an image onto a
    board behind a port that takes no code into RAM.  `cache_dir`: keeps references, and what
    reproduces failures.  `runs`: samples of a candidate where counts are not exact.
    `lost_after_s`: a board that says nothing for so long, beyond what a run may take, is lost.
    `alter`: changes the C text of candidates.
    """

    def __init__(
        self,
        board: Board,
        port: str | None = None,
        *,
        cache_dir: Path,
        target: Target | None = None,
        jobs: int = 2,
        seed: int = 0,
        runs: int = 5,
        flash: Callable[[FirmwareArtifact], None] | None = None,
        lost_after_s: float = 30.0,
        alter: Alter | None = None,
    ) -> None:
        if board.compiler is None or shutil.which(board.compiler.name) is None:
            name = board.compiler.name if board.compiler else "a compiler"
            raise ToolchainError(
                f"{name}, which builds firmware for board '{board.name}', is not on PATH",
                hint=f"apt-get install {board.compiler.package}" if board.compiler else None,
            )
        self.board, self.port, self.flash, self.alter = board, port, flash, alter
        self.lost_after_s = lost_after_s
        self.target = target or get_target(board.target)
        self.unit = board.unit
        self.exact = board.icount_shift is not None
        self.runs = 1 if self.exact else runs
        self.host = HostMeasurer(get_target("host"), cache_dir=cache_dir, jobs=jobs, seed=seed)
        self.jobs = max(jobs, 1)
        # One more than compilers: it prints what they compile next.
        self.pool = ThreadPoolExecutor(self.jobs + 1, thread_name_prefix="build")
        self.printing, self.first = threading.Lock(), threading.Lock()
        self.shared_known = False
        self.work = tempfile.TemporaryDirectory(dir=self.host.builder.folder / "work")
        self.session: BoardSession | None = None
        self.loader: Loader | None = None
        self.held = ExitStack()
        if port is not None:
            try:
                self.held.enter_context(held_open(port))
                self.loader = open_loader(board, port)
                if self.loader is None and flash is None:
                    raise BoardError(
                        f"board '{board.name}' on {port}: its firmware takes no code into RAM, "
                        "and nothing here writes another to it",
                        hint=f"nestling boards image {board.name} makes one that does",
                    )
            except BoardSilent:
                if flash is None:
                    self.close()
                    raise
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """End QEMU and the child process; remove the firmware."""
        self._end_session()
        if self.loader is not None:
            self.loader.close()
            self.loader = None
        self.held.close()
        self.pool.shutdown(cancel_futures=True)
        self.host.close()
        self.work.cleanup()

    def measure(self, candidates: Sequence[Candidate]) -> list[MeasureResult]:
        """Return one result a candidate, in order."""
        results: dict[int, MeasureResult] = {}
        try:
            for image in self._images(candidates, results):
                self._run_image(image, results)
                shutil.rmtree(image.folder, ignore_errors=True)
        finally:
            if self.loader is not None:
                self.loader.pause()  # whole models run on the same port
        return [results[i] for i in range(len(candidates))]

    def compare(
        self, candidates: Sequence[Candidate], *, rounds: int = 5, confidence: float = 0.95
    ) -> list[Comparison]:
        """Compare each candidate with the first; exact counts need no second round."""
        turns = [self.measure(candidates) for _ in range(1 if self.exact else rounds)]
        failed: dict[int, MeasureResult] = {}
        for results in turns:
            failed |= {i: r for i, r in enumerate(results) if r.status != Status.OK}
        rows = [[r.cost or 0.0 for i, r in enumerate(t) if i not in failed] for t in turns]
        return comparisons(candidates, failed, rows, confidence)

    def _result(self, status: Status, detail: str) -> MeasureResult:
        return MeasureResult(status, self.unit, detail=detail, device=self.device)

    @property
    def device(self) -> str:
        """Name the board, and say so when kernels run from another memory than a product's."""
        return f"{self.board.name}, kernels in RAM" if self.loader else self.board.name

    # Building

    def _print(self, candidate: Candidate) -> Trial | MeasureResult:
        try:
            printed = print_candidate(candidate, self.target.isa, self.alter)
        except Unfit as refusal:
            return self._result(refusal.status, refusal.detail)
        return Trial(candidate, printed, self.host.state(candidate.task))

    def _images(
        self, candidates: Sequence[Candidate], results: dict[int, MeasureResult]
    ) -> Iterator[_Image]:
        """Build images, each while the one before is measured.

        What cannot be built has a result instead.
        """
        numbered = list(enumerate(candidates))
        size = min(max(math.ceil(len(numbered) / (2 * self.jobs)), 4), IMAGE_TRIALS)
        futures: list[Future[list[_Image]]] = [
            self.pool.submit(self._make, dict(part), results)
            for part in [numbered[i : i + size] for i in range(0, len(numbered), size)]
        ]
        try:
            for future in futures:
                yield from future.result()
        finally:
            for future in futures:
                future.cancel()

    def _make(
        self, candidates: dict[int, Candidate], results: dict[int, MeasureResult]
    ) -> list[_Image]:
        """Print candidates and build them together."""
        trials: dict[int, Trial] = {}
        with self.printing:  # one image after the other, so that the first is soon complete
            for number, candidate in candidates.items():
                made = self._print(candidate)
                if isinstance(made, MeasureResult):
                    results[number] = made
                else:
                    trials[number] = made
        return self._build(trials, results) if trials else []

    def _build(self, trials: dict[int, Trial], results: dict[int, MeasureResult]) -> list[_Image]:
        """Build one image, or halves of it where it does not compile or fit."""
        folder = Path(tempfile.mkdtemp(dir=self.work.name))
        try:
            firmware = self._firmware(list(trials.values()), folder)
        except OSError as error:
            raise MeasureError(f"cannot write in {folder}: {error.strerror}.") from None
        except (ToolchainError, BoardError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            if len(trials) == 1:
                ((number, trial),) = trials.items()
                results[number] = self._refused(trial, error)
                return []
            numbers = list(trials)
            halves = numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
            return [
                image
                for half in halves
                for image in self._build({n: trials[n] for n in half}, results)
            ]
        return [_Image(trials, firmware, folder)]

    def _firmware(self, trials: Sequence[Trial], folder: Path) -> FirmwareArtifact | LoadedCode:
        """Build an image; the first one alone, which leaves the objects that all have in common."""
        if self.loader is not None:
            return self.loader.build(trials, folder)
        shared = Path(self.work.name) / "shared"
        if not self.shared_known:
            with self.first:
                if not self.shared_known:
                    firmware = build_image(self.board, trials, folder, shared)
                    self.shared_known = True
                    return firmware
        return build_image(self.board, trials, folder, shared)

    def _refused(self, trial: Trial, error: ToolchainError | BoardError) -> MeasureResult:
        if isinstance(error, BoardError):
            return self._result(Status.TOO_BIG, error.what)
        assert self.board.compiler is not None
        if shutil.which(self.board.compiler.name) is None:
            raise error
        why = "; ".join([error.what, *error.state][:2])
        shown = self.host.reproduce(trial.state, trial.candidate, trial.printed)
        return self._result(Status.BUILD_FAILED, f"does not compile: {why}; reproduce: {shown}")

    # Running

    def _run_image(self, image: _Image, results: dict[int, MeasureResult]) -> None:
        sizes = code_bytes(image.firmware.elf)
        try:
            if isinstance(image.firmware, LoadedCode):
                assert self.loader is not None
                self.loader.start(image.firmware)
            elif self.flash is not None:
                self.flash(image.firmware)
        except BoardError as error:
            for number in image.trials:
                results[number] = self._result(Status.DEVICE_LOST, error.what)
            return
        for index, number in enumerate(image.trials):
            results[number] = self._trial(image, index, number, sizes)
        self._end_session()

    def _answer(self, image: _Image, index: int, limit: int, limit_ms: int) -> tuple[Answer, float]:
        """Run a trial once; return what came of it and, when it is right, its cost."""
        warm, firmware = 0 if self.exact else 1, image.firmware
        if isinstance(firmware, LoadedCode):
            assert self.loader is not None
            answer = self.loader.run(
                list(image.trials.values()), index, warm=warm, limit_ms=limit_ms,
                timeout_s=self.lost_after_s + limit / _HOST_TICKS_PER_S,
            )  # fmt: skip
            return answer, self.loader.cost(answer.reply.start, answer.reply.stop)
        session = self._open(firmware, limit)
        run = session.run([command(index, warm)], limit_ms=limit_ms)
        reply = read_reply(run.outputs[0])
        return Answer(reply), session.cost(reply.start, reply.stop)

    def _trial(
        self, image: _Image, index: int, number: int, sizes: dict[str, int]
    ) -> MeasureResult:
        trial = image.trials[number]
        limit = self.limit(trial)
        ticks_per_ms = self.board.clock_hz / 1000.0
        if self.board.icount_shift is not None:
            ticks_per_ms = 1e6 / 2**self.board.icount_shift
        samples: list[float] = []
        try:
            for _ in range(self.runs):
                answer, cost = self._answer(image, index, limit, math.ceil(limit / ticks_per_ms))
                if not answer.ok:
                    shown = self.host.reproduce(trial.state, trial.candidate, trial.printed)
                    why = answer.wrong or explain(answer.reply, trial)
                    return self._result(Status.WRONG_RESULT, f"{why}; reproduce: {shown}")
                samples.append(float(cost))
        except Unfit as refusal:
            return self._result(refusal.status, refusal.detail)
        except BoardFault as fault:
            self._end_session()
            shown = self.host.reproduce(trial.state, trial.candidate, trial.printed)
            if fault.kind == FaultKind.LIMIT:
                detail = f"did not end within {limit} {self.unit}; reproduce: {shown}"
                return self._result(Status.TIMED_OUT, detail)
            return self._result(Status.CRASHED, f"{fault.what}; reproduce: {shown}")
        except (BoardError, MeasureError) as error:
            self._end_session()
            return self._result(Status.DEVICE_LOST, error.what)
        best = min(samples)
        state = trial.state
        state.best = best if state.best is None else min(state.best, best)
        return MeasureResult(
            Status.OK, self.unit, tuple(samples),
            flash_bytes(trial.printed, sizes.get(trial.printed.entry, 0)),
            ram_bytes(trial.candidate, trial.printed), device=self.device,
        )  # fmt: skip

    def limit(self, trial: Trial) -> int:
        """Return the most a run may take, in the board's unit, all that surrounds it included."""
        state = trial.state
        if state.best is None:
            kernel = _SLOWEST * iterations(state.task.func)
        else:
            kernel = math.ceil(_LOSER * state.best)
        times = 1 if self.exact else 2
        return (
            times * kernel + _RESERVE + _AROUND * (trial.memory_bytes + trial.printed.scratch_bytes)
        )

    def _open(self, firmware: FirmwareArtifact, limit: int) -> BoardSession:
        """Return the session with an image, started when there is none."""
        if self.session is None:
            session = BoardSession(self.board, firmware, self.port)
            session.__enter__()
            self.session = session
        self.session.run_timeout_s = self.lost_after_s + limit / _HOST_TICKS_PER_S
        return self.session

    def _end_session(self) -> None:
        if self.session is not None:
            self.session.close()
        self.session = None


def open_loader(board: Board, port: str) -> Loader | None:
    """Open a board behind a port; None when its firmware takes no code into RAM."""
    client = open_client(port, board.serial_baud)
    try:
        if client.info().features & FEATURE_LOAD:
            return Loader(board, client)
    except BaseException:
        client.close()
        raise
    client.close()
    return None


def iterations(func: PrimFunc) -> int:
    """Count how often the blocks of a function run, all loops multiplied out."""

    def count(stmt: object) -> int:
        if isinstance(stmt, Loop):
            return stmt.extent * count(stmt.body)
        return sum(count(part) for part in getattr(stmt, "body", ())) or 1

    return count(func.body)


__all__ = ["BoardMeasurer"]

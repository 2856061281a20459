"""The boards of one worker of a farm: who uses which, and which one failed too often."""

from __future__ import annotations

import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.errors import BoardError, MeasureError, NestlingError, ToolchainError
from toolkit.farm.jobs import job_candidates, Reply, result_to_json
from toolkit.farm.plan import Place
from toolkit.measure.candidates.board import BoardMeasurer
from toolkit.measure.closing import Closing
from toolkit.measure.usb_ports import find_port, Port
from toolkit.runners import flasher, open_session
from toolkit.search.result import MeasureResult, Status
from toolkit.targets.board import load_board
from toolkit.targets.target import get_target
from toolkit.toolchain.firmware import build_firmware, FirmwareArtifact

STRIKES = 3
"""A board that failed so often is not used any more."""

FORGIVEN = 20
"""Jobs in a row that go well and make up for a failure."""


@dataclass(slots=True, eq=False)
class Slot:
    """A place and how its board does.  `good`: jobs that went well since the last failure."""

    place: Place
    name: str
    failures: int = 0
    good: int = 0
    busy: bool = False
    why: str = ""

    @property
    def quarantined(self) -> bool:
        """Tell whether it failed too often."""
        return self.failures >= STRIKES


class Boards(Closing):
    """All boards of a worker.  Jobs come from several threads; each has its board to itself.

    `on_quarantine`: told the name of the board's kind when one is not used any more.
    """

    def __init__(
        self,
        places: Sequence[Place],
        *,
        lost_after_s: float = 30.0,
        on_quarantine: Callable[[str], None] = lambda name: None,
    ) -> None:
        host = socket.gethostname()
        self.slots = [Slot(p, f"{p.board}#{i}@{host}") for i, p in enumerate(places)]
        self.lost_after_s, self.on_quarantine = lost_after_s, on_quarantine
        self.folder = Path(tempfile.mkdtemp(prefix="nestling-farm-"))
        self._measurers: dict[tuple[str, str, int], BoardMeasurer] = {}
        self._changed = threading.Condition()

    def close(self) -> None:
        """End what runs and remove what was built."""
        for measurer in self._measurers.values():
            measurer.close()
        self._measurers.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def report(self) -> list[dict[str, Any]]:
        """Return the state of every board, for people."""
        return [
            {
                "name": s.name, "board": s.place.board, "port": s.place.port or "",
                "failures": s.failures, "quarantined": s.quarantined, "busy": s.busy, "why": s.why,
            }
            for s in self.slots
        ]  # fmt: skip

    # ---- jobs ----

    def measure(self, board: str, job: Mapping[str, Any]) -> Reply:
        """Do a `measure_job`: rows of results, or of comparisons."""

        def work(slot: Slot) -> Any:
            measurer = self._measurer(slot, job["target"], job["seed"])
            candidates = job_candidates(job)
            measurer.host.state(candidates[0].task).best = job["best"]
            if job["compare"]:
                compared = measurer.compare(candidates)
                _refuse_lost([MeasureResult(c.status, detail=c.detail) for c in compared])
                return [
                    {"status": str(c.status), "ratio": c.ratio, "low": c.low, "high": c.high,
                     "cost": c.cost, "detail": c.detail}
                    for c in compared
                ]  # fmt: skip
            results = measurer.measure(candidates)
            _refuse_lost(results)
            return [result_to_json(r) for r in results]

        return self._with_board(board, work)

    def run_model(self, board: str, job: Mapping[str, Any]) -> Reply:
        """Do a `model_job`: outputs and costs of each run, and the firmware's sizes."""

        def work(slot: Slot) -> Any:
            with ExitStack() as stack:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=self.folder)))
                firmware = _firmware(slot, job, folder)
                session = open_session(load_board(board), firmware, self._port(slot))
                stack.callback(session.close)
                done = [
                    session.run(job["inputs"], profile=job["profile"]) for _ in range(job["runs"])
                ]
            return {
                "runs": done,
                "sizes": {
                    "flash_bytes": firmware.flash_bytes, "weights_bytes": firmware.weights_bytes,
                    "static_ram_bytes": firmware.static_ram_bytes,
                    "arena_bytes": firmware.arena_bytes,
                },
            }  # fmt: skip

        return self._with_board(board, work)

    def _with_board(self, board: str, work: Callable[[Slot], Any]) -> Reply:
        """Do something with a board of a kind; count it where the board fails."""
        slot = self._take(board)
        if slot is None:
            return Reply(None, f"all boards '{board}' of this worker are quarantined")
        lost = ""
        values: Any = None
        try:
            values = work(slot)
        except (BoardError, MeasureError) as error:
            lost = f"{slot.name}: {error.what}"
        finally:
            self._give_back(slot, lost)
        return Reply(values, lost, slot.name, slot.failures, slot.quarantined)

    def _take(self, board: str) -> Slot | None:
        """Wait for a board of this kind that is free; the one that failed least comes first."""
        with self._changed:
            while True:
                fit = [s for s in self.slots if s.place.board == board and not s.quarantined]
                if not fit:
                    return None
                free = [s for s in fit if not s.busy]
                if free:
                    slot = min(free, key=lambda s: s.failures)
                    slot.busy = True
                    return slot
                self._changed.wait()

    def _give_back(self, slot: Slot, lost: str) -> None:
        with self._changed:
            slot.busy = False
            if lost:
                slot.failures, slot.good, slot.why = slot.failures + 1, 0, lost
            else:
                slot.good += 1
                if slot.good % FORGIVEN == 0 and slot.failures:
                    slot.failures -= 1
            self._changed.notify_all()
        if lost and slot.failures == STRIKES:
            self.on_quarantine(slot.place.board)

    # ---- parts ----

    def _port(self, slot: Slot) -> Port | None:
        board = load_board(slot.place.board)
        if slot.place.port is None and board.qemu is not None:
            return None
        return find_port(board, slot.place.port)

    def _measurer(self, slot: Slot, target: str, seed: int) -> BoardMeasurer:
        """Return what measures on a board; kept, with the references it has made."""
        key = (slot.name, target, seed)
        if key not in self._measurers:
            port = self._port(slot)
            board = load_board(slot.place.board)
            self._measurers[key] = BoardMeasurer(
                board, port.url if port else None, target=get_target(target),
                cache_dir=self.folder, jobs=1, seed=seed, lost_after_s=self.lost_after_s,
                flash=flasher(board, port),
            )  # fmt: skip
        return self._measurers[key]


def _refuse_lost(results: Sequence[MeasureResult]) -> None:
    """Raise BoardError when the board was lost, so that another one does the job."""
    for result in results:
        if result.status is Status.DEVICE_LOST:
            raise BoardError(result.detail)


def _firmware(slot: Slot, job: Mapping[str, Any], folder: Path) -> FirmwareArtifact:
    for path, content in job["sources"].items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    src = folder / "src"
    name = job["name"]
    try:
        return build_firmware(
            load_board(slot.place.board), sorted(src.glob("*.c")), [folder / "include", src],
            name, f"{name}.h", folder / "build",
        )  # fmt: skip
    except ToolchainError as error:
        raise NestlingError(error.what, state=error.state, hint=error.hint) from None

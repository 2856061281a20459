"""`FarmMeasurer`: candidates measured on boards that Dask's workers offer; whole models run there.

Jobs are told to Dask with the board's kind as the resource they need.  A worker that dies gives its
jobs back, which Dask tells another one; a board that fails gives its job back to us; a scheduler
that restarts is told again what is not finished.  A trial is in one reply: none is lost or twice.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from distributed import Client, Future, get_worker, wait, Worker

from toolkit.errors import BoardError, NestlingError
from toolkit.farm.jobs import Json, measure_job, model_job, Reply, result_from_json
from toolkit.farm.plan import RESOURCE
from toolkit.measure.board import BoardRun
from toolkit.measure.candidates.compare import Comparison
from toolkit.measure.closing import Closing
from toolkit.packaging.bundle import library_files
from toolkit.pipeline import Compiled
from toolkit.runners import board_cost, Cost, pack_inputs, step_costs, StepCost, unpack_outputs
from toolkit.search.result import MeasureResult, Status
from toolkit.space.task import Candidate
from toolkit.targets.board import Board
from toolkit.targets.target import Target

ATTEMPTS = 3
"""How often a job is tried on boards before its board's failure is its result."""

JOB_TRIALS = 6
"""Candidates of a job: one image of firmware."""

POLL_S = 1.0
"""How often it is looked whether there still is a board to wait for."""


@dataclass(slots=True)
class _Open:
    """A job that is not done: of which candidates, how often a board failed at it."""

    numbers: tuple[int, ...]
    job: Json
    function: Callable[[str, Json], Reply]
    lost: int = 0


def _measure(board: str, job: Json) -> Reply:
    """Run on a worker."""
    reply: Reply = get_worker().nestling_boards.measure(board, job)
    return reply


def _run_model(board: str, job: Json) -> Reply:
    """Run on a worker."""
    reply: Reply = get_worker().nestling_boards.run_model(board, job)
    return reply


def _report(dask_worker: Worker) -> list[Json]:
    """Run on a worker, which Dask gives: how its boards do."""
    rows: list[Json] = dask_worker.nestling_boards.report()
    return rows


def boards_of(client: Client) -> list[Json]:
    """Return how every board of a farm does, by worker."""
    rows = client.run(_report, on_error="ignore")
    return [
        {**row, "worker": worker} for worker, found in sorted(rows.items()) for row in found or []
    ]


class Farm(Closing):
    """A connection to a farm's scheduler, and the boards of one kind behind it.

    `connect`: opens a client, again where the scheduler restarted.  `on_note`: told in one line
    what a person should know, such as a board that is not used any more.
    """

    def __init__(
        self,
        connect: Callable[[], Client],
        board: Board,
        *,
        patience_s: float = 60.0,
        on_note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.connect, self.board, self.patience_s = connect, board, patience_s
        self.on_note = on_note
        self.client = connect()
        self.resource = RESOURCE + board.name
        self.quarantined: set[str] = set()
        self.used: dict[str, int] = {}
        """How many jobs each board did."""

    def close(self) -> None:
        """Disconnect."""
        with contextlib.suppress(Exception):  # the scheduler may be gone
            self.client.close(timeout=2)

    def places(self) -> int:
        """Return how many boards of the kind the workers offer now; 0 where nobody answers."""
        try:
            workers = self.client.scheduler_info(n_workers=-1)["workers"].values()
        except (OSError, TimeoutError, KeyError):
            return 0
        return int(sum(w.get("resources", {}).get(self.resource, 0) for w in workers))

    def do(self, jobs: Sequence[_Open]) -> dict[int, tuple[_Open, Reply]]:
        """Do all jobs; return the reply of each, by its position.

        A job whose board failed is done again, by another board if there is one, `ATTEMPTS` times.
        Raises BoardError when no board has been there for `patience_s`.
        """
        done: dict[int, tuple[_Open, Reply]] = {}
        waiting = dict(enumerate(jobs))
        running: dict[Future, int] = {}
        seen = time.monotonic()
        while waiting or running:
            try:
                for number in list(waiting):
                    running[self._submit(waiting[number])] = number
                    del waiting[number]
                finished = self._finished(list(running))
            except _Gone:
                waiting |= {n: jobs[n] for n in running.values()}
                running.clear()
                self._reconnect()
                continue
            for future in finished:
                number = running.pop(future)
                reply = self._reply(future)
                if reply is None:  # the scheduler forgot it, or its workers died one after another
                    waiting[number] = jobs[number]
                    continue
                self._account(reply)
                jobs[number].lost += bool(reply.lost)
                if reply.lost and jobs[number].lost < ATTEMPTS:
                    waiting[number] = jobs[number]
                else:
                    done[number] = (jobs[number], reply)
            if finished or self.places():
                seen = time.monotonic()
            elif time.monotonic() - seen > self.patience_s:
                for future in running:
                    future.cancel()
                raise BoardError(
                    f"the farm has had no board '{self.board.name}' for {self.patience_s:.0f} s",
                    state=sorted(self.quarantined),
                    hint="nestling farm status SCHEDULER",
                )
        return done

    def _submit(self, open_job: _Open) -> Future:
        try:
            return self.client.submit(
                open_job.function, self.board.name, open_job.job,
                resources={self.resource: 1}, pure=False,
            )  # fmt: skip
        except (OSError, TimeoutError, RuntimeError) as error:
            raise _Gone from error

    def _finished(self, futures: Sequence[Future]) -> list[Future]:
        """Wait a moment; return the futures that are done, one way or another."""
        try:
            with contextlib.suppress(TimeoutError), self.client.as_current():
                wait(futures, timeout=POLL_S, return_when="FIRST_COMPLETED")
        except CancelledError as error:  # all of them, for want of a scheduler
            raise _Gone from error
        if self.client.status != "running":
            raise _Gone
        return [f for f in futures if f.status != "pending"]

    def _reply(self, future: Future) -> Reply | None:
        if future.status == "finished":
            reply: Reply = future.result()
            return reply
        if future.status == "error":
            error = future.exception()
            if isinstance(error, NestlingError):
                raise error
            if type(error).__name__ not in ("KilledWorker", "FutureCancelledError"):
                raise NestlingError(
                    f"a worker of the farm failed: {type(error).__name__}: {error}",
                    hint="is the same version of nestling installed on all of them?",
                )
        return None

    def _account(self, reply: Reply) -> None:
        if reply.lost:
            self.on_note(f"farm: {reply.lost}")
        elif reply.place:
            self.used[reply.place] = self.used.get(reply.place, 0) + 1
        if reply.quarantined and reply.place not in self.quarantined:
            self.quarantined.add(reply.place)
            self.on_note(
                f"farm: {reply.place} failed {reply.failures} times and is not used any more"
            )

    def _reconnect(self) -> None:
        """Open the connection again, for `patience_s`."""
        self.on_note(
            "farm: the scheduler is gone; what is finished is kept, the rest is told again"
        )
        self.close()
        end = time.monotonic() + self.patience_s
        while True:
            try:
                self.client = self.connect()
                return
            except (OSError, TimeoutError, RuntimeError) as error:
                if time.monotonic() > end:
                    raise BoardError(
                        f"the farm's scheduler has not come back in {self.patience_s:.0f} s"
                    ) from error
                time.sleep(POLL_S)


class _Gone(Exception):
    """The scheduler went away."""


class FarmMeasurer(Closing):
    """Implements `search.result.Measurer` on a farm."""

    def __init__(
        self, farm: Farm, target: Target, *, seed: int = 0, ends: ExitStack | None = None
    ) -> None:
        self.farm, self.target, self.seed = farm, target, seed
        self.ends = ends or ExitStack()
        """What ends with the measurer: the connection, and a farm of our own."""
        self.unit = farm.board.unit
        self.best: dict[str, float] = {}
        """Of each task, the least cost that was told: known to all boards when a batch begins."""

    def close(self) -> None:
        """End what ends with it."""
        self.ends.close()

    def measure(self, candidates: Sequence[Candidate]) -> list[MeasureResult]:
        """Return one result a candidate, in order."""
        done = self.farm.do([self._job(part, candidates, False) for part in _parts(candidates)])
        results: dict[int, MeasureResult] = {}
        for open_job, reply in done.values():
            lost = MeasureResult(Status.DEVICE_LOST, self.unit, detail=reply.lost)
            rows = reply.values or [None] * len(open_job.numbers)
            for number, row in zip(open_job.numbers, rows, strict=True):
                results[number] = result_from_json(row) if row else lost
        for number, result in results.items():
            key = candidates[number].task.key
            if result.cost is not None:
                self.best[key] = min(self.best.get(key, result.cost), result.cost)
        return [results[i] for i in range(len(candidates))]

    def compare(self, candidates: Sequence[Candidate]) -> list[Comparison]:
        """Compare each candidate with the first, all on one board."""
        numbers = tuple(range(len(candidates)))
        ((_, reply),) = self.farm.do([self._job(numbers, candidates, True)]).values()
        if reply.values is None:
            return [Comparison(c, Status.DEVICE_LOST, detail=reply.lost) for c in candidates]
        return [
            Comparison(c, **{**row, "status": Status(row["status"])})
            for c, row in zip(candidates, reply.values, strict=True)
        ]

    def _job(self, numbers: Sequence[int], candidates: Sequence[Candidate], compare: bool) -> _Open:
        task = candidates[numbers[0]].task
        job = measure_job(
            task, [candidates[n] for n in numbers], seed=self.seed, best=self.best.get(task.key),
            compare=compare,
        )  # fmt: skip
        return _Open(tuple(numbers), job, _measure)


def _parts(candidates: Sequence[Candidate]) -> list[list[int]]:
    """Return positions by jobs: of one task each, in order."""
    by_task: dict[str, list[int]] = {}
    for number, c in enumerate(candidates):
        by_task.setdefault(c.task.key, []).append(number)
    return [
        numbers[i : i + JOB_TRIALS]
        for numbers in by_task.values()
        for i in range(0, len(numbers), JOB_TRIALS)
    ]


class FarmModel(Closing):
    """A compiled model, run as firmware on a board of the farm; implements `runners.Runner`."""

    def __init__(self, compiled: Compiled, farm: Farm) -> None:
        self.compiled, self.farm = compiled, farm

    def close(self) -> None:
        """See `Closing`."""

    def _do(self, inputs: Mapping[str, Any], runs: int, *, profile: bool) -> Json:
        generated = {n for n in self.compiled.files.files if n.endswith(".c")}
        files = {
            path: content for path, content in library_files(self.compiled.files).items()
            if path.startswith("include/") or path.removeprefix("src/") in generated
        }  # fmt: skip
        job = model_job(
            files, self.compiled.name, pack_inputs(self.compiled, inputs), runs=runs,
            profile=profile,
        )  # fmt: skip
        ((_, reply),) = self.farm.do([_Open((), job, _run_model)]).values()
        if reply.values is None:
            raise BoardError(f"model '{self.compiled.name}' did not run in the farm: {reply.lost}")
        values: Json = reply.values
        return values

    def _outputs(self, run: BoardRun) -> dict[str, np.ndarray]:
        return unpack_outputs(self.compiled, b"".join(run.outputs))

    def run(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run once; return outputs by name."""
        return self._outputs(self._do(inputs, 1, profile=False)["runs"][0])

    def measure(
        self, inputs: Mapping[str, Any], runs: int = 1
    ) -> tuple[dict[str, np.ndarray], Cost]:
        """Run often; return the outputs of the last run, and the cost in the board's unit."""
        done = self._do(inputs, runs, profile=False)
        cost = board_cost(self.farm.board, done["runs"], **done["sizes"])
        return self._outputs(done["runs"][-1]), cost

    def profile(self, inputs: Mapping[str, Any], runs: int = 1) -> list[StepCost]:
        """Return the cost of every step, in the board's unit."""
        run = self._do(inputs, 1, profile=True)["runs"][0]
        return step_costs(self.compiled, run.node_ticks or {})

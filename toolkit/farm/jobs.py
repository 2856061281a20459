"""What travels between a tuner and the boards of a farm: plain values, no Python code.

A job says which candidates of one task are measured, or which model is run; a reply says what
came of it, and how the board is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.errors import NestlingError
from toolkit.ir.plain import func_from_json, func_to_json
from toolkit.schedule.default import apply_trace
from toolkit.schedule.trace import trace_from_json, trace_to_json
from toolkit.search.result import MeasureResult, Status
from toolkit.space.task import Candidate, Task
from toolkit.targets.target import get_target

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a board answered.  `values`: of the job; None where the board failed, which `lost` says.

    `place`: which board it was; `failures`: how often it failed; `quarantined`: not used any more.
    """

    values: Any
    lost: str = ""
    place: str = ""
    failures: int = 0
    quarantined: bool = False


def measure_job(
    task: Task, candidates: Sequence[Candidate], *, seed: int, best: float | None, compare: bool
) -> Json:
    """Return a job that measures, or compares, candidates of a task.

    `best`: the least cost the tuner knows, from which limits follow: told with the job, so that
    they do not depend on what this board measured before.
    """
    func = func_to_json(task.func)
    if func is None:
        raise NestlingError(
            f"kernel {task.name} calls a C function, whose meaning a farm's workers do not know."
        )
    return {
        "func": func, "target": task.target.name, "inplace": [list(p) for p in task.inplace],
        "scratch_limit_bytes": task.scratch_limit_bytes, "seed": seed, "best": best,
        "compare": compare, "traces": [trace_to_json(c.trace) for c in candidates],
    }  # fmt: skip


def job_candidates(job: Mapping[str, Any]) -> list[Candidate]:
    """Rebuild what `measure_job` was told."""
    task = Task(
        func_from_json(job["func"]), get_target(job["target"]),
        tuple((a, b) for a, b in job["inplace"]),
        scratch_limit_bytes=job["scratch_limit_bytes"],
    )  # fmt: skip
    traces = [trace_from_json(rows) for rows in job["traces"]]
    return [Candidate(task, t, {}, apply_trace(task.func, t), t, 0.0, "farm") for t in traces]


def model_job(
    sources: Mapping[str, bytes], name: str, inputs: Sequence[bytes], *, runs: int, profile: bool
) -> Json:
    """Return a job that builds a generated model as firmware and runs it.

    `sources`: the generated files below `src` and `include`, by their paths in the library.
    """
    return {
        "sources": dict(sources), "name": name, "inputs": [bytes(i) for i in inputs],
        "runs": runs, "profile": profile,
    }  # fmt: skip


def result_to_json(result: MeasureResult) -> Json:
    """Return a result as plain values."""
    return {
        "status": str(result.status), "unit": result.unit, "samples": list(result.samples),
        "flash_bytes": result.flash_bytes, "ram_bytes": result.ram_bytes,
        "detail": result.detail, "device": result.device, "confident": result.confident,
    }  # fmt: skip


def result_from_json(row: Mapping[str, Any]) -> MeasureResult:
    """Return what `result_to_json` was told."""
    return MeasureResult(
        **{**row, "status": Status(row["status"]), "samples": tuple(row["samples"])}
    )

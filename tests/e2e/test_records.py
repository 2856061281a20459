"""What tuning found is compiled, named in what is generated, and moved; nothing is trusted."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import toolkit
from tests import small_models
from toolkit.lowering.recorded import base_functions
from toolkit.passes.manager import run_passes
from toolkit.pipeline import load
from toolkit.schedule.default import apply_trace, default_trace, Trace
from toolkit.schedule.steps.split import Split
from toolkit.search.packs import open_source
from toolkit.search.records import DEFAULT, Records
from toolkit.search.result import MeasureResult, SECONDS, Status
from toolkit.space.task import Candidate, Task
from toolkit.targets.target import TARGETS

TARGET = "generic"
FAST = ("--target", TARGET)

Run = Callable[..., tuple[str, str]]


def tasks_of(model: Path) -> list[Task]:
    loaded = load(model)
    graph = run_passes(loaded.graph, loaded.ops)
    funcs = base_functions(graph, loaded.ops).values()
    return [Task(func, TARGETS[TARGET], nodes=("n",)) for func in funcs]


def candidate(
    work: Task, trace: Trace, origin: str = "mutation", *, legal: bool = True
) -> Candidate:
    func = apply_trace(work.func, trace) if legal else work.func
    return Candidate(work, trace, {}, func, trace, 0.0, origin)


def ok(cost: float, **sizes: int) -> MeasureResult:
    return MeasureResult(Status.OK, SECONDS, (cost,), **sizes)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return small_models.dense(tmp_path / "net.onnx")


@pytest.fixture
def tuned(model: Path) -> Path:
    """A database beside the model, in which its kernel is fastest without any schedule."""
    path = model.with_suffix(".records.db")
    ticks = itertools.count(1)
    with Records(path, clock=lambda: float(next(ticks))) as db:
        for work in tasks_of(model):
            start = default_trace(work.func, work.target.isa)
            db.add([(candidate(work, start, DEFAULT), ok(2e-6)),
                    (candidate(work, ()), ok(1e-6, ram_bytes=64))])  # fmt: skip
            db.add([(candidate(work, start[:1]), MeasureResult(Status.CRASHED, detail="cc k.c"))])
    return path


def kernels(folder: Path) -> str:
    return (folder / "src" / "net.c").read_text()


def generated(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def test_records_beside_a_model_are_used_and_named(
    nestling: Run, model: Path, tuned: Path, tmp_path: Path
) -> None:
    _, err = nestling("compile", model, "-o", tmp_path / "a", *FAST, "--json", tmp_path / "j")
    assert "net.records.db: has records of 1 of 1 kernels" in err
    assert "trace: none" in kernels(tmp_path / "a")
    found = json.loads((tmp_path / "j").read_text())
    digest = found["records"]
    assert digest.startswith("sha256 ")
    assert found["recorded_kernels"] == {str(tuned): 1}
    for name in ("include/net.h", "src/net.c", "src/net_weights.c"):
        assert f"records: {digest}" in (tmp_path / "a" / name).read_text()
    assert json.loads((tmp_path / "a" / "model.json").read_text())["records"] == digest

    _, err = nestling("compile", model, "-o", tmp_path / "b", *FAST, "--no-records")
    assert "records" not in err
    assert "trace: none" not in kernels(tmp_path / "b")
    assert "records: none" in kernels(tmp_path / "b")


def test_the_same_traces_give_the_same_bytes_whatever_else_the_file_holds(
    nestling: Run, model: Path, tuned: Path, tmp_path: Path
) -> None:
    nestling("compile", model, "-o", tmp_path / "a", *FAST)
    (work,) = tasks_of(model)
    with Records(tuned) as db:
        db.add([(candidate(work, default_trace(work.func, work.target.isa)), ok(5e-6))])
        db.start_run("tune", seed=1, models=[], settings={})
    nestling("compile", model, "-o", tmp_path / "b", *FAST)
    moved = tuned.rename(tmp_path / "elsewhere.db")
    nestling("compile", model, "-o", tmp_path / "c", *FAST, "--records", moved)
    nestling("records", "export", moved, "--best", "-o", tmp_path / "p.jsonl", "--target", TARGET)
    nestling("compile", model, "-o", tmp_path / "d", *FAST, "--records", tmp_path / "p.jsonl")
    first = generated(tmp_path / "a")
    for other in "bcd":
        assert generated(tmp_path / other) == first


@pytest.mark.needs("gcc")
def test_recorded_kernels_are_right(nestling: Run, model: Path, tuned: Path) -> None:
    for command in (["verify", "--per-node"], ["run"], ["bench", "--runs", "20"]):
        _, err = nestling(command[0], model, *command[1:], *FAST)
        assert "has records of 1 of 1 kernels" in err


def test_a_trace_that_no_longer_fits_is_said_once_and_the_default_is_used(
    nestling: Run, model: Path, tmp_path: Path
) -> None:
    (work,) = tasks_of(model)
    with Records(tmp_path / "net.records.db") as db:
        db.add([(candidate(work, (Split("nowhere", (2,)),), legal=False), ok(1e-6))])
    _, err = nestling("compile", model, "-o", tmp_path / "a", *FAST)
    assert err.count("does not fit this nestling any more") == 1
    assert "nowhere" in err
    nestling("compile", model, "-o", tmp_path / "b", *FAST, "--no-records")
    assert generated(tmp_path / "a") == generated(tmp_path / "b")
    with Records(tmp_path / "net.records.db") as db:
        db._db.execute("UPDATE candidates SET trace = replace(trace, 'Split', 'Sing')")
    _, err = nestling("compile", model, "-o", tmp_path / "c", *FAST)
    assert err.count("unknown step 'Sing'") == 1
    assert generated(tmp_path / "c") == generated(tmp_path / "b")


def test_a_verdict_for_the_default_is_followed(
    nestling: Run, model: Path, tuned: Path, tmp_path: Path
) -> None:
    (work,) = tasks_of(model)
    with Records(tuned) as db:
        start = db.default(work.key, SECONDS)
        assert start is not None
        db.choose(work.key, SECONDS, start.candidate_key, "interleaved: 0.97 x")
    nestling("compile", model, "-o", tmp_path / "a", *FAST)
    nestling("compile", model, "-o", tmp_path / "b", *FAST, "--no-records")
    assert generated(tmp_path / "a") == generated(tmp_path / "b")


def test_records_of_another_target_are_not_used(
    nestling: Run, model: Path, tuned: Path, tmp_path: Path
) -> None:
    _, err = nestling("compile", model, "-o", tmp_path / "a", "--target", "cortex-m0")
    assert "records" not in err
    assert "records: none" in kernels(tmp_path / "a")


def test_python_users_name_their_records(model: Path, tuned: Path) -> None:
    plain = toolkit.compile(model, target=TARGET)
    assert plain.recorded.digest == "none"
    loaded = toolkit.load(model, records=[open_source(tuned)])
    assert toolkit.compile(loaded, target=TARGET).recorded.traces


def test_wrong_records_are_refused(nestling: Run, model: Path, tmp_path: Path) -> None:
    out = ("-o", tmp_path / "out", *FAST)
    _, err = nestling("compile", model, *out, "--records", tmp_path / "absent.db", code=2)
    assert "absent.db: no such file" in err
    _, err = nestling("compile", model, *out, "--records", model, code=2)
    assert "neither a database of trials nor a pack" in err
    _, err = nestling("compile", model, *out, "--records", model, "--no-records", code=2)
    assert "exclude each other" in err
    (tmp_path / "net.records.db").write_bytes(b"SQLite format 3\0" + b"rubbish" * 99)
    _, err = nestling("compile", model, *out, code=2)
    assert "net.records.db: cannot be opened" in err
    assert "--no-records" in err
    assert not (tmp_path / "out").exists()
    nestling("compile", model, *out, "--no-records")


def test_lists_say_what_was_found(nestling: Run, model: Path, tuned: Path, tmp_path: Path) -> None:
    (work,) = tasks_of(model)
    out, _ = nestling("records", "list", tuned, "--json", tmp_path / "j")
    assert work.key in out
    assert "2.00 x" in out
    (row,) = json.loads((tmp_path / "j").read_text())["tasks"]
    assert (row["trials"], row["failures"], row["best"], row["default"]) == (3, 1, 1e-6, 2e-6)

    for text in (work.key[:8], work.name):
        out, _ = nestling("records", "show", tuned, text, "--json", tmp_path / "j")
        assert "1 crashed" in out
        assert "2.00 x faster than the default" in out
        assert "1.00 us" in out
    found = json.loads((tmp_path / "j").read_text())
    assert found["statuses"] == {"ok": 2, "crashed": 1}
    assert [p["cost"] for p in found["fronts"]["seconds"]] == [1e-6]
    _, err = nestling("records", "show", tuned, "nobody", code=2)
    assert "no such task" in err
    _, err = nestling("records", "list", tmp_path / "absent.db", code=2)
    assert "no such file" in err
    assert not (tmp_path / "absent.db").exists()


def test_records_move_as_lines_and_merge(nestling: Run, tuned: Path, tmp_path: Path) -> None:
    lines, again = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    nestling("records", "export", tuned, "-o", lines)
    out, _ = nestling("records", "import", tmp_path / "b.db", lines)
    assert "3 trials, 0 known" in out
    nestling("records", "export", tmp_path / "b.db", "-o", again)
    assert again.read_bytes() == lines.read_bytes()
    out, _ = nestling("records", "export", tuned)
    assert out.encode() == lines.read_bytes()
    out, _ = nestling("records", "merge", tmp_path / "b.db", tuned, "--json", "-")
    assert json.loads(out) == {str(tuned): {"added": 0, "known": 3, "problems": []}}
    lines.write_text(lines.read_text().replace('"status":"crashed"', '"status":"sad"'))
    out, err = nestling("records", "import", tmp_path / "c.db", lines)
    assert "2 trials" in out
    assert "a.jsonl: line 5: cannot be read: ValueError: 'sad'" in err
    _, err = nestling("records", "import", tmp_path / "d.db", tmp_path / "absent.jsonl", code=2)
    assert "absent.jsonl" in err
    assert not (tmp_path / "d.db").exists()
    _, err = nestling("records", "export", tuned, "--target", "generic", code=2)
    assert "--best" in err


def test_the_command_shows_examples(nestling: Run) -> None:
    for command in ("list", "show", "export", "import", "merge"):
        text, _ = nestling("records", command, "--help")
        assert f"nestling records {command}" in text.partition("Example")[2]

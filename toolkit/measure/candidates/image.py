"""Candidates as C for a board: their kernels, and the function that runs, checks and times one.

As firmware (`build_image`) they are a model to the serial server: its input is the number of a
trial, its output what came of it.  Data lies in the image, where a product's weights would; inputs
are copied to RAM on the board before each run, so that nothing but numbers passes the serial port.
For a server that loads code (`loaded_files`) the same function is told where its data lies.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.codegen.c_expr import float_text
from toolkit.codegen.model import printable
from toolkit.codegen.render import render
from toolkit.ir.types import DTYPES, is_float
from toolkit.measure.candidates.check import Expected
from toolkit.measure.candidates.data import operand_value, TaskState
from toolkit.measure.candidates.source import HEADER, header_text, Printed
from toolkit.space.task import Candidate
from toolkit.targets.board import Board
from toolkit.toolchain.firmware import build_firmware, FirmwareArtifact

NAME = "nst_trials"
GUARD_BYTES = 32
_HEAD_BYTES = 64
"""Command and reply, before the operands in the arena; of a loaded trial, before the addresses."""
REPLY_AT, REPLY_BYTES = 16, 40
"""Where the reply lies behind the command."""
_ALIGN = 16

STATUS = ("ok", "wrong", "wrote before", "wrote behind", "wrote into its")
"""What `trial_reply.status` says, in the order of templates/c/candidates_board.c.j2."""

_REPLY = struct.Struct("<4I2Q8s")


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate of an image."""

    candidate: Candidate
    printed: Printed
    state: TaskState

    @property
    def memory_bytes(self) -> int:
        """Bytes of RAM for its operands and their guards."""
        return sum(
            _round(o.type.nbytes) + 2 * GUARD_BYTES
            for o in self.printed.operands
            if o.role != "const"
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """What a board says of a trial: clock before and after, and the first thing that is wrong."""

    status: int
    operand: int
    element: int
    start: int
    stop: int
    found: bytes


def read_reply(data: bytes) -> Reply:
    """Read the output of a run."""
    status, operand, element, _, start, stop, found = _REPLY.unpack(data)
    return Reply(status, operand, element, start, stop, found)


def command(index: int, warm: int) -> bytes:
    """Return the input of a run: the number of a trial, and its runs before it is timed."""
    return struct.pack("<2I", index, warm)


def explain(reply: Reply, trial: Trial) -> str:
    """Say in one line what is wrong with a trial."""
    operand = trial.printed.operands[reply.operand]
    if STATUS[reply.status] != "wrong":
        return f"{STATUS[reply.status]} {operand.role} {operand.name!r}"
    kind = operand.type
    found = np.frombuffer(reply.found[: DTYPES[kind.dtype].nbytes], kind.dtype)[0]
    value = stored(next(e for e in trial.state.expected if e.name == operand.name), kind.dtype)
    at = [int(i) for i in np.unravel_index(reply.element, kind.shape)] if kind.shape else []
    should = value.reshape(-1)[reply.element]
    return f"{operand.name}{at or ''} is {found:.9g}, expected {should:.9g}"


def _round(nbytes: int) -> int:
    return nbytes + -nbytes % _ALIGN


def stored(want: Expected, dtype: str) -> np.ndarray:
    """Return expected values in the output's own type."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(want.value.astype(dtype))


@dataclass(slots=True)
class _Data:
    """The data of an image, equal arrays once."""

    parts: list[bytes] = field(default_factory=list)
    nbytes: int = 0
    places: dict[bytes, int] = field(default_factory=dict)

    def add(self, value: np.ndarray) -> int:
        """Store an array; return its offset."""
        data = value.tobytes()
        key = hashlib.sha256(data).digest()
        if key not in self.places:
            self.places[key] = self.nbytes
            data += b"\0" * (-len(data) % _ALIGN)
            self.parts.append(data)
            self.nbytes += len(data)
        return self.places[key]


def _values(trials: Sequence[Trial], data: _Data | None) -> dict[str, Any]:
    """Return what the template needs; `data` takes the operands' values, None leaves them out."""
    operands: list[dict[str, Any]] = []
    outputs: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    dtypes: set[str] = set()
    for trial in trials:
        rows.append({
            "entry": trial.printed.entry, "first_operand": len(operands),
            "operand_count": len(trial.printed.operands), "first_output": len(outputs),
            "output_count": len(trial.state.expected),
        })  # fmt: skip
        expected = {e.name: e for e in trial.state.expected}
        for position, o in enumerate(trial.printed.operands):
            value = None
            if data is not None:
                value = operand_value(trial.candidate, o, trial.state.data.check)
            operands.append({
                "what": printable(f"{o.name}: {o.type}"), "role": f"ROLE_{o.role.upper()}",
                "nbytes": o.type.nbytes,
                "offset": None if value is None or data is None else data.add(value),
            })  # fmt: skip
            if o.role == "output":
                outputs.append(_output(position, expected[o.name], o.type.dtype, data))
                dtypes.add(o.type.dtype)
    return {
        "name": NAME, "loaded": data is None, "header": HEADER,
        "kernels": list(dict.fromkeys(t.printed.text for t in trials)),
        "data": f"{NAME}_data", "guard_bytes": GUARD_BYTES,
        "most_operands": max(len(t.printed.operands) for t in trials), "trials": rows,
        "operands": operands, "outputs": outputs,
        "compared": [{"suffix": d, "c_type": DTYPES[d].c_name, "is_float": is_float(d)}
                     for d in sorted(dtypes)],
    }  # fmt: skip


def image_files(trials: Sequence[Trial]) -> dict[str, bytes]:
    """Return the C files and the data of an image, by name."""
    data = _Data()
    values = _values(trials, data)
    blob = b"".join(data.parts) or bytes(_ALIGN)
    told = "".join([*values["kernels"], str(values["trials"]), str(values["operands"])])
    digest = hashlib.sha256(told.encode() + blob).digest()
    values |= {
        "upper": NAME.upper(), "head_bytes": _HEAD_BYTES,
        "arena_bytes": _HEAD_BYTES + max(t.memory_bytes for t in trials),
        "align": _ALIGN, "file": f"{NAME}.bin", "digest_word": int.from_bytes(digest[:4], "little"),
    }  # fmt: skip
    return {
        HEADER: header_text().encode(),
        f"{NAME}.h": render("c/candidates_board.h.j2", **values).encode(),
        f"{NAME}.c": render("c/candidates_board.c.j2", **values).encode(),
        f"{NAME}_weights.c": render("c/candidates_data.c.j2", **values).encode(),
        f"{NAME}.bin": blob,
    }


def _output(position: int, want: Expected, dtype: str, data: _Data | None) -> dict[str, Any]:
    uneven = uneven_tolerances(want)
    one = 0.0
    if uneven is None and want.tolerance.size:
        one = float(np.asarray(want.tolerance, np.float32).reshape(-1)[0])
    row: dict[str, Any] = {
        "operand": position, "fits": dtype, "count": want.value.size,
        "element_bytes": DTYPES[dtype].nbytes, "tolerance": float_text(one, "float32"),
    }  # fmt: skip
    if data is not None:
        row["value"] = data.add(stored(want, dtype))
        row["tolerances"] = None if uneven is None else data.add(uneven)
    return row


def uneven_tolerances(want: Expected) -> np.ndarray | None:
    """Return the tolerance of each element of an output; None where all have the same."""
    tolerance = np.asarray(want.tolerance, np.float32)
    same = not tolerance.size or bool(np.all(tolerance == tolerance.reshape(-1)[0]))
    return None if same else tolerance


# Kernels that are loaded


def loaded_files(trials: Sequence[Trial]) -> dict[str, bytes]:
    """Return the C files of kernels that are loaded; their function is `NAME_entry`."""
    values = _values(trials, None) | {
        "head_bytes": head_bytes(trials), "arena_bytes": 0, "digest_word": 0
    }  # fmt: skip
    return {
        HEADER: header_text().encode(),
        f"{NAME}.c": render("c/candidates_board.c.j2", **values).encode(),
    }


def head_bytes(trials: Sequence[Trial]) -> int:
    """Return the bytes of a loaded trial's argument before its operands: command, reply, places."""
    most = max(len(t.printed.operands) for t in trials)
    return _HEAD_BYTES + _round(4 * most)


def argument(index: int, warm: int, addresses: Sequence[int]) -> bytes:
    """Return the argument of a loaded trial: `command`, and where its data lies."""
    return command(index, warm).ljust(_HEAD_BYTES, b"\0") + b"".join(
        a.to_bytes(4, "little") for a in addresses
    )


def operand_places(trial: Trial) -> list[int]:
    """Return where each operand of a trial lies behind the head; -1 for constants."""
    found, at = [], 0
    for o in trial.printed.operands:
        if o.role == "const":
            found.append(-1)
            continue
        found.append(at + GUARD_BYTES)
        at += _round(o.type.nbytes) + 2 * GUARD_BYTES
    return found


def build_image(
    board: Board, trials: Sequence[Trial], folder: Path, shared: Path
) -> FirmwareArtifact:
    """Build the firmware of some trials in `folder`; raises as `build_firmware` does.

    `shared`: a folder that keeps the objects which all images have in common.

    Equal functions stay apart, so that what a kernel costs does not depend on its neighbours.
    """
    for name, content in image_files(trials).items():
        (folder / name).write_bytes(content)
    sources = [folder / f"{NAME}.c", folder / f"{NAME}_weights.c"]
    return build_firmware(
        board, sources, [folder], NAME, f"{NAME}.h", folder / "firmware", ("-fno-ipa-icf",), shared
    )

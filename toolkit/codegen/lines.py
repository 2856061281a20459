"""Lines of C, and what is done to a run of them after printing: loads that are shared, constants
that are named, sums that start from zero, intrinsics that take turns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

_LITERAL = re.compile(r"^\w+\(-?[0-9.e+-]+f?\)$")


@dataclass(frozen=True, slots=True)
class CLine:
    """One line of C, or with `head` a compound statement around `body`."""

    text: str
    head: bool = False
    body: tuple[CLine, ...] = ()
    phase: int | None = None
    """Of a statement of a tensor intrinsic: where it stands among the intrinsic's."""
    first: str = ""
    """The statement where the result that it adds to was zero, if that is another one."""


def with_text(lines: list[CLine], old: str, new: str) -> list[CLine]:
    """Return lines with one text in place of another."""
    return [
        replace(line, text=line.text.replace(old, new)) if old in line.text else line
        for line in lines
    ]


def from_zero(lines: list[CLine]) -> list[CLine]:
    """Let tensor intrinsics write results that were set to zero right before."""
    result: list[CLine] = []
    zeros: dict[str, CLine] = {}
    for line in lines:
        if line.head:
            zeros = {}
        name, _, value = line.text.partition(" = ")
        if line.first and name in zeros:
            result = [other for other in result if other is not zeros[name]]
            line = replace(line, text=line.first)
        for known in [n for n in zeros if re.search(rf"(?<!\w){re.escape(n)}(?!\w)", line.text)]:
            del zeros[known]
        if value == "0;":
            zeros[name] = line
        result.append(line)
    return result


def in_phases(lines: list[CLine]) -> list[CLine]:
    """Let copies of a tensor intrinsic take turns, statement by statement.

    Copies with accumulators of their own share operands, of which they then need few at a time.
    Only where nothing else stands between.
    """
    if any(line.phase is None for line in lines):
        return lines
    result: list[CLine] = []
    turn: list[CLine] = []
    for line in lines:
        if line.phase == 0 and any(_result(line) == _result(other) for other in turn):
            result.extend(sorted(turn, key=_phase))
            turn = []
        turn.append(line)
    return [*result, *sorted(turn, key=_phase)]


def _phase(line: CLine) -> int:
    assert line.phase is not None
    return line.phase


def _result(line: CLine) -> str:
    """Return what an assignment assigns to; the whole text of other statements."""
    return line.text.split(" = ")[0]


def share_loads(lines: list[CLine], loads: Mapping[str, str]) -> list[CLine]:
    """Name the vector loads that occur more than once in straight-line code.

    Left to themselves, compilers fold such a load into every instruction that uses it.  Only code
    that writes no memory is touched, and no line with a condition, which may forbid the load.
    """
    if not loads or any(line.head or "store" in line.text for line in lines):
        return lines
    free = "\n".join(line.text for line in lines if "?" not in line.text)
    shared = sorted((t for t in loads if free.count(t) > 1), key=lambda t: (-len(t), t))
    result: list[CLine] = []
    names: dict[str, str] = {}
    for line in lines:
        text = line.text
        if "?" in text:
            result.append(line)
            continue
        for load in shared:
            if load not in text:
                continue
            if load not in names:
                names[load] = f"nst_v{len(names)}"
                result.append(CLine(f"{loads[load]} {names[load]} = {load};"))
                result.append(CLine(f"NST_IN_REGISTER({names[load]});"))
            text = text.replace(load, names[load])
        result.append(CLine(text))
    return result


def load_constants(lines: list[CLine], loads: Mapping[str, str]) -> list[CLine]:
    """Name the vectors of one literal in straight-line code, and have them loaded there."""
    if any(line.head for line in lines):
        return lines
    code = "\n".join(line.text for line in lines)
    texts = [text for text in loads if text in code and _LITERAL.search(text)]
    names = {text: f"nst_c{n}" for n, text in enumerate(sorted(texts, key=lambda t: (-len(t), t)))}
    result = []
    for text, name in names.items():
        result.append(CLine(f"{loads[text]} {name} = {text};"))
        result.append(CLine(f"NST_LOADED_HERE({name});"))
    for line in lines:
        text = line.text
        for literal, name in names.items():
            text = text.replace(literal, name)
        result.append(CLine(text))
    return result


def flatten(lines: Sequence[CLine]) -> list[CLine]:
    """Return all lines of a tree, in order."""
    result: list[CLine] = []
    for line in lines:
        result.append(line)
        result.extend(flatten(line.body))
    return result


def words(lines: Sequence[CLine]) -> set[str]:
    """Return the identifiers in lines of code."""
    code = [line.text for line in flatten(lines) if not line.text.startswith("/*")]
    return {word for text in code for word in re.findall(r"[A-Za-z_]\w*", text)}

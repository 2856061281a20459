"""Reading what compilers write with -S: the instructions of loops that hold no other loop."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

LABEL = re.compile(r"(\.?\w+):")


def inner_loops(text: str) -> Iterator[list[str]]:
    """Yield the instructions of each innermost loop, from its label to the branch back."""
    lines = text.splitlines()
    labels = {m[1]: n for n, line in enumerate(lines) if (m := LABEL.match(line))}
    for end, line in enumerate(lines):
        word = line.split()
        if not word or not line.startswith("\t") or word[0][0] in ".@#":
            continue
        start = labels.get(word[-1])
        if start is None or start >= end:
            continue
        body = [l.strip() for l in lines[start : end + 1] if _is_instruction(l)]
        if not any(labels.get(l.split()[-1], end) < end for l in body[:-1]):
            yield body


def _is_instruction(line: str) -> bool:
    return line.startswith("\t") and line.strip()[:1] not in (".", "@", "#", "/")


def loop_with(text: str, pattern: str) -> list[str]:
    """Return the innermost loop with most instructions of a kind."""
    found = list(inner_loops(text))
    assert found, "there is no loop"
    return max(found, key=lambda body: count(body, pattern))


def count(body: Sequence[str], pattern: str) -> int:
    """Count the instructions that match."""
    return sum(re.match(pattern, line) is not None for line in body)


def spills(body: Sequence[str]) -> list[str]:
    """Return the instructions that read or write the stack."""
    return [line for line in body if re.search(r"\(%rsp|\[sp\b", line)]

"""docs/scheduling.md: its Python runs, and what it says is printed is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "scheduling.md"


@pytest.mark.needs("gcc")
def test_the_page_runs_and_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    text = PAGE.read_text()
    scope: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), scope)
    printed = capsys.readouterr().out
    shown = re.findall(r"```\n(func .*?)```", text, re.DOTALL)
    assert shown
    for nest in shown:
        assert nest in printed
    assert "trace: Split(loop='i_2', factors=(6,)" in printed
    assert len(scope["sketches"]) == 2  # type: ignore[arg-type]
    assert scope["drawn"].trace == scope["again"].trace  # type: ignore[attr-defined]
    assert scope["near"].decisions["rows"] in ((4,), (6,))  # type: ignore[attr-defined]

"""The spaces there are, by name, and those of a user's file: `--space my_file.py`, `--module`.

    def wide_rows(sch, target):                 # a module: `--module my_file.py`
        ...

    TEMPLATES = (Template("mine", program),)    # a space: `--space my_file.py`
    RULES = (MY_RULE, *toolkit.space.rules.RULES)
    MODULES = (wide_rows, *toolkit.space.modules.MODULES)

A file says by one of the three names what kind of space it is.  As a file of modules, it may name
them in `MODULES`; else every function (sch, target) of the file is one, but those named _... .
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from toolkit.errors import NestlingError
from toolkit.space.modules import MODULES
from toolkit.space.modules.compose import Module, ModuleSpace
from toolkit.space.modules.layout_packing import layout_packing
from toolkit.space.modules.parallel_vectorize_unroll import parallel_vectorize_unroll
from toolkit.space.modules.random_compute_location import random_compute_location
from toolkit.space.rules import RULES
from toolkit.space.rules.derive import RuleSpace
from toolkit.space.rules.state import Rule
from toolkit.space.task import Space
from toolkit.space.templates import TEMPLATES
from toolkit.space.templates.config import Template, TemplateSpace
from toolkit.user_file import run_file

ANNOTATE = (layout_packing, random_compute_location, parallel_vectorize_unroll)
"""What ends every sketch of the space `ansor`: holes for what its rules do not decide."""

SPACES: dict[str, Space] = {
    space.name: space
    for space in (
        TemplateSpace("autotvm", TEMPLATES),
        RuleSpace("ansor", RULES, ANNOTATE),
        ModuleSpace("metaschedule", MODULES),
    )
}


def load_space(name: str, modules: Sequence[Path] = ()) -> Space:
    """Return a space by name, or that of a Python file; with modules of the user's before its own.

    Raises `NestlingError` for names that are not known, files without a space, and modules for a
    space that has none.
    """
    if name in SPACES:
        space = SPACES[name]
    elif name.endswith(".py") or Path(name).is_file():
        space = _space_of(Path(name))
    else:
        raise NestlingError(
            f"--space {name}: there is no such space.",
            hint=f"known: {', '.join(SPACES)}; or a Python file",
        )
    if not modules:
        return space
    if not isinstance(space, ModuleSpace):
        raise NestlingError(
            f"--module: the space {space.name!r} is not made of modules.",
            hint="leave out --space, or say --space metaschedule",
        )
    own = tuple(module for path in modules for module in load_modules(path))
    return replace(space, name="+".join([space.name, *(p.stem for p in modules)]),
                   modules=(*own, *space.modules))  # fmt: skip


def load_modules(path: Path) -> tuple[Module, ...]:
    """Run a file and return its modules, in the order of the file."""
    what = f"--module {path}"
    found = run_file(path, what)
    if "MODULES" in found.__dict__:
        return _items(found, "MODULES", what, callable, "a function (sch, target)")
    modules = tuple(
        value
        for value in found.__dict__.values()
        if isinstance(value, FunctionType)
        and value.__code__.co_filename == str(path)
        and list(inspect.signature(value).parameters) == ["sch", "target"]
        and not value.__name__.startswith("_")
    )
    if not modules:
        raise NestlingError(
            f"{what}: defines no module.", hint="write a function (sch, target), or a list MODULES"
        )
    return modules


def _space_of(path: Path) -> Space:
    what = f"--space {path}"
    found = run_file(path, what)
    if "TEMPLATES" in found.__dict__:
        kind = "a Template"
        templates = _items(found, "TEMPLATES", what, lambda t: isinstance(t, Template), kind)
        return TemplateSpace(path.stem, templates)
    if "RULES" in found.__dict__:
        rules = _items(found, "RULES", what, lambda r: isinstance(r, Rule), "a Rule")
        return RuleSpace(path.stem, rules, ANNOTATE)
    if "MODULES" in found.__dict__:
        modules = _items(found, "MODULES", what, callable, "a function (sch, target)")
        return ModuleSpace(path.stem, modules)
    raise NestlingError(
        f"{what}: defines no space.", hint="write a list TEMPLATES, RULES or MODULES in it"
    )


def _items(found: ModuleType, name: str, what: str, good: Any, kind: str) -> tuple[Any, ...]:
    items = found.__dict__[name]
    if not isinstance(items, Sequence) or not items:
        raise NestlingError(f"{what}: {name} is no list with at least one element.")
    for item in items:
        if not good(item):
            raise NestlingError(f"{what}: {item!r} in {name} is not {kind}.")
    return tuple(items)

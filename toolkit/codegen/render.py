"""The Jinja environment: strict, from the `templates/` folder, with no arithmetic in templates."""

from __future__ import annotations

from functools import cache
from typing import Any

import jinja2

from toolkit.paths import TEMPLATES


@cache
def environment() -> jinja2.Environment:
    """Return the environment; an undefined variable is an error."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
    )


def render(template: str, **values: Any) -> str:
    """Render `templates/<template>`."""
    return environment().get_template(template).render(**values)

"""The table from TFLite's builtin operators to the functions that make nodes of them.

To add an operator: write its function in a family's file, add one line to that family's table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from toolkit.frontend.tflite import (
    arithmetic,
    functions,
    images,
    pools,
    products,
    recurrent,
    reductions,
    shapes,
    states,
)
from toolkit.frontend.tflite.site import Site

Family = Callable[[Site], list[str]]
"""Adds the nodes of one operator; returns the graph's tensor of each of its results."""

TABLE: Mapping[str, Family] = {
    **products.TABLE,
    **pools.TABLE,
    **arithmetic.TABLE,
    **functions.TABLE,
    **shapes.TABLE,
    **recurrent.TABLE,
    **reductions.TABLE,
    **images.TABLE,
    **states.TABLE,
}

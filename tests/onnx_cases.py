"""Running the ONNX backend test cases: `python -m tests.onnx_cases PATTERN...` prints one line a case.

PATTERN matches test names (`fnmatch`) or is `op:NAME`, all node tests whose only node is NAME.
"""

from __future__ import annotations

import fnmatch
import sys
import warnings
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.case.test_case import TestCase

from toolkit.backend import PreparedModel
from toolkit.errors import NestlingError
from toolkit.pipeline import Options


@cache
def node_cases() -> dict[str, TestCase]:
    """Return all node test cases by name, built in memory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in collect_testcases(None)}


def check_case(case: TestCase, target: str = "generic") -> None:
    """Run a case; raise `AssertionError` or `NestlingError` when it does not hold."""
    prepared = PreparedModel(case.model, Options(target=target, cflags=("-O1",)))
    try:
        for inputs, outputs in case.data_sets:
            arrays = [_array(x) for x in inputs]
            expected = [_array(x) for x in outputs]
            found = prepared.run(arrays)
            assert len(found) == len(expected), (len(found), len(expected))
            for got, want in zip(found, expected, strict=True):
                assert got.shape == want.shape, f"shape {got.shape}, not {want.shape}"
                assert got.dtype == want.dtype, f"type {got.dtype}, not {want.dtype}"
                np.testing.assert_allclose(got, want, rtol=case.rtol, atol=case.atol)
    finally:
        prepared.close()


def _array(x: Any) -> np.ndarray:
    if isinstance(x, onnx.TensorProto):
        return onnx.numpy_helper.to_array(x)
    return np.asarray(x)


def matching(patterns: list[str]) -> list[TestCase]:
    """Return the cases that a pattern selects."""

    def wanted(case: TestCase, pattern: str) -> bool:
        if pattern.startswith("op:"):
            return {n.op_type for n in case.model.graph.node} == {pattern[3:]}
        return fnmatch.fnmatch(case.name, pattern)

    return [c for c in node_cases().values() if any(wanted(c, p) for p in patterns)]


def main() -> None:
    """Run the cases named on the command line."""
    failed = 0
    words = sys.argv[1:]
    target = words.pop(0).removeprefix("--target=") if words[0].startswith("--target=") else "generic"
    cases = matching(words)
    for case in cases:
        try:
            check_case(case, target)
        except NestlingError as error:
            failed += 1
            print("REFUSED", case.name, str(error).replace("\n", " | ")[:300])
        except AssertionError as error:
            failed += 1
            print("WRONG  ", case.name, " ".join(str(error).split())[:300])
        except Exception as error:  # noqa: BLE001 - a broken case must not hide the others
            failed += 1
            print("BROKEN ", case.name, type(error).__name__, " ".join(str(error).split())[:300])
        else:
            print("ok     ", case.name)
    print(f"{len(cases) - failed} passed, {failed} failed")


if __name__ == "__main__":
    main()

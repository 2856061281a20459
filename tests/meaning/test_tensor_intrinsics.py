"""Every tensor intrinsic computes the nest that is its written meaning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.meaning.batch import Batch
from tests.meaning.machines import MACHINES, run_on
from toolkit.codegen.lines import flatten
from toolkit.ir.interp import interpret
from toolkit.ir.types import int_range
from toolkit.ir.verify import verify_func
from toolkit.schedule.steps.tensorize import Tensorize
from toolkit.targets.isas import ISAS, TENSOR_INTRINSICS
from toolkit.targets.tensor import TensorIntrinsic

WITH_TENSORS = [isa.name for isa in ISAS.values() if isa.tensors]


def extremes(intrinsic: TensorIntrinsic, rng: np.random.Generator) -> list[dict[str, np.ndarray]]:
    """Operands of random values, and of the limits of their types, the accumulator's too."""
    result = []
    for n in range(12):
        arrays = {}
        for buffer in (*intrinsic.nest.inputs, *intrinsic.nest.outputs):
            low, high = int_range(buffer.dtype)
            if n < 8:
                values = rng.integers(low, high, size=buffer.shape, endpoint=True)
            else:
                values = np.array([low, high])[rng.integers(0, 2, size=buffer.shape)]
            arrays[buffer.name] = values.astype(buffer.dtype)
        result.append(arrays)
    lows = {b.name: np.full(b.shape, int_range(b.dtype)[0], b.dtype) for b in intrinsic.nest.inputs}
    result.append(lows | {"C": result[0]["C"]})
    return result


def test_every_instruction_set_with_tensor_intrinsics_has_a_machine() -> None:
    assert set(WITH_TENSORS) <= set(MACHINES)


@pytest.mark.parametrize("name", TENSOR_INTRINSICS)
def test_the_nest_of_an_intrinsic_is_well_formed(name: str) -> None:
    intrinsic = TENSOR_INTRINSICS[name]
    verify_func(intrinsic.nest)
    assert {b.name for b in (*intrinsic.nest.inputs, *intrinsic.nest.outputs)} == set(
        intrinsic.operands
    )


@pytest.mark.parametrize("isa", WITH_TENSORS)
def test_intrinsics_compute_their_nest(
    isa: str, rng: np.random.Generator, tmp_path: Path, need_tool: Callable[[str], str],
    need_cpu: Callable[[str], None],
) -> None:  # fmt: skip
    batch = Batch()
    calls, wanted = [], []
    for name, intrinsic in ISAS[isa].tensors.items():
        after = Tensorize(intrinsic.loops[0].var, name).apply(intrinsic.nest)
        number = batch.add(after, (), ISAS[isa])
        kernel, _ = batch.kernels[number]
        text = "\n".join(line.text for line in flatten(kernel.lines))
        assert "for (" not in text, f"{name} was printed as a loop:\n{text}"
        for arrays in extremes(intrinsic, rng):
            calls.append((number, arrays))
            wanted.append((name, interpret(intrinsic.nest, arrays, exact=False)["C"]))
    found = run_on(isa, batch, calls, tmp_path, need_tool, need_cpu)
    for (name, want), got in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(got["C"], want, err_msg=name)

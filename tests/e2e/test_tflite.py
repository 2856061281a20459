"""TFLite models of the corpus against LiteRT's reference kernels, whose outputs lie beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

import toolkit
from toolkit.samples import read_samples
from toolkit.verify import compare, TOLERANCE

pytestmark = pytest.mark.needs("gcc")

EXACT = (
    "mlperf_kws_dscnn_int8",
    "mlperf_ic_resnet8_int8",
    "mlperf_vww_mbv1_int8",
    "mlperf_ad_fcae_int8",
    "tflm_person_detect_int8",
    "tflm_hello_world_int8",
)
FLOAT = ("mlperf_ic_resnet8_float", "mlperf_vww_mbv1_float", "mlperf_ad_fcae_float")


@pytest.mark.parametrize("name", [*EXACT, *FLOAT])
def test_outputs_are_those_of_the_reference_kernels(corpus: Path, name: str) -> None:
    """Integers bit for bit; floats to the tolerance of `verify`, 1e-4 of the largest."""
    path = corpus / f"{name}.tflite"
    samples = read_samples(path.with_name(path.name + ".npz"))
    with toolkit.build(toolkit.compile(toolkit.load(path))) as built:
        for index in range(samples.count):
            for output, found in built.run(samples.input(index)).items():
                check = compare(output, found, samples.expected[output][index], tolerance=TOLERANCE)
                assert check.ok, (index, check.why)


@pytest.mark.parametrize("name", [*EXACT, *FLOAT])
def test_no_element_is_moved_to_another_place(corpus: Path, name: str) -> None:
    """Images have the channel last already, so no pass has a reason to transpose."""
    compiled = toolkit.compile(toolkit.load(corpus / f"{name}.tflite"))
    ops = [n.op for n in compiled.graph.nodes]
    ops += [n.op for g in compiled.graph.subgraphs() for n in g.nodes]
    assert "Transpose" not in ops

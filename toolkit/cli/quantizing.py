"""`nestling quantize`: a float model and samples -> an ONNX model on 8-bit integers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.cli.console import Console
from toolkit.cli.options import import_options, ImportRequest, output_options

if TYPE_CHECKING:
    from toolkit.cli.options import ModelRequest
    from toolkit.pipeline import Model
    from toolkit.quantization.result import Quantized
    from toolkit.samples import Samples


@click.command("quantize", short_help="Turn a float model into one on 8-bit integers.")
@click.argument("model", type=click.Path(path_type=Path), metavar="MODEL")
@click.option(
    "-o", "--output", "out", type=click.Path(path_type=Path), required=True, metavar="OUT.onnx",
    help="The ONNX file to write.",
)  # fmt: skip
@click.option(
    "--calib", "calib_path", type=click.Path(path_type=Path), required=True, metavar="X.npz",
    help="Samples of the inputs: in__NAME, NAME or x, axis 0 counting samples.",
)  # fmt: skip
@click.option(
    "--samples", "limit", type=click.IntRange(1), default=256, show_default=True, metavar="N",
    help="Samples of --calib that are used, from the first on.",
)  # fmt: skip
@click.option(
    "--labels", "labels_path", type=click.Path(path_type=Path), metavar="L.npz",
    help="Labelled samples x, y: print the accuracy before and after.",
)  # fmt: skip
@click.option(
    "--method", type=click.Choice(("minmax", "percentile", "entropy", "mse")), default="mse",
    show_default=True, help="How the range of a tensor is chosen.",
)  # fmt: skip
@click.option(
    "--percentile", type=float, default=99.99, show_default=True, metavar="P",
    help="Of the values, with --method percentile.",
)  # fmt: skip
@click.option(
    "--activations", type=click.Choice(("int8", "uint8", "int16")), default="int8",
    show_default=True, help="Type of activations; weights are int8, biases int32.",
)  # fmt: skip
@click.option("--symmetric", is_flag=True, help="Activations without zero points.")
@click.option("--per-tensor", is_flag=True, help="One scale for all channels of weights.")
@click.option(
    "--equalize/--no-equalize", "equalize", default=None,
    help="Equalise channels across layers first [default: with --per-tensor].",
)  # fmt: skip
@click.option(
    "--bias-correction/--no-bias-correction", "correct", default=True, show_default=True,
    help="Take the mean error of each channel off its bias.",
)  # fmt: skip
@click.option(
    "--recurrent", is_flag=True,
    help="Weights of LSTM, GRU and RNN in 8 bits too; they compute in float: less flash, more RAM.",
)  # fmt: skip
@click.option(
    "--max-drop", metavar="D",
    help="Keep layers in 16x8 or float until no more is lost: 0.5 (points of accuracy on "
    "--labels), or 30dB (the outputs' least ratio).",
)  # fmt: skip
@click.option(
    "--fp16", type=click.Choice(("weights", "arithmetic")),
    help="Instead of integers: weights of 16-bit floats, half the flash, computed in float32. "
    "arithmetic is refused: no code is generated for it, on no core.",
)  # fmt: skip
@import_options
@output_options
def quantize_command(
    *,
    model: Path,
    imports: ImportRequest,
    out: Path,
    calib_path: Path,
    limit: int,
    labels_path: Path | None,
    method: str,
    percentile: float,
    activations: str,
    symmetric: bool,
    per_tensor: bool,
    equalize: bool | None,
    correct: bool,
    recurrent: bool,
    max_drop: str | None,
    fp16: str | None,
    console: Console,
    json_path: Path | None,
) -> int:
    """Quantise the float ONNX model MODEL to 8-bit integers, ranges taken from samples.

    The result is an ONNX model with QuantizeLinear and DequantizeLinear, of static shapes, with the
    inputs and outputs of MODEL; all commands take it, and --integers runs it on integers.  Printed
    are, for each layer, the signal-to-noise ratio of its result over the samples, the bytes of
    weights, and the accuracy on labelled samples.

    \b
    Examples:
      nestling quantize kws.onnx --calib x.npz -o kws_int8.onnx
      nestling quantize kws.onnx --calib x.npz --labels test.npz --max-drop 0.5 -o kws_int8.onnx
      nestling verify kws_int8.onnx --integers --board qemu_mps2_an386
    """
    from toolkit.errors import NestlingError
    from toolkit.packaging.write import check_place
    from toolkit.quantization.half import refuse_half_arithmetic
    from toolkit.quantization.run import quantize_model, store_half
    from toolkit.quantization.settings import parse_bound, Settings
    from toolkit.samples import read_labelled

    if fp16 == "arithmetic":
        refuse_half_arithmetic()
    if fp16 is not None and max_drop is not None:
        raise NestlingError("--fp16 and --max-drop exclude each other.")
    settings = Settings(
        method=method,
        percentile=percentile,
        activations=activations,
        symmetric=symmetric,
        per_channel=not per_tensor,
        equalize=equalize,
        correct=correct,
        recurrent=recurrent,
        bound=None if max_drop is None else parse_bound(max_drop, "--max-drop"),
    )
    check_place(out)
    request = imports.of(model, use_records=False)
    loaded, samples = _inputs(request, calib_path, limit, console)
    labelled = None if labels_path is None else read_labelled(labels_path, loaded.inputs)
    with console.working(f"quantising {model.name}"):
        if fp16 is not None:
            done = store_half(loaded, samples, labelled=labelled, say=console.detail)
        else:
            done = quantize_model(loaded, samples, settings, labelled=labelled, say=console.detail)
    done.write(out)
    _print(done, out, labels_path, console)
    console.json(json_path, {"file": str(out), **done.as_json()})
    return 0


def _inputs(
    request: ModelRequest, path: Path, limit: int, console: Console
) -> tuple[Model, Samples]:
    """Import the model, and read samples for it; what it leaves open comes from in__NAME."""
    from toolkit.cli.work import import_model
    from toolkit.errors import NestlingError
    from toolkit.pipeline import load
    from toolkit.quantization.data import calibration_samples
    from toolkit.samples import IN, read_arrays
    from toolkit.user_ops import load_ops

    arrays = {n: a for n, a in read_arrays(path).items() if a is not None}
    refusal: NestlingError
    try:
        model = load(
            request.path, dims=request.dims, input_shapes=request.shapes, pins=request.pins,
            ops=load_ops(request.ops) if request.ops else None,
        )  # fmt: skip
        samples = calibration_samples(arrays, model.inputs, label=str(path), limit=limit)
        for note in model.notes:
            console.note(note)
        return model, samples
    except NestlingError as error:
        if not any(n.startswith(IN) for n in arrays):
            raise
        refusal = error
    try:
        _, works = import_model(request, console, input_path=path)
    except NestlingError:
        raise refusal from None
    if len(works) > 1:
        varying = sorted(set(works[0].model.pins) - set(request.pins))
        raise NestlingError(
            f"{path}: input {', '.join(map(repr, varying))} must be pinned, and its value varies "
            "from sample to sample.",
            hint=f"choose one: --set {varying[0]}=VALUE",
        )
    found = works[0].samples
    return works[0].model, found.take(range(min(found.count, limit)))


def _print(done: Quantized, out: Path, labels_path: Path | None, console: Console) -> None:
    rows = [
        (_short(layer.name), "+".join(layer.ops), layer.precision, f"{layer.snr_db:.1f}",
         f"{layer.weights_bytes:,}" if layer.weights_bytes else "")
        for layer in done.layers
    ]  # fmt: skip
    if rows:
        columns = ["layer", "operators", "in", "SNR, dB", "weights, bytes"]
        console.table(columns, rows, right=["SNR, dB", "weights, bytes"])
    for name, db in done.outputs_db.items():
        console.fact("output", f"{name}: {db:.1f} dB over {done.samples} samples")
    console.fact("constants", f"{done.weights_before:,} -> {done.weights_after:,} bytes")
    before, after = done.accuracy_before, done.accuracy_after
    if before is not None and after is not None:
        change = 100 * (after.share - before.share)
        console.fact(
            "accuracy",
            f"{before.share:.1%} -> {after.share:.1%} ({change:+.1f} points) on "
            f"{after.count:,} samples of {labels_path}",
        )
    for note in done.notes:
        console.note(note)
    console.fact("written", str(out))


def _short(name: str) -> str:
    """Return a name that fits a table: some exporters join all that was folded into a node."""
    return name if len(name) <= 40 else f"{name[:15]}...{name[-22:]}"

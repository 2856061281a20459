"""The choices of post-training quantisation."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.errors import NestlingError
from toolkit.quantization.ranges import METHODS, PERCENTILE, Scheme

ACTIVATIONS = ("int8", "uint8", "int16")


@dataclass(frozen=True, slots=True)
class Bound:
    """How much may be lost: `points` of accuracy on labelled samples, or the outputs' least dB."""

    points: float | None = None
    db: float | None = None


def parse_bound(text: str, what: str) -> Bound:
    """Read `0.5`, points of accuracy, or `30dB`."""
    number = text.strip().lower().removesuffix("db").strip()
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise NestlingError(
            f"{what}: {text!r} is neither points of accuracy like 0.5 nor a ratio like 30dB."
        )
    return Bound(db=value) if text.strip().lower().endswith("db") else Bound(points=value)


@dataclass(frozen=True, slots=True)
class Settings:
    """Choices of post-training quantisation.

    `method`: how ranges are chosen, one of `METHODS`; `percentile` is for that one.  `activations`:
    their integer type; `symmetric`: with zero points in the middle, as those of int16 always are.
    `per_channel`: weights have a scale for each output channel.  `equalize`: cross-layer
    equalisation first; None: where weights have one scale, as channels have scales of their own
    otherwise.  `correct`: bias correction.  `recurrent`: weights of LSTM, GRU and RNN, which
    compute in float, are stored in 8 bits too: less flash, more RAM, as they are widened where they
    are read.  `bound`: layers are kept in more bits until it is met.
    """

    method: str = "mse"
    percentile: float = PERCENTILE
    activations: str = "int8"
    symmetric: bool = False
    per_channel: bool = True
    equalize: bool | None = None
    correct: bool = True
    recurrent: bool = False
    bound: Bound | None = None

    def __post_init__(self) -> None:
        for what, value, known in (
            ("method", self.method, tuple(METHODS)),
            ("activations", self.activations, ACTIVATIONS),
        ):
            if value not in known:
                raise NestlingError(
                    f"{what} {value!r} is unknown; it is one of {', '.join(known)}."
                )
        if not 50.0 < self.percentile <= 100.0:
            raise NestlingError(f"percentile {self.percentile:g} is not within 50..100.")

    @property
    def scheme(self) -> Scheme:
        """How activations are stored."""
        return Scheme(self.activations, self.symmetric or self.activations == "int16")

    @property
    def equalizes(self) -> bool:
        """Tell whether cross-layer equalisation is done."""
        return not self.per_channel if self.equalize is None else self.equalize

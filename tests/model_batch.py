"""Many compiled models in one library, built by one compiler call, run in one child process."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from toolkit.errors import ToolchainError
from toolkit.measure.host import HostSession
from toolkit.paths import RUNTIME_C
from toolkit.pipeline import Compiled
from toolkit.runners import pack_inputs, unpack_outputs
from toolkit.targets.target import get_target
from toolkit.toolchain.compiler import build_shared, find_compiler

TIMEOUT_S = 60.0


@dataclass
class ModelBatch:
    """Compiled models of distinct names and equal options.  A context manager.

    `broken` holds the compiler's message for each model whose C it refused.
    """

    models: Sequence[Compiled]
    broken: dict[str, ToolchainError] = field(default_factory=dict)
    _session: HostSession | None = None

    def __post_init__(self) -> None:
        names = [m.name for m in self.models]
        assert len(set(names)) == len(names), names
        assert len({m.options for m in self.models}) <= 1
        self._folder = tempfile.TemporaryDirectory(prefix="nestling-batch-")
        self.folder = Path(self._folder.name)
        self._places: dict[str, Path] = {}

    def __enter__(self) -> Self:
        self._build(list(self.models))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the child process and remove the library."""
        if self._session is not None:
            self._session.close()
            self._session = None
        self._folder.cleanup()

    def _build(self, models: list[Compiled]) -> None:
        """Build a library of these models; when the compiler refuses it, halve it."""
        if not models:
            return
        try:
            library = build_models(models, self.folder / models[0].name)
        except ToolchainError as error:
            if len(models) == 1:
                self.broken[models[0].name] = error
                return
            middle = len(models) // 2
            self._build(models[:middle])
            self._build(models[middle:])
            return
        self._places.update((m.name, library) for m in models)

    def run(self, compiled: Compiled, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run one of the models; raise what the compiler said about it, or how it crashed."""
        if compiled.name in self.broken:
            raise self.broken[compiled.name]
        library = self._places[compiled.name]
        if (
            self._session is None
            or self._session.library != library
            or self._session.process.poll() is not None
        ):
            if self._session is not None:
                self._session.close()
            self._session = HostSession(library, compiled.name, timeout_s=TIMEOUT_S).__enter__()
        self._session.name = compiled.name
        raw = b"".join(pack_inputs(compiled, inputs))
        return unpack_outputs(compiled, self._session.run(raw).outputs)


def write_units(models: Sequence[Compiled], folder: Path) -> list[Path]:
    """Write the models' C to `folder`; return two files that include all kernels, all weights."""
    includes: dict[str, list[str]] = {"kernels": [], "weights": []}
    for compiled in models:
        for name, content in compiled.files.files.items():
            assert isinstance(content, str), "weights must be C text"
            (folder / name).write_text(content, encoding="utf-8")
            if name.endswith(".c"):
                unit = "weights" if name.endswith("_weights.c") else "kernels"
                includes[unit].append(f'#include "{name}"\n')
    units = []
    for unit, lines in includes.items():
        units.append(folder / f"all_{unit}.c")
        units[-1].write_text("".join(lines), encoding="utf-8")
    return units


def build_models(models: Sequence[Compiled], folder: Path) -> Path:
    """Build one shared library of several models and the runtime."""
    folder.mkdir(exist_ok=True)
    units = write_units(models, folder)
    options = models[0].options
    port = RUNTIME_C / "port" / "host"
    runtime = [p for p in sorted((RUNTIME_C / "src").glob("*.c")) if p.stem != "nst_rpc"]
    return build_shared(
        find_compiler(),
        [*units, *runtime, port / "nst_bench.c"],
        [folder, RUNTIME_C / "include", port],
        folder / "models.so",
        flags=[*get_target(options.target).cflags, *options.cflags],
        libs=("-lm", "-lpthread", "-Wl,-z,defs"),  # a missing symbol is an error of this model
    )

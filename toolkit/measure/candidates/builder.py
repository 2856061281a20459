"""Building kernels for the host: many a compiler call, with a precompiled header and a cache.

The cache is a folder.  `units/KEY.so` are the libraries, `kernels/KEY` links from each kernel to
the library that holds it, whatever else that holds; a KEY is a digest of the text, the compiler's
version, the flags and the headers.  Every file comes into being under another name and is
renamed, so several processes may share the folder, and one that is killed leaves no half file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from toolkit.errors import MeasureError
from toolkit.measure.candidates.source import HEADER, header_text, Printed, source_text
from toolkit.paths import RUNTIME_C
from toolkit.toolchain.compiler import call_compiler, Compiler, CompilerRun, run_compiler
from toolkit.toolchain.sizes import read_elf

CACHE_BYTES = 512 << 20
"""What the libraries of a cache may take together."""

_YOUNG_S = 600.0
"""Libraries used within this time stay: another process may be about to load one."""

_COMPILE_S, _COMPILE_MORE_S = 30.0, 4.0
"""What one kernel may take to compile, and each further one of its file; most take 0.05 s."""


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel in a library."""

    library: Path
    entry: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A kernel that did not compile: why, and the command that shows it."""

    why: str
    command: str


class Builder:
    """Compiles kernels with one compiler and one set of flags.  May be used by several threads.

    `folder`: the cache, made when missing.  Raises `MeasureError` when it cannot be written and
    `ToolchainError` when the compiler cannot be started.
    """

    def __init__(
        self,
        compiler: Compiler,
        flags: Sequence[str],
        folder: Path,
        *,
        limit_bytes: int = CACHE_BYTES,
        failures: int = 64,
    ) -> None:
        self.compiler, self.flags = compiler, (*compiler.flags, "-std=c99", *flags)
        self.folder, self.limit_bytes, self.failures = folder, limit_bytes, failures
        self.include = RUNTIME_C / "include"
        with self.writing():
            for name in ("units", "kernels", "headers", "failures", "work"):
                (folder / name).mkdir(parents=True, exist_ok=True)
        self.trim()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Turn what the file system refuses into one line."""
        try:
            yield
        except OSError as error:
            raise MeasureError(
                f"cannot write in the cache {self.folder}: {error.strerror}.",
                hint="name another folder, or make room",
            ) from None

    @contextlib.contextmanager
    def working(self) -> Iterator[Path]:
        """Make a folder of one's own in the cache, for what is renamed when it is complete."""
        with self.writing():
            work = Path(tempfile.mkdtemp(dir=self.folder / "work"))
        try:
            with self.writing():
                yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)

    @cached_property
    def base(self) -> str:
        """A digest of what goes into every library beside the kernels' text."""
        text = hashlib.sha256()
        text.update("\0".join([self.version, *self.flags, header_text()]).encode())
        for path in sorted(self.include.glob("*.h")):
            text.update(path.read_bytes())
        return text.hexdigest()[:16]

    @cached_property
    def version(self) -> str:
        """What the compiler says it is."""
        found = call_compiler([self.compiler.command, "--version"], timeout_s=60.0)
        return found.stdout

    @cached_property
    def header(self) -> Path:
        """The folder of the precompiled header, made when it is missing."""
        folder = self.folder / "headers" / self.base
        if (folder / HEADER).exists():
            return folder
        suffix = "pch" if self.is_clang else "gch"
        with self.working() as work:
            new = work / "new"
            new.mkdir()
            (new / HEADER).write_text(header_text(), encoding="utf-8")
            run_compiler([*self.command, "-x", "c-header", str(new / HEADER),
                          "-o", str(new / f"{HEADER}.{suffix}")])  # fmt: skip
            try:
                new.rename(folder)
            except OSError:
                if not folder.exists():  # else another process was first
                    raise
        return folder

    @property
    def is_clang(self) -> bool:
        """Tell whether the compiler is clang, whose command names its precompiled header."""
        return "clang" in self.version

    @property
    def command(self) -> tuple[str, ...]:
        """Compiler, flags and include folders."""
        return (self.compiler.command, "-pipe", *self.flags, "-fPIC", f"-I{self.include}")

    def key(self, text: str) -> str:
        """Return the key of a text in the cache."""
        return hashlib.sha256(f"{self.base}\0{text}".encode()).hexdigest()[:32]

    def find(self, kernel: Printed) -> Built | None:
        """Return a kernel that was built before."""
        link = self.folder / "kernels" / self.key(kernel.text)
        try:
            library = link.resolve(strict=True)
            os.utime(library)
        except OSError:
            return None
        return Built(library, kernel.entry)

    def build(self, kernels: Sequence[Printed]) -> list[Built | Refused]:
        """Build those kernels that the cache does not hold, together; bisect when that fails."""
        known = {k.entry: self.find(k) for k in kernels}
        missing = list({k.entry: k for k in kernels if known[k.entry] is None}.values())
        done: dict[str, Built | Refused] = {e: b for e, b in known.items() if b is not None}
        if missing:
            with self.working() as work:
                self._build(missing, work, done)
        return [done[k.entry] for k in kernels]

    def _build(
        self, kernels: Sequence[Printed], work: Path, done: dict[str, Built | Refused]
    ) -> None:
        text = source_text(kernels)
        source, library = work / "unit.c", work / "unit.so"
        source.write_text(text, encoding="utf-8")
        header = ("-include-pch", f"{self.header / HEADER}.pch") if self.is_clang else ()
        run = call_compiler(
            [*self.command, f"-I{self.header}", *header, "-shared", str(source),
             "-o", str(library), "-lm"],
            timeout_s=_COMPILE_S + _COMPILE_MORE_S * (len(kernels) - 1),
        )  # fmt: skip
        if run.code == 0:
            key = self.key(text)
            place = self.folder / "units" / f"{key}.so"
            library.replace(place)
            for kernel in kernels:
                self._link(kernel, place)
            done.update((k.entry, Built(place, k.entry)) for k in kernels)
            return
        if "No space left on device" in run.stderr:
            raise MeasureError(
                f"{self.compiler.command}: No space left on device.",
                hint=f"it writes in {self.folder} and in the system's folder for temporary files",
            )
        if len(kernels) == 1:
            done[kernels[0].entry] = self._refuse(kernels[0], run)
            return
        middle = len(kernels) // 2
        for part in (kernels[:middle], kernels[middle:]):
            self._build(part, work, done)

    def _link(self, kernel: Printed, place: Path) -> None:
        link = self.folder / "kernels" / self.key(kernel.text)
        temporary = link.with_name(f".{link.name}.{os.getpid()}.{time.monotonic_ns()}")
        temporary.symlink_to(Path("..") / "units" / place.name)
        temporary.replace(link)

    def _refuse(self, kernel: Printed, run: CompilerRun) -> Refused:
        if run.code is None:
            why = f"the compiler took over {_COMPILE_S:g} s"
        elif run.code < 0:
            why = f"the compiler was killed by signal {-run.code}"
        else:
            lines = [l for l in run.errors if "error" in l.lower()] or run.errors or ["no message"]
            why = lines[0].split("error: ")[-1]
        folder = self.keep(kernel.entry, {"kernel.c": source_text([kernel]).encode()})
        return Refused(why, self.command_for(folder / "kernel.c", "-c -o /dev/null"))

    def command_for(self, source: Path, rest: str) -> str:
        """Return a shell command that compiles a kept file."""
        flags = [f for f in self.command if f != "-pipe"]
        return f"{shlex.join([*flags, str(source)])} {rest}"

    def keep(self, name: str, files: dict[str, bytes]) -> Path:
        """Keep files about a failure, with the header; return their folder.  The oldest go."""
        folder = self.folder / "failures" / name
        with self.writing():
            folder.mkdir(exist_ok=True)
            for file, data in {HEADER: header_text().encode(), **files}.items():
                (folder / file).write_bytes(data)
            kept = sorted((p for p in folder.parent.iterdir()), key=lambda p: p.stat().st_mtime)
            for old in kept[: -self.failures]:
                shutil.rmtree(old, ignore_errors=True)
        return folder

    def trim(self) -> None:
        """Remove what killed processes left, and the libraries unused for longest."""
        now = time.time()
        with self.writing():
            for work in (self.folder / "work").iterdir():
                if now - work.stat().st_mtime > 3600.0:
                    shutil.rmtree(work, ignore_errors=True)
            found = sorted(
                ((s.st_mtime, s.st_size, p) for p in (self.folder / "units").iterdir()
                 for s in [p.stat()]),
                reverse=True,
            )  # fmt: skip
            total = 0
            for used, size, path in found:
                total += size
                if total > self.limit_bytes and now - used > _YOUNG_S:
                    path.unlink(missing_ok=True)
            for link in (self.folder / "kernels").iterdir():
                if not link.exists():
                    link.unlink(missing_ok=True)


def code_bytes(library: Path) -> dict[str, int]:
    """Return the bytes of machine code of each kernel of a library, by its entry."""
    sizes: dict[str, int] = {}
    symbols = [s for s in read_elf(library).symbols if s.is_function]
    entries = [s.name for s in symbols if s.name.endswith("_entry")]
    for entry in entries:
        stem = entry.removesuffix("_entry")
        sizes[entry] = sum(s.nbytes for s in symbols if s.name.startswith(stem))
    return sizes

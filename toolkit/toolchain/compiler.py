"""The host's C compiler: finding it, and building shared libraries and programs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import ToolchainError

STRICT_FLAGS = (
    "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wsign-conversion", "-Wshadow",
    "-Wcast-qual", "-Wmissing-prototypes", "-Wundef", "-Wvla", "-Werror",
)  # fmt: skip
"""The flags under which all generated C is clean, with -std=c99."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler and the flags that select its target."""

    command: str
    flags: tuple[str, ...] = ()


def find_compiler(command: str | None = None) -> Compiler:
    """Return the compiler `command`, or the first of cc, gcc, clang that is installed."""
    for name in (command,) if command else ("gcc", "cc", "clang"):
        path = shutil.which(name)
        if path:
            return Compiler(path)
    wanted = command or "cc, gcc or clang"
    raise ToolchainError(
        f"no C compiler: {wanted} is not on the PATH.", hint="on Debian: apt-get install gcc"
    )


@dataclass(frozen=True, slots=True)
class CompilerRun:
    """How a compiler command ended.  `code`: of its exit, negative for a signal, None when it took
    too long and was killed."""

    code: int | None
    stderr: str
    stdout: str = ""

    @property
    def errors(self) -> list[str]:
        """The first lines it wrote."""
        return [line for line in self.stderr.splitlines() if line.strip()][:12]


def call_compiler(args: Sequence[str], *, timeout_s: float = 600.0) -> CompilerRun:
    """Run a compiler command to its end; raise `ToolchainError` when it cannot be started."""
    try:
        process = subprocess.Popen(
            args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise ToolchainError(f"{args[0]} cannot be started: {error.strerror}.") from None
    with process:
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # a driver's children too
            return CompilerRun(None, process.communicate()[1])
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return CompilerRun(process.returncode, stderr, stdout)


def run_compiler(args: Sequence[str], *, timeout_s: float = 600.0) -> None:
    """Run a compiler command; raise `ToolchainError` with its first errors when it fails."""
    done = call_compiler(args, timeout_s=timeout_s)
    if done.code is None:
        raise ToolchainError(
            f"{args[0]} did not finish in {timeout_s:g} s.", state=[" ".join(args)]
        )
    if done.code != 0:
        raise ToolchainError(
            f"{Path(args[0]).name} failed with exit code {done.code}.",
            state=[*done.errors, "command: " + " ".join(args)],
        )


def build_shared(
    compiler: Compiler,
    sources: Sequence[Path],
    include_dirs: Sequence[Path],
    output: Path,
    *,
    flags: Sequence[str] = ("-O3", "-march=native"),
    libs: Sequence[str] = ("-lm",),
) -> Path:
    """Compile sources into the shared library `output`."""
    run_compiler(
        [
            compiler.command, *compiler.flags, "-std=c99", "-shared", "-fPIC", *flags,
            *(f"-I{d}" for d in include_dirs), *map(str, sources), "-o", str(output), *libs,
        ]
    )  # fmt: skip
    return output

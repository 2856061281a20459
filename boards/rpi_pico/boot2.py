"""Assemble boot2.S, pad it to 252 bytes, add the CRC that RP2040's ROM checks, and write boot2.c.

python boards/rpi_pico/boot2.py [--check]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
LENGTH = 252

HEAD = """\
/* boot2.c - the first 256 bytes of flash: boot2.S, assembled, and its CRC; boot2.py writes it. */
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
extern const uint32_t nst_boot2[64];
#ifdef __cplusplus
}
#endif

__attribute__((section(".nst_boot"), used)) const uint32_t nst_boot2[64] = {
"""


def crc32(data: bytes) -> int:
    """Return the CRC of RP2040's ROM (2.8.1.3.1): 04C11DB7, not reflected, from all ones."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte << 24
        for _ in range(8):
            crc = (crc << 1 ^ (0x04C11DB7 if crc & 0x80000000 else 0)) & 0xFFFFFFFF
    return crc


def boot2_c(compiler: str = "arm-none-eabi-gcc") -> str:
    """Return the text of boot2.c."""
    with tempfile.TemporaryDirectory() as folder:
        made, raw = Path(folder) / "boot2.o", Path(folder) / "boot2.bin"
        subprocess.run([compiler, "-c", str(HERE / "boot2.S"), "-o", str(made)], check=True)
        objcopy = compiler.removesuffix("gcc") + "objcopy"
        subprocess.run([objcopy, "-O", "binary", "-j", ".boot2", str(made), str(raw)], check=True)
        code = raw.read_bytes()
    if len(code) > LENGTH:
        raise SystemExit(f"boot2.S: {len(code)} bytes of code; the ROM takes {LENGTH}")
    code = code.ljust(LENGTH, b"\0")
    words = [*(int.from_bytes(code[i : i + 4], "little") for i in range(0, LENGTH, 4)), crc32(code)]
    lines = ["    " + ", ".join(f"0x{w:08x}u" for w in words[i : i + 8]) for i in range(0, 64, 8)]
    return HEAD + ",\n".join(lines) + "};\n"


def main() -> int:
    """Write boot2.c, or tell whether it is as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 when it differs")
    args = parser.parse_args()
    path, text = HERE / "boot2.c", boot2_c()
    if args.check:
        return int(path.read_text(encoding="utf-8") != text)
    path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

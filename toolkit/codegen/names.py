"""C identifiers for buffers, loops, tensors and models."""

from __future__ import annotations

import re
from collections.abc import Iterable

_MATH = (
    """acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2
    expm1 fabs fdim floor fma fmax fmin fmod frexp hypot ilogb ldexp lgamma llrint llround log
    log10 log1p log2 logb lrint lround modf nearbyint nextafter pow remainder rint round scalbn
    sin sinh sqrt tan tanh tgamma trunc""".split()
)  # fmt: skip
_RESERVED = frozenset(
    """auto break case char const continue default do double else enum extern float for goto if
    inline int long register restrict return short signed sizeof static struct switch typedef
    union unsigned void volatile while _Bool _Complex _Imaginary asm bool true false and or not
    xor class new delete this template typename public private protected virtual namespace using
    try catch throw operator friend explicit export mutable main errno NULL NAN INFINITY I j0 j1
    jn y0 y1 yn gamma exp log sin cos tan abs div time signal index arena operands consts
    alignas alignof constexpr decltype nullptr noexcept static_assert thread_local wchar_t near
    far small linux unix arm isnan isinf isfinite isnormal signbit fpclassify memcpy memset
    memmove memcmp""".split()
    + [name + suffix for name in _MATH for suffix in ("", "f")]
)


def c_name(text: str) -> str:
    """Return `text` as a C identifier: other characters become '_', keywords gain one."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", text)
    name = re.sub(r"__+", "_", name).lstrip("_") or "x"
    if name[0].isdigit():
        name = f"x{name}"
    return f"{name}_" if name in _RESERVED or name.startswith("nst_") else name


def c_names(texts: Iterable[str]) -> dict[str, str]:
    """Map each text to a C identifier of its own; later ones of equal name get a number."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for text in texts:
        if text in names:
            continue
        base = c_name(text)
        name, n = base, 1
        while name in taken:
            n += 1
            name = f"{base}_{n}"
        taken.add(name)
        names[text] = name
    return names


_HEADERS = frozenset(
    """assert complex ctype errno fenv float immintrin inttypes iso646 limits locale malloc math
    memory pthread sched setjmp signal stdalign stdarg stdatomic stdbool stddef stdint stdio stdlib
    stdnoreturn string strings tgmath threads time uchar unistd wchar wctype arm_acle arm_mve
    arm_neon features alloca nst""".split()
)
"""Names whose header would stand before one of the system's, or of the runtime."""

_MODEL_SYMBOL = re.compile(r"run|model|nodes|operands|consts|inputs|outputs|w\d+.*|.*_t|k_.*")
"""What kernels may not be called: other generated symbols are."""


def library_name(text: str) -> str:
    """Return the prefix of all symbols of a model, which is also the name of its header."""
    name = c_name(text)
    return f"{name}_" if name.lower() in _HEADERS or name.lower().startswith("nst_") else name


def kernel_symbol(model: str, kernel: str) -> str:
    """Return the C name of a kernel; different kernels have different ones."""
    name = c_name(kernel)
    return f"{model}_k_{name}" if _MODEL_SYMBOL.fullmatch(name) else f"{model}_{name}"

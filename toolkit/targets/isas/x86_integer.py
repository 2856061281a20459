"""Integer vectors and dot products of AVX2, AVX-512 and VNNI.  Meaning: Intel Intrinsics Guide."""

from __future__ import annotations

from toolkit.targets.isa import Intrinsic, VectorType
from toolkit.targets.isas.integer import int32_ops, long_texts, narrow_vectors
from toolkit.targets.isas.nests import products
from toolkit.targets.tensor import tensor_table, TensorIntrinsic, TensorOperand


def _int32(prefix: str, bits: int, suffix: str) -> dict[str, Intrinsic]:
    """Return what both widths name alike."""

    def op(name: str, args: str) -> str:
        return f"{prefix}_{name}({args})"

    texts = {
        "add": op("add_epi32", "{0}, {1}"),
        "sub": op("sub_epi32", "{0}, {1}"),
        "mul": op("mullo_epi32", "{0}, {1}"),
        "min": op("min_epi32", "{0}, {1}"),
        "max": op("max_epi32", "{0}, {1}"),
        "fma": op("add_epi32", op("mullo_epi32", "{0}, {1}") + ", {2}"),
        "and": op(f"and_si{bits}", "{0}, {1}"),
        "or": op(f"or_si{bits}", "{0}, {1}"),
        "xor": op(f"xor_si{bits}", "{0}, {1}"),
        "shl": op("slli_epi32", "{0}, {1}"),
        "shr": op("srai_epi32", "{0}, {1}"),
        "abs": op("abs_epi32", "{0}"),
        "set1": op("set1_epi32", "{0}"),
        "zero": op(f"setzero_si{bits}", ""),
        "from_float32": op("cvttps_epi32", "{0}"),
        "rint_float32": op("cvtps_epi32", "{0}"),
        "load": _load(bits),
        "store": _store(bits),
        "shift_away_n": f"nst_shift_away_{suffix}({{0}}, {op('set1_epi32', '{1}')})",
        **{
            f"saturate_{dtype}": op("max_epi32", f"{op('min_epi32', '{{0}}, {}')}, {{}}").format(
                op("set1_epi32", str(most)), op("set1_epi32", str(least))
            )
            for dtype, least, most in (("int8", -128, 127), ("uint8", 0, 255))
        },
        **long_texts(suffix),
    }
    return int32_ops(texts, suffix)


def _narrow(prefix: str, bits: int) -> dict[str, VectorType]:
    """Return the vectors of narrow integers of both widths."""

    def texts(dtype: str, short: str) -> dict[str, str]:
        width = short[1:]
        limit = f"ep{short}"  # epi8, epu16: signed or not
        element = {"8": "(char)", "16": "(short)"}[width]
        found = {
            "add": f"{prefix}_add_epi{width}({{0}}, {{1}})",
            "sub": f"{prefix}_sub_epi{width}({{0}}, {{1}})",
            "min": f"{prefix}_min_{limit}({{0}}, {{1}})",
            "max": f"{prefix}_max_{limit}({{0}}, {{1}})",
            "and": f"{prefix}_and_si{bits}({{0}}, {{1}})",
            "or": f"{prefix}_or_si{bits}({{0}}, {{1}})",
            "xor": f"{prefix}_xor_si{bits}({{0}}, {{1}})",
            "set1": f"{prefix}_set1_epi{width}({element}({{0}}))",
            "zero": f"{prefix}_setzero_si{bits}()",
            "load": _load(bits),
            "store": _store(bits),
        }
        if width == "16":
            found["mul"] = f"{prefix}_mullo_epi16({{0}}, {{1}})"
        return found

    return narrow_vectors(texts, lambda _: f"__m{bits}i", bits)


def _load(bits: int) -> str:
    if bits == 256:
        return "_mm256_loadu_si256((const __m256i *)(const void *)({0}))"
    return "_mm512_loadu_si512((const void *)({0}))"


def _store(bits: int) -> str:
    if bits == 256:
        return "_mm256_storeu_si256((__m256i *)(void *)({0}), {1})"
    return "_mm512_storeu_si512((void *)({0}), {1})"


NARROW_512 = _narrow("_mm512", 512)
NARROW_256 = _narrow("_mm256", 256)
INT32X16 = VectorType("__m512i", 16, _int32("_mm512", 512, "i32x16"), "nst_long_i32x16")
INT32X8 = VectorType("__m256i", 8, _int32("_mm256", 256, "i32x8"), "nst_long_i32x8")


def _dots(name: str, prefix: str, bits: int) -> tuple[TensorIntrinsic, ...]:
    """Return dot products of pairs, from multiplications of 16-bit halves: exact, as sums wrap."""
    vector, lanes = f"__m{bits}i", bits // 32
    total = TensorOperand(vector)
    c = _accumulated(f"{prefix}_add_epi32({{C0}}, {prefix}_madd_epi16({{A0}}, {{B0}}))")
    whole = _load(bits)
    half = "_mm256_loadu_si256((const __m256i *)(const void *)({0}))"
    if bits == 256:
        half = "_mm_loadu_si128((const __m128i *)(const void *)({0}))"
    return (
        TensorIntrinsic(
            f"{name}_dot2_s16s16",
            products({"i": lanes, "k": 2}, "i", ("int16", "k"), ("int16", "ik")),
            {
                "C": total,
                "A": TensorOperand(vector, (f"{prefix}_set1_epi32(nst_load_word({{0}}))",)),
                "B": TensorOperand(vector, (whole,)),
            },
            c,
        ),
        TensorIntrinsic(
            f"{name}_dot2_s16s8",
            products({"i": lanes, "k": 2}, "i", ("int16", "k"), ("int8", "ik")),
            {
                "C": total,
                "A": TensorOperand(vector, (f"{prefix}_set1_epi32(nst_load_word({{0}}))",)),
                "B": TensorOperand(vector, (f"{prefix}_cvtepi8_epi16({half})",)),
            },
            c,
        ),
        TensorIntrinsic(
            f"{name}_dot2_s8s8",
            products({"i": lanes, "k": 2}, "i", ("int8", "k"), ("int8", "ik")),
            {
                "C": total,
                "A": TensorOperand(vector, (f"{prefix}_set1_epi32(nst_load_pair({{0}}))",)),
                "B": TensorOperand(vector, (f"{prefix}_cvtepi8_epi16({half})",)),
            },
            c,
        ),
    )


def _taps(name: str, prefix: str, bits: int) -> tuple[TensorIntrinsic, ...]:
    """Return products lane by lane, of bytes widened to 32 bits: depthwise convolutions."""
    vector, lanes = f"__m{bits}i", bits // 32
    size = bits // 4
    part = "_mm_loadl_epi64" if size == 64 else "_mm_loadu_si128"
    load = f"{part}((const __m128i *)(const void *)({{0}}))"
    wide = {t: f"{prefix}_cvtep{s}8_epi32({load})" for t, s in (("int8", "i"), ("uint8", "u"))}
    least = f"{prefix}_set1_epi32(-128)"
    kinds = {
        "u8": ("uint8", "", wide["uint8"]),
        "s8": ("int8", "", wide["int8"]),
        "o8": ("int8", "less", f"{prefix}_sub_epi32({wide['int8']}, {least})"),
    }
    c = _accumulated(f"{prefix}_add_epi32({{C0}}, {prefix}_mullo_epi32({{A0}}, {{B0}}))")
    return tuple(
        TensorIntrinsic(
            f"{name}_taps{lanes}_{kind}s8",
            products({"i": lanes}, "i", (dtype, "i"), ("int8", "i"), counted=counted),
            {
                "C": TensorOperand(vector),
                "A": TensorOperand(vector, (text,)),
                "B": TensorOperand(vector, (wide["int8"],)),
            },
            c,
        )
        for kind, (dtype, counted, text) in kinds.items()
    )


def _accumulated(value: str) -> tuple[str, ...]:
    """Return the statements of an accumulation: gcc 12 else stores accumulators to the stack."""
    return (f"{{C0}} = {value};\nNST_IN_REGISTER({{C0}});",)


def _vnni(name: str, prefix: str, bits: int, dot: str) -> tuple[TensorIntrinsic, ...]:
    """Return `vpdpbusd`: unsigned by signed bytes, four to a lane, without saturation.

    Signed bytes of A are counted from -128 first ("flipped"); see `ShiftOperand` and the pass
    `count_from_least`, whose products are less -128 ("offset").
    """
    vector, lanes = f"__m{bits}i", bits // 32
    word = "nst_load_word({0})"
    rows = TensorOperand(vector, (_load(bits),))
    loops = {"i": lanes, "k": 4}
    signs = f"{prefix}_set1_epi32((int32_t)INT32_C(-2139062144))"
    flipped = f"{prefix}_xor_si{bits}({prefix}_set1_epi32({word}), {signs})"
    c = _accumulated(f"{dot}({{C0}}, {{A0}}, {{B0}})")
    return (
        TensorIntrinsic(
            f"{name}_dot4_u8s8",
            products(loops, "i", ("uint8", "k"), ("int8", "ik")),
            {
                "C": TensorOperand(vector),
                "A": TensorOperand(vector, (f"{prefix}_set1_epi32({word})",)),
                "B": rows,
            },
            c,
        ),
        *(
            TensorIntrinsic(
                f"{name}_dot4_{letter}8s8",
                products(loops, "i", ("int8", "k"), ("int8", "ik"), counted=how),
                {
                    "C": TensorOperand(vector),
                    "A": TensorOperand(vector, (flipped,)),
                    "B": rows,
                },
                c,
            )
            for letter, how in (("f", "flip"), ("o", "less"))
        ),
    )


AVX2_TENSORS = tensor_table(*_dots("avx2", "_mm256", 256), *_taps("avx2", "_mm256", 256))
AVX512_TENSORS = tensor_table(*_dots("avx512", "_mm512", 512), *_taps("avx512", "_mm512", 512))
AVXVNNI_TENSORS = tensor_table(*_vnni("avxvnni", "_mm256", 256, "_mm256_dpbusd_avx_epi32"))
AVX512VNNI_TENSORS = tensor_table(*_vnni("avx512vnni", "_mm512", 512, "_mm512_dpbusd_epi32"))

/* The instructions of AVX-VNNI in their encoding of AVX-512 VNNI, for processors without the other. */
#include <immintrin.h>
#define _mm256_dpbusd_avx_epi32 _mm256_dpbusd_epi32

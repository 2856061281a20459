/* nst_functions.h - operators that are no loop nest, as C functions that generated kernels call.
 *
 * Each is a function of its own, one an element type, so that `-ffunction-sections` and
 * `--gc-sections` leave only those a model uses.  Tensors are dense and row-major; outputs come first.
 * There is no heap, no recursion and no global.
 */
#ifndef NST_FUNCTIONS_H
#define NST_FUNCTIONS_H

#include <stddef.h>
#include <stdint.h>

#include "nst.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The k largest (or smallest) elements along the middle axis of x[outer][n][inner], best first, and where
 * they stand: values and indices are [outer][k][inner], 1 <= k <= n.  Of equal elements the lower
 * index comes first.  NaN counts as larger than any number. */
#define NST_TOPK_DECLARE(suffix, type)                                                             \
    void nst_topk_##suffix(type *values, int64_t *indices, const type *x, int32_t outer, int32_t n, \
                           int32_t inner, int32_t k, int32_t largest);
NST_TOPK_DECLARE(float32, float)
NST_TOPK_DECLARE(float64, double)
NST_TOPK_DECLARE(int8, int8_t)
NST_TOPK_DECLARE(int16, int16_t)
NST_TOPK_DECLARE(int32, int32_t)
NST_TOPK_DECLARE(int64, int64_t)
NST_TOPK_DECLARE(uint8, uint8_t)
NST_TOPK_DECLARE(uint16, uint16_t)
NST_TOPK_DECLARE(uint32, uint32_t)
NST_TOPK_DECLARE(uint64, uint64_t)
NST_TOPK_DECLARE(bool, uint8_t)
#undef NST_TOPK_DECLARE

/* RoiAlign of ONNX: x[batch][channels][height][width] and rois[count][4] (x1, y1, x2, y2) to
 * y[count][channels][out_height][out_width].  Each bin is the mean, or with `use_max` the largest
 * weighted neighbour, of sampling_ratio x sampling_ratio samples; 0 means as many as the bin is wide, at
 * most 4096 an axis.  A batch index out of range is clamped. */
#define NST_ROI_ALIGN_DECLARE(suffix, type)                                                       \
    void nst_roi_align_##suffix(type *y, const type *x, const type *rois, const int64_t *batches, \
                                int32_t count, int32_t batch, int32_t channels, int32_t height,   \
                                int32_t width, int32_t out_height, int32_t out_width,             \
                                int32_t sampling_ratio, int32_t half_pixel, int32_t use_max,      \
                                type spatial_scale);
NST_ROI_ALIGN_DECLARE(float32, float)
NST_ROI_ALIGN_DECLARE(float64, double)
#undef NST_ROI_ALIGN_DECLARE

#ifdef __cplusplus
}
#endif

#endif /* NST_FUNCTIONS_H */

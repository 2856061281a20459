/* nst_functions.c - operators that are no loop nest; see nst_functions.h. */
#include "nst_functions.h"

#include <math.h>

/* -- TopK ------------------------------------------------------------------------------------
 *
 * Each row keeps its best k elements as a heap in its own outputs, at a stride of `inner`, the worst at the
 * root; a better element replaces it.  Taking the roots out one by one then leaves the best first. */

#define NST_GREATER_INT(a, b) ((a) > (b))
#define NST_GREATER_FLOAT(a, b) ((a) > (b) || ((a) != (a) && (b) == (b)))

#define NST_TOPK(suffix, type, GREATER)                                                             \
    static int nst_before_##suffix(type a, int64_t i, type b, int64_t j, int32_t largest) {          \
        if (largest != 0 ? GREATER(a, b) : GREATER(b, a)) return 1;                                  \
        if (largest != 0 ? GREATER(b, a) : GREATER(a, b)) return 0;                                  \
        return i < j;                                                                                \
    }                                                                                                \
    /* Put (value, index) at the root of a heap of `count` elements and restore it. */               \
    static void nst_sift_##suffix(type *values, int64_t *indices, ptrdiff_t stride, ptrdiff_t count, \
                                  ptrdiff_t root, type value, int64_t index, int32_t largest) {      \
        for (;;) {                                                                                   \
            ptrdiff_t child = 2 * root + 1;                                                          \
            if (child >= count) break;                                                               \
            if (child + 1 < count &&                                                                 \
                nst_before_##suffix(values[child * stride], indices[child * stride],                 \
                                    values[(child + 1) * stride], indices[(child + 1) * stride],     \
                                    largest))                                                        \
                ++child;                                                                             \
            if (!nst_before_##suffix(value, index, values[child * stride], indices[child * stride],  \
                                     largest))                                                       \
                break;                                                                               \
            values[root * stride] = values[child * stride];                                          \
            indices[root * stride] = indices[child * stride];                                        \
            root = child;                                                                            \
        }                                                                                            \
        values[root * stride] = value;                                                               \
        indices[root * stride] = index;                                                              \
    }                                                                                                \
    void nst_topk_##suffix(type *values, int64_t *indices, const type *x, int32_t outer, int32_t n,  \
                           int32_t inner, int32_t k, int32_t largest) {                              \
        const ptrdiff_t stride = inner;                                                              \
        const ptrdiff_t kept = k < n ? k : n;                                                        \
        ptrdiff_t o, c, i;                                                                           \
        if (kept <= 0) return;                                                                       \
        for (o = 0; o < outer; ++o) {                                                                \
            for (c = 0; c < stride; ++c) {                                                           \
                const type *const row = x + o * n * stride + c;                                      \
                type *const v = values + o * k * stride + c;                                         \
                int64_t *const at = indices + o * k * stride + c;                                    \
                for (i = 0; i < kept; ++i) {                                                         \
                    v[i * stride] = row[i * stride];                                                 \
                    at[i * stride] = i;                                                              \
                }                                                                                    \
                for (i = kept / 2; i-- > 0;)                                                         \
                    nst_sift_##suffix(v, at, stride, kept, i, v[i * stride], at[i * stride],         \
                                      largest);                                                      \
                for (i = kept; i < n; ++i)                                                           \
                    if (nst_before_##suffix(row[i * stride], i, v[0], at[0], largest))               \
                        nst_sift_##suffix(v, at, stride, kept, 0, row[i * stride], i, largest);      \
                for (i = kept - 1; i > 0; --i) {                                                     \
                    const type last = v[i * stride];                                                 \
                    const int64_t place = at[i * stride];                                            \
                    v[i * stride] = v[0];                                                            \
                    at[i * stride] = at[0];                                                          \
                    nst_sift_##suffix(v, at, stride, i, 0, last, place, largest);                    \
                }                                                                                    \
            }                                                                                        \
        }                                                                                            \
    }

NST_TOPK(float32, float, NST_GREATER_FLOAT)
NST_TOPK(float64, double, NST_GREATER_FLOAT)
NST_TOPK(int8, int8_t, NST_GREATER_INT)
NST_TOPK(int16, int16_t, NST_GREATER_INT)
NST_TOPK(int32, int32_t, NST_GREATER_INT)
NST_TOPK(int64, int64_t, NST_GREATER_INT)
NST_TOPK(uint8, uint8_t, NST_GREATER_INT)
NST_TOPK(uint16, uint16_t, NST_GREATER_INT)
NST_TOPK(uint32, uint32_t, NST_GREATER_INT)
NST_TOPK(uint64, uint64_t, NST_GREATER_INT)
NST_TOPK(bool, uint8_t, NST_GREATER_INT)

/* -- RoiAlign --------------------------------------------------------------------------------
 *
 * He et al., Mask R-CNN, with the details of the ONNX reference: samples more than one pixel outside
 * count as 0, others are clamped to the edge. */

#define NST_ROI_SAMPLES 4096

#define NST_ROI_ALIGN(suffix, type, CEIL)                                                           \
    /* Split a coordinate into two pixels and the weight of the second; 0 if it lies outside. */     \
    static int nst_roi_pixels_##suffix(type at, int32_t extent, int32_t *low, int32_t *high,         \
                                       type *share) {                                                \
        if (!(at >= (type)-1 && at <= (type)extent)) return 0;                                       \
        if (at < (type)0) at = (type)0;                                                              \
        *low = (int32_t)at;                                                                          \
        *high = *low + 1;                                                                            \
        if (*low >= extent - 1) {                                                                    \
            *low = *high = extent - 1;                                                               \
            at = (type)*low;                                                                         \
        }                                                                                            \
        *share = at - (type)*low;                                                                    \
        return 1;                                                                                    \
    }                                                                                                \
    static int32_t nst_roi_samples_##suffix(type size, int32_t bins, int32_t ratio) {                \
        const type wanted = CEIL(size / (type)bins);                                                 \
        if (ratio > 0) return ratio;                                                                 \
        if (!(wanted > (type)0)) return 0;                                                           \
        return wanted < (type)NST_ROI_SAMPLES ? (int32_t)wanted : NST_ROI_SAMPLES;                   \
    }                                                                                                \
    static type nst_roi_bin_##suffix(const type *plane, int32_t height, int32_t width, type y0,      \
                                     type x0, type bin_h, type bin_w, int32_t rows,                  \
                                     int32_t columns, int32_t use_max) {                             \
        type result = (type)0;                                                                       \
        int32_t i, j;                                                                                \
        int first = 1;                                                                               \
        for (i = 0; i < rows; ++i) {                                                                 \
            const type y = y0 + ((type)i + (type)0.5) * bin_h / (type)rows;                          \
            for (j = 0; j < columns; ++j) {                                                          \
                const type x = x0 + ((type)j + (type)0.5) * bin_w / (type)columns;                   \
                type part[4] = {(type)0, (type)0, (type)0, (type)0};                                 \
                int32_t top = 0, bottom = 0, left = 0, right = 0;                                    \
                type down = (type)0, across = (type)0;                                               \
                if (nst_roi_pixels_##suffix(y, height, &top, &bottom, &down) &&                      \
                    nst_roi_pixels_##suffix(x, width, &left, &right, &across)) {                     \
                    const type *const upper = plane + (ptrdiff_t)top * width;                        \
                    const type *const lower = plane + (ptrdiff_t)bottom * width;                     \
                    part[0] = ((type)1 - down) * ((type)1 - across) * upper[left];                   \
                    part[1] = ((type)1 - down) * across * upper[right];                              \
                    part[2] = down * ((type)1 - across) * lower[left];                               \
                    part[3] = down * across * lower[right];                                          \
                }                                                                                    \
                if (use_max != 0) {                                                                  \
                    int p;                                                                           \
                    for (p = 0; p < 4; ++p) {                                                        \
                        if (first || part[p] > result) result = part[p];                             \
                        first = 0;                                                                   \
                    }                                                                                \
                } else {                                                                             \
                    result += part[0] + part[1] + part[2] + part[3];                                 \
                }                                                                                    \
            }                                                                                        \
        }                                                                                            \
        return use_max != 0 || rows * columns == 0 ? result : result / (type)(rows * columns);       \
    }                                                                                                \
    void nst_roi_align_##suffix(type *y, const type *x, const type *rois, const int64_t *batches,    \
                                int32_t count, int32_t batch, int32_t channels, int32_t height,      \
                                int32_t width, int32_t out_height, int32_t out_width,                \
                                int32_t sampling_ratio, int32_t half_pixel, int32_t use_max,         \
                                type spatial_scale) {                                                \
        const type offset = half_pixel != 0 ? (type)0.5 : (type)0;                                   \
        const ptrdiff_t plane = (ptrdiff_t)height * width;                                           \
        int32_t r, c, oh, ow;                                                                        \
        for (r = 0; r < count; ++r) {                                                                \
            const type *const roi = rois + 4 * (ptrdiff_t)r;                                         \
            const type x1 = roi[0] * spatial_scale - offset, y1 = roi[1] * spatial_scale - offset;   \
            const type x2 = roi[2] * spatial_scale - offset, y2 = roi[3] * spatial_scale - offset;   \
            const int64_t wanted = batches[r] < batch - 1 ? batches[r] : batch - 1;                  \
            const ptrdiff_t image = (ptrdiff_t)(wanted > 0 ? wanted : 0);                            \
            type h = y2 - y1, w = x2 - x1;                                                           \
            type bin_h, bin_w;                                                                       \
            int32_t rows, columns;                                                                   \
            if (half_pixel == 0) {                                                                   \
                h = h > (type)1 ? h : (type)1;                                                       \
                w = w > (type)1 ? w : (type)1;                                                       \
            }                                                                                        \
            bin_h = h / (type)out_height;                                                            \
            bin_w = w / (type)out_width;                                                             \
            rows = nst_roi_samples_##suffix(h, out_height, sampling_ratio);                          \
            columns = nst_roi_samples_##suffix(w, out_width, sampling_ratio);                        \
            for (c = 0; c < channels; ++c)                                                           \
                for (oh = 0; oh < out_height; ++oh)                                                  \
                    for (ow = 0; ow < out_width; ++ow)                                               \
                        *y++ = nst_roi_bin_##suffix(                                                 \
                            x + (image * channels + c) * plane, height, width,                       \
                            y1 + (type)oh * bin_h, x1 + (type)ow * bin_w, bin_h, bin_w, rows,        \
                            columns, use_max);                                                       \
        }                                                                                            \
    }

NST_ROI_ALIGN(float32, float, ceilf)
NST_ROI_ALIGN(float64, double, ceil)

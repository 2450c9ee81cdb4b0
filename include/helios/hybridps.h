/* hybridps.h - C ABI of HybridPS: the optimizer's kernels.
 *
 * Owns:    nothing; all memory is the caller's.
 * Threads: any function from any thread; a step splits its work over `nthreads` threads and returns
 *          when all have ended. Results do not depend on how many they are.
 * Errors:  0, or a negative HELIOS_E... code of helios.h; helios_last_error() says why. Nothing was
 *          changed after a failure.
 * Units:   counts are elements, not bytes. Every array is contiguous.
 * Limits:  arrays may overlap only where the description says so.
 */
#ifndef HELIOS_HYBRIDPS_H
#define HELIOS_HYBRIDPS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef HELIOS_API
#define HELIOS_API __attribute__((visibility("default")))
#endif

/* The order in which Adam rounds: that of torch 2 (default), or of torch 1.13. Also set by
 * HYBRIDPS_ADAM_ROUNDING=torch1 in the environment. */
enum { HYBRIDPS_ROUNDING_TORCH2 = 0, HYBRIDPS_ROUNDING_TORCH1 = 1 };

HELIOS_API int hybridps_adam_set_rounding(int rounding);
HELIOS_API int hybridps_adam_rounding(void);

/* One step of torch.optim.Adam (adamw 0: weight decay is added to the gradient) or AdamW on n
 * float32 elements, bit-equal to that version's single-tensor code on a CPU with FMA. step counts
 * from 1. nthreads 0 = one per CPU. */
HELIOS_API int hybridps_adam_step(float *p, const float *g, float *m, float *v, size_t n, long step,
                                  double lr, double b1, double b2, double eps, double wd, int adamw,
                                  int nthreads);

enum { HYBRIDPS_F32 = 0, HYBRIDPS_F16 = 1, HYBRIDPS_BF16 = 2 };

/* The same step as one pass for mixed precision: the gradient is read in its own type and
 * multiplied by grad_scale (1 / loss scale, times the clipping factor), and the new parameters are
 * also written in another type. */
struct hybridps_adam {
    float *p, *m, *v; /* n elements each */
    const void *g;    /* n elements of grad_type */
    int grad_type;    /* HYBRIDPS_F32, ... */
    void *p16;        /* NULL, or n elements of p16_type; may be `g` where both types are alike */
    int p16_type;     /* HYBRIDPS_F16 or HYBRIDPS_BF16 */
    size_t n;
    long step; /* from 1 */
    double lr, b1, b2, eps, wd;
    double grad_scale; /* 1 = as it is */
    int adamw;
    int nthreads; /* 0 = one per CPU */
};

HELIOS_API int hybridps_adam_run(const struct hybridps_adam *step);

/* Sum of the squares of scale * g, and whether an element is infinite or no number, in one read.
 * The sum is taken in float64 in a fixed order. */
HELIOS_API int hybridps_grad_norm(const void *g, int grad_type, size_t n, double scale,
                                  int nthreads, double *sum_of_squares, int *finite);

#ifdef __cplusplus
}
#endif
#endif

/* hw/load/nvml.h - the NVIDIA driver's view of the GPUs, through libnvidia-ml, which is loaded on
 * demand.
 *
 * Owns:    the handle of the library.
 * Threads: one at a time.
 * Errors:  HL_ENOENT: no such library, or no driver behind it; HL_EIO: the driver refuses, with its
 *          own text. A GPU that does not answer is left out of the list.
 * Units:   bytes, percent, degrees Celsius, watts.
 * Limits:  HL_NVML_GPUS_MAX devices. A value that a board does not provide is 0. The functions are
 *          those of NVML 11 and newer; tested on one H100 with driver 580.
 */
#ifndef HL_HW_LOAD_NVML_H
#define HL_HW_LOAD_NVML_H

#include "api/types.h"
#include "base/arena.h"
#include "base/status.h"

#define HL_NVML_LIBRARY  "libnvidia-ml.so.1"
#define HL_NVML_GPUS_MAX 64

struct hl_nvml;

hl_status hl_nvml_open(const char *library, struct hl_nvml **out) HL_CHECK;
hl_status hl_nvml_read(struct hl_nvml *n, struct hl_arena *arena,
                       struct hl_api_gpu_load_list *out) HL_CHECK;
/* NULL is fine. */
void hl_nvml_close(struct hl_nvml *n);

#endif

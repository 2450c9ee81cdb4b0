/* maco/cuda/host/image.h - the GPU kernels that were built into the library.
 *
 * Owns:    constant data.
 * Threads: any.
 * Errors:  HL_EUNSUPPORTED: built without them; the text says why.
 * Units:   bytes.
 * Limits:  none.
 */
#ifndef HL_MACO_CUDA_HOST_IMAGE_H
#define HL_MACO_CUDA_HOST_IMAGE_H

#include <stddef.h>

#include "base/status.h"

/* A fatbin, for cuModuleLoadData. */
hl_status hl_maco_cuda_image(const void **image, size_t *size) HL_CHECK;

#endif

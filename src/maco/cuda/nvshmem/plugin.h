/* maco/cuda/nvshmem/plugin.h - what MACO needs from NVSHMEM, through a plug-in (plugin.cpp) that is
 * built where NVSHMEM's headers are installed, so that libhelios itself does not depend on NVSHMEM.
 *
 * Owns:    NVSHMEM's symmetric heap between init and end.
 * Threads: one call at a time.
 * Errors:  a result other than 0, or NULL: refused; NVSHMEM provides no text for it.
 * Units:   bytes.
 * Limits:  one init per process; init, take, give and end are collective and block without a
 *          deadline.
 */
#ifndef HL_MACO_CUDA_NVSHMEM_PLUGIN_H
#define HL_MACO_CUDA_NVSHMEM_PLUGIN_H

#include <stddef.h>

#define HL_NVSHMEM_PLUGIN "hl_nvshmem_plugin_1" /* a function that returns the table */
#define HL_NVSHMEM_ID     128

struct hl_nvshmem {
    int (*is_on)(void);       /* the program uses NVSHMEM itself */
    int (*make_id)(void *id); /* on one rank, for all of them */
    int (*init)(const void *id, int rank, int ranks);
    void *(*take)(size_t bytes);
    void *(*at)(void *memory, int rank); /* NULL: this GPU can't reach that rank's memory */
    void (*give)(void *memory);
    void (*end)(void);
};

#endif

/* hw/process/log_disk.h - whether the disk that keeps the output of ranks has room.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  HL_EIO: the disk can't be asked.
 * Units:   bytes.
 * Limits:  of a small disk a thirty-second is enough: logs themselves leave a sixteenth of it free.
 */
#ifndef HL_HW_PROCESS_LOG_DISK_H
#define HL_HW_PROCESS_LOG_DISK_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Of a disk of that size and room. `why` gets a sentence where that is too little, else "". */
void hl_log_disk_judge(const char *dir, uint64_t size_bytes, uint64_t free_bytes,
                       uint64_t wanted_bytes, char *why, size_t cap);
/* *free_bytes is what there is. `why` gets a sentence where that is too little, else "". */
hl_status hl_log_disk_look(const char *dir, uint64_t wanted_bytes, uint64_t *free_bytes, char *why,
                           size_t cap) HL_CHECK;

#endif

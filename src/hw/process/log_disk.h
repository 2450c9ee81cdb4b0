/* hw/process/log_disk.h - checks that the disk with the output of ranks has room.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  HL_EIO: the disk's state can't be read.
 * Units:   bytes.
 * Limits:  on a small disk 1/32 free is enough, because logs themselves leave 1/16 of it free.
 */
#ifndef HL_HW_PROCESS_LOG_DISK_H
#define HL_HW_PROCESS_LOG_DISK_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Judges a disk of that size and free space. `why` gets a sentence if that is too little, else
 * "". */
void hl_log_disk_judge(const char *dir, uint64_t size_bytes, uint64_t free_bytes,
                       uint64_t wanted_bytes, char *why, size_t cap);
/* Reads the disk's free space into *free_bytes. `why` gets a sentence if that is too little, else
 * "". */
hl_status hl_log_disk_look(const char *dir, uint64_t wanted_bytes, uint64_t *free_bytes, char *why,
                           size_t cap) HL_CHECK;

#endif

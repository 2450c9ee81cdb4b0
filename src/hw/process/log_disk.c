#include "hw/process/log_disk.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/text.h"

#define SMALL_SHARE 32

void hl_log_disk_judge(const char *dir, uint64_t size_bytes, uint64_t free_bytes,
                       uint64_t wanted_bytes, char *why, size_t cap)
{
    char have[32], least[32];
    uint64_t share = size_bytes / SMALL_SHARE;
    uint64_t limit = wanted_bytes < share ? wanted_bytes : share;
    why[0] = '\0';
    if (free_bytes < limit)
        snprintf(why, cap,
                 "the disk of %s has %s free, %s are required (agent.log_free): make room", dir,
                 hl_format_bytes(free_bytes, have, sizeof(have)),
                 hl_format_bytes(limit, least, sizeof(least)));
}

hl_status hl_log_disk_look(const char *dir, uint64_t wanted_bytes, uint64_t *free_bytes, char *why,
                           size_t cap)
{
    struct statvfs fs;
    why[0] = '\0';
    if (statvfs(dir, &fs) != 0)
        return hl_fail(HL_EIO, "%s: %s", dir, strerror(errno));
    *free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    hl_log_disk_judge(dir, (uint64_t)fs.f_blocks * fs.f_frsize, *free_bytes, wanted_bytes, why,
                      cap);
    return HL_OK;
}

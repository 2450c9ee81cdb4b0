#include "hw/health/health.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "hw/health/health_private.h"
#include "hw/process/log_disk.h"
#include "os/file.h"

/* False, with errno: not even a few bytes can be stored there. */
static bool disk_takes_bytes(const char *dir)
{
    char path[PATH_MAX], block[4096] = {0};
    snprintf(path, sizeof(path), "%s/.health", dir);
    HL_AUTO(hl_closep) int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && write(fd, block, sizeof(block)) == (ssize_t)sizeof(block);
    int err = errno;
    if (fd >= 0)
        unlink(path);
    errno = err;
    return ok;
}

static void disk_row(struct hl_health_run *r)
{
    const char *dir = r->opts->log_dir;
    uint64_t bytes = 0;
    char have[32], value[64] = "", why[PATH_MAX + 160];
    if (hl_log_disk_look(dir, r->opts->log_free_bytes, &bytes, why, sizeof(why)) != HL_OK)
        snprintf(why, sizeof(why), "%s", hl_error_text());
    else
        snprintf(value, sizeof(value), "%s free", hl_format_bytes(bytes, have, sizeof(have)));
    if (why[0] == '\0' && !disk_takes_bytes(dir))
        snprintf(why, sizeof(why), "%s can't be written: %s", dir, strerror(errno));
    hl_health_row(r, "disk",
                  why[0] != '\0' ? HL_API_HEALTH_STATE_FAILED : HL_API_HEALTH_STATE_PASSED, value,
                  why);
}

hl_status hl_health_test(const struct hl_health_opts *opts, struct hl_arena *arena,
                         struct hl_api_health *out)
{
    uint64_t began = hl_now_ns();
    struct hl_api_health health = {.state = HL_API_HEALTH_STATE_PASSED, .reason = ""};
    struct hl_health_run run = {
        .opts = opts,
        .arena = arena,
        .deadline_ns = began + (uint64_t)opts->deadline_ms * HL_NS_PER_MS,
        .out = &health,
    };
    health.rows.items = hl_arena_array(arena, HL_HEALTH_ROWS_MAX, sizeof(*health.rows.items));
    if (health.rows.items == NULL)
        return hl_fail(HL_ENOMEM, "out of memory testing the node");
    disk_row(&run);
    hl_health_network(&run);
    hl_health_processors(&run);
    hl_health_script(&run);
    health.time_ms = hl_wall_ms();
    health.took_ms = (int32_t)((hl_now_ns() - began) / HL_NS_PER_MS);
    if (hl_arena_failed(arena))
        return hl_fail(HL_ENOMEM, "out of memory testing the node");
    *out = health;
    return HL_OK;
}

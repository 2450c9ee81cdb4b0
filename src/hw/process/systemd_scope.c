#include "hw/process/systemd_scope.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <systemd/sd-bus.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "os/file.h"

#define SERVICE "org.freedesktop.systemd1"
#define OBJECT  "/org/freedesktop/systemd1"
#define MANAGER "org.freedesktop.systemd1.Manager"

/* A request for a scope: systemd first answers that it has queued a job, then signals its end. */
struct scope_request {
    const char *unit;
    bool ended;
    hl_status st;
};

static bool is_in_scope(const char *unit)
{
    HL_AUTO(hl_buf_fini) struct hl_buf own = HL_BUF(64 << 10);
    return hl_file_read("/proc/self/cgroup", &own) == HL_OK && own.len > 0 &&
           strstr(own.data, unit) != NULL;
}

static int bus_refused(struct scope_request *r, sd_bus_message *m)
{
    const sd_bus_error *e = sd_bus_message_get_error(m);
    r->ended = true;
    r->st = hl_fail(HL_EIO, "systemd refused the scope %s: %s", r->unit,
                    e->message != NULL ? e->message : e->name);
    return 0;
}

static int on_answer(sd_bus_message *m, void *arg, sd_bus_error *error)
{
    (void)error;
    return sd_bus_message_is_method_error(m, NULL) ? bus_refused(arg, m) : 0;
}

static int on_job_removed(sd_bus_message *m, void *arg, sd_bus_error *error)
{
    struct scope_request *r = arg;
    const char *job, *unit, *result;
    uint32_t id;
    (void)error;
    if (sd_bus_message_read(m, "uoss", &id, &job, &unit, &result) < 0 || strcmp(unit, r->unit) != 0)
        return 0;
    r->ended = true;
    if (strcmp(result, "done") != 0)
        r->st = hl_fail(HL_EIO,
                        "systemd could not start %s: its job ended as '%s'; "
                        "`journalctl -u %s` says why",
                        unit, result, unit);
    else if (!is_in_scope(unit))
        r->st = hl_fail(HL_EIO, "systemd started %s without this process in it", unit);
    return 0;
}

static int append_properties(sd_bus_message *m)
{
    return sd_bus_message_append(m, "a(sv)", 5, "Description", "s", "ranks of a Helios container",
                                 "Slice", "s", "helios.slice", "DelegateControllers", "as", 2,
                                 "cpuset", "memory", "CollectMode", "s", "inactive-or-failed",
                                 "PIDs", "au", 1, (uint32_t)getpid());
}

/* Sends the request for the scope; the answers arrive in `process_until_ended`. */
static int send_request(sd_bus *bus, struct scope_request *r)
{
    sd_bus_message *m = NULL;
    int err = sd_bus_match_signal_async(bus, NULL, SERVICE, OBJECT, MANAGER, "JobRemoved",
                                        on_job_removed, on_answer, r);
    if (err >= 0)
        err = sd_bus_call_method_async(bus, NULL, SERVICE, OBJECT, MANAGER, "Subscribe", NULL, NULL,
                                       NULL);
    if (err >= 0)
        err =
            sd_bus_message_new_method_call(bus, &m, SERVICE, OBJECT, MANAGER, "StartTransientUnit");
    if (err >= 0)
        err = sd_bus_message_append(m, "ss", r->unit, "fail");
    if (err >= 0)
        err = append_properties(m);
    if (err >= 0)
        err = sd_bus_message_append(m, "a(sa(sv))", 0); /* no auxiliary units */
    if (err >= 0)
        err = sd_bus_call_async(bus, NULL, m, on_answer, r, 0);
    sd_bus_message_unref(m);
    return err;
}

static int process_until_ended(sd_bus *bus, struct scope_request *r, uint64_t deadline)
{
    while (!r->ended) {
        int err = sd_bus_process(bus, NULL);
        uint64_t now = hl_now_ns();
        if (!r->ended && err >= 0 && now >= deadline)
            return -ETIMEDOUT;
        if (err == 0 && !r->ended)
            err = sd_bus_wait(bus, (deadline - now) / 1000 + 1);
        if (err < 0 && err != -EINTR)
            return err;
    }
    return 0;
}

hl_status hl_systemd_scope(const char *name, int timeout_ms)
{
    uint64_t deadline = hl_now_ns() + (uint64_t)timeout_ms * HL_NS_PER_MS;
    char unit[256];
    int n = snprintf(unit, sizeof(unit), "%s.scope", name);
    if (n < 0 || (size_t)n >= sizeof(unit))
        return hl_fail(HL_EINVAL, "the name of a scope, %.64s..., is too long", name);
    sd_bus *bus = NULL;
    int err = sd_bus_open_system(&bus);
    if (err < 0)
        return hl_fail(err == -ENOENT ? HL_ENOENT : HL_EIO, "connecting to the system bus: %s",
                       strerror(-err));
    struct scope_request r = {.unit = unit};
    err = send_request(bus, &r);
    if (err >= 0)
        err = process_until_ended(bus, &r, deadline);
    sd_bus_close_unref(bus);
    if (err == -ETIMEDOUT)
        return hl_fail(HL_ETIMEDOUT, "systemd has not made %s within %d ms", unit, timeout_ms);
    if (err < 0)
        return hl_fail(HL_EIO, "asking systemd for %s over the system bus: %s", unit,
                       strerror(-err));
    return r.st;
}

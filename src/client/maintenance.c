/* One thread per client: it reports accesses at most every REPORT_NS and once more at the end, and
 * looks after pins. A training that never reads costs it one look per tick.
 *
 *     sleep on maintenance_wake, TICK_MS at most --closing--> end
 *       ^    |
 *       |    v   without maintenance_lock, which only guards `closing`
 *       |  attach_watch     has the daemon restarted? pin again
 *       |  copies_report    bad copies that readers met, to the Controller
 *       '--report_accesses  every REPORT_NS
 *
 * It has no state of its own: what it reports was counted by the callers' threads, in tables with
 * locks or atomics of their own. Each of its calls has a deadline, so it can be joined. */
#include <limits.h>
#include <signal.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/text.h"
#include "client/client_private.h"

#define TICK_MS           250
#define REPORT_NS         (5 * HL_NS_PER_S)
#define REPORT_TIMEOUT_MS 2000

static int env_int(const char *name)
{
    const char *value = getenv(name);
    uint64_t number;
    return value != NULL && hl_parse_number(value, INT_MAX, &number) ? (int)number : 0;
}

static const char *env_text(const char *name)
{
    const char *value = getenv(name);
    return value != NULL ? value : "";
}

/* Counts that can't be told are lost: they steer placement and prove nothing. */
static bool report_accesses(helios_client *c)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_report_access_params p = {.node = env_text("HELIOS_NODE"),
                                                       .job = env_text("HELIOS_JOB"),
                                                       .rank = env_int("GLOBAL_RANK"),
                                                       .transfers =
                                                           planes_take(c, c->told, &arena)};
    if (c->controller == NULL)
        return false;
    p.reports = access_take(c->access, net_path(c->attach.net), &arena);
    p.faults = planes_take_faults(&arena);
    if (p.reports.count + p.transfers.count + p.faults.count == 0)
        return false;
    if (hl_call_controller_report_access(c->controller, &p, REPORT_TIMEOUT_MS, NULL, NULL) != HL_OK)
        hl_debug("accesses were not reported: %s", hl_error_text());
    return true;
}

static void *maintenance_main(void *arg)
{
    helios_client *c = arg;
    uint64_t reported_ns = 0;
    pthread_mutex_lock(&c->maintenance_lock);
    while (!c->closing) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += TICK_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        pthread_cond_timedwait(&c->maintenance_wake, &c->maintenance_lock, &until);
        if (c->closing)
            break;
        pthread_mutex_unlock(&c->maintenance_lock);
        attach_watch(c);
        copies_report(c);
        uint64_t now = hl_now_ns();
        if (now - reported_ns >= REPORT_NS && report_accesses(c))
            reported_ns = now;
        pthread_mutex_lock(&c->maintenance_lock);
    }
    pthread_mutex_unlock(&c->maintenance_lock);
    return NULL;
}

hl_status maintenance_start(helios_client *client)
{
    /* Signals belong to the program, not to a thread it doesn't know of. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int err = pthread_create(&client->maintenance, NULL, maintenance_main, client);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err != 0)
        return hl_fail(HL_ENOMEM, "a thread for access reports can't be started");
    client->maintenance_started = true;
    return HL_OK;
}

void maintenance_stop(helios_client *client)
{
    if (!client->maintenance_started)
        return;
    pthread_mutex_lock(&client->maintenance_lock);
    client->closing = true;
    pthread_cond_signal(&client->maintenance_wake);
    pthread_mutex_unlock(&client->maintenance_lock);
    pthread_join(client->maintenance, NULL);
    client->maintenance_started = false;
    report_accesses(client);
}

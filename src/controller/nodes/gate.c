/* Decides whether a ready node gets containers. It gets none while it was found unfit, while its
 * first test runs, while it has a problem (a device that vanished, a full log disk), or while its
 * clock differs from the Controller's. What runs there continues, and its data can still be read.
 *
 * A node tests itself when its Agent starts, and on request (testNode). A second failure within an
 * hour drains it: otherwise a board that fails now and then would take down a job each time. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "controller/nodes/nodes_private.h"

#define TWICE_MS (INT64_C(3600) * 1000)
#define TEST_MS  15000 /* a test takes 5 s, a little more on a busy machine */
/* A single heartbeat may have been delayed while this process or its node was suspended. */
#define AHEAD_LATE 2

static const char *clock_trouble(const struct node *n, char *out, size_t cap)
{
    char far[32], limit[32];
    int64_t ms = n->ahead_ms < 0 ? -n->ahead_ms : n->ahead_ms;
    if (n->ahead_count < AHEAD_LATE)
        return "";
    snprintf(
        out, cap, "its clock is %s %s the Controller's, %s are allowed (node_clock): set it",
        hl_format_duration_ms((uint64_t)ms, far, sizeof(far)),
        n->ahead_ms < 0 ? "behind" : "ahead of",
        hl_format_duration_ms((uint64_t)n->controller->opts.clock_limit_ms, limit, sizeof(limit)));
    return out;
}

static void find_reason(const struct node *n, char *out, size_t cap)
{
    const struct hl_api_text_list *troubles = &n->report.telemetry.troubles;
    char text[160];
    if (n->held)
        snprintf(out, cap, "it runs a container of a job whose record is damaged");
    else if (n->health.state == HL_API_HEALTH_STATE_FAILED)
        snprintf(out, cap, "health: %s; `helios node test %s` tests it again", n->health.reason,
                 n->name);
    else if (n->health.state == HL_API_HEALTH_STATE_TESTING)
        snprintf(out, cap, "health: its first test is still running");
    else if (troubles->count > 0)
        snprintf(out, cap, "%s", troubles->items[0]);
    else
        snprintf(out, cap, "%s", clock_trouble(n, text, sizeof(text)));
}

void gate_apply(struct node *n)
{
    struct hl_controller *c = n->controller;
    char why[HL_NODE_WHY_MAX];
    bool was_blocked = n->why[0] != '\0';
    find_reason(n, why, sizeof(why));
    bool blocked = why[0] != '\0';
    bool tests = n->health.state == HL_API_HEALTH_STATE_TESTING; /* as it should be */
    if (blocked && !n->why_told && !tests)
        hl_warn("node gets no new containers node=%s why=\"%s\"", n->name, why);
    else if (!blocked && was_blocked)
        hl_info("node gets containers again node=%s", n->name);
    memcpy(n->why, why, sizeof(n->why));
    n->why_told = blocked && (n->why_told || !tests);
    hl_cluster_set_ready(&c->nodes->cluster, n->name, node_ready(n) && !blocked);
    c->slots_changed |= was_blocked && !blocked;
}

void gate_take_clock(struct node *n, int64_t node_ms)
{
    int64_t limit = n->controller->opts.clock_limit_ms;
    if (node_ms == 0)
        return;
    n->ahead_ms = node_ms - hl_wall_ms();
    bool far = limit > 0 && (n->ahead_ms > limit || n->ahead_ms < -limit);
    n->ahead_count = !far ? 0 : n->ahead_count < AHEAD_LATE ? n->ahead_count + 1 : AHEAD_LATE;
}

static void on_failure_written(void *arg, hl_status st, const char *text)
{
    if (!controller_stopped(arg) && st != HL_OK)
        hl_warn("failed test of a node was not stored, a restart forgets it error=\"%s\"", text);
}

/* Stores the failure, so that the next one within an hour counts as the second even after a restart
 * of the Controller. */
static void failure_write(struct node *n)
{
    json_t *record = node_record(n, &n->info, n->lost);
    hl_status st = record != NULL ? node_write(n, record, on_failure_written, n->controller)
                                  : hl_fail(HL_ENOMEM, "out of memory for the record of a node");
    json_decref(record);
    if (st != HL_OK)
        hl_warn("failed test of a node is not stored node=%s error=\"%s\"", n->name,
                hl_error_text());
}

static bool fails_again(struct node *n)
{
    int64_t before = n->failed_ms, now = controller_steady_ms(n->controller);
    n->failed_ms = now;
    n->failed_test_ms = n->health.time_ms;
    hl_warn("node failed its test node=%s why=\"%s\"", n->name, n->health.reason);
    bool twice = before != 0 && now - before <= TWICE_MS && n->drained_ms == 0;
    if (!twice)
        failure_write(n); /* otherwise the drain writes it */
    return twice;
}

/* True: the node failed twice within an hour and is not drained yet. */
static bool gate_take_health(struct node *n, const struct hl_api_health *health)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_health kept;
    bool again = health->time_ms == n->health.time_ms; /* the same test, reported again */
    if (hl_api_copy(&hl_api_health_type, health, &arena, &kept) != HL_OK) {
        hl_warn("test of a node is not remembered node=%s error=\"%s\"", n->name, hl_error_text());
        return false;
    }
    hl_arena_fini(&n->health_arena);
    hl_arena_move(&n->health_arena, &arena);
    n->health = kept;
    return !again && kept.state == HL_API_HEALTH_STATE_FAILED && fails_again(n);
}

void gate_take_test(struct node *n, const struct hl_api_health *health)
{
    char reason[sizeof(n->drain_reason)];
    if (!gate_take_health(n, health))
        return;
    snprintf(reason, sizeof(reason), "it failed its health test twice in an hour: %.190s",
             n->health.reason);
    if (node_drain(n, true, reason, NULL) != HL_OK)
        hl_error("node is not drained node=%s error=\"%s\"", n->name, hl_error_text());
}

/* ---- testNode -------------------------------------------------------------------------------- */

struct test {
    struct hl_controller *c;
    struct hl_rpc_call *call;
    char node[sizeof(((struct node *)0)->name)];
};

/* Adds the clock's row, which only the Controller can fill in. */
static void add_clock(const struct node *n, struct hl_arena *arena, struct hl_api_health *io)
{
    char text[160];
    struct hl_api_health_row *rows = hl_arena_array(arena, io->rows.count + 1, sizeof(*rows));
    if (rows == NULL)
        return;
    if (io->rows.count > 0)
        memcpy(rows, io->rows.items, io->rows.count * sizeof(*rows));
    const char *trouble = clock_trouble(n, text, sizeof(text));
    rows[io->rows.count] = (struct hl_api_health_row){
        .name = "clock",
        .state = trouble[0] != '\0' ? HL_API_HEALTH_STATE_FAILED : HL_API_HEALTH_STATE_PASSED,
        .value = hl_arena_printf(arena, "%+" PRId64 " ms from the Controller's", n->ahead_ms),
        .text = hl_arena_strdup(arena, trouble)};
    io->rows = (struct hl_api_health_row_list){rows, io->rows.count + 1};
    if (trouble[0] == '\0' || io->state == HL_API_HEALTH_STATE_FAILED)
        return;
    io->state = HL_API_HEALTH_STATE_FAILED;
    io->reason = hl_arena_printf(arena, "clock: %s", trouble);
}

static void on_tested(void *arg, hl_status st, const char *text,
                      const struct hl_api_agent_test_health_results *r)
{
    struct test t = *(struct test *)arg;
    free(arg);
    if (controller_stopped(t.c)) {
        call_reject(t.call, hl_fail(HL_ECANCELED, "the Controller was stopped"));
        return;
    }
    struct node *n = node_find(t.c, t.node);
    if (st == HL_OK && n == NULL)
        st = hl_fail(HL_ENOENT, "node '%s' was forgotten meanwhile", t.node);
    else if (st != HL_OK)
        st = hl_fail(st, "%s", text);
    if (st != HL_OK) {
        call_reject(t.call, st);
        return;
    }
    struct hl_api_health health = r->health;
    gate_take_test(n, &health);
    gate_apply(n);
    add_clock(n, hl_rpc_call_arena(t.call), &health);
    hl_reply_controller_test_node(t.call,
                                  &(struct hl_api_controller_test_node_results){.health = health});
}

void method_test_node(void *arg, struct hl_rpc_call *call,
                      const struct hl_api_controller_test_node_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct node *n = node_find(c, p->node);
    struct test *t = calloc(1, sizeof(*t));
    hl_status st = HL_OK;
    if (n == NULL)
        st = hl_fail(HL_ENOENT, "node '%s' does not exist; `helios nodes` lists them", p->node);
    else if (!node_ready(n))
        st = hl_fail(HL_EUNAVAIL, "node '%s' is lost: its Agent does not answer", p->node);
    else if (t == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory to test a node");
    if (st != HL_OK) {
        free(t);
        call_reject(call, st);
        return;
    }
    t->c = controller_hold(c);
    t->call = call;
    memcpy(t->node, n->name, sizeof(t->node));
    hl_call_agent_test_health_async(n->agent, &(struct hl_api_agent_test_health_params){0}, TEST_MS,
                                    c->opts.loop, on_tested, t);
}

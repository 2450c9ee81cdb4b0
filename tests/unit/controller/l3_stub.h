/* A Controller that was not started, and an L3 daemon that records its calls: one line per call,
 * with the last two digits of each id.
 *
 *     free 01 02 by us
 *     trash 03 by us
 *     claim own 7 seen 6
 */
#ifndef L3_STUB_H
#define L3_STUB_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "controller/core.h"
#include "os/loop.h"
#include "support/test.h"

struct l3_stub {
    struct hl_controller c;
    struct hl_rpc_server *server;
    struct hl_timer *look;
    uint64_t until_ns;
    hl_status refuses; /* result of all calls; HL_OK: they succeed */
    struct hl_api_l3_claim_results claim;
    char said[1024];
    char dir[40], address[64];
};

static void l3_say(struct l3_stub *s, const char *text)
{
    size_t at = strlen(s->said);
    snprintf(s->said + at, sizeof(s->said) - at, "%s", text);
}

static void l3_say_ids(struct l3_stub *s, const char *call, const struct hl_api_text_list *ids,
                       const char *cluster)
{
    const struct hl_id_text us = claim_cluster(&s->c);
    l3_say(s, call);
    for (size_t i = 0; i < ids->count; i++) {
        l3_say(s, " ");
        l3_say(s, ids->items[i] + strlen(ids->items[i]) - 2);
    }
    if (cluster != NULL)
        l3_say(s, strcmp(cluster, us.s) == 0 ? " by us" : " by a stranger");
    l3_say(s, "\n");
}

static void l3_free(void *arg, struct hl_rpc_call *call, const struct hl_api_l3_free_params *p)
{
    struct l3_stub *s = arg;
    l3_say_ids(s, "free", &p->ids, p->cluster);
    hl_reply_l3_free(call, &(struct hl_api_l3_free_results){(uint32_t)p->ids.count});
}

static void l3_drop_archived(void *arg, struct hl_rpc_call *call,
                             const struct hl_api_l3_drop_archived_params *p)
{
    struct l3_stub *s = arg;
    l3_say_ids(s, p->trash ? "trash" : "drop", &p->ids, p->cluster);
    hl_reply_l3_drop_archived(call,
                              &(struct hl_api_l3_drop_archived_results){(uint32_t)p->ids.count});
}

static void l3_archive(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_l3_archive_params *p)
{
    struct l3_stub *s = arg;
    l3_say_ids(s, "archive", &p->ids, NULL);
    if (s->refuses != HL_OK)
        hl_rpc_reject(call, s->refuses, "as the test wants it");
    else
        hl_reply_l3_archive(call, &(struct hl_api_l3_archive_results){0});
}

static void l3_order(void *arg, struct hl_rpc_call *call,
                     const struct hl_api_l3_order_eviction_params *p)
{
    struct l3_stub *s = arg;
    l3_say_ids(s, "order", &p->ids, p->cluster);
    hl_reply_l3_order_eviction(call, &(struct hl_api_l3_order_eviction_results){0});
}

static void l3_state(void *arg, struct hl_rpc_call *call,
                     const struct hl_api_l3_state_archived_params *p)
{
    struct l3_stub *s = arg;
    char line[80];
    for (size_t i = 0; i < p->extents.count; i++) {
        const char *id = p->extents.items[i].id;
        snprintf(line, sizeof(line), "state %s %08x", id + strlen(id) - 2,
                 p->extents.items[i].crc32);
        l3_say_ids(s, line, &(struct hl_api_text_list){0}, p->cluster);
    }
    hl_reply_l3_state_archived(call, &(struct hl_api_l3_state_archived_results){0});
}

static void l3_claim(void *arg, struct hl_rpc_call *call, const struct hl_api_l3_claim_params *p)
{
    struct l3_stub *s = arg;
    char line[80];
    snprintf(line, sizeof(line), "claim %s %u seen %u\n", hl_api_claim_mode_name(p->mode),
             (unsigned)p->revision, (unsigned)p->seen);
    l3_say(s, line);
    if (s->refuses != HL_OK)
        hl_rpc_reject(call, s->refuses, "as the test wants it");
    else if (p->mode == HL_API_CLAIM_MODE_ADOPT)
        hl_reply_l3_claim(call,
                          &(struct hl_api_l3_claim_results){.state = HL_API_CLAIM_RESULT_CLAIMED,
                                                            .cluster = p->cluster,
                                                            .archive_cluster = ""});
    else
        hl_reply_l3_claim(call, &s->claim);
}

static const struct hl_l3_handlers l3_handlers = {.free = l3_free,
                                                  .drop_archived = l3_drop_archived,
                                                  .archive = l3_archive,
                                                  .claim = l3_claim,
                                                  .state_archived = l3_state,
                                                  .order_eviction = l3_order};

/* Whether no call is running any more. */
static void l3_look(void *arg)
{
    struct l3_stub *s = arg;
    if (s->c.refs == 1 || hl_now_ns() > s->until_ns)
        uv_stop(hl_loop_uv(s->c.opts.loop));
}

static inline void l3_stub_run(struct l3_stub *s)
{
    s->until_ns = hl_now_ns() + TEST_PATIENCE_NS;
    assert_int_equal(hl_timer_create(s->c.opts.loop, 0, 1, l3_look, s, &s->look), HL_OK);
    assert_int_equal(hl_loop_run(s->c.opts.loop), HL_OK);
    hl_timer_destroy(s->look);
    assert_int_equal(s->c.refs, 1);
}

/* Runs the loop, then compares the calls since the last time. */
static inline void l3_stub_said(struct l3_stub *s, const char *lines)
{
    l3_stub_run(s);
    assert_string_equal(s->said, lines);
    s->said[0] = '\0';
}

static inline void l3_stub_start(struct l3_stub *s)
{
    *s = (struct l3_stub){
        .dir = "/tmp/helios-stub-XXXXXX",
        .claim = {.cluster = "", .archive_cluster = ""},
        .c = {.refs = 1,
              .opts = {.rpc_timeout_ms = 30000, .copy_timeout_ms = 30000, .gc_grace_ms = 1000}}};
    assert_non_null(mkdtemp(s->dir));
    snprintf(s->address, sizeof(s->address), "unix:%s/l3", s->dir);
    claim_load_none(&s->c);
    hl_listening_init(&s->c.listening, UINT64_MAX, hl_now_ns(), hl_wall_ms());
    assert_int_equal(hl_loop_create(&s->c.opts.loop), HL_OK);
    assert_int_equal(hl_rpc_create(&s->c.opts.rpc), HL_OK);
    const struct hl_rpc_serve_opts serve = {
        .address = s->address, .loop = s->c.opts.loop, .arg = s};
    assert_int_equal(hl_serve_l3(s->c.opts.rpc, &serve, &l3_handlers, &s->server), HL_OK);
    assert_int_equal(hl_rpc_open(s->c.opts.rpc, s->address, "L3", &s->c.l3), HL_OK);
}

static inline void l3_stub_end(struct l3_stub *s)
{
    hl_catalog_fini(&s->c.catalog);
    hl_rpc_peer_close(s->c.l3);
    hl_rpc_server_close(s->server);
    hl_rpc_destroy(s->c.opts.rpc);
    hl_loop_destroy(s->c.opts.loop);
    unlink(s->address + strlen("unix:"));
    assert_int_equal(rmdir(s->dir), 0);
}

#endif

/* One end of a transfer, driven by the namespace tests: every line of output is one JSON object.
 *
 *   recv LISTEN ROOM WINDOW KEEP_MS   migrations land here; "stats", "empty" on stdin
 *   send ADDRESS SIZE ID CHUNK DEAD_MS TIMEOUT_MS ZSTD   half of what is sent are zeros
 *   get ADDRESS LENGTH TIMEOUT_MS COUNT    reads over UCX until one fails
 *   put ADDRESS SIZE TIMEOUT_MS            one put over UCX
 *   rpc ADDRESS INTERFACE                  "METHOD {params}" on stdin; the result, or "status"
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <jansson.h>

#include "auth/secret.h"
#include "base/clock.h"
#include "base/crc32.h"
#include "net/net.h"
#include "net/zmq/migrate.h"
#include "rpc/rpc.h"
#include "support/rpc_json.h"

static void say(json_t *line)
{
    char *text = json_dumps(line, JSON_COMPACT);
    puts(text);
    fflush(stdout);
    free(text);
    json_decref(line);
}

static unsigned char *memory(size_t len, int fill)
{
    unsigned char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t x = 88172645463325252u;
    if (p == MAP_FAILED)
        exit(3);
    for (size_t i = 0; fill && i + 8 <= len; i += 8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(p + i, &x, 8);
    }
    return p;
}

/* How a call ended, and when on the clock that the test uses too. */
static json_t *outcome(hl_status st, uint64_t started_ns)
{
    uint64_t now = hl_now_ns();
    return json_pack("{s:s s:s s:f s:f}", "status", hl_status_name(st), "error",
                     st == HL_OK ? "" : hl_error_text(), "seconds",
                     (double)(now - started_ns) / 1e9, "at", (double)now / 1e9);
}

/* ---- recv ---- */

struct room {
    uint64_t size, used, objects, last_crc;
};

struct thing {
    struct room *room;
    uint64_t size;
    unsigned char *bytes;
};

static hl_status room_begin(void *arg, struct hl_id id, uint64_t size, void **token, void **ptr)
{
    struct room *r = arg;
    (void)id;
    if (size > r->size - r->used)
        return hl_fail(HL_ENOSPC, "%llu bytes do not fit, %llu of %llu are free",
                       (unsigned long long)size, (unsigned long long)(r->size - r->used),
                       (unsigned long long)r->size);
    struct thing *t = malloc(sizeof(*t));
    *t = (struct thing){.room = r, .size = size, .bytes = malloc(size)};
    r->used += size;
    *token = t;
    *ptr = t->bytes;
    return HL_OK;
}

static hl_status room_commit(void *arg, void *token, uint32_t crc, const uint32_t *chunk_crcs,
                             size_t count, struct hl_id *id)
{
    struct room *r = arg;
    struct thing *t = token;
    (void)chunk_crcs;
    r->objects++;
    r->last_crc = hl_crc32(0, t->bytes, t->size); /* of what really lies there */
    *id = (struct hl_id){count, crc};
    free(t->bytes);
    free(t);
    return HL_OK;
}

static void room_abort(void *arg, void *token)
{
    struct thing *t = token;
    ((struct room *)arg)->used -= t->size;
    free(t->bytes);
    free(t);
}

static int run_recv(char **argv)
{
    struct room room = {.size = strtoull(argv[1], NULL, 0)};
    struct hl_migrate_server_stats n;
    struct hl_migrate_server *server;
    struct hl_migrate_server_opts o = {.listen = argv[0],
                                       .sink = {room_begin, room_commit, room_abort, &room},
                                       .window_bytes = strtoull(argv[2], NULL, 0),
                                       .keep_ms = atoi(argv[3])};
    char line[64];
    if (hl_migrate_server_start(&o, &server) != HL_OK) {
        fprintf(stderr, "%s\n", hl_error_text());
        return 1;
    }
    say(json_pack("{s:s}", "address", hl_migrate_server_address(server)));
    while (fgets(line, sizeof(line), stdin) != NULL) {
        if (strcmp(line, "empty\n") == 0)
            room.used = room.objects = 0;
        hl_migrate_server_stats(server, &n);
        say(json_pack("{s:I s:I s:I s:I s:I s:I s:I s:I s:I s:I s:I s:I s:I}", "open",
                      (json_int_t)n.open_now, "committed", (json_int_t)n.committed, "aborted",
                      (json_int_t)n.aborted, "canceled", (json_int_t)n.canceled, "resumed",
                      (json_int_t)n.resumed, "chunks", (json_int_t)n.chunks, "duplicate",
                      (json_int_t)n.duplicate, "corrupted", (json_int_t)n.corrupted, "refused",
                      (json_int_t)n.refused, "used", (json_int_t)room.used, "objects",
                      (json_int_t)room.objects, "bytes", (json_int_t)n.bytes, "crc",
                      (json_int_t)room.last_crc));
    }
    hl_migrate_server_stop(server);
    return 0;
}

/* ---- the others ---- */

static int run_send(char **argv)
{
    size_t size = strtoull(argv[1], NULL, 0);
    unsigned char *data = memory(size, 1);
    for (size_t i = 0; i < size; i++)
        data[i] = i % 64 < 32 ? data[i] : 0;
    uint32_t crc = hl_crc32(0, data, size);
    struct hl_migrate_report r;
    struct hl_migrate_send_opts o = {.address = argv[0],
                                     .object = {0x5a5a, size},
                                     .chunk_size = (uint32_t)strtoul(argv[3], NULL, 0),
                                     .dead_ms = atoi(argv[4])};
    if (hl_id_parse(argv[2], &o.id) != HL_OK || hl_migrate_zstd_parse(argv[6], &o.zstd) != HL_OK)
        return 2;
    say(json_pack("{s:I}", "crc", (json_int_t)crc));
    uint64_t start = hl_now_ns();
    hl_status st = hl_migrate_send(&o, data, size, crc, atoi(argv[5]), &r);
    json_t *line = outcome(st, start);
    json_object_set_new(line, "wire", json_integer((json_int_t)r.wire_bytes));
    json_object_update_new(
        line, json_pack("{s:I s:I s:I s:I s:I}", "chunks", (json_int_t)r.chunks, "had",
                        (json_int_t)r.chunks_had, "sent", (json_int_t)r.chunks_sent, "nacked",
                        (json_int_t)r.chunks_nacked, "resumes", (json_int_t)r.resumes));
    say(line);
    return 0;
}

static int run_get(char **argv)
{
    size_t len = strtoull(argv[1], NULL, 0);
    struct hl_net_client *client = NULL;
    uint64_t start = hl_now_ns();
    hl_status st = hl_net_connect(argv[0], 5000, &client);
    json_t *line = outcome(st, start);
    json_object_set_new(line, "path", json_string(st == HL_OK ? hl_net_path_name(client) : ""));
    say(line);
    unsigned char *dst = memory(len, 0);
    for (int i = 0; st == HL_OK && i < atoi(argv[3]); i++) {
        start = hl_now_ns();
        st = hl_net_fetch(client, 0, dst, len, atoi(argv[2]));
    }
    say(outcome(st, start));
    hl_net_close(client);
    return 0;
}

static int run_put(char **argv)
{
    size_t len = strtoull(argv[1], NULL, 0);
    unsigned char *src = memory(len, 1);
    struct hl_net_client *client = NULL;
    struct hl_id id = {0, 0};
    uint32_t crc = hl_crc32(0, src, len);
    uint64_t start = hl_now_ns();
    hl_status st = hl_net_connect(argv[0], 5000, &client);
    say(outcome(st, start));
    start = hl_now_ns();
    if (st == HL_OK)
        st = hl_net_put(client, src, len, crc, atoi(argv[2]), &id);
    json_t *line = outcome(st, start);
    json_object_set_new(line, "id", json_string(hl_id_format(id).s));
    say(line);
    hl_net_close(client);
    return 0;
}

static int run_rpc(char **argv)
{
    struct hl_rpc *rpc;
    struct hl_rpc_peer *peer;
    char line[65536];
    if (hl_rpc_create(&rpc) != HL_OK || hl_rpc_open(rpc, argv[0], argv[1], &peer) != HL_OK) {
        fprintf(stderr, "%s\n", hl_error_text());
        return 1;
    }
    while (fgets(line, sizeof(line), stdin) != NULL) {
        char *space = strchr(line, ' ');
        json_t *params = space != NULL ? json_loads(space + 1, 0, NULL) : NULL, *result = NULL;
        line[strcspn(line, " \n")] = '\0';
        uint64_t start = hl_now_ns();
        hl_status st = rpc_json_call(peer, line, params, 20000, &result);
        say(st == HL_OK ? result : outcome(st, start));
        json_decref(params);
    }
    hl_rpc_peer_close(peer);
    hl_rpc_destroy(rpc);
    return 0;
}

int main(int argc, char **argv)
{
    const char *secret = getenv("HELIOS_AUTH_SECRET_FILE");
    if (hl_auth_use_file(secret != NULL ? secret : "") != HL_OK) {
        fprintf(stderr, "%s\n", hl_error_text());
        return 2;
    }
    if (argc == 6 && strcmp(argv[1], "recv") == 0)
        return run_recv(argv + 2);
    if (argc == 9 && strcmp(argv[1], "send") == 0)
        return run_send(argv + 2);
    if (argc == 6 && strcmp(argv[1], "get") == 0)
        return run_get(argv + 2);
    if (argc == 5 && strcmp(argv[1], "put") == 0)
        return run_put(argv + 2);
    if (argc == 4 && strcmp(argv[1], "rpc") == 0)
        return run_rpc(argv + 2);
    fprintf(stderr, "usage: see the head of tests/net/peer.c\n");
    return 2;
}

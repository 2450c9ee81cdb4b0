/* The pool's socket: a connection that sends requests of any bytes, with and without descriptors,
 * to a real server over a real pool. Every request is answered or ends the connection; afterwards
 * nothing of it is left, and the pool's sums are right. A record is a byte of choices, one for the
 * descriptor, and a request; the choices make its magic, id and offset right. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "base/log.h"
#include "mem/socket/l3_proto.h"
#include "mem/socket/socket.h"
#include "os/file.h"
#include "os/loop.h"
#include "os/shm.h"
#include "os/socket.h"

#define CAPACITY    ((uint64_t)2 << 20)
#define SHARD       ((uint64_t)100000)
#define RECORD      (2 + sizeof(struct hl_l3_request))
#define REQUESTS    24
#define DEADLINE_NS (10 * (uint64_t)1000000000)

enum {
    VALID = 1,
    KNOWN_ID = 2,
    LAST_ID = 4,
    NO_ID = 8,
    NO_OFFSET = 16,
    KNOWN_OFFSET = 32,
    CUT = 64
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct hl_pool *pool;
static struct hl_loop *loop;
static struct hl_l3_server *server;
static struct hl_pool_ref known;
static char socket_path[64];

static void check(int ok)
{
    if (!ok) {
        fprintf(stderr, "%s\n", hl_error_text());
        abort();
    }
}

static void world_stop(void)
{
    hl_l3_server_stop(server);
    hl_loop_destroy(loop);
    hl_pool_remove(pool);
}

static void world_start(void)
{
    struct hl_pool_extent x;
    char path[48];
    hl_log_set_level(HL_LOG_ERROR);
    snprintf(path, sizeof(path), "/dev/shm/helios-test-fuzz-%d", (int)getpid());
    snprintf(socket_path, sizeof(socket_path), "%s.sock", path);
    struct hl_pool_options o = {.path = path, .capacity = CAPACITY, .quarantine_ms = 1};
    check(hl_pool_open(&o, NULL, &pool) == HL_OK && hl_pool_alloc(pool, SHARD, &x) == HL_OK);
    memset(x.ptr, 7, SHARD);
    uint32_t crc = hl_crc32(0, x.ptr, SHARD);
    check(hl_pool_seal(pool, &x, crc, &crc, 1, &known) == HL_OK);
    check(hl_loop_create(&loop) == HL_OK);
    struct hl_l3_server_opts s = {
        .loop = loop, .pool = pool, .socket_path = socket_path, .max_clients = 4};
    check(hl_l3_server_start(&s, &server) == HL_OK);
    atexit(world_stop);
}

/* -1, memfds good and bad, and what is none. */
static int some_descriptor(uint8_t choice)
{
    int fd = -1;
    switch (choice % 8) {
    case 1:
    case 2:
        check(hl_memfd_create("fuzz", (uint64_t)(choice >> 3) * 4000, &fd) == HL_OK);
        return fd;
    case 3: /* may shrink */
        fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        check(fd >= 0 && ftruncate(fd, 1 << 16) == 0);
        return fd;
    case 4:
        return open("/dev/zero", O_RDONLY | O_CLOEXEC);
    case 5:
        return open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    default:
        return -1;
    }
}

static struct hl_l3_request some_request(const uint8_t *record, struct hl_id last)
{
    struct hl_l3_request r;
    struct hl_id id = record[0] & KNOWN_ID ? known.id : last;
    memcpy(&r, record + 2, sizeof(r));
    if (record[0] & VALID) {
        r.magic = HL_L3_MAGIC;
        r.version = HL_L3_VERSION;
        r.type %= 10;
    }
    if (record[0] & NO_ID)
        id = (struct hl_id){0, 0};
    if (record[0] & (KNOWN_ID | LAST_ID | NO_ID)) {
        r.id_hi = id.hi;
        r.id_lo = id.lo;
    }
    if (record[0] & (NO_OFFSET | KNOWN_OFFSET))
        r.offset = record[0] & NO_OFFSET ? 0 : known.offset;
    if (record[0] & VALID)
        r.size %= 2 * CAPACITY;
    return r;
}

/* HL_OK with the answer, or HL_EUNAVAIL: the server has ended the connection. */
static hl_status answer_of(int fd, struct hl_l3_answer *out)
{
    uint64_t end = hl_now_ns() + DEADLINE_NS;
    for (;;) {
        int passed = -1;
        uv_run(hl_loop_uv(loop), UV_RUN_NOWAIT);
        hl_status st = hl_socket_recv(fd, out, sizeof(*out), &passed, 0);
        hl_closep(&passed);
        if (st != HL_EBUSY)
            return st;
        check(hl_now_ns() < end);
    }
}

static hl_status exchange(int fd, const uint8_t *record, struct hl_id *last)
{
    struct hl_l3_request r = some_request(record, *last);
    struct hl_l3_answer a = {0};
    int passed = some_descriptor(record[1]);
    size_t len = record[0] & CUT ? r.seq % sizeof(r) : sizeof(r);
    hl_status st = len == 0 ? HL_EUNAVAIL : hl_socket_send(fd, &r, len, passed, 0);
    hl_closep(&passed);
    if (st == HL_OK)
        st = answer_of(fd, &a);
    if (st != HL_OK)
        return st;
    check(a.magic == HL_L3_MAGIC && a.type == r.type && a.seq == r.seq);
    check(memchr(a.text, 0, sizeof(a.text)) != NULL && (a.status == HL_OK || a.text[0] != '\0'));
    if (r.type == HL_L3_PUT && a.status == HL_OK)
        *last = (struct hl_id){a.id_hi, a.id_lo};
    return HL_OK;
}

/* The pool has what it had. */
static void clean_up(const struct hl_id *puts, size_t count)
{
    struct hl_l3_server_stats stats;
    struct hl_pool_info info;
    uint64_t end = hl_now_ns() + DEADLINE_NS;
    do {
        uv_run(hl_loop_uv(loop), UV_RUN_NOWAIT);
        hl_l3_server_stats(server, &stats);
        check(hl_now_ns() < end);
    } while (stats.clients > 0);
    check(stats.pins == 0);
    for (size_t i = 0; i < count; i++)
        (void)!hl_pool_free(pool, puts[i]);
    hl_pool_info(pool, &info);
    check(info.shards == 1 && hl_pool_audit(pool) == HL_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hl_id puts[REQUESTS], last = {0, 0};
    size_t count = 0;
    int fd = -1;
    if (pool == NULL)
        world_start();
    check(hl_socket_connect(socket_path, 1000, &fd) == HL_OK);
    for (int i = 0; i < REQUESTS && size >= RECORD; i++, data += RECORD, size -= RECORD) {
        struct hl_id before = last;
        if (exchange(fd, data, &last) != HL_OK)
            break;
        if (!hl_id_equal(before, last))
            puts[count++] = last;
    }
    hl_closep(&fd);
    clean_up(puts, count);
    return 0;
}

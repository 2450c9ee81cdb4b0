/* net/zmq/migrate.h - moving one object from a host's memory to another's, in bulk, over ZeroMQ.
 *
 * The receiver hands out memory, gives credit, copies every chunk to its place in the same pass
 * that computes its CRC, and keeps a bitmap. A sender that lost its connection, or a new one with
 * the same migration id, asks for the bitmap and sends only what is missing. A side that gives up
 * says so, and the receiver frees the memory at once.
 *
 * Owns:    a server owns its thread and its socket, a line its sockets; hl_migrate_send borrows
 *          `data` until it returns and never touches it afterwards.
 * Threads: hl_migrate_server_start/stop from one thread, address and stats from any. The handler is
 *          called on the server's thread and must not block. hl_migrate_send from any number of
 *          threads at once; a line is used by one at a time.
 * Errors:  HL_EUNAVAIL no answer for dead_ms: the same id may be sent again later and goes on
 *          where it stopped; HL_ETIMEDOUT the deadline passed (same); HL_ECORRUPT the checksum of
 *          the whole differs, or chunks arrive damaged again and again; HL_ECONFLICT the id is in
 *          use for other bytes; HL_ECANCELED given up, here or by hl_migrate_cancel; HL_EBUSY too
 *          many migrations are open there; HL_EINVAL arguments; whatever the receiver's begin or
 *          commit said, with its sentence. Sentences name the object, the receiver, the path and
 *          the time that has passed.
 * Units:   bytes, milliseconds; checksums are those of base/crc32.h.
 * Limits:  HL_MIG_CHUNK_MIN..HL_MIG_CHUNK_MAX per chunk, HL_MIG_CHUNKS_MAX chunks. Bytes in flight
 *          to one server: max(window_bytes, 2 chunks of every open migration). Nobody's identity is
 *          checked and nothing is encrypted: for a network of trusted hosts.
 */
#ifndef HL_NET_MIGRATE_H
#define HL_NET_MIGRATE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/id.h"
#include "base/status.h"
#include "net/net.h"

#define HL_MIGRATE_ZSTD_OFF  0
#define HL_MIGRATE_ZSTD_AUTO (-1) /* chunk by chunk, where a sample of it says that it pays */
#define HL_MIGRATE_ZSTD_MAX  19   /* levels 1 to this: every chunk that gets smaller */

/* "off", "auto" or a level. */
hl_status hl_migrate_zstd_parse(const char *text, int *out) HL_CHECK;

/* The options migrate.*, for those who start servers and sends; zeros are the defaults. */
struct hl_migrate_tuning {
    uint32_t chunk_size; /* rounded down to a power of two where it is used */
    uint64_t window_bytes;
    int keep_ms;
    int dead_ms;
    int io_threads;
    const char *zstd; /* for hl_migrate_zstd_parse; NULL = "off" */
};

extern const struct hl_option_rows hl_migrate_rows;

struct hl_migrate_server;

struct hl_migrate_server_opts {
    const char *listen;             /* "host:port", port 0 = any free one */
    struct hl_net_put_handler sink; /* where objects go, as in net/net.h; all three are required */
    uint64_t window_bytes;          /* credit of all senders together; 0 = 16 MiB */
    unsigned max_open;              /* unfinished migrations; 0 = 16 */
    int keep_ms; /* an unfinished migration without a message for so long is aborted; 0 = 30000 */
    int io_threads; /* of libzmq; 0 = 1, 2 are worth it above 25 Gbit/s */
};

struct hl_migrate_server_stats {
    uint64_t open_now;
    uint64_t committed;
    uint64_t aborted;   /* abandoned, canceled, checksum of the whole, commit failed, or stop */
    uint64_t canceled;  /* of these, because the sender gave up */
    uint64_t resumed;   /* bitmaps asked for */
    uint64_t chunks;    /* chunks put in their place */
    uint64_t bytes;     /* of these chunks */
    uint64_t packed;    /* of these chunks, how many came compressed */
    uint64_t wire;      /* payload bytes that came for them */
    uint64_t duplicate; /* chunks that had arrived already: dropped unread */
    uint64_t corrupted; /* chunks whose checksum differs: asked for again */
    uint64_t refused;   /* malformed, foreign or unasked-for frames; migrations and connections
                           refused */
};

hl_status hl_migrate_server_start(const struct hl_migrate_server_opts *opts,
                                  struct hl_migrate_server **out) HL_CHECK;
/* "host:port" with the real port; borrowed until stop. */
const char *hl_migrate_server_address(const struct hl_migrate_server *server);
void hl_migrate_server_stats(const struct hl_migrate_server *server,
                             struct hl_migrate_server_stats *out);
/* Unfinished migrations are aborted, the thread is joined. NULL is allowed. */
void hl_migrate_server_stop(struct hl_migrate_server *server);

/* The connections to one receiver, kept from one object to the next. A failure loses them; the next
 * object makes new ones. Opening connects nothing yet. */
struct hl_migrate_line;
struct hl_pace;

hl_status hl_migrate_line_open(const char *address, int io_threads,
                               struct hl_migrate_line **out) HL_CHECK;
/* NULL is allowed. */
void hl_migrate_line_close(struct hl_migrate_line *line);

struct hl_migrate_send_opts {
    struct hl_migrate_line *line; /* NULL: connections of this call's own, to `address` */
    const char *address;        /* "host:port"; a scheme in front is ignored; unused with a line */
    const atomic_bool *cancel;  /* true: abort, and tell the receiver; NULL = never */
    struct hl_id id;            /* of the migration; none = random. Give one to be able to resume */
    struct hl_id object;        /* what the receiver shall call it; none = as it likes */
    uint32_t chunk_size;        /* 0 = 1 MiB */
    const uint32_t *chunk_crcs; /* per started HL_CHUNK, NULL = computed on the way; they are
                                   used for chunks of HL_CHUNK bytes and more */
    int dead_ms;                /* silence after which the receiver counts as dead; 0 = 1000 */
    int io_threads;             /* of libzmq; 0 = 1; unused with a line */
    int zstd;                   /* HL_MIGRATE_ZSTD_OFF, _AUTO, or a level */
    struct hl_pace *pace;       /* chunks go out so evenly; NULL = as fast as they can */
};

struct hl_migrate_report {
    struct hl_id id;        /* of the migration */
    struct hl_id stored;    /* what the receiver's commit named it */
    uint32_t chunks;        /* of the object */
    uint32_t chunks_had;    /* were there when the first bitmap came */
    uint64_t chunks_sent;   /* repeated ones counted again */
    uint64_t chunks_nacked; /* arrived damaged */
    uint64_t chunks_packed; /* of these, how many were compressed */
    uint64_t wire_bytes;    /* payload that was sent */
    uint64_t resumes;       /* bitmaps asked for after the first */
};

/* Store size bytes with CRC-32 `crc` at the receiver. `out` may be NULL; it is written on failure
 * too, so that the caller knows the id to resume with. */
hl_status hl_migrate_send(const struct hl_migrate_send_opts *opts, const void *data, size_t size,
                          uint32_t crc, int timeout_ms, struct hl_migrate_report *out) HL_CHECK;

/* The sender gives this migration up: the receiver frees what has arrived, and a sender
 * that is still at it ends with HL_ECANCELED. HL_OK also when nothing was open there; HL_EEXIST
 * when it has been stored already. Only line, address, id, dead_ms and io_threads are used. */
hl_status hl_migrate_cancel(const struct hl_migrate_send_opts *opts, int timeout_ms) HL_CHECK;

#endif

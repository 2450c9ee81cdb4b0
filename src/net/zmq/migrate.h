/* net/zmq/migrate.h - moving one object from a host's memory to another's, in bulk, over ZeroMQ.
 *
 * The receiver provides memory, grants credit, copies every chunk to its place in the same pass
 * that computes its CRC, and keeps a bitmap of the chunks it has. A sender that lost its
 * connection, or a new one with the same migration id, asks for the bitmap and sends only what is
 * missing. A side that gives up tells the other, and the receiver frees the memory at once.
 *
 * Owns:    a server owns its thread and its socket, a line owns its sockets. hl_migrate_send
 *          borrows `data` until it returns and never touches it afterwards.
 * Threads: hl_migrate_server_start/stop from one thread, address and stats from any. The handler is
 *          called on the server's thread and must not block. hl_migrate_send from any number of
 *          threads at once; a line is used by one at a time.
 * Errors:  HL_EUNAVAIL no answer for dead_ms: sending the same id again later continues where it
 *          stopped; HL_ETIMEDOUT the deadline passed (same); HL_ECORRUPT the checksum of the whole
 *          differs, or chunks keep arriving damaged; HL_ECONFLICT the id is in use for other bytes;
 *          HL_ECANCELED given up, here or by hl_migrate_cancel; HL_EBUSY too many migrations are
 *          open at the receiver; HL_EINVAL bad arguments; any status of the receiver's begin or
 *          commit, with its text. Texts name the object, the receiver, the path and the elapsed
 *          time.
 * Units:   bytes, milliseconds; checksums are those of base/crc32.h.
 * Limits:  HL_MIG_CHUNK_MIN..HL_MIG_CHUNK_MAX per chunk, HL_MIG_CHUNKS_MAX chunks. Bytes in flight
 *          to one server: max(window_bytes, 2 chunks of every open migration). A peer has 10 s for
 *          ZeroMQ's handshake, and is disconnected if it sends more without the end of a message
 *          than any sender has in flight. Without the cluster's secret (auth/secret.h) identities
 *          are not checked and nothing is encrypted: use it only in a network of trusted hosts.
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
#define HL_MIGRATE_ZSTD_AUTO (-1) /* per chunk, if a sample of it shows that compression pays */
#define HL_MIGRATE_ZSTD_MAX  19   /* levels 1 to this: compress every chunk that gets smaller */

/* "off", "auto" or a level. */
hl_status hl_migrate_zstd_parse(const char *text, int *out) HL_CHECK;

/* The options migrate.*, for callers that start servers and sends; 0 = the default. */
struct hl_migrate_tuning {
    uint32_t chunk_size; /* rounded down to a power of two on use */
    uint64_t window_bytes;
    int keep_ms;
    int dead_ms;
    int io_threads;
    const char *zstd; /* for hl_migrate_zstd_parse; NULL = "off" */
};

extern const struct hl_option_rows hl_migrate_rows;

struct hl_migrate_server;

struct hl_migrate_server_opts {
    const char *listen; /* "host:port", port 0 = any free one */
    /* where objects go, as in net/net.h; all three functions are required */
    struct hl_net_put_handler sink;
    uint64_t window_bytes; /* credit of all senders combined; 0 = 16 MiB */
    unsigned max_open;     /* unfinished migrations; 0 = 16 */
    /* 0 = a quarter of the process' descriptors, 64 to 4096. Of more, the oldest that has sent
     * nothing yet is closed; if there is none, the newest */
    unsigned max_connections;
    int keep_ms; /* an unfinished migration is aborted after this time without a message; 0 = 30000
                  */
    int io_threads; /* of libzmq; 0 = 1; 2 pay off above 25 Gbit/s */
};

struct hl_migrate_server_stats {
    uint64_t open_now;
    uint64_t committed;
    uint64_t aborted; /* abandoned, canceled, wrong checksum of the whole, failed commit, or stop */
    uint64_t canceled;  /* of these, because the sender gave up */
    uint64_t resumed;   /* requests for a bitmap */
    uint64_t chunks;    /* chunks written to their place */
    uint64_t bytes;     /* of these chunks */
    uint64_t packed;    /* of these chunks, how many arrived compressed */
    uint64_t wire;      /* payload bytes received for them */
    uint64_t duplicate; /* chunks that had already arrived: dropped unread */
    uint64_t corrupted; /* chunks with a wrong checksum: requested again */
    /* malformed, foreign or unsolicited frames; refused migrations and connections */
    uint64_t refused;
};

hl_status hl_migrate_server_start(const struct hl_migrate_server_opts *opts,
                                  struct hl_migrate_server **out) HL_CHECK;
/* "host:port" with the real port; borrowed until stop. */
const char *hl_migrate_server_address(const struct hl_migrate_server *server);
void hl_migrate_server_stats(const struct hl_migrate_server *server,
                             struct hl_migrate_server_stats *out);
/* Aborts unfinished migrations and joins the thread. NULL is allowed. */
void hl_migrate_server_stop(struct hl_migrate_server *server);

/* The connections to one receiver, kept from one object to the next. A failure closes them; the
 * next object opens new ones. hl_migrate_line_open does not connect yet. */
struct hl_migrate_line;
struct hl_pace;

hl_status hl_migrate_line_open(const char *address, int io_threads,
                               struct hl_migrate_line **out) HL_CHECK;
/* NULL is allowed. */
void hl_migrate_line_close(struct hl_migrate_line *line);

struct hl_migrate_send_opts {
    struct hl_migrate_line *line; /* NULL: this call opens its own connections to `address` */
    const char *address;       /* "host:port"; a scheme in front is ignored; unused with a line */
    const atomic_bool *cancel; /* true: abort, and tell the receiver; NULL = never */
    struct hl_id id;           /* of the migration; none = random. Give one to be able to resume */
    struct hl_id object; /* id that the receiver should give it; none = the receiver chooses */
    uint32_t chunk_size; /* 0 = 1 MiB */
    const uint32_t *chunk_crcs; /* per started HL_CHUNK; used when chunk_size is at least HL_CHUNK;
                                   NULL = computed while sending */
    int dead_ms;                /* silence after which the receiver is considered dead; 0 = 1000 */
    int io_threads;             /* of libzmq; 0 = 1; unused with a line */
    int zstd;                   /* HL_MIGRATE_ZSTD_OFF, _AUTO, or a level */
    struct hl_pace *pace;       /* paces the chunks; NULL = as fast as possible */
};

struct hl_migrate_report {
    struct hl_id id;        /* of the migration */
    struct hl_id stored;    /* id from the receiver's commit */
    uint32_t chunks;        /* of the object */
    uint32_t chunks_had;    /* already present in the first bitmap */
    uint64_t chunks_sent;   /* repetitions counted again */
    uint64_t chunks_nacked; /* arrived damaged */
    uint64_t chunks_packed; /* of these, how many were compressed */
    uint64_t wire_bytes;    /* payload bytes sent */
    uint64_t resumes;       /* requests for a bitmap after the first */
};

/* Stores size bytes with CRC-32 `crc` at the receiver. `out` may be NULL; it is also written on
 * failure, so that the caller knows the id to resume with. */
hl_status hl_migrate_send(const struct hl_migrate_send_opts *opts, const void *data, size_t size,
                          uint32_t crc, int timeout_ms, struct hl_migrate_report *out) HL_CHECK;

/* Cancels this migration: the receiver frees what has arrived, and a sender that is still running
 * ends with HL_ECANCELED. HL_OK also when nothing was open there; HL_EEXIST when the object has
 * already been stored. Only line, address, id, dead_ms and io_threads are used. */
hl_status hl_migrate_cancel(const struct hl_migrate_send_opts *opts, int timeout_ms) HL_CHECK;

#endif

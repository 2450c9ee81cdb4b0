/* mem/archive/s3.h - talking to an S3 store: one signed request, and what its XML says.
 *
 * Owns:    struct s3 owns its connections and a copy of the credentials, which are never logged.
 * Threads: any; each request takes a connection of its own.
 * Errors:  HL_EPERM (403), HL_ENOENT (404), HL_EINVAL (400 and other refusals), HL_ENOSPC (quota),
 *          HL_EUNAVAIL (no connection, or 5xx until the end), HL_ETIMEDOUT (no progress),
 *          HL_ECANCELED; the text has the store's own code. 5xx, timeouts and broken connections
 *          are retried with back-off until `timeout_ms` pass without a byte of progress.
 * Units:   bytes, ms.
 * Limits:  XML answers of at most S3_XML_MAX bytes.
 */
#ifndef HL_MEM_ARCHIVE_S3_H
#define HL_MEM_ARCHIVE_S3_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/status.h"
#include "curl/library.h"

#define S3_XML_MAX  ((size_t)4 << 20)
#define S3_IDLE_MAX 16
#define S3_ETAG_MAX 96

struct s3 {
    char *endpoint; /* "http://host:port", no slash at the end */
    char *bucket;
    char *prefix; /* "" or "a/b/" */
    char *region;
    char *access_key, *secret_key, *token;
    unsigned timeout_ms;
    const atomic_bool *cancel;
    pthread_mutex_t lock;
    CURL *idle[S3_IDLE_MAX];
    unsigned idle_count;
};

struct s3_request {
    const char *method; /* GET HEAD PUT POST DELETE */
    const char *key;    /* with the prefix; "" = the bucket */
    const char *query;  /* sorted, encoded, every name with '='; "" = none */
    const void *body;
    uint64_t body_len;
    const char *crc;     /* of the shard, kept as metadata; NULL = none */
    const char *copy_of; /* PUT: the key of the object that is copied; NULL = none */
    /* Where a GET's bytes go: exactly `dst_len` from `offset`. NULL: into `text`. */
    void *dst;
    uint64_t dst_len, offset, object_size;
    unsigned timeout_ms; /* 0 = that of the archive */
};

struct s3_answer {
    long code;
    struct hl_buf text; /* the body, except bytes that went to dst; release with hl_buf_fini */
    char etag[S3_ETAG_MAX];
    char crc[16]; /* metadata; "" = none */
    uint64_t length;
    uint32_t dst_crc; /* CRC-32 of the bytes in dst */
};

/* HL_OK only for 2xx. `what` names the operation in error texts: "store shard …". */
hl_status s3_do(struct s3 *s, const struct s3_request *r, const char *what,
                struct s3_answer *out) HL_CHECK;
void s3_fini(struct s3 *s);

/* ---- s3_move.c ---- */

/* Copies the object, checks the copy, and only then removes the old key. An interrupted move leaves
 * it under both keys. */
hl_status s3_move(struct s3 *s, const char *from, const char *to, uint64_t size,
                  const char *what) HL_CHECK;
/* Size and metadata of an object. `timeout_ms`: 0 = that of the archive. */
hl_status s3_head(struct s3 *s, const char *key, unsigned timeout_ms, const char *what,
                  struct s3_answer *out) HL_CHECK;
/* Whether the store has kept the object with this size and checksum. */
hl_status s3_check(struct s3 *s, const char *key, uint64_t size, const char *crc,
                   const char *what) HL_CHECK;
/* As hl_archive_look. */
hl_status s3_look(struct s3 *s, const char *key, uint64_t size, const char *what) HL_CHECK;
/* HL_OK also when the object is already gone. */
hl_status s3_remove_key(struct s3 *s, const char *key, unsigned timeout_ms,
                        const char *what) HL_CHECK;
/* Read and write a small object as a whole. */
hl_status s3_read_text(struct s3 *s, const char *key, const char *what, char *out, size_t cap,
                       size_t *len) HL_CHECK;
hl_status s3_write_text(struct s3 *s, const char *key, const char *what, const char *text,
                        size_t len) HL_CHECK;

/* ---- s3_xml.c: pure ---- */

/* An element of an answer. `text` is "" where it has children or nothing. */
struct s3_node {
    const char *name;
    const char *text;
    struct s3_node *child; /* the first */
    struct s3_node *next;  /* of the same parent */
};

/* HL_EPROTO: not well-formed, has a document type, or is nested more than 16 deep. */
hl_status s3_xml_parse(const char *text, size_t len, struct hl_arena *arena,
                       struct s3_node **root) HL_CHECK;
/* The text of the first child of that name; NULL: there is none. */
const char *s3_node_text(const struct s3_node *node, const char *name);
/* True: the answer is an error; sets its code and message (may be NULL). False: both stay
 * untouched. */
bool s3_error_of(const struct hl_buf *text, char *code, size_t code_cap, char *message,
                 size_t message_cap);
/* Percent-encoded as a query's value. False when it does not fit. */
bool s3_encode(const char *text, char *out, size_t cap);

#endif

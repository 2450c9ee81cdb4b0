/* Operations on whole objects of an S3 store: moves, which the store makes as a copy and a removal,
 * and small texts. */
#include <inttypes.h>
#include <string.h>

#include "mem/archive/s3.h"

#define LOOK_MS  5000                /* of a look, for which a full pool waits */
#define COPY_MAX ((uint64_t)5 << 30) /* S3's limit for a copy in one request */

/* The store may answer 200 first and report an error in the body. */
static hl_status copy_object(struct s3 *s, const char *from, const char *to, const char *what)
{
    char code[80];
    struct s3_answer got;
    HL_TRY(s3_do(s, &(struct s3_request){.method = "PUT", .key = to, .query = "", .copy_of = from},
                 what, &got));
    bool bad = s3_error_of(&got.text, code, sizeof(code), NULL, 0);
    hl_buf_fini(&got.text);
    return bad ? hl_fail(HL_EIO, "archive s3://%s: %s: %s", s->bucket, what, code) : HL_OK;
}

hl_status s3_head(struct s3 *s, const char *key, unsigned timeout_ms, const char *what,
                  struct s3_answer *out)
{
    HL_TRY(s3_do(
        s,
        &(struct s3_request){.method = "HEAD", .key = key, .query = "", .timeout_ms = timeout_ms},
        what, out));
    hl_buf_fini(&out->text);
    return HL_OK;
}

/* A HEAD that is answered with 404 does not say whether the object is missing or its bucket. The
 * list has the prefix, because the credentials may be valid for that alone. */
static hl_status look_at_bucket(struct s3 *s, const char *what)
{
    char query[1024] = "list-type=2&max-keys=1&prefix=";
    size_t len = strlen(query);
    struct s3_answer got;
    if (!s3_encode(s->prefix, query + len, sizeof(query) - len))
        return hl_fail(HL_EINVAL, "archive s3://%s: %s: the prefix is too long", s->bucket, what);
    hl_status st = s3_do(
        s, &(struct s3_request){.method = "GET", .key = "", .query = query, .timeout_ms = LOOK_MS},
        what, &got);
    if (st == HL_OK)
        hl_buf_fini(&got.text);
    return st == HL_ENOENT ? hl_fail_prefix(HL_EUNAVAIL, "the bucket is gone: ") : st;
}

hl_status s3_look(struct s3 *s, const char *key, uint64_t size, const char *what)
{
    struct s3_answer got;
    hl_status st = s3_head(s, key, LOOK_MS, what, &got);
    if (st == HL_ENOENT) {
        HL_TRY(look_at_bucket(s, what));
        return hl_fail(HL_ENOENT, "archive s3://%s: %s: there is no object %s", s->bucket, what,
                       key);
    }
    if (st == HL_OK && got.length != size)
        return hl_fail(HL_ECORRUPT,
                       "archive s3://%s: %s: the object has %" PRIu64 " of %" PRIu64 " bytes",
                       s->bucket, what, got.length, size);
    return st;
}

/* The store checked each part, but not that the object has all of them, in the right order. */
hl_status s3_check(struct s3 *s, const char *key, uint64_t size, const char *crc, const char *what)
{
    struct s3_answer got;
    HL_TRY(s3_head(s, key, 0, what, &got));
    if (got.length == size && strcmp(got.crc, crc) == 0)
        return HL_OK;
    return hl_fail(HL_EIO,
                   "archive s3://%s: %s: the store kept %" PRIu64 " of %" PRIu64
                   " bytes, checksum '%s'; it is not stored",
                   s->bucket, what, got.length, size, got.crc);
}

hl_status s3_remove_key(struct s3 *s, const char *key, unsigned timeout_ms, const char *what)
{
    struct s3_answer got;
    hl_status st = s3_do(
        s,
        &(struct s3_request){.method = "DELETE", .key = key, .query = "", .timeout_ms = timeout_ms},
        what, &got);
    if (st == HL_OK)
        hl_buf_fini(&got.text);
    return st == HL_ENOENT ? HL_OK : st;
}

hl_status s3_move(struct s3 *s, const char *from, const char *to, uint64_t size, const char *what)
{
    struct s3_answer got;
    if (size > COPY_MAX)
        return hl_fail(HL_EUNSUPPORTED,
                       "archive s3://%s: %s: the store copies objects of at most 5 GiB, this one "
                       "has %" PRIu64 " bytes; it stays where it is",
                       s->bucket, what, size);
    HL_TRY(copy_object(s, from, to, what));
    HL_TRY(s3_head(s, to, 0, what, &got));
    if (got.length != size)
        return hl_fail(HL_EIO,
                       "archive s3://%s: %s: the copy has %" PRIu64 " of %" PRIu64
                       " bytes; the object stays where it is",
                       s->bucket, what, got.length, size);
    return s3_remove_key(s, from, 0, what);
}

hl_status s3_read_text(struct s3 *s, const char *key, const char *what, char *out, size_t cap,
                       size_t *len)
{
    struct s3_answer got;
    HL_TRY(s3_do(s, &(struct s3_request){.method = "GET", .key = key, .query = ""}, what, &got));
    size_t n = got.text.len < cap ? got.text.len : cap;
    if (n > 0)
        memcpy(out, got.text.data, n);
    hl_buf_fini(&got.text);
    *len = n;
    return HL_OK;
}

hl_status s3_write_text(struct s3 *s, const char *key, const char *what, const char *text,
                        size_t len)
{
    struct s3_answer got;
    HL_TRY(s3_do(s,
                 &(struct s3_request){
                     .method = "PUT", .key = key, .query = "", .body = text, .body_len = len},
                 what, &got));
    hl_buf_fini(&got.text);
    return HL_OK;
}

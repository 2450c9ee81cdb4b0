/* An archive in an S3 store: BUCKET/PREFIX/ID.safetensors, which any S3 client can read. A put is
 * one request, or a multipart upload that becomes visible when it is completed and is aborted on
 * any failure; uploads that a dead predecessor left unfinished are aborted when the archive is
 * opened. The shard's CRC-32 is kept as metadata. The trash is PREFIX/trash/. Addresses are in path
 * style, which every store understands. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "base/log.h"
#include "base/text.h"
#include "mem/archive/ops.h"
#include "mem/archive/s3.h"
#include "os/file.h"

#define SUFFIX         ".safetensors"
#define TRASH          HL_ARCHIVE_TRASH "/"
#define KEY_MAX        512
#define UPLOAD_ID_MAX  512
#define TIMEOUT_MS     30000
#define PART_DEFAULT   ((uint64_t)64 << 20)
#define PARTS_MAX      10000 /* S3's limit */
#define CREDENTIAL_MAX 4096
#define TAKE_BACK_MS   5000
#define ABORTS_MAX     1000000 /* uploads aborted when an archive is opened */

struct s3_archive {
    struct hl_archive base;
    struct s3 s3;
    uint64_t part;
    unsigned timeout_ms; /* after the open */
};

static struct s3_archive *s3_of(struct hl_archive *a)
{
    return (struct s3_archive *)a;
}

static void key_of(const struct s3 *s, struct hl_id id, char *out, size_t cap)
{
    snprintf(out, cap, "%s%s" SUFFIX, s->prefix, hl_id_format(id).s);
}

static const char *describe_shard(char *buf, size_t cap, const char *what, struct hl_id id)
{
    snprintf(buf, cap, "%s shard %s", what, hl_id_format(id).s);
    return buf;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Allows only characters that need no encoding in a path, so that the signed path is the one
 * sent. */
static bool is_plain(const char *text, const char *more)
{
    for (; *text != '\0'; text++)
        if (!isalnum((unsigned char)*text) && strchr(more, *text) == NULL)
            return false;
    return true;
}

static hl_status parse_place(struct s3 *s, const char *rest)
{
    const char *bucket = strncmp(rest, "//", 2) == 0 ? rest + 2 : "";
    size_t len = strcspn(bucket, "/");
    const char *prefix = bucket[len] == '/' ? bucket + len + 1 : "";
    size_t n = strlen(prefix);
    while (n > 0 && prefix[n - 1] == '/')
        n--;
    s->bucket = strndup(bucket, len);
    if (s->bucket == NULL || asprintf(&s->prefix, "%.*s%s", (int)n, prefix, n > 0 ? "/" : "") < 0) {
        s->prefix = NULL;
        return hl_fail(HL_ENOMEM, "archive s3:%s: out of memory", rest);
    }
    if (len < 3 || len > 63 || !is_plain(s->bucket, ".-") || !is_plain(s->prefix, "/._-") ||
        n > 200 || strstr(s->prefix, "//") != NULL || s->prefix[0] == '/' ||
        strstr(s->prefix, "../") != NULL || strstr(s->prefix, "./") == s->prefix)
        return hl_fail(HL_EINVAL,
                       "archive s3:%s: give s3://BUCKET/PREFIX, a bucket of 3 to 63 characters and "
                       "a prefix of at most 200 letters, digits and / . _ -",
                       rest);
    return HL_OK;
}

static hl_status take_text(const char *value, char **out)
{
    *out = strdup(value);
    return *out != NULL ? HL_OK
                        : hl_fail(HL_ENOMEM, "archive: out of memory allocating the credentials");
}

/* Parses one line "name = value" of the credentials file. */
static hl_status take_line(struct s3 *s, char *line)
{
    static const char *const names[] = {"aws_access_key_id", "aws_secret_access_key",
                                        "aws_session_token"};
    char **const to[] = {&s->access_key, &s->secret_key, &s->token};
    char *name = line + strspn(line, " \t"), *value = strchr(line, '=');
    if (value == NULL)
        return HL_OK;
    name[strcspn(name, " \t=")] = '\0';
    value++;
    value += strspn(value, " \t");
    value[strcspn(value, " \t\r\n")] = '\0';
    for (size_t i = 0; i < HL_ARRAY_LEN(names); i++)
        if (strcmp(name, names[i]) == 0 && *to[i] == NULL)
            return take_text(value, to[i]);
    return HL_OK;
}

static hl_status read_credentials(struct s3 *s, const char *path)
{
    struct hl_buf file = HL_BUF(CREDENTIAL_MAX);
    hl_status st = hl_file_read(path, &file);
    char *save = NULL;
    if (st == HL_OK && file.len > 0) /* the first profile is used */
        for (char *line = strtok_r(file.data, "\n", &save); line != NULL && st == HL_OK;
             line = strtok_r(NULL, "\n", &save))
            st = take_line(s, line);
    if (file.data != NULL)
        explicit_bzero(file.data, file.cap);
    hl_buf_fini(&file);
    return st;
}

static hl_status find_credentials(struct s3 *s, const char *path)
{
    const char *key = getenv("AWS_ACCESS_KEY_ID"), *secret = getenv("AWS_SECRET_ACCESS_KEY");
    const char *token = getenv("AWS_SESSION_TOKEN");
    if (path != NULL && path[0] != '\0') {
        HL_TRY(read_credentials(s, path));
    } else if (key != NULL && secret != NULL) {
        HL_TRY(take_text(key, &s->access_key));
        HL_TRY(take_text(secret, &s->secret_key));
        if (token != NULL && token[0] != '\0')
            HL_TRY(take_text(token, &s->token));
    }
    if (s->access_key == NULL || s->secret_key == NULL)
        return hl_fail(HL_EINVAL,
                       "archive s3://%s: no credentials: set AWS_ACCESS_KEY_ID and "
                       "AWS_SECRET_ACCESS_KEY, or archive.s3_credentials to a file that has "
                       "aws_access_key_id and aws_secret_access_key",
                       s->bucket);
    return HL_OK;
}

static hl_status find_endpoint(struct s3 *s, const char *endpoint)
{
    if (endpoint == NULL || endpoint[0] == '\0') {
        if (asprintf(&s->endpoint, "https://s3.%s.amazonaws.com", s->region) >= 0)
            return HL_OK;
        s->endpoint = NULL;
        return hl_fail(HL_ENOMEM, "archive: out of memory allocating the endpoint");
    }
    HL_TRY(take_text(endpoint, &s->endpoint));
    size_t n = strlen(s->endpoint);
    while (n > 0 && s->endpoint[n - 1] == '/')
        s->endpoint[--n] = '\0';
    if ((strncmp(endpoint, "http://", 7) == 0 || strncmp(endpoint, "https://", 8) == 0) &&
        n < KEY_MAX && strchr(s->endpoint, '@') == NULL)
        return HL_OK;
    return hl_fail(HL_EINVAL, "archive.s3_endpoint must be http://HOST:PORT or https://HOST:PORT");
}

static void s3_close(struct hl_archive *a)
{
    s3_fini(&s3_of(a)->s3);
    free(a);
}

static hl_status s3_open(const char *rest, const struct hl_archive_options *o,
                         struct hl_archive **out)
{
    HL_TRY(hl_curl_load());
    struct s3_archive *a = calloc(1, sizeof(*a));
    if (a == NULL)
        return hl_fail(HL_ENOMEM, "archive s3:%s: out of memory", rest);
    struct s3 *s = &a->s3;
    pthread_mutex_init(&s->lock, NULL);
    a->timeout_ms = o->timeout_ms > 0 ? o->timeout_ms : TIMEOUT_MS;
    s->timeout_ms = a->timeout_ms;
    if (o->open_timeout_ms > 0 && o->open_timeout_ms < a->timeout_ms)
        s->timeout_ms = o->open_timeout_ms;
    s->cancel = o->cancel;
    a->part = o->s3_part > 0 ? o->s3_part : PART_DEFAULT;
    bool named = o->s3_region != NULL && o->s3_region[0] != '\0';
    hl_status st = take_text(named ? o->s3_region : "us-east-1", &s->region);
    if (st == HL_OK)
        st = parse_place(s, rest);
    if (st == HL_OK && !is_plain(s->region, "-"))
        st = hl_fail(HL_EINVAL, "invalid archive.s3_region '%s'", s->region);
    if (st == HL_OK)
        st = find_endpoint(s, o->s3_endpoint);
    if (st == HL_OK)
        st = find_credentials(s, o->s3_credentials);
    if (st != HL_OK) {
        s3_close(&a->base);
        return st;
    }
    *out = &a->base;
    return HL_OK;
}

/* ---- what is there --------------------------------------------------------------------------- */

/* Parses PREFIX/ID.safetensors. */
static bool id_of_key(const struct s3 *s, const char *key, struct hl_id *out)
{
    char text[HL_ID_TEXT_LEN + 1];
    size_t n = strlen(s->prefix);
    if (strncmp(key, s->prefix, n) != 0 || strlen(key + n) != HL_ID_TEXT_LEN + strlen(SUFFIX) ||
        strcmp(key + n + HL_ID_TEXT_LEN, SUFFIX) != 0)
        return false;
    memcpy(text, key + n, HL_ID_TEXT_LEN);
    text[HL_ID_TEXT_LEN] = '\0';
    return hl_id_parse(text, out) == HL_OK && !hl_id_is_none(*out) &&
           strcmp(hl_id_format(*out).s, text) == 0;
}

/* The name below PREFIX/trash/; NULL: the object is not there. */
static const char *trash_name(const struct s3 *s, const char *key)
{
    size_t n = strlen(s->prefix), m = strlen(TRASH);
    return strncmp(key, s->prefix, n) == 0 && strncmp(key + n, TRASH, m) == 0 ? key + n + m : NULL;
}

static hl_status fail_list(const struct s3 *s)
{
    return hl_fail(HL_EPROTO,
                   "archive s3://%s: the answer of %s is not a list of objects; is it an S3 store?",
                   s->bucket, s->endpoint);
}

typedef hl_status (*note_fn)(struct s3_archive *a, const char *key, uint64_t bytes);

static hl_status note_seen(struct s3_archive *a, const char *key, uint64_t bytes)
{
    struct hl_id id;
    const char *name = trash_name(&a->s3, key);
    if (id_of_key(&a->s3, key, &id))
        archive_seen(&a->base, id, bytes);
    else if (name != NULL)
        archive_seen_trash(&a->base, name);
    return HL_OK;
}

static hl_status note_found(struct s3_archive *a, const char *key, uint64_t bytes)
{
    struct hl_id id;
    if (id_of_key(&a->s3, key, &id))
        return hl_archive_found(&a->base, id, bytes);
    size_t n = strlen(a->s3.prefix);
    const char *trashed = trash_name(&a->s3, key);
    if (strncmp(key, a->s3.prefix, n) == 0 && strcmp(key + n, HL_ARCHIVE_CLAIM) == 0)
        a->base.claim_found = true;
    else if (trashed == NULL || !hl_archive_found_trash(&a->base, trashed, bytes))
        a->base.info.foreign++;
    return HL_OK;
}

/* Parses an answer into a tree whose root must have this name. */
static hl_status read_list(const struct s3 *s, const struct hl_buf *text, const char *name,
                           struct hl_arena *arena, struct s3_node **root)
{
    hl_status st = text->len > 0 ? s3_xml_parse(text->data, text->len, arena, root) : HL_EPROTO;
    if (st == HL_EPROTO || (st == HL_OK && strcmp((*root)->name, name) != 0))
        return fail_list(s);
    return st;
}

static hl_status note_object(struct s3_archive *a, const struct s3_node *object, note_fn note)
{
    const char *key = s3_node_text(object, "Key"), *size = s3_node_text(object, "Size");
    uint64_t bytes;
    if (key == NULL || size == NULL || !hl_parse_number(size, INT64_MAX, &bytes))
        return fail_list(&a->s3);
    return note(a, key, bytes);
}

/* Evaluates a page of the list; `token` is the next page's, "" at the end. */
static hl_status note_page(struct s3_archive *a, const struct s3_node *page, note_fn note,
                           char *token, size_t cap)
{
    const char *more = s3_node_text(page, "IsTruncated");
    const char *next = s3_node_text(page, "NextContinuationToken");
    token[0] = '\0';
    if (more != NULL && strcmp(more, "true") == 0) {
        if (next == NULL || strlen(next) >= cap)
            return fail_list(&a->s3);
        memcpy(token, next, strlen(next) + 1);
    }
    for (const struct s3_node *x = page->child; x != NULL; x = x->next)
        if (strcmp(x->name, "Contents") == 0)
            HL_TRY(note_object(a, x, note));
    return HL_OK;
}

static hl_status list_page(struct s3_archive *a, note_fn note, char *token, size_t cap)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    char query[4096], prefix[3 * KEY_MAX], encoded[3 * UPLOAD_ID_MAX + 1];
    struct s3_answer got;
    struct s3_node *page = NULL;
    if (!s3_encode(a->s3.prefix, prefix, sizeof(prefix)) ||
        !s3_encode(token, encoded, sizeof(encoded)))
        return fail_list(&a->s3);
    snprintf(query, sizeof(query), "%s%s%slist-type=2&max-keys=1000&prefix=%s",
             token[0] != '\0' ? "continuation-token=" : "", encoded, token[0] != '\0' ? "&" : "",
             prefix);
    HL_TRY(s3_do(&a->s3, &(struct s3_request){.method = "GET", .key = "", .query = query}, "list",
                 &got));
    hl_status st = read_list(&a->s3, &got.text, "ListBucketResult", &arena, &page);
    if (st == HL_OK)
        st = note_page(a, page, note, token, cap);
    hl_buf_fini(&got.text);
    return st;
}

static hl_status abort_upload(struct s3_archive *a, const char *key, const char *upload)
{
    char query[3 * UPLOAD_ID_MAX + 32] = "uploadId=";
    struct s3_answer got;
    if (!s3_encode(upload, query + 9, sizeof(query) - 9))
        return fail_list(&a->s3);
    hl_status st =
        s3_do(&a->s3, &(struct s3_request){.method = "DELETE", .key = key, .query = query},
              "abort an upload", &got);
    if (st == HL_OK)
        hl_buf_fini(&got.text);
    return st == HL_ENOENT ? HL_OK : st;
}

/* Aborts our unfinished uploads, one page at a time, because each abort shortens the list. */
static hl_status abort_page(struct s3_archive *a, unsigned *aborted)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    char query[4096], prefix[3 * KEY_MAX];
    struct s3_answer got;
    struct s3_node *list = NULL;
    struct hl_id id;
    *aborted = 0;
    if (!s3_encode(a->s3.prefix, prefix, sizeof(prefix)))
        return fail_list(&a->s3);
    snprintf(query, sizeof(query), "prefix=%s&uploads=", prefix);
    HL_TRY(s3_do(&a->s3, &(struct s3_request){.method = "GET", .key = "", .query = query},
                 "list uploads", &got));
    hl_status st = read_list(&a->s3, &got.text, "ListMultipartUploadsResult", &arena, &list);
    for (const struct s3_node *x = st == HL_OK ? list->child : NULL; st == HL_OK && x != NULL;
         x = x->next) {
        const char *key = s3_node_text(x, "Key"), *upload = s3_node_text(x, "UploadId");
        if (strcmp(x->name, "Upload") != 0)
            continue;
        if (key == NULL || upload == NULL || strlen(upload) >= UPLOAD_ID_MAX)
            st = fail_list(&a->s3);
        else if (id_of_key(&a->s3, key, &id) && (st = abort_upload(a, key, upload)) == HL_OK)
            ++*aborted;
    }
    hl_buf_fini(&got.text);
    return st;
}

/* Tokens that repeat would make an endless list: each token is compared with that of page 1, 2, 4,
 * 8, ..., which detects a cycle of any length in its second or third round. */
static hl_status list_all(struct s3_archive *a, note_fn note)
{
    char token[UPLOAD_ID_MAX] = "", mark[UPLOAD_ID_MAX] = "";
    uint64_t page = 0, marked = 1;
    do {
        HL_TRY(list_page(a, note, token, sizeof(token)));
        if (token[0] != '\0' && strcmp(token, mark) == 0)
            return hl_fail(HL_EPROTO,
                           "archive s3://%s: the list of objects does not end: page %" PRIu64
                           " from %s has the continuation token of an earlier page",
                           a->s3.bucket, page + 1, a->s3.endpoint);
        if (++page == marked) {
            memcpy(mark, token, sizeof(mark));
            marked *= 2;
        }
    } while (token[0] != '\0');
    return HL_OK;
}

static hl_status s3_scan(struct hl_archive *base)
{
    struct s3_archive *a = s3_of(base);
    uint64_t total = 0;
    unsigned aborted;
    HL_TRY(list_all(a, note_found));
    do {
        HL_TRY(abort_page(a, &aborted));
        total += aborted;
    } while (aborted > 0 && total < ABORTS_MAX);
    if (aborted > 0)
        hl_warn("archive s3://%s: %" PRIu64 " unfinished uploads were aborted and more are listed; "
                "the next start aborts the others",
                a->s3.bucket, total);
    base->info.discarded += total;
    a->s3.timeout_ms = a->timeout_ms;
    return HL_OK;
}

static hl_status s3_list(struct hl_archive *base)
{
    return list_all(s3_of(base), note_seen);
}

/* ---- puts ------------------------------------------------------------------------------------ */

static hl_status put_part(struct s3_archive *a, const char *key, const char *upload,
                          unsigned number, const void *bytes, uint64_t len, const char *what,
                          struct hl_buf *list)
{
    char query[3 * UPLOAD_ID_MAX + 64], encoded[3 * UPLOAD_ID_MAX + 1];
    struct s3_answer got;
    if (!s3_encode(upload, encoded, sizeof(encoded)))
        return fail_list(&a->s3);
    snprintf(query, sizeof(query), "partNumber=%u&uploadId=%s", number, encoded);
    HL_TRY(s3_do(&a->s3,
                 &(struct s3_request){
                     .method = "PUT", .key = key, .query = query, .body = bytes, .body_len = len},
                 what, &got));
    hl_buf_fini(&got.text);
    if (got.etag[0] == '\0')
        return hl_fail(HL_EPROTO, "archive s3://%s: %s: the store answered part %u without an ETag",
                       a->s3.bucket, what, number);
    return hl_buf_printf(list, "<Part><PartNumber>%u</PartNumber><ETag>%s</ETag></Part>", number,
                         got.etag);
}

static hl_status start_upload(struct s3_archive *a, const char *key, const char *crc,
                              const char *what, char *upload, size_t cap)
{
    struct s3_answer got;
    HL_TRY(s3_do(
        &a->s3, &(struct s3_request){.method = "POST", .key = key, .query = "uploads=", .crc = crc},
        what, &got));
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct s3_node *root = NULL;
    hl_status st = read_list(&a->s3, &got.text, "InitiateMultipartUploadResult", &arena, &root);
    const char *id = st == HL_OK ? s3_node_text(root, "UploadId") : NULL;
    hl_buf_fini(&got.text);
    HL_TRY(st);
    if (id == NULL || strlen(id) >= cap)
        return fail_list(&a->s3);
    memcpy(upload, id, strlen(id) + 1);
    return HL_OK;
}

/* The store may answer 200 first and report an error in the body. */
static hl_status complete_upload(struct s3_archive *a, const char *key, const char *upload,
                                 const struct hl_buf *list, const char *what)
{
    char query[3 * UPLOAD_ID_MAX + 32] = "uploadId=", code[80];
    struct s3_answer got;
    if (!s3_encode(upload, query + 9, sizeof(query) - 9))
        return fail_list(&a->s3);
    HL_TRY(s3_do(&a->s3,
                 &(struct s3_request){.method = "POST",
                                      .key = key,
                                      .query = query,
                                      .body = list->data,
                                      .body_len = list->len},
                 what, &got));
    bool bad = s3_error_of(&got.text, code, sizeof(code), NULL, 0);
    hl_buf_fini(&got.text);
    return bad ? hl_fail(HL_EIO, "archive s3://%s: %s: %s", a->s3.bucket, what, code) : HL_OK;
}

/* *sent: the object may exist from now on. */
static hl_status put_parts(struct s3_archive *a, const char *key, const char *upload,
                           const void *bytes, uint64_t size, const char *what, bool *sent)
{
    struct hl_buf list = HL_BUF(S3_XML_MAX);
    uint64_t part = a->part;
    unsigned number = 1;
    while (size / part >= PARTS_MAX)
        part *= 2;
    hl_status st = hl_buf_printf(&list, "<CompleteMultipartUpload>");
    for (uint64_t at = 0; st == HL_OK && at < size; at += part, number++)
        st = put_part(a, key, upload, number, (const char *)bytes + at,
                      size - at < part ? size - at : part, what, &list);
    if (st == HL_OK)
        st = hl_buf_printf(&list, "</CompleteMultipartUpload>");
    if (st == HL_OK) {
        *sent = true;
        st = complete_upload(a, key, upload, &list, what);
    }
    hl_buf_fini(&list);
    return st;
}

static hl_status put_multipart(struct s3_archive *a, const char *key, const void *bytes,
                               uint64_t size, const char *crc, const char *what, bool *sent)
{
    char upload[UPLOAD_ID_MAX], why[HL_ERROR_TEXT_MAX];
    HL_TRY(start_upload(a, key, crc, what, upload, sizeof(upload)));
    hl_status st = put_parts(a, key, upload, bytes, size, what, sent);
    if (st == HL_OK || (st == HL_ENOENT && *sent)) /* completed, but its answer was lost */
        return s3_check(&a->s3, key, size, crc, what);
    snprintf(why, sizeof(why), "%s", hl_error_text());
    /* A thread that was stopped aborts its upload all the same: the store would keep the parts, and
     * charge for them, until the archive is opened again. */
    const atomic_bool *stop = archive_take_stop();
    hl_status aborted = abort_upload(a, key, upload);
    hl_archive_stop_with(stop);
    if (aborted != HL_OK)
        hl_warn("parts of an upload stay in the store until the archive is opened again: %s",
                hl_error_text());
    return hl_fail(st, "%s", why);
}

static hl_status put_object(struct s3_archive *a, const char *key, const void *bytes, uint64_t size,
                            const char *crc, const char *what, bool *sent)
{
    struct s3_answer got;
    if (size > a->part)
        return put_multipart(a, key, bytes, size, crc, what, sent);
    *sent = true;
    HL_TRY(s3_do(
        &a->s3,
        &(struct s3_request){
            .method = "PUT", .key = key, .query = "", .body = bytes, .body_len = size, .crc = crc},
        what, &got));
    hl_buf_fini(&got.text);
    return HL_OK; /* the store has checked the payload's SHA-256 */
}

/* Whether the store may have made the object although the put failed. */
static bool is_unclear(hl_status st)
{
    return st == HL_ECANCELED || st == HL_ETIMEDOUT || st == HL_EUNAVAIL || st == HL_EIO;
}

/* Returns the failure `st`. Else an object that the index does not know would stay until the
 * archive is opened again. A thread that was stopped removes it all the same. */
static hl_status take_back(struct s3_archive *a, const char *key, hl_status st)
{
    char why[HL_ERROR_TEXT_MAX];
    snprintf(why, sizeof(why), "%s", hl_error_text());
    const atomic_bool *stop = archive_take_stop();
    hl_status removed = s3_remove_key(&a->s3, key, TAKE_BACK_MS, "remove what may be stored");
    hl_archive_stop_with(stop);
    if (removed != HL_OK)
        hl_warn("an object may stay in the store until the archive is opened again: %s",
                hl_error_text());
    return hl_fail(st, "%s", why);
}

static hl_status s3_put(struct hl_archive *base, struct hl_id id, const void *bytes, uint64_t size,
                        uint32_t crc)
{
    struct s3_archive *a = s3_of(base);
    char key[KEY_MAX], what[80], text[16];
    bool sent = false;
    uint32_t sum = hl_crc32(0, bytes, (size_t)size);
    if (sum != crc)
        return hl_fail(HL_ECORRUPT,
                       "archive: shard %s: the bytes have CRC %08" PRIx32 ", expected %08" PRIx32
                       "; it is not stored",
                       hl_id_format(id).s, sum, crc);
    key_of(&a->s3, id, key, sizeof(key));
    describe_shard(what, sizeof(what), "store", id);
    snprintf(text, sizeof(text), "%08" PRIx32, crc);
    hl_status st = put_object(a, key, bytes, size, text, what, &sent);
    return sent && is_unclear(st) ? take_back(a, key, st) : st;
}

/* ---- gets ------------------------------------------------------------------------------------ */

static hl_status s3_read(struct hl_archive *base, struct hl_id id, uint64_t size, uint64_t offset,
                         void *dst, uint64_t len, uint32_t *crc)
{
    struct s3_archive *a = s3_of(base);
    char key[KEY_MAX], what[80];
    struct s3_answer got;
    *crc = 0;
    key_of(&a->s3, id, key, sizeof(key));
    describe_shard(what, sizeof(what), "load", id);
    if (len == 0)
        return HL_OK;
    HL_TRY(s3_do(&a->s3,
                 &(struct s3_request){.method = "GET",
                                      .key = key,
                                      .query = "",
                                      .dst = dst,
                                      .dst_len = len,
                                      .offset = offset,
                                      .object_size = size},
                 what, &got));
    hl_buf_fini(&got.text);
    *crc = got.dst_crc;
    return HL_OK;
}

static hl_status s3_crc(struct hl_archive *base, struct hl_id id, uint32_t *out)
{
    struct s3_archive *a = s3_of(base);
    char key[KEY_MAX], what[80];
    struct s3_answer got;
    uint64_t crc;
    key_of(&a->s3, id, key, sizeof(key));
    HL_TRY(s3_head(&a->s3, key, 0, describe_shard(what, sizeof(what), "look at", id), &got));
    if (strlen(got.crc) != 8 || !hl_parse_hex(got.crc, 8, &crc))
        return HL_ENOENT; /* another program put it there */
    *out = (uint32_t)crc;
    return HL_OK;
}

static hl_status s3_remove(struct hl_archive *base, struct hl_id id)
{
    struct s3_archive *a = s3_of(base);
    char key[KEY_MAX], what[80];
    key_of(&a->s3, id, key, sizeof(key));
    return s3_remove_key(&a->s3, key, 0, describe_shard(what, sizeof(what), "remove", id));
}

static hl_status s3_look_at(struct hl_archive *base, struct hl_id id, uint64_t size)
{
    struct s3 *s = &s3_of(base)->s3;
    char key[KEY_MAX], what[80];
    key_of(s, id, key, sizeof(key));
    return s3_look(s, key, size, describe_shard(what, sizeof(what), "look at", id));
}

/* ---- trash, and whose it is ------------------------------------------------------------------ */

static hl_status s3_trash(struct hl_archive *base, struct hl_id id, uint64_t size, const char *name)
{
    struct s3 *s = &s3_of(base)->s3;
    char key[KEY_MAX], to[KEY_MAX], what[80];
    key_of(s, id, key, sizeof(key));
    snprintf(to, sizeof(to), "%s" TRASH "%s", s->prefix, name);
    return s3_move(s, key, to, size, describe_shard(what, sizeof(what), "move to the trash", id));
}

static hl_status s3_untrash(struct hl_archive *base, struct hl_id id, uint64_t size,
                            const char *name)
{
    struct s3 *s = &s3_of(base)->s3;
    char key[KEY_MAX], from[KEY_MAX], what[80];
    key_of(s, id, key, sizeof(key));
    snprintf(from, sizeof(from), "%s" TRASH "%s", s->prefix, name);
    return s3_move(s, from, key, size, describe_shard(what, sizeof(what), "move back", id));
}

static hl_status s3_trash_look(struct hl_archive *base, uint64_t size, const char *name)
{
    struct s3 *s = &s3_of(base)->s3;
    char key[KEY_MAX];
    snprintf(key, sizeof(key), "%s" TRASH "%s", s->prefix, name);
    return s3_look(s, key, size, "look into the trash");
}

static hl_status s3_trash_remove(struct hl_archive *base, const char *name)
{
    struct s3 *s = &s3_of(base)->s3;
    char key[KEY_MAX];
    snprintf(key, sizeof(key), "%s" TRASH "%s", s->prefix, name);
    return s3_remove_key(s, key, 0, "remove from the trash");
}

static hl_status s3_claim_read(struct hl_archive *base, char *out, size_t cap, size_t *len)
{
    struct s3 *s = &s3_of(base)->s3;
    char key[KEY_MAX];
    snprintf(key, sizeof(key), "%s" HL_ARCHIVE_CLAIM, s->prefix);
    return s3_read_text(s, key, "read " HL_ARCHIVE_CLAIM, out, cap, len);
}

static hl_status s3_claim_write(struct hl_archive *base, const char *text, size_t len)
{
    struct s3 *s = &s3_of(base)->s3;
    char key[KEY_MAX];
    snprintf(key, sizeof(key), "%s" HL_ARCHIVE_CLAIM, s->prefix);
    return s3_write_text(s, key, "write " HL_ARCHIVE_CLAIM, text, len);
}

const struct hl_archive_ops hl_archive_s3 = {
    .scheme = "s3",
    .open = s3_open,
    .close = s3_close,
    .scan = s3_scan,
    .put = s3_put,
    .read = s3_read,
    .remove = s3_remove,
    .look = s3_look_at,
    .list = s3_list,
    .trash = s3_trash,
    .untrash = s3_untrash,
    .trash_look = s3_trash_look,
    .trash_remove = s3_trash_remove,
    .claim_read = s3_claim_read,
    .claim_write = s3_claim_write,
    .crc = s3_crc,
};

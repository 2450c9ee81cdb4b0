/* One request by libcurl, which signs it (version 4). The payload's SHA-256 is computed here:
 * libcurl 7.88 neither computes it for uploads nor sends it, and servers want it. A download that
 * breaks off is resumed if the object is still the same. */
#include <ctype.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/backoff.h"
#include "base/clock.h"
#include "base/copy.h"
#include "base/id.h"
#include "base/text.h"
#include "mem/archive/ops.h"
#include "mem/archive/s3.h"

#define CONNECT_MS     5000
#define EXPECT_MS      200 /* for servers that never send 100 Continue */
#define BACKOFF_MS     100
#define BACKOFF_TOP    2000
#define CANCEL_LOOK_MS 10
#define CRC_HEADER     "x-amz-meta-helios-crc32"
#define NAME_MAX_TEXT  1024

/* One attempt, and the state that is kept between attempts. */
struct attempt {
    struct s3 *s;
    const struct s3_request *r;
    struct s3_answer *out;
    CURL *curl;
    uint64_t sent;  /* bytes of the body */
    uint64_t got;   /* bytes in dst, over all attempts */
    uint64_t total; /* object size from Content-Range; 0 = unknown */
    bool bytes;     /* the body of this answer goes to dst */
    bool size_wrong;
    bool timed_out, cancelled;
    curl_off_t seen;      /* bytes moved in this attempt */
    uint64_t progress_ns; /* time of the last progress */
    uint64_t since_ns;    /* start of the retries: the request's, or the last byte kept */
};

/* ---- callbacks of libcurl -------------------------------------------------------------------- */

static size_t on_read(char *to, size_t size, size_t n, void *arg)
{
    struct attempt *a = arg;
    uint64_t left = a->r->body_len - a->sent, want = size * n;
    size_t len = (size_t)(left < want ? left : want);
    if (len > 0)
        memcpy(to, (const char *)a->r->body + a->sent, len);
    a->sent += len;
    return len;
}

static int on_seek(void *arg, curl_off_t offset, int origin)
{
    struct attempt *a = arg;
    if (origin != SEEK_SET || offset < 0 || (uint64_t)offset > a->r->body_len)
        return CURL_SEEKFUNC_FAIL;
    a->sent = (uint64_t)offset;
    return CURL_SEEKFUNC_OK;
}

static bool is_success(CURL *curl, long *code)
{
    *code = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, code);
    return *code >= 200 && *code < 300;
}

static size_t on_write(char *from, size_t size, size_t n, void *arg)
{
    struct attempt *a = arg;
    size_t len = size * n;
    if (!a->bytes)
        return hl_buf_append(&a->out->text, from, len) == HL_OK ? len : 0;
    if (a->size_wrong || len > a->r->dst_len - a->got) {
        a->size_wrong = true;
        return 0;
    }
    a->out->dst_crc =
        hl_copy_crc32(a->out->dst_crc, (char *)a->r->dst + a->got, from, len, a->r->dst_len);
    a->got += len;
    return len;
}

static bool header_is(const char *line, size_t len, const char *name, char *out, size_t cap)
{
    size_t n = strlen(name);
    if (len <= n || strncasecmp(line, name, n) != 0 || line[n] != ':')
        return false;
    const char *from = line + n + 1, *to = line + len;
    while (from < to && isspace((unsigned char)*from))
        from++;
    while (to > from && isspace((unsigned char)to[-1]))
        to--;
    snprintf(out, cap, "%.*s", (int)(to - from), from);
    return true;
}

static unsigned limit_ms(const struct s3 *s, const struct s3_request *r)
{
    return r->timeout_ms > 0 && r->timeout_ms < s->timeout_ms ? r->timeout_ms : s->timeout_ms;
}

/* The headers show whether the body is the object's. */
static void on_headers_end(struct attempt *a)
{
    long code;
    a->bytes = is_success(a->curl, &code) && a->r->dst != NULL;
    if (!a->bytes)
        return;
    uint64_t whole = code == 206 ? a->total : a->out->length;
    bool ranged = a->r->dst_len < a->r->object_size || a->got > 0;
    a->size_wrong = whole != a->r->object_size || (ranged && code != 206);
}

static size_t on_header(char *line, size_t size, size_t n, void *arg)
{
    struct attempt *a = arg;
    size_t len = size * n;
    char value[160];
    if (len > 5 && strncmp(line, "HTTP/", 5) == 0) { /* a new answer begins, after 100 Continue */
        a->total = 0;
        a->out->length = 0;
    }
    if (header_is(line, len, "etag", value, sizeof(value)))
        snprintf(a->out->etag, sizeof(a->out->etag), "%.90s", value);
    else if (header_is(line, len, CRC_HEADER, value, sizeof(value)))
        snprintf(a->out->crc, sizeof(a->out->crc), "%.15s", value);
    else if (header_is(line, len, "content-length", value, sizeof(value)))
        (void)hl_parse_number(value, UINT64_MAX, &a->out->length); /* it stays unknown on failure */
    else if (header_is(line, len, "content-range", value, sizeof(value)) &&
             strchr(value, '/') != NULL)
        (void)hl_parse_number(strchr(value, '/') + 1, UINT64_MAX, &a->total);
    else if (len <= 2)
        on_headers_end(a);
    return len;
}

static int on_progress(void *arg, curl_off_t dl_total, curl_off_t dl, curl_off_t ul_total,
                       curl_off_t ul)
{
    struct attempt *a = arg;
    uint64_t now = hl_now_ns();
    (void)dl_total;
    (void)ul_total;
    if (dl + ul > a->seen) {
        a->seen = dl + ul;
        a->progress_ns = now;
    }
    a->timed_out = now - a->progress_ns > limit_ms(a->s, a->r) * HL_NS_PER_MS;
    a->cancelled = archive_is_stopped(a->s->cancel);
    return a->timed_out || a->cancelled;
}

/* ---- one attempt ----------------------------------------------------------------------------- */

/* Takes an idle handle with its open connection, or makes a new one. A handle serves one request at
 * a time; the lock only guards the list of idle ones. */
static CURL *s3_take_handle(struct s3 *s)
{
    CURL *curl = NULL;
    pthread_mutex_lock(&s->lock);
    if (s->idle_count > 0)
        curl = s->idle[--s->idle_count];
    pthread_mutex_unlock(&s->lock);
    return curl != NULL ? curl : curl_easy_init();
}

static void s3_give_handle(struct s3 *s, CURL *curl)
{
    curl_easy_reset(curl); /* keeps the connection open */
    pthread_mutex_lock(&s->lock);
    bool kept = s->idle_count < S3_IDLE_MAX;
    if (kept)
        s->idle[s->idle_count++] = curl;
    pthread_mutex_unlock(&s->lock);
    if (!kept)
        curl_easy_cleanup(curl);
}

static bool add_header(struct curl_slist **list, const char *name, const char *value)
{
    char line[NAME_MAX_TEXT * 4];
    snprintf(line, sizeof(line), "%s: %s", name, value);
    struct curl_slist *more = curl_slist_append(*list, line);
    if (more != NULL)
        *list = more;
    return more != NULL;
}

static void sha256_hex(const void *data, size_t len, char out[65])
{
    unsigned char sum[EVP_MAX_MD_SIZE] = {0};
    unsigned n = 0;
    if (EVP_Digest(data != NULL ? data : "", len, sum, &n, EVP_sha256(), NULL) != 1)
        n = 0; /* the server then refuses the request */
    for (unsigned i = 0; i < 32; i++)
        snprintf(out + 2 * i, 3, "%02x", i < n ? sum[i] : 0);
}

static struct curl_slist *make_headers(const struct attempt *a, const char *sha)
{
    struct curl_slist *list = NULL;
    bool ok = add_header(&list, "x-amz-content-sha256", sha);
    if (a->s->token != NULL)
        ok &= add_header(&list, "x-amz-security-token", a->s->token);
    if (a->r->crc != NULL)
        ok &= add_header(&list, CRC_HEADER, a->r->crc);
    if (a->r->copy_of != NULL) {
        char source[NAME_MAX_TEXT * 2];
        snprintf(source, sizeof(source), "/%s/%s", a->s->bucket, a->r->copy_of);
        ok &= add_header(&list, "x-amz-copy-source", source);
    }
    if (strcmp(a->r->method, "PUT") == 0 || strcmp(a->r->method, "POST") == 0)
        ok &= add_header(&list, "content-type", "application/octet-stream");
    if (a->got > 0 && a->out->etag[0] != '\0') /* resumed: only of the same object */
        ok &= add_header(&list, "if-match", a->out->etag);
    if (!ok) {
        curl_slist_free_all(list);
        return NULL;
    }
    return list;
}

static void set_method(const struct attempt *a)
{
    const struct s3_request *r = a->r;
    CURL *c = a->curl;
    if (strcmp(r->method, "HEAD") == 0) {
        curl_easy_setopt(c, CURLOPT_NOBODY, 1L);
    } else if (strcmp(r->method, "PUT") == 0) {
        curl_easy_setopt(c, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(c, CURLOPT_INFILESIZE_LARGE, (curl_off_t)r->body_len);
    } else if (strcmp(r->method, "POST") == 0) {
        curl_easy_setopt(c, CURLOPT_POST, 1L);
        curl_easy_setopt(c, CURLOPT_POSTFIELDS, r->body != NULL ? r->body : "");
        curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)r->body_len);
    } else if (strcmp(r->method, "GET") != 0) {
        curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, r->method);
    }
    if (r->dst != NULL && (r->dst_len < r->object_size || a->got > 0)) {
        char range[64];
        snprintf(range, sizeof(range), "%" PRIu64 "-%" PRIu64, r->offset + a->got,
                 r->offset + r->dst_len - 1);
        curl_easy_setopt(c, CURLOPT_RANGE, range);
    }
}

static void set_all(struct attempt *a, const char *url, const char *provider,
                    struct curl_slist *headers)
{
    CURL *c = a->curl;
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    curl_easy_setopt(c, CURLOPT_EXPECT_100_TIMEOUT_MS, (long)EXPECT_MS);
    curl_easy_setopt(c, CURLOPT_BUFFERSIZE, 512L << 10);
    curl_easy_setopt(c, CURLOPT_UPLOAD_BUFFERSIZE, 512L << 10);
    curl_easy_setopt(c, CURLOPT_AWS_SIGV4, provider);
    curl_easy_setopt(c, CURLOPT_USERNAME, a->s->access_key);
    curl_easy_setopt(c, CURLOPT_PASSWORD, a->s->secret_key);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(c, CURLOPT_READFUNCTION, on_read);
    curl_easy_setopt(c, CURLOPT_READDATA, a);
    curl_easy_setopt(c, CURLOPT_SEEKFUNCTION, on_seek);
    curl_easy_setopt(c, CURLOPT_SEEKDATA, a);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_write);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, a);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, a);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, a);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    set_method(a);
}

static CURLcode attempt_once(struct attempt *a, const char *sha)
{
    const struct s3 *s = a->s;
    char url[NAME_MAX_TEXT * 4], provider[160];
    snprintf(url, sizeof(url), "%s/%s%s%s%s%s", s->endpoint, s->bucket,
             a->r->key[0] != '\0' ? "/" : "", a->r->key, a->r->query[0] != '\0' ? "?" : "",
             a->r->query);
    snprintf(provider, sizeof(provider), "aws:amz:%s:s3", s->region);
    struct curl_slist *headers = make_headers(a, sha);
    a->curl = headers != NULL ? s3_take_handle(a->s) : NULL;
    if (a->curl == NULL) {
        curl_slist_free_all(headers);
        return CURLE_OUT_OF_MEMORY;
    }
    a->sent = 0;
    a->seen = 0;
    a->progress_ns = hl_now_ns();
    a->bytes = false;
    a->total = 0;
    hl_buf_clear(&a->out->text);
    set_all(a, url, provider, headers);
    CURLcode rc = curl_easy_perform(a->curl);
    (void)is_success(a->curl, &a->out->code);
    s3_give_handle(a->s, a->curl);
    curl_slist_free_all(headers);
    return rc;
}

/* ---- until it is answered -------------------------------------------------------------------- */

/* The store's error code, or the HTTP status if there is none. */
static void error_code(const struct s3_answer *out, char *buf, size_t cap)
{
    char code[80] = "", message[200] = "";
    s3_error_of(&out->text, code, sizeof(code), message, sizeof(message));
    snprintf(buf, cap, "HTTP %ld%s%s%s%s", out->code, code[0] != '\0' ? " " : "", code,
             message[0] != '\0' ? ": " : "", message);
    for (char *p = buf; *p != '\0'; p++)
        if ((unsigned char)*p < ' ')
            *p = ' ';
}

static hl_status fail_answer(const struct s3 *s, const struct s3_request *r, const char *what,
                             const struct s3_answer *out)
{
    char why[320];
    error_code(out, why, sizeof(why));
    long code = out->code;
    if (code == 507 || code == 413 || strstr(why, "Quota") != NULL)
        return hl_fail(HL_ENOSPC, "archive s3://%s: %s: %s", s->bucket, what, why);
    if (code == 403 || code == 401)
        return hl_fail(
            HL_EPERM,
            "archive s3://%s: %s: %s: %s; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and "
            "archive.s3_region",
            s->bucket, what, s->endpoint, why);
    if (code == 404)
        return hl_fail(HL_ENOENT, "archive s3://%s: %s: %s: %s%s", s->bucket, what, s->endpoint,
                       why, strstr(why, "NoSuchBucket") != NULL ? "; make the bucket first" : "");
    if (code == 412)
        return hl_fail(HL_ECORRUPT, "archive s3://%s: %s: the object changed while it was read",
                       s->bucket, what);
    if (code >= 500 || code == 429)
        return hl_fail(HL_EUNAVAIL, "archive s3://%s: %s: %s: %s, also after retries for %u ms",
                       s->bucket, what, s->endpoint, why, limit_ms(s, r));
    return hl_fail(HL_EINVAL, "archive s3://%s: %s: %s", s->bucket, what, why);
}

static hl_status fail_curl(const struct attempt *a, const char *what, CURLcode rc)
{
    const struct s3 *s = a->s;
    if (a->size_wrong)
        return hl_fail(HL_ECORRUPT,
                       "archive s3://%s: %s: the object there has another size than %" PRIu64
                       " bytes; take another copy and remove this one",
                       s->bucket, what, a->r->object_size);
    if (a->cancelled)
        return hl_fail(HL_ECANCELED,
                       "archive s3://%s: %s: it was stopped, or the daemon is shutting down",
                       s->bucket, what);
    if (rc == CURLE_OUT_OF_MEMORY)
        return hl_fail(HL_ENOMEM, "archive s3://%s: %s: out of memory", s->bucket, what);
    if (a->timed_out || rc == CURLE_OPERATION_TIMEDOUT)
        return hl_fail(HL_ETIMEDOUT, "archive s3://%s: %s: %s moved no byte for %u ms", s->bucket,
                       what, s->endpoint, limit_ms(s, a->r));
    return hl_fail(HL_EUNAVAIL, "archive s3://%s: %s: %s: %s", s->bucket, what, s->endpoint,
                   curl_easy_strerror(rc));
}

/* Whether a retry may succeed. */
static bool is_transient(const struct attempt *a, CURLcode rc)
{
    if (a->size_wrong || a->cancelled || a->timed_out)
        return false;
    if (rc == CURLE_OK)
        return a->out->code >= 500 ? a->out->code != 501 && a->out->code != 507
                                   : a->out->code == 429 || a->out->code == 408;
    return rc == CURLE_COULDNT_CONNECT || rc == CURLE_PARTIAL_FILE || rc == CURLE_RECV_ERROR ||
           rc == CURLE_SEND_ERROR || rc == CURLE_GOT_NOTHING || rc == CURLE_OPERATION_TIMEDOUT ||
           rc == CURLE_COULDNT_RESOLVE_HOST || rc == CURLE_SSL_CONNECT_ERROR;
}

/* Returns false if the deadline comes first. */
static bool back_off(struct attempt *a, int tried)
{
    uint64_t ms = hl_backoff_ms(BACKOFF_MS, BACKOFF_TOP, (unsigned)tried);
    ms = ms / 2 + hl_random_u64() % (ms / 2 + 1);
    uint64_t until = hl_now_ns() + ms * HL_NS_PER_MS;
    if (tried > 0 && until > a->since_ns + limit_ms(a->s, a->r) * HL_NS_PER_MS)
        return false;
    while (hl_now_ns() < until) {
        if (archive_is_stopped(a->s->cancel))
            return false;
        poll(NULL, 0, CANCEL_LOOK_MS); /* `cancel` is a plain flag that wakes no thread */
    }
    return true;
}

hl_status s3_do(struct s3 *s, const struct s3_request *r, const char *what, struct s3_answer *out)
{
    char sha[65];
    *out = (struct s3_answer){.text = HL_BUF(S3_XML_MAX)};
    struct attempt a = {.s = s, .r = r, .out = out, .since_ns = hl_now_ns()};
    sha256_hex(r->body, (size_t)r->body_len, sha);
    for (int tried = 0;; tried++) {
        uint64_t before = a.got;
        CURLcode rc = attempt_once(&a, sha);
        if (a.got > before) {
            tried = 0;
            a.since_ns = hl_now_ns();
        }
        bool whole = r->dst == NULL || a.got == r->dst_len;
        if (rc == CURLE_OK && out->code >= 200 && out->code < 300 && whole && !a.size_wrong)
            return HL_OK;
        if (is_transient(&a, rc) && back_off(&a, tried))
            continue;
        hl_status st = rc != CURLE_OK || a.size_wrong ? fail_curl(&a, what, rc)
                       : out->code >= 200 && out->code < 300
                           ? hl_fail(HL_ECORRUPT, "archive s3://%s: %s: too few bytes arrived",
                                     s->bucket, what)
                           : fail_answer(s, r, what, out);
        hl_buf_fini(&out->text);
        return st;
    }
}

static void forget_secret(char *secret)
{
    if (secret != NULL)
        explicit_bzero(secret, strlen(secret));
    free(secret);
}

void s3_fini(struct s3 *s)
{
    while (s->idle_count > 0)
        curl_easy_cleanup(s->idle[--s->idle_count]);
    free(s->endpoint);
    free(s->bucket);
    free(s->prefix);
    free(s->region);
    forget_secret(s->access_key);
    forget_secret(s->secret_key);
    forget_secret(s->token);
    pthread_mutex_destroy(&s->lock);
}

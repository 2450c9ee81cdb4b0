#include "kube/http.h"

#include <ctype.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/text.h"
#include "core/json.h"
#include "curl/library.h"

#define CONNECT_MS      5000
#define CALL_MS         30000
#define IDLE_MAX        4
#define HEADER_MAX      (HL_KUBE_TOKEN_MAX + 64)
#define UNAUTHORIZED    401
#define TOKEN_AGAIN_S   5 /* until the next attempt to replace a token that may still be valid */
#define ANSWER_TEXT_MAX 200
#define ACCEPT          "Accept: application/json"
#define ENCODED         "application/vnd.kubernetes.protobuf"
#define ACCEPT_ENCODED  "Accept: " ENCODED ",application/json"
#define ACCEPT_METADATA                                                                            \
    "Accept: application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

struct hl_kube {
    const struct hl_kube_config *config;
    const atomic_bool *cancel;
    char *connect_to; /* if tls_server_name is in the URL; otherwise NULL */
    char *base;       /* the URL before the path */
    pthread_mutex_t lock;
    char token[HL_KUBE_TOKEN_MAX];
    uint64_t token_until_ns;  /* time to read it again; 0 = it was never read */
    uint64_t token_failed_ns; /* time of the last failure to get it */
    char token_problem[HL_ERROR_TEXT_MAX];
    CURL *idle[IDLE_MAX];
    unsigned idle_count;
};

/* A running request. */
struct exchange {
    struct hl_kube *k;
    const char *method, *path;
    const char *accept;
    CURL *curl;
    struct hl_buf body;
    struct hl_kube_stream *stream; /* takes the body of a 200; if NULL, `body` does */
    hl_status stream_st;
    long code;
    int retry_after_s;
    uint64_t until_ns;
    int gather_ms;
    bool has_taken; /* since it last gathered */
    bool timed_out, cancelled;
};

/* ---- opening --------------------------------------------------------------------------------- */

/* Changes "https://HOST:PORT/" to "https://NAME:PORT", and tells libcurl where to connect for
 * that. */
static hl_status use_server_name(struct hl_kube *k)
{
    const char *name = k->config->tls_server_name;
    CURLU *url = curl_url();
    char *host = NULL, *port = NULL, *text = NULL;
    bool ok = url != NULL && curl_url_set(url, CURLUPART_URL, k->config->server, 0) == CURLUE_OK &&
              curl_url_get(url, CURLUPART_HOST, &host, 0) == CURLUE_OK &&
              curl_url_get(url, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) == CURLUE_OK &&
              curl_url_set(url, CURLUPART_HOST, name, 0) == CURLUE_OK &&
              curl_url_get(url, CURLUPART_URL, &text, 0) == CURLUE_OK &&
              asprintf(&k->connect_to, "%s:%s:%s:%s", name, port, host, port) > 0;
    if (ok) {
        size_t n = strlen(text);
        k->base = strndup(text, n > 0 && text[n - 1] == '/' ? n - 1 : n);
    }
    curl_free(host);
    curl_free(port);
    curl_free(text);
    curl_url_cleanup(url);
    return ok && k->base != NULL
               ? HL_OK
               : hl_fail(HL_EINVAL,
                         "API server %s: not an address that can be used with tls-server-name",
                         k->config->server);
}

hl_status hl_kube_open(const struct hl_kube_config *config, const atomic_bool *cancel,
                       struct hl_kube **out)
{
    HL_TRY(hl_curl_load());
    struct hl_kube *k = calloc(1, sizeof(*k));
    if (k == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating an API client");
    k->config = config;
    k->cancel = cancel;
    pthread_mutex_init(&k->lock, NULL);
    hl_status st = HL_OK;
    if (config->tls_server_name != NULL)
        st = use_server_name(k);
    else if ((k->base = strdup(config->server)) == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory allocating an API client");
    if (st != HL_OK) {
        hl_kube_close(k);
        return st;
    }
    *out = k;
    return HL_OK;
}

void hl_kube_close(struct hl_kube *k)
{
    if (k == NULL)
        return;
    for (unsigned i = 0; i < k->idle_count; i++)
        curl_easy_cleanup(k->idle[i]);
    pthread_mutex_destroy(&k->lock);
    explicit_bzero(k->token, sizeof(k->token));
    free(k->connect_to);
    free(k->base);
    free(k);
}

/* ---- callbacks of libcurl -------------------------------------------------------------------- */

static size_t on_write(char *from, size_t size, size_t n, void *arg)
{
    struct exchange *x = arg;
    size_t len = size * n;
    curl_easy_getinfo(x->curl, CURLINFO_RESPONSE_CODE, &x->code);
    if (x->stream == NULL || x->code != 200)
        return hl_buf_append(&x->body, from, len) == HL_OK ? len : 0;
    x->has_taken = true;
    x->stream_st = hl_kube_stream_feed(x->stream, from, len);
    return x->stream_st == HL_OK ? len : 0;
}

/* Returns 0 for a date, which HTTP also allows. */
static int parse_seconds(const char *from, size_t len)
{
    char text[16];
    uint64_t seconds;
    while (len > 0 && isspace((unsigned char)from[len - 1]))
        len--;
    for (; len > 0 && isspace((unsigned char)*from); len--)
        from++;
    if (len >= sizeof(text))
        return 0;
    memcpy(text, from, len);
    text[len] = '\0';
    return hl_parse_number(text, INT_MAX, &seconds) ? (int)seconds : 0;
}

static bool answer_is_encoded(const struct exchange *x)
{
    char *type = NULL;
    return curl_easy_getinfo(x->curl, CURLINFO_CONTENT_TYPE, &type) == CURLE_OK && type != NULL &&
           strncasecmp(type, ENCODED, strlen(ENCODED)) == 0;
}

/* Called at the end of a watch's headers. */
static void on_headers(struct exchange *x)
{
    struct hl_kube_stream *s = x->stream;
    curl_easy_getinfo(x->curl, CURLINFO_RESPONSE_CODE, &x->code);
    s->is_encoded = s->encoded != NULL && answer_is_encoded(x);
    if (x->code == 200 && s->begun != NULL)
        s->begun(s->arg);
}

static size_t on_header(char *line, size_t size, size_t n, void *arg)
{
    static const char name[] = "retry-after:";
    struct exchange *x = arg;
    size_t len = size * n;
    if (len > strlen(name) && strncasecmp(line, name, strlen(name)) == 0)
        x->retry_after_s = parse_seconds(line + strlen(name), len - strlen(name));
    if (x->stream != NULL && len == 2 && line[0] == '\r')
        on_headers(x);
    return len;
}

/* libcurl has processed one record and would now wait for the next one. Waits here instead, so that
 * several records arrive together. */
static void exchange_gather(struct exchange *x)
{
    struct pollfd pollfd = {.fd = -1, .events = POLLIN};
    curl_socket_t fd = CURL_SOCKET_BAD;
    if (x->gather_ms == 0 || !x->has_taken ||
        curl_easy_getinfo(x->curl, CURLINFO_ACTIVESOCKET, &fd) != CURLE_OK)
        return;
    pollfd.fd = fd;
    if (poll(&pollfd, 1, 0) != 0)
        return;
    x->has_taken = false;
    (void)poll(NULL, 0, x->gather_ms);
}

static int on_progress(void *arg, curl_off_t dl_total, curl_off_t dl, curl_off_t ul_total,
                       curl_off_t ul)
{
    struct exchange *x = arg;
    (void)dl_total;
    (void)dl;
    (void)ul_total;
    (void)ul;
    exchange_gather(x);
    x->timed_out = hl_now_ns() > x->until_ns;
    x->cancelled = x->k->cancel != NULL && atomic_load_explicit(x->k->cancel, memory_order_relaxed);
    return x->timed_out || x->cancelled;
}

/* ---- one attempt ----------------------------------------------------------------------------- */

static CURL *kube_take_handle(struct hl_kube *k)
{
    CURL *curl = NULL;
    pthread_mutex_lock(&k->lock);
    if (k->idle_count > 0)
        curl = k->idle[--k->idle_count];
    pthread_mutex_unlock(&k->lock);
    return curl != NULL ? curl : curl_easy_init();
}

static void kube_give_handle(struct hl_kube *k, CURL *curl)
{
    curl_easy_reset(curl); /* the connection is kept */
    pthread_mutex_lock(&k->lock);
    bool kept = k->idle_count < IDLE_MAX;
    if (kept)
        k->idle[k->idle_count++] = curl;
    pthread_mutex_unlock(&k->lock);
    if (!kept)
        curl_easy_cleanup(curl);
}

/* A program that gets the token can take a while, and all requests wait for it. If it has failed
 * while other requests waited, it has failed for them too. A token that can't be renewed in time is
 * used until the server rejects it. */
static hl_status kube_renew_token(struct hl_kube *k, bool anew, uint64_t asked_ns)
{
    char token[HL_KUBE_TOKEN_MAX];
    int64_t again_s = 0;
    if (!anew && hl_now_ns() < k->token_until_ns)
        return HL_OK;
    if (k->token_failed_ns > asked_ns)
        return hl_fail(HL_EUNAVAIL, "%s", k->token_problem);
    hl_status st = hl_kube_config_token(k->config, k->cancel, token, sizeof(token), &again_s);
    if (st == HL_OK) {
        memcpy(k->token, token, sizeof(token));
        explicit_bzero(token, sizeof(token));
    } else if (st == HL_ECANCELED) {
        return st;
    } else if (!anew && k->token[0] != '\0') {
        again_s = TOKEN_AGAIN_S;
    } else {
        st = hl_fail_prefix(HL_EUNAVAIL, "no credentials: ");
        snprintf(k->token_problem, sizeof(k->token_problem), "%s", hl_error_text());
        k->token_failed_ns = hl_now_ns();
        return st;
    }
    k->token_until_ns = hl_now_ns() + (uint64_t)again_s * HL_NS_PER_S;
    return HL_OK;
}

/* Writes the header with the token. */
static hl_status authorization_header(struct hl_kube *k, bool anew, char *out, size_t cap)
{
    uint64_t asked_ns = hl_now_ns();
    pthread_mutex_lock(&k->lock);
    hl_status st = kube_renew_token(k, anew, asked_ns);
    out[0] = '\0';
    if (k->token[0] != '\0')
        snprintf(out, cap, "Authorization: Bearer %s", k->token);
    pthread_mutex_unlock(&k->lock);
    return st;
}

static void set_pem(CURL *c, CURLoption option, char *pem)
{
    struct curl_blob blob = {.data = pem, .flags = CURL_BLOB_NOCOPY};
    if (pem == NULL)
        return;
    blob.len = strlen(pem);
    curl_easy_setopt(c, option, &blob);
}

static void set_tls(CURL *c, const struct hl_kube_config *config)
{
    set_pem(c, CURLOPT_CAINFO_BLOB, config->ca);
    set_pem(c, CURLOPT_SSLCERT_BLOB, config->cert);
    set_pem(c, CURLOPT_SSLKEY_BLOB, config->key);
    curl_easy_setopt(c, CURLOPT_SSLCERTTYPE, "PEM");
    curl_easy_setopt(c, CURLOPT_SSLKEYTYPE, "PEM");
    if (config->insecure) {
        curl_easy_setopt(c, CURLOPT_SSL_VERIFYPEER, 0L);
        curl_easy_setopt(c, CURLOPT_SSL_VERIFYHOST, 0L);
    }
}

static void set_all(struct exchange *x, const char *url, const char *body,
                    struct curl_slist *headers, struct curl_slist *connect_to)
{
    CURL *c = x->curl;
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    /* Detects a server that has disappeared without closing the connection: after 75 s, by nine
     * probes that Linux sends. For a watch there is no other sign. */
    curl_easy_setopt(c, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(c, CURLOPT_TCP_KEEPIDLE, 30L);
    curl_easy_setopt(c, CURLOPT_TCP_KEEPINTVL, 5L);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(c, CURLOPT_CONNECT_TO, connect_to);
    curl_easy_setopt(c, CURLOPT_PROXY, x->k->config->proxy);
    curl_easy_setopt(c, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_write);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, x);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, x);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, x);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    set_tls(c, x->k->config);
    if (body != NULL) {
        curl_easy_setopt(c, CURLOPT_POSTFIELDS, body);
        curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(body));
    }
    if (strcmp(x->method, "GET") != 0)
        curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, x->method);
}

static bool add_line(struct curl_slist **list, const char *line)
{
    struct curl_slist *more = line[0] != '\0' ? curl_slist_append(*list, line) : *list;
    if (more != NULL)
        *list = more;
    return line[0] == '\0' || more != NULL;
}

static hl_status perform_once(struct exchange *x, const char *body, const char *type, bool anew,
                              CURLcode *rc)
{
    struct curl_slist *headers = NULL, *connect_to = NULL;
    char line[HEADER_MAX], kind[96], *url = NULL;
    HL_TRY(authorization_header(x->k, anew, line, sizeof(line)));
    snprintf(kind, sizeof(kind), "Content-Type: %s", type != NULL ? type : "application/json");
    bool ok = add_line(&headers, line) && add_line(&headers, x->accept) &&
              add_line(&headers, "User-Agent: helios/" HELIOS_VERSION) &&
              add_line(&headers, body != NULL ? kind : "") &&
              add_line(&connect_to, x->k->connect_to != NULL ? x->k->connect_to : "") &&
              asprintf(&url, "%s%s", x->k->base, x->path) > 0;
    explicit_bzero(line, sizeof(line));
    x->curl = ok ? kube_take_handle(x->k) : NULL;
    if (x->curl != NULL) {
        x->code = 0;
        hl_buf_clear(&x->body);
        set_all(x, url, body, headers, connect_to);
        *rc = curl_easy_perform(x->curl);
        curl_easy_getinfo(x->curl, CURLINFO_RESPONSE_CODE, &x->code);
        kube_give_handle(x->k, x->curl);
    }
    curl_slist_free_all(headers);
    curl_slist_free_all(connect_to);
    free(url);
    return x->curl != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory allocating a request");
}

/* ---- result ---------------------------------------------------------------------------------- */

static hl_status fail_curl(const struct exchange *x, CURLcode rc)
{
    const char *server = x->k->config->server;
    int len = (int)strcspn(x->path, "?");
    if (x->cancelled)
        return hl_fail(HL_ECANCELED, "%s %.*s: the program is shutting down", x->method, len,
                       x->path);
    if (x->timed_out || rc == CURLE_OPERATION_TIMEDOUT)
        return hl_fail(HL_ETIMEDOUT, "%s %.*s: API server %s has not answered in time", x->method,
                       len, x->path, server);
    if (rc == CURLE_PEER_FAILED_VERIFICATION || rc == CURLE_SSL_CACERT_BADFILE)
        return hl_fail(HL_EPERM,
                       "API server %s: its certificate can't be trusted: %s; check "
                       "certificate-authority and tls-server-name",
                       server, curl_easy_strerror(rc));
    return hl_fail(HL_EUNAVAIL, "%s %.*s: API server %s: %s", x->method, len, x->path, server,
                   curl_easy_strerror(rc));
}

static hl_status fail_code(const struct exchange *x)
{
    char what[512];
    const char *body = x->body.len > 0 ? x->body.data : "";
    bool is_encoded = x->stream != NULL && x->stream->is_encoded;
    json_t *status = is_encoded ? hl_kube_status_decode(body, x->body.len)
                                : json_loadb(body, x->body.len, 0, NULL);
    snprintf(what, sizeof(what), "%s %.*s", x->method, (int)strcspn(x->path, "?"), x->path);
    if (hl_json_int(status, "code", 0) == 0) { /* from a proxy, or plain text */
        json_decref(status);
        status = json_pack("{s:I s:s%}", "code", (json_int_t)x->code, "message", body,
                           x->body.len < ANSWER_TEXT_MAX ? x->body.len : ANSWER_TEXT_MAX);
    }
    hl_status st = hl_kube_status_fail(status, what);
    json_decref(status);
    return st;
}

static hl_status run_exchange(struct exchange *x, const char *body, const char *type)
{
    CURLcode rc = CURLE_OK;
    HL_TRY(perform_once(x, body, type, 0, &rc));
    if (rc == CURLE_OK && x->code == UNAUTHORIZED && hl_kube_config_token_changes(x->k->config))
        HL_TRY(perform_once(x, body, type, 1, &rc));
    if (x->stream_st != HL_OK)
        return x->stream_st;
    if (rc != CURLE_OK)
        return fail_curl(x, rc);
    return x->code >= 200 && x->code < 300 ? HL_OK : fail_code(x);
}

static uint64_t deadline_ns(int timeout_ms)
{
    return hl_now_ns() + (uint64_t)(timeout_ms > 0 ? timeout_ms : CALL_MS) * HL_NS_PER_MS;
}

static hl_status parse_answer(const struct exchange *x, const struct hl_kube_members *members,
                              json_t **out)
{
    hl_status st = hl_kube_parse(x->body.len > 0 ? x->body.data : "", x->body.len, members, out);
    return st == HL_OK ? HL_OK
                       : hl_fail_prefix(st, "%s %.*s: the answer can't be read: ", x->method,
                                        (int)strcspn(x->path, "?"), x->path);
}

static const char *accept_of(const struct hl_kube_request *r)
{
    return r->only_metadata ? ACCEPT_METADATA : ACCEPT;
}

hl_status hl_kube_call(struct hl_kube *k, const struct hl_kube_request *r, json_t **out)
{
    struct exchange x = {.k = k,
                         .method = r->method,
                         .path = r->path,
                         .accept = accept_of(r),
                         .body = HL_BUF(HL_KUBE_ANSWER_MAX),
                         .until_ns = deadline_ns(r->timeout_ms)};
    HL_AUTO(hl_freep) char *body = r->body != NULL ? json_dumps(r->body, JSON_COMPACT) : NULL;
    hl_status st = run_exchange(&x, body != NULL ? body : r->text, r->type);
    if (r->retry_after_s != NULL)
        *r->retry_after_s = x.retry_after_s;
    if (st == HL_OK && out != NULL)
        st = parse_answer(&x, r->members, out);
    hl_buf_fini(&x.body);
    return st;
}

hl_status hl_kube_text(struct hl_kube *k, const char *path, int timeout_ms, struct hl_buf *out)
{
    struct exchange x = {.k = k,
                         .method = "GET",
                         .path = path,
                         .accept = ACCEPT,
                         .body = HL_BUF(HL_KUBE_ANSWER_MAX),
                         .until_ns = deadline_ns(timeout_ms)};
    hl_status st = run_exchange(&x, NULL, NULL);
    if (st == HL_OK)
        st = hl_buf_append(out, x.body.data != NULL ? x.body.data : "", x.body.len);
    hl_buf_fini(&x.body);
    return st;
}

hl_status hl_kube_watch(struct hl_kube *k, const struct hl_kube_request *r,
                        struct hl_kube_stream *stream)
{
    struct exchange x = {.k = k,
                         .method = "GET",
                         .path = r->path,
                         .accept = stream->encoded != NULL ? ACCEPT_ENCODED : accept_of(r),
                         .gather_ms = r->gather_ms,
                         .body = HL_BUF(HL_KUBE_ANSWER_MAX),
                         .stream = stream,
                         .until_ns = deadline_ns(r->timeout_ms)};
    hl_status st = run_exchange(&x, NULL, NULL);
    if (r->retry_after_s != NULL)
        *r->retry_after_s = x.retry_after_s > 0 ? x.retry_after_s : stream->retry_after_s;
    hl_buf_fini(&x.body);
    return st;
}

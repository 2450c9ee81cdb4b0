/* Logs of ranks in pods. Kubernetes knows no offsets, so we ask for the log since the second of the
 * last line we have, skip what we already have of that second, and append the rest to a file. The
 * file remains when the pod is gone.
 *
 * Ranks that share a container share its log, in which "[rank N] " is put before each line
 * (volcano/command.c). Lines without that mark come from the shell, and are shown with the pod's
 * first rank. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "controller/background.h"
#include "controller/kube/gangs_private.h"
#include "controller/kube/objects_private.h"
#include "os/file.h"

#define FETCH_BYTES ((size_t)8 << 20) /* per request; doubled while a single second has more */
#define FETCH_MAX   ((size_t)128 << 20)
#define SLICE_MAX   ((size_t)1 << 20)
#define RANK_MARK   "[rank "
#define SECOND_LEN  19 /* "2026-11-21T19:00:00" */

void gang_log_path(const struct gangs *g, const char *job, int attempt, int rank,
                   char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%.3800s/%s.%d.%d.log", g->logs, job, attempt, rank);
}

void gang_logs_fini(struct gangs *g)
{
    struct spool *s, *next;
    HASH_ITER (hh, g->spools, s, next) {
        HASH_DEL(g->spools, s);
        free(s);
    }
}

/* Call with the lock held. A restarted Controller fetches from the beginning again. */
static hl_status spool_find(struct gangs *g, const char *job, int attempt, int rank,
                            struct spool **out)
{
    char key[sizeof((*out)->key)];
    struct spool *s;
    snprintf(key, sizeof(key), "%s.%d.%d", job, attempt, rank);
    HASH_FIND_STR(g->spools, key, s);
    if (s == NULL) {
        s = calloc(1, sizeof(*s));
        if (s == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating a log");
        memcpy(s->key, key, sizeof(s->key));
        HASH_ADD_STR(g->spools, key, s);
    }
    *out = s;
    return HL_OK;
}

/* "2026-11-21T19:00:00.123456789+08:00 text": parses the second with its zone; 0 = the line has no
 * stamp. */
static size_t parse_stamp(const char *line, size_t len, char *second, size_t cap)
{
    const char *space = memchr(line, ' ', len < 64 ? len : 64);
    if (space == NULL || space - line <= SECOND_LEN || line[10] != 'T')
        return 0;
    const char *zone = line + SECOND_LEN;
    if (*zone == '.')
        zone += 1 + strspn(zone + 1, "0123456789");
    int n = snprintf(second, cap, "%.*s%.*s", SECOND_LEN, line, (int)(space - zone), zone);
    return n > 0 && (size_t)n < cap && zone < space ? (size_t)(space - line) + 1 : 0;
}

/* All or nothing: what is written by half is fetched and written again. */
static hl_status append_text(const char *path, const struct hl_buf *text, bool anew)
{
    int how = O_WRONLY | O_CREAT | O_CLOEXEC | (anew ? O_TRUNC : O_APPEND);
    HL_AUTO(hl_closep) int fd = open(path, how, 0644);
    off_t begin = fd >= 0 ? lseek(fd, 0, SEEK_END) : -1;
    if (begin < 0)
        return hl_fail(HL_EIO, "log %s: %m", path);
    for (size_t at = 0; at < text->len;) {
        ssize_t n = write(fd, text->data + at, text->len - at);
        if (n < 0) {
            int e = errno;
            (void)!ftruncate(fd, begin);
            return hl_fail(HL_EIO, "log %s: %s", path, strerror(e));
        }
        at += (size_t)n;
    }
    return HL_OK;
}

/* Appends the line unless it belongs to another rank. */
static hl_status take_text(const char *text, size_t len, const struct gang_log *log,
                           struct hl_buf *out)
{
    char own[32];
    size_t n = (size_t)snprintf(own, sizeof(own), RANK_MARK "%d] ", log->rank);
    if (!log->shared)
        return hl_buf_append(out, text, len);
    if (len >= n && memcmp(text, own, n) == 0)
        return hl_buf_append(out, text + n, len - n);
    bool marked = len > strlen(RANK_MARK) && memcmp(text, RANK_MARK, strlen(RANK_MARK)) == 0;
    return log->local_rank == 0 && !marked ? hl_buf_append(out, text, len) : HL_OK;
}

/* Copies the new lines of `from` to `out`; *s records where they end. An incomplete last line is
 * left for next time. */
static hl_status take_lines(const struct hl_buf *from, const struct gang_log *log, struct spool *s,
                            struct hl_buf *out)
{
    const char *at = from->data, *end = at + from->len;
    char first[sizeof(s->second)];
    unsigned skip = s->lines;
    memcpy(first, s->second, sizeof(first));
    while (at != NULL && at < end) {
        char second[sizeof(s->second)];
        const char *nl = memchr(at, '\n', (size_t)(end - at));
        size_t len = nl != NULL ? (size_t)(nl - at) + 1 : 0;
        size_t head = parse_stamp(at, len, second, sizeof(second));
        if (nl == NULL)
            break;
        if (head > 0 && skip > 0 && strcmp(second, first) == 0) {
            skip--;
        } else {
            HL_TRY(take_text(at + head, len - head, log, out));
            if (head > 0) {
                s->lines = strcmp(s->second, second) == 0 ? s->lines + 1 : 1;
                memcpy(s->second, second, sizeof(second));
            }
        }
        at += len;
    }
    return HL_OK;
}

static void log_url(const struct gangs *g, const struct spool *s, const struct gang_log *log,
                    size_t limit, char *out, size_t cap)
{
    char name[HL_VOLCANO_NAME_MAX], since[3 * sizeof(s->second)] = "";
    size_t n = 0;
    for (const char *p = s->second; *p != '\0'; p++)
        n += (size_t)snprintf(since + n, sizeof(since) - n, *p == '+' ? "%%2B" : "%c", *p);
    if (log->shared)
        snprintf(name, sizeof(name), "%s", HL_VOLCANO_SHARED);
    else
        hl_volcano_rank_name(log->local_rank, name);
    snprintf(out, cap,
             "/api/v1/namespaces/%s/pods/%s/log?container=%s&timestamps=true&limitBytes=%zu%s%s",
             g->ns, log->pod, name, limit, n > 0 ? "&sinceTime=" : "", since);
}

/* Fetches one piece. *more: another one may be available at once. */
static hl_status fetch_piece(struct gangs *g, struct spool *s, const char *path,
                             const struct gang_log *log, size_t limit, int *more)
{
    char url[1024];
    struct hl_buf raw = HL_BUF(FETCH_MAX + 4096), text = HL_BUF(FETCH_MAX + 4096);
    struct spool next = *s;
    log_url(g, s, log, limit, url, sizeof(url));
    hl_status st = hl_kube_text(g->api, url, g->c->opts.rpc_timeout_ms, &raw);
    if (st == HL_OK)
        st = take_lines(&raw, log, &next, &text);
    if (st == HL_OK && (text.len > 0 || !s->begun))
        st = append_text(path, &text, !s->begun);
    if (st == HL_OK) {
        s->begun = true;
        bool went_on = next.lines != s->lines || strcmp(next.second, s->second) != 0;
        *more = raw.len + 1 >= limit ? went_on ? 1 : -1 : 0;
        s->lines = next.lines;
        memcpy(s->second, next.second, sizeof(s->second));
    }
    hl_buf_fini(&raw);
    hl_buf_fini(&text);
    return st;
}

hl_status gang_log_fetch(struct gangs *g, const struct gang_log *log)
{
    char path[PATH_MAX];
    struct spool *s = NULL;
    int more = 1;
    gang_log_path(g, log->job, log->attempt, log->rank, path);
    pthread_mutex_lock(&g->spool_lock);
    hl_status st = spool_find(g, log->job, log->attempt, log->rank, &s);
    for (size_t limit = FETCH_BYTES; st == HL_OK && more != 0 && limit <= FETCH_MAX;) {
        st = fetch_piece(g, s, path, log, limit, &more);
        limit = more < 0 ? limit * 2 : FETCH_BYTES;
    }
    pthread_mutex_unlock(&g->spool_lock);
    return st;
}

/* ---- user queries ---------------------------------------------------------------------------- */

struct log_read {
    struct background task;
    struct gangs *g;
    struct hl_rpc_call *call;
    char job[HL_JOB_ID_MAX + 1], pod[HL_VOLCANO_NAME_MAX];
    int attempt, rank, local_rank;
    bool shared; /* as in gang_log */
    bool ended;
    bool past; /* of an earlier attempt: only what was kept exists */
    int64_t offset, size;
    size_t max;
    struct hl_api_controller_read_log_results about;
    struct hl_buf bytes;
};

/* Having nothing to read is not a failure: the rank has not started, or its pod never existed. */
static hl_status read_file(struct log_read *k, struct hl_buf *out)
{
    char path[PATH_MAX];
    struct stat sb;
    gang_log_path(k->g, k->job, k->attempt, k->rank, path);
    HL_AUTO(hl_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT && k->past)
        return hl_fail(HL_ENOENT,
                       "the log of rank %d of attempt %d of job '%s' was not kept: Kubernetes "
                       "drops it with its pod, and it had not been read before",
                       k->rank, k->attempt, k->job);
    if (fd < 0 && errno == ENOENT)
        return HL_OK;
    if (fd < 0 || fstat(fd, &sb) != 0)
        return hl_fail(HL_EIO, "log %s: %m", path);
    k->size = sb.st_size;
    if (k->offset < 0)
        k->offset = k->size + k->offset < 0 ? 0 : k->size + k->offset;
    if (k->offset > k->size)
        k->offset = k->size;
    size_t want = (size_t)(k->size - k->offset) < k->max ? (size_t)(k->size - k->offset) : k->max;
    char *room = hl_buf_room(out, want + 1);
    ssize_t n = room != NULL ? pread(fd, room, want, k->offset) : -1;
    if (n < 0)
        return hl_fail(HL_EIO, "log %s: %m", path);
    out->len += (size_t)n;
    return HL_OK;
}

static hl_status log_read_run(struct background *task)
{
    struct log_read *k = (struct log_read *)task;
    hl_status st = HL_OK;
    if (k->pod[0] != '\0') {
        st = gang_log_fetch(k->g, &(struct gang_log){.job = k->job,
                                                     .pod = k->pod,
                                                     .attempt = k->attempt,
                                                     .rank = k->rank,
                                                     .local_rank = k->local_rank,
                                                     .shared = k->shared});
        if (st == HL_EINVAL || st == HL_ENOENT) /* it has not started, or has just gone */
            st = HL_OK;
    }
    return st == HL_OK ? read_file(k, &k->bytes) : st;
}

static void on_done(struct background *task, hl_status st)
{
    struct log_read *k = (struct log_read *)task;
    k->g->calls--;
    if (st == HL_OK) {
        struct hl_api_controller_read_log_results r = k->about;
        r.data = (struct hl_api_data){k->bytes.data, k->bytes.len};
        r.offset = k->offset > 0 ? k->offset : 0;
        r.size = k->size;
        r.finished = k->ended && k->offset + (int64_t)k->bytes.len >= k->size;
        hl_reply_controller_read_log(k->call, &r);
    } else {
        call_reject(k->call, st);
    }
    (void)controller_stopped(k->g->c);
    hl_buf_fini(&k->bytes);
    free(k);
}

void gang_log_read(struct job *j, struct hl_rpc_call *call, const json_t *pod, int local_rank,
                   const struct log_query *query)
{
    struct gangs *g = j->controller->gangs;
    const char *name = "";
    hl_status st = pod != NULL ? object_text(pod, "metadata.name", &name) : HL_OK;
    struct log_read *k = st == HL_OK ? calloc(1, sizeof(*k)) : NULL;
    if (k == NULL) {
        call_reject(call, st != HL_OK ? st : hl_fail(HL_ENOMEM, "out of memory reading a log"));
        return;
    }
    k->task.run = log_read_run;
    k->task.done = on_done;
    k->g = g;
    k->call = call;
    k->about = query->about;
    k->bytes = (struct hl_buf)HL_BUF(SLICE_MAX + 16);
    k->attempt = query->attempt;
    k->rank = query->rank;
    k->local_rank = local_rank;
    k->shared = hl_volcano_pod_is_shared(pod);
    k->offset = query->offset;
    k->max = query->max_bytes > 0 && (size_t)query->max_bytes < SLICE_MAX ? (size_t)query->max_bytes
                                                                          : SLICE_MAX;
    k->past = query->attempt < j->run.containers_attempt;
    k->ended = pod != NULL ? hl_volcano_rank_ended(pod, local_rank)
                           : k->past || hl_job_state_ended(j->run.state) ||
                                 j->run.state == HL_API_JOB_STATE_PENDING;
    memcpy(k->job, j->id, sizeof(k->job));
    snprintf(k->pod, sizeof(k->pod), "%s", name);
    st = background_start(g->c, &k->task);
    if (st != HL_OK) {
        call_reject(call, st);
        free(k);
        return;
    }
    g->calls++;
}

/* ---- forgotten jobs -------------------------------------------------------------------------- */

struct forgotten {
    struct background task;
    struct gangs *g;
    char job[HL_JOB_ID_MAX + 1];
    int attempts, world;
};

static void forget_log(struct gangs *g, const char *job, int attempt, int rank)
{
    char path[PATH_MAX], key[sizeof(g->spools->key)];
    struct spool *s;
    gang_log_path(g, job, attempt, rank, path);
    unlink(path);
    snprintf(key, sizeof(key), "%s.%d.%d", job, attempt, rank);
    HASH_FIND_STR(g->spools, key, s);
    if (s != NULL)
        HASH_DEL(g->spools, s);
    free(s);
}

static hl_status forget_run(struct background *task)
{
    const struct forgotten *k = (struct forgotten *)task;
    pthread_mutex_lock(&k->g->spool_lock); /* another job's log may be being fetched */
    for (int attempt = 1; attempt <= k->attempts; attempt++)
        for (int rank = 0; rank < k->world; rank++)
            forget_log(k->g, k->job, attempt, rank);
    pthread_mutex_unlock(&k->g->spool_lock);
    return HL_OK;
}

static void on_forgotten(struct background *task, hl_status st)
{
    struct forgotten *k = (struct forgotten *)task;
    (void)st;
    k->g->calls--;
    (void)controller_stopped(k->g->c);
    free(k);
}

void gangs_forget(const struct job *j)
{
    struct gangs *g = j->controller->gangs;
    if (g == NULL)
        return;
    struct forgotten *k = calloc(1, sizeof(*k));
    if (k != NULL) {
        k->task.run = forget_run;
        k->task.done = on_forgotten;
        k->g = g;
        k->attempts = j->run.attempt;
        k->world = hl_rank_world(&j->spec.grid);
        memcpy(k->job, j->id, sizeof(k->job));
    }
    if (k == NULL || background_start(g->c, &k->task) != HL_OK) {
        hl_warn("logs of a forgotten job stay, remove them files=\"%s/%s.*.log\"", g->logs, j->id);
        free(k);
        return;
    }
    g->calls++;
}

/* Replaces a rank that is lost while the others of its container continue: another process takes
 * its place.
 *
 *     rank ends --hl_replace_next--> waits (STARTING, due_ns) --due--> runs again
 *                   '--no--> the container fails        '--stop--> stopped
 *
 * A parked process (a spare) is the same program, started beforehand with HELIOS_SPARE=FD and
 * without a rank's identity. It has done everything that needs no identity, such as imports, and
 * reads from FD. When it takes a rank's place, it gets the rank's variables there, each followed by
 * a NUL; an end of file alone means that it is not needed. Its output stays in its pipe until it is
 * a rank. A program that does not know about spares finds no Controller and no gang, so it can do
 * no harm.
 *
 * A container without ranks only has parked processes. It gets ranks when the container that had
 * them is lost with its server (SIGUSR1, and the spec is read again): each rank starts as one that
 * is due. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "hw/process/process_executor_private.h"
#include "os/file.h"
#include "os/step_page.h"

#define SPARE_FD       "3"
#define SPARE_DELAY_NS (3 * HL_NS_PER_S)  /* the ranks need the CPUs to start */
#define SPARE_RETRY_NS (10 * HL_NS_PER_S) /* after a spare has ended by itself */

/* The variables that make a process a rank; a spare gets them when it becomes one. */
static const char *const identity[] = {"HELIOS_CONTROLLER", "CONTROLLER_L3_CACHE_ADDRESS",
                                       "HELIOS_L3_SOCKET",  "HELIOS_STORE_SOCKET",
                                       "HELIOS_JOB",        "HELIOS_MODEL",
                                       "HYBRIDPS_MANAGER",  "WORLD_SIZE",
                                       "MASTER_ADDR",       "MASTER_PORT",
                                       "LOCAL_WORLD_SIZE",  "GROUP_RANK"};

/* ---- the file of steps ----------------------------------------------------------------------- */

/* The rank's last report of its steps; false if it does not report. */
static bool read_steps(const struct hl_shim *s, size_t i, struct hl_step_state *out)
{
    const char *text = hl_env_get(&s->spec.ranks[i].env, "HELIOS_STEPS");
    struct hl_step_pages pages = {0};
    struct hl_step_page *page = NULL;
    if (text == NULL || hl_step_page_find(text, &pages, &page) != HL_OK)
        return false;
    bool told = hl_step_read(page, out);
    hl_step_pages_close(&pages);
    return told;
}

/* ---- spares ---------------------------------------------------------------------------------- */

static hl_status spare_env(struct hl_shim *s, struct hl_env *env)
{
    static const struct hl_rank_spec none;
    const struct hl_rank_spec *rank = s->spec.rank_count > 0 ? &s->spec.ranks[0] : &none;
    HL_TRY(hl_shim_rank_env(s, rank, env));
    for (size_t i = 0; i < HL_ARRAY_LEN(identity); i++)
        HL_TRY(hl_env_set(env, identity[i], ""));
    for (size_t i = 0; i < rank->env.count; i++)
        HL_TRY(hl_env_set(env, rank->env.vars[i].key, ""));
    HL_TRY(hl_env_set(env, "HELIOS_CONTROLLER", "parked-spare.invalid:1"));
    return hl_env_set(env, "HELIOS_SPARE", SPARE_FD);
}

static hl_status spare_start(struct hl_shim *s, struct hl_shim_spare *spare)
{
    int role[2], output[2];
    struct hl_env env = {0};
    if (pipe2(role, O_CLOEXEC) != 0)
        return hl_fail(hl_status_of_errno(errno), "pipe of a spare: %s", strerror(errno));
    HL_AUTO(hl_closep) int role_read = role[0];
    HL_AUTO(hl_closep) int role_write = role[1];
    if (pipe2(output, O_CLOEXEC) != 0)
        return hl_fail(hl_status_of_errno(errno), "pipe of a spare: %s", strerror(errno));
    HL_AUTO(hl_closep) int output_read = output[0];
    HL_AUTO(hl_closep) int output_write = output[1];
    hl_status st = spare_env(s, &env);
    if (st == HL_OK)
        st = hl_shim_spawn(s, &env, output_write, &role_read, &spare->pid);
    hl_env_fini(&env);
    HL_TRY(st);
    spare->role = role_write;
    spare->output = output_read;
    role_write = output_read = -1;
    return HL_OK;
}

static void spare_end(struct hl_shim_spare *spare, uint64_t due_ns)
{
    hl_closep(&spare->role);
    hl_closep(&spare->output);
    spare->pid = 0;
    spare->due_ns = due_ns;
}

/* A container that got its ranks later has more slots for spares than it parks from then on. */
static bool spare_is_wanted(const struct hl_shim *s, size_t i)
{
    return i < (size_t)s->spec.replace.spares;
}

/* Starts the spares that are due. */
static void spares_keep(struct hl_shim *s, uint64_t now)
{
    for (size_t i = 0; i < s->spare_count; i++) {
        struct hl_shim_spare *spare = &s->spares[i];
        if (spare->pid != 0 || now < spare->due_ns || !spare_is_wanted(s, i))
            continue;
        if (spare_start(s, spare) != HL_OK) {
            hl_warn("a spare was not started: %s", hl_error_text());
            spare->due_ns = now + SPARE_RETRY_NS;
        }
    }
}

bool hl_shim_spare_ended(struct hl_shim *s, pid_t pid)
{
    for (size_t i = 0; i < s->spare_count; i++) {
        if (s->spares[i].pid != pid)
            continue;
        hl_warn("spare process %d has exited: does the program call helios.elastic.run?", (int)pid);
        spare_end(&s->spares[i], hl_now_ns() + SPARE_RETRY_NS);
        return true;
    }
    return false;
}

/* ---- a rank's place -------------------------------------------------------------------------- */

static hl_status add_variable(struct hl_buf *text, const char *key, const char *value)
{
    HL_TRY(hl_buf_printf(text, "%s=%s", key, value));
    return hl_buf_append(text, "", 1);
}

/* Writes the variables that rank i has and a spare lacks. */
static hl_status role_text(const struct hl_shim *s, size_t i, struct hl_buf *text)
{
    const struct hl_env *own = &s->spec.ranks[i].env;
    for (size_t k = 0; k < HL_ARRAY_LEN(identity); k++) {
        const char *value = hl_env_get(&s->spec.env, identity[k]);
        HL_TRY(add_variable(text, identity[k], value != NULL ? value : ""));
    }
    for (size_t k = 0; k < own->count; k++)
        HL_TRY(add_variable(text, own->vars[k].key, own->vars[k].value));
    return HL_OK;
}

/* True: the spare is the rank now. */
static bool spare_promote(struct hl_shim *s, struct hl_shim_spare *spare, size_t i)
{
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(1 << 16); /* the capacity of a pipe */
    if (spare->pid == 0)
        return false;
    fcntl(spare->role, F_SETFL, O_NONBLOCK);
    if (role_text(s, i, &text) != HL_OK ||
        write(spare->role, text.data, text.len) != (ssize_t)text.len ||
        hl_shim_output_adopt(s, i, spare->output) != HL_OK) {
        hl_warn("spare process %d can't take the place of rank %d", (int)spare->pid,
                s->status.ranks[i].rank);
        kill(spare->pid, SIGKILL);
        return false;
    }
    spare->output = -1; /* belongs to the rank now */
    s->status.ranks[i].pid = spare->pid;
    s->status.ranks[i].state = HL_RUN_RUNNING;
    spare_end(spare, hl_now_ns() + SPARE_DELAY_NS);
    return true;
}

static hl_status rank_restart(struct hl_shim *s, size_t i)
{
    struct hl_rank_status *r = &s->status.ranks[i];
    s->due_ns[i] = 0;
    s->dirty = true;
    hl_shim_output_end(s, i);
    for (size_t k = 0; k < s->spare_count; k++)
        if (spare_promote(s, &s->spares[k], i)) {
            hl_info("rank %d has spare process %d now", r->rank, r->pid);
            return HL_OK;
        }
    s->live--; /* it was counted while it waited; a start counts it again */
    HL_TRY(hl_shim_start_rank(s, i));
    hl_info("rank %d has process %d now", r->rank, r->pid);
    return HL_OK;
}

/* What the job file's rules say about such an end. */
static enum hl_failure_then then_of(const struct hl_shim *s, const struct hl_rank_status *r,
                                    enum hl_api_failure_kind kind)
{
    struct hl_failure_rules rules = {0};
    if (kind == HL_API_FAILURE_KIND_UNSAID)
        return HL_FAILURE_FAIL; /* it ended of its own accord, so another start would not help */
    if (hl_failure_rules_parse(s->spec.on_failure, &rules) != HL_OK)
        hl_warn("rules for failures are not followed: %s", hl_error_text());
    return hl_failure_rules_then(&rules, kind, r->signal == 0 ? r->exit_code : 0);
}

/* ---- a container that gets ranks ------------------------------------------------------------- */

bool hl_shim_is_parked(const struct hl_shim *s)
{
    return s->status.rank_count == 0 && s->kill_at_ns == 0 && !s->failed;
}

/* Replaces the tables by new ones for the ranks of the present status. */
static hl_status tables_renew(struct hl_shim *s)
{
    free(s->outputs);
    free(s->polls);
    free(s->due_ns);
    s->due_ns = NULL;
    HL_TRY(hl_shim_outputs_init(s));
    s->due_ns = calloc(s->status.rank_count + 1, sizeof(*s->due_ns));
    return s->due_ns != NULL
               ? HL_OK
               : hl_fail(HL_ENOMEM, "out of memory for the ranks of container %s", s->spec.id);
}

static hl_status ranks_read(struct hl_shim *s)
{
    struct hl_container_spec spec;
    struct hl_container_status status;
    HL_TRY(hl_spec_file_read(s->dir, &spec));
    hl_status st = spec.rank_count > 0 ? hl_container_status_init(&spec, &status)
                                       : hl_fail(HL_EINVAL, "container %s has no ranks", spec.id);
    if (st != HL_OK) {
        hl_container_spec_fini(&spec);
        return st;
    }
    status.state = HL_RUN_RUNNING;
    status.started_ms = s->status.started_ms;
    hl_container_spec_fini(&s->spec);
    hl_container_status_fini(&s->status);
    s->spec = spec;
    s->status = status;
    return tables_renew(s);
}

void hl_shim_take_ranks(struct hl_shim *s)
{
    if (!hl_shim_is_parked(s))
        return; /* it has its ranks already */
    if (ranks_read(s) != HL_OK) {
        hl_error("parked processes get no ranks: %s", hl_error_text());
        return;
    }
    s->dirty = true;
    for (size_t i = 0; i < s->status.rank_count; i++) {
        s->status.ranks[i].state = HL_RUN_STARTING;
        s->due_ns[i] = 1;
        s->live++;
    }
}

bool hl_shim_replace(struct hl_shim *s, size_t i)
{
    struct hl_rank_status *r = &s->status.ranks[i];
    const struct hl_replace_rule rule = {s->spec.replace.max, s->spec.replace.stable_ms,
                                         s->spec.replace.backoff_ms,
                                         s->spec.replace.backoff_max_ms};
    uint64_t oom = s->way->oom(s), now = hl_now_ns();
    struct hl_step_state told = {0};
    bool tells = read_steps(s, i, &told);
    const struct hl_exit end = {r->exit_code, r->signal, oom > s->oom_seen,
                                tells && told.activity == HL_STEP_SAVING};
    enum hl_api_failure_kind kind = hl_exit_kind_of(&end);
    int64_t wait_ms = 0;
    s->oom_seen = oom;
    if (s->due_ns == NULL ||
        !hl_replace_next(&s->lost, &rule, then_of(s, r, kind), !tells || told.steps > 0,
                         (int64_t)(now / HL_NS_PER_MS), &wait_ms))
        return false;
    hl_warn("rank %d is lost (%s, code %d, signal %d) and replaced in %lld ms", r->rank,
            hl_api_failure_kind_name(kind), r->exit_code, r->signal, (long long)wait_ms);
    kill(-r->pid, SIGKILL); /* what is left of its process group */
    r->replaced++;
    r->lost_ms = hl_wall_ms();
    r->lost_code = r->exit_code;
    r->lost_signal = r->signal;
    r->state = HL_RUN_STARTING;
    r->pid = r->exit_code = r->signal = 0;
    r->finished_ms = 0;
    s->live++;
    s->due_ns[i] = now + (uint64_t)wait_ms * HL_NS_PER_MS + 1;
    return true;
}

hl_status hl_shim_replace_due(struct hl_shim *s, size_t *failed)
{
    uint64_t now = hl_now_ns();
    if (s->due_ns == NULL || s->kill_at_ns != 0)
        return HL_OK;
    for (size_t i = 0; i < s->status.rank_count; i++) {
        if (s->due_ns[i] == 0 || now < s->due_ns[i])
            continue;
        *failed = i;
        HL_TRY(rank_restart(s, i));
    }
    spares_keep(s, now);
    return HL_OK;
}

uint64_t hl_shim_replace_next_ns(const struct hl_shim *s)
{
    uint64_t next = UINT64_MAX;
    for (size_t i = 0; s->due_ns != NULL && i < s->status.rank_count; i++)
        if (s->due_ns[i] != 0 && s->due_ns[i] < next)
            next = s->due_ns[i];
    for (size_t i = 0; i < s->spare_count; i++)
        if (s->spares[i].pid == 0 && s->spares[i].due_ns < next && spare_is_wanted(s, i))
            next = s->spares[i].due_ns;
    return next;
}

void hl_shim_replace_stop(struct hl_shim *s)
{
    for (size_t i = 0; s->due_ns != NULL && i < s->status.rank_count; i++) {
        if (s->due_ns[i] == 0)
            continue;
        s->due_ns[i] = 0;
        s->status.ranks[i].state = HL_RUN_STOPPED;
        s->status.ranks[i].finished_ms = hl_wall_ms();
        s->live--;
        s->dirty = true;
    }
    for (size_t i = 0; i < s->spare_count; i++)
        if (s->spares[i].pid != 0)
            hl_closep(&s->spares[i].role);
}

hl_status hl_shim_replace_init(struct hl_shim *s)
{
    size_t spares = s->spec.replace.spares > 0 ? (size_t)s->spec.replace.spares : 0;
    if (s->spec.replace.max <= 0)
        return HL_OK;
    s->due_ns = calloc(s->status.rank_count + 1, sizeof(*s->due_ns));
    s->spares = calloc(spares + 1, sizeof(*s->spares));
    if (s->due_ns == NULL || s->spares == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the replacements of container %s", s->spec.id);
    for (size_t i = 0; i < spares; i++)
        s->spares[i] = (struct hl_shim_spare){
            .role = -1,
            .output = -1,
            .due_ns = hl_now_ns() + (s->spec.rank_count > 0 ? SPARE_DELAY_NS : 0)};
    s->spare_count = spares;
    return HL_OK;
}

void hl_shim_replace_fini(struct hl_shim *s)
{
    for (size_t i = 0; i < s->spare_count; i++)
        spare_end(&s->spares[i], 0);
    free(s->spares);
    free(s->due_ns);
}

/* The files in a container's directory, and the CPUs that a container is bound to. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/crc32.h"
#include "hw/process/process_executor_private.h"
#include "os/file.h"

#define RESERVE "status.reserve"

struct hl_path hl_path_in(const char *dir, const char *name)
{
    struct hl_path p;
    snprintf(p.s, sizeof(p.s), "%s/%s", dir, name);
    return p;
}

struct hl_path hl_path_of_log(const char *dir, int rank)
{
    struct hl_path p;
    snprintf(p.s, sizeof(p.s), "%s/rank-%d.log", dir, rank);
    return p;
}

/* In a directory of its own, which is what a container engine mounts. If only the file were
 * mounted, the container would still see the old one after a rename. */
struct hl_path hl_path_of_rank_table(const char *dir)
{
    return hl_path_in(dir, "ranktable/hccl.json");
}

hl_status hl_rank_table_write(const char *dir, const char *text)
{
    struct hl_path path = hl_path_of_rank_table(dir);
    HL_AUTO(hl_buf_fini) struct hl_buf old = HL_BUF(HL_SPEC_BYTES_MAX);
    if (hl_file_read(path.s, &old) == HL_OK && old.len == strlen(text) &&
        memcmp(old.data != NULL ? old.data : "", text, old.len) == 0)
        return HL_OK;
    HL_TRY(hl_dir_make(hl_path_in(dir, "ranktable").s, 0755));
    return hl_file_write_durable(path.s, text, strlen(text), 0644);
}

struct hl_path hl_path_of_meeting(const char *dir)
{
    return hl_path_in(dir, "meeting");
}

static hl_status json_read(const char *path, json_t **out)
{
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(HL_SPEC_BYTES_MAX);
    json_error_t e;
    HL_TRY(hl_file_read_regular(path, &text));
    json_t *v = json_loadb(text.len > 0 ? text.data : "", text.len, 0, &e);
    if (v == NULL)
        return hl_fail(HL_EINVAL, "%s:%d:%d: %s", path, e.line, e.column, e.text);
    *out = v;
    return HL_OK;
}

static hl_status json_write(const char *path, json_t *take)
{
    char *text = take != NULL ? json_dumps(take, JSON_COMPACT) : NULL;
    json_decref(take);
    if (text == NULL)
        return hl_fail(HL_ENOMEM, "out of memory writing %s", path);
    hl_status st = hl_file_write_atomic(path, text, strlen(text));
    free(text);
    return st;
}

/* Reads a struct of the schema from JSON. */
static hl_status record_read(const char *path, const struct hl_api_type *type,
                             struct hl_arena *arena, void *out)
{
    json_t *json;
    HL_TRY(json_read(path, &json));
    hl_status st = hl_api_from_json(type, json, arena, out);
    json_decref(json);
    return st == HL_OK ? HL_OK : hl_fail_prefix(st, "%s: ", path);
}

void hl_group_name(const char *dir, const char *id, char out[HL_GROUP_NAME_MAX])
{
    snprintf(out, HL_GROUP_NAME_MAX, "helios-%08x-%.*s", hl_crc32(0, dir, strlen(dir)),
             HL_CONTAINER_ID_MAX, id);
}

hl_status hl_spec_file_read(const char *dir, struct hl_container_spec *out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_container_spec spec;
    struct hl_path path = hl_path_in(dir, "spec.json");
    HL_TRY(record_read(path.s, &hl_api_container_spec_type, &arena, &spec));
    hl_status st = hl_container_spec_from_api(&spec, out);
    return st == HL_OK ? HL_OK : hl_fail_prefix(st, "%s: ", path.s);
}

hl_status hl_spec_file_write(const char *dir, const struct hl_container_spec *spec)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_container_spec record = hl_container_spec_to_api(spec, &arena);
    if (hl_arena_failed(&arena))
        return hl_fail(HL_ENOMEM, "out of memory writing the spec of container %s", spec->id);
    return json_write(hl_path_in(dir, "spec.json").s,
                      hl_api_to_json(&hl_api_container_spec_type, &record));
}

hl_status hl_shim_file_read(const char *dir, struct hl_shim_options *out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_shim_options options;
    HL_TRY(
        record_read(hl_path_in(dir, "shim.json").s, &hl_api_shim_options_type, &arena, &options));
    enum hl_engine_kind engine = HL_ENGINE_NONE;
    if (options.executor != NULL) /* records of older versions have no executor */
        HL_TRY(hl_engine_kind_of(options.executor, &engine));
    *out = (struct hl_shim_options){.foreign = options.foreign_topology,
                                    .log_max_bytes = options.log_max_bytes,
                                    .engine = engine};
    return HL_OK;
}

hl_status hl_shim_file_write(const char *dir, const struct hl_shim_options *given)
{
    const struct hl_api_shim_options options = {.foreign_topology = given->foreign,
                                                .log_max_bytes = given->log_max_bytes,
                                                .executor = hl_engine_name(given->engine)};
    return json_write(hl_path_in(dir, "shim.json").s,
                      hl_api_to_json(&hl_api_shim_options_type, &options));
}

hl_status hl_status_file_read(const char *dir, struct hl_container_status *out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_container_status status;
    struct hl_path path = hl_path_in(dir, "status.json");
    HL_TRY(record_read(path.s, &hl_api_container_status_type, &arena, &status));
    hl_status st = hl_container_status_from_api(&status, out);
    return st == HL_OK ? HL_OK : hl_fail_prefix(st, "%s: ", path.s);
}

static hl_status status_write(const char *path, const struct hl_container_status *s)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_container_status record = hl_container_status_to_api(s, &arena);
    if (hl_arena_failed(&arena))
        return hl_fail(HL_ENOMEM, "out of memory writing %s", path);
    return json_write(path, hl_api_to_json(&hl_api_container_status_type, &record));
}

void hl_status_reserve(const char *dir, size_t ranks)
{
    struct hl_path path = hl_path_in(dir, RESERVE);
    HL_AUTO(hl_closep) int fd = open(path.s, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0 && posix_fallocate(fd, 0, (off_t)(8192 + 256 * ranks)) != 0)
        unlink(path.s); /* the next write of the status tries again */
}

hl_status hl_status_file_write(const char *dir, const struct hl_container_status *s)
{
    struct hl_path path = hl_path_in(dir, "status.json");
    hl_status st = status_write(path.s, s);
    if (st == HL_ENOSPC && unlink(hl_path_in(dir, RESERVE).s) == 0)
        st = status_write(path.s, s);
    if (st == HL_OK && hl_run_state_ended(s->state))
        unlink(hl_path_in(dir, RESERVE).s); /* this was the last write */
    else if (st == HL_OK)
        hl_status_reserve(dir, s->rank_count);
    return st;
}

hl_status hl_binding_choose(const struct hl_container_spec *spec, bool foreign,
                            struct hl_binding *out)
{
    struct hl_cpuset wanted, allowed;
    char want_text[256], have_text[256];
    memset(out, 0, sizeof(*out));
    HL_TRY(hl_cpuset_parse(spec->cpus, &wanted));
    HL_TRY(hl_process_allowed(getpid(), &allowed, NULL));
    out->wanted = hl_cpuset_count(&wanted) > 0;
    if (!out->wanted)
        return HL_OK;
    hl_cpuset_and(&wanted, &allowed, &out->cpus);
    if (!hl_cpuset_equal(&out->cpus, &wanted)) {
        hl_cpuset_format(&wanted, want_text, sizeof(want_text));
        hl_cpuset_format(&allowed, have_text, sizeof(have_text));
        if (!foreign)
            return hl_fail(
                HL_EINVAL,
                "container %s asks for CPUs %s, but this machine has %s: give CPUs of this machine",
                spec->id, want_text, have_text);
        snprintf(out->note, sizeof(out->note), "CPUs %.80s are not all on this machine (%.80s): %s",
                 want_text, have_text,
                 hl_cpuset_count(&out->cpus) > 0 ? "bound to those that are" : "not bound");
    }
    if (hl_cpuset_count(&out->cpus) > 0)
        hl_cpuset_mems(&out->cpus, &out->mems);
    return HL_OK;
}

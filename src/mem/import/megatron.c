/* Finds the folder, the format and the model. After that both formats are handled alike: a plan of
 * the tensors that are held, their location in memory, and the operations from there to the wanted
 * layout. */
#include "mem/import/megatron.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "core/torch/megatron.h"
#include "core/torch/megatron_model.h"
#include "mem/import/megatron_private.h"
#include "os/map_guard.h"

#define TRACKER_MAX 64
#define COMPARED    ((uint64_t)1 << 20)
#define METADATA    ".metadata"
#define RANK        "mp_rank_"

/* ---- files ----------------------------------------------------------------------------------- */

static void unmap_file(struct hl_mapped_file *f)
{
    hl_map_guard_remove(f->guard);
    if (f->bytes != NULL)
        munmap((void *)(uintptr_t)f->bytes, f->size);
    if (f->fd >= 0)
        close(f->fd);
    free(f->path);
}

static char *join_path(const char *dir, const char *name)
{
    char *path = NULL;
    return asprintf(&path, "%s/%s", dir, name) < 0 ? NULL : path;
}

static bool has_file(const char *dir, const char *name)
{
    HL_AUTO(hl_freep) char *path = join_path(dir, name);
    return path != NULL && access(path, F_OK) == 0;
}

/* Whether the folder has a file with this prefix. */
static bool has_prefix(const char *dir, const char *prefix)
{
    bool found = false;
    DIR *d = opendir(dir);
    for (struct dirent *e; d != NULL && !found && (e = readdir(d)) != NULL;)
        found = strncmp(e->d_name, prefix, strlen(prefix)) == 0;
    if (d != NULL)
        closedir(d);
    return found;
}

static bool is_folder(const char *dir)
{
    return has_file(dir, METADATA) || has_prefix(dir, RANK);
}

bool hl_megatron_is_source(const char *dir)
{
    return has_file(dir, HL_MEGATRON_TRACKER) || is_folder(dir);
}

/* ---- the iteration --------------------------------------------------------------------------- */

HL_CHECK static hl_status read_tracker(const char *dir, char *folder, size_t cap)
{
    int fd;
    char text[TRACKER_MAX];
    struct hl_file_mark mark;
    HL_AUTO(hl_freep) char *path = join_path(dir, HL_MEGATRON_TRACKER);
    if (path == NULL)
        return hl_fail(HL_ENOMEM, "path of %s", dir);
    HL_TRY(hl_marked_open(path, &fd, &mark));
    size_t n = mark.size < TRACKER_MAX ? (size_t)mark.size : TRACKER_MAX;
    hl_status st = hl_marked_read(fd, path, 0, n, text);
    close(fd);
    HL_TRY(st);
    st = hl_megatron_folder(text, n, folder, cap);
    return st == HL_OK ? HL_OK : hl_fail_prefix(st, "%s: ", path);
}

/* Writes the iterations that exist into buf, as "iter_0000010, iter_0000020". */
static const char *list_iterations(const char *dir, char *buf, size_t cap)
{
    size_t at = 0;
    struct dirent **list;
    int n = scandir(dir, &list, NULL, alphasort);
    buf[0] = '\0';
    for (int i = 0; i < n; i++) {
        const char *name = list[i]->d_name;
        if (at < cap && (strncmp(name, "iter_", 5) == 0 || strcmp(name, "release") == 0))
            at += (size_t)snprintf(buf + at, cap - at, "%s%s", at > 0 ? ", " : "", name);
        free(list[i]);
    }
    if (n >= 0)
        free(list);
    return buf[0] != '\0' ? buf : "no iteration";
}

HL_CHECK static hl_status choose_folder(const char *dir, const char *iteration,
                                        struct hl_megatron_source *s)
{
    char folder[40], there[256];
    bool asked = iteration != NULL && iteration[0] != '\0';
    if (!has_file(dir, HL_MEGATRON_TRACKER) && is_folder(dir)) {
        if (asked)
            return hl_fail(HL_EINVAL,
                           "%s is one iteration, but iteration %s is given: leave that out, or "
                           "give the directory above",
                           dir, iteration);
        s->folder = strdup(dir);
        return s->folder != NULL ? HL_OK : hl_fail(HL_ENOMEM, "path of %s", dir);
    }
    if (asked)
        HL_TRY(hl_megatron_folder(iteration, strlen(iteration), folder, sizeof(folder)));
    else
        HL_TRY(read_tracker(dir, folder, sizeof(folder)));
    s->folder = join_path(dir, folder);
    if (s->folder == NULL)
        return hl_fail(HL_ENOMEM, "path of %s", dir);
    if (is_folder(s->folder))
        return HL_OK;
    bool zarr = has_file(s->folder, "metadata.json");
    return hl_fail(zarr ? HL_EUNSUPPORTED : HL_ENOENT,
                   zarr ? "%s/%s has no .metadata: a checkpoint of another format (zarr, fsdp), or "
                          "the file is missing; there is %s"
                        : "%s/%s holds no checkpoint; there is %s: give one of them as --iteration",
                   dir, folder, list_iterations(dir, there, sizeof(there)));
}

/* ---- what is held ---------------------------------------------------------------------------- */

/* Adds tensors whose bytes the plan says are equal, such as the norms on every tensor rank. */
HL_CHECK static hl_status add_replicas(struct hl_megatron_held *h)
{
    struct hl_partition_equal *pairs = NULL;
    size_t count = 0;
    HL_TRY(hl_reshard_replicas(h->plan, &pairs, &count));
    hl_status st = HL_OK;
    for (size_t i = 0; i < count && st == HL_OK; i++)
        if (h->bytes[pairs[i].a] != h->bytes[pairs[i].b])
            st = hl_megatron_add_copy(h, &(struct hl_megatron_copy){.tensor = pairs[i].a,
                                                                    .file = h->file_of[pairs[i].b],
                                                                    .bytes = h->bytes[pairs[i].b]});
    free(pairs);
    return st;
}

/* Megatron's padding rows hold arbitrary bytes. So that the bytes equal those of any other import,
 * padding is generated again: the planner is told that it is of another kind than the target's. */
static enum hl_api_vocab_padding other_padding(const struct hl_partition_options *target)
{
    return target->pad == HL_API_VOCAB_PADDING_ZERO ? HL_API_VOCAB_PADDING_REPEAT
                                                    : HL_API_VOCAB_PADDING_ZERO;
}

HL_CHECK static hl_status plan_moves(struct hl_megatron_source *s)
{
    const struct hl_logical *l = &s->whole.logical;
    HL_TRY(add_replicas(&s->params));
    HL_TRY(hl_reshard_plan(l->tensors, l->count, s->params.plan, &s->target, &s->params.moves));
    if (!s->optimizer)
        return HL_OK;
    HL_TRY(add_replicas(&s->optim));
    return hl_reshard_plan(s->state.logical, s->state.logical_count, s->optim.plan, &s->state.b,
                           &s->optim.moves);
}

hl_status hl_megatron_source_open(const char *dir, const struct hl_megatron_wanted *wanted,
                                  struct hl_megatron_source *s)
{
    *s = (struct hl_megatron_source){.left_out = json_array(),
                                     .meta = json_object(),
                                     .want = wanted->target,
                                     .optimizer = wanted->optimizer,
                                     .pad = other_padding(wanted->target)};
    hl_status st = s->left_out != NULL && s->meta != NULL ? choose_folder(dir, wanted->iteration, s)
                                                          : hl_fail(HL_ENOMEM, "open %s", dir);
    s->dist = st == HL_OK && has_file(s->folder, METADATA);
    if (st == HL_OK)
        st = (s->dist ? hl_megatron_open_dist : hl_megatron_open_ranks)(dir, s);
    if (st == HL_OK)
        st = plan_moves(s);
    if (st != HL_OK)
        hl_megatron_source_close(s);
    return st;
}

static void held_fini(struct hl_megatron_held *h)
{
    free(h->bytes);
    free(h->file_of);
    free(h->copies);
    hl_reshard_fini(&h->moves);
    hl_partition_fini(&h->clip);
}

void hl_megatron_source_close(struct hl_megatron_source *s)
{
    for (size_t i = 0; i < s->file_count; i++)
        unmap_file(&s->files[i]);
    free(s->files);
    hl_marked_texts_close(&s->texts);
    free(s->folder);
    held_fini(&s->params);
    held_fini(&s->optim);
    hl_reshard_state_fini(&s->state);
    json_decref(s->meta);
    hl_partition_fini(&s->target);
    hl_whole_fini(&s->whole);
    json_decref(s->left_out);
    *s = (struct hl_megatron_source){0};
}

/* ---- proofs ---------------------------------------------------------------------------------- */

HL_CHECK static hl_status compare_copy(const struct hl_megatron_source *s,
                                       const struct hl_megatron_held *h,
                                       const struct hl_megatron_copy *c, const atomic_bool *cancel)
{
    const struct hl_tensor *t = &h->plan->tensors[c->tensor];
    const uint8_t *a = h->bytes[c->tensor];
    for (uint64_t at = 0; at < t->size; at += COMPARED) {
        uint64_t n = t->size - at < COMPARED ? t->size - at : COMPARED;
        if (cancel != NULL && atomic_load_explicit(cancel, memory_order_acquire))
            return hl_fail(HL_ECANCELED, "the import was cancelled");
        if (memcmp(a + at, c->bytes + at, n) == 0)
            continue;
        while (a[at] == c->bytes[at])
            at++;
        return hl_fail(HL_EINVAL,
                       "tensor '%s' differs between %s and %s from element %" PRIu64
                       " on, but both should hold the same one: the ranks have drifted apart, or "
                       "the files are from different saves; use another iteration",
                       t->name, s->files[h->file_of[c->tensor]].path, s->files[c->file].path,
                       at / hl_dtype_size(t->dtype));
    }
    return HL_OK;
}

hl_status hl_megatron_compare(const struct hl_megatron_source *s, const atomic_bool *cancel)
{
    for (size_t i = 0; i < s->params.copy_count; i++)
        HL_TRY(compare_copy(s, &s->params, &s->params.copies[i], cancel));
    for (size_t i = 0; i < s->optim.copy_count; i++)
        HL_TRY(compare_copy(s, &s->optim, &s->optim.copies[i], cancel));
    return HL_OK;
}

hl_status hl_megatron_check_files(const struct hl_megatron_source *s)
{
    for (size_t i = 0; i < s->file_count; i++) {
        const struct hl_mapped_file *f = &s->files[i];
        if (hl_map_guard_check(f->guard))
            return hl_fail(HL_EIO, "%s was truncated during the import", f->path);
        HL_TRY(hl_file_mark_check(&f->mark, f->fd, f->path));
    }
    return hl_marked_texts_check(&s->texts);
}

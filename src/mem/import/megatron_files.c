/* What both formats need: mapped files, the model, and the list of held tensors. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/torch/megatron.h"
#include "core/torch/megatron_model.h"
#include "mem/import/megatron_private.h"
#include "os/map_guard.h"

HL_CHECK static hl_status map_file(const char *path, struct hl_mapped_file *f)
{
    HL_TRY(hl_marked_open(path, &f->fd, &f->mark));
    f->size = (uint64_t)f->mark.size;
    if (f->size == 0)
        return hl_fail(HL_EINVAL, "%s is empty: copy the checkpoint again", path);
    void *bytes = mmap(NULL, f->size, PROT_READ, MAP_SHARED, f->fd, 0);
    if (bytes == MAP_FAILED)
        return hl_fail(HL_EIO, "map %s: %m", path);
    f->bytes = bytes;
    f->guard = hl_map_guard_add(bytes, f->size, f->fd, false);
    f->path = strdup(path);
    return f->path != NULL ? HL_OK : hl_fail(HL_ENOMEM, "path of %s", path);
}

hl_status hl_megatron_map(struct hl_megatron_source *s, const char *path, uint32_t *index)
{
    if (s->files == NULL)
        s->files = calloc(HL_MEGATRON_FILES_MAX, sizeof(*s->files));
    if (s->files == NULL)
        return hl_fail(HL_ENOMEM, "a table of files");
    if (s->file_count == HL_MEGATRON_FILES_MAX)
        return hl_fail(HL_EUNSUPPORTED, "%s has more than %d files", s->folder,
                       HL_MEGATRON_FILES_MAX);
    *index = (uint32_t)s->file_count;
    struct hl_mapped_file *f = &s->files[s->file_count++];
    *f = (struct hl_mapped_file){.fd = -1, .guard = -1};
    return map_file(path, f);
}

static hl_status read_mapped(void *arg, uint64_t at, void *to, size_t len)
{
    const struct hl_mapped_file *f = arg;
    if (at > f->size || len > f->size - at)
        return hl_fail(HL_EINVAL, "byte %" PRIu64 " is beyond its %" PRIu64 ": it is truncated", at,
                       f->size);
    memcpy(to, f->bytes + at, len);
    return HL_OK;
}

hl_status hl_megatron_check_file(const struct hl_megatron_source *s, const char *name,
                                 uint64_t size)
{
    HL_AUTO(hl_freep) char *path = NULL;
    struct stat st;
    if (asprintf(&path, "%s/%s", s->folder, name) < 0)
        return hl_fail(HL_ENOMEM, "path of %s", name);
    if (stat(path, &st) != 0)
        return hl_fail(errno == ENOENT ? HL_ENOENT : HL_EIO, "%s: %m; copy all of the checkpoint%s",
                       path,
                       strcmp(name, "common.pt") == 0
                           ? ", or, if it was not saved by Megatron, convert it to one file with "
                             "torch's dcp_to_torch_save()"
                           : "");
    if ((uint64_t)st.st_size >= size)
        return HL_OK;
    return hl_fail(HL_EINVAL,
                   "%s has %" PRId64 " bytes of %" PRIu64
                   " that .metadata places in it: it is truncated; copy it again",
                   path, (int64_t)st.st_size, size);
}

hl_status hl_megatron_open_torch(const struct hl_mapped_file *f, uint64_t offset, uint64_t size,
                                 struct hl_torch_file *out)
{
    const struct hl_torch_source whole = {
        .size = f->size, .read = read_mapped, .arg = (void *)(uintptr_t)f};
    struct hl_torch_slice slice;
    HL_TRY(hl_torch_slice_init(&slice, &whole, offset, size));
    return hl_torch_file_open(&slice.source, out);
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

/* ---- the model ------------------------------------------------------------------------------- */

/* Finds config.json in the checkpoint or in the directory above the iteration; NULL if there is
 * none. */
static char *find_config(const char *dir)
{
    if (has_file(dir, "config.json"))
        return join_path(dir, "config.json");
    if (!has_file(dir, HL_MEGATRON_TRACKER) && has_file(dir, "../config.json"))
        return join_path(dir, "../config.json");
    return NULL;
}

HL_CHECK static hl_status read_config(struct hl_megatron_source *s, const char *path,
                                      struct hl_hf_config *out)
{
    HL_AUTO(hl_freep) char *text = NULL;
    size_t len;
    HL_TRY(hl_marked_texts_read(&s->texts, path, HL_HF_CONFIG_MAX, &text, &len));
    return hl_hf_config_parse(text, len, path, out);
}

hl_status hl_megatron_leave_out(struct hl_megatron_source *s, json_t *what)
{
    if (what == NULL || json_array_append_new(s->left_out, what) != 0)
        return hl_fail(HL_ENOMEM, "a list of what is left out");
    return HL_OK;
}

/* Without the true size of the vocabulary, nothing says which rows are padding. */
HL_CHECK static hl_status note_vocabulary(struct hl_megatron_source *s,
                                          const struct hl_pickle_value *root,
                                          const struct hl_hf_config *config)
{
    const struct hl_pickle_value *args = NULL;
    uint64_t vocab;
    HL_TRY(hl_megatron_args(root, &args));
    HL_TRY(hl_megatron_arg_size(args, "vocab_size", 0, &vocab));
    if (vocab > 0)
        return HL_OK;
    return hl_megatron_leave_out(
        s,
        json_sprintf("the true size of the vocabulary: args.vocab_size is not set, so all %" PRIu64
                     " rows count as words, padding too; with the model's config.json "
                     "beside " HL_MEGATRON_TRACKER " it is cut",
                     config->vocab));
}

hl_status hl_megatron_read_model(const char *dir, struct hl_megatron_source *s,
                                 const struct hl_pickle_value *root, struct hl_hf_config *config)
{
    HL_AUTO(hl_freep) char *path = find_config(dir);
    HL_AUTO(hl_freep) char *text = NULL;
    if (path == NULL) {
        hl_status st = hl_megatron_config(root, &text);
        if (st == HL_OK)
            st = hl_hf_config_parse(text, strlen(text), "args", config);
        if (st == HL_OK)
            st = note_vocabulary(s, root, config);
        return st == HL_OK ? HL_OK : hl_fail_prefix(st, "%s: ", s->folder);
    }
    HL_TRY(read_config(s, path, config));
    hl_status st = hl_megatron_check_config(root, config);
    return st == HL_OK ? HL_OK : hl_fail_prefix(st, "%s: ", s->folder);
}

bool hl_megatron_is_buffer(const char *name)
{
    return strstr(name, "_extra_state") != NULL || strstr(name, "rotary_pos_emb.") != NULL ||
           strstr(name, "local_tokens_per_expert") != NULL;
}

/* ---- what is held ---------------------------------------------------------------------------- */

hl_status hl_megatron_plan(struct hl_megatron_source *s, struct hl_hf_config *config,
                           const struct hl_partition_options *split, hl_whole_find_fn find,
                           void *arg)
{
    const struct hl_logical *l = &s->whole.logical;
    HL_TRY(hl_whole_held(config, split, find, arg, &s->whole));
    return hl_partition_plan(&s->whole.config, l->tensors, l->count, s->want, &s->target);
}

hl_status hl_megatron_hold(struct hl_megatron_held *h, const struct hl_partition_plan *plan)
{
    h->plan = plan;
    h->bytes = calloc(plan->tensor_count + 1, sizeof(*h->bytes));
    h->file_of = calloc(plan->tensor_count + 1, sizeof(*h->file_of));
    if (h->bytes == NULL || h->file_of == NULL)
        return hl_fail(HL_ENOMEM, "a table of %zu tensors", plan->tensor_count);
    return HL_OK;
}

hl_status hl_megatron_add_copy(struct hl_megatron_held *h, const struct hl_megatron_copy *copy)
{
    if (h->copy_count == h->copy_cap) {
        size_t cap = h->copy_cap == 0 ? 64 : 2 * h->copy_cap;
        struct hl_megatron_copy *more = realloc(h->copies, cap * sizeof(*more));
        if (more == NULL)
            return hl_fail(HL_ENOMEM, "a table of %zu tensors", cap);
        h->copies = more;
        h->copy_cap = cap;
    }
    h->copies[h->copy_count++] = *copy;
    return HL_OK;
}

/* A logical tensor is put together in memory by the operations of core/whole.h's plan, whose
 * sources are shards of any rank. The plan goes part by part, so the shards of one part are mapped
 * together and let go before the next part.
 *
 * Before the first byte is written every tensor is proved: all of its elements are stored, and
 * ranks that store the same ones agree by checksum. What fails then leaves the directory as it was.
 */
#include "cli/models/hf_export.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/models/hf_files.h"
#include "cli/models/rankfile.h"
#include "core/coverage.h"
#include "core/lora.h"
#include "core/model_config.h"
#include "core/whole.h"
#include "mem/transpose.h"
#include "os/file.h"

/* A stored shard, and its bytes while they are mapped. */
struct stored {
    int pp, tp, ep;
    helios_shard shard;
    struct hl_safetensors header;
    const void *data;
};

struct writing {
    struct hf_export *e;
    struct stored *stored;
    size_t count;
    char *config;
    struct hl_model_config model; /* the same, read */
    struct hl_whole whole;
    uint32_t *stored_of; /* per shard of whole.ranks */
    unsigned char *buffer;
    uint64_t buffer_size;
};

static void unmap_all(struct writing *w)
{
    for (size_t i = 0; i < w->count; i++)
        if (w->stored[i].data != NULL) {
            (void)helios_unmap(w->e->client, w->stored[i].data);
            w->stored[i].data = NULL;
        }
}

static void writing_fini(struct writing *w)
{
    unmap_all(w);
    for (size_t i = 0; i < w->count; i++)
        hl_safetensors_fini(&w->stored[i].header);
    free(w->stored);
    free(w->config);
    hl_model_config_fini(&w->model);
    free(w->stored_of);
    free(w->buffer);
    hl_whole_fini(&w->whole);
}

/* ---- what is stored -------------------------------------------------------------------------- */

/* Ranks of several tp and ep read the same shard. */
static bool is_listed(const struct writing *w, const helios_shard_view *view, const char *part)
{
    for (size_t i = 0; i < w->count; i++) {
        const struct stored *s = &w->stored[i];
        if (s->pp == view->pp && s->tp == view->tp && s->ep == view->ep &&
            strcmp(s->shard.part, part) == 0)
            return true;
    }
    return false;
}

HL_CHECK static hl_status add_shards(struct writing *w, const helios_shard_list *list)
{
    struct stored *more = realloc(w->stored, (w->count + list->count + 1) * sizeof(*more));
    if (more == NULL)
        return hl_fail(HL_ENOMEM, "out of memory listing %zu shards", w->count + list->count);
    w->stored = more;
    for (size_t i = 0; i < list->count; i++) {
        struct stored *s = &w->stored[w->count];
        if (hl_part_of(list->shards[i].part).kind != HL_PART_MODEL ||
            is_listed(w, &list->views[i], list->shards[i].part))
            continue;
        *s = (struct stored){.pp = list->views[i].pp,
                             .tp = list->views[i].tp,
                             .ep = list->views[i].ep,
                             .shard = list->shards[i]};
        HL_TRY(rankfile_header(w->e->client, &s->shard, &s->header));
        w->count++;
        HL_TRY(hl_safetensors_check_origin(&s->header, w->e->model, w->e->version, s->pp, s->tp,
                                           s->ep, s->shard.part));
    }
    return HL_OK;
}

HL_CHECK static hl_status list_position(struct writing *w, int pp, int tp, int ep)
{
    const helios_place place = {HELIOS_PLACE_INIT, .pp = pp, .tp = tp, .ep = ep};
    helios_shard_list *list;
    HL_TRY((hl_status)helios_request_place(w->e->client, w->e->model, w->e->version, NULL, &place,
                                           &list));
    hl_status st = add_shards(w, list);
    if (st == HL_OK && w->config == NULL && (w->config = strdup(list->config_json)) == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory for the config of a model");
    helios_shard_list_free(list);
    return st;
}

static struct stored *find_stored(const struct writing *w, const struct hl_partition_shard *shard)
{
    for (size_t i = 0; i < w->count; i++) {
        struct stored *s = &w->stored[i];
        if (s->pp == shard->pp && s->tp == shard->tp && s->ep == shard->ep &&
            strcmp(s->shard.part, shard->part) == 0)
            return s;
    }
    return NULL;
}

static hl_status find_tensor(void *arg, const struct hl_partition_shard *shard, const char *name,
                             const struct hl_tensor **out)
{
    const struct writing *w = arg;
    const struct stored *s = find_stored(w, shard);
    *out = s != NULL ? hl_safetensors_find(&s->header, name) : NULL;
    if (*out != NULL)
        return HL_OK;
    return hl_fail(HL_ENOENT,
                   "%s@%" PRId64 " has no tensor '%s' in part %s at pp %d, tp %d: it was saved "
                   "without all of the model, or under other names",
                   w->e->model, w->e->version, name, shard->part, shard->pp, shard->tp);
}

/* All that is stored, as it is stored. */
HL_CHECK static hl_status plan_unsliced(struct writing *w)
{
    size_t n = 0;
    for (size_t i = 0; i < w->count; i++)
        n += w->stored[i].header.count;
    HL_AUTO(hl_freep) struct hl_tensor *tensors = calloc(n + 1, sizeof(*tensors));
    HL_AUTO(hl_freep) const char **parts = calloc(n + 1, sizeof(*parts));
    if (tensors == NULL || parts == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu tensors", n);
    n = 0;
    for (size_t i = 0; i < w->count; i++)
        for (size_t k = 0; k < w->stored[i].header.count; k++, n++) {
            tensors[n] = w->stored[i].header.tensors[k];
            parts[n] = w->stored[i].shard.part;
        }
    return hl_whole_plan_unsliced(w->config, tensors, parts, n, &w->whole);
}

HL_CHECK static hl_status plan_tensors(struct writing *w)
{
    HL_TRY(hl_model_config_read(w->config, &w->model));
    HL_TRY(w->model.own.unsliced ? plan_unsliced(w)
                                 : hl_whole_plan(w->config, find_tensor, w, &w->whole));
    const struct hl_partition_plan *ranks = &w->whole.ranks;
    w->stored_of = calloc(ranks->shard_count + 1, sizeof(*w->stored_of));
    if (w->stored_of == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu shards", ranks->shard_count);
    for (size_t i = 0; i < ranks->shard_count; i++) {
        const struct stored *s = find_stored(w, &ranks->shards[i]);
        if (s == NULL && ranks->shards[i].tensor_count > 0)
            return hl_fail(HL_EINTERNAL, "part %s was planned and is not stored",
                           ranks->shards[i].part);
        w->stored_of[i] = s != NULL ? (uint32_t)(s - w->stored) : 0;
    }
    return HL_OK;
}

/* Every element is held, once or by ranks that agree: of what differs only one could be written. */
HL_CHECK static hl_status prove_tensors(const struct writing *w)
{
    const struct hl_partition_plan *p = &w->whole.ranks;
    size_t n = 0;
    HL_AUTO(hl_freep) struct hl_coverage_tensor *held = calloc(p->tensor_count + 1, sizeof(*held));
    if (held == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu tensors", p->tensor_count);
    for (size_t i = 0; i < p->shard_count; i++) {
        const struct hl_partition_shard *shard = &p->shards[i];
        const struct stored *s = &w->stored[w->stored_of[i]];
        for (uint32_t k = 0; k < shard->tensor_count; k++) {
            const struct hl_tensor *t = &p->tensors[shard->tensor_first + k];
            uint32_t first = p->op_first[shard->tensor_first + k];
            struct hl_coverage_tensor *h = &held[n++];
            *h = (struct hl_coverage_tensor){.name = t->name,
                                             .rank = shard->pp * w->e->tp_size + shard->tp,
                                             .pp = shard->pp,
                                             .tp = shard->tp,
                                             .ep = shard->ep,
                                             .size = t->size,
                                             .ops = &p->ops[first],
                                             .op_count =
                                                 p->op_first[shard->tensor_first + k + 1] - first};
            HL_TRY(hl_safetensors_crc(&s->header, t->name, &h->crc32));
        }
    }
    const struct hl_coverage coverage = {.logical = w->whole.logical.tensors,
                                         .logical_count = w->whole.logical.count,
                                         .equal = p->equal,
                                         .equal_count = p->equal_count,
                                         .held = held,
                                         .held_count = n};
    hl_status st = hl_coverage_check(&coverage);
    return st == HL_OK ? st : hl_fail_prefix(st, "%s@%" PRId64 ": ", w->e->model, w->e->version);
}

/* ---- one tensor ------------------------------------------------------------------------------ */

/* The bytes of a tensor of whole.ranks. The shard stays mapped until its part has been written. */
HL_CHECK static hl_status map_source(struct writing *w, const struct hl_reshard_op *op,
                                     const unsigned char **out)
{
    struct stored *s = &w->stored[w->stored_of[op->shard]];
    const char *name = w->whole.ranks.tensors[op->tensor].name;
    const struct hl_tensor *t = hl_safetensors_find(&s->header, name);
    if (t == NULL)
        return hl_fail(HL_EINTERNAL, "tensor '%s' was planned and is not stored", name);
    if (s->data == NULL)
        HL_TRY((hl_status)helios_map(w->e->client, s->shard.id, &s->data, NULL));
    *out = (const unsigned char *)s->data + s->header.data_offset + t->offset;
    return HL_OK;
}

HL_CHECK static hl_status run_op(struct writing *w, const struct hl_reshard_op *op)
{
    const unsigned char *from = NULL;
    unsigned char *to = w->buffer + op->dst;
    if (op->kind == HL_RESHARD_ZERO) {
        memset(to, 0, op->run);
        return HL_OK;
    }
    HL_TRY(map_source(w, op, &from));
    from += op->src;
    if (op->kind == HL_RESHARD_TRANSPOSE) {
        hl_transpose(to, op->dst_stride, from, op->src_stride, op->rows, op->cols, op->elem);
        return HL_OK;
    }
    for (uint64_t i = 0; i < op->rows; i++)
        memcpy(to + i * op->dst_stride, from + i * op->src_stride, op->run);
    return HL_OK;
}

HL_CHECK static hl_status write_tensor(struct writing *w, size_t tensor, struct outfile *to)
{
    const struct hl_reshard_plan *plan = &w->whole.plan;
    uint64_t size = w->whole.whole.tensors[tensor].size;
    if (size > w->buffer_size) {
        free(w->buffer);
        w->buffer_size = 0;
        w->buffer = malloc(size);
        if (w->buffer == NULL)
            return hl_fail(HL_ENOMEM, "out of memory for a tensor of %" PRIu64 " bytes", size);
        w->buffer_size = size;
    }
    for (uint32_t i = plan->op_first[tensor]; i < plan->op_first[tensor + 1]; i++)
        HL_TRY(run_op(w, &plan->ops[i]));
    return outfile_write(to, w->buffer, size);
}

/* ---- files ----------------------------------------------------------------------------------- */

HL_CHECK static hl_status write_tensors(struct writing *w, struct hf_file range, struct outfile *to)
{
    const struct hl_partition_plan *p = &w->whole.whole;
    const struct hl_safetensors_meta meta[] = {{"format", "pt"}};
    size_t n = range.end - range.first, part = 0;
    struct hl_safetensors_image image;
    HL_AUTO(hl_freep) struct hl_tensor *tensors = malloc((n + 1) * sizeof(*tensors));
    if (tensors == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu tensors", n);
    memcpy(tensors, &p->tensors[range.first], n * sizeof(*tensors));
    HL_TRY(hl_safetensors_write(
        &(struct hl_safetensors_layout){
            .tensors = tensors, .count = n, .meta = meta, .meta_count = HL_ARRAY_LEN(meta)},
        &image));
    hl_status st = outfile_write(to, image.bytes, image.size);
    hl_safetensors_image_fini(&image);
    for (size_t i = range.first; i < range.end && st == HL_OK; i++) {
        while (part < p->shard_count &&
               i >= p->shards[part].tensor_first + p->shards[part].tensor_count) {
            part++;
            unmap_all(w); /* the next part is made of other shards */
        }
        st = write_tensor(w, i, to);
    }
    return st;
}

HL_CHECK static hl_status write_file(struct writing *w, const char *name, struct hf_file range)
{
    char path[PATH_MAX];
    struct outfile file;
    HL_TRY(cli_path(path, "%s/%s", w->e->out, name));
    HL_TRY(outfile_open(path, &file));
    hl_status st = write_tensors(w, range, &file);
    w->e->bytes += file.written;
    if (st == HL_OK)
        st = outfile_commit(&file);
    outfile_abort(&file);
    return st;
}

/* The model's own, with the dtype that the tensors have now. An unsliced one may have none, and may
 * mix dtypes. */
HL_CHECK static hl_status write_config(const struct writing *w)
{
    if (w->whole.config.hf == NULL)
        return HL_OK;
    w->e->config = "config.json";
    return hf_write_config(w->e->out, w->whole.config.hf,
                           w->model.own.unsliced ? HL_DTYPE_COUNT : w->whole.ranks.dtype);
}

/* As it was imported; the base has its own config.json. */
HL_CHECK static hl_status write_adapter_config(const struct writing *w)
{
    w->e->config = HL_LORA_CONFIG;
    return hf_write_document(w->e->out, HL_LORA_CONFIG, json_incref((json_t *)w->model.peft));
}

HL_CHECK static hl_status write_all(struct writing *w)
{
    char path[PATH_MAX], name[64];
    const struct hl_partition_plan *p = &w->whole.whole;
    unsigned count = hf_file_count(p);
    if (w->whole.adapter && count != 1)
        return hl_fail(HL_EUNSUPPORTED, "PEFT reads one file of an adapter, and this one fills %u",
                       count);
    HL_TRY(hl_dir_make(w->e->out, 0755));
    HL_TRY(cli_path(path, "%s/%s", w->e->out, w->whole.adapter ? HL_LORA_CONFIG : "config.json"));
    (void)unlink(path); /* of an earlier export, whose files are replaced one by one */
    for (size_t at = 0; at < p->tensor_count;) {
        struct hf_file range = hf_file_next(p, at);
        if (w->whole.adapter)
            snprintf(name, sizeof(name), HL_LORA_FILE);
        else
            hf_file_name(w->e->files + 1, count, name, sizeof(name));
        HL_TRY(write_file(w, name, range));
        w->e->files++;
        at = range.end;
    }
    if (count > 1)
        HL_TRY(hf_write_index(w->e->out, p));
    return w->whole.adapter ? write_adapter_config(w) : write_config(w);
}

hl_status hf_export_write(struct hf_export *e)
{
    struct writing w = {.e = e};
    hl_status st = HL_OK;
    for (int pp = 0; pp < e->pp_size && st == HL_OK; pp++)
        for (int tp = 0; tp < e->tp_size && st == HL_OK; tp++)
            for (int ep = 0; ep < e->ep_size && st == HL_OK; ep++)
                st = list_position(&w, pp, tp, ep);
    if (st == HL_OK)
        st = plan_tensors(&w);
    if (st == HL_OK)
        st = prove_tensors(&w);
    if (st == HL_OK)
        st = write_all(&w);
    writing_fini(&w);
    return st;
}

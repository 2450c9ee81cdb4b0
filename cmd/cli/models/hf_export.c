/* A logical tensor is put together in memory, from shards of any rank. They come part by part, so
 * the shards of one part are mapped together and let go before the next part.
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
#include "cli/models/logical.h"
#include "core/coverage.h"
#include "core/lora.h"
#include "core/model_config.h"
#include "core/part.h"
#include "os/file.h"

struct writing {
    struct hf_export *e;
    struct hl_arena arena;
    struct logical_version version;
    struct hl_model_config model;
    unsigned char *buffer;
    uint64_t buffer_size;
    struct cli_progress bar;
    uint64_t done, total; /* bytes of tensors */
};

static void writing_fini(struct writing *w)
{
    logical_close(&w->version);
    hl_model_config_fini(&w->model);
    hl_arena_fini(&w->arena);
    free(w->buffer);
}

/* ---- what is stored -------------------------------------------------------------------------- */

HL_CHECK static hl_status plan_tensors(struct writing *w)
{
    struct logical_version *v = &w->version;
    HL_TRY(logical_open(v, w->e->cli, w->e->client, w->e->model, w->e->version, &w->arena));
    HL_TRY(hl_model_config_read(v->stored.config, &w->model));
    hl_status st = logical_plan(v, false);
    if (st != HL_OK)
        return hl_fail_prefix(st, "%s@%" PRId64 ": ", w->e->model, w->e->version);
    w->e->adapter = v->whole.adapter;
    for (size_t i = 0; i < v->shard_count; i++) {
        enum hl_part_kind kind = hl_part_of(v->shards[i].shard->part).kind;
        w->e->has_optimizer |= kind == HL_PART_OPTIM;
        w->e->has_extra |= kind == HL_PART_EXTRA;
    }
    return HL_OK;
}

/* Every element is held, once or by ranks that agree: of what differs only one could be written. */
HL_CHECK static hl_status prove_tensors(const struct writing *w)
{
    const struct logical_version *v = &w->version;
    const struct hl_partition_plan *p = &v->whole.ranks;
    size_t n = 0;
    HL_AUTO(hl_freep) struct hl_coverage_tensor *held = calloc(p->tensor_count + 1, sizeof(*held));
    if (held == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu tensors", p->tensor_count);
    for (size_t i = 0; i < p->shard_count; i++) {
        const struct hl_partition_shard *shard = &p->shards[i];
        for (uint32_t k = shard->tensor_first; k < shard->tensor_first + shard->tensor_count; k++) {
            const struct logical_source *source = &v->held[k];
            struct hl_coverage_tensor *h = &held[n++];
            *h = (struct hl_coverage_tensor){.name = p->tensors[k].name,
                                             .rank = shard->pp * v->stored.split.tp + shard->tp,
                                             .pp = shard->pp,
                                             .tp = shard->tp,
                                             .ep = shard->ep,
                                             .size = p->tensors[k].size,
                                             .ops = &p->ops[p->op_first[k]],
                                             .op_count = p->op_first[k + 1] - p->op_first[k]};
            HL_TRY(
                hl_safetensors_crc(&v->shards[source->shard].header, source->t->name, &h->crc32));
        }
    }
    const struct hl_coverage coverage = {.logical = v->whole.logical.tensors,
                                         .logical_count = v->whole.logical.count,
                                         .equal = p->equal,
                                         .equal_count = p->equal_count,
                                         .held = held,
                                         .held_count = n};
    hl_status st = hl_coverage_check(&coverage);
    return st == HL_OK ? st : hl_fail_prefix(st, "%s@%" PRId64 ": ", w->e->model, w->e->version);
}

/* ---- one tensor ------------------------------------------------------------------------------ */

HL_CHECK static hl_status write_tensor(struct writing *w, size_t tensor, struct outfile *to)
{
    uint64_t size = w->version.tensors[tensor].t->size;
    if (size > w->buffer_size) {
        free(w->buffer);
        w->buffer_size = 0;
        w->buffer = malloc(size);
        if (w->buffer == NULL)
            return hl_fail(HL_ENOMEM, "out of memory for a tensor of %" PRIu64 " bytes", size);
        w->buffer_size = size;
    }
    HL_TRY(logical_read(&w->version, &w->version.tensors[tensor], 0, size, w->buffer));
    w->done += size;
    cli_progress_update(&w->bar, w->done, w->total);
    return outfile_write(to, w->buffer, size);
}

/* ---- files ----------------------------------------------------------------------------------- */

HL_CHECK static hl_status write_tensors(struct writing *w, struct hf_file range, struct outfile *to)
{
    const struct hl_partition_plan *p = &w->version.whole.whole;
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
            logical_unmap(&w->version); /* the next part is made of other shards */
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
    if (w->model.quantization != NULL)
        HL_TRY(hf_write_document(w->e->out, HL_QUANTIZATION_CONFIG,
                                 json_incref((json_t *)w->model.quantization)));
    if (w->version.whole.config.hf == NULL)
        return HL_OK;
    w->e->config = "config.json";
    return hf_write_config(w->e->out, w->version.whole.config.hf,
                           w->model.own.unsliced ? HL_DTYPE_COUNT : w->version.whole.ranks.dtype);
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
    const struct hl_partition_plan *p = &w->version.whole.whole;
    unsigned count = hf_file_count(p);
    if (w->version.whole.adapter && count != 1)
        return hl_fail(HL_EUNSUPPORTED, "PEFT reads one file of an adapter, and this one fills %u",
                       count);
    if (!w->version.whole.adapter)
        HL_TRY(hf_check_folder(w->e->out, count));
    HL_TRY(hl_dir_make(w->e->out, 0755));
    HL_TRY(cli_path(path, "%s/%s", w->e->out,
                    w->version.whole.adapter ? HL_LORA_CONFIG : "config.json"));
    (void)unlink(path); /* of an earlier export, whose files are replaced one by one */
    HL_TRY(cli_path(path, "%s/%s", w->e->out, HL_QUANTIZATION_CONFIG));
    (void)unlink(path);
    for (size_t at = 0; at < p->tensor_count;) {
        struct hf_file range = hf_file_next(p, at);
        if (w->version.whole.adapter)
            snprintf(name, sizeof(name), HL_LORA_FILE);
        else
            hf_file_name(w->e->files + 1, count, name, sizeof(name));
        HL_TRY(write_file(w, name, range));
        w->e->files++;
        at = range.end;
    }
    if (count > 1)
        HL_TRY(hf_write_index(w->e->out, p));
    return w->version.whole.adapter ? write_adapter_config(w) : write_config(w);
}

hl_status hf_export_write(struct hf_export *e)
{
    struct writing w = {.e = e};
    hl_status st = plan_tensors(&w);
    if (st == HL_OK)
        st = prove_tensors(&w);
    for (size_t i = 0; st == HL_OK && i < w.version.count; i++)
        w.total += w.version.tensors[i].t->size;
    cli_progress_start(&w.bar, "exporting");
    if (st == HL_OK)
        st = write_all(&w);
    cli_progress_end(&w.bar);
    writing_fini(&w);
    return st;
}

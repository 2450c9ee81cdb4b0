/* Builds each logical tensor in memory, from shards of any rank. The tensors come part by part, so
 * the shards of one part are mapped together and unmapped before the next part.
 *
 * Every tensor is proved before the first byte is written: all of its elements are stored, and
 * ranks that store the same ones agree by checksum. If that fails, the directory stays as it was.
 */
#include "cli/models/hf_export.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/models/export_folder.h"
#include "cli/models/hf_files.h"
#include "cli/models/logical.h"
#include "core/model/lora.h"
#include "core/model/model_config.h"
#include "core/model/part.h"
#include "core/reshard/coverage.h"
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

/* Checks that all state was planned: with its parameters' shapes, in pieces that cover them. */
HL_CHECK static hl_status check_state(const struct writing *w)
{
    const struct logical_version *v = &w->version;
    if (!w->e->has_optimizer)
        return hl_fail(HL_ENOENT, "%s@%" PRId64 " has no optimizer state: leave --optimizer out",
                       w->e->model, v->stored.version);
    if (w->model.own.unsliced)
        return hl_fail(HL_EUNSUPPORTED,
                       "%s@%" PRId64 " is unsliced, so its state has global names as it is: "
                       "`helios pull --kind optim` writes it",
                       w->e->model, v->stored.version);
    for (size_t i = 0; i < v->shard_count; i++) {
        const struct logical_shard *s = &v->shards[i];
        for (size_t k = 0; k < s->header.count; k++)
            if (!s->planned[k] && hl_part_of(s->shard->part).kind == HL_PART_OPTIM)
                return hl_fail(HL_EUNSUPPORTED,
                               "optimizer tensor '%s' of part %s of %s@%" PRId64
                               " has no global name: its shape differs from its parameter's, or it "
                               "is in shares that can't be merged; `helios pull --kind optim` "
                               "writes it as it is stored",
                               s->header.tensors[k].name, s->shard->part, w->e->model,
                               v->stored.version);
    }
    return HL_OK;
}

HL_CHECK static hl_status plan_tensors(struct writing *w)
{
    struct logical_version *v = &w->version;
    HL_TRY(logical_open(v, w->e->cli, w->e->client, w->e->model, w->e->version, &w->arena));
    HL_TRY(hl_model_config_read(v->stored.config, &w->model));
    hl_status st = logical_plan(v, w->e->optimizer);
    if (st != HL_OK)
        return hl_fail_prefix(st, "%s@%" PRId64 ": ", w->e->model, w->e->version);
    w->e->adapter = v->whole.adapter;
    for (size_t i = 0; i < v->shard_count; i++) {
        enum hl_part_kind kind = hl_part_of(v->shards[i].shard->part).kind;
        w->e->has_optimizer |= kind == HL_PART_OPTIM;
        w->e->has_extra |= kind == HL_PART_EXTRA;
    }
    return w->e->optimizer ? check_state(w) : HL_OK;
}

/* Checks that every element is held, by one rank or by ranks that agree: if they differ, only one
 * value could be written. */
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

/* The same for optimizer state, which is assembled from pieces. */
HL_CHECK static hl_status prove_state(const struct writing *w)
{
    char why[HL_PROOF_WHY_MAX];
    bool proved;
    HL_TRY(logical_prove_state(&w->version, &proved, why));
    return proved ? HL_OK
                  : hl_fail(HL_EUNSUPPORTED,
                            "the optimizer state of %s@%" PRId64 " can't be proved (%s): "
                            "`helios pull --kind optim` writes it as it is stored",
                            w->e->model, w->e->version, why);
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

/* Tensors of a plan; the first one is logical tensor `base`. */
struct listed {
    const struct hl_partition_plan *plan;
    size_t base;
};

HL_CHECK static hl_status write_tensors(struct writing *w, const struct listed *list,
                                        struct hf_file range, struct outfile *to)
{
    const struct hl_partition_plan *p = list->plan;
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
            logical_unmap(&w->version); /* the next part uses other shards */
        }
        st = write_tensor(w, list->base + i, to);
    }
    return st;
}

HL_CHECK static hl_status write_file(struct writing *w, const struct listed *list, const char *dir,
                                     const char *name, struct hf_file range)
{
    char path[PATH_MAX];
    struct outfile file;
    HL_TRY(cli_path(path, "%s/%s", dir, name));
    HL_TRY(outfile_open(path, &file));
    hl_status st = write_tensors(w, list, range, &file);
    w->e->bytes += file.written;
    if (st == HL_OK)
        st = outfile_commit(&file);
    outfile_abort(&file);
    w->e->files += st == HL_OK;
    return st;
}

/* Writes files of at most HF_FILE_BYTES in `dir`. */
HL_CHECK static hl_status write_files(struct writing *w, const struct listed *list, const char *dir,
                                      const char *stem)
{
    char name[64];
    unsigned number = 0, count = hf_file_count(list->plan);
    for (size_t at = 0; at < list->plan->tensor_count;) {
        struct hf_file range = hf_file_next(list->plan, at);
        hf_file_name(stem, ++number, count, name, sizeof(name));
        HL_TRY(write_file(w, list, dir, name, range));
        at = range.end;
    }
    return HL_OK;
}

/* Writes to a separate folder, because checkpoint loaders take all files next to config.json. */
HL_CHECK static hl_status write_optimizer(struct writing *w)
{
    char dir[PATH_MAX];
    const struct listed list = {&w->version.state.b, w->version.whole.whole.tensor_count};
    if (!w->e->optimizer)
        return HL_OK;
    HL_TRY(cli_path(dir, "%s/" HF_OPTIMIZER, w->e->out));
    HL_TRY(hl_dir_make(dir, 0755));
    w->e->states = list.plan->tensor_count;
    return write_files(w, &list, dir, HF_OPTIMIZER);
}

/* Writes the model's own config, with the present dtype of the tensors. An unsliced model may have
 * no config, and may mix dtypes. */
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
    const struct listed list = {&w->version.whole.whole, 0};
    bool adapter = w->version.whole.adapter;
    unsigned count = hf_file_count(list.plan);
    if (adapter && count != 1)
        return hl_fail(HL_EUNSUPPORTED, "PEFT reads one file of an adapter, and this one fills %u",
                       count);
    HL_TRY(hf_folder_clear(w->e->out));
    HL_TRY(hl_dir_make(w->e->out, 0755));
    if (adapter)
        HL_TRY(write_file(w, &list, w->e->out, HL_LORA_FILE, hf_file_next(list.plan, 0)));
    else
        HL_TRY(write_files(w, &list, w->e->out, HF_MODEL));
    if (count > 1)
        HL_TRY(hf_write_index(w->e->out, list.plan));
    HL_TRY(write_optimizer(w));
    return adapter ? write_adapter_config(w) : write_config(w);
}

hl_status hf_export_write(struct hf_export *e)
{
    struct writing w = {.e = e};
    hl_status st = hf_folder_check(e->out, e->replace);
    if (st == HL_OK)
        st = plan_tensors(&w);
    if (st == HL_OK)
        st = prove_tensors(&w);
    if (st == HL_OK && e->optimizer)
        st = prove_state(&w);
    for (size_t i = 0; st == HL_OK && i < w.version.count; i++)
        w.total += w.version.tensors[i].t->size;
    cli_progress_start(&w.bar, "exporting");
    if (st == HL_OK)
        st = write_all(&w);
    cli_progress_end(&w.bar);
    writing_fini(&w);
    return st;
}

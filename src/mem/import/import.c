/* Opening a checkpoint: the header of every file is read and checked, the plan is made, and the
 * headers of all shards are written before any byte of the model is read. Everything that can be
 * refused is refused here. */
#include "mem/import/import.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/model/lora.h"
#include "core/model/model_config.h"
#include "core/model/part.h"
#include "core/torch/file.h"
#include "mem/import/import_private.h"

#define FILES_MAX 10000
#define INDEX_MAX ((size_t)256 << 20)
#define SINGLE    "model.safetensors"
#define INDEX     "model.safetensors.index.json"
/* File names of older Transformers, read if the newer ones don't exist. */
#define TORCH_SINGLE "pytorch_model.bin"
#define TORCH_INDEX  "pytorch_model.bin.index.json"

static char *join_path(const char *dir, const char *name)
{
    char *path = NULL;
    return asprintf(&path, "%s/%s", dir, name) < 0 ? NULL : path;
}

HL_CHECK static hl_status read_header(struct hl_import_file *f)
{
    char first[8];
    uint64_t n;
    if (f->size >= sizeof(first))
        HL_TRY(hl_marked_read(f->fd, f->name, 0, sizeof(first), first));
    hl_status st = hl_safetensors_header_len(first, sizeof(first), f->size, &n);
    if (st != HL_OK)
        return hl_fail_prefix(st, "%s: ", f->name);
    HL_AUTO(hl_freep) char *bytes = malloc(n + sizeof(first));
    if (bytes == NULL)
        return hl_fail(HL_ENOMEM, "%s: out of memory allocating a header of %" PRIu64 " bytes",
                       f->name, n);
    HL_TRY(hl_marked_read(f->fd, f->name, 0, n + sizeof(first), bytes));
    st = hl_safetensors_parse(bytes, n + sizeof(first), f->size, &f->header);
    return st == HL_OK ? HL_OK : hl_fail_prefix(st, "%s: ", f->name);
}

static hl_status read_part(void *arg, uint64_t at, void *to, size_t len)
{
    const struct hl_import_file *f = arg;
    return hl_marked_read(f->fd, f->name, at, len, to);
}

/* A file of torch.save: fills in the same header, with offsets from the start of the file. */
HL_CHECK static hl_status read_torch(struct hl_import_file *f)
{
    const struct hl_torch_source source = {.size = f->size, .read = read_part, .arg = f};
    hl_status st = hl_torch_state_dict(&source, &f->header);
    return st == HL_OK ? HL_OK : hl_fail_prefix(st, "%s: ", f->name);
}

/* Opens im->files[file_count]; the array must have room. */
HL_CHECK static hl_status add_file(struct hl_import *im, const char *name)
{
    struct hl_import_file *f = &im->files[im->file_count];
    *f = (struct hl_import_file){.name = join_path(im->dir, name), .fd = -1};
    if (f->name == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the path of %s", name);
    im->file_count++;
    HL_TRY(hl_marked_open(f->name, &f->fd, &f->mark));
    f->size = (uint64_t)f->mark.size;
    HL_TRY(im->torch ? read_torch(f) : read_header(f));
    im->source_count += f->header.count;
    return HL_OK;
}

/* A name from the index must not lead out of the directory. */
HL_CHECK static hl_status check_file_name(const char *index, const char *name)
{
    size_t len = strlen(name);
    if (len == 0 || len > 255 || strchr(name, '/') != NULL || name[0] == '.')
        return hl_fail(HL_EINVAL, "%s: weight_map names the file '%.80s': give a plain file name",
                       index, name);
    return HL_OK;
}

static int find_file(const struct hl_import *im, const char *name)
{
    size_t dir = strlen(im->dir) + 1;
    for (size_t i = 0; i < im->file_count; i++)
        if (strcmp(im->files[i].name + dir, name) == 0)
            return (int)i;
    return -1;
}

/* A link counts even if it is broken: opening it reports what is wrong. */
static bool has_file(const struct hl_import *im, const char *name)
{
    HL_AUTO(hl_freep) char *path = join_path(im->dir, name);
    return path != NULL && faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

HL_CHECK static hl_status check_mapped_exists(const struct hl_import *im, const char *index,
                                              const char *name)
{
    const char *single = im->torch ? TORCH_SINGLE : SINGLE;
    if (has_file(im, name))
        return HL_OK;
    if (has_file(im, single))
        return hl_fail(HL_ENOENT,
                       "%s names the file '%s', which is missing: copy it too, or remove the index "
                       "if %s is the whole model",
                       index, name, single);
    return hl_fail(HL_ENOENT, "%s names the file '%s', which is missing: copy it too", index, name);
}

HL_CHECK static hl_status open_mapped(struct hl_import *im, const char *index, json_t *map)
{
    const char *tensor;
    json_t *value;
    int last = -1;
    json_object_foreach (map, tensor, value) {
        const char *name = json_string_value(value);
        if (name == NULL)
            return hl_fail(HL_EINVAL, "%s: weight_map['%.200s'] is not a file name", index, tensor);
        HL_TRY(check_file_name(index, name));
        /* Adjacent tensors in the map are mostly in the same file. */
        if (last < 0 || strcmp(im->files[last].name + strlen(im->dir) + 1, name) != 0)
            last = find_file(im, name);
        if (last < 0) {
            if (im->file_count == FILES_MAX)
                return hl_fail(HL_EINVAL, "%s: more than %d files", index, FILES_MAX);
            HL_TRY(check_mapped_exists(im, index, name));
            HL_TRY(add_file(im, name));
            last = (int)im->file_count - 1;
        }
        if (hl_safetensors_find(&im->files[last].header, tensor) == NULL)
            return hl_fail(HL_EINVAL, "%s: weight_map['%.200s'] is %s, which does not hold it",
                           index, tensor, name);
    }
    return HL_OK;
}

HL_CHECK static hl_status open_index(struct hl_import *im, const char *path)
{
    HL_AUTO(hl_freep) char *text = NULL;
    size_t len;
    json_error_t error;
    HL_TRY(hl_marked_texts_read(&im->texts, path, INDEX_MAX, &text, &len));
    json_t *doc = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    if (doc == NULL)
        return hl_fail(HL_EINVAL, "%s:%d:%d: %s", path, error.line, error.column, error.text);
    json_t *map = json_object_get(doc, "weight_map");
    hl_status st = json_is_object(map) && json_object_size(map) > 0
                       ? open_mapped(im, path, map)
                       : hl_fail(HL_EINVAL, "%s: field 'weight_map' is missing or empty", path);
    json_decref(doc);
    return st;
}

/* Two saves into one directory leave both. Transformers would then read the single file, even if
 * the index is the newer one. */
HL_CHECK static hl_status check_one_model(const struct hl_import *im, const char *index,
                                          const char *single)
{
    if (!has_file(im, single) || find_file(im, single) >= 0)
        return HL_OK;
    return hl_fail(HL_EINVAL,
                   "%s holds both %s and %s, which names other files: remove the one that is not "
                   "the model",
                   im->dir, single, index);
}

static bool has_ending(const char *name, const char *ending)
{
    const char *dot = strrchr(name, '.');
    return name[0] != '.' && dot != NULL && strcmp(dot, ending) == 0;
}

static int is_safetensors(const struct dirent *d)
{
    return has_ending(d->d_name, ".safetensors");
}

/* Length of the number before "-of-"; 0 if the name has none. */
static size_t number_len(const char *name, const char *of)
{
    size_t n = 0;
    while (of != NULL && n < (size_t)(of - name) && isdigit((unsigned char)of[-1 - (ptrdiff_t)n]))
        n++;
    return n;
}

/* Without an index, names such as model-00001-of-00003.safetensors still say how many files there
 * are, counted from 1 or from 0: each needs the one before and the one after it. */
HL_CHECK static hl_status check_numbered(const struct hl_import *im, const char *name)
{
    char other[NAME_MAX + 1];
    const char *of = strstr(name, "-of-");
    size_t digits = number_len(name, of);
    if (digits == 0 || digits > 9 || !isdigit((unsigned char)of[4]))
        return HL_OK;
    size_t stem = (size_t)(of - name) - digits;
    long number = strtol(of - digits, NULL, 10), count = strtol(of + 4, NULL, 10);
    snprintf(other, sizeof(other), "%.*s%0*d%s", (int)stem, name, (int)digits, 0, of);
    long first = has_file(im, other) ? 0 : 1;
    for (long n = number - 1; n <= number + 1; n += 2) {
        if (n < first || n - first >= count)
            continue;
        snprintf(other, sizeof(other), "%.*s%0*ld%s", (int)stem, name, (int)digits, n, of);
        if (!has_file(im, other))
            return hl_fail(HL_ENOENT, "%s holds %s, but %s is missing: copy it too", im->dir, name,
                           other);
    }
    return HL_OK;
}

/* Files of a model without a known family may have any name. */
HL_CHECK static hl_status open_every_file(struct hl_import *im)
{
    struct dirent **list;
    hl_status st = HL_OK;
    int n = scandir(im->dir, &list, is_safetensors, alphasort);
    if (n < 0)
        return hl_fail(errno == ENOENT ? HL_ENOENT : HL_EIO, "list %s: %m", im->dir);
    im->torch = n == 0;
    for (int i = 0; i < n; i++) {
        if (st == HL_OK && i == FILES_MAX)
            st = hl_fail(HL_EINVAL, "%s: more than %d files", im->dir, FILES_MAX);
        if (st == HL_OK)
            st = check_numbered(im, list[i]->d_name);
        if (st == HL_OK)
            st = add_file(im, list[i]->d_name);
        free(list[i]);
    }
    free(list);
    return st;
}

/* For a known family, files of other names are not read: nothing says which of them belong
 * together. */
HL_CHECK static hl_status fail_without_files(const struct hl_import *im)
{
    struct dirent **list;
    int n = scandir(im->dir, &list, is_safetensors, NULL);
    for (int i = 0; i < n; i++)
        free(list[i]);
    if (n >= 0)
        free(list);
    if (n > 0)
        return hl_fail(HL_ENOENT,
                       "%s holds %d *.safetensors, and nothing says which of them are the model: "
                       "copy its " INDEX " too, or give one file",
                       im->dir, n);
    return hl_fail(HL_ENOENT,
                   "%s holds none of " SINGLE ", " INDEX ", " TORCH_SINGLE " and " TORCH_INDEX,
                   im->dir);
}

HL_CHECK static hl_status open_files(struct hl_import *im)
{
    im->files = calloc(FILES_MAX, sizeof(*im->files));
    if (im->files == NULL)
        return hl_fail(HL_ENOMEM, "out of memory opening %s", im->dir);
    if (im->adapter)
        return add_file(im, HL_LORA_FILE);
    im->torch = im->only != NULL && !has_ending(im->only, ".safetensors");
    if (im->only != NULL)
        return add_file(im, im->only);
    im->torch = !has_file(im, INDEX) && !has_file(im, SINGLE);
    const char *index = im->torch ? TORCH_INDEX : INDEX;
    const char *single = im->torch ? TORCH_SINGLE : SINGLE;
    if (has_file(im, index)) {
        HL_AUTO(hl_freep) char *path = join_path(im->dir, index);
        if (path == NULL)
            return hl_fail(HL_ENOMEM, "out of memory opening %s", im->dir);
        HL_TRY(open_index(im, path));
        return check_one_model(im, index, single);
    }
    if (has_file(im, single))
        return add_file(im, single);
    if (im->unsliced_because[0] != '\0')
        HL_TRY(open_every_file(im));
    return im->file_count > 0 ? HL_OK : fail_without_files(im);
}

HL_CHECK static hl_status collect_sources(struct hl_import *im)
{
    im->sources = calloc(im->source_count + 1, sizeof(*im->sources));
    im->where = calloc(im->source_count + 1, sizeof(*im->where));
    if (im->sources == NULL || im->where == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a table of %zu tensors",
                       im->source_count);
    size_t n = 0;
    for (size_t i = 0; i < im->file_count; i++) {
        const struct hl_safetensors *h = &im->files[i].header;
        for (size_t k = 0; k < h->count; k++, n++) {
            im->sources[n] = h->tensors[k];
            im->where[n] = (struct hl_import_where){
                .file = (uint32_t)i, .offset = h->data_offset + h->tensors[k].offset};
        }
    }
    return HL_OK;
}

HL_CHECK static hl_status write_headers(struct hl_import *im, const struct hl_import_options *o)
{
    const struct hl_partition_plan *plan = &im->plan;
    im->headers = calloc(plan->shard_count, sizeof(*im->headers));
    if (im->headers == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the headers of %zu shards",
                       plan->shard_count);
    for (size_t i = 0; i < plan->shard_count; i++) {
        const struct hl_partition_shard *s = &plan->shards[i];
        char version[24], pp[16], tp[16], ep[16];
        snprintf(version, sizeof(version), "%" PRId64, o->version);
        snprintf(pp, sizeof(pp), "%d", s->pp);
        snprintf(tp, sizeof(tp), "%d", s->tp);
        snprintf(ep, sizeof(ep), "%d", s->ep);
        const struct hl_safetensors_meta meta[] = {
            {"helios.model", o->model}, {"helios.version", version}, {"helios.pp", pp},
            {"helios.tp", tp},          {"helios.part", s->part},    {"helios.ep", ep}};
        HL_TRY(hl_safetensors_write(
            &(struct hl_safetensors_layout){.tensors = &im->plan.tensors[s->tensor_first],
                                            .count = s->tensor_count,
                                            .meta = meta,
                                            .meta_count =
                                                HL_ARRAY_LEN(meta) - !hl_part_has_experts(s->part),
                                            .crc_fields = true},
            &im->headers[i]));
        im->total_bytes += im->headers[i].size + im->headers[i].data_size;
    }
    return HL_OK;
}

/* A rank's experts are those of tp % etp. With more slices than tensor ranks nothing says which
 * rank has which slice. */
HL_CHECK static hl_status check_slices(const struct hl_partition_options *o)
{
    if (o->etp <= 0 || o->tp < 1 || o->tp % o->etp == 0)
        return HL_OK;
    return hl_fail(HL_EUNSUPPORTED, "etp %d does not divide tp %d; use a divisor of tp", o->etp,
                   o->tp);
}

HL_CHECK static hl_status open_adapter(struct hl_import *im, const struct hl_import_options *o,
                                       const char *path)
{
    HL_AUTO(hl_freep) char *text = NULL;
    size_t len;
    im->adapter = true;
    if (o->base == NULL || o->base[0] == '\0')
        return hl_fail(HL_EINVAL,
                       "%s is a LoRA adapter: give the imported model that it was trained for as "
                       "--base",
                       im->dir);
    HL_TRY(hl_marked_texts_read(&im->texts, path, HL_HF_CONFIG_MAX, &text, &len));
    HL_TRY(open_files(im));
    HL_TRY(collect_sources(im));
    hl_status st = hl_import_plan_adapter(im, o, text, len);
    return st == HL_OK ? write_headers(im, o) : hl_fail_prefix(st, "%s: ", im->dir);
}

/* Decides what the model is: one of a known family, or one that is stored unsliced because nothing
 * says how to slice it. A wrong config of a known family is an error: it doesn't make the model an
 * unknown one. */
HL_CHECK static hl_status read_config(struct hl_import *im, const char *path, bool unsliced)
{
    HL_AUTO(hl_freep) char *text = NULL;
    size_t len;
    hl_status st = hl_marked_texts_read(&im->texts, path, HL_HF_CONFIG_MAX, &text, &len);
    if (st == HL_ENOENT) {
        hl_error_clear();
        snprintf(im->unsliced_because, sizeof(im->unsliced_because), "there is no config.json");
        return HL_OK;
    }
    HL_TRY(st);
    json_error_t error;
    json_t *hf = hl_hf_json(text, len, &error);
    bool whole = unsliced && json_is_object(hf);
    if (whole)
        snprintf(im->unsliced_because, sizeof(im->unsliced_because),
                 "it was imported with --unsliced");
    if (whole ||
        hl_import_unsliced_because(hf, im->unsliced_because, sizeof(im->unsliced_because))) {
        im->config.hf = hf;
        return HL_OK;
    }
    json_decref(hf);
    return hl_hf_config_parse(text, len, path, &im->config);
}

/* ModelOpt describes its scales in a separate file, which is kept unchanged for an export. */
HL_CHECK static hl_status keep_quantization(struct hl_import *im)
{
    HL_AUTO(hl_freep) char *path = join_path(im->dir, HL_QUANTIZATION_CONFIG);
    HL_AUTO(hl_freep) char *text = NULL;
    HL_AUTO(hl_model_config_fini) struct hl_model_config c = {0};
    size_t len;
    json_error_t error;
    if (!has_file(im, HL_QUANTIZATION_CONFIG))
        return HL_OK;
    if (path == NULL)
        return hl_fail(HL_ENOMEM, "out of memory opening %s", im->dir);
    HL_TRY(hl_marked_texts_read(&im->texts, path, HL_HF_CONFIG_MAX, &text, &len));
    json_t *doc = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(doc)) {
        json_decref(doc);
        return hl_fail(HL_EINVAL, "%s:%d:%d: not a JSON object; correct it or remove it", path,
                       error.line, error.column);
    }
    hl_status st = hl_model_config_read(im->config_text, &c);
    c.quantization = doc;
    free(im->config_text);
    im->config_text = NULL;
    if (st == HL_OK)
        st = hl_model_config_write(&c, &im->config_text);
    json_decref(doc);
    return st;
}

static struct hl_api_text_list texts_of(const json_t *list, struct hl_arena *arena)
{
    struct hl_api_text_list out = {0};
    const json_t *text;
    size_t i;
    out.items = hl_arena_array(arena, json_array_size(list) + 1, sizeof(*out.items));
    if (out.items != NULL)
        json_array_foreach (list, i, text)
            out.items[out.count++] = json_string_value(text);
    return out;
}

/* Adds to the config where the model came from and what was left out. */
HL_CHECK static hl_status describe_megatron(struct hl_import *im,
                                            const struct hl_partition_options *o)
{
    HL_AUTO(hl_freep) char *text = NULL;
    HL_AUTO(hl_model_config_fini) struct hl_model_config c = {0};
    const struct hl_megatron_source *s = &im->source;
    HL_TRY(hl_partition_config(&s->whole.config, o, &im->plan, &text));
    HL_TRY(hl_model_config_read(text, &c));
    c.own.megatron = (struct hl_api_megatron_source){.format = s->dist ? "torch_dist" : "torch",
                                                     .iteration = s->iteration,
                                                     .left_out = texts_of(s->left_out, &c.arena)};
    if (json_object_size(s->meta) > 0)
        im->meta_text = json_dumps(s->meta, JSON_COMPACT);
    if (c.own.megatron.left_out.items == NULL ||
        (json_object_size(s->meta) > 0 && im->meta_text == NULL))
        return hl_fail(HL_ENOMEM, "out of memory describing the model");
    return hl_model_config_write(&c, &im->config_text);
}

HL_CHECK static hl_status open_megatron(struct hl_import *im, const struct hl_import_options *o)
{
    HL_TRY(check_slices(&o->partition));
    const struct hl_megatron_wanted wanted = {
        .iteration = o->iteration, .target = &o->partition, .optimizer = o->optimizer};
    HL_TRY(hl_megatron_source_open(im->dir, &wanted, &im->source));
    im->megatron = true;
    im->plan = im->source.target;
    im->source.target = (struct hl_partition_plan){0};
    HL_TRY(describe_megatron(im, &o->partition));
    im->state_first = im->plan.tensor_count;
    if (o->optimizer)
        HL_TRY(hl_megatron_add_state(&im->source, &im->plan));
    return write_headers(im, o);
}

HL_CHECK static hl_status plan_shards(struct hl_import *im, const struct hl_import_options *o)
{
    if (im->unsliced_because[0] != '\0')
        return hl_import_plan_unsliced(im, &o->partition);
    HL_TRY(check_slices(&o->partition));
    HL_TRY(hl_partition_plan(&im->config, im->sources, im->source_count, &o->partition, &im->plan));
    return hl_partition_config(&im->config, &o->partition, &im->plan, &im->config_text);
}

/* Accepts a directory, or one file in it. */
HL_CHECK static hl_status find_source(struct hl_import *im, const char *path)
{
    struct stat sb;
    im->dir = strdup(path);
    if (im->dir == NULL)
        return hl_fail(HL_ENOMEM, "out of memory opening %s", path);
    if (stat(path, &sb) != 0)
        return hl_fail(errno == ENOENT ? HL_ENOENT : HL_EIO, "open %s: %m", path);
    if (S_ISDIR(sb.st_mode))
        return access(path, R_OK | X_OK) == 0 ? HL_OK : hl_fail(HL_EIO, "open %s: %m", path);
    char *slash = strrchr(im->dir, '/');
    if (slash == NULL || (!has_ending(slash + 1, ".safetensors") && !has_ending(slash + 1, ".bin")))
        return hl_fail(HL_EINVAL,
                       "%s is neither a directory nor a file of tensors (.safetensors, .bin): give "
                       "the directory that config.json and the tensors are in",
                       path);
    *slash = '\0';
    im->only = slash + 1;
    return HL_OK;
}

/* Refuses options that only apply to a Megatron checkpoint. */
HL_CHECK static hl_status check_not_megatron(const struct hl_import_options *o)
{
    if (o->iteration != NULL && o->iteration[0] != '\0')
        return hl_fail(HL_EINVAL, "%s is not a Megatron checkpoint, but an iteration is given",
                       o->dir);
    if (o->optimizer)
        return hl_fail(HL_EINVAL,
                       "%s is not a Megatron checkpoint, so no optimizer state can be read from "
                       "it: import it without --optimizer",
                       o->dir);
    return HL_OK;
}

/* Refuses --unsliced for what is always stored as it is sliced. */
HL_CHECK static hl_status check_unsliced(const struct hl_import *im)
{
    const char *what = has_file(im, HL_LORA_CONFIG) ? "a LoRA adapter"
                       : im->only == NULL && hl_megatron_is_source(im->dir)
                           ? "a Megatron checkpoint"
                           : NULL;
    if (what == NULL)
        return HL_OK;
    return hl_fail(HL_EINVAL, "%s is %s, which is stored as it is sliced: leave --unsliced out",
                   im->dir, what);
}

HL_CHECK static hl_status open_into(struct hl_import *im, const struct hl_import_options *o)
{
    HL_TRY(find_source(im, o->dir));
    HL_AUTO(hl_freep) char *path = join_path(im->dir, "config.json");
    HL_AUTO(hl_freep) char *adapter = join_path(im->dir, HL_LORA_CONFIG);
    if (path == NULL || adapter == NULL)
        return hl_fail(HL_ENOMEM, "out of memory opening %s", o->dir);
    if (o->unsliced)
        HL_TRY(check_unsliced(im));
    if (has_file(im, HL_LORA_CONFIG)) {
        HL_TRY(check_not_megatron(o));
        return im->only == NULL
                   ? open_adapter(im, o, adapter)
                   : hl_fail(HL_EINVAL, "%s belongs to a LoRA adapter: give its directory", o->dir);
    }
    if (o->base != NULL && o->base[0] != '\0')
        return hl_fail(HL_EINVAL, "%s holds no " HL_LORA_CONFIG ", but a base is given", o->dir);
    if (im->only == NULL && hl_megatron_is_source(o->dir))
        return open_megatron(im, o);
    HL_TRY(check_not_megatron(o));
    HL_TRY(read_config(im, path, o->unsliced));
    HL_TRY(open_files(im));
    HL_TRY(collect_sources(im));
    hl_status st = plan_shards(im, o);
    if (st != HL_OK)
        return hl_fail_prefix(st, "%s: ", o->dir);
    HL_TRY(keep_quantization(im));
    return write_headers(im, o);
}

hl_status hl_import_open(const struct hl_import_options *options, struct hl_import **out)
{
    struct hl_import *im = calloc(1, sizeof(*im));
    if (im == NULL)
        return hl_fail(HL_ENOMEM, "out of memory opening %s", options->dir);
    hl_status st = open_into(im, options);
    if (st != HL_OK) {
        hl_import_close(im);
        return st;
    }
    *out = im;
    return HL_OK;
}

void hl_import_close(struct hl_import *im)
{
    if (im == NULL)
        return;
    for (size_t i = 0; im->headers != NULL && i < im->plan.shard_count; i++)
        hl_safetensors_image_fini(&im->headers[i]);
    free(im->headers);
    if (im->megatron)
        hl_megatron_source_close(&im->source);
    hl_partition_fini(&im->plan);
    hl_hf_config_fini(&im->config);
    hl_marked_texts_close(&im->texts);
    for (size_t i = 0; i < im->file_count; i++) {
        hl_safetensors_fini(&im->files[i].header);
        free(im->files[i].name);
        if (im->files[i].fd >= 0)
            close(im->files[i].fd);
    }
    free(im->files);
    free(im->sources);
    free(im->where);
    free(im->config_text);
    free(im->meta_text);
    free(im->dir);
    free(im);
}

uint64_t hl_import_total_bytes(const struct hl_import *im)
{
    return im->total_bytes;
}

size_t hl_import_shard_count(const struct hl_import *im)
{
    return im->plan.shard_count;
}

const char *hl_import_config(const struct hl_import *im)
{
    return im->config_text;
}

const char *hl_import_meta(const struct hl_import *im)
{
    return im->meta_text != NULL ? im->meta_text : "";
}

const struct hl_partition_plan *hl_import_plan(const struct hl_import *im)
{
    return &im->plan;
}

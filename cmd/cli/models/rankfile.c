#include "cli/models/rankfile.h"

#include <stdlib.h>
#include <string.h>

#include "core/model/model_config.h"
#include "core/model/view.h"
#include "core/torch/torchzip.h"

#define HEADER_GUESS ((uint64_t)64 << 10)

hl_status rankfile_header(helios_client *client, const helios_shard *shard,
                          struct hl_safetensors *out)
{
    uint64_t n = shard->size < HEADER_GUESS ? shard->size : HEADER_GUESS;
    HL_AUTO(hl_freep) unsigned char *bytes = malloc(n > 0 ? n : 1);
    uint64_t header;
    if (bytes == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a header");
    HL_TRY((hl_status)helios_get_range(client, shard->id, 0, bytes, n));
    hl_status st = hl_safetensors_header_len(bytes, n, shard->size, &header);
    if (st == HL_OK && 8 + header > n) {
        unsigned char *more = realloc(bytes, 8 + header);
        if (more == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating a header of %llu bytes",
                           (unsigned long long)header);
        bytes = more;
        HL_TRY((hl_status)helios_get_range(client, shard->id, n, bytes + n, 8 + header - n));
        n = 8 + header;
    }
    if (st == HL_OK)
        st = hl_safetensors_parse(bytes, n, shard->size, out);
    return st == HL_OK ? st : hl_fail_prefix(st, "part '%s': ", shard->part);
}

static bool is_optimizer(const helios_shard *s)
{
    return hl_part_of(s->part).kind == HL_PART_OPTIM;
}

int rankfile_shares(const struct rankfile *r)
{
    int shares = 1;
    for (size_t i = 0; i < r->list->count; i++) {
        struct hl_part part = hl_part_of(r->list->shards[i].part);
        if (part.dp_size > shares)
            shares = part.dp_size;
    }
    return shares;
}

static bool is_chosen(const struct rankfile *r, const helios_shard *s,
                      const struct rankfile_where *w)
{
    struct hl_part part = hl_part_of(s->part);
    switch (part.kind) {
    case HL_PART_OPTIM: /* without shares, every data-parallel rank has the same state */
        return w->kind != RANKFILE_MODEL && part.dp == (rankfile_shares(r) > 1 ? w->dp : 0);
    case HL_PART_EXTRA:
        return w->kind == RANKFILE_ALL;
    default:
        return w->kind != RANKFILE_OPTIM;
    }
}

/* Gets the header of part `i` as the position has it; `from` tells where its tensors are stored. */
static hl_status show_header(struct rankfile *r, size_t i, const struct rankfile_where *w,
                             const helios_shard_view *view)
{
    struct hl_safetensors *header = &r->headers[i];
    HL_TRY(hl_safetensors_check_origin(header, w->model, r->version, view->pp, view->tp, view->ep,
                                       r->parts[i].part));
    r->from[i] = calloc(header->count + 1, sizeof(*r->from[i]));
    HL_AUTO(hl_freep) struct hl_view_name *names = calloc(view->count + 1, sizeof(*names));
    if (r->from[i] == NULL || names == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %zu tensors", header->count);
    for (size_t k = 0; k < header->count; k++)
        r->from[i][k] = header->tensors[k].offset;
    for (size_t k = 0; k < view->count; k++)
        names[k] = (struct hl_view_name){view->names[k].stored, view->names[k].shown};
    if (view->renamed)
        HL_TRY(hl_view_header(header, names, view->count, r->from[i]));
    return r->own_names ? HL_OK : hl_naming_apply(header, r->naming);
}

const char *rankfile_naming(const struct rankfile *r)
{
    return r->own_names ? "its own" : hl_api_layer_naming_name(r->naming);
}

static hl_status read_headers(struct rankfile *r, const struct rankfile_where *w)
{
    r->parts = calloc(r->list->count + 1, sizeof(*r->parts));
    r->headers = calloc(r->list->count + 1, sizeof(*r->headers));
    r->from = calloc(r->list->count + 1, sizeof(*r->from));
    if (r->parts == NULL || r->headers == NULL || r->from == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %zu parts", r->list->count);
    for (size_t i = 0; i < r->list->count; i++) {
        if (!is_chosen(r, &r->list->shards[i], w))
            continue;
        r->parts[r->count] = r->list->shards[i];
        HL_TRY(rankfile_header(r->client, &r->parts[r->count], &r->headers[r->count]));
        r->count++; /* from here on rankfile_fini frees the header */
        hl_status st = show_header(r, r->count - 1, w, &r->list->views[i]);
        if (st != HL_OK)
            return hl_fail_prefix(st, "part '%s': ", r->parts[r->count - 1].part);
    }
    return HL_OK;
}

/* A requested share that does not exist must not look like a rank without state. */
static hl_status check_share(const struct rankfile *r, const struct rankfile_where *w)
{
    int shares = rankfile_shares(r);
    if (w->dp > 0 && shares == 1)
        return hl_fail(
            HL_EINVAL,
            "%s@%lld has no shares of data-parallel ranks here: all of them read the same "
            "bytes; leave --dp %d out",
            w->model, (long long)r->version, w->dp);
    if (w->kind == RANKFILE_MODEL || shares == 1)
        return HL_OK;
    for (size_t i = 0; i < r->count; i++)
        if (is_optimizer(&r->parts[i]))
            return HL_OK;
    return hl_fail(
        HL_ENOENT,
        "%s@%lld has no optimizer state of data-parallel rank %d at pp %d, tp %d: it was "
        "saved in %d shares",
        w->model, (long long)r->version, w->dp, w->pp, w->tp, shares);
}

/* Ranks save under either naming, so the model's own naming is the one that its import recorded. */
static hl_status choose_naming(struct rankfile *r, const char *wanted_naming)
{
    HL_AUTO(hl_model_config_fini) struct hl_model_config c = {0};
    HL_TRY(hl_model_config_read(r->list->config_json, &c));
    r->unsliced = c.own.unsliced;
    r->adapter = c.peft != NULL;
    r->own_names = c.own.unsliced || c.own.as_saved;
    if (r->own_names && strcmp(wanted_naming, "model") != 0)
        return hl_fail(HL_EUNSUPPORTED,
                       "the model is stored under its own names: leave --naming out");
    if (strcmp(wanted_naming, "model") != 0)
        return hl_api_layer_naming_parse(wanted_naming, &r->naming);
    r->naming = c.sizes.naming;
    return HL_OK;
}

hl_status rankfile_open(helios_client *client, const struct rankfile_where *w, struct rankfile *out)
{
    struct rankfile r = {.client = client};
    const helios_place place = {HELIOS_PLACE_INIT, .pp = w->pp, .tp = w->tp, .ep = w->ep};
    HL_TRY(
        (hl_status)helios_request_place(client, w->model, w->version, w->split, &place, &r.list));
    r.version = r.list->version;
    hl_status st = choose_naming(&r, w->naming);
    if (st == HL_OK)
        st = read_headers(&r, w);
    if (st == HL_OK)
        st = check_share(&r, w);
    if (st == HL_OK && r.count == 0)
        st = hl_fail(HL_ENOENT, "%s@%lld has no %s at pp %d, tp %d", w->model, (long long)r.version,
                     w->kind == RANKFILE_OPTIM ? "optimizer state" : "tensors", w->pp, w->tp);
    if (st != HL_OK) {
        rankfile_fini(&r);
        return st;
    }
    *out = r;
    return HL_OK;
}

/* Removes all tensors of the part except the embedding's, which gets its name in chunk `chunk`;
 * *found = false if the part has none. */
static hl_status keep_embedding(struct rankfile *r, size_t i, int chunk, bool *found)
{
    static const char words[] = "embedding.word_embeddings.weight";
    struct hl_safetensors *header = &r->headers[i];
    const struct hl_part part = hl_part_of(r->parts[i].part);
    size_t count = 0, n = strlen(words);
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_view_name *names = hl_arena_array(&arena, header->count + 1, sizeof(*names));
    for (size_t k = 0; names != NULL && k < header->count; k++) {
        const char *name = header->tensors[k].name, *prefix = "model0.";
        size_t len = strlen(name);
        if (strcmp(part.of, "embedding") != 0 || len < n || strcmp(name + len - n, words) != 0)
            continue;
        /* "exp_avg.model0.embedding...": the part before the chunk is kept. */
        size_t before = len - n;
        if (chunk >= 0 && before >= strlen(prefix))
            before -= strlen(prefix);
        names[count].stored = name;
        names[count++].shown =
            chunk < 0 ? name
                      : hl_arena_printf(&arena, "%.*smodel%d.%s", (int)before, name, chunk, words);
    }
    if (hl_arena_failed(&arena))
        return hl_fail(HL_ENOMEM, "out of memory allocating %zu tensors", header->count);
    *found = count > 0;
    return count > 0 ? hl_view_header(header, names, count, r->from[i]) : HL_OK;
}

static hl_status grow_parts(struct rankfile *r, size_t more)
{
    size_t n = r->count + more + 1;
    helios_shard *parts = realloc(r->parts, n * sizeof(*parts));
    r->parts = parts != NULL ? parts : r->parts;
    struct hl_safetensors *headers = realloc(r->headers, n * sizeof(*headers));
    r->headers = headers != NULL ? headers : r->headers;
    uint64_t **from = realloc(r->from, n * sizeof(*from));
    r->from = from != NULL ? from : r->from;
    return parts != NULL && headers != NULL && from != NULL
               ? HL_OK
               : hl_fail(HL_ENOMEM, "out of memory allocating %zu parts", n);
}

hl_status rankfile_add_embedding(struct rankfile *r, const struct rankfile_where *where, int chunk)
{
    struct rankfile first;
    struct rankfile_where at = *where;
    size_t added = 0;
    at.pp = 0;
    at.version = r->version;
    HL_TRY(rankfile_open(r->client, &at, &first));
    hl_status st = grow_parts(r, first.count);
    for (size_t i = 0; i < first.count && st == HL_OK; i++) {
        bool found = false;
        st = keep_embedding(&first, i, chunk, &found);
        if (st != HL_OK || !found)
            continue;
        r->parts[r->count] = first.parts[i];
        r->headers[r->count] = first.headers[i];
        r->from[r->count++] = first.from[i];
        first.headers[i] = (struct hl_safetensors){0};
        first.from[i] = NULL;
        added++;
    }
    r->first = first.list; /* the parts borrow from it */
    first.list = NULL;
    rankfile_fini(&first);
    if (st == HL_OK && added == 0)
        st = hl_fail(HL_ENOENT, "%s@%lld has no embedding at pp 0, tp %d", where->model,
                     (long long)r->version, where->tp);
    return st;
}

void rankfile_fini(struct rankfile *r)
{
    for (size_t i = 0; i < r->count; i++) {
        hl_safetensors_fini(&r->headers[i]);
        free(r->from[i]);
    }
    free(r->from);
    free(r->headers);
    free(r->parts);
    helios_shard_list_free(r->list);
    helios_shard_list_free(r->first);
    *r = (struct rankfile){0};
}

enum hl_dtype rankfile_dtype(const struct rankfile *r)
{
    for (size_t i = 0; i < r->count; i++)
        for (size_t k = 0; k < r->headers[i].count && !is_optimizer(&r->parts[i]); k++)
            if (r->headers[i].tensors[k].rank == 2)
                return r->headers[i].tensors[k].dtype;
    return HL_DTYPE_F32;
}

bool rankfile_has(const struct rankfile *r, enum hl_part_kind kind)
{
    for (size_t i = 0; i < r->list->count; i++)
        if (hl_part_of(r->list->shards[i].part).kind == kind)
            return true;
    return false;
}

uint64_t rankfile_bytes(const struct rankfile *r)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < r->count; i++)
        for (size_t k = 0; k < r->headers[i].count; k++)
            bytes += r->headers[i].tensors[k].size;
    return bytes;
}

static hl_status write_data(struct rankfile *r, size_t part, struct outfile *to)
{
    const void *data;
    size_t size;
    HL_TRY((hl_status)helios_map(r->client, r->parts[part].id, &data, &size));
    const struct hl_safetensors *header = &r->headers[part];
    hl_status st = HL_OK;
    for (size_t i = 0; i < header->count && st == HL_OK; i++) {
        uint64_t at = header->data_offset + r->from[part][i], n = header->tensors[i].size;
        st = at <= size && n <= size - at
                 ? outfile_write(to, (const char *)data + at, n)
                 : hl_fail(HL_ECORRUPT, "part '%s' ends before its tensor '%s'",
                           r->parts[part].part, header->tensors[i].name);
    }
    (void)helios_unmap(r->client, data);
    return st;
}

static hl_status merge_headers(const struct rankfile *r, struct hl_safetensors_image *image,
                               uint64_t *offsets)
{
    HL_AUTO(hl_freep)
    const struct hl_safetensors **headers = calloc(r->count, sizeof(*headers));
    if (headers == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %zu parts", r->count);
    for (size_t i = 0; i < r->count; i++)
        headers[i] = &r->headers[i];
    return hl_safetensors_merge(headers, r->count, image, offsets);
}

hl_status rankfile_write_safetensors(struct rankfile *r, struct outfile *to)
{
    struct hl_safetensors_image image = {0};
    HL_AUTO(hl_freep) uint64_t *offsets = calloc(r->count, sizeof(*offsets));
    if (offsets == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %zu parts", r->count);
    HL_TRY(merge_headers(r, &image, offsets));
    hl_status st = outfile_write(to, image.bytes, image.size);
    for (size_t i = 0; i < r->count && st == HL_OK; i++) {
        if (to->written != offsets[i])
            st = hl_fail(HL_EINTERNAL, "part '%s' would be written at %llu instead of %llu",
                         r->parts[i].part, (unsigned long long)to->written,
                         (unsigned long long)offsets[i]);
        else
            st = write_data(r, i, to);
    }
    hl_safetensors_image_fini(&image);
    return st;
}

/* The source of tensor i of the torch file. */
struct torch_source {
    size_t part;
    uint64_t offset; /* in the shard */
};

struct torch_plan {
    struct hl_torchzip_tensor *tensors;
    struct torch_source *sources;
    size_t count;
    struct hl_torchzip zip;
};

static void torch_plan_fini(struct torch_plan *p)
{
    hl_torchzip_fini(&p->zip);
    free(p->tensors);
    free(p->sources);
}

static hl_status plan_torch(const struct rankfile *r, const struct hl_torchzip_options *options,
                            struct torch_plan *p)
{
    size_t total = 0;
    for (size_t i = 0; i < r->count; i++)
        total += r->headers[i].count;
    p->tensors = calloc(total + 1, sizeof(*p->tensors));
    p->sources = calloc(total + 1, sizeof(*p->sources));
    if (p->tensors == NULL || p->sources == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %zu tensors", total);
    for (size_t i = 0; i < r->count; i++)
        for (size_t k = 0; k < r->headers[i].count; k++) {
            const struct hl_tensor *t = &r->headers[i].tensors[k];
            p->tensors[p->count].tensor = t;
            p->tensors[p->count].optimizer = is_optimizer(&r->parts[i]);
            HL_TRY(hl_safetensors_crc(&r->headers[i], t->name, &p->tensors[p->count].crc32));
            p->sources[p->count] = (struct torch_source){
                .part = i, .offset = r->headers[i].data_offset + r->from[i][k]};
            p->count++;
        }
    return hl_torchzip_plan(p->tensors, p->count, options, &p->zip);
}

/* The file is planned first: a zip stores the checksums before the bytes, and the tensors'
 * checksums are in the shards' headers. So it is written in one pass, and no byte is read only for
 * a checksum. Segments follow the tensors' order, so each part is mapped once. */
static hl_status write_segments(struct rankfile *r, const struct torch_plan *p, struct outfile *to)
{
    const char *data = NULL;
    size_t part = 0;
    hl_status st = HL_OK;
    for (size_t i = 0; i < p->zip.count && st == HL_OK; i++) {
        const struct hl_torchzip_segment *s = &p->zip.segments[i];
        if (s->tensor < 0) {
            st = outfile_write(to, p->zip.bytes.data + s->from, s->size);
            continue;
        }
        const struct torch_source *from = &p->sources[s->tensor];
        if (data != NULL && from->part != part) {
            (void)helios_unmap(r->client, data);
            data = NULL;
        }
        if (data == NULL) {
            const void *view;
            part = from->part;
            st = (hl_status)helios_map(r->client, r->parts[part].id, &view, NULL);
            data = st == HL_OK ? view : NULL;
        }
        if (st == HL_OK)
            st = outfile_write(to, data + from->offset, s->size);
    }
    if (data != NULL)
        (void)helios_unmap(r->client, data);
    return st;
}

hl_status rankfile_write_torch(struct rankfile *r, int64_t iteration, const json_t *args,
                               struct outfile *to)
{
    struct torch_plan p = {0};
    struct hl_torchzip_options options = {.iteration = iteration, .args = args};
    hl_status st = plan_torch(r, &options, &p);
    if (st == HL_OK)
        st = write_segments(r, &p, to);
    torch_plan_fini(&p);
    return st;
}

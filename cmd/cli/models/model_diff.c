/* model diff: compares two versions, logical tensor by logical tensor. A tensor that both versions
 * build from the same boxes, with the same checksums, is equal. Of the other tensors, windows of
 * both are compared, without those that checksums decide. */
#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/models/commands.h"
#include "cli/models/logical.h"
#include "cli/models/rankfile.h"
#include "core/model/split.h"
#include "core/reshard/elements.h"
#include "mem/reshard_window.h"

#define WINDOW     ((uint64_t)4 << 20) /* a multiple of every dtype's size */
#define SHAPE_TEXT 192

struct diff_args {
    char *tensor;
    bool quiet, q, all;
    int64_t max;
    uint64_t timeout_ms;
};

#define AT(field) HL_OPTION_FIELD(struct diff_args, field)

static const struct hl_option diff_rows[] = {
    {"tensor", "--tensor", "", "Only tensors whose name matches this shell pattern.", HL_OPT_STRING,
     1, 0, NULL, AT(tensor)},
    {"all", "--all", "false", "Compare optimizer state and blobs of modules too.", HL_OPT_BOOL, 0,
     0, NULL, AT(all)},
    {"quiet", "--quiet", "false", "Print nothing, and stop at the first difference.", HL_OPT_BOOL,
     0, 0, NULL, AT(quiet)},
    {"q", "-q", "false", "The same as --quiet.", HL_OPT_BOOL, 0, 0, NULL, AT(q)},
    {"max", "--max", "0", "Show at most this many differing tensors; 0: all.", HL_OPT_INT, 0,
     INT32_MAX, NULL, AT(max)},
    {"timeout", "--timeout", "30s", "Deadline of one read.", HL_OPT_DURATION, 1, 86400000, NULL,
     AT(timeout_ms)},
};

struct side {
    char model[STORED_MODEL_MAX + 1];
    char text[STORED_MODEL_MAX + 32]; /* "m@3" */
    struct logical_version version;
    unsigned char *window;
};

struct diffing {
    struct cli *cli;
    const struct diff_args *args;
    struct hl_arena arena;
    struct side a, b;
    const struct logical_tensor **b_by_name;
    unsigned char *met; /* one per tensor of b_by_name: A has it too */
    struct hl_api_model_diff found;
    size_t items_cap;
    struct cli_progress bar;
    uint64_t done, total;
};

/* ---- what is found --------------------------------------------------------------------------- */

static const char *form_text(const struct hl_api_tensor_form *f, char buf[SHAPE_TEXT])
{
    int n = snprintf(buf, SHAPE_TEXT, "%s [", f->dtype);
    for (size_t i = 0; i < f->shape.count && n < SHAPE_TEXT; i++)
        n += snprintf(buf + n, SHAPE_TEXT - (size_t)n, "%s%" PRIu64, i > 0 ? "," : "",
                      f->shape.items[i]);
    if (n < SHAPE_TEXT)
        snprintf(buf + n, SHAPE_TEXT - (size_t)n, "]");
    return buf;
}

static void print_elements(const struct hl_api_tensor_difference *t)
{
    cli_print(stdout, "%s: %" PRIu64 " of %" PRIu64 " elements differ, the first is [", t->name,
              t->differing, t->elements);
    for (size_t i = 0; i < t->first.count; i++)
        printf("%s%" PRIu64, i > 0 ? "," : "", t->first.items[i]);
    printf("]");
    enum hl_dtype dtype;
    if (hl_dtype_parse(t->a.dtype, &dtype) == HL_OK && hl_dtype_is_float(dtype) &&
        t->not_finite < t->differing)
        printf("; max |a-b| %.9g", t->largest);
    if (t->not_finite > 0)
        printf("; %" PRIu64 " with NaN or infinity", t->not_finite);
    puts("");
}

static void print_item(const struct diffing *d, const struct hl_api_tensor_difference *t)
{
    char a[SHAPE_TEXT], b[SHAPE_TEXT];
    if (t->b.dtype == NULL)
        cli_print(stdout, "%s: only in %s, %s\n", t->name, d->a.text, form_text(&t->a, a));
    else if (t->a.dtype == NULL)
        cli_print(stdout, "%s: only in %s, %s\n", t->name, d->b.text, form_text(&t->b, b));
    else if (t->differing == 0)
        cli_print(stdout, "%s: %s in %s, %s in %s\n", t->name, form_text(&t->a, a), d->a.text,
                  form_text(&t->b, b), d->b.text);
    else
        print_elements(t);
}

HL_CHECK static hl_status note_item(struct diffing *d, const struct hl_api_tensor_difference *t)
{
    struct hl_api_tensor_difference_list *items = &d->found.items;
    d->found.differing++;
    if (d->args->quiet || (d->args->max > 0 && items->count >= (uint64_t)d->args->max))
        return HL_OK;
    if (items->count == d->items_cap) {
        size_t cap = d->items_cap > 0 ? 2 * d->items_cap : 64;
        struct hl_api_tensor_difference *more = hl_arena_array(&d->arena, cap, sizeof(*more));
        if (more == NULL)
            return hl_fail(HL_ENOMEM, "out of memory for %zu differences", cap);
        if (items->count > 0)
            memcpy(more, items->items, items->count * sizeof(*more));
        items->items = more;
        d->items_cap = cap;
    }
    items->items[items->count++] = *t;
    cli_progress_end(&d->bar);
    if (!d->cli->json)
        print_item(d, t);
    return HL_OK;
}

static struct hl_api_tensor_form form_of(struct diffing *d, const struct hl_tensor *t)
{
    struct hl_api_tensor_form f = {.dtype = hl_dtype_name(t->dtype)};
    f.shape.items = hl_arena_array(&d->arena, t->rank + 1, sizeof(*f.shape.items));
    for (uint32_t i = 0; f.shape.items != NULL && i < t->rank; i++)
        f.shape.items[f.shape.count++] = t->shape[i];
    return f;
}

HL_CHECK static hl_status note_form(struct diffing *d, const struct logical_tensor *a,
                                    const struct logical_tensor *b)
{
    struct hl_api_tensor_difference t = {.name = a != NULL ? a->name : b->name};
    if (a != NULL)
        t.a = form_of(d, a->t);
    if (b != NULL)
        t.b = form_of(d, b->t);
    return note_item(d, &t);
}

HL_CHECK static hl_status note_elements(struct diffing *d, const struct logical_tensor *a,
                                        const struct hl_elements_diff *diff)
{
    struct hl_api_tensor_difference t = {.name = a->name,
                                         .a = form_of(d, a->t),
                                         .b = form_of(d, a->t),
                                         .elements = a->t->size / hl_dtype_size(a->t->dtype),
                                         .differing = diff->differing,
                                         .largest = diff->largest,
                                         .not_finite = diff->not_finite};
    uint64_t at = diff->first;
    t.first.items = hl_arena_array(&d->arena, a->t->rank + 1, sizeof(*t.first.items));
    if (t.first.items == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for what was found");
    t.first.count = a->t->rank;
    for (uint32_t k = a->t->rank; k-- > 0; at /= a->t->shape[k])
        t.first.items[k] = at % a->t->shape[k];
    return note_item(d, &t);
}

/* ---- one tensor ------------------------------------------------------------------------------ */

static bool same_form(const struct hl_tensor *a, const struct hl_tensor *b)
{
    return a->dtype == b->dtype && a->rank == b->rank &&
           memcmp(a->shape, b->shape, a->rank * sizeof(*a->shape)) == 0;
}

/* Whether both operations write the same bytes of the tensor from the same box of their sources. */
static bool same_box(const struct hl_reshard_op *x, const struct hl_reshard_op *y)
{
    return x->kind == y->kind && x->elem == y->elem && x->src == y->src && x->dst == y->dst &&
           x->src_stride == y->src_stride && x->dst_stride == y->dst_stride && x->rows == y->rows &&
           x->cols == y->cols && x->run == y->run;
}

/* Whether nothing differs in operation `op`, by the checksums of what it reads in both versions. */
static bool op_decided(const struct logical_tensor *a, const struct logical_tensor *b, uint32_t op)
{
    if (a->op_count != b->op_count || !same_box(&a->ops[op], &b->ops[op]))
        return false;
    if (a->ops[op].kind == HL_RESHARD_ZERO)
        return true;
    const struct logical_source *x = &a->sources[a->ops[op].tensor];
    const struct logical_source *y = &b->sources[b->ops[op].tensor];
    return x->has_crc && y->has_crc && x->crc32 == y->crc32 && same_form(x->t, y->t);
}

/* The same for all operations that write into bytes [begin, end). */
static bool window_decided(const struct logical_tensor *a, const struct logical_tensor *b,
                           uint64_t begin, uint64_t end)
{
    if (a->op_count != b->op_count)
        return false;
    for (uint32_t i = 0; i < a->op_count && a->ops[i].dst < end; i++)
        if (hl_reshard_op_end(&a->ops[i]) > begin && !op_decided(a, b, i))
            return false;
    return true;
}

HL_CHECK static hl_status read_windows(struct diffing *d, const struct logical_tensor *a,
                                       const struct logical_tensor *b,
                                       struct hl_elements_diff *diff, uint64_t *bytes)
{
    uint32_t size = hl_dtype_size(a->t->dtype);
    for (uint64_t at = 0, end; at < a->t->size; at = end) {
        end = a->t->size - at < WINDOW ? a->t->size : at + WINDOW;
        if (!window_decided(a, b, at, end)) {
            HL_TRY(logical_read(&d->a.version, a, at, end, d->a.window));
            HL_TRY(logical_read(&d->b.version, b, at, end, d->b.window));
            *bytes += 2 * (end - at);
            hl_elements_compare(a->t->dtype, d->a.window, d->b.window, at / size, (end - at) / size,
                                diff);
        }
        d->done += end - at;
        cli_progress_update(&d->bar, d->done, d->total);
        if (d->args->quiet && diff->differing > 0)
            return HL_OK;
    }
    return HL_OK;
}

HL_CHECK static hl_status compare_tensor(struct diffing *d, const struct logical_tensor *a,
                                         const struct logical_tensor *b)
{
    struct hl_elements_diff diff = {0};
    uint64_t bytes = 0;
    d->found.tensors++;
    if (!same_form(a->t, b->t))
        return note_form(d, a, b);
    hl_status st = read_windows(d, a, b, &diff, &bytes);
    if (st != HL_OK)
        return hl_fail_prefix(st, "tensor '%s': ", a->name);
    d->found.bytes_read += bytes;
    d->found.by_checksum += bytes == 0;
    return diff.differing > 0 ? note_elements(d, a, &diff) : HL_OK;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static int name_order(const void *x, const void *y)
{
    const struct logical_tensor *const *a = x, *const *b = y;
    return strcmp((*a)->name, (*b)->name);
}

static int compare_name(const void *name, const void *member)
{
    const struct logical_tensor *const *t = member;
    return strcmp(name, (*t)->name);
}

HL_CHECK static hl_status sort_b(struct diffing *d)
{
    const struct logical_version *b = &d->b.version;
    d->b_by_name = hl_arena_array(&d->arena, b->count + 1, sizeof(*d->b_by_name));
    d->met = hl_arena_array(&d->arena, b->count + 1, 1);
    if (d->b_by_name == NULL || d->met == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu tensors", b->count);
    memset(d->met, 0, b->count + 1);
    for (size_t i = 0; i < b->count; i++)
        d->b_by_name[i] = &b->tensors[i];
    qsort(d->b_by_name, b->count, sizeof(*d->b_by_name), name_order);
    return HL_OK;
}

static bool is_chosen(const struct diffing *d, const struct logical_tensor *t)
{
    return d->args->tensor[0] == '\0' || fnmatch(d->args->tensor, t->name, 0) == 0;
}

static bool is_enough(const struct diffing *d)
{
    return d->args->quiet && d->found.differing > 0;
}

/* In A's order, which goes part by part: shards are unmapped after their part. */
HL_CHECK static hl_status compare_all(struct diffing *d)
{
    const struct logical_version *a = &d->a.version, *b = &d->b.version;
    for (size_t i = 0; i < a->count; i++)
        d->total += is_chosen(d, &a->tensors[i]) ? a->tensors[i].t->size : 0;
    for (size_t i = 0; i < a->count && !is_enough(d); i++) {
        const struct logical_tensor *t = &a->tensors[i];
        if (i > 0 && t->part != a->tensors[i - 1].part) {
            logical_unmap(&d->a.version);
            logical_unmap(&d->b.version);
        }
        if (!is_chosen(d, t))
            continue;
        const struct logical_tensor *const *other =
            bsearch(t->name, d->b_by_name, b->count, sizeof(*d->b_by_name), compare_name);
        if (other == NULL) {
            d->found.tensors++;
            HL_TRY(note_form(d, t, NULL));
            continue;
        }
        d->met[other - d->b_by_name] = 1;
        HL_TRY(compare_tensor(d, t, *other));
    }
    for (size_t i = 0; i < b->count && !is_enough(d); i++)
        if (!d->met[i] && is_chosen(d, d->b_by_name[i])) {
            d->found.tensors++;
            HL_TRY(note_form(d, NULL, d->b_by_name[i]));
        }
    return HL_OK;
}

/* ---- the two versions ------------------------------------------------------------------------ */

HL_CHECK static hl_status open_side(struct diffing *d, struct side *s, helios_client *client,
                                    int64_t version)
{
    s->window = malloc(WINDOW);
    if (s->window == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a window of tensors");
    HL_TRY(logical_open(&s->version, d->cli, client, s->model, version, &d->arena));
    snprintf(s->text, sizeof(s->text), "%s@%" PRId64, s->model, s->version.stored.version);
    return HL_OK;
}

/* Whether places mean the same in both: every rank has the same boxes. */
static bool same_places(const struct diffing *d)
{
    return hl_split_equal(&d->a.version.stored.split, &d->b.version.stored.split);
}

HL_CHECK static hl_status plan_by_place(struct diffing *d, const struct side *s)
{
    char a[HL_SPLIT_TEXT_MAX], b[HL_SPLIT_TEXT_MAX];
    const char *why = hl_arena_printf(&d->arena, "%s: %s", s->text, hl_error_text());
    hl_error_clear();
    if (!same_places(d))
        return hl_fail(HL_EUNSUPPORTED,
                       "%s is stored as %s and %s as %s, and the global form of their tensors is "
                       "not known (%s): compare versions with the same split",
                       d->a.text, hl_split_text(&d->a.version.stored.split, a), d->b.text,
                       hl_split_text(&d->b.version.stored.split, b), why);
    logical_forget(&d->a.version);
    logical_forget(&d->b.version);
    d->found.by_place = why;
    return HL_OK;
}

static void note_left(struct diffing *d, const char *text)
{
    struct hl_api_text_list *list = &d->found.not_compared;
    if (list->items == NULL)
        list->items = hl_arena_array(&d->arena, 4, sizeof(*list->items));
    if (list->items != NULL && text != NULL)
        list->items[list->count++] = text;
}

static uint64_t count_rest(const struct diffing *d, bool all)
{
    return logical_count_rest(&d->a.version, all) + logical_count_rest(&d->b.version, all);
}

/* Compares by global names first; tensors without one are compared by their place, if places are
 * the same. */
HL_CHECK static hl_status plan_both(struct diffing *d)
{
    bool all = d->args->all;
    if (logical_plan(&d->a.version, all) != HL_OK)
        HL_TRY(plan_by_place(d, &d->a));
    else if (logical_plan(&d->b.version, all) != HL_OK)
        HL_TRY(plan_by_place(d, &d->b));
    if (same_places(d)) {
        HL_TRY(logical_add_rest(&d->a.version, all));
        HL_TRY(logical_add_rest(&d->b.version, all));
    }
    uint64_t open = count_rest(d, all), others = count_rest(d, true) - open;
    if (open > 0)
        note_left(d, hl_arena_printf(&d->arena,
                                     "%" PRIu64 " stored tensors without a global name, as the "
                                     "versions have different splits",
                                     open));
    d->cli->undecided = open > 0;
    if (others > 0)
        note_left(d, hl_arena_printf(&d->arena,
                                     "%" PRIu64 " stored tensors of optimizer state and modules "
                                     "(--all compares them)",
                                     others));
    return sort_b(d);
}

/* ---- what is said ---------------------------------------------------------------------------- */

static void print_summary(const struct diffing *d)
{
    const struct hl_api_model_diff *f = &d->found;
    char size[32];
    if (f->differing > f->items.count)
        printf("... and %" PRIu64 " more\n", f->differing - f->items.count);
    if (f->by_place != NULL)
        cli_print(stdout, "compared as they are stored, rank by rank: %s\n", f->by_place);
    for (size_t i = 0; i < f->not_compared.count; i++)
        cli_print(stdout, "not compared: %s\n", f->not_compared.items[i]);
    cli_print(stdout, "%s and %s ", d->a.text, d->b.text);
    if (f->equal)
        printf("are equal: %" PRIu64 " tensor%s", f->tensors, f->tensors == 1 ? "" : "s");
    else
        printf("differ in %" PRIu64 " of %" PRIu64 " tensors", f->differing, f->tensors);
    printf("; %" PRIu64 " compared by checksum, %s read\n", f->by_checksum,
           hl_format_bytes(f->bytes_read, size, sizeof(size)));
}

static struct hl_api_diffed_version version_of(const struct side *s)
{
    return (struct hl_api_diffed_version){
        .model = s->model, .version = s->version.stored.version, .split = s->version.stored.split};
}

HL_CHECK static hl_status say_found(struct diffing *d)
{
    d->found.a = version_of(&d->a);
    d->found.b = version_of(&d->b);
    d->found.equal = d->found.differing == 0;
    if (hl_arena_failed(&d->arena))
        return hl_fail(HL_ENOMEM, "out of memory for what was found");
    if (d->args->tensor[0] != '\0' && d->found.tensors == 0)
        return hl_fail(HL_ENOENT, "no tensor of %s or %s has a name that matches '%s'", d->a.text,
                       d->b.text, d->args->tensor);
    if (d->args->quiet)
        return HL_OK;
    if (d->cli->json)
        return cli_print_value(&hl_api_model_diff_type, &d->found);
    print_summary(d);
    return HL_OK;
}

HL_CHECK static hl_status diff_versions(struct diffing *d, helios_client *client, int64_t a,
                                        int64_t b)
{
    HL_TRY(open_side(d, &d->a, client, a));
    HL_TRY(open_side(d, &d->b, client, b));
    HL_TRY(plan_both(d));
    cli_progress_start(&d->bar, "comparing");
    hl_status st = compare_all(d);
    cli_progress_end(&d->bar);
    HL_TRY(st);
    HL_TRY(say_found(d));
    if (d->cli->undecided)
        return hl_fail(HL_EUNSUPPORTED, "not all of %s and %s was compared: %s", d->a.text,
                       d->b.text, d->found.not_compared.items[0]);
    return HL_OK;
}

static void side_fini(struct side *s)
{
    logical_close(&s->version);
    free(s->window);
}

HL_CHECK static hl_status diff_models(struct cli *cli, struct diff_args *args, char **argv,
                                      bool *differ)
{
    struct diffing d = {.cli = cli, .args = args};
    helios_client *client;
    int64_t a, b;
    args->quiet |= args->q;
    HL_TRY(cli_split_model(cli, argv[0], d.a.model, sizeof(d.a.model), &a));
    HL_TRY(cli_split_model(cli, argv[1], d.b.model, sizeof(d.b.model), &b));
    HL_TRY(cli_client(cli, "auto", (int)args->timeout_ms, &client));
    hl_status st = diff_versions(&d, client, a, b);
    *differ = d.found.differing > 0;
    side_fini(&d.a);
    side_fini(&d.b);
    helios_close(client);
    hl_arena_fini(&d.arena);
    return st;
}

/* As diff(1): 1 means "they differ", with nothing on stderr. */
hl_status cmd_model_diff(struct cli *cli, int argc, char **argv)
{
    struct diff_args args = {0};
    bool differ = false;
    HL_TRY(cli_args(cli, diff_rows, HL_ARRAY_LEN(diff_rows), argc, argv, &args, 2, 2));
    hl_status st = diff_models(cli, &args, argv, &differ);
    hl_args_fini(diff_rows, HL_ARRAY_LEN(diff_rows), &args);
    cli->undecided = st != HL_OK;
    if (st != HL_OK || !differ)
        return st;
    hl_error_clear();
    return HL_ECONFLICT;
}

/* Names are rewritten component by component: text before them ("exp_avg.") and after them
 * (":bytes") is kept. */
#include "core/model/view.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/model/layout.h"
#include "core/model/part.h"
#include "core/model/split.h"

/* The position of a part in the wanted split. */
struct seat {
    int pp;
    int chunk;      /* virtual stage within the stage, from 0 */
    uint64_t local; /* number of the layer within the chunk */
    bool is_layer;
};

static int chunks_of(const struct hl_partition_options *o)
{
    return o->virtual_stages > 1 ? o->virtual_stages : 1;
}

/* The N of "layer-N" where `kind` is "layer-". */
static bool part_number(const char *part, const char *kind, uint64_t *out)
{
    size_t n = strlen(kind);
    char *end;
    if (strncmp(part, kind, n) != 0)
        return false;
    *out = strtoull(part + n, &end, 10);
    return part[n] >= '0' && part[n] <= '9' && *end == '\0';
}

static hl_status find_layer(const struct hl_view_want *w, uint64_t layer, struct seat *out)
{
    for (int pp = 0; pp < w->split->pp; pp++) {
        for (int chunk = 0; chunk < chunks_of(w->split); chunk++) {
            uint64_t first, count;
            hl_partition_stage(w->split, w->layers, pp, chunk, &first, &count);
            if (layer < first || layer - first >= count)
                continue;
            *out =
                (struct seat){.pp = pp, .chunk = chunk, .local = layer - first, .is_layer = true};
            return HL_OK;
        }
    }
    return hl_fail(HL_EINVAL, "layer %" PRIu64 " is stored, but the model has %" PRIu64 " layers",
                   layer, w->layers);
}

static hl_status seat_of(const struct hl_view_want *w, const struct hl_stored_part *s,
                         struct seat *out)
{
    const char *of = hl_part_of(s->part).of;
    uint64_t layer;
    bool experts = part_number(of, "experts-", &layer);
    if ((experts && layer < w->layers) || part_number(of, "layer-", &layer))
        return find_layer(w, layer, out);
    if (strcmp(of, "embedding") == 0 || strcmp(of, "vision") == 0)
        *out = (struct seat){0};
    else if (experts || strcmp(of, "head") == 0 || part_number(of, "mtp-", &layer))
        *out = (struct seat){.pp = w->split->pp - 1, .chunk = chunks_of(w->split) - 1};
    else
        return hl_fail(
            HL_EUNSUPPORTED,
            "part '%s' is not one of the model's, so nothing says which of %d stages has "
            "it; read it with the stages it was saved with",
            s->part, w->split->pp);
    return HL_OK;
}

/* ---- names ----------------------------------------------------------------------------------- */

/* Length of the decimal number at `s`. */
static size_t count_digits(const char *s)
{
    return strspn(s, "0123456789");
}

/* Length of a chunk's prefix "model12." at `s`; 0 = none. */
static size_t chunk_prefix(const char *s)
{
    if (strncmp(s, "model", 5) != 0)
        return 0;
    size_t n = count_digits(s + 5);
    return n > 0 && s[5 + n] == '.' ? 5 + n + 1 : 0;
}

/* The start of the model's own name after a state's prefix ("exp_avg."); NULL = the name is not one
 * of Megatron's. */
static const char *model_name(const char *name)
{
    static const char *const roots[] = {
        "decoder.",      "embedding.",    "output_layer.",          "mtp.",
        "vision_tower.", "vision_model.", "multi_modal_projector.",
    };
    for (const char *at = name; at != NULL;) {
        const char *root = at + chunk_prefix(at);
        for (size_t i = 0; i < HL_ARRAY_LEN(roots); i++)
            if (strncmp(root, roots[i], strlen(roots[i])) == 0)
                return at;
        at = strchr(at, '.');
        at = at != NULL ? at + 1 : NULL;
    }
    return NULL;
}

/* The name under the wanted split; NULL = the arena is out of memory. */
static const char *shown_name(const char *stored, const struct seat *seat, int chunks,
                              struct hl_arena *arena)
{
    static const char layers[] = "decoder.layers.";
    const char *at = model_name(stored);
    char prefix[24] = "";
    if (at == NULL)
        return hl_arena_strdup(arena, stored);
    const char *rest = at + chunk_prefix(at);
    if (chunks > 1)
        snprintf(prefix, sizeof(prefix), "model%d.", seat->chunk);
    if (!seat->is_layer || strncmp(rest, layers, sizeof(layers) - 1) != 0)
        return hl_arena_printf(arena, "%.*s%s%s", (int)(at - stored), stored, prefix, rest);
    const char *number = rest + sizeof(layers) - 1;
    return hl_arena_printf(arena, "%.*s%s%s%" PRIu64 "%s", (int)(at - stored), stored, prefix,
                           layers, seat->local, number + count_digits(number));
}

const char *hl_view_whole_name(const char *part, const char *stored, struct hl_arena *arena)
{
    struct seat seat = {0};
    seat.is_layer = part_number(part, "layer-", &seat.local);
    return shown_name(stored, &seat, 1, arena);
}

static bool names_word_embedding(const char *name)
{
    const char *at = model_name(name);
    return at != NULL && strncmp(at + chunk_prefix(at), "embedding.word_embeddings.", 26) == 0;
}

static bool names_output_layer(const char *name)
{
    const char *at = model_name(name);
    return at != NULL && strncmp(at + chunk_prefix(at), "output_layer.", 13) == 0;
}

/* "exp_avg.embedding.word_embeddings.weight" as "exp_avg.output_layer.weight". */
static const char *head_name(const char *stored, const struct seat *seat, int chunks,
                             struct hl_arena *arena)
{
    const char *at = model_name(stored);
    const char *tail = at + chunk_prefix(at) + strlen("embedding.word_embeddings.");
    const char *name =
        hl_arena_printf(arena, "%.*soutput_layer.%s", (int)(at - stored), stored, tail);
    return name != NULL ? shown_name(name, seat, chunks, arena) : NULL;
}

/* ---- one shard ------------------------------------------------------------------------------- */

enum show { SHOW_ALL, SHOW_BUT_HEAD, SHOW_AS_HEAD };

/* How much of a stored part is shown. `twins`: other stages have a part with its name and tensor
 * rank. */
struct showing {
    enum show show;
    bool twins;
    bool at_home;                 /* the part belongs to the wanted stage */
    const struct showing *origin; /* twins that a part of a cut was made from; NULL = none */
    const struct hl_stored_part *stored;
    size_t count, index;
};

static bool is_shown(const char *name, enum show show)
{
    return show == SHOW_ALL || (show == SHOW_BUT_HEAD && !names_output_layer(name)) ||
           (show == SHOW_AS_HEAD && names_word_embedding(name));
}

static size_t line_count(const char *layout)
{
    size_t n = 0;
    for (; *layout != '\0'; layout += strcspn(layout, "\n") + 1)
        n++;
    return n;
}

static bool is_twin(const struct hl_stored_part *a, const struct hl_stored_part *b)
{
    return a->tp == b->tp && a->ep == b->ep && a->pp != b->pp && strcmp(a->part, b->part) == 0;
}

/* The layout line of that tensor and its number; NULL: the part lacks it. */
static const char *find_line(const struct hl_stored_part *s, const char *name, size_t len,
                             size_t *number)
{
    *number = 0;
    for (const char *line = s->layout; line != NULL && *line != '\0';
         line += strcspn(line, "\n") + 1, (*number)++)
        if (strcspn(line, "\t") == len && strncmp(line, name, len) == 0)
            return line;
    return NULL;
}

static bool holds_alike(const struct hl_stored_part *s, const char *line, size_t number,
                        const struct hl_stored_part *twin, const char *twin_line,
                        size_t twin_number)
{
    size_t len = strcspn(line, "\n");
    return s->crcs != NULL && twin->crcs != NULL && strcspn(twin_line, "\n") == len &&
           strncmp(line, twin_line, len) == 0 &&
           hl_layout_crc(s->crcs, number) == hl_layout_crc(twin->crcs, twin_number);
}

/* The part of that stage has the tensor. */
static bool stage_has(const struct showing *at, int pp, const char *name, size_t len)
{
    const struct hl_stored_part *s = &at->stored[at->index];
    for (size_t i = 0; i < at->count; i++) {
        const struct hl_stored_part *other = &at->stored[i];
        size_t number;
        if (other->pp == pp && (other == s || is_twin(s, other)) &&
            find_line(other, name, len, &number) != NULL)
            return true;
    }
    return false;
}

static bool is_everywhere(const struct showing *at, const char *name, size_t len)
{
    int stages = 0;
    for (size_t i = 0; i < at->count; i++)
        stages = at->stored[i].pp >= stages ? at->stored[i].pp + 1 : stages;
    for (int pp = 0; pp < stages; pp++)
        if (!stage_has(at, pp, name, len))
            return false;
    return true;
}

/* Of twins, only the one of the last stage is shown. */
HL_CHECK static hl_status judge_twin(const struct showing *at, const char *line, size_t number,
                                     bool *out)
{
    const struct hl_stored_part *s = &at->stored[at->index];
    const size_t len = strcspn(line, "\t");
    bool last = true;
    for (size_t i = 0; i < at->count; i++) {
        const struct hl_stored_part *twin = &at->stored[i];
        size_t twin_number;
        const char *other = is_twin(s, twin) ? find_line(twin, line, len, &twin_number) : NULL;
        if (other == NULL)
            continue;
        last = last && twin->pp < s->pp;
        if (!holds_alike(s, line, number, twin, other, twin_number))
            return hl_fail(HL_EUNSUPPORTED,
                           "tensor '%.*s' is in part %s of stage %d and of stage %d, and nothing "
                           "says that they hold the same: read it with the stages it was saved "
                           "with",
                           (int)len, line, s->part, s->pp < twin->pp ? s->pp : twin->pp,
                           s->pp < twin->pp ? twin->pp : s->pp);
    }
    *out = last && (at->at_home || is_everywhere(at, line, len));
    return HL_OK;
}

/* *kept: all of the shard is shown, under its own names. */
static hl_status show_names(const struct hl_view_want *w, const struct hl_stored_part *s,
                            const struct seat *seat, const struct showing *at,
                            struct hl_arena *arena, struct hl_view_part *out)
{
    size_t n = line_count(s->layout), number = 0;
    out->names = hl_arena_array(arena, n, sizeof(*out->names));
    out->as_stored = true;
    for (const char *line = s->layout; out->names != NULL && *line != '\0';
         line += strcspn(line, "\n") + 1, number++) {
        const char *name = hl_arena_text(arena, line, strcspn(line, "\t"));
        if (name == NULL)
            break;
        bool wanted = is_shown(name, at->show);
        if (wanted && at->twins)
            HL_TRY(judge_twin(at, line, number, &wanted));
        else if (wanted && !at->at_home)
            wanted = at->origin != NULL && is_everywhere(at->origin, name, strlen(name));
        if (!wanted) {
            out->as_stored = false;
            continue;
        }
        const char *shown = at->show == SHOW_AS_HEAD
                                ? head_name(name, seat, chunks_of(w->split), arena)
                                : shown_name(name, seat, chunks_of(w->split), arena);
        if (shown == NULL)
            break;
        out->as_stored = out->as_stored && strcmp(name, shown) == 0;
        out->names[out->count++] = (struct hl_view_name){name, shown};
    }
    if (hl_arena_failed(arena))
        return hl_fail(HL_ENOMEM, "out of memory for the names of part '%s'", s->part);
    if (out->as_stored)
        out->count = 0;
    return HL_OK;
}

static hl_status show_part(const struct showing *at, const struct hl_view_want *w,
                           const struct seat *seat, struct hl_arena *arena, struct hl_view *out)
{
    const struct hl_stored_part *p = &at->stored[at->index];
    struct hl_view_part part = {.stored = at->index, .part = p->part};
    if (p->layout == NULL)
        return hl_fail(
            HL_EUNSUPPORTED,
            "part '%s' at pp %d, tp %d was stored by an earlier release, which did not "
            "record its tensors; read it with the stages it was saved with, or export it "
            "(`helios model export --format hf`) and import that",
            p->part, p->pp, p->tp);
    HL_TRY(show_names(w, p, seat, at, arena, &part));
    if (at->show == SHOW_AS_HEAD)
        part.part =
            hl_arena_printf(arena, "%.*shead", (int)(hl_part_of(p->part).of - p->part), p->part);
    if (part.part == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a view");
    if (part.as_stored || part.count > 0)
        out->parts[out->count++] = part;
    return HL_OK;
}

/* ---- a position ------------------------------------------------------------------------------ */

static bool has_output_layer(const struct hl_stored_part *s)
{
    for (const char *line = s->layout; line != NULL && *line != '\0';
         line += strcspn(line, "\n") + 1) {
        char name[HL_TENSOR_NAME_MAX + 1];
        size_t n = strcspn(line, "\t");
        if (n >= sizeof(name))
            continue;
        memcpy(name, line, n);
        name[n] = '\0';
        if (names_output_layer(name))
            return true;
    }
    return false;
}

/* The position's tensor rank stores a head of that kind ("", "optim-dp1of2-"), with rows of its own
 * or as the embedding. */
static bool head_is_stored(const struct hl_stored_part *stored, size_t count,
                           const struct hl_stored_part *embedding)
{
    size_t kind = strlen(embedding->part) - strlen(hl_part_of(embedding->part).of);
    for (size_t i = 0; i < count; i++) {
        const char *part = stored[i].part, *of = hl_part_of(part).of;
        if (stored[i].tp == embedding->tp && strcmp(of, "head") == 0 &&
            (size_t)(of - part) == kind && strncmp(part, embedding->part, kind) == 0 &&
            has_output_layer(&stored[i]))
            return true;
    }
    return false;
}

/* The shard belongs to the position's tensor rank, or to its rank within etp. */
static bool is_read(const struct hl_view_want *w, const struct hl_stored_part *s)
{
    const struct hl_api_split split = {.tp = w->split->tp, .etp = w->split->etp};
    return hl_split_reads(&split, w->tp, w->ep, s->part, s->tp, s->ep);
}

static bool has_twins(const struct hl_stored_part *stored, size_t count,
                      const struct hl_stored_part *s)
{
    for (size_t i = 0; i < count; i++)
        if (is_twin(s, &stored[i]))
            return true;
    return false;
}

/* For a part of a cut; false = it came from one stage. */
static bool find_origin(const struct hl_view_want *w, const struct hl_stored_part *s,
                        struct showing *out)
{
    if (hl_part_of(s->part).kind == HL_PART_EXTRA) /* never cut */
        return false;
    for (size_t i = 0; i < w->made_from_count; i++)
        if (strcmp(w->made_from[i].part, s->part) == 0) {
            *out =
                (struct showing){.stored = w->made_from, .count = w->made_from_count, .index = i};
            return has_twins(w->made_from, w->made_from_count, &w->made_from[i]);
        }
    return false;
}

static hl_status show_stored(const struct hl_stored_part *stored, size_t count, size_t i,
                             const struct hl_view_want *w, struct hl_arena *arena,
                             struct hl_view *out)
{
    const struct hl_stored_part *s = &stored[i];
    const char *of = hl_part_of(s->part).of;
    const struct seat last = {.pp = w->split->pp - 1, .chunk = chunks_of(w->split) - 1};
    struct seat seat = {0};
    struct showing origin;
    if (!is_read(w, s))
        return HL_OK;
    HL_TRY(seat_of(w, s, &seat));
    bool was_twin = !seat.is_layer && find_origin(w, s, &origin);
    bool drops_head = w->tied && w->split->pp == 1 && strcmp(of, "head") == 0;
    struct showing at = {.show = drops_head ? SHOW_BUT_HEAD : SHOW_ALL,
                         .twins =
                             !seat.is_layer && s->layout != NULL && has_twins(stored, count, s),
                         .at_home = seat.pp == w->pp,
                         .origin = was_twin ? &origin : NULL,
                         .stored = stored,
                         .count = count,
                         .index = i};
    if (at.at_home || at.twins || was_twin)
        HL_TRY(show_part(&at, w, &seat, arena, out));
    at.show = SHOW_AS_HEAD;
    at.twins = false;
    at.at_home = true;
    if (w->tied && w->split->pp > 1 && w->pp == last.pp && strcmp(of, "embedding") == 0 &&
        hl_part_of(s->part).kind != HL_PART_EXTRA && !head_is_stored(stored, count, s))
        HL_TRY(show_part(&at, w, &last, arena, out));
    return HL_OK;
}

static bool shows_part(const struct hl_stored_part *stored, const struct hl_view *v,
                       const char *part)
{
    for (size_t i = 0; i < v->count; i++)
        if (strcmp(stored[v->parts[i].stored].part, part) == 0)
            return true;
    return false;
}

/* If a layer has experts, every rank has some: a part of another rank shows that this rank needs
 * one. */
static hl_status check_experts(const struct hl_stored_part *stored, size_t count,
                               const struct hl_view_want *w, const struct hl_view *v)
{
    for (size_t i = 0; i < count; i++) {
        struct seat seat;
        const char *part = stored[i].part;
        if (strncmp(part, "experts-", 8) != 0 || (i > 0 && strcmp(part, stored[i - 1].part) == 0))
            continue;
        HL_TRY(seat_of(w, &stored[i], &seat));
        if (seat.pp == w->pp && !shows_part(stored, v, part))
            return hl_fail(HL_ENOENT, "part %s of pp %d, tp %d, ep %d is not stored", part, w->pp,
                           w->tp, w->ep);
    }
    return HL_OK;
}

/* Checks that every part of the position is there. */
static hl_status check_complete(const struct hl_stored_part *stored, const struct hl_view_want *w,
                                const struct hl_view *v)
{
    char part[HL_PARTITION_PART_MAX] = "embedding";
    bool missing = w->pp == 0 && !shows_part(stored, v, part);
    for (int chunk = 0; chunk < chunks_of(w->split) && !missing; chunk++) {
        uint64_t first, count;
        hl_partition_stage(w->split, w->layers, w->pp, chunk, &first, &count);
        for (uint64_t n = first; n < first + count && !missing; n++) {
            snprintf(part, sizeof(part), "layer-%04" PRIu64, n);
            missing = !shows_part(stored, v, part);
        }
    }
    if (!missing && w->pp == w->split->pp - 1) {
        snprintf(part, sizeof(part), "head");
        missing = !shows_part(stored, v, part);
    }
    if (missing)
        return hl_fail(HL_ENOENT, "part %s of pp %d, tp %d is not stored", part, w->pp, w->tp);
    return HL_OK;
}

hl_status hl_view_position(const struct hl_stored_part *stored, size_t count,
                           const struct hl_view_want *want, struct hl_arena *arena,
                           struct hl_view *out)
{
    struct hl_view v = {0};
    HL_TRY(hl_partition_check_layers(want->split, want->layers));
    if (want->pp < 0 || want->pp >= want->split->pp)
        return hl_fail(HL_EINVAL, "pp %d is not 0..%d", want->pp, want->split->pp - 1);
    v.parts = hl_arena_array(arena, 2 * count, sizeof(*v.parts));
    if (v.parts == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a view of %zu shards", count);
    for (size_t i = 0; i < count; i++)
        HL_TRY(show_stored(stored, count, i, want, arena, &v));
    HL_TRY(check_complete(stored, want, &v));
    HL_TRY(check_experts(stored, count, want, &v));
    *out = v;
    return HL_OK;
}

/* ---- layouts --------------------------------------------------------------------------------- */

/* A line of a layout under the name that is shown. */
struct line {
    const char *part;
    const char *name;
    const char *rest; /* TAB DTYPE TAB EXTENTS, up to the line's end */
};

static int line_order(const void *a, const void *b)
{
    const struct line *x = a, *y = b;
    int order = strcmp(x->part, y->part);
    return order != 0 ? order : strcmp(x->name, y->name);
}

/* Adds lines in the order of the shard's layout, which the part's names have, too. */
static void add_lines(const struct hl_stored_part *s, const struct hl_view_part *p,
                      struct hl_arena *arena, struct line *lines, size_t *n)
{
    size_t k = 0;
    for (const char *at = s->layout; *at != '\0'; at += strcspn(at, "\n") + 1) {
        size_t len = strcspn(at, "\t");
        const char *shown = NULL;
        if (p->as_stored)
            shown = hl_arena_text(arena, at, len);
        else if (k < p->count && strncmp(p->names[k].stored, at, len) == 0 &&
                 p->names[k].stored[len] == '\0')
            shown = p->names[k++].shown;
        if (shown != NULL)
            lines[(*n)++] = (struct line){p->part, shown, at + len};
    }
}

static void join_lines(const struct line *lines, size_t n, struct hl_arena *arena,
                       struct hl_view_layout *out, size_t *count)
{
    for (size_t i = 0; i < n;) {
        size_t end = i, size = 0;
        for (; end < n && strcmp(lines[end].part, lines[i].part) == 0; end++)
            size += strlen(lines[end].name) + strcspn(lines[end].rest, "\n") + 1;
        char *text = hl_arena_alloc(arena, size + 1), *at = text;
        if (text == NULL)
            return;
        out[(*count)++] = (struct hl_view_layout){lines[i].part, text};
        for (; i < end; i++) {
            size_t name = strlen(lines[i].name), rest = strcspn(lines[i].rest, "\n");
            memcpy(at, lines[i].name, name);
            memcpy(at + name, lines[i].rest, rest);
            at += name + rest;
            *at++ = '\n';
        }
    }
}

hl_status hl_view_layouts(const struct hl_stored_part *stored, const struct hl_view *view,
                          struct hl_arena *arena, struct hl_view_layout **out, size_t *count)
{
    size_t n = 0, most = 0;
    for (size_t i = 0; i < view->count; i++)
        most += line_count(stored[view->parts[i].stored].layout);
    struct line *lines = hl_arena_array(arena, most, sizeof(*lines));
    struct hl_view_layout *list = hl_arena_array(arena, view->count, sizeof(*list));
    *count = 0;
    if (lines != NULL && list != NULL) {
        for (size_t i = 0; i < view->count; i++)
            add_lines(&stored[view->parts[i].stored], &view->parts[i], arena, lines, &n);
        qsort(lines, n, sizeof(*lines), line_order);
        join_lines(lines, n, arena, list, count);
    }
    if (hl_arena_failed(arena))
        return hl_fail(HL_ENOMEM, "out of memory for the layout of a view");
    *out = list;
    return HL_OK;
}

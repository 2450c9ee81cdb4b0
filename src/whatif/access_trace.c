/* Names are interned as numbers by a hash table. The reader collects one line at a time, so a file
 * can be fed in pieces of any size. */
#include "whatif/access_trace.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

#define NS_DIGITS 9
#define NS        INT64_C(1000000000)
#define COLUMNS   5

/* ---- names ----------------------------------------------------------------------------------- */

static uint32_t hash_of(const char *name)
{
    uint64_t h = hl_hash_text(name); /* followed by the finalizer of splitmix64 */
    h ^= h >> 30;
    h *= UINT64_C(0xbf58476d1ce4e5b9);
    return (uint32_t)(h >> 32);
}

static const char *name_at(const struct hl_name_table *t, uint32_t number)
{
    return t->text.data + t->starts[number];
}

static uint32_t *slot_of(const struct hl_name_table *t, const char *name)
{
    uint32_t mask = (UINT32_C(1) << t->slot_bits) - 1;
    uint32_t at = hash_of(name) & mask;
    while (t->slots[at] != 0 && strcmp(name_at(t, t->slots[at] - 1), name) != 0)
        at = (at + 1) & mask;
    return &t->slots[at];
}

static hl_status name_table_grow(struct hl_name_table *t)
{
    uint32_t room = t->room == 0 ? 64 : t->room * 2;
    uint32_t *starts = realloc(t->starts, room * sizeof(*starts));
    if (starts == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %" PRIu32 " names", room);
    t->starts = starts;
    uint32_t *slots = calloc((size_t)room * 2, sizeof(*slots));
    if (slots == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %" PRIu32 " names", room);
    free(t->slots);
    t->slots = slots;
    t->room = room;
    t->slot_bits = 1;
    while (UINT32_C(1) << t->slot_bits < room * 2)
        t->slot_bits++;
    for (uint32_t i = 0; i < t->count; i++)
        *slot_of(t, name_at(t, i)) = i + 1;
    return HL_OK;
}

static hl_status name_table_number(struct hl_name_table *t, const char *name, uint32_t most,
                                   const char *what, uint32_t *out)
{
    if (t->count == t->room)
        HL_TRY(name_table_grow(t));
    uint32_t *slot = slot_of(t, name);
    if (*slot == 0) {
        if (t->count == most)
            return hl_fail(HL_ENOSPC, "more than %" PRIu32 " %s: cut the trace", most, what);
        t->text.max = UINT32_MAX;
        t->starts[t->count] = (uint32_t)t->text.len;
        if (hl_buf_append(&t->text, name, strlen(name) + 1) != HL_OK)
            return hl_fail(HL_ENOMEM, "out of memory for the names of %s", what);
        *slot = ++t->count;
    }
    *out = *slot - 1;
    return HL_OK;
}

static void name_table_fini(struct hl_name_table *t)
{
    hl_buf_fini(&t->text);
    free(t->starts);
    free(t->slots);
}

const char *hl_access_shard_name(const struct hl_access_trace *t, uint32_t shard)
{
    return name_at(&t->shards, shard);
}

const char *hl_access_node_name(const struct hl_access_trace *t, uint32_t node)
{
    return name_at(&t->nodes, node);
}

/* ---- rows ------------------------------------------------------------------------------------ */

void hl_access_trace_fini(struct hl_access_trace *t)
{
    free(t->rows);
    free(t->plans);
    free(t->sizes);
    free(t->written);
    name_table_fini(&t->shards);
    name_table_fini(&t->nodes);
    *t = (struct hl_access_trace){0};
}

/* Makes room for one more shard. */
static hl_status make_shard_room(struct hl_access_trace *t)
{
    if (t->shards.count >= t->size_room) {
        uint32_t room = t->size_room == 0 ? 64 : t->size_room * 2;
        uint64_t *sizes = realloc(t->sizes, room * sizeof(*sizes));
        t->sizes = sizes != NULL ? sizes : t->sizes;
        bool *written = realloc(t->written, room * sizeof(*written));
        t->written = written != NULL ? written : t->written;
        if (sizes == NULL || written == NULL)
            return hl_fail(HL_ENOMEM, "out of memory for %" PRIu32 " shards", room);
        t->size_room = room;
    }
    return HL_OK;
}

static hl_status make_room(struct hl_access_trace *t)
{
    if (t->count == HL_ACCESS_ROWS_MAX)
        return hl_fail(HL_ENOSPC, "more than %" PRIu32 " accesses: cut the trace",
                       HL_ACCESS_ROWS_MAX);
    if (t->count == t->room) {
        uint32_t room = t->room == 0 ? 1024 : t->room * 2;
        struct hl_access_row *rows = realloc(t->rows, room * sizeof(*rows));
        if (rows == NULL)
            return hl_fail(HL_ENOMEM, "out of memory for %" PRIu32 " accesses", room);
        t->rows = rows;
        t->room = room;
    }
    return make_shard_room(t);
}

static hl_status make_plan_room(struct hl_access_trace *t)
{
    if (t->plan_count == HL_ACCESS_ROWS_MAX)
        return hl_fail(HL_ENOSPC, "more than %" PRIu32 " plans: cut the trace", HL_ACCESS_ROWS_MAX);
    if (t->plan_count == t->plan_room) {
        uint32_t room = t->plan_room == 0 ? 64 : t->plan_room * 2;
        struct hl_access_plan *plans = realloc(t->plans, room * sizeof(*plans));
        if (plans == NULL)
            return hl_fail(HL_ENOMEM, "out of memory for %" PRIu32 " plans", room);
        t->plans = plans;
        t->plan_room = room;
    }
    return make_shard_room(t);
}

static int64_t last_ns(const struct hl_access_trace *t)
{
    int64_t row = t->count > 0 ? t->rows[t->count - 1].at_ns : 0;
    int64_t plan = t->plan_count > 0 ? t->plans[t->plan_count - 1].at_ns : 0;
    return row > plan ? row : plan;
}

static hl_status check_row(const struct hl_access_trace *t, const struct hl_trace_access *a)
{
    if (a->at_ns < last_ns(t))
        return hl_fail(HL_EINVAL, "the time goes backwards: sort the rows by t_seconds");
    return HL_OK;
}

static hl_status check_size(const struct hl_access_trace *t, uint32_t shard,
                            const struct hl_trace_access *a)
{
    if (t->sizes[shard] == a->size_bytes)
        return HL_OK;
    return hl_fail(HL_EINVAL,
                   "shard '%s' has %" PRIu64 " bytes but had %" PRIu64
                   " before: a shard keeps its size; give other bytes another name",
                   a->shard, a->size_bytes, t->sizes[shard]);
}

static hl_status check_write(const struct hl_access_trace *t, uint32_t shard,
                             const struct hl_trace_access *a)
{
    if (!a->is_write)
        return HL_OK;
    return hl_fail(HL_EINVAL,
                   "shard '%s' is written after it was %s: a shard is immutable; give new "
                   "bytes another name",
                   a->shard, t->written[shard] ? "written" : "read");
}

static hl_status append_row(struct hl_access_trace *t, const struct hl_trace_access *a,
                            bool in_order)
{
    uint32_t shard, node, known = t->shards.count;
    HL_TRY(make_room(t));
    HL_TRY(name_table_number(&t->nodes, a->node, HL_ACCESS_NODES_MAX, "nodes", &node));
    HL_TRY(name_table_number(&t->shards, a->shard, HL_ACCESS_SHARDS_MAX, "shards", &shard));
    if (shard == known) {
        t->sizes[shard] = a->size_bytes;
        t->written[shard] = a->is_write;
    } else {
        HL_TRY(check_size(t, shard, a));
        if (in_order)
            HL_TRY(check_write(t, shard, a));
    }
    t->rows[t->count++] = (struct hl_access_row){
        .at_ns = a->at_ns, .shard = shard, .node = (uint16_t)node, .is_write = a->is_write};
    return HL_OK;
}

hl_status hl_access_trace_plan(struct hl_access_trace *t, const struct hl_trace_access *a)
{
    uint32_t shard, node, known = t->shards.count;
    HL_TRY(check_row(t, a));
    HL_TRY(make_plan_room(t));
    HL_TRY(name_table_number(&t->nodes, a->node, HL_ACCESS_NODES_MAX, "nodes", &node));
    HL_TRY(name_table_number(&t->shards, a->shard, HL_ACCESS_SHARDS_MAX, "shards", &shard));
    if (shard == known) {
        t->sizes[shard] = a->size_bytes;
        t->written[shard] = false;
    } else {
        HL_TRY(check_size(t, shard, a));
    }
    t->plans[t->plan_count++] = (struct hl_access_plan){
        .at_ns = a->at_ns, .shard = shard, .node = (uint16_t)node, .is_off = a->is_write};
    return HL_OK;
}

hl_status hl_access_trace_add(struct hl_access_trace *t, const struct hl_trace_access *a)
{
    HL_TRY(check_row(t, a));
    return append_row(t, a, true);
}

hl_status hl_access_trace_put(struct hl_access_trace *t, const struct hl_trace_access *a)
{
    return append_row(t, a, false);
}

/* ---- sorting --------------------------------------------------------------------------------- */

static int rows_by_shard(const void *left, const void *right)
{
    const struct hl_access_row *a = left, *b = right;
    if (a->shard != b->shard)
        return a->shard < b->shard ? -1 : 1;
    return a->at_ns != b->at_ns ? (a->at_ns < b->at_ns ? -1 : 1) : 0;
}

static int rows_by_time(const void *left, const void *right)
{
    const struct hl_access_row *a = left, *b = right;
    if (a->at_ns != b->at_ns)
        return a->at_ns < b->at_ns ? -1 : 1;
    if (a->is_write != b->is_write)
        return a->is_write ? -1 : 1;
    if (a->node != b->node)
        return a->node < b->node ? -1 : 1;
    return a->shard != b->shard ? (a->shard < b->shard ? -1 : 1) : 0;
}

void hl_access_trace_sort(struct hl_access_trace *t)
{
    uint32_t kept = 0, shard = UINT32_MAX;
    int64_t first_ns = 0; /* of the shard's rows */
    if (t->count == 0)
        return;
    qsort(t->rows, t->count, sizeof(*t->rows), rows_by_shard);
    memset(t->written, 0, t->shards.count * sizeof(*t->written));
    for (uint32_t i = 0; i < t->count; i++) {
        struct hl_access_row row = t->rows[i];
        if (row.shard != shard)
            first_ns = row.at_ns;
        shard = row.shard;
        if (row.is_write && t->written[shard])
            continue;
        if (row.is_write)
            row.at_ns = first_ns;
        t->written[shard] |= row.is_write;
        t->rows[kept++] = row;
    }
    t->count = kept;
    qsort(t->rows, t->count, sizeof(*t->rows), rows_by_time);
}

static hl_status print_line(const struct hl_access_trace *t, const struct hl_access_plan *at,
                            const char *op, struct hl_buf *out)
{
    return hl_buf_printf(out, "%" PRId64 ".%09" PRId64 ",%s,%s,%" PRIu64 ",%s\n", at->at_ns / NS,
                         at->at_ns % NS, hl_access_node_name(t, at->node),
                         hl_access_shard_name(t, at->shard), t->sizes[at->shard], op);
}

/* Returns the first plan that is not before that time. */
static uint32_t plan_from(const struct hl_access_trace *t, int64_t at_ns)
{
    uint32_t low = 0, high = t->plan_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (t->plans[middle].at_ns < at_ns)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

hl_status hl_access_row_print(const struct hl_access_trace *t, uint32_t row, struct hl_buf *out)
{
    const struct hl_access_row *r = &t->rows[row];
    uint32_t from = row > 0 ? plan_from(t, r[-1].at_ns + 1) : 0, end = plan_from(t, r->at_ns + 1);
    for (; from < end; from++)
        HL_TRY(print_line(t, &t->plans[from], t->plans[from].is_off ? "unplan" : "plan", out));
    const struct hl_access_plan at = {.at_ns = r->at_ns, .shard = r->shard, .node = r->node};
    return print_line(t, &at, r->is_write ? "write" : "read", out);
}

/* ---- the reader ------------------------------------------------------------------------------ */

void hl_access_reader_init(struct hl_access_reader *r, struct hl_access_trace *trace)
{
    r->trace = trace;
    r->line = 1;
    r->length = 0;
}

static hl_status refuse_line(const struct hl_access_reader *r, size_t column, const char *what)
{
    return hl_fail(HL_EINVAL, "line %" PRIu64 ", column %zu: %s", r->line, column + 1, what);
}

/* Parses "12" or "12.25" into nanoseconds. */
static bool parse_seconds(const char *text, int64_t *out)
{
    int64_t whole = 0, part = 0;
    int digits = 0, decimals = 0;
    for (; *text >= '0' && *text <= '9'; text++, digits++) {
        whole = whole * 10 + (*text - '0');
        if (whole > HL_ACCESS_SECONDS_MAX)
            return false;
    }
    if (digits == 0)
        return false;
    if (*text == '.') {
        for (text++; *text >= '0' && *text <= '9' && decimals < NS_DIGITS; text++, decimals++)
            part = part * 10 + (*text - '0');
        if (decimals == 0)
            return false;
    }
    for (; decimals < NS_DIGITS; decimals++)
        part *= 10;
    *out = whole * NS + part;
    return *text == '\0' && *out <= HL_ACCESS_SECONDS_MAX * NS;
}

static bool parse_size(const char *text, uint64_t *out)
{
    uint64_t n = 0;
    const char *begin = text;
    for (; *text >= '0' && *text <= '9' && n <= HL_ACCESS_SIZE_MAX; text++)
        n = n * 10 + (uint64_t)(*text - '0');
    *out = n;
    return text != begin && *text == '\0' && n > 0 && n <= HL_ACCESS_SIZE_MAX;
}

/* Printable, and without characters that must be quoted. */
static bool is_name(const char *text)
{
    size_t n = 0;
    for (; text[n] != '\0'; n++)
        if ((uint8_t)text[n] <= ' ' || text[n] == '"' || (uint8_t)text[n] == 0x7f)
            return false;
    return n > 0 && n <= HL_ACCESS_NAME_MAX;
}

/* Splits the line into its columns. */
static hl_status split_line(struct hl_access_reader *r, char *columns[COLUMNS])
{
    size_t n = 0;
    columns[n++] = r->text;
    for (char *p = r->text; *p != '\0'; p++) {
        if (*p != ',')
            continue;
        if (n == COLUMNS)
            return refuse_line(r, (size_t)(p - r->text), "a row has 5 columns: " HL_ACCESS_HEADER);
        *p = '\0';
        columns[n++] = p + 1;
    }
    return n == COLUMNS ? HL_OK
                        : refuse_line(r, r->length, "a row has 5 columns: " HL_ACCESS_HEADER);
}

static hl_status read_row(struct hl_access_reader *r)
{
    char *column[COLUMNS];
    struct hl_trace_access a;
    HL_TRY(split_line(r, column));
    if (!parse_seconds(column[0], &a.at_ns))
        return refuse_line(r, 0,
                           "t_seconds is a number from 0 to 1000000000 with at most 9 decimals, "
                           "such as 12.25");
    if (!is_name(column[1]))
        return refuse_line(r, (size_t)(column[1] - r->text),
                           "node is a name of 1 to 128 bytes without blanks and quotes");
    if (!is_name(column[2]))
        return refuse_line(r, (size_t)(column[2] - r->text),
                           "shard is a name of 1 to 128 bytes without blanks and quotes");
    if (!parse_size(column[3], &a.size_bytes))
        return refuse_line(r, (size_t)(column[3] - r->text),
                           "size_bytes is a whole number from 1 to 17592186044416");
    bool is_plan = strcmp(column[4], "plan") == 0 || strcmp(column[4], "unplan") == 0;
    a.is_write = strcmp(column[4], "write") == 0 || strcmp(column[4], "unplan") == 0;
    if (!is_plan && !a.is_write && strcmp(column[4], "read") != 0)
        return refuse_line(r, (size_t)(column[4] - r->text),
                           "op is read or write, or plan or unplan");
    a.node = column[1];
    a.shard = column[2];
    hl_status st = is_plan ? hl_access_trace_plan(r->trace, &a) : hl_access_trace_add(r->trace, &a);
    if (st == HL_OK)
        return HL_OK;
    size_t at = (size_t)((a.at_ns < last_ns(r->trace) ? column[0] : column[2]) - r->text);
    return hl_fail_prefix(st, "line %" PRIu64 ", column %zu: ", r->line, at + 1);
}

static hl_status read_line(struct hl_access_reader *r)
{
    if (r->length > 0 && r->text[r->length - 1] == '\r')
        r->length--;
    r->text[r->length] = '\0';
    if (strlen(r->text) != r->length)
        return refuse_line(r, strlen(r->text), "a NUL byte: the file is not a CSV text");
    if (r->line > 1)
        return read_row(r);
    return strcmp(r->text, HL_ACCESS_HEADER) == 0
               ? HL_OK
               : refuse_line(r, 0, "the first line is not '" HL_ACCESS_HEADER "'");
}

hl_status hl_access_reader_feed(struct hl_access_reader *r, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] != '\n') {
            if (r->length == HL_ACCESS_LINE_MAX)
                return refuse_line(r, r->length, "a line has at most 512 bytes");
            r->text[r->length++] = bytes[i];
            continue;
        }
        HL_TRY(read_line(r));
        r->length = 0;
        r->line++;
    }
    return HL_OK;
}

hl_status hl_access_reader_end(struct hl_access_reader *r)
{
    if (r->length > 0 || r->line == 1) {
        HL_TRY(read_line(r));
        r->length = 0;
        r->line++;
    }
    return r->trace->count > 0 ? HL_OK
                               : hl_fail(HL_EINVAL, "the trace has no accesses after its header");
}

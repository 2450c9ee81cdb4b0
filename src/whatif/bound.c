/* A read can be served by its own node, if L1 or L2 has kept the shard since the node's previous
 * read; by the cluster, if it has kept the shard since the previous access from any node; or by the
 * archive. Keeping a shard takes memory at every moment in between. Choosing the cheapest source
 * for all reads within the memory is a linear program (FOO: Berger, Beckmann, Harchol-Balter,
 * SIGMETRICS 2018). Here it has three kinds of memory, and a load waits for the longest of its
 * links. On the archive's link a load also waits for loads of the same moment that come before one
 * of its reads that no node can have kept.
 *
 * The program's dual bounds it from below. Memory has a price at every moment, each link of a load
 * has a weight, and each read makes its own cheapest choice. What all reads pay, minus the price of
 * all existing memory, is at most the least waiting time, for any prices >= 0 and any weights that
 * add up to 1. So every round gives a bound. After a round, prices rise where reads ask for more
 * memory than there is, and fall elsewhere. PFOO-L is the special case of one price for all
 * moments. Time is counted in moments of the trace. */
#include "whatif/bound.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "whatif/loads.h"

#define BUCKETS     256 /* of moments; memory has one price in each */
#define NEVER       UINT32_MAX
#define PRICE_STEPS 24 /* powers of 2, downwards from the first guess */
#define WORK        4e8
#define ROUNDS_MIN  30
#define ROUNDS_MAX  600

/* Lower bounds of a load's wait: the time that its links take, and the mean of its shards by
 * size. */
enum { OF_ARCHIVE, OF_BACKBONE, OF_INSIDE, OF_SHARDS, FORMS };

struct bounded_read {
    uint32_t moment, load;
    uint32_t node_before, any_before; /* moments of the previous accesses; NEVER: none */
    bool is_sure;                     /* its load's last read that only the archive can serve */
    double queued; /* weights of the loads that wait on the archive for this read */
};

struct bounded_load {
    double weights[FORMS];
    double seconds[FORMS]; /* that its links take in this round */
    uint32_t sure;         /* its read with is_sure; NEVER: none */
    uint32_t reads;
    double bytes;
    double backlog; /* the archive's, before its moment, of reads that no node can have kept */
};

/* One memory: a node's L1, a node's L2, or that of the whole cluster. */
struct bounded_memory {
    double bytes;
    double price[BUCKETS];
    double paid[BUCKETS];                     /* price per byte up to the start of the bucket */
    double whole[BUCKETS + 1], part[BUCKETS]; /* asked for in this round */
};

struct bounding {
    const struct hl_access_trace *trace;
    const struct hl_whatif_world *world;
    struct bounded_read *reads;
    struct bounded_load *loads;
    struct bounded_memory *memories;     /* L1 by node, L2 by node, the cluster */
    uint32_t moments, load_count, width; /* width: moments per bucket */
};

/* ---- what came before ------------------------------------------------------------------------ */

/* Newest moment by node and shard; a hash table with open addressing. */
struct moment_map {
    uint64_t *keys; /* + 1 */
    uint32_t *moments;
    unsigned bits;
};

static hl_status moment_map_init(struct moment_map *m, uint32_t count)
{
    for (m->bits = 6; UINT64_C(1) << m->bits < (uint64_t)count * 2;)
        m->bits++;
    m->keys = calloc((size_t)1 << m->bits, sizeof(*m->keys));
    m->moments = malloc(((size_t)1 << m->bits) * sizeof(*m->moments));
    return m->keys != NULL && m->moments != NULL ? HL_OK : HL_ENOMEM;
}

static uint32_t moment_map_swap(struct moment_map *m, uint16_t node, uint32_t shard,
                                uint32_t moment)
{
    uint64_t key = ((uint64_t)node << 32 | shard) + 1, mask = (UINT64_C(1) << m->bits) - 1;
    uint64_t at = key * UINT64_C(0x9e3779b97f4a7c15) >> (64 - m->bits);
    while (m->keys[at] != 0 && m->keys[at] != key)
        at = (at + 1) & mask;
    uint32_t before = m->keys[at] == key ? m->moments[at] : NEVER;
    m->keys[at] = key;
    m->moments[at] = moment;
    return before;
}

static void list_reads(struct bounding *b, struct moment_map *map, uint32_t *newest,
                       uint32_t *load_of)
{
    const struct hl_access_trace *t = b->trace;
    uint32_t *moment_of_load = load_of + t->nodes.count;
    memset(newest, 0xff, t->shards.count * sizeof(*newest));
    memset(moment_of_load, 0xff, t->nodes.count * sizeof(*moment_of_load));
    for (uint32_t i = 0; i < t->count; i++) {
        const struct hl_access_row *row = &t->rows[i];
        if (i > 0 && row->at_ns != row[-1].at_ns)
            b->moments++;
        if (moment_of_load[row->node] != b->moments) {
            moment_of_load[row->node] = b->moments;
            load_of[row->node] = b->load_count++;
        }
        b->reads[i] = (struct bounded_read){
            .moment = b->moments,
            .load = load_of[row->node],
            .node_before = moment_map_swap(map, row->node, row->shard, b->moments),
            .any_before = newest[row->shard]};
        newest[row->shard] = b->moments;
    }
    b->moments++;
}

static hl_status prepare_reads(struct bounding *b)
{
    const struct hl_access_trace *t = b->trace;
    struct moment_map map = {0};
    uint32_t *newest = malloc(t->shards.count * sizeof(*newest));
    uint32_t *load_of = malloc(2 * (size_t)t->nodes.count * sizeof(*load_of));
    b->reads = malloc(t->count * sizeof(*b->reads));
    b->memories = calloc(2 * (size_t)t->nodes.count + 1, sizeof(*b->memories));
    hl_status st = moment_map_init(&map, t->count);
    if (st == HL_OK && newest != NULL && load_of != NULL && b->reads != NULL &&
        b->memories != NULL) {
        list_reads(b, &map, newest, load_of);
        b->loads = calloc(b->load_count, sizeof(*b->loads));
    }
    free(map.keys);
    free(map.moments);
    free(newest);
    free(load_of);
    return b->loads != NULL
               ? HL_OK
               : hl_fail(HL_ENOMEM, "out of memory for the bound of %" PRIu32 " accesses",
                         t->count);
}

/* ---- memory and its price -------------------------------------------------------------------- */

/* Number of gaps between moments in the bucket. */
static uint32_t gaps_of(const struct bounding *b, uint32_t bucket)
{
    uint64_t first = (uint64_t)bucket * b->width, gaps = b->moments - 1;
    if (first >= gaps)
        return 0;
    return gaps - first < b->width ? (uint32_t)(gaps - first) : b->width;
}

/* The price of keeping a byte from the first moment until this one. */
static double price_until(const struct bounding *b, const struct bounded_memory *m, uint32_t moment)
{
    uint32_t bucket = moment / b->width;
    return m->paid[bucket] + m->price[bucket] * (moment % b->width);
}

static void ask_memory(const struct bounding *b, struct bounded_memory *m, uint32_t from,
                       uint32_t to, double bytes)
{
    uint32_t first = from / b->width, last = to / b->width;
    if (first == last) {
        m->part[first] += bytes * (to - from);
        return;
    }
    m->part[first] += bytes * (b->width - from % b->width);
    m->part[last] += bytes * (to % b->width);
    m->whole[first + 1] += bytes;
    m->whole[last] -= bytes;
}

/* The price of all existing memory. Also resets what is asked for. */
static double sum_prices(const struct bounding *b, struct bounded_memory *m)
{
    double sum = 0, paid = 0;
    for (uint32_t k = 0; k < BUCKETS; k++) {
        m->paid[k] = paid;
        paid += m->price[k] * b->width;
        sum += m->price[k] * gaps_of(b, k) * m->bytes;
    }
    memset(m->whole, 0, sizeof(m->whole));
    memset(m->part, 0, sizeof(m->part));
    return sum;
}

static void move_prices(const struct bounding *b, struct bounded_memory *m, double step,
                        double least)
{
    double whole = 0;
    for (uint32_t k = 0; k < BUCKETS; k++) {
        whole += m->whole[k];
        double there = m->bytes * gaps_of(b, k);
        if (!(there > 0))
            continue;
        double over = (whole * b->width + m->part[k]) / there - 1;
        over = over > 1 ? 1 : over;
        m->price[k] *= 1 + step * over;
        m->price[k] = m->price[k] < least ? least : m->price[k];
    }
}

/* ---- a round --------------------------------------------------------------------------------- */

/* What can serve a read. */
enum choice { BY_L1, BY_L2, BY_CLUSTER, BY_ARCHIVE };

struct choosing {
    struct bounding *b;
    const struct bounded_read *read;
    double bytes;
    double least;
    enum choice choice;
};

static struct bounded_memory *memory_of(const struct bounding *b, enum choice choice, uint16_t node)
{
    uint32_t nodes = b->trace->nodes.count;
    return &b->memories[choice == BY_L1 ? node : choice == BY_L2 ? nodes + node : 2 * nodes];
}

/* Chooses that memory, which has kept the shard since then, if that is cheaper. */
static void offer_memory(struct choosing *c, enum choice choice, uint16_t node, uint32_t since,
                         double link_s)
{
    const struct bounded_memory *m = memory_of(c->b, choice, node);
    if (since == NEVER || c->bytes > m->bytes)
        return;
    double price = price_until(c->b, m, c->read->moment) - price_until(c->b, m, since);
    double cost = link_s + c->bytes * price;
    if (cost >= c->least)
        return;
    c->least = cost;
    c->choice = choice;
}

/* Adds the seconds that the access takes on its links. */
static void note_choice(struct choosing *c, uint32_t i, const double seconds[BY_ARCHIVE + 1],
                        double share, double *archived)
{
    const struct hl_access_row *row = &c->b->trace->rows[i];
    struct bounded_load *l = &c->b->loads[c->read->load];
    double archive_s = c->bytes / c->b->world->rates[HL_MOVE_ARCHIVE];
    l->seconds[OF_SHARDS] += share * seconds[c->choice];
    if (c->choice >= BY_CLUSTER)
        l->seconds[OF_BACKBONE] += seconds[BY_CLUSTER];
    if (c->choice == BY_L2)
        l->seconds[OF_INSIDE] += seconds[BY_L2];
    if (row->is_write)
        return;
    if (c->choice == BY_ARCHIVE) {
        *archived += archive_s;
        if (l->sure == NEVER || l->sure < i)
            l->seconds[OF_ARCHIVE] += archive_s;
        return;
    }
    uint32_t since = c->choice == BY_CLUSTER ? c->read->any_before : c->read->node_before;
    ask_memory(c->b, memory_of(c->b, c->choice, row->node), since, c->read->moment, c->bytes);
}

/* Returns what the access costs; adds to *archived the seconds that it takes on the archive's
 * link. */
static double choose_for_read(struct bounding *b, uint32_t i, double *archived)
{
    const struct hl_access_row *row = &b->trace->rows[i];
    const struct bounded_read *r = &b->reads[i];
    const struct bounded_load *l = &b->loads[r->load];
    double bytes = (double)b->trace->sizes[row->shard];
    double archive_s = bytes / b->world->rates[HL_MOVE_ARCHIVE];
    double backbone_s = bytes / b->world->rates[HL_MOVE_BACKBONE];
    double inside_s = bytes / b->world->rates[HL_MOVE_INSIDE];
    double slower_s = archive_s > backbone_s ? archive_s : backbone_s;
    const double seconds[] = {
        [BY_L1] = 0, [BY_L2] = inside_s, [BY_CLUSTER] = backbone_s, [BY_ARCHIVE] = slower_s};
    double share = bytes / l->bytes, of_shard = l->weights[OF_SHARDS] * share;
    double by_backbone = l->weights[OF_BACKBONE] * backbone_s;
    struct choosing c = {.b = b, .read = r, .bytes = bytes};
    if (row->is_write) {
        c.choice = BY_CLUSTER;
        c.least = by_backbone + of_shard * backbone_s;
    } else {
        c.choice = BY_ARCHIVE;
        c.least = by_backbone + r->queued * archive_s + of_shard * slower_s;
        offer_memory(&c, BY_CLUSTER, row->node, r->any_before, by_backbone + of_shard * backbone_s);
        offer_memory(&c, BY_L2, row->node, r->node_before,
                     (l->weights[OF_INSIDE] + of_shard) * inside_s);
        offer_memory(&c, BY_L1, row->node, r->node_before, 0);
    }
    note_choice(&c, i, seconds, share, archived);
    return c.least;
}

/* Sums the weights of the loads whose wait grows with a read of the archive: its own load, and
 * loads of its moment that have a sure read after it. */
static void sum_queues(struct bounding *b)
{
    double behind = 0;
    for (uint32_t i = b->trace->count; i-- > 0;) {
        struct bounded_read *r = &b->reads[i];
        const struct bounded_load *l = &b->loads[r->load];
        if (i + 1 < b->trace->count && r->moment != r[1].moment)
            behind = 0;
        if (r->is_sure)
            behind += l->weights[OF_ARCHIVE];
        bool counted = l->sure != NEVER && l->sure >= i;
        r->queued = behind + (counted ? 0 : l->weights[OF_ARCHIVE]);
    }
}

/* Starts a load in a round; returns what it pays before its first read. */
static double start_load(struct bounded_load *l)
{
    for (unsigned f = 0; f < FORMS; f++)
        l->seconds[f] = f == OF_ARCHIVE ? l->backlog : 0;
    return l->weights[OF_ARCHIVE] * l->backlog;
}

/* Returns the bound for the present prices and weights. */
static double make_round(struct bounding *b)
{
    double sum = 0, archived = 0;
    sum_queues(b);
    for (uint32_t m = 0; m <= 2 * b->trace->nodes.count; m++)
        sum -= sum_prices(b, &b->memories[m]);
    for (uint32_t i = 0; i < b->load_count; i++)
        sum += start_load(&b->loads[i]);
    for (uint32_t i = 0; i < b->trace->count; i++) {
        const struct bounded_read *r = &b->reads[i];
        if (i > 0 && r->moment != r[-1].moment)
            archived = 0;
        sum += choose_for_read(b, i, &archived);
        if (r->is_sure)
            b->loads[r->load].seconds[OF_ARCHIVE] += archived;
    }
    return sum;
}

/* Moves weight towards the link that the load waits for longest. */
static void move_weights(struct bounded_load *l, double step)
{
    double most = 0, sum = 0;
    for (unsigned f = 0; f < FORMS; f++)
        most = l->seconds[f] > most ? l->seconds[f] : most;
    if (!(most > 0))
        return;
    for (unsigned f = 0; f < FORMS; f++) {
        double part = l->seconds[f] > 0 ? l->seconds[f] / most : 0;
        l->weights[f] += step * (part - 0.5);
        l->weights[f] = l->weights[f] > 0 ? l->weights[f] : 0;
        sum += l->weights[f];
    }
    for (unsigned f = 0; f < FORMS; f++)
        l->weights[f] /= sum;
}

/* ---- the rounds ------------------------------------------------------------------------------ */

static void set_prices(struct bounding *b, uint32_t first, uint32_t end, double price)
{
    for (uint32_t m = first; m < end; m++)
        for (uint32_t k = 0; k < BUCKETS; k++)
            b->memories[m].price[k] = price;
}

/* Sets one price for all moments of these memories: the best of several powers of 2. */
static double guess_price(struct bounding *b, uint32_t first, uint32_t end, double about)
{
    double best = 0, best_price = 0;
    for (int i = -1; i < PRICE_STEPS; i++) {
        double price = i < 0 ? 0 : about;
        set_prices(b, first, end, price);
        double bound = make_round(b);
        if (i < 0 || bound > best) {
            best = bound;
            best_price = price;
        }
        about = i < 0 ? about : about / 2;
    }
    set_prices(b, first, end, best_price > 0 ? best_price : about);
    return best;
}

static double run_rounds(struct bounding *b)
{
    uint32_t nodes = b->trace->nodes.count;
    double rounds = WORK / (double)(b->trace->count + 1);
    rounds = rounds < ROUNDS_MIN ? ROUNDS_MIN : rounds > ROUNDS_MAX ? ROUNDS_MAX : rounds;
    double per_byte = 1 / b->world->rates[HL_MOVE_BACKBONE];
    double archive_per_byte = 1 / b->world->rates[HL_MOVE_ARCHIVE];
    double best = guess_price(b, 0, nodes, per_byte);
    double bound = guess_price(b, nodes, 2 * nodes, per_byte + archive_per_byte);
    best = bound > best ? bound : best;
    bound = guess_price(b, 2 * nodes, 2 * nodes + 1, archive_per_byte);
    best = bound > best ? bound : best;
    double least = (per_byte < archive_per_byte ? per_byte : archive_per_byte) / b->moments / 1e6;
    for (int i = 0; i < (int)rounds; i++) {
        double step = 0.5 / (1 + i * 0.05);
        bound = make_round(b);
        best = bound > best ? bound : best;
        for (uint32_t m = 0; m <= 2 * nodes; m++)
            move_prices(b, &b->memories[m], step, least);
        for (uint32_t l = 0; l < b->load_count; l++)
            move_weights(&b->loads[l], step);
    }
    return best;
}

/* Reads of shards that were not accessed before must be served by the archive. */
static void find_sure_reads(struct bounding *b)
{
    const struct hl_access_trace *t = b->trace;
    double until_s = 0, backlog = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        struct bounded_load *l = &b->loads[b->reads[i].load];
        double now_s = (double)(t->rows[i].at_ns - t->rows[0].at_ns) / 1e9;
        if (i == 0 || b->reads[i].moment != b->reads[i - 1].moment)
            backlog = until_s > now_s ? until_s - now_s : 0;
        if (b->reads[i].any_before != NEVER || t->rows[i].is_write)
            continue;
        until_s = (until_s > now_s ? until_s : now_s) +
                  (double)t->sizes[t->rows[i].shard] / b->world->rates[HL_MOVE_ARCHIVE];
        if (l->sure != NEVER)
            b->reads[l->sure].is_sure = false;
        b->reads[i].is_sure = true;
        l->sure = i;
        l->backlog = backlog;
        l->weights[OF_ARCHIVE] = 1;
        l->weights[OF_BACKBONE] = l->weights[OF_SHARDS] = 0;
    }
}

static void start_rounds(struct bounding *b)
{
    const struct hl_whatif_world *w = b->world;
    uint32_t nodes = b->trace->nodes.count;
    double of_nodes = ((double)w->l1_bytes + (double)w->l2_bytes) * nodes;
    for (uint32_t i = 0; i < nodes; i++) {
        b->memories[i].bytes = (double)w->l1_bytes;
        b->memories[nodes + i].bytes = (double)w->l2_bytes;
    }
    b->memories[2 * nodes].bytes = (double)w->l3_bytes + of_nodes;
    b->width = b->moments / BUCKETS + 1;
    for (uint32_t i = 0; i < b->load_count; i++)
        b->loads[i].sure = NEVER;
    for (uint32_t i = 0; i < b->trace->count; i++) {
        b->loads[b->reads[i].load].bytes += (double)b->trace->sizes[b->trace->rows[i].shard];
        b->loads[b->reads[i].load].reads++;
    }
    for (uint32_t i = 0; i < b->load_count; i++)
        b->loads[i].weights[b->loads[i].reads == 1 ? OF_SHARDS : OF_BACKBONE] = 1;
    find_sure_reads(b);
}

/* Each load waits for the archive if it reads what was not accessed before, and for the backbone
 * with its writes and with what its node has not accessed before. No policy is below this
 * percentile. */
static hl_status bound_p99(const struct bounding *b, double *out)
{
    const double *rates = b->world->rates;
    HL_AUTO(hl_freep) double *first = calloc(b->load_count, sizeof(*first));
    HL_AUTO(hl_freep) double *sent = calloc(b->load_count, sizeof(*sent));
    if (first == NULL || sent == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %" PRIu32 " loads", b->load_count);
    for (uint32_t i = 0; i < b->trace->count; i++) {
        const struct hl_access_row *row = &b->trace->rows[i];
        double bytes = (double)b->trace->sizes[row->shard];
        if (row->is_write || b->reads[i].node_before == NEVER)
            sent[b->reads[i].load] += bytes;
        if (!row->is_write && b->reads[i].any_before == NEVER)
            first[b->reads[i].load] += bytes;
    }
    for (uint32_t i = 0; i < b->load_count; i++)
        first[i] = fmax(first[i] / rates[HL_MOVE_ARCHIVE], sent[i] / rates[HL_MOVE_BACKBONE]);
    *out = hl_loads_p99(first, b->load_count);
    return HL_OK;
}

hl_status hl_bound_run(const struct hl_access_trace *trace, const struct hl_whatif_world *world,
                       struct hl_whatif_result *out)
{
    struct bounding b = {.trace = trace, .world = world};
    hl_status st = prepare_reads(&b);
    if (st == HL_OK) {
        *out = (struct hl_whatif_result){.loads = b.load_count};
        for (uint32_t i = 0; i < trace->count; i++)
            (*(trace->rows[i].is_write ? &out->writes : &out->reads))++;
        start_rounds(&b);
        double bound = run_rounds(&b);
        out->wait_s = bound > 0 ? bound : 0;
        out->wait_mean_s = out->wait_s / b.load_count;
        st = bound_p99(&b, &out->wait_p99_s);
    }
    free(b.reads);
    free(b.loads);
    free(b.memories);
    return st;
}

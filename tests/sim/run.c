/* A run of one script, and the shortest one that fails as well. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "sim/world.h"

#define READ_MS 190 /* less than the readers' grace */

/* ---- a world --------------------------------------------------------------------------------- */

static void world_open(struct world *w, const struct script *s, enum mutant mutant, bool trace)
{
    struct message *messages = w->messages;
    memset(w, 0, sizeof(*w));
    w->messages = messages != NULL ? messages : calloc(MESSAGES, sizeof(*messages));
    assert(w->messages != NULL);
    w->script = s;
    w->mutant = mutant;
    w->trace = trace;
    w->random = s->seed ^ UINT64_C(0x5deece66d);
    w->step = 1;
    for (uint16_t i = 0; i < MESSAGES; i++)
        w->free_slots[w->free_count++] = i;
}

/* Each shard in as many domains as are wanted. */
static void world_fill(struct world *w)
{
    for (int s = 0; s < SHARDS; s++) {
        w->size[s] = 24 + world_random(w, BYTES - 24);
        for (uint32_t i = 0; i < w->size[s]; i++)
            w->truth[s][i] = (uint8_t)world_random(w, 256);
        w->crc[s] = hl_crc32(0, w->truth[s], w->size[s]);
        int first = (int)world_random(w, HOLDERS);
        for (int k = 0; k < (int)w->script->weather.domains; k++) {
            int holder = (first + k) % HOLDERS, slot = holder == L3 ? 0 : 1;
            holder_put(w, holder, slot, s, w->truth[s], w->size[s]);
            if (k == 0)
                w->store.places[s] = place_at(holder, slot);
        }
    }
}

static void world_begin(struct world *w)
{
    static const uint32_t quota[SLOTS] = {2 * BYTES, 3 * BYTES};
    for (int h = 0; h < HOLDERS; h++) {
        w->holders[h].up = true;
        w->holders[h].incarnation = 1;
        for (int slot = 0; slot < SLOTS; slot++)
            w->holders[h].quota[slot] = h == L3 ? SHARDS * BYTES : quota[slot];
        w->holders[h].quota[1] = SHARDS * BYTES;
        world_timer(w, &(struct message){.kind = TIMER_BEAT, .to = h, .incarnation = 1}, 1);
    }
    world_fill(w);
    controller_start(w);
}

static void world_close(struct world *w)
{
    for (uint32_t i = 0; i < w->controller_count; i++)
        controller_end(&w->controllers[i]);
    hl_heap_fini(&w->queue);
}

/* ---- the script's events --------------------------------------------------------------------- */

static void event_lose(struct world *w, int holder)
{
    holder_crash(w, holder, true);
    for (int s = 0; s < SHARDS; s++)
        w->lost[s] |= !world_has(w, s, true);
}

static void event_read(struct world *w, const struct controller *c, uint32_t arg)
{
    struct message m = {
        .kind = TIMER_READER, .to = -1, .shard = (int)(arg % SHARDS), .since_step = w->step};
    for (int h = 0; h < HOLDERS; h++)
        for (int slot = 0; slot < SLOTS; slot++)
            if (is_known(w, c, h) && controller_offers(w, c, h, slot, m.shard)) {
                world_say(w, "controller %u offers shard %d at %d.%d", c->epoch, m.shard, h, slot);
                m.offered[h][slot] = true;
            }
    if (!w->lost[m.shard])
        world_timer(w, &m, w->now_ms + 1 + (arg >> 8) % READ_MS);
}

static void event_stop(struct world *w, struct controller *c, uint32_t arg)
{
    if (w->controller_count == CONTROLLERS) /* there is none to follow */
        return;
    world_say(w, "controller %u dies", c->epoch);
    controller_end(c);
    world_timer(w, &(struct message){.kind = TIMER_CONTROLLER, .to = -1},
                w->now_ms + 1 + arg % 500);
}

static void world_event(struct world *w, const struct event *e)
{
    struct controller *c = world_controller(w);
    int holder = (int)(e->arg % HOLDERS);
    world_say(w, "event: %s", event_text(e->kind));
    if (e->kind == EVENT_CRASH && w->holders[holder].up) {
        holder_crash(w, holder, false);
    } else if (e->kind == EVENT_LOSE && w->holders[holder].up) {
        event_lose(w, holder);
    } else if (e->kind == EVENT_CUT) {
        w->holders[holder].cut = true;
        world_timer(w, &(struct message){.kind = TIMER_HEAL, .to = holder},
                    w->now_ms + 100 + e->arg / HOLDERS % 2000);
    } else if (e->kind == EVENT_STORE) {
        w->store.bad = true;
        world_timer(w, &(struct message){.kind = TIMER_STORE, .to = STORE},
                    w->now_ms + 20 + e->arg % 500);
    } else if (e->kind == EVENT_TAKEOVER && c != NULL) {
        controller_start(w);
    } else if (e->kind == EVENT_STOP && c != NULL) {
        event_stop(w, c, e->arg);
    } else if (e->kind == EVENT_ORDER && c != NULL) {
        controller_order(w, c, e->arg);
    } else if (e->kind == EVENT_CANCEL && c != NULL) {
        controller_cancel(w, c, e->arg);
    } else if (e->kind == EVENT_READ && c != NULL) {
        event_read(w, c, e->arg);
    } else if (e->kind == EVENT_NEED) {
        w->needed[e->arg % SHARDS] = true;
    } else if (e->kind == EVENT_DELETE && c != NULL) {
        w->deleted[e->arg % SHARDS] = true;
        controller_delete(w, c, (int)(e->arg % SHARDS));
    }
}

/* ---- a run ----------------------------------------------------------------------------------- */

static void world_deliver(struct world *w, const struct message *m)
{
    if (m->kind == TIMER_CONTROLLER)
        controller_start(w);
    else if (m->kind == TIMER_READER)
        check_read(w, m);
    else if (m->to == STORE)
        store_get(w, m);
    else if (m->to >= CTL)
        controller_get(w, &w->controllers[m->to - CTL], m);
    else
        holder_get(w, m);
}

/* Nothing is lost any more, and all come back. */
static void world_calm(struct world *w)
{
    w->calm = true;
    w->store.bad = false;
    for (int h = 0; h < HOLDERS; h++)
        w->holders[h].cut = false;
}

static bool world_is_done(struct world *w, int64_t calm_ms)
{
    const struct controller *c = world_controller(w);
    return w->calm && w->now_ms > calm_ms + 3000 && c != NULL && c->moves.count == 0;
}

#define CALM_MS 30000 /* in calm weather everything ends within */

bool run_script(const struct script *s, enum mutant mutant, bool trace, struct world *w)
{
    struct message m;
    int64_t calm_ms = 0;
    world_open(w, s, mutant, trace);
    world_begin(w);
    while (w->broken[0] == '\0' && world_take(w, &m)) {
        world_deliver(w, &m);
        for (; w->next_event < EVENTS && s->events[w->next_event].step <= w->step; w->next_event++)
            if (!s->events[w->next_event].off)
                world_event(w, &s->events[w->next_event]);
        check_step(w);
        if (++w->step > STEPS_MAX)
            world_break(w, "there is no end of steps");
        if (w->step == SCRIPT_END) {
            world_calm(w);
            calm_ms = w->now_ms;
        }
        if (world_is_done(w, calm_ms) || (w->calm && w->now_ms > calm_ms + CALM_MS))
            break;
    }
    if (w->broken[0] == '\0')
        check_end(w);
    world_close(w);
    return w->broken[0] == '\0';
}

/* ---- making it shorter ----------------------------------------------------------------------- */

static unsigned script_count(const struct script *s)
{
    unsigned n = 0;
    for (int i = 0; i < EVENTS; i++)
        n += !s->events[i].off;
    return n;
}

/* It breaks the same rule. */
static bool script_breaks(const struct script *s, enum mutant mutant, struct world *w)
{
    const char *rule = w->broken_rule;
    bool same = !run_script(s, mutant, false, w) && w->broken_rule == rule;
    w->broken_rule = rule;
    return same;
}

/* Without these events it fails, too. */
static bool shrink_events(struct script *s, enum mutant mutant, struct world *w, int first,
                          int count)
{
    struct script less = *s;
    for (int i = first; i < first + count && i < EVENTS; i++)
        less.events[i].off = true;
    if (script_count(&less) == script_count(s) || !script_breaks(&less, mutant, w))
        return false;
    *s = less;
    return true;
}

static bool shrink_weather(struct script *s, enum mutant mutant, struct world *w, int which)
{
    struct script less = *s;
    uint32_t *parts[] = {&less.weather.loss, &less.weather.doubled, &less.weather.damaged};
    if (*parts[which] == 0)
        return false;
    *parts[which] = 0;
    if (!script_breaks(&less, mutant, w))
        return false;
    *s = less;
    return true;
}

unsigned run_shrink(struct script *s, enum mutant mutant, struct world *w)
{
    bool less = true;
    while (less) {
        less = false;
        for (int which = 0; which < 3; which++)
            less |= shrink_weather(s, mutant, w, which);
        for (int count = EVENTS / 2; count > 0; count /= 2)
            for (int first = 0; first < EVENTS; first += count)
                less |= shrink_events(s, mutant, w, first, count);
    }
    return script_count(s);
}

/* The current options placement.* and policy.*, and changes of these and of versions.durability
 * while the Controller runs. A change holds until the Controller ends; permanent settings belong in
 * the configuration. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "conf/conf.h"
#include "controller/placement/placement_private.h"
#include "os/loop.h"

hl_status placement_conf_copy(const struct hl_placement_conf *from, struct hl_placement_conf *out)
{
    struct hl_placement_conf conf = {0};
    if (from == NULL) {
        HL_TRY(hl_options_defaults(hl_placement_rows.rows, hl_placement_rows.count, &conf));
        HL_TRY(hl_options_defaults(hl_policy_rows.rows, hl_policy_rows.count, &conf.params));
        *out = conf;
        return HL_OK;
    }
    conf = *from;
    conf.policy = strdup(from->policy);
    if (conf.policy == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the options of placement");
    *out = conf;
    return HL_OK;
}

void placement_conf_fini(struct hl_placement_conf *conf)
{
    free((char *)conf->policy);
    conf->policy = NULL;
}

static void on_pass(void *arg)
{
    struct hl_controller *c = arg;
    controller_check_clocks(c);
    budget_rest(c);
    moves_run(c); /* those that waited for the end of a pause, or whose shard is gone */
    if (follow_all(c, pass_run))
        pass_run(c);
    uses_run(c);
}

hl_status placement_timer_start(struct hl_controller *c)
{
    struct placement *p = c->placement;
    struct hl_timer *timer;
    uint64_t every = (uint64_t)p->conf.interval_ms;
    HL_TRY(hl_timer_create(c->opts.loop, every, every, on_pass, c, &timer));
    hl_timer_destroy(p->timer);
    p->timer = timer;
    return HL_OK;
}

static const struct hl_option *row_find(const struct hl_option_rows *rows, const char *name)
{
    for (size_t i = 0; i < rows->count; i++)
        if (strcmp(rows->rows[i].name, name) == 0)
            return &rows->rows[i];
    return NULL;
}

/* Sets one option in a copy of the current configuration. */
static hl_status option_set(struct hl_placement_conf *conf, const char *name, const char *value,
                            char **shown)
{
    const struct hl_option *row = row_find(&hl_placement_rows, name);
    void *target = conf;
    if (row == NULL) {
        row = row_find(&hl_policy_rows, name);
        target = &conf->params;
    }
    if (row == NULL)
        return hl_fail(HL_EINVAL,
                       "'%.80s' can't be changed while the Controller runs; only placement.*, "
                       "policy.* and versions.durability can",
                       name);
    hl_status st = hl_option_set(row, target, value);
    if (st != HL_OK)
        return hl_fail_prefix(st, "%s: ", name);
    *shown = hl_option_show(row, target);
    return *shown != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory for the value of %s", name);
}

/* Applies all changes, or none. */
static hl_status conf_apply(struct hl_controller *c, struct hl_placement_conf *conf)
{
    struct placement *p = c->placement;
    HL_TRY(hl_placement_configure(&p->core, &conf->params, placement_now_ms()));
    int old_ms = p->conf.interval_ms;
    placement_conf_fini(&p->conf);
    p->conf = *conf;
    *conf = (struct hl_placement_conf){0};
    HL_TRY(moves_configure(c));
    HL_TRY(budget_configure(c));
    return p->conf.interval_ms != old_ms ? placement_timer_start(c) : HL_OK;
}

static hl_status placement_change(struct hl_controller *c, const char *name, const char *value,
                                  char **shown)
{
    struct hl_placement_conf conf = {0};
    hl_status st = placement_conf_copy(&c->placement->conf, &conf);
    if (st == HL_OK)
        st = option_set(&conf, name, value, shown);
    if (st == HL_OK)
        st = conf_apply(c, &conf);
    placement_conf_fini(&conf);
    return st;
}

static hl_status durability_set(struct hl_controller *c, const char *value, char **shown)
{
    HL_TRY(durability_change(c, value));
    *shown = strdup(value);
    return *shown != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory for the value of an option");
}

void method_set_option(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_controller_set_option_params *p)
{
    static const char origin[] = "set at run time";
    struct hl_controller *c = controller_enter(arg);
    HL_AUTO(hl_freep) char *shown = NULL;
    hl_status st = strcmp(p->name, "versions.durability") == 0
                       ? durability_set(c, p->value, &shown)
                       : placement_change(c, p->name, p->value, &shown);
    if (st == HL_OK)
        st = hl_conf_publish_change(p->name, shown, origin);
    if (st != HL_OK) {
        hl_info("option is not changed name=%.80s error=\"%s\"", p->name, hl_error_text());
        call_reject(call, st);
        return;
    }
    hl_info("option is changed name=%s value=%s", p->name, shown);
    hl_reply_controller_set_option(
        call, &(struct hl_api_controller_set_option_results){
                  .option = {p->name, shown, origin},
                  .note = strcmp(p->name, "placement.warm") == 0 ? warm_why_not(c) : ""});
}

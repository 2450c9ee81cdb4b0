#include "cli/jobs/drill_report.h"

#include "cli/cli/cli.h"

hl_status drill_report_print(const struct hl_api_drill_report *r)
{
    struct cli_table t;
    for (size_t i = 0; i < r->refused.count; i++)
        cli_print(stdout, "not injected: %s, because %s\n", r->refused.items[i].fault,
                  r->refused.items[i].reason);
    cli_table_init(&t, "FAULT|>MADE|>RECOVERED|>NAMED RIGHT|PHASE|>P50 S|>P99 S|>MAX S");
    for (size_t i = 0; i < r->faults.count; i++)
        for (size_t k = 0; k < r->faults.items[i].phases.count; k++) {
            const struct hl_api_drill_fault *f = &r->faults.items[i];
            const struct hl_api_drill_phase *p = &f->phases.items[k];
            cli_cell(&t, "%s", f->fault);
            cli_cell(&t, "%u", f->made);
            cli_cell(&t, "%u", f->recovered);
            if (f->named + f->unnamed > 0)
                cli_cell(&t, "%u", f->named);
            else
                cli_cell(&t, "-");
            cli_cell(&t, "%s", p->phase);
            cli_cell(&t, "%.3f", p->p50_seconds);
            cli_cell(&t, "%.3f", p->p99_seconds);
            cli_cell(&t, "%.3f", p->max_seconds);
        }
    if (r->faults.count > 0)
        HL_TRY(cli_table_print(&t));
    if (r->clean_steps > 0)
        cli_print(stdout, "%llu steps without a fault: %llu false alarms%s%s\n",
                  (unsigned long long)r->clean_steps, (unsigned long long)r->false_alarms,
                  r->false_alarms > 0 ? ": " : "", r->false_alarm);
    cli_print(stdout,
              "%llu steps, %llu of them repeated, %llu of those with a different loss; %llu jumps, "
              "%llu not seen, %llu with flipped bits\n",
              (unsigned long long)r->steps, (unsigned long long)r->repeated,
              (unsigned long long)r->differing, (unsigned long long)r->jumps,
              (unsigned long long)r->missed, (unsigned long long)r->doubted);
    return HL_OK;
}

hl_status drill_report_verdict(const struct hl_api_drill_report *r)
{
    if (r->false_alarms > 0)
        return hl_fail(HL_ECONFLICT, "%llu false alarms in %llu steps without a fault: %s",
                       (unsigned long long)r->false_alarms, (unsigned long long)r->clean_steps,
                       r->false_alarm);
    for (size_t i = 0; i < r->faults.count; i++) {
        const struct hl_api_drill_fault *f = &r->faults.items[i];
        if (f->unnamed > 0)
            return hl_fail(HL_ECONFLICT,
                           "%s: %u of %u times another rank or kind was named first, or none: %s",
                           f->fault, f->unnamed, f->made, f->wrong);
    }
    if (r->differing > 0 || r->jumps > 0)
        return hl_fail(HL_ECONFLICT,
                       "%llu repeated steps have a different loss, %llu steps do not follow the "
                       "one before: the training differs from a run without faults",
                       (unsigned long long)r->differing, (unsigned long long)r->jumps);
    return HL_OK;
}

#include "core/model/split.h"

#include <stdio.h>

#include "core/model/part.h"

#define TP_MAX 4096

bool hl_split_reads(const struct hl_api_split *s, int tp, int ep, const char *part, int shard_tp,
                    int shard_ep)
{
    if (!hl_part_has_experts(part))
        return shard_tp == tp;
    return shard_tp == tp % hl_split_etp(s) && shard_ep == ep;
}

bool hl_split_same_cut(const struct hl_api_split *a, const struct hl_api_split *b)
{
    return a->tp == b->tp && hl_split_ep(a) == hl_split_ep(b) && hl_split_etp(a) == hl_split_etp(b);
}

bool hl_split_equal(const struct hl_api_split *a, const struct hl_api_split *b)
{
    return hl_split_same_cut(a, b) && a->pp == b->pp && hl_split_chunks(a) == hl_split_chunks(b) &&
           a->first_stage_layers == b->first_stage_layers &&
           a->last_stage_layers == b->last_stage_layers;
}

struct hl_api_split hl_split_resolve(const struct hl_api_split *want,
                                     const struct hl_api_split *own)
{
    struct hl_api_split s = *want;
    if (s.tp == 0)
        s.tp = own->tp;
    if (s.pp == 0)
        s.pp = own->pp;
    if (s.ep == 0)
        s.ep = own->ep;
    if (s.etp == 0 && s.tp == own->tp)
        s.etp = own->etp;
    if (s.virtual_stages == 0 && s.pp == own->pp)
        s.virtual_stages = own->virtual_stages;
    bool same = hl_split_same_cut(&s, own) && s.pp == own->pp &&
                hl_split_chunks(&s) == hl_split_chunks(own) && s.first_stage_layers == 0 &&
                s.last_stage_layers == 0;
    return same ? *own : s;
}

struct hl_partition_options hl_split_options(const struct hl_api_split *s)
{
    return (struct hl_partition_options){.tp = s->tp,
                                         .pp = s->pp,
                                         .virtual_stages = hl_split_chunks(s),
                                         .first_stage_layers = s->first_stage_layers,
                                         .last_stage_layers = s->last_stage_layers,
                                         .ep = s->ep,
                                         .etp = s->etp};
}

hl_status hl_split_check(const struct hl_api_split *s, uint64_t layers)
{
    const struct hl_partition_options o = hl_split_options(s);
    if (s->tp < 1 || s->tp > TP_MAX)
        return hl_fail(HL_EINVAL, "tp %d is not 1..%d", s->tp, TP_MAX);
    if (s->ep < 0 || s->ep > TP_MAX)
        return hl_fail(HL_EINVAL, "ep %d is not 1..%d", s->ep, TP_MAX);
    if (s->etp < 0 || s->etp > s->tp || s->tp % hl_split_etp(s) != 0)
        return hl_fail(HL_EINVAL, "etp %d does not divide tp %d", s->etp, s->tp);
    return hl_partition_check_layers(&o, layers);
}

static int print_experts(const struct hl_api_split *s, char *buf, size_t cap)
{
    int n = 0;
    if (hl_split_ep(s) > 1)
        n += snprintf(buf, cap, " x EP%d", s->ep);
    if (hl_split_etp(s) != s->tp)
        n += snprintf(buf + n, cap - (size_t)n, ", ETP%d", s->etp);
    return n;
}

const char *hl_split_text(const struct hl_api_split *s, char buf[HL_SPLIT_TEXT_MAX])
{
    int n = snprintf(buf, HL_SPLIT_TEXT_MAX, "TP%d x PP%d", s->tp, s->pp);
    n += print_experts(s, buf + n, HL_SPLIT_TEXT_MAX - (size_t)n);
    if (hl_split_chunks(s) > 1)
        n += snprintf(buf + n, HL_SPLIT_TEXT_MAX - (size_t)n, ", %d virtual stages",
                      s->virtual_stages);
    if (s->first_stage_layers > 0 || s->last_stage_layers > 0)
        snprintf(buf + n, HL_SPLIT_TEXT_MAX - (size_t)n, ", %d first and %d last layers",
                 s->first_stage_layers, s->last_stage_layers);
    return buf;
}

const char *hl_split_cut_text(const struct hl_api_split *s, char buf[HL_SPLIT_TEXT_MAX])
{
    int n = snprintf(buf, HL_SPLIT_TEXT_MAX, "TP%d", s->tp);
    print_experts(s, buf + n, HL_SPLIT_TEXT_MAX - (size_t)n);
    return buf;
}

#include "core/placement/backbone.h"

#include <math.h>

static bool line_is_known(const struct hl_api_line_load *line)
{
    return line->bits_per_second > 0 && line->busy_percent >= 0; /* false for NaN */
}

void hl_backbone_add_node(struct hl_backbone *b, const struct hl_api_line_load *line)
{
    if (!line_is_known(line))
        return;
    b->nodes_pct += fmin(line->busy_percent, 100);
    b->nodes++;
}

void hl_backbone_add_l3(struct hl_backbone *b, const struct hl_api_line_load *line)
{
    b->l3 = line_is_known(line);
    b->l3_pct = b->l3 ? fmin(line->busy_percent, 100) : 0;
}

double hl_backbone_busy_pct(const struct hl_backbone *b)
{
    double nodes = b->nodes > 0 ? b->nodes_pct / b->nodes : 0;
    return b->nodes > 0 || b->l3 ? fmax(nodes, b->l3_pct) : -1;
}

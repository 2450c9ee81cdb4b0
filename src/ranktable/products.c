#include "ranktable/products.h"

#include <stdio.h>
#include <string.h>

#define UP_TO(n)  ((UINT32_C(2) << (n)) - 2)
#define EVEN_TO16 UINT32_C(0x15554)
#define BIT(n)    (UINT32_C(1) << (n))

static const struct hl_ranktable_product products[] = {
    {HL_RANKTABLE_A2, "module-910b-8", UP_TO(8), UP_TO(8)},
    {HL_RANKTABLE_A2, "module-910b-16", UP_TO(8) | EVEN_TO16, UP_TO(8) | EVEN_TO16},
    {HL_RANKTABLE_A2, "card-910b-2", UP_TO(2), UP_TO(2)},
    {HL_RANKTABLE_A3, "module-a3-16", BIT(1) | EVEN_TO16, EVEN_TO16},
    {HL_RANKTABLE_A3, "module-a3-16-super-pod", BIT(1) | EVEN_TO16, EVEN_TO16},
    {HL_RANKTABLE_A5, "350-Atlas-8", UP_TO(8), UP_TO(8)},
    {HL_RANKTABLE_A5, "350-Atlas-16", UP_TO(16), UP_TO(16)},
    {HL_RANKTABLE_A5, "350-Atlas-4p-8", UP_TO(8), UP_TO(8)},
    {HL_RANKTABLE_A5, "350-Atlas-4p-16", UP_TO(16), UP_TO(16)},
    {HL_RANKTABLE_A5, "850-Atlas-8p-8", UP_TO(2) | BIT(4) | BIT(8), UP_TO(2) | BIT(4) | BIT(8)},
    {HL_RANKTABLE_A5, "850-SuperPod-Atlas-8", UP_TO(2) | BIT(4) | BIT(8), BIT(8)},
    {HL_RANKTABLE_A5, "950-SuperPod-Atlas-8", UP_TO(8), BIT(8)},
};

const struct hl_ranktable_product *hl_ranktable_product_find(const char *type)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(products); i++)
        if (strcmp(products[i].type, type) == 0)
            return &products[i];
    return NULL;
}

bool hl_ranktable_product_gives(const struct hl_ranktable_product *p, uint64_t devices, bool alone)
{
    uint32_t given = alone ? p->alone : p->beside;
    return devices < 32 && (given & BIT(devices)) != 0;
}

void hl_ranktable_product_list(enum hl_ranktable_chip chip, char *out, size_t cap)
{
    size_t n = 0;
    out[0] = '\0';
    for (size_t i = 0; i < HL_ARRAY_LEN(products) && n < cap; i++)
        if (products[i].chip == chip)
            n += (size_t)snprintf(out + n, cap - n, "%s%s", n > 0 ? ", " : "", products[i].type);
}

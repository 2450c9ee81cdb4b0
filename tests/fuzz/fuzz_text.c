/* Texts that come by RPC or in a checkpoint, of any bytes: the first one chooses. Layouts of parts
 * and their comparison, names of parts and containers, sets of CPUs, files of switches, a
 * checkpoint's config.json. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/model/hf.h"
#include "core/model/layout.h"
#include "core/model/part.h"
#include "core/planner/plan.h"
#include "core/planner/switches.h"
#include "core/planner/topo.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int ok)
{
    if (!ok) {
        fprintf(stderr, "%s\n", hl_error_text());
        abort();
    }
}

/* Two of them, one behind the other: what is a layout fits itself, and each fits the other or not,
 * the same both ways. */
static void layouts(const char *one, const char *other)
{
    if (hl_layout_verify(one) != HL_OK || hl_layout_verify(other) != HL_OK)
        return;
    for (int c = 0; c < HL_API_LAYOUT_CHECK_COUNT; c++) {
        check(hl_layout_compare(one, one, c) == HL_OK);
        check((hl_layout_compare(one, other, c) == HL_OK) ==
              (hl_layout_compare(other, one, c) == HL_OK));
    }
    if (hl_layout_compare(one, other, HL_API_LAYOUT_CHECK_EXACT) == HL_OK)
        check(hl_layout_compare(one, other, HL_API_LAYOUT_CHECK_ANY_DTYPE) == HL_OK);
    (void)!hl_layout_names_parameters(one, other);
}

static void container(const char *text)
{
    char job[128], id[192];
    int attempt, index;
    if (hl_container_id_parse(text, job, sizeof(job), &attempt, &index) != HL_OK)
        return;
    check(attempt >= 0 && index >= 0 && strlen(job) < sizeof(job));
    check(hl_container_id(job, attempt, index, id, sizeof(id)) != NULL);
    int attempt2, index2;
    char job2[128];
    check(hl_container_id_parse(id, job2, sizeof(job2), &attempt2, &index2) == HL_OK);
    check(strcmp(job, job2) == 0 && attempt == attempt2 && index == index2);
}

static void cpus(const char *text)
{
    struct hl_cpus set;
    int index, nodes, slots;
    if (hl_cpus_parse(text, &set) != HL_OK)
        check(hl_error_text()[0] != '\0');
    if (hl_topo_share_parse(text, &index, &nodes, &slots) == HL_OK)
        check(index >= 0 && index < nodes);
}

static void switches(const char *text)
{
    struct hl_switches s = {0};
    const char *leaf, *spine;
    if (hl_switches_parse(text, "switches", &s) == HL_OK && s.nodes != NULL)
        check(hl_switches_find(&s, s.nodes->name, &leaf, &spine));
    hl_switches_fini(&s);
}

static void config(const char *text, size_t len)
{
    struct hl_hf_config c;
    if (hl_hf_config_parse(text, len, "config.json", &c) == HL_OK)
        hl_hf_config_fini(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    char *text = malloc(size + 1);
    check(text != NULL);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = text[size] = '\0'; /* one text, or two with a byte 0 between them */
    size_t first = strlen(text);
    if (data[0] % 4 == 0)
        layouts(text, text + first + 1 <= text + size ? text + first + 1 : "");
    else if (data[0] % 4 == 1)
        config(text, size - 1);
    else if (data[0] % 4 == 2)
        cpus(text), switches(text);
    else
        container(text);
    struct hl_part part = hl_part_of(text);
    check(part.of >= text && part.of <= text + first && part.dp < part.dp_size);
    free(text);
    return 0;
}

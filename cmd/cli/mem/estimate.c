/* mem estimate: the host and device memory that training a model needs, computed before it
 * starts. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/text.h"
#include "cli/mem/commands.h"
#include "core/model/hf.h"
#include "hybridps/layout/layout.h"
#include "os/file.h"

struct estimate_args {
    char *dtype, *gradients;
    int64_t world;
    uint64_t granule, chunk;
};

#define AT(field) HL_OPTION_FIELD(struct estimate_args, field)

static const struct hl_option rows[] = {
    {"dtype", "--dtype", "bf16", "Type of the parameters on the device.", HL_OPT_ENUM, 0, 0,
     "bf16|fp16|fp32", AT(dtype)},
    {"gradients", "--gradients", "separate",
     "Whether gradients have memory of their own or reuse the parameters'.", HL_OPT_ENUM, 0, 0,
     "separate|reuse", AT(gradients)},
    {"world", "--world", "1", "Processes that train it; they share the optimizer's state.",
     HL_OPT_INT, 1, 1000000, NULL, AT(world)},
    {"granule", "--granule", "2MiB", "Allocation unit of the device's memory; 2 MiB on CUDA.",
     HL_OPT_BYTES, 64, (int64_t)1 << 30, NULL, AT(granule)},
    {"chunk", "--chunk", "0", "Bytes of a chunk; 0: the size that wastes least.", HL_OPT_BYTES, 0,
     (int64_t)1 << 40, NULL, AT(chunk)},
};

static const char *const kinds[HYBRIDPS_KINDS] = {"parameters", "gradients", "parameters fp32",
                                                  "momentum",   "variance",  "other"};

/* "1.5B", "124M", "85054464"; 0 = not a number of parameters. */
static uint64_t parse_count(const char *text)
{
    static const char units[] = "KMBT";
    char *end;
    double n = strtod(text, &end), unit = 1;
    if (end == text || !(n > 0))
        return 0;
    const char *u = *end != '\0' ? strchr(units, *end >= 'a' ? *end - 'a' + 'A' : *end) : NULL;
    for (const char *p = units; u != NULL && p <= u; p++)
        unit *= 1000;
    if (*end != '\0' && (u == NULL || end[1] != '\0'))
        return 0;
    return n * unit < 1e15 ? (uint64_t)(n * unit + 0.5) : 0;
}

/* Reads a config.json, or the one in a directory. */
static hl_status read_config(const char *path, struct hl_estimate *out)
{
    struct hl_buf text = HL_BUF(HL_HF_CONFIG_MAX);
    struct hl_hf_config c = {0};
    struct stat sb;
    char inside[PATH_MAX];
    if (stat(path, &sb) == 0 && S_ISDIR(sb.st_mode)) {
        if ((size_t)snprintf(inside, sizeof(inside), "%s/config.json", path) >= sizeof(inside))
            return hl_fail(HL_EINVAL, "%s: the path is too long", path);
        path = inside;
    }
    hl_status st = hl_file_read(path, &text);
    if (st == HL_OK)
        st = hl_hf_config_parse(text.data, text.len, path, &c);
    hl_buf_fini(&text);
    if (st == HL_OK) {
        st = hl_estimate_of_config(&c, out);
        hl_hf_config_fini(&c);
    }
    return st;
}

static hl_status read_model(struct cli *cli, const char *text, struct hl_estimate *out)
{
    struct stat sb;
    if (stat(text, &sb) == 0)
        return read_config(text, out);
    uint64_t count = parse_count(text);
    if (count == 0)
        return cli_usage(cli, "'%s' is neither a number of parameters (as 1.5B) nor a config.json",
                         text);
    return hl_estimate_of_count(count, out);
}

/* Host memory of one process, in chunks. */
static uint64_t per_process(const struct estimate_args *a, const struct hl_estimate *e)
{
    uint64_t sum = 0;
    for (int k = 0; k < HYBRIDPS_KINDS; k++)
        sum += hl_estimate_share(e->allocated[k], k, (uint64_t)a->world);
    return sum;
}

static hl_status print_json(const struct estimate_args *a, const struct hl_estimate *e)
{
    uint64_t each = per_process(a, e);
    struct hl_api_memory_kind list[HYBRIDPS_KINDS];
    struct hl_api_memory_estimate doc = {
        .parameters = e->parameters,
        .dtype = a->dtype,
        .world = (uint64_t)a->world,
        .gradients = a->gradients,
        .kinds = {list, 0},
        .bytes = e->total,
        .chunks = {e->layout.chunk_bytes, e->layout.chunks, hl_layout_utilisation(&e->layout)},
        .l2 = {each * (uint64_t)a->world, each},
        .l1 = {e->smallest, e->modules[e->widest], each},
        .assumed = {e->layers, e->hidden}};
    for (int k = 0; k < HYBRIDPS_KINDS; k++)
        if (e->bytes[k] > 0)
            list[doc.kinds.count++] =
                (struct hl_api_memory_kind){kinds[k], e->per_parameter[k], e->bytes[k]};
    return cli_print_value(&hl_api_memory_estimate_type, &doc);
}

static hl_status print_text(const struct estimate_args *a, const struct hl_estimate *e)
{
    struct cli_table t;
    char bytes[32];
    cli_table_init(&t, "KIND|>BYTES EACH|>BYTES|>PER PROCESS");
    for (int k = 0; k < HYBRIDPS_KINDS; k++) {
        if (e->bytes[k] == 0)
            continue;
        cli_cell(&t, "%s", kinds[k]);
        cli_cell(&t, "%" PRIu64, e->per_parameter[k]);
        cli_cell_bytes(&t, e->bytes[k]);
        cli_cell_bytes(&t, hl_estimate_share(e->bytes[k], k, (uint64_t)a->world));
    }
    cli_cell(&t, "host (L2), in chunks");
    cli_cell(&t, "-");
    cli_cell_bytes(&t, per_process(a, e) * (uint64_t)a->world);
    cli_cell_bytes(&t, per_process(a, e));
    cli_cell(&t, "device (L1), smallest");
    cli_cell(&t, "-");
    cli_cell(&t, "-");
    cli_cell_bytes(&t, e->smallest);
    HL_TRY(cli_table_print(&t));
    printf("%" PRIu64 " parameters in %" PRIu64 " chunks of %s", e->parameters, e->layout.chunks,
           hl_format_bytes(e->layout.chunk_bytes, bytes, sizeof(bytes)));
    if (e->layout.longest > e->layout.chunk_bytes) /* a longer tensor has a chunk of its own */
        printf(" to %s", hl_format_bytes(e->layout.longest, bytes, sizeof(bytes)));
    printf(", %.1f %% in use\n", 100 * hl_layout_utilisation(&e->layout));
    if (e->layers > 0)
        printf("assumed a GPT with %" PRIu64 " layers of hidden size %" PRIu64
               "; a config.json gives the real shape\n",
               e->layers, e->hidden);
    printf("the device must hold at least what %s pins; activations come on top\n",
           e->modules[e->widest]);
    return fflush(stdout) == 0 ? HL_OK : hl_fail(HL_EIO, "writing to stdout: %s", strerror(errno));
}

static hl_status estimate_model(struct cli *cli, const struct estimate_args *a, const char *model)
{
    struct hl_estimate e = {0};
    struct hl_estimate_options o = {.element_bytes = strcmp(a->dtype, "fp32") == 0 ? 4 : 2,
                                    .reuse = strcmp(a->gradients, "reuse") == 0,
                                    .granule = a->granule,
                                    .chunk_bytes = a->chunk};
    HL_TRY(read_model(cli, model, &e));
    hl_status st = hl_estimate_run(&e, &o);
    if (st == HL_OK)
        st = cli->json ? print_json(a, &e) : print_text(a, &e);
    hl_estimate_fini(&e);
    return st;
}

hl_status cmd_mem_estimate(struct cli *cli, int argc, char **argv)
{
    struct estimate_args a = {0};
    hl_status st = cli_args(cli, rows, HL_ARRAY_LEN(rows), argc, argv, &a, 1, 1);
    if (st == HL_OK)
        st = estimate_model(cli, &a, argv[0]);
    hl_args_fini(rows, HL_ARRAY_LEN(rows), &a);
    return st;
}

/* A configuration file of any bytes, for each program in turn (the first byte). What is accepted
 * must print, and each printed value is accepted again and gives the same. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "program/conf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int ok)
{
    if (!ok) {
        fprintf(stderr, "%s\n", hl_error_text());
        abort();
    }
}

static hl_status load(enum hl_program program, const void *text, size_t len, struct hl_arena *arena,
                      struct hl_api_option_info_list *dump)
{
    static int fd = -1;
    char path[32], name[] = "fuzz", flag[] = "--config";
    struct program_conf conf = {0};
    if (fd < 0)
        fd = memfd_create("fuzz", MFD_CLOEXEC);
    check(fd >= 0 && ftruncate(fd, 0) == 0 && pwrite(fd, text, len, 0) == (ssize_t)len);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    hl_status st = program_conf_load(program, 3, (char *[]){name, flag, path, NULL}, &conf, NULL);
    if (st == HL_OK)
        check(hl_conf_dump(&conf.conf, arena, dump) == HL_OK);
    program_conf_fini(&conf);
    return st;
}

/* What the file gave, one option a line, as YAML with every value in quotes; NULL: one of them is
 * masked. */
static char *written(const struct hl_api_option_info_list *dump)
{
    json_t *doc = json_object();
    for (size_t i = 0; i < dump->count; i++) {
        const struct hl_api_option_info *row = &dump->items[i];
        check(row->value != NULL && row->origin != NULL);
        if (strncmp(row->origin, "file ", 5) == 0 && strstr(row->value, "***") == NULL)
            json_object_set_new(doc, row->name, json_string(row->value));
        char *text = hl_conf_text(&program_schema, row->name, row->value);
        check(text != NULL);
        free(text);
    }
    char *text = json_dumps(doc, JSON_INDENT(1) | JSON_ENSURE_ASCII);
    check(text != NULL && strlen(text) > 0);
    json_decref(doc);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum hl_program programs[] = {HL_CONTROLLER, HL_L3D, HL_AGENT, HL_CLI};

    struct hl_arena arena = {0};
    struct hl_api_option_info_list one, two;
    if (size < 1)
        return 0;
    enum hl_program program = programs[data[0] % 4];
    if (load(program, data + 1, size - 1, &arena, &one) != HL_OK)
        return 0;
    char *text = written(&one);
    check(load(program, text, strlen(text), &arena, &two) == HL_OK);
    char *again = written(&two);
    if (strcmp(text, again) != 0) {
        fprintf(stderr, "%s\n%s\n", text, again);
        abort();
    }
    free(text);
    free(again);
    hl_arena_fini(&arena);
    return 0;
}

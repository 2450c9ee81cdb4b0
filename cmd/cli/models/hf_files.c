#include "cli/models/hf_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli/cli.h"
#include "core/model/hf.h"

#define INDEX HF_MODEL ".safetensors.index.json"

struct hf_file hf_file_next(const struct hl_partition_plan *p, size_t first)
{
    uint64_t bytes = 0;
    size_t end = first;
    while (end < p->tensor_count && (end == first || bytes + p->tensors[end].size <= HF_FILE_BYTES))
        bytes += p->tensors[end++].size;
    return (struct hf_file){first, end};
}

unsigned hf_file_count(const struct hl_partition_plan *p)
{
    unsigned n = 0;
    for (size_t at = 0; at < p->tensor_count; n++)
        at = hf_file_next(p, at).end;
    return n;
}

void hf_file_name(const char *stem, unsigned number, unsigned count, char *buf, size_t cap)
{
    if (count == 1)
        snprintf(buf, cap, "%s.safetensors", stem);
    else
        snprintf(buf, cap, "%s-%05u-of-%05u.safetensors", stem, number, count);
}

bool hf_is_file_of(const char *name, const char *stem)
{
    unsigned number, of;
    int end = 0;
    size_t n = strlen(stem);
    if (strncmp(name, stem, n) != 0)
        return false;
    const char *rest = name + n;
    return strcmp(rest, ".safetensors") == 0 || strcmp(rest, ".safetensors.index.json") == 0 ||
           (sscanf(rest, "-%5u-of-%5u.safetensors%n", &number, &of, &end) == 2 && end > 0 &&
            rest[end] == '\0');
}

hl_status hf_write_document(const char *dir, const char *name, json_t *doc)
{
    char path[PATH_MAX];
    HL_AUTO(hl_freep) char *text = doc != NULL ? json_dumps(doc, JSON_INDENT(2)) : NULL;
    json_decref(doc);
    if (text == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %s", name);
    hl_hf_json_unquote(text);
    HL_TRY(cli_path(path, "%s/%s", dir, name));
    return outfile_text(path, text);
}

hl_status hf_write_index(const char *dir, const struct hl_partition_plan *p)
{
    json_t *map = json_object();
    char name[64];
    uint64_t total = 0;
    unsigned number = 0, count = hf_file_count(p);
    for (size_t at = 0; at < p->tensor_count;) {
        struct hf_file file = hf_file_next(p, at);
        hf_file_name(HF_MODEL, ++number, count, name, sizeof(name));
        for (; at < file.end; at++) {
            json_object_set_new(map, p->tensors[at].name, json_string(name));
            total += p->tensors[at].size;
        }
    }
    return hf_write_document(dir, INDEX,
                             json_pack("{s:{s:I}, s:o}", "metadata", "total_size",
                                       (json_int_t)total, "weight_map", map));
}

hl_status hf_write_config(const char *dir, const json_t *config, enum hl_dtype dtype)
{
    static const char *const keys[] = {"torch_dtype", "dtype"};
    static const char *const names[HL_DTYPE_COUNT] = {
        [HL_DTYPE_F64] = "float64",
        [HL_DTYPE_F32] = "float32",
        [HL_DTYPE_F16] = "float16",
        [HL_DTYPE_BF16] = "bfloat16",
    };
    json_t *hf = json_deep_copy(config);
    for (size_t i = 0; i < HL_ARRAY_LEN(keys) && dtype < HL_DTYPE_COUNT && names[dtype] != NULL;
         i++)
        if (json_is_string(json_object_get(hf, keys[i])))
            json_object_set_new(hf, keys[i], json_string(names[dtype]));
    return hf_write_document(dir, "config.json", hf);
}

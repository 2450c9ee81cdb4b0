#include "cli/models/adapter.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/json.h"
#include "core/lora.h"

void adapter_base(const char *dir, const char *said, char out[HL_MODEL_NAME_MAX + 1])
{
    char path[PATH_MAX];
    snprintf(out, HL_MODEL_NAME_MAX + 1, "%s", said);
    int n = snprintf(path, sizeof(path), "%s/" HL_LORA_CONFIG, dir);
    if (said[0] != '\0' || n < 0 || (size_t)n >= sizeof(path))
        return;
    json_t *doc = json_load_file(path, 0, NULL);
    const char *base = hl_json_str(doc, "base_model_name_or_path", "");
    const char *slash = strrchr(base, '/'), *name = slash != NULL ? slash + 1 : base;
    if (strlen(name) <= HL_MODEL_NAME_MAX)
        snprintf(out, HL_MODEL_NAME_MAX + 1, "%s", name);
    json_decref(doc);
}

void adapter_split(const char *config, int64_t *tp, int64_t *pp)
{
    json_t *doc = json_loads(config, 0, NULL);
    if (json_object_get(doc, "adapter") != NULL) {
        *tp = hl_json_int(doc, "tp", *tp);
        *pp = hl_json_int(doc, "pp", *pp);
    }
    json_decref(doc);
}

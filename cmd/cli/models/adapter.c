#include "cli/models/adapter.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/model/lora.h"
#include "os/file.h"

/* HL_OK with "": the file does not exist. */
HL_CHECK static hl_status read_base(const char *path, char out[HL_MODEL_NAME_MAX + 1])
{
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(HL_HF_CONFIG_MAX);
    struct hl_lora_config c;
    if (hl_file_read(path, &text) != HL_OK) {
        hl_error_clear();
        return HL_OK;
    }
    HL_TRY(hl_lora_config_parse(text.data != NULL ? text.data : "", text.len, path, &c));
    const char *slash = strrchr(c.base, '/'), *name = slash != NULL ? slash + 1 : c.base;
    if (strlen(name) <= HL_MODEL_NAME_MAX)
        snprintf(out, HL_MODEL_NAME_MAX + 1, "%s", name);
    hl_lora_config_fini(&c);
    return HL_OK;
}

hl_status adapter_base(const char *dir, const char *said, char out[HL_MODEL_NAME_MAX + 1])
{
    char path[PATH_MAX];
    snprintf(out, HL_MODEL_NAME_MAX + 1, "%s", said);
    int n = snprintf(path, sizeof(path), "%s/" HL_LORA_CONFIG, dir);
    if (said[0] != '\0' || n < 0 || (size_t)n >= sizeof(path))
        return HL_OK;
    return read_base(path, out);
}

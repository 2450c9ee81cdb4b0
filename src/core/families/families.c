/* The list of all model families, and how the family of a model is found. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/families/tables.h"

const struct hl_family *const hl_families[] = {
    &hl_family_llama4,      &hl_family_llama,     &hl_family_mistral,
    &hl_family_mixtral,     &hl_family_qwen2_moe, &hl_family_qwen2,
    &hl_family_qwen3_moe,   &hl_family_qwen3,     &hl_family_gemma2,
    &hl_family_gemma3,      &hl_family_phi3,      &hl_family_deepseek_v2,
    &hl_family_deepseek_v3, &hl_family_glm4_moe,  &hl_family_gpt_oss,
    &hl_family_gpt_neox,    &hl_family_gpt2,      NULL,
};

static bool has_type(const struct hl_family *f, const char *type)
{
    if (strcmp(type, f->name) == 0)
        return true;
    for (size_t i = 0; i < HL_ARRAY_LEN(f->types) && f->types[i] != NULL; i++)
        if (strcmp(type, f->types[i]) == 0)
            return true;
    return false;
}

const struct hl_family *hl_family_find(const char *model_type, const char *class_name)
{
    for (size_t i = 0; hl_families[i] != NULL; i++) {
        const struct hl_family *f = hl_families[i];
        if (model_type != NULL
                ? has_type(f, model_type)
                : class_name != NULL && f->class_prefix != NULL &&
                      strncmp(class_name, f->class_prefix, strlen(f->class_prefix)) == 0)
            return f;
    }
    return NULL;
}

const char *hl_family_names(char *buf, size_t cap)
{
    size_t at = 0;
    buf[0] = '\0';
    for (size_t i = 0; hl_families[i] != NULL && at < cap; i++)
        at += (size_t)snprintf(buf + at, cap - at, "%s%s",
                               i == 0                       ? ""
                               : hl_families[i + 1] == NULL ? " or "
                                                            : ", ",
                               hl_families[i]->name);
    return buf;
}

const char *hl_vision_name(const char *name)
{
    static const char *const modules[] = {"vision_tower.", "vision_model.",
                                          "multi_modal_projector."};
    for (const char *at = name; at != NULL;) {
        for (size_t i = 0; i < HL_ARRAY_LEN(modules); i++)
            if (strncmp(at, modules[i], strlen(modules[i])) == 0)
                return at;
        at = strchr(at, '.');
        at = at != NULL ? at + 1 : NULL;
    }
    return NULL;
}

/* The place of this process in a gang that can be resized. */
#include "client/client_private.h"

static hl_status lines_write(const struct hl_api_key_value_list *list, char *out, size_t cap)
{
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < list->count; i++) {
        int n =
            snprintf(out + used, cap - used, "%s=%s\n", list->items[i].key, list->items[i].value);
        if (n < 0 || (size_t)n >= cap - used)
            return hl_fail(HL_EINVAL, "helios_join_gang: %zu bytes are too few for %zu variables",
                           cap, list->count);
        used += (size_t)n;
    }
    return HL_OK;
}

static hl_status ask_place(struct operation *op, const struct hl_api_controller_join_gang_params *p,
                           struct hl_arena *arena, struct hl_api_controller_join_gang_results *out)
{
    hl_status st;
    HL_TRY(controller_named(op, "joinGang"));
    do
        st = hl_call_controller_join_gang(op->client->controller, p, operation_left_ms(op), arena,
                                          out);
    while (controller_again(op, st));
    return st;
}

int helios_join_gang(helios_client *client, const char *job, int attempt, int container,
                     int local_rank, int32_t *number, char *env, size_t cap)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_join_gang_results r;
    struct operation op;
    hl_status st;
    if (client == NULL || job == NULL || number == NULL || env == NULL || cap == 0)
        return hl_fail(HL_EINVAL, "helios_join_gang: an argument is NULL, or cap is 0");
    hl_error_clear();
    const struct hl_api_controller_join_gang_params p = {
        .job = job, .attempt = attempt, .container = container, .local_rank = local_rank};
    pthread_mutex_lock(&client->lock);
    operation_begin(&op, client);
    st = ask_place(&op, &p, &arena, &r);
    pthread_mutex_unlock(&client->lock);
    HL_TRY(st);
    HL_TRY(lines_write(&r.env, env, cap));
    *number = r.number;
    return HL_OK;
}

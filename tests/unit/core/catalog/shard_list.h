/* Shards that a test writes as JSON. */
#ifndef TESTS_UNIT_CORE_SHARD_LIST_H
#define TESTS_UNIT_CORE_SHARD_LIST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "api/api.h"
#include "api/types.h"

/* List(Shard); it lives until the program ends. */
static inline struct hl_api_shard_list shard_list(const json_t *shards)
{
    static struct hl_arena arena;
    struct hl_api_shard_list list = {
        .items = hl_arena_array(&arena, json_array_size(shards), sizeof(*list.items)),
        .count = json_array_size(shards)};
    for (size_t i = 0; i < list.count; i++)
        assert_int_equal(
            hl_api_from_json(&hl_api_shard_type, json_array_get(shards, i), &arena, &list.items[i]),
            HL_OK);
    return list;
}

#endif

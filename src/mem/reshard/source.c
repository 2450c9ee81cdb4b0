/* The source shards: their checksums and the location of their tensors. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "mem/reshard/reshard_private.h"

HL_CHECK static hl_status verify_chunk(const struct hl_resharding *r, uint32_t shard, uint64_t i)
{
    const struct hl_reshard_source *s = &r->run->sources[shard];
    const struct hl_partition_shard *p = &r->run->a->shards[shard];
    const uint8_t *bytes = s->bytes;
    uint32_t want = hl_chunk_crc(&s->chunks, i);
    uint32_t crc = hl_crc32(0, bytes + i * HL_CHUNK, hl_chunk_len(s->chunks.size, i));
    if (crc == want)
        return HL_OK;
    return hl_fail(HL_ECORRUPT,
                   "MiB %" PRIu64 " of source shard %s (pp %d, tp %d, %s) is damaged: its CRC is "
                   "%08x, not %08x; read another copy",
                   i, hl_id_format(s->id).s, p->pp, p->tp, p->part, crc, want);
}

/* `verified[i]` changes from 0 to 1 once, which says that MiB i matched its checksum. The bytes are
 * read-only and do not change, so the flag orders nothing and is relaxed. Two workers may verify
 * the same MiB at once; that only wastes time, and `verified_bytes` may count it twice. */
hl_status hl_resharding_verify(struct hl_resharding *r, uint32_t shard, uint64_t offset,
                               uint64_t len)
{
    const struct hl_reshard_source *s = &r->run->sources[shard];
    atomic_uchar *verified = &r->verified[r->verified_first[shard]];
    if (len == 0)
        return HL_OK;
    for (uint64_t i = offset / HL_CHUNK; i <= (offset + len - 1) / HL_CHUNK; i++) {
        if (atomic_load_explicit(&verified[i], memory_order_relaxed) != 0)
            continue;
        HL_TRY(verify_chunk(r, shard, i));
        atomic_store_explicit(&verified[i], 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&r->verified_bytes, hl_chunk_len(s->chunks.size, i),
                                  memory_order_relaxed);
    }
    return HL_OK;
}

HL_CHECK static hl_status parse_header(struct hl_resharding *r, uint32_t shard,
                                       struct hl_safetensors *out)
{
    const struct hl_reshard_source *s = &r->run->sources[shard];
    uint64_t size = s->chunks.size, n, first = size < 8 ? size : 8;
    HL_TRY(hl_resharding_verify(r, shard, 0, first));
    HL_TRY(hl_safetensors_header_len(s->bytes, first, size, &n));
    HL_TRY(hl_resharding_verify(r, shard, 0, n + 8));
    return hl_safetensors_parse(s->bytes, n + 8, size, out);
}

/* Checks that the shard has every tensor of the plan, with the plan's dtype and shape. */
HL_CHECK static hl_status find_tensors(struct hl_resharding *r, uint32_t shard,
                                       const struct hl_safetensors *header)
{
    const struct hl_partition_shard *p = &r->run->a->shards[shard];
    char has[192], want[192];
    for (uint32_t i = p->tensor_first; i < p->tensor_first + p->tensor_count; i++) {
        const struct hl_tensor *t = &r->run->a->tensors[i];
        const struct hl_tensor *found = hl_safetensors_find(header, t->name);
        if (found == NULL)
            return hl_fail(HL_EINVAL, "tensor '%s' of the layout is missing", t->name);
        if (found->dtype != t->dtype || found->rank != t->rank ||
            memcmp(found->shape, t->shape, t->rank * sizeof(t->shape[0])) != 0)
            return hl_fail(HL_EINVAL, "tensor '%s' is %s %s, the layout says %s %s", t->name,
                           hl_dtype_name(found->dtype),
                           hl_tensor_shape_text(found, has, sizeof(has)), hl_dtype_name(t->dtype),
                           hl_tensor_shape_text(t, want, sizeof(want)));
        r->tensor_at[i] = header->data_offset + found->offset;
    }
    return HL_OK;
}

HL_CHECK static hl_status open_source(struct hl_resharding *r, uint32_t shard)
{
    const struct hl_reshard_source *s = &r->run->sources[shard];
    struct hl_safetensors header;
    if (s->bytes == NULL)
        return hl_fail(HL_ENOENT, "its bytes were not given");
    if (s->chunks.size > HL_CHUNK)
        HL_TRY(hl_chunks_check(s->id, s->chunks.size, s->chunks.crc32, s->chunks.crcs,
                               hl_chunk_count(s->chunks.size)));
    HL_TRY(parse_header(r, shard, &header));
    hl_status st = find_tensors(r, shard, &header);
    hl_safetensors_fini(&header);
    return st;
}

/* Marks in `needed` the shards of a that shard `shard` of b reads. */
static void mark_needed(const struct hl_resharding *r, size_t shard, unsigned char *needed)
{
    const struct hl_reshard_plan *plan = r->run->plan;
    const struct hl_partition_shard *to = &r->run->b->shards[shard];
    for (uint32_t i = plan->op_first[to->tensor_first];
         i < plan->op_first[to->tensor_first + to->tensor_count]; i++)
        if (plan->ops[i].kind != HL_RESHARD_ZERO)
            needed[plan->ops[i].shard] = 1;
}

/* Runs in the calling thread before the workers start; they only read the tables built here. */
hl_status hl_resharding_open_sources(struct hl_resharding *r)
{
    const struct hl_partition_plan *a = r->run->a;
    HL_AUTO(hl_freep) unsigned char *needed = calloc(a->shard_count + 1, 1);
    uint64_t chunks = 0;
    r->verified_first = calloc(a->shard_count + 1, sizeof(*r->verified_first));
    r->tensor_at = calloc(a->tensor_count + 1, sizeof(*r->tensor_at));
    if (needed == NULL || r->verified_first == NULL || r->tensor_at == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a table of %zu source tensors",
                       a->tensor_count);
    for (size_t i = 0; i < r->run->b->shard_count; i++)
        if (hl_resharding_wants(r, i))
            mark_needed(r, i, needed);
    for (size_t i = 0; i < a->shard_count; i++) {
        r->verified_first[i] = chunks;
        chunks += needed[i] ? hl_chunk_count(r->run->sources[i].chunks.size) : 0;
    }
    r->verified = calloc(chunks + 1, sizeof(*r->verified));
    if (r->verified == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a table of %" PRIu64 " MiB", chunks);
    for (uint32_t i = 0; i < a->shard_count; i++) {
        hl_status st = needed[i] ? open_source(r, i) : HL_OK;
        if (st != HL_OK)
            return hl_fail_prefix(st, "source shard of pp %d, tp %d, %s: ", a->shards[i].pp,
                                  a->shards[i].tp, a->shards[i].part);
    }
    return HL_OK;
}

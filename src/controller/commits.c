/* Writes to the store. Nothing here waits for the disk: a thread of the store commits, and the
 * answer comes back to the loop.
 *
 * An operation of the catalogue commits and then applies, in one call. So such a change is made
 * twice. The first time its commit takes a copy of the records and fails, which leaves memory
 * unchanged. Once the records are durable the change is made again, and the same commit succeeds.
 * Changes are made one after another, so that the second time finds the catalogue as the first
 * time did, and readers see only what is durable.
 *
 *     c->changes --> [ writing ] --> [ waits ] --> [ waits ] --> NULL
 *                       |
 *                       | records, and the next revision
 *                       v
 *                    store/writer: its thread commits, on_change_written runs on the loop
 *
 * States of a change, all set on the loop's thread:
 *
 *     waits --first of the queue: make--> writing --durable--> durable --make--> applied --> done
 *       |                                    |                    |
 *       |--make fails: it has nothing        |--the disk fails    |--other records than before:
 *       |  to write, or is refused--> done   v                    |  writing again, 3 times at most
 *       |                                  done                   |--make fails: done, and an error
 *       |--changes_stop--> done                                      is logged: the store has it
 *
 * The records can differ the second time if they contain something that the first make has computed
 * from more than the catalogue. Then the store does not have what would be applied, so the change
 * is written once more. */
#include "controller/commits.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "controller/core.h"
#include "store/store.h"

#define CHANGE_TRIES 3

static void changes_run(struct hl_controller *c);

/* Makes operations that borrow from the records; free() them. */
static struct hl_store_op *ops_of(const struct hl_records *records)
{
    struct hl_store_op *ops = calloc(records->count + 1, sizeof(*ops));
    for (size_t i = 0; ops != NULL && i < records->count; i++) {
        const struct hl_record *r = &records->list[i];
        ops[i] = (struct hl_store_op){r->value == NULL ? HL_STORE_DELETE : HL_STORE_PUT, r->key,
                                      r->value};
    }
    return ops;
}

hl_status controller_write(struct hl_controller *c, const struct hl_records *records,
                           hl_store_written done, void *arg)
{
    struct hl_store_op *ops = ops_of(records);
    if (ops == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a batch of %zu records", records->count);
    c->refs++;
    hl_store_writer_put(c->writer, ops, records->count, done, arg);
    free(ops);
    return HL_OK;
}

/* ---- changes of the catalogue ---------------------------------------------------------------- */

static hl_status records_copy(const struct hl_records *from, struct hl_records *to)
{
    for (size_t i = 0; i < from->count; i++) {
        const struct hl_record *r = &from->list[i];
        json_t *value = r->value != NULL ? json_deep_copy(r->value) : NULL;
        if (r->value != NULL && value == NULL)
            return hl_fail(HL_ENOMEM, "out of memory for the record %s", r->key);
        HL_TRY(hl_records_add(to, value, "%s", r->key));
    }
    return HL_OK;
}

/* `written` has one record more than `made`: the revision. */
static bool records_equal(const struct hl_records *written, const struct hl_records *made)
{
    if (written->count != made->count + 1)
        return false;
    for (size_t i = 0; i < made->count; i++) {
        const struct hl_record *x = &written->list[i], *y = &made->list[i];
        bool same = x->value == NULL || y->value == NULL ? x->value == y->value
                                                         : json_equal(x->value, y->value);
        if (!same || strcmp(x->key, y->key) != 0)
            return false;
    }
    return true;
}

/* Ends the change at the head of the queue. */
static void change_end(struct hl_controller *c, hl_status st)
{
    struct change *ch = c->changes;
    c->changes = ch->next;
    hl_records_fini(&ch->records);
    ch->done(ch, st);
}

static void on_change_written(void *arg, hl_status st, const char *text)
{
    struct hl_controller *c = arg;
    if (controller_stopped(c))
        return;
    struct change *ch = c->changes;
    ch->writing = false;
    ch->durable = st == HL_OK;
    if (st != HL_OK)
        change_end(c, hl_fail(st, "%s", text));
    changes_run(c);
}

/* The commit of the change that is being made, called by ch->make through commit_records. HL_EBUSY
 * has the effect of a failure: the catalogue's operation leaves memory unchanged. */
static hl_status change_commit(struct hl_controller *c, struct change *ch,
                               const struct hl_records *records)
{
    if (ch->durable && records_equal(&ch->records, records)) {
        ch->applied = true;
        claim_changed(c);
        return HL_OK;
    }
    if (ch->tries++ == CHANGE_TRIES)
        return hl_fail(HL_EINTERNAL, "the records of a change differ each time it is made");
    hl_records_fini(&ch->records);
    HL_TRY(records_copy(records, &ch->records));
    HL_TRY(claim_add_revision(&ch->records, c->claim.revision + 1));
    HL_TRY(controller_write(c, &ch->records, on_change_written, c));
    ch->writing = true;
    return hl_fail(HL_EBUSY, "the change is being written");
}

/* The commit outside of a change. */
static hl_status commit_now(struct hl_controller *c, const struct hl_records *records)
{
    struct hl_records all = {0};
    hl_status st = records_copy(records, &all);
    if (st == HL_OK)
        st = claim_add_revision(&all, c->claim.revision + 1);
    struct hl_store_op *ops = st == HL_OK ? ops_of(&all) : NULL;
    if (st == HL_OK && ops == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory for a batch of %zu records", all.count);
    if (st == HL_OK)
        st = hl_store_commit(c->store, ops, all.count);
    free(ops);
    hl_records_fini(&all);
    if (st == HL_OK)
        claim_changed(c);
    return st;
}

hl_status commit_records(void *arg, const struct hl_records *records)
{
    struct hl_controller *c = arg;
    if (c->making)
        return change_commit(c, c->changes, records);
    if (c->changes != NULL) /* the records may be wrong once that change is applied */
        return hl_fail(HL_EBUSY, "another change of the catalogue is being written; try again");
    return commit_now(c, records);
}

/* Makes the change at the head of the queue, and those after it, until one waits for the disk. */
static void changes_run(struct hl_controller *c)
{
    while (!c->making && !c->closing && c->changes != NULL && !c->changes->writing) {
        struct change *ch = c->changes;
        c->making = true;
        hl_status st = ch->make(ch);
        c->making = false;
        if (ch->writing)
            return;
        if (ch->durable && !ch->applied)
            hl_error("a change is in the store and was not applied; restart the Controller "
                     "error=\"%s\"",
                     hl_error_text());
        change_end(c, st);
    }
}

void change_start(struct hl_controller *c, struct change *ch)
{
    struct change **at = &c->changes;
    while (*at != NULL)
        at = &(*at)->next;
    ch->c = c;
    ch->next = NULL;
    *at = ch;
    changes_run(c);
}

void changes_stop(struct hl_controller *c)
{
    while (c->changes != NULL)
        change_end(c, hl_fail(HL_ECANCELED, "the Controller was stopped"));
}

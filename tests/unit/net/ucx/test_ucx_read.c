/* Reads from a server that answers wrongly: twice, in another order, too much, to the wrong
 * request. The test's server, on a thread of its own, speaks UCX as the real one does. */
#include "support/test.h"

#include <stdatomic.h>

#include "support/fault.h"
#include "unit/net/net_rig.h"

#include "base/plane.h"

#define PIECE    HL_UCX_PIECE
#define FRAGMENT HL_UCX_FRAGMENT
#define PIECES   3
#define LEN      (PIECES * (size_t)PIECE)

#define PATIENCE_MS  10000
#define STOP_LOOK_NS HL_NS_PER_MS /* how often `stop` is checked */

enum lie {
    HONEST,
    TWICE,           /* each fragment comes two times */
    ANSWERED_TWICE,  /* the last fragment of an answer, and then the whole answer again */
    PIECES_BACKWARD, /* the last request is answered first */
    SWAPPED,         /* two fragments of a piece are swapped */
    TOO_LONG,        /* one fragment reaches beyond its piece */
    SHORT_HEADER,    /* the header gives less than what was sent */
    EMPTY,           /* no bytes: not a message of the protocol; the good one follows */
    UNASKED,         /* for requests that were never made, before each fragment */
    NOISE,           /* bytes that are not of the protocol, before each fragment */
};

struct liar {
    struct hl_ucx ucx;
    ucp_listener_h listener;
    ucp_ep_h ep;
    enum lie lie;
    struct hl_wire asked[PIECES];
    size_t asks;
    atomic_bool stop;
    pthread_t thread;
    char address[64];
};

static void says(struct liar *l, const void *header, size_t header_len, const void *data,
                 size_t len)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_AM_SEND_FLAG_EAGER};
    void *request = ucp_am_send_nbx(l->ep, HL_WIRE_AM_ID, header, header_len, data, len, &param);
    if (UCS_PTR_IS_ERR(request))
        return; /* the client has given up */
    while (!hl_ucx_request_done(request) && !atomic_load(&l->stop))
        ucp_worker_progress(l->ucx.worker);
}

static void sends(struct liar *l, uint64_t op, uint64_t offset, size_t len, size_t said)
{
    struct hl_wire w = {.magic = HL_WIRE_MAGIC,
                        .version = HL_WIRE_VERSION,
                        .type = HL_WIRE_DATA,
                        .op = op,
                        .offset = offset,
                        .len = said};
    says(l, &w, sizeof(w), pool + offset, len);
}

static void sends_fragment(struct liar *l, const struct hl_wire *ask, size_t at)
{
    uint64_t offset = ask->offset + at;
    if (l->lie == SWAPPED && at < 2 * FRAGMENT)
        offset = ask->offset + FRAGMENT - at;
    if (l->lie == UNASKED)
        sends(l, ask->op + 1000, 0, FRAGMENT, FRAGMENT);
    if (l->lie == NOISE)
        says(l, pool + 99, sizeof(struct hl_wire), pool, FRAGMENT);
    if (l->lie == EMPTY)
        sends(l, ask->op, offset, 0, 0);
    size_t len = FRAGMENT + (l->lie == TOO_LONG && at + FRAGMENT == ask->len);
    sends(l, ask->op, offset, len, len - (l->lie == SHORT_HEADER));
    if (l->lie == TWICE)
        sends(l, ask->op, offset, len, len);
}

static void answers(struct liar *l, const struct hl_wire *ask)
{
    for (size_t at = 0; at < ask->len; at += FRAGMENT)
        sends_fragment(l, ask, at);
    for (size_t at = 0; l->lie == ANSWERED_TWICE && at < ask->len; at += FRAGMENT)
        sends(l, ask->op, ask->offset + at, FRAGMENT, FRAGMENT);
}

/* The requests of one fetch wait until all have come; they are answered outside of the callback.
 * Those of the next one can come while the last answers are being sent. */
static void answer_all(struct liar *l)
{
    struct hl_wire asked[PIECES];
    if (l->asks < PIECES)
        return;
    memcpy(asked, l->asked, sizeof(asked));
    l->asks = 0;
    for (size_t i = 0; i < PIECES; i++)
        answers(l, &asked[l->lie == PIECES_BACKWARD ? PIECES - 1 - i : i]);
}

static ucs_status_t on_word(void *arg, const void *header, size_t header_len, void *data,
                            size_t len, const ucp_am_recv_param_t *param)
{
    struct liar *l = arg;
    struct hl_wire w;
    (void)data, (void)param;
    if (!hl_wire_decode(HL_WIRE_TO_SERVER, header, header_len, len, &w))
        return UCS_OK;
    if (w.type == HL_WIRE_HELLO)
        (void)!hl_ucx_send(
            l->ep,
            &(struct hl_ucx_send){
                .wire = {
                    .type = HL_WIRE_WELCOME, .op = 1, .len = POOL_LEN, .id_hi = 1, .id_lo = 2}});
    if (w.type == HL_WIRE_ASK && l->asks < PIECES)
        l->asked[l->asks++] = w;
    return UCS_OK;
}

static void on_gone(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    (void)arg, (void)ep, (void)status;
}

static void on_caller(ucp_conn_request_h request, void *arg)
{
    struct liar *l = arg;
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
        .conn_request = request,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = on_gone, .arg = l},
    };
    if (ucp_ep_create(l->ucx.worker, &params, &l->ep) != UCS_OK)
        abort();
}

static void *liar_main(void *arg)
{
    struct liar *l = arg;
    while (!atomic_load(&l->stop)) {
        if (ucp_worker_progress(l->ucx.worker) == 0)
            hl_ucx_nap(&l->ucx, -1, STOP_LOOK_NS);
        answer_all(l);
    }
    if (l->ep != NULL) {
        void *request = hl_ucx_ep_close(l->ep);
        while (!hl_ucx_request_done(request))
            ucp_worker_progress(l->ucx.worker);
    }
    ucp_listener_destroy(l->listener);
    hl_ucx_fini(&l->ucx);
    return NULL;
}

static void liar_start(struct liar *l, enum lie lie)
{
    struct hl_addr addr;
    *l = (struct liar){.lie = lie};
    assert_int_equal(hl_addr_resolve("127.0.0.1:0", 1000, &addr), HL_OK);
    assert_int_equal(hl_ucx_init(&l->ucx, &(struct hl_ucx_opts){.device = "lo"}), HL_OK);
    assert_int_equal(hl_ucx_listen_to(&l->ucx, on_word, l), HL_OK);
    ucp_listener_params_t params = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr = {.addr = (const struct sockaddr *)&addr.sa, .addrlen = addr.len},
        .conn_handler = {.cb = on_caller, .arg = l},
    };
    assert_int_equal(ucp_listener_create(l->ucx.worker, &params, &l->listener), UCS_OK);
    ucp_listener_attr_t attr = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    assert_int_equal(ucp_listener_query(l->listener, &attr), UCS_OK);
    snprintf(l->address, sizeof(l->address), "127.0.0.1:%u",
             ntohs(((struct sockaddr_in *)&attr.sockaddr)->sin_port));
    assert_int_equal(pthread_create(&l->thread, NULL, liar_main, l), 0);
}

static void liar_stop(struct liar *l)
{
    atomic_store(&l->stop, true);
    pthread_join(l->thread, NULL);
}

/* What a client got from a lying server. */
struct seen {
    hl_status first, again;        /* of two fetches; `first` may be that of the connect */
    char words[HL_ERROR_TEXT_MAX]; /* of the first one that failed */
    bool whole;                    /* the bytes of every fetch that was HL_OK are right */
};

static hl_status note_status(struct seen *seen, hl_status st)
{
    if (st != HL_OK && seen->words[0] == '\0')
        snprintf(seen->words, sizeof(seen->words), "%s", hl_error_text());
    return st;
}

/* Asserts nothing: a failed assertion would leave the caller's frame, which the server's thread
 * uses. The client waits as long as its deadline, so a busy machine does not count as a stall. */
static void talk_to_liar(const struct liar *l, uint8_t *at, struct seen *seen)
{
    uint32_t crcs[PIECES];
    struct hl_net_bad bad;
    struct hl_net_client *client = NULL;
    struct hl_net_connect_opts opts = {.address = l->address,
                                       .timeout_ms = PATIENCE_MS,
                                       .stall_ms = l->lie == SHORT_HEADER ? 100 : PATIENCE_MS,
                                       .ops = back_end};
    for (size_t i = 0; i < PIECES; i++)
        crcs[i] = hl_crc32(0, pool + FRAGMENT + i * PIECE, PIECE);
    *seen = (struct seen){.whole = true};
    seen->first = note_status(seen, hl_net_connect_with(&opts, &client));
    if (seen->first != HL_OK)
        return;
    seen->first = note_status(
        seen, hl_net_fetch_verified(client, FRAGMENT, at, LEN, crcs, PATIENCE_MS, &bad));
    if (seen->first == HL_OK) {
        seen->whole = memcmp(at, pool + FRAGMENT, LEN) == 0;
        /* The next fetch must not take excess bytes for its own. */
        seen->again = note_status(
            seen, hl_net_fetch_verified(client, FRAGMENT, at, LEN, crcs, PATIENCE_MS, &bad));
        if (seen->again == HL_OK)
            seen->whole &= memcmp(at, pool + FRAGMENT, LEN) == 0;
    } else {
        seen->again = hl_net_fetch(client, 0, at, 64, PATIENCE_MS);
    }
    hl_net_close(client);
}

/* Fetches from a server that tells `lie`, between two guards that must stay unchanged. The fetch
 * must end with `want`; if that is HL_OK, the bytes are right. */
static void expect(enum lie lie, hl_status want)
{
    struct liar l;
    struct seen seen;
    uint8_t *dst = malloc(LEN + 2 * FRAGMENT), *at = dst + FRAGMENT;
    bool guarded = true;
    memset(dst, 0x5a, LEN + 2 * FRAGMENT);
    liar_start(&l, lie);
    talk_to_liar(&l, at, &seen);
    liar_stop(&l);
    for (size_t i = 0; i < FRAGMENT; i++)
        guarded &= dst[i] == 0x5a && at[LEN + i] == 0x5a;
    free(dst);
    if (seen.first != want)
        fail_msg("lie %d: %s, not %s: %s", lie, hl_status_name(seen.first), hl_status_name(want),
                 seen.words);
    /* A client that has failed is given up. */
    if (seen.again != (want == HL_OK ? HL_OK : HL_EUNAVAIL))
        fail_msg("lie %d: fetched again: %s: %s", lie, hl_status_name(seen.again), seen.words);
    if (want != HL_OK)
        assert_non_null(strstr(seen.words, l.address));
    assert_true(guarded);
    assert_true(seen.whole);
}

/* helios_fault_total of this process. */
static uint64_t counted(const char *cause)
{
    char line[128];
    struct hl_buf text = HL_BUF(1 << 20);
    assert_int_equal(hl_plane_metrics(&text), HL_OK);
    snprintf(line, sizeof(line), "helios_fault_total{cause=\"%s\",path=\"tcp\"} ", cause);
    const char *at = strstr(text.data, line);
    uint64_t n = at != NULL ? strtoull(at + strlen(line), NULL, 10) : 0;
    hl_buf_fini(&text);
    return n;
}

TEST(an_honest_answer_is_taken)
{
    expect(HONEST, HL_OK);
    static const char *const causes[] = {"duplicate", "reordered", "wrong-size", "foreign",
                                         "garbled"};
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(counted(causes[i]), 0);
}

TEST(a_fragment_that_comes_twice_ends_the_connection_and_a_late_answer_is_dropped)
{
    expect(TWICE, HL_EUNAVAIL);
    uint64_t twice = counted("duplicate");
    assert_true(twice > 0);
    expect(ANSWERED_TWICE, HL_OK);
    assert_true(counted("duplicate") > twice);
    fault_shown("tcp-read", "duplicate", "refused-or-dropped");
}

TEST(answers_in_another_order_are_placed_and_fragments_in_another_order_refused)
{
    expect(PIECES_BACKWARD, HL_OK);
    expect(SWAPPED, HL_EUNAVAIL);
    assert_true(counted("reordered") > 0);
    fault_shown("tcp-read", "reorder", "placed-or-refused");
}

TEST(a_fragment_of_a_wrong_size_is_never_taken)
{
    expect(TOO_LONG, HL_EUNAVAIL);
    assert_true(counted("wrong-size") > 0);
    expect(SHORT_HEADER, HL_ETIMEDOUT); /* none of its messages is valid */
    expect(EMPTY, HL_OK);
    fault_shown("tcp-read", "wrong-size", "refused");
}

TEST(what_nobody_asked_for_is_dropped)
{
    expect(UNASKED, HL_OK);
    assert_true(counted("foreign") > 0);
    uint64_t garbled = counted("garbled"); /* EMPTY is garbled, and SHORT_HEADER */
    assert_true(garbled > 0);
    expect(NOISE, HL_OK);
    assert_true(counted("garbled") > garbled);
    fault_shown("tcp-read", "foreign", "dropped");
}

TESTS_IN(over_ucx, NULL)

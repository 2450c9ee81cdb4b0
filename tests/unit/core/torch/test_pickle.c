/* Input is written by Python's own pickler, in every protocol; what it would never write is written
 * by hand. A tree is compared as text, in Python's notation. */
#include "support/test.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "core/torch/pickle.h"

static void put_value(struct hl_buf *b, const struct hl_pickle_value *v);

static void put_items(struct hl_buf *b, const struct hl_pickle_items *items, const char *ends)
{
    (void)hl_buf_printf(b, "%c", ends[0]);
    for (uint32_t i = 0; i < items->count; i++) {
        if (i > 0)
            (void)hl_buf_printf(b, ends[0] == '{' && i % 2 != 0 ? ":" : ",");
        put_value(b, items->at[i]);
    }
    (void)hl_buf_printf(b, "%c", ends[1]);
}

static void put_object(struct hl_buf *b, const struct hl_pickle_object *o)
{
    put_value(b, o->callable);
    put_items(b, &o->args->items, "()");
    if (o->keywords != NULL)
        put_value(b, o->keywords);
    if (o->list.count > 0)
        put_items(b, &o->list, "[]");
    if (o->pairs.count > 0)
        put_items(b, &o->pairs, "{}");
    if (o->state != NULL) {
        (void)hl_buf_printf(b, "=");
        put_value(b, o->state);
    }
}

static void put_value(struct hl_buf *b, const struct hl_pickle_value *v)
{
    switch (v->kind) {
    case HL_PICKLE_NONE:
        (void)hl_buf_printf(b, "None");
        break;
    case HL_PICKLE_BOOL:
        (void)hl_buf_printf(b, v->integer ? "True" : "False");
        break;
    case HL_PICKLE_INT:
        (void)hl_buf_printf(b, "%" PRId64, v->integer);
        break;
    case HL_PICKLE_FLOAT:
        (void)hl_buf_printf(b, "%.17g", v->real);
        break;
    case HL_PICKLE_TEXT:
        (void)hl_buf_printf(b, "'%.*s'", (int)v->text.len, v->text.data);
        break;
    case HL_PICKLE_BYTES:
        (void)hl_buf_printf(b, "b'%.*s'", (int)v->text.len, v->text.data);
        break;
    case HL_PICKLE_BIG:
        (void)hl_buf_printf(b, "0x");
        for (size_t i = v->text.len; i-- > 0;)
            (void)hl_buf_printf(b, "%02x", (uint8_t)v->text.data[i]);
        break;
    case HL_PICKLE_TUPLE:
        put_items(b, &v->items, "()");
        break;
    case HL_PICKLE_LIST:
        put_items(b, &v->items, "[]");
        break;
    case HL_PICKLE_DICT:
        put_items(b, &v->items, "{}");
        break;
    case HL_PICKLE_SET:
        put_items(b, &v->items, "<>");
        break;
    case HL_PICKLE_CLASS:
        (void)hl_buf_printf(b, "%s", v->text.data);
        break;
    case HL_PICKLE_PERSISTENT:
        (void)hl_buf_printf(b, "@");
        put_value(b, v->id);
        break;
    default:
        put_object(b, v->object);
    }
}

static void assert_reads(const void *bytes, size_t len, const char *expected)
{
    struct hl_pickle p;
    struct hl_buf b = HL_BUF(1 << 20);
    if (hl_pickle_parse(bytes, len, &p) != HL_OK)
        fail_msg("%s", hl_error_text());
    assert_int_equal(p.used, len);
    put_value(&b, p.root);
    assert_string_equal(b.data, expected);
    hl_buf_fini(&b);
    hl_pickle_fini(&p);
}

/* pickle.dumps(EXPRESSION, PROTOCOL); free() it. */
static uint8_t *dump(const char *expression, int protocol, size_t *len)
{
    char command[1024];
    uint8_t *bytes = malloc(1 << 16);
    snprintf(
        command, sizeof(command),
        "LD_PRELOAD= /usr/bin/python3 -c 'import argparse, collections, datetime, pickle, sys\n"
        "sys.stdout.buffer.write(pickle.dumps(%s, %d))'",
        expression, protocol);
    FILE *in = popen(command, "r");
    assert_non_null(in);
    *len = fread(bytes, 1, 1 << 16, in);
    assert_int_equal(pclose(in), 0);
    return bytes;
}

static void assert_dumps(const char *expression, int protocol, const char *expected)
{
    size_t len;
    uint8_t *bytes = dump(expression, protocol, &len);
    assert_reads(bytes, len, expected);
    free(bytes);
}

static void need_python(void)
{
    if (access("/usr/bin/python3", X_OK) != 0)
        TEST_SKIP("no Python here");
}

TEST(plain_values_of_every_protocol_are_read)
{
    need_python();
    for (int protocol = 2; protocol <= 5; protocol++)
        assert_dumps("{\"a\": 1, \"b\": [255, 256, 65535, 65536, -1, 2**31, -2**63, 2**63-1],"
                     " (1, \"\\u00e9\"): (), 2.5: (None, True, False), \"empty\": [{}, []],"
                     " \"four\": (1, 2, 3, 4)}",
                     protocol,
                     "{'a':1,'b':[255,256,65535,65536,-1,2147483648,-9223372036854775808,"
                     "9223372036854775807],(1,'\xc3\xa9'):(),2.5:(None,True,False),'empty':[{},[]],"
                     "'four':(1,2,3,4)}");
}

TEST(integers_have_any_size)
{
    need_python();
    assert_dumps("[2**63, -2**63-1, 2**2100 - 1 > 0]", 2,
                 "[0x008000000000000000,0xff7fffffffffffffff,True]");
    size_t len;
    uint8_t *bytes = dump("1 << 2100", 4, &len); /* LONG4 */
    struct hl_pickle p;
    assert_int_equal(hl_pickle_parse(bytes, len, &p), HL_OK);
    assert_int_equal(p.root->kind, HL_PICKLE_BIG);
    assert_int_equal(p.root->text.len, 2100 / 8 + 1);
    hl_pickle_fini(&p);
    free(bytes);
    assert_reads("\x80\x02\x8a\x09\x05\0\0\0\0\0\0\0\0.", 14, "5"); /* longer than necessary */
    assert_reads("\x80\x02\x8a\x0a\xfb\xff\xff\xff\xff\xff\xff\xff\xff\xff.", 15, "-5");
    assert_reads("\x80\x02\x8a\0.", 5, "0");
}

TEST(sets_and_bytes_are_read)
{
    need_python();
    assert_dumps("[{1}, frozenset([2]), b\"xy\", b\"z\" * 2]", 4, "[<1>,<2>,b'xy',b'zz']");
    assert_dumps("bytearray(b\"xyz\")", 5, "b'xyz'");
    assert_dumps("{1}", 2, "__builtin__.set([1])");
    assert_dumps("b\"xy\"", 2, "_codecs.encode('xy','latin1')");
}

TEST(an_object_is_a_class_and_what_it_is_called_with)
{
    need_python();
    for (int protocol = 2; protocol <= 5; protocol++)
        assert_dumps("collections.OrderedDict([(\"a\", argparse.Namespace(b=1))])", protocol,
                     "collections.OrderedDict(){'a':argparse.Namespace()={'b':1}}");
    assert_dumps("datetime.timedelta(1, 2)", 2, "datetime.timedelta(1,2,0)");
    assert_dumps("collections.deque([1, 2])", 2, "collections.deque()[1,2]");
}

TEST(marks_may_hold_nothing)
{
    assert_reads("\x80\x02(t.", 5, "()");
    assert_reads("\x80\x02(d.", 5, "{}");
    assert_reads("\x80\x02](e.", 6, "[]");
    assert_reads("\x80\x02(1N.", 6, "None");
}

TEST(a_persistent_id_is_kept)
{
    assert_reads("\x80\x02(U\x01"
                 "aK\x05tQ.",
                 11, "@('a',5)");
}

TEST(a_shared_value_is_one_value)
{
    struct hl_pickle p;
    const char bytes[] = "\x80\x02]q\x01h\x01\x86.";
    assert_int_equal(hl_pickle_parse(bytes, sizeof(bytes) - 1, &p), HL_OK);
    assert_int_equal(p.root->items.count, 2);
    assert_ptr_equal(p.root->items.at[0], p.root->items.at[1]);
    hl_pickle_fini(&p);
}

/* A call that would run a command when Python loads it is a tree like any other. */
TEST(a_call_of_os_system_is_only_read)
{
    char mark[] = "/tmp/hl_pickle_XXXXXX", command[256];
    int fd = mkstemp(mark);
    assert_true(fd >= 0);
    close(fd);
    int n = snprintf(command, sizeof(command),
                     "\x80\x02"
                     "cposix\nsystem\n(U%crm %stR.",
                     (int)strlen(mark) + 3, mark);
    struct hl_pickle p;
    assert_int_equal(hl_pickle_parse(command, (size_t)n, &p), HL_OK);
    assert_string_equal(hl_pickle_class(p.root), "posix.system");
    assert_int_equal(p.root->object->args->items.count, 1);
    hl_pickle_fini(&p);
    assert_int_equal(access(mark, F_OK), 0);
    unlink(mark);
}

#define REFUSED(bytes, status, text) assert_refused(bytes, sizeof(bytes) - 1, status, text)

static void assert_refused(const char *bytes, size_t len, hl_status status, const char *text)
{
    struct hl_pickle p;
    uint8_t *copy = malloc(len); /* of exact size, so that a sanitizer sees reads beyond it */
    memcpy(copy, bytes, len);
    hl_error_clear();
    assert_int_equal(hl_pickle_parse(copy, len, &p), status);
    if (strstr(hl_error_text(), text) == NULL)
        fail_msg("'%s' is not in: %s", text, hl_error_text());
    free(copy);
}

TEST(what_no_pickler_writes_is_refused)
{
    REFUSED("", HL_EUNSUPPORTED, "protocol 2 to 5");
    REFUSED("I1\n.", HL_EUNSUPPORTED, "protocol 2 to 5");
    REFUSED("\x80\x06N.", HL_EUNSUPPORTED, "protocol 6");
    REFUSED("\x80\x02N", HL_EINVAL, "truncated");
    REFUSED("\x80\x02.", HL_EINVAL, "0 values");
    REFUSED("\x80\x02NN.", HL_EINVAL, "2 values");
    REFUSED("\x80\x02(N.", HL_EINVAL, "1 marks");
    REFUSED("\x80\x02R.", HL_EINVAL, "stack is empty");
    REFUSED("\x80\x02t.", HL_EINVAL, "no mark");
    REFUSED("\x80\x02N(a.", HL_EINVAL, "stack is empty"); /* a pop stops at the mark */
    REFUSED("\x80\x02Na.", HL_EINVAL, "stack is empty");
    REFUSED("\x80\x02NNa.", HL_EINVAL, "items are added to None");
    REFUSED("\x80\x02}(Nu.", HL_EINVAL, "without a value");
    REFUSED("\x80\x02(Nd.", HL_EINVAL, "without a value");
    REFUSED("\x80\x02NNR.", HL_EINVAL, "arguments of an object are None");
    REFUSED("\x80\x02}Nb.", HL_EINVAL, "a state is set in a dict");
    REFUSED("\x80\x02"
            "ca\nb\n)\x81NbNb.",
            HL_EINVAL, "that has one");
    REFUSED("\x80\x02"
            "ca b\nc\n.",
            HL_EINVAL, "blank or control");
    REFUSED("\x80\x02"
            "c\nc\n.",
            HL_EINVAL, "name of 0 bytes");
    REFUSED("\x80\x02"
            "ca\nb",
            HL_EINVAL, "truncated");
    REFUSED("\x80\x04NN\x93.", HL_EINVAL, "not text");
    REFUSED("\x80\x02h\x01.", HL_EINVAL, "never set");
    REFUSED("\x80\x02(o.", HL_EINVAL, "without a class");
    REFUSED("\x80\x02\x82\x01.", HL_EUNSUPPORTED, "opcode 0x82"); /* EXT1 */
    REFUSED("\x80\x05\x97.", HL_EUNSUPPORTED, "opcode 0x97");     /* NEXT_BUFFER */
    REFUSED("\x80\x02P1\n.", HL_EUNSUPPORTED, "opcode 0x50");     /* PERSID */
}

TEST(sizes_are_not_believed)
{
    REFUSED("\x80\x02\x8b\xff\xff\xff\xff"
            "1.",
            HL_EINVAL, "4294967295 bytes are needed");
    REFUSED("\x80\x02\x8b\xff\xff\xff\x7f"
            "1.",
            HL_EINVAL, "truncated");
    REFUSED("\x80\x02X\xff\xff\xff\xff"
            "1.",
            HL_EINVAL, "truncated");
    REFUSED("\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff"
            "1.",
            HL_EINVAL, "truncated");
    REFUSED("\x80\x05\x96\0\0\0\0\0\0\0\x80"
            "1.",
            HL_EINVAL, "truncated");
    REFUSED("\x80\x04\x95\x09\0\0\0\0\0\0\0N.", HL_EINVAL, "a frame of 9 bytes");
    REFUSED("\x80\x02Nr\xff\xff\xff\xff.", HL_EINVAL, "memo 4294967295");
    REFUSED("\x80\x02j\xff\xff\xff\xff.", HL_EINVAL, "never set");
}

#define STEPS ((size_t)1 << 19)

/* `first`, then `step` many times, then a STOP. */
static hl_status parse_steps(const char *first, const char *step)
{
    struct hl_pickle p;
    size_t head = strlen(first), width = strlen(step), len = 2 + head + STEPS * width + 1;
    uint8_t *bytes = malloc(len);
    memcpy(bytes, "\x80\x02", 2);
    memcpy(bytes + 2, first, head);
    for (size_t i = 0; i < STEPS; i++)
        memcpy(bytes + 2 + head + i * width, step, width);
    bytes[len - 1] = '.';
    hl_status st = hl_pickle_parse(bytes, len, &p);
    if (st == HL_OK)
        hl_pickle_fini(&p);
    free(bytes);
    return st;
}

/* Deep, wide and shared values cost as much as their bytes; nothing recurses. */
TEST(bombs_are_read_in_linear_memory)
{
    assert_int_equal(parse_steps(")", "\x85"), HL_OK);  /* tuples in tuples */
    assert_int_equal(parse_steps(")", "2\x86"), HL_OK); /* each a pair of the one before */
    assert_int_equal(parse_steps("]q\x01", "h\x01"
                                           "a"),
                     HL_OK);                           /* a list that contains itself */
    assert_int_equal(parse_steps("", "2"), HL_EINVAL); /* copies of nothing */
    assert_int_equal(parse_steps("", "("), HL_EINVAL); /* marks without an end */
}

TEST(every_truncation_is_refused_and_every_flipped_byte_survived)
{
    need_python();
    for (int protocol = 2; protocol <= 5; protocol++) {
        size_t len;
        struct hl_pickle p;
        uint8_t *bytes = dump("collections.OrderedDict([(\"key\", argparse.Namespace(b=1, c=[2.5, "
                              "2**70, (1, 2, 3, 4), None])), (\"other\", {b\"x\", 300})])",
                              protocol, &len);
        for (size_t n = 0; n < len; n++) {
            uint8_t *copy = malloc(n + 1);
            memcpy(copy, bytes, n);
            assert_int_not_equal(hl_pickle_parse(copy, n, &p), HL_OK);
            free(copy);
        }
        for (size_t i = 0; i < len; i++) {
            for (int v = 0; v < 256; v++) {
                uint8_t was = bytes[i];
                bytes[i] = (uint8_t)v;
                if (hl_pickle_parse(bytes, len, &p) == HL_OK)
                    hl_pickle_fini(&p);
                bytes[i] = was;
            }
        }
        free(bytes);
    }
}

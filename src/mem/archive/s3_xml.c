/* Parses answers of an S3 store with expat into a tree of elements; attributes are ignored. */
#include <expat.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mem/archive/s3.h"

#define DEPTH_MAX 16

struct reading {
    XML_Parser parser;
    struct hl_arena *arena;
    struct hl_buf text; /* text of the element opened last */

    struct {
        struct s3_node *node;
        struct s3_node **end; /* link for its next child */
    } open[DEPTH_MAX];

    int depth;
    struct s3_node *root;
    hl_status st;
};

static void reading_stop(struct reading *r, hl_status st)
{
    r->st = st;
    XML_StopParser(r->parser, XML_FALSE);
}

static void XMLCALL on_start(void *arg, const char *name, const char **attributes)
{
    struct reading *r = arg;
    (void)attributes;
    if (r->depth == DEPTH_MAX)
        return reading_stop(r, hl_fail(HL_EPROTO, "elements nest more than %d deep", DEPTH_MAX));
    struct s3_node *node = hl_arena_alloc(r->arena, sizeof(*node));
    const char *copy = hl_arena_strdup(r->arena, name);
    if (node == NULL || copy == NULL)
        return reading_stop(r, hl_fail(HL_ENOMEM, "out of memory reading XML"));
    *node = (struct s3_node){.name = copy, .text = ""};
    if (r->depth == 0) {
        r->root = node;
    } else {
        *r->open[r->depth - 1].end = node;
        r->open[r->depth - 1].end = &node->next;
    }
    r->open[r->depth].node = node;
    r->open[r->depth++].end = &node->child;
    hl_buf_clear(&r->text);
}

static void XMLCALL on_text(void *arg, const char *text, int len)
{
    struct reading *r = arg;
    hl_status st = hl_buf_append(&r->text, text, (size_t)len);
    if (st != HL_OK)
        reading_stop(r, st);
}

static void XMLCALL on_end(void *arg, const char *name)
{
    struct reading *r = arg;
    (void)name;
    struct s3_node *node = r->open[--r->depth].node;
    if (node->child == NULL && r->text.len > 0)
        node->text = hl_arena_text(r->arena, r->text.data, r->text.len);
    hl_buf_clear(&r->text);
    if (node->text == NULL)
        reading_stop(r, hl_fail(HL_ENOMEM, "out of memory reading XML"));
}

/* A store sends no DOCTYPE, and one could declare entities that expand into each other. */
static void XMLCALL on_doctype(void *arg, const char *name, const char *system,
                               const char *public_id, int has_subset)
{
    (void)name;
    (void)system;
    (void)public_id;
    (void)has_subset;
    reading_stop(arg, hl_fail(HL_EPROTO, "a document type declaration is not expected"));
}

hl_status s3_xml_parse(const char *text, size_t len, struct hl_arena *arena, struct s3_node **root)
{
    struct reading r = {.arena = arena, .text = HL_BUF(S3_XML_MAX)};
    if (len > S3_XML_MAX)
        return hl_fail(HL_EPROTO, "an XML answer of %zu bytes, at most %zu", len, S3_XML_MAX);
    r.parser = XML_ParserCreate("UTF-8");
    if (r.parser == NULL)
        return hl_fail(HL_ENOMEM, "out of memory reading XML");
    XML_SetUserData(r.parser, &r);
    XML_SetElementHandler(r.parser, on_start, on_end);
    XML_SetCharacterDataHandler(r.parser, on_text);
    XML_SetStartDoctypeDeclHandler(r.parser, on_doctype);
    if (XML_Parse(r.parser, text, (int)len, 1) != XML_STATUS_OK && r.st == HL_OK)
        r.st = hl_fail(HL_EPROTO, "line %lu of the XML answer: %s",
                       (unsigned long)XML_GetCurrentLineNumber(r.parser),
                       XML_ErrorString(XML_GetErrorCode(r.parser)));
    XML_ParserFree(r.parser);
    hl_buf_fini(&r.text);
    if (r.st == HL_OK)
        *root = r.root;
    return r.st;
}

const char *s3_node_text(const struct s3_node *node, const char *name)
{
    for (const struct s3_node *child = node->child; child != NULL; child = child->next)
        if (strcmp(child->name, name) == 0)
            return child->text;
    return NULL;
}

bool s3_error_of(const struct hl_buf *text, char *code, size_t code_cap, char *message,
                 size_t message_cap)
{
    struct hl_arena arena = {0};
    struct s3_node *root = NULL;
    bool found = text->len > 0 && s3_xml_parse(text->data, text->len, &arena, &root) == HL_OK &&
                 strcmp(root->name, "Error") == 0;
    if (found) {
        const char *c = s3_node_text(root, "Code"), *m = s3_node_text(root, "Message");
        snprintf(code, code_cap, "%s", c != NULL ? c : "an error without a code");
        if (message != NULL)
            snprintf(message, message_cap, "%s", m != NULL ? m : "");
    }
    hl_arena_fini(&arena);
    return found;
}

bool s3_encode(const char *text, char *out, size_t cap)
{
    char *encoded = curl_easy_escape(NULL, text, 0);
    bool fits = encoded != NULL && strlen(encoded) < cap;
    if (fits)
        memcpy(out, encoded, strlen(encoded) + 1);
    curl_free(encoded);
    return fits;
}

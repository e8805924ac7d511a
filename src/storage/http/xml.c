/*
 * expat walks, we keep the path of the open elements and the text of the innermost one. Only leaves
 * matter, so text is dropped when a child opens. A document type is refused where it starts: no
 * entities, no expansion, nothing fetched.
 */
#include "xml.h"

#include <expat.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "buf.h"

enum { PATH_BYTES_MAX = 512 };

struct walk {
    XML_Parser parser;
    const char *what;
    int (*each)(const char *path, const char *value, void *arg, struct sl_err *err);
    void *arg;
    struct sl_err *err;
    bool failed;
    unsigned depth;
    char path[PATH_BYTES_MAX];
    struct sl_buf text;
};

static void stop(struct walk *walk)
{
    walk->failed = true;
    XML_StopParser(walk->parser, XML_FALSE);
}

static void report_attributes(struct walk *walk, const XML_Char **attributes)
{
    char path[PATH_BYTES_MAX];
    for (; *attributes && !walk->failed; attributes += 2) {
        int bytes = snprintf(path, sizeof(path), "%s@%s", walk->path, attributes[0]);
        if (bytes < (int)sizeof(path) && walk->each(path, attributes[1], walk->arg, walk->err) < 0)
            stop(walk);
    }
}

static void on_start(void *arg, const XML_Char *name, const XML_Char **attributes)
{
    struct walk *walk = arg;
    if (walk->failed)
        return;
    const char *colon = strrchr(name, ':');
    const char *local = colon ? colon + 1 : name;
    size_t used = strlen(walk->path);
    if (walk->depth == SL_XML_DEPTH_MAX || used + strlen(local) + 2 > PATH_BYTES_MAX) {
        sl_fail_code(walk->err, SL_E_FORMAT, "xml", "%s: XML nested too deep", walk->what);
        stop(walk);
        return;
    }
    snprintf(walk->path + used, PATH_BYTES_MAX - used, "%s%s", walk->depth ? "/" : "", local);
    walk->depth++;
    walk->text.used = 0;
    report_attributes(walk, attributes);
}

static void on_end(void *arg, const XML_Char *name)
{
    (void)name;
    struct walk *walk = arg;
    if (walk->failed)
        return;
    if (walk->text.data)
        walk->text.data[walk->text.used] = 0;
    if (walk->each(walk->path, walk->text.data ? walk->text.data : "", walk->arg, walk->err) < 0) {
        stop(walk);
        return;
    }
    char *slash = strrchr(walk->path, '/');
    if (slash)
        *slash = 0;
    else
        walk->path[0] = 0;
    walk->depth--;
    walk->text.used = 0;
}

static void on_text(void *arg, const XML_Char *text, int bytes)
{
    struct walk *walk = arg;
    if (walk->failed)
        return;
    if (walk->text.used + (size_t)bytes > SL_XML_TEXT_MAX) {
        sl_fail_code(walk->err, SL_E_FORMAT, "xml", "%s: XML element of more than %d bytes",
                     walk->what, SL_XML_TEXT_MAX);
        stop(walk);
    } else if (sl_buf_append(&walk->text, text, (size_t)bytes, walk->err) < 0) {
        stop(walk);
    }
}

static void on_doctype(void *arg, const XML_Char *name, const XML_Char *system,
                       const XML_Char *public, int internal)
{
    (void)name;
    (void)system;
    (void)public;
    (void)internal;
    struct walk *walk = arg;
    sl_fail_code(walk->err, SL_E_FORMAT, "xml", "%s: XML with a document type is refused",
                 walk->what);
    stop(walk);
}

static int run(struct walk *walk, const char *text, size_t bytes, struct sl_err *err)
{
    XML_SetUserData(walk->parser, walk);
    XML_SetElementHandler(walk->parser, on_start, on_end);
    XML_SetCharacterDataHandler(walk->parser, on_text);
    XML_SetStartDoctypeDeclHandler(walk->parser, on_doctype);
    enum XML_Status status = XML_Parse(walk->parser, text, (int)bytes, XML_TRUE);
    if (walk->failed)
        return -1;
    if (status != XML_STATUS_OK)
        return sl_fail_code(err, SL_E_FORMAT, "xml", "%s: not well-formed XML at line %lu: %s",
                            walk->what, XML_GetCurrentLineNumber(walk->parser),
                            XML_ErrorString(XML_GetErrorCode(walk->parser)));
    return 0;
}

int sl_xml_parse(const char *text, size_t bytes, const char *what,
                 int (*each)(const char *path, const char *value, void *arg, struct sl_err *err),
                 void *arg, struct sl_err *err)
{
    if (bytes > SL_XML_BYTES_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "xml", "%s: XML of %zu bytes, limit %d", what, bytes,
                            SL_XML_BYTES_MAX);
    struct sl_err local = SL_ERR_INIT;
    struct walk walk = {.what = what,
                        .each = each,
                        .arg = arg,
                        .err = err ? err : &local,
                        .text = SL_BUF_INIT(SL_XML_TEXT_MAX + 1)};
    walk.parser = XML_ParserCreate("UTF-8");
    if (!walk.parser)
        return sl_fail(err, SL_E_NO_SPACE, "out of memory");
    int result = run(&walk, text, bytes, walk.err);
    XML_ParserFree(walk.parser);
    sl_buf_release(&walk.text);
    return result;
}

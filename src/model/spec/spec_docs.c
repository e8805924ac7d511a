/*
 * The reference page and the JSON schema of the spec, from the rows that parse it. The schema
 * describes what a YAML reader hands over: a number may be a text with ${VAR} in it, a key without
 * a value is null, and what the rows call a text may be a plain number (`owner: 1000`).
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "json.h"
#include "spec_decode.h"

enum { SCHEMA_BYTES_MAX = 512 * 1024, CELL_BYTES_MAX = 4096 };

/* ---- the reference page --------------------------------------------------------------------- */

static const char introduction[] =
    "# The model spec\n\n"
    "<!-- Written by `sluice docs spec` from the rows that parse it; do not edit. -->\n\n"
    "A model spec is a YAML file that says where a model comes from, what of it is wanted, how it "
    "is checked and where\n"
    "it goes. A file of several documents, parted by `---`, is several models that are loaded "
    "together.\n\n"
    "```yaml\n"
    "apiVersion: sluice/v1alpha1\n"
    "kind: Model\n"
    "metadata:\n"
    "  name: gpt-j-6b\n"
    "source:\n"
    "  uri: s3://models/gpt-j-6b/\n"
    "sink:\n"
    "  tmpfs: {path: /dev/shm/gpt-j-6b}\n"
    "```\n\n"
    "## Rules\n\n"
    "* Every mistake is reported at once (the first 50) with its place: `model.yaml:12:5: unknown "
    "key 'includes' in\n"
    "  'tensors', did you mean 'include'?`. Unknown and repeated keys are mistakes.\n"
    "* `${VAR}` in a value is replaced from the environment; an unset variable is a mistake. Write "
    "`$${VAR}` for a plain\n"
    "  `${VAR}`; any other `$` stays as it is. What was put in is not read again, neither as YAML "
    "nor for variables.\n"
    "  Inside `{ }` and `[ ]` YAML wants quotes around it: `{path: \"${DIR}\"}`.\n"
    "* Anchors, aliases and merge keys (`<<: *base`) work within one document. A file may be 1 MiB "
    "long, nest 32 levels,\n"
    "  and hold 50,000 values, those that aliases repeat included.\n"
    "* A key without a value is as good as absent.\n"
    "* Sizes are bytes (`4096`), powers of 1024 (`64Ki`, `1.5GiB`) or of 1000 (`8M`, `2GB`).\n"
    "* Truth is `true`, `yes`, `on`, or `false`, `no`, `off`; the false ones are good wherever "
    "`off` is a choice.\n"
    "* Patterns are those of the shell (`*`, `?`, `[a-z]`); `*` matches `/` and `.` like any other "
    "character.\n"
    "* On the command line a key is its flag where it has one, else `--set KEY=VALUE`, as in\n"
    "  `--set source.s3.region=eu-west-1`; these win over the file. Lists are written `--set "
    "'source.include=[a, b]'` or\n"
    "  `--set source.include=a,b`.\n"
    "* What is marked *serve* is for the node daemon, `sluice serve`. Other commands refuse "
    "it.\n\n";

static int page_type(const struct sl_option *row, struct sl_buf *out, struct sl_err *err)
{
    char low[32], high[32];
    const char *automatic = sl_option_takes_auto(row) ? ", or `auto`" : "";
    switch (row->type) {
    case SL_OPTION_BOOL:
        return sl_buf_text(out, "true or false", err);
    case SL_OPTION_CHOICE: {
        char name[64];
        for (int i = 0; sl_choice_name(row->choices, i, name); i++)
            if (sl_buf_printf(out, err, "%s`%s`", i ? ", " : "", name) < 0)
                return -1;
        return 0;
    }
    case SL_OPTION_UINT:
        return row->maximum ? sl_buf_printf(out, err, "number from %" PRIu64 " to %" PRIu64 "%s",
                                            row->minimum, row->maximum, automatic)
                            : sl_buf_printf(out, err, "number%s", automatic);
    case SL_OPTION_BYTES:
        return row->maximum ? sl_buf_printf(out, err, "size from %s to %s%s",
                                            sl_exact_bytes(row->minimum, low),
                                            sl_exact_bytes(row->maximum, high), automatic)
                            : sl_buf_printf(out, err, "size%s", automatic);
    case SL_OPTION_RATE:
        return sl_buf_text(out, "rate: bytes or bits in a second", err);
    case SL_OPTION_LIST:
        return sl_buf_text(out, "list of texts", err);
    case SL_OPTION_MAP:
        return sl_buf_text(out, "mapping of names to texts", err);
    case SL_OPTION_ITEMS:
        return sl_buf_text(out, "list of mappings", err);
    default:
        return sl_buf_text(
            out, row->value && strcmp(row->value, "FILE") == 0 ? "path of a file" : "text", err);
    }
}

struct page {
    struct sl_buf *out;
    struct sl_err *err;
    bool flags; /* the keys have them: those of a model */
};

/* "|" would end the cell of a table. */
static int cell(struct page *page, const char *text)
{
    for (; *text; text++)
        if (sl_buf_printf(page->out, page->err, *text == '|' ? "\\%c" : "%c", *text) < 0)
            return -1;
    return 0;
}

static int page_row(struct page *page, const struct sl_option *row, const char *path)
{
    char flag[80] = "";
    sl_autobuf type = SL_BUF_INIT(CELL_BYTES_MAX);
    if (row->flag && page->flags)
        snprintf(flag, sizeof(flag), "`--%s`", row->flag);
    if (page_type(row, &type, page->err) < 0 ||
        sl_buf_printf(page->out, page->err, "| `%s` | ", path) < 0 ||
        cell(page, sl_buf_string(&type)) < 0 || sl_buf_text(page->out, " | ", page->err) < 0)
        return -1;
    if (row->required && sl_buf_text(page->out, "**required**", page->err) < 0)
        return -1;
    if (row->initial && *row->initial &&
        sl_buf_printf(page->out, page->err, "`%s`", row->initial) < 0)
        return -1;
    if (sl_buf_printf(page->out, page->err, " | %s | ", flag) < 0 || cell(page, row->help) < 0)
        return -1;
    return sl_buf_text(page->out, row->served ? " (*serve*) |\n" : " |\n", page->err);
}

/* Sections become headings, and the rows below them one table each, so tables are written level by
 * level. */
static int page_table(struct page *page, const struct sl_option_table *table, const char *path)
{
    char key[64], below[256];
    bool any = false;
    for (const struct sl_option *row = table->rows; row->member; row++) {
        if (row->type == SL_OPTION_SECTION)
            continue;
        snprintf(below, sizeof(below), "%s%s%s", path, *path ? "." : "", sl_option_key(row, key));
        if (!any && sl_buf_text(page->out,
                                "| key | value | default | flag | meaning |\n"
                                "| --- | --- | --- | --- | --- |\n",
                                page->err) < 0)
            return -1;
        any = true;
        if (page_row(page, row, below) < 0)
            return -1;
    }
    if (any && sl_buf_text(page->out, "\n", page->err) < 0)
        return -1;
    for (const struct sl_option *row = table->rows; row->member; row++) {
        if (!row->section)
            continue;
        bool items = row->type == SL_OPTION_ITEMS;
        snprintf(below, sizeof(below), "%s%s%s%s", path, *path ? "." : "", sl_option_key(row, key),
                 items ? "[]" : "");
        if (sl_buf_printf(page->out, page->err, "## `%s`\n\n%s%s%s.\n\n", below, row->help,
                          row->required ? " (**required**)" : "",
                          row->served ? " (*serve*)" : "") < 0 ||
            page_table(page, row->section, below) < 0)
            return -1;
    }
    return 0;
}

int sl_spec_write_keys(const struct sl_option_table *table, struct sl_buf *out, struct sl_err *err)
{
    struct page page = {out, err, .flags = table == sl_spec_table()};
    return page_table(&page, table, "");
}

static const char pins[] =
    "## Words of `readers.fixed`\n\n"
    "`usual`, or pairs with blanks or commas between them: `connections=8 range-bytes=16MiB`. What "
    "is left out is as usual.\n"
    "[When to pin a load](../load.md#pin-a-load).\n\n"
    "| word | value | meaning |\n| --- | --- | --- |\n";

static int write_pins(struct sl_buf *out, struct sl_err *err)
{
    struct page page = {.out = out, .err = err};
    if (sl_buf_text(out, pins, err) < 0)
        return -1;
    for (const struct sl_option *row = sl_fixed_table.rows; row->member; row++) {
        char word[64];
        if (sl_buf_printf(out, err, "| `%s=` | ", sl_option_kebab(row, word)) < 0 ||
            page_type(row, out, err) < 0 || sl_buf_text(out, " | ", err) < 0 ||
            cell(&page, row->help) < 0 || sl_buf_text(out, " |\n", err) < 0)
            return -1;
    }
    return 0;
}

int sl_spec_write_reference(struct sl_buf *out, struct sl_err *err)
{
    if (sl_buf_text(out, introduction, err) < 0 || sl_buf_text(out, "## Keys\n\n", err) < 0 ||
        sl_spec_write_keys(sl_spec_table(), out, err) < 0)
        return -1;
    return write_pins(out, err);
}

/* ---- the JSON schema ------------------------------------------------------------------------ */

static void schema_table(struct sl_json *json, const struct sl_option_table *table);

static void variable(struct sl_json *json)
{
    sl_json_object(json);
    sl_json_key_string(json, "$ref", "#/$defs/variable");
    sl_json_end(json);
}

static void null_type(struct sl_json *json)
{
    sl_json_object(json);
    sl_json_key_string(json, "type", "null");
    sl_json_end(json);
}

static void constant(struct sl_json *json, const char *text)
{
    sl_json_object(json);
    sl_json_key_string(json, "const", text);
    sl_json_end(json);
}

static void number_type(struct sl_json *json, const struct sl_option *row)
{
    sl_json_object(json);
    sl_json_key_string(json, "type", "integer");
    sl_json_key_uint(json, "minimum", row->minimum);
    if (row->maximum)
        sl_json_key_uint(json, "maximum", row->maximum);
    sl_json_end(json);
    if (row->type == SL_OPTION_BYTES) {
        sl_json_object(json);
        sl_json_key_string(json, "type", "string");
        sl_json_key_string(json, "pattern", "^[0-9]+(\\.[0-9]+)? *([kKmMgGtTpPeE]i?)?B?$");
        sl_json_end(json);
    }
    if (row->type == SL_OPTION_RATE) {
        sl_json_object(json);
        sl_json_key_string(json, "type", "string");
        sl_json_key_string(json, "pattern",
                           "^[0-9]+(\\.[0-9]+)? *([kKmMgGtTpPeE]i?)?(B|B/s|/s|bit/s|bps)?$");
        sl_json_end(json);
    }
    if (sl_option_takes_auto(row))
        constant(json, "auto");
}

/* Whether the pattern lets nothing else through than the text of `value`, as that of `kind`. */
static bool is_one_text(const struct sl_option *row)
{
    size_t bytes = row->value ? strlen(row->value) : 0;
    return bytes && row->pattern && strlen(row->pattern) == bytes + 2 && row->pattern[0] == '^' &&
           memcmp(row->pattern + 1, row->value, bytes) == 0;
}

static void text_type(struct sl_json *json, const struct sl_option *row)
{
    if (is_one_text(row)) { /* editors complete it */
        constant(json, row->value);
        return;
    }
    sl_json_object(json);
    if (row->pattern) {
        sl_json_key_string(json, "type", "string");
        sl_json_key_string(json, "pattern", row->pattern);
    } else {
        sl_json_key(json, "type");
        sl_json_array(json);
        sl_json_string(json, "string");
        sl_json_string(json, "number");
        sl_json_string(json, "boolean");
        sl_json_end(json);
    }
    sl_json_end(json);
}

static void choice_type(struct sl_json *json, const struct sl_option *row)
{
    char name[64];
    sl_json_object(json);
    sl_json_key(json, "enum");
    sl_json_array(json);
    for (int i = 0; sl_choice_name(row->choices, i, name); i++) {
        sl_json_string(json, name);
        if (strcmp(name, "off") == 0)
            sl_json_bool(json, false);
    }
    sl_json_end(json);
    sl_json_end(json);
}

static void scalar_types(struct sl_json *json, const struct sl_option *row)
{
    sl_json_key(json, "anyOf");
    sl_json_array(json);
    if (row->type == SL_OPTION_BOOL) {
        sl_json_object(json);
        sl_json_key_string(json, "type", "boolean");
        sl_json_end(json);
        sl_json_object(json);
        sl_json_key_string(json, "type", "string");
        sl_json_key_string(
            json, "pattern",
            "^([Tt]rue|TRUE|[Ff]alse|FALSE|[Yy]es|YES|[Nn]o|NO|[Oo]n|ON|[Oo]ff|OFF)$");
        sl_json_end(json);
    } else if (row->type == SL_OPTION_CHOICE) {
        choice_type(json, row);
    } else if (row->type == SL_OPTION_STRING) {
        text_type(json, row);
    } else {
        number_type(json, row);
    }
    variable(json);
    if (!row->required)
        null_type(json);
    sl_json_end(json);
}

static void element(struct sl_json *json, const struct sl_option *row)
{
    sl_json_object(json);
    sl_json_key(json, "anyOf");
    sl_json_array(json);
    text_type(json, row);
    variable(json);
    sl_json_end(json);
    sl_json_end(json);
}

static void types(struct sl_json *json, const char *type, bool required)
{
    sl_json_key(json, "type");
    sl_json_array(json);
    sl_json_string(json, type);
    if (!required)
        sl_json_string(json, "null");
    sl_json_end(json);
}

/* Beside the section, what may stand in its place. */
static void brief_types(struct sl_json *json)
{
    static const char *const kinds[] = {"object", "string", "array", "null"};
    sl_json_key(json, "type");
    sl_json_array(json);
    for (size_t i = 0; i < SL_COUNT(kinds); i++)
        sl_json_string(json, kinds[i]);
    sl_json_end(json);
}

static void schema_row(struct sl_json *json, const struct sl_option *row)
{
    char key[64];
    sl_json_key(json, sl_option_key(row, key));
    sl_json_object(json);
    sl_json_key_string(json, "description", row->help);
    if (row->served)
        sl_json_key_string(json, "$comment", "sluice serve alone");
    switch (row->type) {
    case SL_OPTION_SECTION:
        if (row->brief)
            brief_types(json);
        else
            types(json, "object", row->required);
        schema_table(json, row->section);
        break;
    case SL_OPTION_ITEMS:
        types(json, "array", row->required);
        sl_json_key(json, "items");
        sl_json_object(json);
        sl_json_key_string(json, "type", "object");
        schema_table(json, row->section);
        sl_json_end(json);
        break;
    case SL_OPTION_LIST:
        types(json, "array", row->required);
        sl_json_key(json, "items");
        element(json, row);
        break;
    case SL_OPTION_MAP:
        types(json, "object", row->required);
        sl_json_key(json, "additionalProperties");
        element(json, row);
        break;
    default:
        scalar_types(json, row);
        if (row->initial && *row->initial)
            sl_json_key_string(json, "default", row->initial);
    }
    sl_json_end(json);
}

/* The keys of an object's schema; the caller has opened it. */
static void schema_table(struct sl_json *json, const struct sl_option_table *table)
{
    char key[64];
    bool any = false;
    sl_json_key_bool(json, "additionalProperties", false);
    for (const struct sl_option *row = table->rows; row->member; row++) {
        if (!row->required)
            continue;
        if (!any) {
            sl_json_key(json, "required");
            sl_json_array(json);
        }
        any = true;
        sl_json_string(json, sl_option_key(row, key));
    }
    if (any)
        sl_json_end(json);
    sl_json_key(json, "properties");
    sl_json_object(json);
    for (const struct sl_option *row = table->rows; row->member; row++)
        schema_row(json, row);
    sl_json_end(json);
}

/* jansson lays the document out for people; it has just been parsed, so it is JSON for sure. */
static int append_indented(struct sl_buf *out, const char *text, struct sl_err *err)
{
    json_t *document = sl_json_parse(text, strlen(text), "the schema", err);
    if (!document)
        return -1;
    char *laid_out = json_dumps(document, JSON_INDENT(1) | JSON_ENSURE_ASCII);
    json_decref(document);
    int done = laid_out ? sl_buf_printf(out, err, "%s\n", laid_out)
                        : sl_fail(err, SL_E_NO_SPACE, "out of memory for the schema");
    free(laid_out);
    return done;
}

int sl_spec_write_schema(struct sl_buf *out, struct sl_err *err)
{
    struct sl_json json;
    sl_json_init(&json, SCHEMA_BYTES_MAX);
    sl_json_object(&json);
    sl_json_key_string(&json, "$schema", "https://json-schema.org/draft/2020-12/schema");
    sl_json_key_string(&json, "$id", "urn:sluice:v1alpha1:model");
    sl_json_key_string(&json, "title", "sluice model spec");
    sl_json_key_string(&json, "type", "object");
    schema_table(&json, sl_spec_table());
    sl_json_key(&json, "$defs");
    sl_json_object(&json);
    sl_json_key(&json, "variable");
    sl_json_object(&json);
    sl_json_key_string(&json, "description", "a value from the environment");
    sl_json_key_string(&json, "type", "string");
    sl_json_key_string(&json, "pattern", "\\$\\{[A-Za-z_][A-Za-z0-9_]*\\}");
    sl_json_end(&json);
    sl_json_end(&json);
    sl_json_end(&json);
    const char *text = sl_json_text(&json, err);
    int done = text ? append_indented(out, text, err) : -1;
    sl_json_release(&json);
    return done;
}

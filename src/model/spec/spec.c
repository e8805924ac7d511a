/*
 * One file, several models. Each document becomes a tree, takes the settings of the command line,
 * is decoded by the rows and checked; complaints of all documents are put in the order of the file.
 * Only a file without any mistake gives models.
 */
#include "spec.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "spec_decode.h"
#include "stores.h"

struct reading {
    const char *file_name;
    const struct sl_spec_setting *settings;
    size_t setting_count;
    bool placed, variables;    /* for a node; ${VAR} is replaced */
    bool pooled;               /* the pool is a place, too */
    struct sl_node_spec *node; /* the document that must come first; NULL: none may come */
    unsigned node_count;
    struct sl_specs specs;
    size_t capacity;
    struct sl_complaints complaints;
};

void sl_spec_release(struct sl_spec *spec)
{
    sl_options_release(&sl_spec_signing_table, &spec->verify.rule);
    sl_options_release(sl_spec_table(), spec);
}

void sl_specs_release(struct sl_specs *specs)
{
    for (size_t i = 0; specs->items && i < specs->count; i++)
        sl_spec_release(&specs->items[i]);
    free(specs->items);
    *specs = (struct sl_specs){NULL, 0};
}

/* ---- documents ------------------------------------------------------------------------------ */

/* Whether the rest of the document is worth judging: a document of another kind has other keys, a
 * slip in the kind has not. */
static bool is_model(const struct sl_yaml_node *root, struct sl_complaints *complaints)
{
    static const char *const kinds[] = {"Model", "Node"};
    const struct sl_yaml_pair *pair = sl_yaml_get(root, "kind");
    if (!pair || pair->value->kind != SL_YAML_TEXT || strcmp(pair->value->text, "Model") == 0)
        return true;
    if (strcmp(pair->value->text, "Node") == 0) {
        sl_complain(complaints, pair->mark,
                    "kind 'Node' is the config of `sluice serve`: a model has kind 'Model'");
        return false;
    }
    const char *near = sl_nearest(pair->value->text, kinds, SL_COUNT(kinds));
    if (near)
        sl_complain(complaints, pair->mark, "unknown kind '%.80s', did you mean '%s'?",
                    pair->value->text, near);
    else
        sl_complain(complaints, pair->mark, "unknown kind '%.80s': a model spec has 'kind: Model'",
                    pair->value->text);
    return near && strcmp(near, "Model") == 0;
}

/* A component of a path, past slashes and "."; its length in *bytes, 0 at the end. */
static const char *component(const char *path, size_t *bytes)
{
    for (;; path += *bytes) {
        path += strspn(path, "/");
        *bytes = strcspn(path, "/");
        if (*bytes != 1 || *path != '.')
            return path;
    }
}

/* One directory, however many slashes it is spelled with. */
static bool is_same_place(const char *a, const char *b)
{
    if ((*a == '/') != (*b == '/'))
        return false;
    for (;;) {
        size_t in_a, in_b;
        a = component(a, &in_a);
        b = component(b, &in_b);
        if (in_a != in_b || memcmp(a, b, in_a) != 0)
            return false;
        if (in_a == 0)
            return true;
        a += in_a;
        b += in_b;
    }
}

static void check_twins(struct reading *reading, const struct sl_yaml_node *root)
{
    const struct sl_spec *last = &reading->specs.items[reading->specs.count - 1];
    const struct sl_yaml_pair *name = sl_yaml_find(root, "metadata.name");
    const struct sl_yaml_pair *path = sl_yaml_find(root, "sink.tmpfs.path");
    for (const struct sl_spec *spec = reading->specs.items; spec < last; spec++) {
        if (name && last->metadata.name && spec->metadata.name &&
            strcmp(last->metadata.name, spec->metadata.name) == 0)
            sl_complain(&reading->complaints, name->mark,
                        "another model of this file is called '%s'", last->metadata.name);
        if (path && !reading->placed && last->sink.tmpfs.path && spec->sink.tmpfs.path &&
            is_same_place(last->sink.tmpfs.path, spec->sink.tmpfs.path))
            sl_complain(&reading->complaints, path->mark,
                        "another model of this file goes to '%.256s'", spec->sink.tmpfs.path);
    }
}

static bool is_of_kind(const struct sl_yaml_node *root, const char *kind)
{
    const struct sl_yaml_pair *pair = sl_yaml_get(root, "kind");
    return pair && pair->value->kind == SL_YAML_TEXT && strcmp(pair->value->text, kind) == 0;
}

/* What is there of the first document of a config. */
static int read_node(struct reading *reading, struct sl_yaml_tree *tree, struct sl_err *err)
{
    if (reading->node_count++) {
        sl_complain(&reading->complaints, tree->root->mark, "a second Node in one file");
        return 0;
    }
    if (is_of_kind(tree->root, "Model")) {
        sl_complain(&reading->complaints, tree->root->mark,
                    "this is of kind 'Model': a config begins with a document of kind 'Node'; "
                    "models stand behind it, or in files that it names below 'models'");
        return 0;
    }
    if (sl_spec_decode_table(&sl_node_spec_table, tree->root, reading->node, &reading->complaints,
                             err) < 0)
        return -1;
    sl_spec_note_through(sl_yaml_find(tree->root, "through"), &reading->node->through);
    sl_node_spec_check(tree->root, reading->node, &reading->complaints);
    return 0;
}

/* A model of a node lies where the node says: whatever path is there, it does not count. */
static int put_place(struct reading *reading, struct sl_yaml_tree *tree, struct sl_err *err)
{
    static const struct sl_spec_setting place = {"sink.tmpfs.path", "node", NULL};
    const struct sl_yaml_pair *sink = sl_yaml_find(tree->root, "sink");
    if (!reading->placed || sl_yaml_find(tree->root, "sink.pool") ||
        (sink && sink->value->kind != SL_YAML_MAP && sink->value->kind != SL_YAML_NULL))
        return 0;
    return sl_spec_apply(&place, tree, &reading->complaints, err);
}

static int read_document(struct reading *reading, struct sl_yaml_tree *tree, struct sl_err *err)
{
    if (reading->node && (is_of_kind(tree->root, "Node") || !reading->node_count))
        return read_node(reading, tree, err);
    struct sl_specs *specs = &reading->specs;
    if (sl_grow(&specs->items, &reading->capacity, specs->count + 1, sizeof(*specs->items), err) <
        0)
        return -1;
    struct sl_spec *spec = &specs->items[specs->count++];
    memset(spec, 0, sizeof(*spec));
    if (tree->root->kind != SL_YAML_MAP) {
        sl_complain(&reading->complaints, tree->root->mark,
                    "a model spec is a mapping of keys, not %s",
                    sl_yaml_kind_name(tree->root->kind));
        return 0;
    }
    for (size_t i = 0; i < reading->setting_count; i++)
        if (sl_spec_apply(&reading->settings[i], tree, &reading->complaints, err) < 0)
            return -1;
    if (!is_model(tree->root, &reading->complaints))
        return 0;
    if (put_place(reading, tree, err) < 0)
        return -1;
    if (sl_spec_decode(tree->root, spec, &reading->complaints, err) < 0)
        return -1;
    const struct sl_yaml_pair *pool = sl_yaml_find(tree->root, "sink.pool");
    spec->has_pool = pool && pool->value->kind != SL_YAML_NULL;
    sl_spec_check(tree->root, spec, reading->placed, reading->pooled, &reading->complaints);
    sl_spec_fix(tree->root, spec, &reading->complaints);
    sl_spec_note_through(sl_yaml_find(tree->root, "source.through"), &spec->source.through);
    struct sl_err why = SL_ERR_INIT;
    if (sl_spec_take_through(spec, getenv("SLUICE_THROUGH"), &why) < 0)
        sl_complain(&reading->complaints, (struct sl_mark){.origin = "SLUICE_THROUGH"}, "%s",
                    why.message);
    check_twins(reading, tree->root);
    return 0;
}

/* `---` with nothing after it, at the end of a file or doubled, is not a model. */
static bool is_empty(const struct sl_yaml_tree *tree)
{
    return tree->root->kind == SL_YAML_NULL;
}

static int read_documents(struct reading *reading, const char *text, size_t bytes,
                          struct sl_err *err)
{
    SL_AUTO(sl_yaml)
    yaml = sl_yaml_open(text, bytes, reading->variables, &reading->complaints, err);
    if (!yaml)
        return -1;
    for (;;) {
        struct sl_yaml_tree tree = {0};
        struct sl_err why = SL_ERR_INIT;
        int found = sl_yaml_next(yaml, &tree, &why), done = 0;
        if (found == 1 && reading->specs.count >= SL_SPEC_DOCUMENTS_MAX) {
            sl_complain(&reading->complaints, tree.root->mark, "more than %u models in one file",
                        SL_SPEC_DOCUMENTS_MAX);
            found = 0;
        }
        if (found == 1 && !is_empty(&tree))
            done = read_document(reading, &tree, err);
        sl_yaml_tree_release(&tree);
        reading->complaints.document++;
        if (found < 0 && reading->complaints.total && why.kind == SL_E_USAGE)
            return 0;
        if (found < 0 && err)
            *err = why;
        if (found < 0 || done < 0)
            return -1;
        if (found == 0)
            return 0;
    }
}

/* ---- complaints ----------------------------------------------------------------------------- */

static int compare_complaints(const void *a, const void *b)
{
    const struct sl_complaint *left = a, *right = b;
    if (!left->mark.line != !right->mark.line)
        return left->mark.line ? 1 : -1; /* the command line first */
    if (left->mark.line != right->mark.line)
        return left->mark.line < right->mark.line ? -1 : 1;
    if (left->mark.column != right->mark.column)
        return left->mark.column < right->mark.column ? -1 : 1;
    return strcmp(left->text, right->text);
}

/* A flag names the key already: "--connections: expected …". */
static const char *past_key(const char *text)
{
    const char *end = *text == '\'' ? strstr(text, "': ") : NULL;
    return end && !memchr(text + 1, '\'', (size_t)(end - text - 1)) ? end + 3 : text;
}

static void format_complaint(const struct sl_complaint *complaint, const char *file_name,
                             char *line, size_t bytes)
{
    if (complaint->mark.origin)
        snprintf(line, bytes, "%.100s: %s", complaint->mark.origin, past_key(complaint->text));
    else if (complaint->mark.line)
        snprintf(line, bytes, "%.200s:%u:%u: %s", file_name, complaint->mark.line,
                 complaint->mark.column, complaint->text);
    else
        snprintf(line, bytes, "%.200s: %s", file_name, complaint->text);
}

/* Lines for `out` and the first for err; the same complaint about a shared node or setting is said
 * once. */
static int report(struct reading *reading, struct sl_buf *out, struct sl_err *err)
{
    struct sl_complaints *complaints = &reading->complaints;
    char line[SL_COMPLAINT_BYTES + 256], before[sizeof(line)] = "";
    struct sl_err first = SL_ERR_INIT;
    qsort(complaints->items, complaints->count, sizeof(*complaints->items), compare_complaints);
    for (size_t i = 0; i < complaints->count; i++) {
        format_complaint(&complaints->items[i], reading->file_name, line, sizeof(line));
        if (strcmp(line, before) == 0)
            continue;
        if (i == 0)
            sl_fail(&first, SL_E_USAGE, "%s", line);
        if (out && sl_buf_printf(out, err, "%s\n", line) < 0)
            return -1;
        memcpy(before, line, sizeof(line));
    }
    if (out && complaints->total > complaints->count &&
        sl_buf_printf(out, err, "%.200s: %zu more mistakes are not shown\n", reading->file_name,
                      complaints->total - complaints->count) < 0)
        return -1;
    if (err)
        *err = first;
    return -1;
}

/* ---- entrances ------------------------------------------------------------------------------ */

static int finish(struct reading *reading, int done, struct sl_specs *specs, struct sl_buf *out,
                  struct sl_err *err)
{
    if (done == 0 && !reading->specs.count && !reading->node_count && !reading->complaints.total)
        sl_complain(&reading->complaints, (struct sl_mark){0},
                    reading->node ? "no config in it: see `sluice docs node`"
                                  : "no model in it: see `sluice docs spec`");
    if (done == 0 && !reading->complaints.total)
        sl_spec_check_all_sets(&reading->specs, &reading->complaints);
    if (done == 0 && reading->complaints.total)
        done = report(reading, out, err);
    free(reading->complaints.items);
    if (done < 0)
        sl_specs_release(&reading->specs);
    else
        *specs = reading->specs;
    return done;
}

static int begin(struct reading *reading, const char *file_name,
                 const struct sl_spec_setting *settings, size_t setting_count, struct sl_err *err)
{
    *reading = (struct reading){.file_name = file_name,
                                .settings = settings,
                                .setting_count = setting_count,
                                .variables = true};
    reading->complaints.items =
        sl_alloc_array(SL_SPEC_COMPLAINTS_MAX, sizeof(struct sl_complaint), err);
    return reading->complaints.items ? 0 : -1;
}

static int parse_text(struct reading *reading, const char *text, size_t bytes,
                      struct sl_specs *specs, struct sl_buf *complaints, struct sl_err *err)
{
    return finish(reading, read_documents(reading, text, bytes, err), specs, complaints, err);
}

static int check_size(size_t bytes, const char *file_name, struct sl_err *err)
{
    if (bytes <= SL_SPEC_BYTES_MAX)
        return 0;
    return sl_fail(err, SL_E_USAGE, "'%s' is larger than %u bytes", file_name, SL_SPEC_BYTES_MAX);
}

static int parse(const char *text, size_t bytes, const char *file_name, bool pooled,
                 const struct sl_spec_setting *settings, size_t setting_count,
                 struct sl_specs *specs, struct sl_buf *complaints, struct sl_err *err)
{
    struct reading reading;
    if (check_size(bytes, file_name, err) < 0 ||
        begin(&reading, file_name, settings, setting_count, err) < 0)
        return -1;
    reading.pooled = pooled;
    return parse_text(&reading, text, bytes, specs, complaints, err);
}

int sl_spec_parse(const char *text, size_t bytes, const char *file_name,
                  const struct sl_spec_setting *settings, size_t setting_count,
                  struct sl_specs *specs, struct sl_buf *complaints, struct sl_err *err)
{
    return parse(text, bytes, file_name, false, settings, setting_count, specs, complaints, err);
}

int sl_spec_parse_placed(const char *text, size_t bytes, const char *file_name, bool variables,
                         struct sl_specs *specs, struct sl_buf *complaints, struct sl_err *err)
{
    struct reading reading;
    if (check_size(bytes, file_name, err) < 0 || begin(&reading, file_name, NULL, 0, err) < 0)
        return -1;
    reading.placed = true;
    reading.variables = variables;
    return parse_text(&reading, text, bytes, specs, complaints, err);
}

int sl_node_spec_parse(const char *text, size_t bytes, const char *file_name,
                       struct sl_node_spec *node, struct sl_specs *specs, struct sl_buf *complaints,
                       struct sl_err *err)
{
    struct reading reading;
    memset(node, 0, sizeof(*node));
    if (check_size(bytes, file_name, err) < 0 || begin(&reading, file_name, NULL, 0, err) < 0)
        return -1;
    reading.placed = true;
    reading.node = node;
    return parse_text(&reading, text, bytes, specs, complaints, err);
}

static bool is_standard(const char *path)
{
    return strcmp(path, "-") == 0;
}

static const char *name_of(const char *path)
{
    return is_standard(path) ? "stdin" : path;
}

int sl_spec_file_text(const char *path, const char *what, struct sl_buf *text, struct sl_err *err)
{
    struct stat status; /* a pipe that nobody writes to would hold us for ever */
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode))
        return sl_fail(err, SL_E_USAGE, "the %s '%s' is a %s: give a file", what, path,
                       S_ISDIR(status.st_mode) ? "directory" : "pipe or a device");
    if (sl_buf_read_file(text, path, err) < 0)
        return sl_wrap(err, "the %s must be a file that can be read", what);
    return 0;
}

int sl_spec_text(const char *path, struct sl_buf *text, struct sl_err *err)
{
    return is_standard(path) ? sl_buf_read_file(text, "/dev/stdin", err)
                             : sl_spec_file_text(path, "model spec", text, err);
}

int sl_spec_read(const char *path, const struct sl_spec_setting *settings, size_t setting_count,
                 struct sl_specs *specs, struct sl_buf *complaints, struct sl_err *err)
{
    sl_autobuf text = SL_BUF_INIT(SL_SPEC_BYTES_MAX);
    if (sl_spec_text(path, &text, err) < 0)
        return -1;
    return sl_spec_parse(sl_buf_string(&text), text.used, name_of(path), settings, setting_count,
                         specs, complaints, err);
}

int sl_spec_read_pooled(const char *path, const struct sl_spec_setting *settings,
                        size_t setting_count, struct sl_specs *specs, struct sl_buf *complaints,
                        struct sl_err *err)
{
    sl_autobuf text = SL_BUF_INIT(SL_SPEC_BYTES_MAX);
    if (sl_spec_text(path, &text, err) < 0)
        return -1;
    return parse(sl_buf_string(&text), text.used, name_of(path), true, settings, setting_count,
                 specs, complaints, err);
}

/* Up to where what names a version begins, "@main", ":v1"; end where there is none. */
static size_t without_version(const char *uri, size_t end)
{
    size_t last = end, at;
    while (last && uri[last - 1] != '/')
        last--;
    at = last + strcspn(uri + last, "@:");
    return last && at > last && at < end ? at : end;
}

/* "s3://models/GPT-J_6B/" is gpt-j-6b; "…/model.safetensors" is model. */
static void name_from_uri(const char *uri, char name[64])
{
    size_t end = strcspn(uri, sl_uri_is_local(uri) ? "?#" : "?#;"), used = 0;
    while (end && uri[end - 1] == '/')
        end--;
    end = without_version(uri, end);
    size_t start = end;
    while (start && uri[start - 1] != '/' && uri[start - 1] != ':')
        start--;
    const char *dot = memrchr(uri + start, '.', end - start);
    if (dot && dot > uri + start && uri[end] != '/' && !isdigit((unsigned char)dot[1]))
        end = (size_t)(dot - uri);
    for (; start < end && used < 63; start++) {
        char c = (char)tolower((unsigned char)uri[start]);
        bool letter = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
        if (letter || used)
            name[used++] = letter || c == '.' ? c : '-';
    }
    while (used && (name[used - 1] == '-' || name[used - 1] == '.'))
        used--;
    name[used] = 0;
    if (!used)
        memcpy(name, "model", 6);
}

static int read_settings(struct reading *reading, struct sl_err *err)
{
    struct sl_yaml_tree tree = {0};
    tree.root = sl_yaml_tree_node(&tree, SL_YAML_MAP, (struct sl_mark){0}, err);
    int done = tree.root ? read_document(reading, &tree, err) : -1;
    sl_yaml_tree_release(&tree);
    return done;
}

/* What is missing beside the settings is not their mistake. */
static void keep_of_settings(struct sl_complaints *complaints)
{
    size_t kept = 0;
    for (size_t i = 0; i < complaints->count; i++)
        if (complaints->items[i].mark.origin)
            complaints->items[kept++] = complaints->items[i];
    complaints->count = complaints->total = kept;
}

int sl_spec_check_settings(const struct sl_spec_setting *settings, size_t setting_count,
                           struct sl_buf *complaints, struct sl_err *err)
{
    struct reading reading;
    struct sl_specs specs = {0};
    if (begin(&reading, "command line", settings, setting_count, err) < 0)
        return -1;
    int done = read_settings(&reading, err);
    keep_of_settings(&reading.complaints);
    done = finish(&reading, done, &specs, complaints, err);
    sl_specs_release(&specs);
    return done;
}

int sl_spec_from_uri(const char *uri, const char *to, const struct sl_spec_setting *settings,
                     size_t setting_count, struct sl_specs *specs, struct sl_buf *complaints,
                     struct sl_err *err)
{
    char name[64];
    name_from_uri(uri, name);
    const struct sl_spec_setting own[] = {
        {"apiVersion", "sluice/v1alpha1", NULL}, {"kind", "Model", NULL},
        {"metadata.name", name, NULL},           {"source.uri", uri, "URI"},
        {"sink.tmpfs.path", to, "--to"},
    };
    if (!to || !*to)
        return sl_fail(err, SL_E_USAGE, "--to DIR is missing: the directory to load '%s' into",
                       uri);
    sl_autofree struct sl_spec_setting *all =
        sl_alloc_array(SL_COUNT(own) + setting_count, sizeof(*all), err);
    if (!all)
        return -1;
    memcpy(all, own, sizeof(own));
    if (setting_count)
        memcpy(all + SL_COUNT(own), settings, setting_count * sizeof(*all));
    struct reading reading;
    if (begin(&reading, "command line", all, SL_COUNT(own) + setting_count, err) < 0)
        return -1;
    return finish(&reading, read_settings(&reading, err), specs, complaints, err);
}

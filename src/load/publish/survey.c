/*
 * What is published in a directory, whole and as it was? ready tells, and of one of our own the
 * file beside it first, which nobody else opens. "It cannot be looked at now" is never "no".
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"
#include "publish_parts.h"

enum { READY_BYTES_MAX = 4096, FOLDER = O_RDONLY | O_DIRECTORY | O_CLOEXEC };

static const char *plan_file_name(const void *arg, size_t i)
{
    return ((const struct sl_plan *)arg)->files[i].name;
}

static bool is_text(const json_t *document, const char *key, const char *expected)
{
    const char *text = sl_json_get_string(document, key);
    return text && strcmp(text, expected) == 0;
}

/* Is it only not known? Else what was told is so. */
static bool is_doubt(const struct sl_err *why)
{
    return why->kind != SL_E_NOT_FOUND && why->kind != SL_E_INTEGRITY && why->kind != SL_E_FORMAT;
}

static json_t *read_document(int folder_fd, const char *name, size_t bytes_max, struct sl_err *err)
{
    sl_autobuf text = SL_BUF_INIT(bytes_max);
    if (sl_tree_read(folder_fd, name, &text, err) < 0)
        return NULL;
    return sl_json_parse(sl_buf_string(&text), text.used, name, err);
}

/* What lies beside one of our own; one that another user made is none. */
static json_t *read_beside(const struct sl_publish *publish, struct sl_err *err)
{
    struct stat status;
    if (fstatat(publish->beside_fd, publish->beside, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
        ((status.st_uid && status.st_uid != geteuid()) || status.st_nlink > 1)) {
        sl_fail(err, SL_E_NOT_FOUND, "'%s' belongs to another user", publish->beside);
        return NULL;
    }
    return read_document(publish->beside_fd, publish->beside, SL_MANIFEST_BYTES_MAX, err);
}

/* Does it tell of these files, as they are now? SL_E_INTEGRITY: of others. */
static int compare(struct sl_publish *publish, const json_t *ready, const char *identity,
                   const char *(*name)(const void *arg, size_t i), const void *arg, size_t count,
                   struct sl_cancel *cancel, struct sl_err *err)
{
    char stamp[65];
    if (sl_published_stamp(publish->root_fd, name, arg, count, stamp, err) < 0)
        return -1;
    if (!is_text(ready, "identity", identity) || !is_text(ready, "stamp", stamp))
        return sl_fail(err, SL_E_INTEGRITY, "the files in '%s' are not those that were published",
                       publish->path);
    return sl_publish_outlived(publish, ready, identity, cancel, err);
}

/* The marker that everybody sees, without opening it. */
static int find_marker(const struct sl_publish *publish, struct sl_err *err)
{
    struct stat status;
    if (fstatat(publish->state_fd, SL_READY, &status, AT_SYMLINK_NOFOLLOW) < 0 ||
        fstatat(publish->state_fd, SL_MANIFEST, &status, AT_SYMLINK_NOFOLLOW) < 0)
        return sl_fail_errno(err, errno == ENOENT ? SL_E_NOT_FOUND : SL_E_NO_SPACE, errno,
                             "'%s' holds no published model", publish->path);
    return 0;
}

static bool has_files_of(const struct sl_published *published, const struct sl_plan *plan)
{
    bool same = published->count == plan->file_count;
    for (size_t i = 0; same && i < plan->file_count; i++)
        same = strcmp(published->files[i].name, plan->files[i].name) == 0;
    return same;
}

/* What verify and status would refuse is not there, either: the manifest is read. */
static json_t *read_state(struct sl_publish *publish, const struct sl_plan *plan,
                          const char *identity, struct sl_err *err)
{
    __attribute__((cleanup(sl_published_release))) struct sl_published published = {0};
    if (sl_published_read(publish->state_fd, SL_MANIFEST, &published, err) < 0)
        return NULL;
    if (strcmp(published.identity, identity) != 0 || !has_files_of(&published, plan)) {
        sl_fail(err, SL_E_NOT_FOUND, "'%s' holds another version", publish->path);
        return NULL;
    }
    return read_document(publish->state_fd, SL_READY, READY_BYTES_MAX, err);
}

/* By the file beside it, if it is our own, then by manifest and ready. */
static int compare_with_plan(struct sl_publish *publish, const struct sl_plan *plan,
                             struct sl_err *err)
{
    char identity[65];
    sl_hex(plan->identity, 32, identity);
    if (find_marker(publish, err) < 0)
        return -1;
    for (bool own = publish->beside_fd >= 0;; own = false) {
        struct sl_err why = SL_ERR_INIT;
        json_t *ready =
            own ? read_beside(publish, &why) : read_state(publish, plan, identity, &why);
        int done = ready ? compare(publish, ready, identity, plan_file_name, plan, plan->file_count,
                                   publish->cancel, &why)
                         : -1;
        json_decref(ready);
        if (done == 0)
            return 0;
        if (own && !is_doubt(&why))
            continue;
        if (err)
            *err = why;
        return -1;
    }
}

int sl_publish_is_current(struct sl_publish *publish, const struct sl_plan *plan, bool *current,
                          struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    *current = compare_with_plan(publish, plan, &why) == 0;
    if (*current)
        return 0;
    if (publish->beside_fd >= 0 && is_doubt(&why)) { /* somebody may read it just now */
        if (err)
            *err = why;
        return sl_wrap(err, "cannot tell whether '%s' is whole", publish->path);
    }
    if (why.kind != SL_E_NOT_FOUND)
        sl_log(SL_LOG_WARN, "what is published in '%s' is loaded again: %s", publish->path,
               why.message);
    return 0;
}

static const char *surveyed_name(const void *arg, size_t i)
{
    return ((const struct sl_published *)arg)->files[i].name;
}

/* Facts are shown to people, and a manifest may be anybody's. */
static void copy_text(const char *value, char *text, size_t capacity)
{
    snprintf(text, capacity, "%s", value ? value : "");
    sl_sanitize(text);
}

static void take_signed(const json_t *document, struct sl_signed_by *signed_by)
{
    const json_t *from = json_object_get(document, "signed");
    copy_text(sl_json_get_string(from, "by"), signed_by->by, sizeof(signed_by->by));
    copy_text(sl_json_get_string(from, "file"), signed_by->file, sizeof(signed_by->file));
    signed_by->resources = sl_json_get_uint(from, "resources", 0);
    signed_by->loaded = sl_json_get_uint(from, "loaded", 0);
    signed_by->strangers = sl_json_get_uint(from, "unsigned", 0);
    signed_by->at = sl_signed_by_time(sl_json_get_string(from, "at"));
}

static void take_facts(const struct sl_published *published, struct sl_publish_facts *facts)
{
    const json_t *document = published->document, *verified = json_object_get(document, "verified");
    copy_text(sl_json_get_string(document, "name"), facts->name, sizeof(facts->name));
    copy_text(sl_json_get_string(document, "uri"), facts->uri, sizeof(facts->uri));
    copy_text(sl_json_get_string(document, "time"), facts->time, sizeof(facts->time));
    copy_text(sl_json_get_string(document, "asked"), facts->asked, sizeof(facts->asked));
    copy_text(published->identity, facts->identity, sizeof(facts->identity));
    facts->checks = sl_json_get_uint(verified, "checks", 0);
    facts->unhashed = sl_json_get_uint(verified, "unhashed_bytes", 0);
    facts->objects = sl_json_get_uint(document, "objects", 0);
    take_signed(document, &facts->signed_by);
    facts->tensors = sl_json_get_uint(document, "tensors", 0);
    facts->files = published->count;
    for (size_t i = 0; i < published->count; i++)
        facts->bytes = sl_add_capped(facts->bytes, published->files[i].bytes);
}

/* By the file beside it. */
static int survey_beside(struct sl_publish *publish, struct sl_publish_facts *facts,
                         struct sl_err *err)
{
    __attribute__((cleanup(sl_published_release))) struct sl_published published = {0};
    published.document = read_beside(publish, err);
    if (!published.document || sl_published_take_names(&published, err) < 0 ||
        compare(publish, published.document, published.identity, surveyed_name, &published,
                published.count, NULL, err) < 0)
        return -1;
    copy_text(published.identity, facts->identity, sizeof(facts->identity));
    facts->bytes = sl_json_get_uint(published.document, "bytes", 0);
    facts->files = published.count;
    return 0;
}

static int survey_state(struct sl_publish *publish, struct sl_publish_facts *facts,
                        struct sl_err *err)
{
    __attribute__((cleanup(sl_published_release))) struct sl_published published = {0};
    json_t *ready = read_document(publish->state_fd, SL_READY, READY_BYTES_MAX, err);
    /* The caller's cancel may have been there to keep the opening from waiting. */
    int done = !ready || sl_published_read(publish->state_fd, SL_MANIFEST, &published, err) < 0
                   ? sl_wrap(err, "'%s' holds no published model", publish->path)
                   : compare(publish, ready, published.identity, surveyed_name, &published,
                             published.count, NULL, err);
    json_decref(ready);
    if (done < 0)
        return -1;
    take_facts(&published, facts);
    if (publish->beside_fd >= 0) /* an earlier version published it */
        sl_commit_write_beside(publish, &published);
    return 0;
}

int sl_publish_survey(struct sl_publish *publish, struct sl_publish_facts *facts,
                      struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    *facts = (struct sl_publish_facts){0};
    if (find_marker(publish, err) < 0)
        return -1;
    if (publish->beside_fd >= 0) {
        if (survey_beside(publish, facts, &why) == 0)
            return 0;
        *facts = (struct sl_publish_facts){0};
        if (is_doubt(&why)) {
            if (err)
                *err = why;
            return -1;
        }
    }
    return survey_state(publish, facts, err);
}

/* Size and kind, as the manifest has them. */
static bool is_there(int root_fd, const struct sl_published_file *file)
{
    struct stat status;
    const char *leaf;
    sl_autoclose int folder = sl_tree_parent(root_fd, file->name, false, &leaf);
    return folder >= 0 && fstatat(folder, leaf, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
           S_ISREG(status.st_mode) && (uint64_t)status.st_size == file->bytes;
}

int sl_publish_look(const char *path, struct sl_publish_facts *facts, bool *there,
                    struct sl_err *err)
{
    __attribute__((cleanup(sl_published_release))) struct sl_published published = {0};
    *facts = (struct sl_publish_facts){0};
    sl_autoclose int root_fd = open(path, FOLDER);
    sl_autoclose int state_fd =
        root_fd < 0 ? -1 : openat(root_fd, SL_STATE_DIRECTORY, FOLDER | O_NOFOLLOW);
    struct sl_err why = SL_ERR_INIT;
    if (state_fd < 0 && errno != ENOENT)
        return sl_fail_errno(err, sl_errno_is_short(errno) ? SL_E_NO_SPACE : SL_E_USAGE, errno,
                             "cannot open '%s/" SL_STATE_DIRECTORY "'", path);
    if (state_fd < 0 || sl_published_read(state_fd, SL_MANIFEST, &published, &why) < 0) {
        if (state_fd < 0 || why.kind == SL_E_NOT_FOUND)
            return sl_fail(err, SL_E_NOT_FOUND,
                           "nothing is published in '%s': it has no " SL_STATE_DIRECTORY
                           "/" SL_MANIFEST,
                           path);
        if (err)
            *err = why;
        return sl_wrap(err, "'%s' holds no published model", path);
    }
    take_facts(&published, facts);
    *there = true;
    for (size_t i = 0; *there && i < published.count; i++)
        *there = is_there(root_fd, &published.files[i]);
    return 0;
}

/* The manifest's own word first: to look at files takes a call each, and after another boot all
 * their bytes. */
static bool is_about(struct sl_publish *publish, const char *asked)
{
    __attribute__((cleanup(sl_published_release))) struct sl_published published = {0};
    return sl_published_read(publish->state_fd, SL_MANIFEST, &published, NULL) == 0 &&
           is_text(published.document, "asked", asked) &&
           !sl_boot_is_past(publish->root_fd, published.document);
}

bool sl_publish_has_asked(struct sl_publish *publish, const uint8_t asked[32],
                          struct sl_publish_facts *facts)
{
    char hex[65];
    struct sl_err why = SL_ERR_INIT;
    sl_hex(asked, 32, hex);
    return is_about(publish, hex) && sl_publish_survey(publish, facts, &why) == 0 &&
           strcmp(facts->asked, hex) == 0;
}

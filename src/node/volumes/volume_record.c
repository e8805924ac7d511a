/*
 * A record is named after its target. Its members mean the same in every version that writes them:
 * a later one may add some, which this one passes over, so that an upgrade that is taken back finds
 * its volumes. A record is there before its mount and goes after it, so a mount of ours without one
 * is nobody's.
 */
#include "volume_record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "entries.h"
#include "hash.h"
#include "json.h"
#include "log.h"
#include "node_folder.h"
#include "tree.h"

enum { FORMAT = 1, RECORD_BYTES_MAX = 64 * 1024, NAME_HASH_BYTES = 16, FILE_NAME = 48 };

static int file_name(const char *target, char name[FILE_NAME], struct sl_err *err)
{
    uint8_t digest[32];
    char hex[2 * NAME_HASH_BYTES + 1];
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha)
        return -1;
    sl_sha256_update(sha, target, strlen(target));
    sl_sha256_finish(sha, digest);
    sl_hex(digest, NAME_HASH_BYTES, hex);
    snprintf(name, FILE_NAME, "%s.json", hex);
    return 0;
}

int sl_volume_record_write(int folder_fd, const struct sl_volume_record *record, struct sl_err *err)
{
    char name[FILE_NAME], arguments[2 * SL_VOLUME_DIGEST + 1];
    struct sl_json json;
    sl_hex(record->arguments, SL_VOLUME_DIGEST, arguments);
    sl_json_init(&json, RECORD_BYTES_MAX);
    sl_json_object(&json);
    sl_json_key_uint(&json, "format", FORMAT);
    sl_json_key_string(&json, "volume", record->id);
    sl_json_key_string(&json, "target", record->target);
    sl_json_key_string(&json, "model", record->model);
    sl_json_key_string(&json, "version", record->version);
    sl_json_key_bool(&json, "pool", record->pool);
    sl_json_key_string(&json, "pod", record->pod);
    sl_json_key_string(&json, "namespace", record->pod_namespace);
    sl_json_key_string(&json, "podUid", record->pod_uid);
    sl_json_key_string(&json, "arguments", arguments);
    sl_json_end(&json);
    const char *text = sl_json_text(&json, err);
    int done = text ? file_name(record->target, name, err) : -1;
    if (done == 0)
        done = sl_tree_write_own(folder_fd, name, text, strlen(text), err);
    sl_json_release(&json);
    return done;
}

int sl_volume_record_remove(int folder_fd, const struct sl_volume_record *record,
                            struct sl_err *err)
{
    char name[FILE_NAME];
    if (file_name(record->target, name, err) < 0)
        return -1;
    if (unlinkat(folder_fd, name, 0) == 0 || errno == ENOENT)
        return 0;
    return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot remove the record of a volume");
}

/* ---- reading -------------------------------------------------------------------------------- */

static bool take_hex(const char *text, uint8_t *bytes, size_t count)
{
    static const char digits[] = "0123456789abcdef";
    if (strlen(text) != 2 * count || strspn(text, digits) != 2 * count)
        return false;
    for (size_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)((strchr(digits, text[2 * i]) - digits) * 16 +
                             (strchr(digits, text[2 * i + 1]) - digits));
    return true;
}

static bool is_plain(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            return false;
    return true;
}

static int take_texts(const json_t *root, struct sl_volume_record *record, struct sl_err *err)
{
    const struct {
        const char *key;
        char *text;
        size_t bytes;
    } members[] = {
        {"volume", record->id, sizeof(record->id)},
        {"target", record->target, sizeof(record->target)},
        {"model", record->model, sizeof(record->model)},
        {"version", record->version, sizeof(record->version)},
        {"pod", record->pod, sizeof(record->pod)},
        {"namespace", record->pod_namespace, sizeof(record->pod_namespace)},
        {"podUid", record->pod_uid, sizeof(record->pod_uid)},
    };
    for (size_t i = 0; i < SL_COUNT(members); i++) {
        const char *text = sl_json_get_string(root, members[i].key);
        if (!text || strlen(text) >= members[i].bytes || !is_plain(text))
            return sl_fail(err, SL_E_FORMAT, "'%s' is missing, too long or unprintable",
                           members[i].key);
        memcpy(members[i].text, text, strlen(text) + 1);
    }
    return 0;
}

static bool is_version(const char *text)
{
    return strlen(text) == SL_VERSION_TEXT - 1 &&
           strspn(text, "0123456789abcdef") == SL_VERSION_TEXT - 1;
}

static int take_root(const json_t *root, struct sl_volume_record *record, struct sl_err *err)
{
    if (!json_is_object(root) || sl_json_get_uint(root, "format", 0) < FORMAT)
        return sl_fail(err, SL_E_FORMAT, "its 'format' is missing or too old");
    if (take_texts(root, record, err) < 0)
        return -1;
    const char *arguments = sl_json_get_string(root, "arguments");
    record->pool = json_is_true(json_object_get(root, "pool"));
    if (!arguments || !take_hex(arguments, record->arguments, SL_VOLUME_DIGEST))
        return sl_fail(err, SL_E_FORMAT, "'arguments' is not a digest");
    if (!*record->id || !*record->target)
        return sl_fail(err, SL_E_FORMAT, "its 'volume' or 'target' is empty");
    if (record->pool ? *record->model || *record->version
                     : !sl_is_model_name(record->model) || !is_version(record->version))
        return sl_fail(err, SL_E_FORMAT, "its 'model' and 'version' do not fit");
    return 0;
}

int sl_volume_record_parse(const char *text, size_t bytes, struct sl_volume_record *record,
                           struct sl_err *err)
{
    memset(record, 0, sizeof(*record));
    json_t *root = sl_json_parse(text, bytes, "the record of a volume", err);
    int done = root ? take_root(root, record, err) : -1;
    json_decref(root);
    return done;
}

static int read_one(int folder_fd, const char *name, struct sl_volume_record *record,
                    struct sl_err *err)
{
    char right[FILE_NAME];
    sl_autobuf text = SL_BUF_INIT(RECORD_BYTES_MAX);
    if (sl_node_read_own(folder_fd, name, &text, err) < 0 ||
        sl_volume_record_parse(sl_buf_string(&text), text.used, record, err) < 0 ||
        file_name(record->target, right, err) < 0)
        return -1;
    return strcmp(name, right) == 0
               ? 0
               : sl_fail(err, SL_E_FORMAT, "its file name does not match its target");
}

static bool is_json(const char *name)
{
    size_t bytes = strlen(name);
    return bytes > 5 && strcmp(name + bytes - 5, ".json") == 0;
}

/* The names first, since what is called may write and remove some. */
static int list(int folder_fd, char ***names, size_t *count, struct sl_err *err)
{
    size_t capacity = 0;
    int fd = openat(folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    if (!folder) {
        sl_autoclose_(&fd);
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot read the records of volumes");
    }
    int done = 0;
    for (struct dirent *entry; done == 0 && (entry = sl_next_entry(folder));) {
        if (!is_json(entry->d_name))
            continue;
        char *copy = sl_strdup(entry->d_name, err);
        done = copy ? sl_grow(names, &capacity, *count + 1, sizeof(**names), err) : -1;
        if (done == 0)
            (*names)[(*count)++] = copy;
        else
            free(copy);
    }
    if (done == 0 && errno)
        done = sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot read the records of volumes");
    closedir(folder);
    return done;
}

int sl_volume_record_each(int folder_fd,
                          int (*each)(void *arg, const struct sl_volume_record *record,
                                      struct sl_err *err),
                          void *arg, struct sl_err *err)
{
    char **names = NULL;
    size_t count = 0;
    int done = list(folder_fd, &names, &count, err);
    for (size_t i = 0; i < count; i++) {
        struct sl_volume_record record;
        struct sl_err why = SL_ERR_INIT;
        int good = done == 0 ? read_one(folder_fd, names[i], &record, &why) : 0;
        if (good < 0 && why.kind == SL_E_NO_SPACE && !*why.code) {
            if (err)
                *err = why; /* it may be good: nothing is taken away for that */
            done = -1;
        } else if (good < 0) {
            sl_log(SL_LOG_WARN, "removing the invalid record '%s' of a volume: %s", names[i],
                   why.message);
            sl_tree_remove(folder_fd, names[i]);
        } else if (done == 0) {
            done = each(arg, &record, err);
        }
        free(names[i]);
    }
    free(names);
    return done;
}

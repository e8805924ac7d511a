/*
 * A slab of a tmpfs is a file without a name; keeping it gives it one. Its times are noted after
 * that, since a link changes them, and whatever would write to it, cut it or put another in its
 * place would change them, too. (Only this user and root could: folder and files are closed to
 * others.) The manifest is written last and goes first, so a kill at any point leaves either a
 * whole model or a folder that the next scan removes.
 */
#include "pool_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "entries.h"
#include "exact_io.h"
#include "hash.h"
#include "json.h"
#include "log.h"
#include "pool_index.h"
#include "pool_parts.h"
#include "tree.h"

enum { MANIFEST_BYTES_MAX = 1024 * 1024, VERSION = 1, FILE_NAME_BYTES = 32 };
enum { FOLDER = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW };
#define MANIFEST   "manifest.json"
#define INDEX_FILE "index"

const char *sl_pool_copy_id(const struct sl_pool_copy *copy, char text[SL_POOL_ID_TEXT],
                            struct sl_err *err)
{
    uint8_t digest[32];
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha)
        return NULL;
    const struct sl_pool_model *model = copy->model;
    sl_sha256_update(sha, model->name, strlen(model->name) + 1);
    sl_sha256_update(sha, model->key, strlen(model->key) + 1);
    sl_sha256_update(sha, model->identity, sizeof(model->identity));
    if (copy->gpu)
        sl_sha256_update(sha, sl_gpu_device(copy->gpu)->uuid, 16);
    sl_sha256_finish(sha, digest);
    sl_hex(digest, (SL_POOL_ID_TEXT - 1) / 2, text);
    return text;
}

/* Files by number: the index, then the slabs. */
static const char *file_name(size_t number, char name[FILE_NAME_BYTES])
{
    if (number)
        snprintf(name, FILE_NAME_BYTES, "slab-%zu", number - 1);
    else
        snprintf(name, FILE_NAME_BYTES, INDEX_FILE);
    return name;
}

static uint64_t nanoseconds(const struct timespec *time)
{
    return (uint64_t)time->tv_sec * 1000000000 + (uint64_t)time->tv_nsec;
}

/* ---- keeping -------------------------------------------------------------------------------- */

static int link_slab(const struct sl_slab *slab, int folder_fd, const char *name,
                     struct sl_err *err)
{
    char path[64];
    if (slab->kind != SL_SLAB_TMPFS)
        return sl_fail(err, SL_E_INTERNAL, "a slab is not a file");
    snprintf(path, sizeof(path), "/proc/self/fd/%d", slab->reader_fd);
    if (linkat(AT_FDCWD, path, folder_fd, name, AT_SYMLINK_FOLLOW) < 0)
        return sl_tree_fail(err, errno, "keep", name);
    return 0;
}

static int write_index(const struct sl_pool_copy *copy, int folder_fd, struct sl_err *err)
{
    void *map = mmap(NULL, copy->index_bytes, PROT_READ, MAP_SHARED, copy->index_fd, 0);
    if (map == MAP_FAILED)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot map an index");
    int done = sl_tree_write_own(folder_fd, INDEX_FILE, map, copy->index_bytes, err);
    munmap(map, copy->index_bytes);
    return done;
}

static int describe_files(int folder_fd, size_t count, struct sl_json *json, struct sl_err *err)
{
    sl_json_key(json, "files");
    sl_json_array(json);
    for (size_t i = 0; i < count; i++) {
        char name[FILE_NAME_BYTES];
        struct stat status;
        if (fstatat(folder_fd, file_name(i, name), &status, AT_SYMLINK_NOFOLLOW) < 0)
            return sl_tree_fail(err, errno, "look at", name);
        sl_json_object(json);
        sl_json_key_uint(json, "inode", status.st_ino);
        sl_json_key_uint(json, "bytes", (uint64_t)status.st_size);
        sl_json_key_uint(json, "modified_ns", nanoseconds(&status.st_mtim));
        sl_json_key_uint(json, "changed_ns", nanoseconds(&status.st_ctim));
        sl_json_end(json);
    }
    sl_json_end(json);
    return 0;
}

static int write_manifest(const struct sl_pool_copy *copy, int folder_fd, struct sl_err *err)
{
    struct sl_json json;
    sl_json_init(&json, MANIFEST_BYTES_MAX);
    sl_json_object(&json);
    sl_json_key_uint(&json, "version", VERSION);
    sl_json_key_string(&json, "model", copy->model->name);
    sl_json_key_uint(&json, "made_seconds", (uint64_t)copy->model->made_seconds);
    int done = describe_files(folder_fd, 1 + copy->slab_count, &json, err);
    sl_json_end(&json);
    const char *text = done < 0 ? NULL : sl_json_text(&json, err);
    done = text ? sl_tree_write_own(folder_fd, MANIFEST, text, strlen(text), err) : -1;
    sl_json_release(&json);
    return done;
}

static int fill_folder(const struct sl_pool_copy *copy, int folder_fd, struct sl_err *err)
{
    char name[FILE_NAME_BYTES];
    for (size_t i = 0; i < copy->slab_count; i++)
        if (link_slab(&copy->slabs[i], folder_fd, file_name(1 + i, name), err) < 0)
            return -1;
    if (write_index(copy, folder_fd, err) < 0)
        return -1;
    return write_manifest(copy, folder_fd, err);
}

int sl_pool_files_keep(int directory_fd, const struct sl_pool_model *model, struct sl_err *err)
{
    const struct sl_pool_copy *copy = model->copies[0]; /* there is no other on a tmpfs */
    char id[SL_POOL_ID_TEXT];
    if (!sl_pool_copy_id(copy, id, err))
        return -1;
    if (sl_tree_remove(directory_fd, id) < 0 || mkdirat(directory_fd, id, 0700) < 0)
        return sl_tree_fail(err, errno, "make the folder of", model->name);
    sl_autoclose int folder_fd = openat(directory_fd, id, FOLDER);
    if (folder_fd < 0)
        sl_tree_fail(err, errno, "open the folder of", model->name);
    if (folder_fd >= 0 && fill_folder(copy, folder_fd, err) == 0)
        return 0;
    sl_tree_remove(directory_fd, id);
    return -1;
}

static void remove_folder(int directory_fd, const char *id)
{
    char manifest[SL_POOL_ID_TEXT + sizeof(MANIFEST)];
    snprintf(manifest, sizeof(manifest), "%s/" MANIFEST, id);
    unlinkat(directory_fd, manifest, 0);
    if (sl_tree_remove(directory_fd, id) < 0)
        sl_log(SL_LOG_WARN, "the folder '%s' of the pool cannot be removed: %s", id,
               strerror(errno));
}

void sl_pool_files_drop(int directory_fd, const struct sl_pool_model *model)
{
    char id[SL_POOL_ID_TEXT];
    struct sl_err err = SL_ERR_INIT;
    if (sl_pool_copy_id(model->copies[0], id, &err))
        remove_folder(directory_fd, id);
    else
        sl_log(SL_LOG_WARN, "the files of '%s' stay in the pool: %s", model->name, err.message);
}

/* ---- finding -------------------------------------------------------------------------------- */

static bool is_same(const struct stat *status, const json_t *saved)
{
    return S_ISREG(status->st_mode) && status->st_nlink == 1 && status->st_uid == geteuid() &&
           status->st_ino == sl_json_get_uint(saved, "inode", 0) &&
           (uint64_t)status->st_size == sl_json_get_uint(saved, "bytes", UINT64_MAX) &&
           nanoseconds(&status->st_mtim) == sl_json_get_uint(saved, "modified_ns", 0) &&
           nanoseconds(&status->st_ctim) == sl_json_get_uint(saved, "changed_ns", 0);
}

/* Something else is there, or nothing; else it cannot be looked at now, which says nothing of it.
 */
static enum sl_err_kind kind_of(int number)
{
    return number == ENOENT || number == ENOTDIR || number == ELOOP || number == ENXIO ||
                   number == EACCES
               ? SL_E_INTEGRITY
               : SL_E_NO_SPACE;
}

/* Read-only, and the file that the manifest tells of; -1 with err. */
static int open_file(int folder_fd, const json_t *files, size_t number, uint64_t *bytes,
                     struct sl_err *err)
{
    char name[FILE_NAME_BYTES];
    struct stat status;
    int fd =
        openat(folder_fd, file_name(number, name), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return sl_fail_errno(err, kind_of(errno), errno, "cannot open '%s'", name);
    if (fstat(fd, &status) == 0 && is_same(&status, json_array_get(files, number))) {
        *bytes = (uint64_t)status.st_size;
        return fd;
    }
    close(fd);
    return sl_fail(err, SL_E_INTEGRITY, "'%s' is not the file that was kept", name);
}

static int read_index(int fd, uint8_t *data, uint64_t bytes, struct sl_err *err)
{
    if (sl_read_at(fd, data, bytes, 0) < 0)
        return sl_fail(err, SL_E_INTEGRITY, "the index cannot be read");
    return 0;
}

static int take_slabs(struct sl_pool_copy *copy, int folder_fd, const json_t *files,
                      const struct sl_pool_index *index, struct sl_err *err)
{
    size_t count = index->head->slab_count;
    if (json_array_size(files) != count + 1)
        return sl_fail(err, SL_E_INTEGRITY, "the index has %zu slabs, and %zu were kept", count,
                       json_array_size(files) - 1);
    copy->slabs = sl_alloc_array(count, sizeof(*copy->slabs), err);
    if (!copy->slabs)
        return -1;
    for (size_t i = 0; i < count; i++) {
        struct sl_slab *slab = &copy->slabs[i];
        *slab = (struct sl_slab){.fd = -1, .kind = SL_SLAB_TMPFS, .sealed = true};
        slab->reader_fd = open_file(folder_fd, files, 1 + i, &slab->bytes, err);
        if (slab->reader_fd < 0)
            return -1;
        copy->slab_count = i + 1;
        copy->bytes += slab->bytes;
        if (slab->bytes != index->slabs[i].bytes || index->slabs[i].kind != SL_SLAB_TMPFS)
            return sl_fail(err, SL_E_INTEGRITY, "slab %zu is not as the index says", i);
    }
    return 0;
}

static struct sl_pool_model *adopt_index(int folder_fd, const json_t *files, const uint8_t *data,
                                         uint64_t bytes, struct sl_err *err)
{
    struct sl_pool_index index;
    char why[SL_POOL_WHY_BYTES];
    if (sl_pool_index_check(data, bytes, &index, why) < 0) {
        sl_fail(err, SL_E_FORMAT, "the index cannot be used: %s", why);
        return NULL;
    }
    SL_AUTO(sl_pool_model)
    model = sl_pool_model_new(sl_pool_index_text(&index, index.head->name_at),
                              sl_pool_index_text(&index, index.head->key_at), err);
    struct sl_pool_copy *copy = model ? sl_pool_copy_new(model, NULL, err) : NULL;
    if (!copy)
        return NULL;
    memcpy(model->identity, index.head->identity, sizeof(model->identity));
    copy->tensor_count = index.head->tensor_count;
    if (take_slabs(copy, folder_fd, files, &index, err) < 0 ||
        sl_pool_copy_set_index(copy, data, bytes, err) < 0 ||
        sl_pool_copy_make_page(copy, SL_WORD_READY, SL_POOL_READY, err) < 0)
        return NULL;
    return sl_steal(&model);
}

static struct sl_pool_model *adopt_files(int folder_fd, const json_t *root, struct sl_err *err)
{
    const json_t *files = json_object_get(root, "files");
    uint64_t bytes;
    if (sl_json_get_uint(root, "version", 0) != VERSION || !json_is_array(files) ||
        json_array_size(files) > 1 + SL_POOL_SLABS_MAX) {
        sl_fail(err, SL_E_FORMAT, "its manifest is of another version");
        return NULL;
    }
    sl_autoclose int fd = open_file(folder_fd, files, 0, &bytes, err);
    if (fd < 0)
        return NULL;
    if (bytes > SL_WIRE_INDEX_BYTES_MAX) {
        sl_fail(err, SL_E_FORMAT, "its index is larger than %d bytes", SL_WIRE_INDEX_BYTES_MAX);
        return NULL;
    }
    sl_autofree uint8_t *data = sl_alloc_aligned(64, bytes + 1, err);
    if (!data || read_index(fd, data, bytes, err) < 0)
        return NULL;
    struct sl_pool_model *model = adopt_index(folder_fd, files, data, bytes, err);
    if (model)
        sl_pool_model_set_made(model, (int64_t)sl_json_get_uint(root, "made_seconds", 0));
    return model;
}

static int read_manifest(int folder_fd, struct sl_buf *text, struct sl_err *err)
{
    struct stat status;
    if (fstatat(folder_fd, MANIFEST, &status, AT_SYMLINK_NOFOLLOW) < 0 ||
        !S_ISREG(status.st_mode) || status.st_size > MANIFEST_BYTES_MAX)
        return sl_fail(err, SL_E_INTEGRITY, "it has no '" MANIFEST "' that was kept");
    return sl_tree_read(folder_fd, MANIFEST, text, err);
}

static struct sl_pool_model *adopt_folder(const struct sl_slab_place *place, const char *id,
                                          struct sl_err *err)
{
    char own[SL_POOL_ID_TEXT];
    sl_autobuf text = SL_BUF_INIT(MANIFEST_BYTES_MAX);
    sl_autoclose int folder_fd = openat(place->directory_fd, id, FOLDER);
    if (folder_fd < 0) {
        sl_fail_errno(err, kind_of(errno), errno, "it cannot be opened");
        return NULL;
    }
    if (read_manifest(folder_fd, &text, err) < 0)
        return NULL;
    json_t *root = sl_json_parse(sl_buf_string(&text), text.used, "its manifest", err);
    if (!root)
        return NULL;
    SL_AUTO(sl_pool_model) model = adopt_files(folder_fd, root, err);
    json_decref(root);
    if (!model || !sl_pool_copy_id(model->copies[0], own, err))
        return NULL;
    if (strcmp(own, id) != 0) {
        sl_fail(err, SL_E_INTEGRITY, "it is of another model than its name says");
        return NULL;
    }
    snprintf(model->copies[0]->memory, sizeof(model->copies[0]->memory), "%s", place->why);
    return sl_steal(&model);
}

static bool is_id(const char *name)
{
    return strlen(name) == SL_POOL_ID_TEXT - 1 &&
           strspn(name, "0123456789abcdef") == SL_POOL_ID_TEXT - 1;
}

void sl_pool_files_scan(const struct sl_slab_place *place,
                        void (*found)(void *arg, struct sl_pool_model *model), void *arg)
{
    int fd = openat(place->directory_fd, ".", FOLDER);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    if (!folder && fd >= 0)
        close(fd);
    for (struct dirent *entry; folder && (entry = sl_next_entry(folder));) {
        struct sl_err why = SL_ERR_INIT;
        if (!is_id(entry->d_name))
            continue;
        struct sl_pool_model *model = adopt_folder(place, entry->d_name, &why);
        if (model) {
            found(arg, model);
            continue;
        }
        bool left = why.kind == SL_E_NO_SPACE; /* of descriptors or memory: it may be whole */
        sl_log(SL_LOG_WARN, "'%s' in the pool's directory is not used, and %s: %s", entry->d_name,
               left ? "left for the next start" : "removed", why.message);
        if (!left)
            remove_folder(place->directory_fd, entry->d_name);
    }
    bool whole = folder && !errno;
    if (folder)
        closedir(folder);
    if (!whole)
        sl_log(SL_LOG_WARN, "the pool's directory cannot be read: what was kept there is left for "
                            "the next start");
}

/*
 * manifest.json says what is published: where it came from, files with sizes, times and CRC32C,
 * tensors with their places. `ready` says less, so that the question "is it still there?" needs no
 * parsing of a million tensors: the plan's identity and a stamp over what stat() tells of every
 * file.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

#include "hash.h"
#include "json_pull.h"
#include "log.h"
#include "publish_parts.h"
#include "sidecar.h"

void sl_published_release(struct sl_published *published)
{
    free(published->files);
    json_decref(published->document);
    sl_buf_release(&published->text);
    *published = (struct sl_published){0};
}

/* ---- reading --------------------------------------------------------------------------------- */

/* A million tensors and 100,000 files are right, and nobody asks for more of them than here: so the
 * text is walked, names of files stay in it, and only short members become a tree. */
struct reading {
    struct sl_pull pull;
    struct sl_published *published;
    size_t capacity;
    unsigned members;
    struct sl_err *err;
};
enum { MEMBERS_MAX = 64 }; /* that are kept */

static int broken(struct reading *reading, const char *why)
{
    return sl_fail(reading->err, SL_E_FORMAT, "the manifest, at byte %zu: %s", reading->pull.at,
                   reading->pull.why ? reading->pull.why : why);
}

static int take_crc(struct reading *reading, struct sl_published_file *file)
{
    uint8_t bytes[4];
    if (sl_unhex(reading->pull.string, bytes, 4) < 0)
        return broken(reading, "a file lacks name, bytes or crc32c");
    file->crc32c =
        (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
    return 0;
}

static int take_file(struct reading *reading, struct sl_published_file *file)
{
    struct sl_pull *pull = &reading->pull;
    enum sl_pull_token token;
    bool crc = false;
    *file = (struct sl_published_file){.bytes = UINT64_MAX, .mtime_ns = UINT64_MAX};
    while ((token = sl_pull_next(pull)) == SL_PULL_KEY) {
        const char *key = pull->string;
        token = sl_pull_next(pull);
        if (token == SL_PULL_STRING && strcmp(key, "name") == 0) {
            if (file->name || strlen(pull->string) != pull->string_bytes)
                return broken(reading, "the name of a file is there twice, or holds NUL");
            file->name = pull->string;
        } else if (token == SL_PULL_STRING && strcmp(key, "crc32c") == 0) {
            if (crc)
                return broken(reading, "a crc32c is there twice");
            if (take_crc(reading, file) < 0)
                return -1;
            crc = true;
        } else if (token == SL_PULL_STRING && strcmp(key, "object") == 0) {
            file->object = pull->string;
        } else if (token == SL_PULL_STRING && strcmp(key, "identity") == 0) {
            file->identity = pull->string;
        } else if (token == SL_PULL_STRING && strcmp(key, "range_sha256") == 0) {
            file->range_sha256 = pull->string;
        } else if (token == SL_PULL_STRING && strcmp(key, "range_blake2b") == 0) {
            file->range_blake2b = pull->string;
        } else if (token == SL_PULL_NUMBER && strcmp(key, "range_bytes") == 0) {
            if (!sl_pull_uint(pull, &file->range_bytes))
                file->range_bytes = 0;
        } else if (token == SL_PULL_NUMBER && strcmp(key, "bytes") == 0) {
            if (file->bytes != UINT64_MAX || !sl_pull_uint(pull, &file->bytes))
                return broken(reading, "the size of a file is none, or is there twice");
        } else if (token == SL_PULL_NUMBER && strcmp(key, "mtime_ns") == 0) {
            if (!sl_pull_uint(pull, &file->mtime_ns))
                file->mtime_ns = UINT64_MAX;
        } else if (!sl_pull_skip(pull, token, NULL)) {
            return broken(reading, "");
        }
    }
    if (token != SL_PULL_CLOSE || !file->name || !crc || file->bytes == UINT64_MAX)
        return broken(reading, "a file lacks name, bytes or crc32c");
    return sl_name_check(file->name, strlen(file->name), reading->err);
}

static int take_files(struct reading *reading)
{
    struct sl_published *published = reading->published;
    enum sl_pull_token token;
    if (published->files)
        return broken(reading, "files are there twice");
    if (sl_grow(&published->files, &reading->capacity, 1, sizeof(*published->files), reading->err) <
        0)
        return -1;
    while ((token = sl_pull_next(&reading->pull)) == SL_PULL_OBJECT) {
        if (sl_grow(&published->files, &reading->capacity, published->count + 1,
                    sizeof(*published->files), reading->err) < 0 ||
            take_file(reading, &published->files[published->count]) < 0)
            return -1;
        published->count++;
    }
    return token == SL_PULL_CLOSE ? 0 : broken(reading, "a file is not an object");
}

/* Text and numbers as they are, of arrays their number, of objects their own such members. */
static int take_member(struct reading *reading, json_t *into, const char *key,
                       enum sl_pull_token token)
{
    struct sl_pull *pull = &reading->pull;
    uint64_t number = 0;
    json_t *value = NULL;
    if (json_object_get(into, key) || ++reading->members > MEMBERS_MAX)
        return broken(reading, "a member is there twice, or there are too many");
    if (token == SL_PULL_STRING && pull->string_bytes <= PATH_MAX)
        value = json_string(pull->string); /* NULL: not a text for people */
    else if (token == SL_PULL_NUMBER && sl_pull_uint(pull, &number) && number <= INT64_MAX)
        value = json_integer((json_int_t)number);
    else if (sl_pull_skip(pull, token, &number) && token == SL_PULL_ARRAY)
        value = json_integer((json_int_t)number);
    if (value && json_object_set_new(into, key, value) < 0)
        return sl_fail(reading->err, SL_E_NO_SPACE, "out of memory");
    return pull->why ? broken(reading, "") : 0;
}

/* "verified" and "signed", of whose members none is an object. */
static int take_inner(struct reading *reading, const char *name)
{
    enum sl_pull_token token;
    json_t *inner = json_object();
    if (json_object_get(reading->published->document, name) ||
        json_object_set_new(reading->published->document, name, inner) < 0)
        return broken(reading, "a member is there twice");
    while ((token = sl_pull_next(&reading->pull)) == SL_PULL_KEY) {
        const char *key = reading->pull.string;
        if (take_member(reading, inner, key, sl_pull_next(&reading->pull)) < 0)
            return -1;
    }
    return token == SL_PULL_CLOSE ? 0 : broken(reading, "it ends too early");
}

static int take_document(struct reading *reading)
{
    struct sl_published *published = reading->published;
    enum sl_pull_token token = sl_pull_next(&reading->pull);
    published->document = json_object();
    if (!published->document)
        return sl_fail(reading->err, SL_E_NO_SPACE, "out of memory");
    if (token != SL_PULL_OBJECT)
        return broken(reading, "it is not an object");
    while ((token = sl_pull_next(&reading->pull)) == SL_PULL_KEY) {
        const char *key = reading->pull.string;
        token = sl_pull_next(&reading->pull);
        if ((token == SL_PULL_ARRAY && strcmp(key, "files") == 0 ? take_files(reading)
             : token == SL_PULL_OBJECT && (!strcmp(key, "verified") || !strcmp(key, "signed"))
                 ? take_inner(reading, key)
                 : take_member(reading, published->document, key, token)) < 0)
            return -1;
    }
    if (token != SL_PULL_CLOSE || sl_pull_next(&reading->pull) != SL_PULL_DONE)
        return broken(reading, "it ends too early");
    published->identity = sl_json_get_string(published->document, "identity");
    if (!published->files || !published->identity)
        return sl_fail(reading->err, SL_E_FORMAT, "the manifest lacks files or identity");
    return 0;
}

int sl_published_take_names(struct sl_published *published, struct sl_err *err)
{
    const json_t *names = json_object_get(published->document, "files");
    published->identity = sl_json_get_string(published->document, "identity");
    if (!json_is_array(names) || !published->identity)
        return sl_fail(err, SL_E_FORMAT, "it lacks files or identity");
    published->files = sl_alloc_array(json_array_size(names), sizeof(*published->files), err);
    if (!published->files)
        return -1;
    for (; published->count < json_array_size(names); published->count++) {
        const char *name = json_string_value(json_array_get(names, published->count));
        if (!name || sl_name_check(name, strlen(name), err) < 0)
            return sl_fail(err, SL_E_FORMAT, "a file's name is none");
        published->files[published->count].name = name;
    }
    return 0;
}

int sl_published_read(int state_fd, const char *name, struct sl_published *published,
                      struct sl_err *err)
{
    *published = (struct sl_published){.text = SL_BUF_INIT(SL_MANIFEST_BYTES_MAX)};
    struct reading reading = {.published = published, .err = err};
    int done = sl_tree_read(state_fd, name, &published->text, err);
    if (done == 0 && !sl_is_utf8(sl_buf_string(&published->text), published->text.used))
        done = sl_fail(err, SL_E_FORMAT, "the manifest is not UTF-8");
    sl_pull_init(&reading.pull, (char *)published->text.data, published->text.used);
    if (done == 0)
        done = take_document(&reading);
    if (done < 0)
        sl_published_release(published);
    return done;
}

bool sl_published_old(const struct sl_publish *publish, struct sl_published *published)
{
    struct sl_err why = SL_ERR_INIT;
    if (sl_published_read(publish->state_fd, SL_MANIFEST, published, &why) == 0)
        return true;
    if (why.kind != SL_E_NOT_FOUND)
        sl_log(SL_LOG_WARN, "the old manifest in '%s' is unreadable, its files stay: %s",
               publish->path, why.message);
    return false;
}

void sl_publish_objects(int directory_fd,
                        void (*each)(const struct sl_publish_object *object, void *arg), void *arg)
{
    struct sl_published published;
    sl_autoclose int state_fd =
        openat(directory_fd, SL_STATE_DIRECTORY, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (state_fd < 0 || sl_published_read(state_fd, SL_MANIFEST, &published, NULL) < 0)
        return;
    for (size_t i = 0; i < published.count; i++) {
        const struct sl_published_file *file = &published.files[i];
        const struct sl_publish_object object = {file->object, file->name, file->bytes,
                                                 file->mtime_ns};
        if (object.name)
            each(&object, arg);
    }
    sl_published_release(&published);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Of each source: the first check of all of it by a SHA-256 that the user gave; NULL if there is
 * none. */
static const struct sl_check **find_given(const struct sl_plan *plan, struct sl_err *err)
{
    const struct sl_check **given = sl_alloc_array(plan->source_count, sizeof(*given), err);
    for (size_t i = plan->check_count; given && i-- > 0;)
        if (plan->checks[i].given && plan->checks[i].kind == SL_HASH_SHA256 &&
            !plan->checks[i].range)
            given[plan->checks[i].source] = &plan->checks[i];
    return given;
}

static int write_objects(struct sl_json *json, const struct sl_plan *plan, struct sl_err *err)
{
    sl_autofree const struct sl_check **given = find_given(plan, err);
    if (!given)
        return -1;
    sl_json_key(json, "objects");
    sl_json_array(json);
    for (size_t i = 0; i < plan->source_count; i++) {
        const struct sl_plan_source *source = &plan->sources[i];
        const struct sl_version *version = sl_source_version(source->source);
        sl_json_object(json);
        sl_json_key_string(json, "name", source->name);
        sl_json_key_uri(json, "uri", sl_source_uri(source->source));
        sl_json_key_uint(json, "bytes", sl_source_bytes(source->source));
        if (version->etag[0])
            sl_json_key_string(json, "etag", version->etag);
        if (version->version_id[0])
            sl_json_key_string(json, "version_id", version->version_id);
        if (version->pin[0])
            sl_json_key_string(json, "pin", version->pin);
        if (version->last_modified[0])
            sl_json_key_string(json, "last_modified", version->last_modified);
        sl_json_key_bool(json, "versioned", source->version != SL_PLAN_VERSION_NONE);
        if (given[i]) {
            char hex[65];
            sl_hex(given[i]->expected, 32, hex);
            sl_json_key_string(json, "sha256", hex);
        }
        sl_json_end(json);
    }
    sl_json_end(json);
    return 0;
}

/* Of each file: 1 and the number of the object that it is, byte for byte; 0: it is none. free() it.
 */
static uint32_t *find_whole_objects(const struct sl_plan *plan, struct sl_err *err)
{
    uint32_t *whole = sl_alloc_array(plan->file_count + 1, sizeof(*whole), err);
    sl_autofree uint64_t *at = sl_alloc_array(plan->file_count + 1, sizeof(*at), err);
    for (size_t i = 0; whole && at && i < plan->extent_count; i++) {
        const struct sl_extent *extent = &plan->extents[i];
        bool goes_on = !extent->target && extent->begin == at[extent->file] &&
                       extent->begin == extent->file_offset &&
                       (!extent->begin || whole[extent->file] == extent->source + 1);
        at[extent->file] = goes_on ? extent->end : UINT64_MAX; /* nothing begins there */
        whole[extent->file] = extent->source + 1;
    }
    for (size_t i = 0; whole && at && i < plan->file_count; i++)
        if (!whole[i] || at[i] != plan->files[i].bytes ||
            at[i] != sl_source_bytes(plan->sources[whole[i] - 1].source))
            whole[i] = 0;
    if (!at)
        free(sl_steal(&whole));
    return whole;
}

/* So `sluice share` finds it for others (source.through). */
static void write_object_name(struct sl_json *json, const struct sl_plan *plan, uint32_t whole)
{
    char name[SL_SOURCE_NAME_BYTES];
    if (whole && sl_source_common_name(plan->sources[whole - 1].source, name))
        sl_json_key_string(json, "object", name);
}

/* Layout verbatim: each object is the file of its number. */
const struct sl_sidecar *sl_publish_sidecar(const struct sl_plan *plan, uint32_t file)
{
    const struct sl_sidecar *sidecar =
        plan->mappings || file >= plan->source_count ? NULL : sl_plan_sidecar(plan, file);
    return sidecar && sidecar->bytes == plan->files[file].bytes ? sidecar : NULL;
}

/* So the next version knows which of them are its own. Where the manifest would become too long it
 * finds none of this file. */
static int write_ranges(struct sl_json *json, const struct sl_plan *plan, uint32_t file,
                        struct sl_err *err)
{
    const struct sl_sidecar *sidecar = sl_publish_sidecar(plan, file);
    if (!sidecar)
        return 0;
    enum sl_hash_kind kind = sl_sidecar_hash(sidecar, true);
    size_t bytes = sl_hash_bytes(kind), digits = 2 * bytes * sidecar->range_count;
    if (json->buf.used + digits > SL_MANIFEST_RANGES_END)
        return 0;
    sl_autofree char *text = sl_alloc(digits + 1, err);
    if (!text)
        return -1;
    for (size_t i = 0; i < sidecar->range_count; i++)
        sl_hex(sidecar->ranges[i].blake2b, bytes, text + 2 * bytes * i);
    sl_json_key_uint(json, "range_bytes", sidecar->range_bytes);
    sl_json_key_string(json, kind == SL_HASH_BLAKE2B ? "range_blake2b" : "range_sha256", text);
    return 0;
}

static int write_files(struct sl_json *json, const struct sl_plan *plan,
                       const struct sl_published *published, struct sl_err *err)
{
    sl_autofree uint32_t *whole = find_whole_objects(plan, err);
    if (!whole)
        return -1;
    sl_json_key(json, "files");
    sl_json_array(json);
    for (size_t i = 0; i < published->count; i++) {
        const struct sl_published_file *file = &published->files[i];
        uint8_t crc[SL_HASH_BYTES_MAX];
        char hex[9];
        sl_crc_digest(SL_HASH_CRC32C, file->crc32c, crc);
        sl_hex(crc, 4, hex);
        sl_json_object(json);
        sl_json_key_string(json, "name", file->name);
        sl_json_key_uint(json, "bytes", file->bytes);
        sl_json_key_uint(json, "mtime_ns", file->mtime_ns);
        sl_json_key_string(json, "crc32c", hex);
        write_object_name(json, plan, i < plan->file_count ? whole[i] : 0);
        if (i < plan->file_count && plan->files[i].identified) {
            char identity[65];
            sl_hex(plan->files[i].identity, 32, identity);
            sl_json_key_string(json, "identity", identity);
        }
        if (write_ranges(json, plan, (uint32_t)i, err) < 0)
            return -1;
        sl_json_end(json);
    }
    sl_json_end(json);
    return 0;
}

static void write_tensors(struct sl_json *json, const struct sl_plan *plan)
{
    sl_json_key(json, "tensors");
    sl_json_array(json);
    for (size_t i = 0; i < plan->tensor_count; i++) {
        const struct sl_plan_tensor *place = &plan->tensors[i];
        const struct sl_tensor *tensor = place->tensor;
        sl_json_object(json);
        sl_json_key(json, "name");
        sl_json_string_n(json, tensor->name, tensor->name_bytes);
        sl_json_key_string(json, "dtype", tensor->dtype_name);
        sl_json_key(json, "shape");
        sl_json_array(json);
        for (unsigned d = 0; d < tensor->rank; d++)
            sl_json_uint(json, tensor->shape[d]);
        sl_json_end(json);
        sl_json_key_string(json, "file", plan->files[place->file].name);
        sl_json_key_uint(json, "offset", place->file_offset);
        sl_json_key_uint(json, "bytes", tensor->bytes);
        if (tensor->encrypted)
            sl_json_key_bool(json, "encrypted", true);
        if (tensor->meta)
            sl_json_key_bool(json, "meta", true);
        sl_json_end(json);
    }
    sl_json_end(json);
}

int sl_manifest_write(struct sl_json *json, const struct sl_plan *plan, const struct sl_spec *spec,
                      const struct sl_published *published, struct sl_err *err)
{
    char boot[SL_BOOT_BYTES], time_text[SL_TIME_TEXT];
    sl_boot_id(boot);
    sl_json_object(json);
    sl_json_key_string(json, "apiVersion", "sluice/v1alpha1");
    sl_json_key_string(json, "kind", "Manifest");
    sl_json_key_string(json, "name", spec->metadata.name);
    sl_json_key_uri(json, "uri", sl_plan_uri(plan));
    sl_json_key_string(json, "identity", published->identity);
    if (plan->asked_known) {
        char asked[65];
        sl_hex(plan->asked, 32, asked);
        sl_json_key_string(json, "asked", asked);
    }
    sl_json_key_string(json, "sluice", SLUICE_VERSION);
    sl_json_key_string(json, "time", sl_json_time(time_text));
    sl_json_key_string(json, "boot", boot);
    sl_json_key(json, "verified");
    sl_json_object(json);
    sl_json_key_uint(json, "checks", plan->check_count);
    sl_json_key_uint(json, "unhashed_bytes", sl_plan_unhashed(plan));
    sl_json_end(json);
    const struct sl_signed_by signed_by = sl_plan_signed_by(plan);
    if (*signed_by.by)
        sl_signed_by_json(json, &signed_by);
    if (write_objects(json, plan, err) < 0 || write_files(json, plan, published, err) < 0)
        return -1;
    write_tensors(json, plan);
    sl_json_end(json);
    return sl_json_text(json, err) ? 0 : -1;
}

int sl_published_stamp(int root_fd, const char *(*name)(const void *arg, size_t i), const void *arg,
                       size_t count, char stamp[65], struct sl_err *err)
{
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha)
        return -1;
    SL_AUTO_WALK walk = {.root_fd = root_fd, .fd = -1};
    for (size_t i = 0; i < count; i++) {
        const char *leaf;
        struct stat status;
        int fd = sl_tree_enter(&walk, name(arg, i), &leaf);
        bool seen = fd >= 0 && fstatat(fd, leaf, &status, AT_SYMLINK_NOFOLLOW) == 0;
        if (!seen && !sl_tree_is_gone(errno))
            return sl_tree_fail(err, errno, "look at", name(arg, i));
        if (!seen || !S_ISREG(status.st_mode))
            return sl_fail(err, SL_E_INTEGRITY, "'%s' vanished while it was published",
                           name(arg, i));
        uint8_t numbers[32];
        sl_put_le64(numbers, (uint64_t)status.st_size);
        sl_put_le64(numbers + 8, (uint64_t)status.st_mtim.tv_sec);
        sl_put_le64(numbers + 16, (uint64_t)status.st_mtim.tv_nsec);
        sl_put_le64(numbers + 24, (uint64_t)status.st_ino);
        sl_sha256_update(sha, name(arg, i), strlen(name(arg, i)) + 1);
        sl_sha256_update(sha, numbers, sizeof(numbers));
    }
    uint8_t digest[32];
    sl_sha256_finish(sha, digest);
    sl_hex(digest, 32, stamp);
    return 0;
}

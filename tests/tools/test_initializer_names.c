/*
 * Names and links meet kinds of archives, plain objects and prefixes: whatever comes together,
 * nothing beside the destination is made, changed or to be read through a link, and either
 * everything is published or nothing.
 */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "claims.h"
#include "initializer.h"
#include "range_server.h"
#include "scratch.h"
#include "seed.h"
#include "tar_maker.h"
#include "zip_maker.h"

enum { PATH_BYTES = 512, ENTRIES_MAX = 6, KEYS_MAX = 8, ROUNDS = 150, ROUNDS_WHOLE = 1500 };
enum kind { TAR, TAR_GZ, ZIP, OBJECTS, KINDS };
enum prefix { NONE, BARE, SLASH, PREFIXES };
static const char *const kind_names[] = {"tar", "tar.gz", "zip", "objects"};
static const char *const prefix_paths[] = {"", "models/llama", "models/llama/"};

/* type: '0' file, '1' hard link, '2' symbolic link, '5' folder. */
struct item {
    char type;
    const char *name, *target;
};
struct combination {
    const char *what;
    bool taken; /* as an archive: published; else refused */
    struct item items[ENTRIES_MAX];
};

static const struct combination table[] = {
    {"plain names", true, {{'0', "config.json", NULL}, {'0', "sub/x", NULL}}},
    {"a name that climbs", false, {{'0', "config.json", NULL}, {'0', "../up", NULL}}},
    {"a name that climbs later", false, {{'0', "config.json", NULL}, {'0', "a/../../up", NULL}}},
    {"the prefix and dots", true, {{'0', "llama../victim/x", NULL}}},
    {"the prefix and dots, a file", true, {{'0', "llama..", NULL}}},
    {"the prefix and a dot", true, {{'0', "llama./x", NULL}}},
    {"the prefix, then up", false, {{'0', "llama/../../victim/x", NULL}}},
    {"the prefix and our folder", true, {{'0', "llama.sluice/ready", NULL}}},
    {"our folder", false, {{'0', "config.json", NULL}, {'0', ".sluice/ready", NULL}}},
    {"our folder below the prefix", false, {{'0', "llama/.sluice/ready", NULL}}},
    {"a neighbour's name", true, {{'0', "llama-config.json", NULL}, {'0', "llama/x", NULL}}},
    {"a longer name", true, {{'0', "llamax", NULL}, {'0', "x", NULL}}},
    {"two that meet by a cut", true, {{'0', "llama/x", NULL}, {'0', "llamax", NULL}}},
    {"a file and a folder that meet", true, {{'0', "llama/x/y", NULL}, {'0', "llamax", NULL}}},
    {"a file as a folder", false, {{'0', "llama", NULL}, {'0', "llama/x", NULL}}},
    {"an absolute name", true, {{'0', "config.json", NULL}, {'0', "/abs/x", NULL}}},
    {"a link inside", true, {{'0', "config.json", NULL}, {'2', "sub/l", "../config.json"}}},
    {"a link to a folder", true, {{'0', "1/x", NULL}, {'2', "latest", "1"}}},
    {"a link out", false, {{'0', "config.json", NULL}, {'2', "out", "../canary"}}},
    {"an absolute link", false, {{'0', "config.json", NULL}, {'2', "etc", "/etc"}}},
    {"out only after a cut", true, {{'0', "canary", NULL}, {'2', "llama/t", "../canary"}}},
    {"out before and after", false, {{'0', "x", NULL}, {'2', "llama/t", "../../canary"}}},
    {"a folder through a link", false, {{'2', "d", "/etc"}, {'0', "d/passwd", NULL}}},
    {"up behind a link",
     false,
     {{'0', "a/b/x", NULL}, {'2', "c", "a/b"}, {'2', "o", "c/../../.."}}},
    {"a hard link", true, {{'0', "config.json", NULL}, {'1', "again", "config.json"}}},
    {"a hard link out", false, {{'0', "config.json", NULL}, {'1', "h", "../canary"}}},
    {"a hard link to a link", false, {{'0', "x", NULL}, {'2', "l", "x"}, {'1', "h", "l"}}},
};

static char scratch[SL_SCRATCH_PATH_BYTES], to[PATH_BYTES], victim[PATH_BYTES];
static int scratch_fd;
static struct sl_server *server;
static struct stat canary_before, victim_before;
static const char secret[] = "beside the destination";

/* ---- what is beside the destination --------------------------------------------------------- */

static void make_secret(const char *name, struct stat *status)
{
    sl_autoclose int fd = openat(scratch_fd, name, O_WRONLY | O_CREAT | O_EXCL, 0600);
    ck_assert_int_eq(write(fd, secret, sizeof(secret)), (ssize_t)sizeof(secret));
    ck_assert_int_eq(fchmod(fd, 0640), 0);
    ck_assert_int_eq(fstat(fd, status), 0);
}

static void check_secret(const char *name, const struct stat *before, const char *what)
{
    struct stat now;
    char text[2 * sizeof(secret)] = "";
    sl_autoclose int fd = openat(scratch_fd, name, O_RDONLY | O_NOFOLLOW);
    ck_assert_msg(fd >= 0 && fstat(fd, &now) == 0 && now.st_ino == before->st_ino &&
                      now.st_mode == before->st_mode && now.st_nlink == 1 &&
                      now.st_mtim.tv_nsec == before->st_mtim.tv_nsec &&
                      read(fd, text, sizeof(text)) == (ssize_t)sizeof(secret) &&
                      memcmp(text, secret, sizeof(secret)) == 0,
                  "%s: '%s' changed", what, name);
}

static size_t entries_in(const char *path)
{
    struct dirent **found;
    int count = scandir(path, &found, NULL, NULL);
    for (int i = 0; i < count; i++)
        free(found[i]);
    if (count >= 0)
        free(found);
    return count < 2 ? 0 : (size_t)count - 2;
}

static void check_beside(const char *what)
{
    check_secret("canary", &canary_before, what);
    check_secret("victim/x", &victim_before, what);
    ck_assert_msg(entries_in(scratch) == 3 && entries_in(victim) == 1,
                  "%s: something new lies beside the destination", what);
}

static void setup(void)
{
    scratch_fd = sl_scratch_open(scratch);
    snprintf(to, sizeof(to), "%s/models", scratch);
    snprintf(victim, sizeof(victim), "%s/victim", scratch);
    ck_assert_int_eq(mkdir(victim, 0755), 0);
    make_secret("canary", &canary_before);
    make_secret("victim/x", &victim_before);
    server = sl_server_start();
    setenv("AWS_ENDPOINT_URL", sl_server_url(server, ""), 1);
    setenv("awsAnonymousCredential", "true", 1);
}

static void teardown(void)
{
    sl_server_stop(server);
    sl_scratch_close(scratch_fd, scratch);
}

/* ---- the store ------------------------------------------------------------------------------ */

/* What the bucket holds, and lists for any prefix. */
static struct store {
    char keys[KEYS_MAX][256];
    size_t bytes[KEYS_MAX], count;
} store;

static bool list(const struct sl_server_request *request, struct sl_server_reply *reply, void *arg)
{
    (void)arg;
    sl_autobuf text = SL_BUF_INIT(64 * 1024);
    if (!strstr(request->target, "list-type=2"))
        return false;
    sl_buf_text(&text, "<ListBucketResult>", NULL);
    for (size_t i = 0; i < store.count; i++)
        sl_buf_printf(&text, NULL,
                      "<Contents><Key>%s</Key><Size>%zu</Size><ETag>&quot;1&quot;</ETag>"
                      "</Contents>",
                      store.keys[i], store.bytes[i]);
    sl_buf_text(&text, "</ListBucketResult>", NULL);
    reply->body = strdup(sl_buf_string(&text));
    reply->body_bytes = strlen(reply->body);
    return true;
}

static void put_object(const char *key, const void *data, size_t bytes)
{
    char path[512];
    ck_assert_uint_lt(store.count, KEYS_MAX);
    snprintf(path, sizeof(path), "/bucket/%s", key);
    snprintf(store.keys[store.count], sizeof(store.keys[0]), "%s", key);
    store.bytes[store.count++] = bytes;
    sl_server_put(server, path, data, bytes, "\"1\"");
}

static void put_tar(const struct item *items, bool packed, const char *key)
{
    sl_autobuf tar = SL_BUF_INIT(1024 * 1024);
    size_t bytes;
    for (const struct item *item = items; item->name; item++)
        tar_entry(&tar, item->type, item->name, item->target, item->name,
                  item->type == '0' ? strlen(item->name) : 0);
    tar_end(&tar);
    sl_autofree uint8_t *gzip = tar_gzip(tar.data, tar.used, &bytes);
    put_object(key, packed ? (const void *)gzip : tar.data, packed ? bytes : tar.used);
}

/* As programs of Unix write links: files of another type that hold their target. */
static void put_zip(const struct item *items, const char *key)
{
    struct zip_maker zip = ZIP_MAKER_INIT;
    for (const struct item *item = items; item->name; item++) {
        bool link = item->type != '0';
        const char *data = link ? item->target : item->name;
        zip_entry(&zip, item->name, link ? S_IFLNK | 0777 : S_IFREG | 0644, data, strlen(data));
    }
    zip_end(&zip);
    put_object(key, zip.file.data, zip.file.used);
    sl_buf_release(&zip.file);
    sl_buf_release(&zip.directory);
}

/* An archive lies at the prefix itself, below it as a folder, or at the top. */
static void put_all(const struct item *items, enum kind kind, enum prefix prefix)
{
    char key[256];
    store.count = 0;
    if (kind != OBJECTS) {
        snprintf(key, sizeof(key), "%s%s.%s", prefix_paths[prefix], prefix == BARE ? "" : "m",
                 kind_names[kind]);
        if (kind == ZIP)
            put_zip(items, key);
        else
            put_tar(items, kind == TAR_GZ, key);
        return;
    }
    for (const struct item *item = items; item->name; item++) {
        snprintf(key, sizeof(key), "%s%s",
                 prefix == NONE   ? ""
                 : prefix == BARE ? "models/"
                                  : prefix_paths[prefix],
                 item->name);
        if (item->type == '0' &&
            strncmp(key, prefix_paths[prefix], strlen(prefix_paths[prefix])) == 0)
            put_object(key, item->name, strlen(item->name));
    }
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *walk)
{
    (void)status, (void)type, (void)walk;
    return remove(path);
}

static void empty_destination(void)
{
    nftw(to, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    ck_assert_int_eq(mkdir(to, 0755), 0);
}

/* ---- one run -------------------------------------------------------------------------------- */

static int initialize(enum prefix prefix, struct sl_err *err)
{
    char uri[PATH_BYTES];
    struct sl_initialized done;
    snprintf(uri, sizeof(uri), "s3://bucket/%s", prefix_paths[prefix]);
    char *arguments[] = {uri, to};
    const struct sl_initializer job = {.arguments = arguments, .pair_count = 1};
    *err = (struct sl_err)SL_ERR_INIT;
    return sl_initializer_run(&job, &done, err);
}

static bool holds(const char *name, const char *content)
{
    char text[256] = "";
    sl_autoclose int top = open(to, O_RDONLY | O_DIRECTORY);
    sl_autoclose int fd = openat(top, name, O_RDONLY | O_NOFOLLOW);
    return fd >= 0 && read(fd, text, sizeof(text)) == (ssize_t)strlen(content) &&
           memcmp(text, content, strlen(content)) == 0;
}

/* Below the destination nothing leads out of it, and every file is one that came. */
static size_t check_inside(int top, const char *folder, const char *what)
{
    size_t files = 0;
    sl_autoclose int fd = openat(top, folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    DIR *entries = fdopendir(dup(fd));
    ck_assert_ptr_nonnull(entries);
    for (struct dirent *entry; (entry = readdir(entries));) {
        char name[PATH_BYTES];
        struct stat status;
        struct open_how how = {.flags = O_PATH, .resolve = RESOLVE_BENEATH};
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(name, sizeof(name), "%s/%s", folder, entry->d_name);
        ck_assert_int_eq(fstatat(top, name, &status, AT_SYMLINK_NOFOLLOW), 0);
        if (S_ISDIR(status.st_mode)) {
            files += check_inside(top, name, what);
            continue;
        }
        files++;
        ck_assert(S_ISLNK(status.st_mode) || (S_ISREG(status.st_mode) && status.st_mode & 0444));
        int found;
        do /* EAGAIN: somebody on this machine renamed something while a ".." was followed */
            found = (int)syscall(SYS_openat2, top, name, &how, sizeof(how));
        while (found < 0 && errno == EAGAIN);
        bool nowhere = errno == ENOENT || errno == ENOTDIR; /* ENOTDIR: through a file */
        ck_assert_msg(found >= 0 || nowhere || errno == ENOSYS, "%s: '%s' leads out: %s", what,
                      name, strerror(errno));
        if (found >= 0)
            close(found);
    }
    closedir(entries);
    return files;
}

/* 1: published, 0: refused with nothing moved. */
static int run_checked(const struct item *items, enum kind kind, enum prefix prefix,
                       const char *what, struct sl_err *err)
{
    struct stat status;
    empty_destination();
    put_all(items, kind, prefix);
    int done = initialize(prefix, err);
    check_beside(what);
    sl_autoclose int top = open(to, O_RDONLY | O_DIRECTORY);
    ck_assert_int_ge(top, 0);
    bool work = fstatat(top, ".sluice", &status, AT_SYMLINK_NOFOLLOW) == 0;
    if (done < 0) {
        ck_assert_msg(entries_in(to) == (work ? 1 : 0), "%s: half moved: %s", what, err->message);
        ck_assert_msg(*err->message && err->kind != SL_OK, "%s", what);
        return 0;
    }
    ck_assert_msg(!work, "%s: .sluice is left", what);
    check_inside(top, ".", what);
    return 1;
}

/* ---- what must come of it ------------------------------------------------------------------- */

static bool has_links(const struct item *items)
{
    for (; items->name; items++)
        if (items->type != '0')
            return true;
    return false;
}

/* Every name of an archive, with nothing cut off. */
static void check_archive(const struct combination *row, const char *what)
{
    for (const struct item *item = row->items; item->name; item++) {
        const char *name = item->name + strspn(item->name, "/");
        if (item->type == '0')
            ck_assert_msg(holds(name, item->name), "%s: '%s' is missing", what, name);
    }
}

/* As KServe's own: what begins with the path is cut, with the slashes behind it. */
static const char *cut(const char *name, enum prefix prefix)
{
    size_t bytes = strlen("llama");
    if (prefix != BARE)
        return name;
    return name + bytes + strspn(name + bytes, "/");
}

static bool is_good(const char *name)
{
    for (const char *p = name;;) {
        size_t bytes = strcspn(p, "/");
        if (bytes == 0 || (bytes == 1 && *p == '.') || (bytes == 2 && strncmp(p, "..", 2) == 0) ||
            (bytes == 7 && strncmp(p, ".sluice", 7) == 0))
            return false;
        if (!p[bytes])
            return true;
        p += bytes + 1;
    }
}

/* One the other, or the folder of the other. */
static bool collide(const char *a, const char *b)
{
    size_t bytes = strlen(a);
    return strncmp(a, b, bytes) == 0 && (b[bytes] == 0 || b[bytes] == '/');
}

/* What the keys mean: 1 published, 0 refused, -1 there is none. */
static int expect_objects(const struct item *items, enum prefix prefix)
{
    int expected = -1;
    for (const struct item *a = items; a->name; a++) {
        if (a->type != '0' || (prefix == BARE && strncmp(a->name, "llama", 5) != 0))
            continue;
        const char *name = cut(a->name, prefix);
        if (prefix == BARE && strcmp(a->name, "llama") == 0)
            return 1; /* the object of exactly this name, alone */
        expected = expected == 0 || !is_good(name) ? 0 : 1;
        for (const struct item *b = items; b->name; b++)
            if (a != b && b->type == '0' &&
                !(prefix == BARE && strncmp(b->name, "llama", 5) != 0) &&
                collide(name, cut(b->name, prefix)))
                expected = 0;
    }
    return expected;
}

static void check_objects(const struct item *items, enum prefix prefix, const char *what)
{
    for (const struct item *item = items; item->name; item++) {
        if (item->type != '0' || (prefix == BARE && strncmp(item->name, "llama", 5) != 0))
            continue;
        bool exact = prefix == BARE && strcmp(item->name, "llama") == 0;
        const char *name = exact ? item->name : cut(item->name, prefix);
        ck_assert_msg(holds(name, item->name), "%s: '%s' is missing", what, name);
        if (exact)
            return;
    }
}

SL_TEST_LOOP(every_name_meets_every_kind_and_prefix, 0, SL_COUNT(table))
{
    const struct combination *row = &table[_i];
    sl_server_handle(server, list, NULL);
    for (int kind = 0; kind < KINDS; kind++) {
        for (int prefix = 0; prefix < PREFIXES; prefix++) {
            char what[128];
            struct sl_err err;
            snprintf(what, sizeof(what), "%s, %s, '%s'", row->what, kind_names[kind],
                     prefix_paths[prefix]);
            int expected =
                kind == OBJECTS ? expect_objects(row->items, (enum prefix)prefix) : row->taken;
            if (kind == ZIP && has_links(row->items)) /* links in ZIPs are not taken at all */
                expected = 0;
            int done = run_checked(row->items, (enum kind)kind, (enum prefix)prefix, what, &err);
            if (expected >= 0)
                ck_assert_msg(done == expected, "%s: %s", what, done ? "published" : err.message);
            if (done && kind == OBJECTS)
                check_objects(row->items, (enum prefix)prefix, what);
            else if (done)
                check_archive(row, what);
        }
    }
}

/* ---- generated ------------------------------------------------------------------------------ */

static unsigned pick(size_t count)
{
    return (unsigned)sl_test_pick(count);
}

static void make_name(char name[64], bool target)
{
    static const char *const parts[] = {"llama",  "llama..", "..",   "llama-x", "x",       ".",
                                        "victim", "canary",  "x/y",  "llamax",  ".sluice", "models",
                                        "llama.", "1",       "sub/", "/",       "latest",  "l"};
    size_t used = 0;
    if (target && pick(8) == 0)
        used += (size_t)snprintf(name, 64, "/");
    name[used] = 0;
    for (unsigned i = 0, count = 1 + pick(3); i < count; i++)
        used += (size_t)snprintf(name + used, 64 - used, "%s%s", i ? "/" : "",
                                 parts[pick(SL_COUNT(parts))]);
}

SL_TEST(generated_combinations_stay_inside)
{
    unsigned published = 0, refused = 0, rounds = sl_test_rounds(ROUNDS, ROUNDS_WHOLE);
    sl_server_handle(server, list, NULL);
    for (unsigned round = 0; round < rounds; round++) {
        char names[ENTRIES_MAX][64], targets[ENTRIES_MAX][64], what[128];
        struct item items[ENTRIES_MAX] = {{0}};
        struct sl_err err;
        for (unsigned i = 0, count = 1 + pick(ENTRIES_MAX - 1); i < count; i++) {
            make_name(names[i], false);
            make_name(targets[i], true);
            items[i] = (struct item){"0002215"[pick(7)], names[i], targets[i]};
        }
        enum kind kind = (enum kind)pick(KINDS);
        enum prefix prefix = (enum prefix)pick(PREFIXES);
        snprintf(what, sizeof(what), "round %u of seed %" PRIu64, round, sl_test_seed());
        if (run_checked(items, kind, prefix, what, &err))
            published++;
        else
            refused++;
    }
    ck_assert_msg(published > 0 && refused > 0, "%u published, %u refused", published, refused);
}

/* A link of the operator's own, or one that somebody left, is no way out for a model. */
SL_TEST(no_link_goes_out_through_one_that_is_there)
{
    static const struct item items[] = {{'0', "config.json", NULL}, {'2', "l", "there/x"}, {0}};
    char there[PATH_BYTES + 8];
    struct sl_err err;
    snprintf(there, sizeof(there), "%s/there", to);
    sl_server_handle(server, list, NULL);
    put_all(items, TAR, SLASH);
    ck_assert_int_eq(mkdir(to, 0755), 0);
    ck_assert_int_eq(symlink("../victim", there), 0);
    ck_assert_int_eq(initialize(SLASH, &err), -1);
    ck_assert_msg(strstr(err.message, "'l' would lead out"), "%s", err.message);
    ck_assert_uint_eq(entries_in(to), 2);
    ck_assert_int_eq(unlink(there), 0);
    ck_assert_int_eq(symlink("sub", there), 0); /* to inside is fine */
    ck_assert_msg(initialize(SLASH, &err) == 0, "%s", err.message);
    check_beside("links that are there");
}

/* What cannot be put there is found before the first rename; what stopped it is away, and the next
 * run goes on without the network. */
SL_TEST(an_obstacle_stops_before_anything_moves)
{
    static const struct item items[] = {
        {'0', "a", NULL}, {'0', "b/c", NULL}, {'0', "z", NULL}, {'2', "l", "a"}, {0}};
    static const char *const obstacles[] = {"z", "l", "a"};
    struct sl_err err;
    sl_server_handle(server, list, NULL);
    put_all(items, TAR, SLASH);
    for (size_t i = 0; i < SL_COUNT(obstacles); i++) {
        char obstacle[PATH_BYTES + 8];
        empty_destination();
        snprintf(obstacle, sizeof(obstacle), "%s/%s", to, obstacles[i]);
        ck_assert_int_eq(mkdir(obstacle, 0755), 0);
        ck_assert_int_eq(initialize(SLASH, &err), -1);
        ck_assert_msg(err.kind == SL_E_NO_SPACE && strstr(err.message, "in the way"), "%s",
                      err.message);
        ck_assert_uint_eq(entries_in(to), 2);
        ck_assert_int_eq(rmdir(obstacle), 0);
        unsigned requests = sl_server_request_count(server);
        ck_assert_msg(initialize(SLASH, &err) == 0, "%s", err.message);
        ck_assert_uint_eq(sl_server_request_count(server), requests);
        ck_assert(holds("z", "z"));
    }
}

SL_CASE(.setup = setup, .teardown = teardown)

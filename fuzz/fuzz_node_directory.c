/*
 * What a node finds in its directory after a restart: model folders, versions, manifests, kept
 * specs, the link `current`. The input is a list of things to make there, a line each:
 *
 *     d NAME          a folder           l NAME TARGET   a link      h NAME FROM   a second name
 *     f NAME BYTES    a file, which follows              m NAME MODE  its mode
 *     p NAME          what NAME/.sluice/manifest.json says was published whole
 *
 * Whatever lies there, everything is told or left out, then forgotten, and nothing outside of the
 * directory is touched.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "directory_holder.h"
#include "log.h"
#include "node_spec.h"
#include "publish_parts.h"
#include "registry_settle.h"
#include "tree.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { THINGS_MAX = 64, LINE_BYTES = 512 };
#define DIRECTORY "1/2/3/d"
#define OUTSIDE   "1/outside"

static char base_path[64];
static int base_fd = -1;

static void remove_base(void)
{
    sl_tree_remove(base_fd, "1");
    rmdir(base_path);
}

static void make_base(void)
{
    snprintf(base_path, sizeof(base_path), "%s/fuzz-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    sl_log_setup(SL_LOG_ERROR, false);
    if (!mkdtemp(base_path) ||
        (base_fd = open(base_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0 ||
        mkdirat(base_fd, "1", 0755) < 0 || mkdirat(base_fd, "1/2", 0755) < 0 ||
        mkdirat(base_fd, "1/2/3", 0755) < 0 || mkdirat(base_fd, OUTSIDE, 0755) < 0 ||
        mkdirat(base_fd, OUTSIDE "/folder", 0755) < 0 || atexit(remove_base) != 0)
        abort();
}

/* ---- making it ------------------------------------------------------------------------------ */

/* Below the directory, or, of a link, not above the base. */
static bool is_sanitized(const char *name, bool target)
{
    for (unsigned up = 0; target && up < 3 && strncmp(name, "../", 3) == 0; up++)
        name += 3;
    return *name && *name != '/' && !strstr(name, "..");
}

static void put_file(int fd, const char *name, const uint8_t *data, size_t bytes)
{
    sl_autoclose int file = openat(fd, name, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (file >= 0 && write(file, data, bytes) != (ssize_t)bytes)
        abort();
}

static const char *name_of(const void *arg, size_t i)
{
    return ((const struct sl_published *)arg)->files[i].name;
}

static void put_ready(int fd, const char *name)
{
    char stamp[65], state[LINE_BYTES + 16], text[1024];
    struct sl_published published = {0};
    snprintf(state, sizeof(state), "%s/.sluice", name);
    sl_autoclose int root_fd = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    sl_autoclose int state_fd = openat(fd, state, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (root_fd >= 0 && state_fd >= 0 &&
        sl_published_read(state_fd, SL_MANIFEST, &published, NULL) == 0 &&
        sl_published_stamp(root_fd, name_of, &published, published.count, stamp, NULL) == 0) {
        int used = snprintf(text, sizeof(text), "{\"identity\":\"%.200s\",\"stamp\":\"%s\"}",
                            published.identity, stamp);
        put_file(state_fd, SL_READY, (const uint8_t *)text, (size_t)used);
    }
    sl_published_release(&published);
}

/* The bytes that it took of what follows its line. */
static size_t make_thing(int fd, char *line, const uint8_t *rest, size_t bytes)
{
    char kind = line[0], *name = line[0] && line[1] == ' ' ? line + 2 : line + strlen(line);
    char *more = strchr(name, ' ');
    if (more)
        *more++ = 0;
    if (!is_sanitized(name, false))
        return 0;
    size_t size = more ? SL_MIN(strtoul(more, NULL, 10), bytes) : 0;
    if (kind == 'd')
        mkdirat(fd, name, 0755);
    else if (kind == 'p')
        put_ready(fd, name);
    else if (kind == 'f')
        put_file(fd, name, rest, size);
    else if (kind == 'l' && more && is_sanitized(more, true))
        (void)!symlinkat(more, fd, name);
    else if (kind == 'h' && more && is_sanitized(more, false))
        (void)!linkat(fd, more, fd, name, 0);
    else if (kind == 'm' && more)
        (void)!fchmodat(fd, name, (mode_t)strtoul(more, NULL, 8) & 0777, 0);
    return kind == 'f' ? size : 0;
}

static void make_all(int fd, const uint8_t *data, size_t bytes)
{
    for (unsigned i = 0; i < THINGS_MAX && bytes; i++) {
        char line[LINE_BYTES];
        const uint8_t *end = memchr(data, '\n', bytes);
        size_t length = end ? (size_t)(end - data) : bytes;
        if (length >= sizeof(line))
            return;
        memcpy(line, data, length);
        line[length] = 0;
        length += end != NULL;
        length += make_thing(fd, line, data + length, bytes - length);
        data += length;
        bytes -= length;
    }
}

/* ---- finding it ----------------------------------------------------------------------------- */

struct finding {
    struct sl_registry *registry;
    const struct sl_holder *ops;
    char names[THINGS_MAX][64];
    size_t count;
};

static void define_kept(void *arg, const char *name, const char *text, size_t bytes)
{
    const struct sl_model_options wanted = {SL_MODEL_OF_REQUEST, false, false};
    struct finding *finding = arg;
    struct sl_specs specs = {0};
    sl_autobuf complaints = SL_BUF_INIT(128 * 1024);
    if (strlen(text) > bytes || !sl_is_model_name(name))
        abort();
    if (sl_spec_parse_placed(text, bytes, "request", false, &specs, &complaints, NULL) < 0)
        return;
    for (size_t i = 0; i < specs.count; i++)
        if (strcmp(specs.items[i].metadata.name, name) == 0 && finding->count < THINGS_MAX) {
            snprintf(finding->names[finding->count++], 64, "%s", name);
            sl_registry_define(finding->registry, &specs.items[i], finding->ops, &wanted, NULL);
        }
    sl_specs_release(&specs);
}

/* Everything that is known can be told. */
static void look(struct sl_registry *registry)
{
    struct sl_json json;
    sl_json_init(&json, 1 << 20);
    sl_json_object(&json);
    sl_registry_json(registry, true, &json);
    sl_json_end(&json);
    if (!sl_json_text(&json, NULL))
        abort();
    sl_json_release(&json);
}

static void restart(const char *path)
{
    const struct sl_registry_config config = {.budget_bytes = UINT64_MAX, .loads_at_once = 1};
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_directory_holder) holder = sl_directory_holder_open(path, &err);
    SL_AUTO(sl_registry) registry = sl_registry_new(&config, &err);
    struct finding finding = {.registry = registry};
    if (!registry)
        abort();
    if (!holder)
        return;
    finding.ops = sl_directory_holder_ops(holder);
    if (sl_directory_holder_scan(holder, registry, &err) < 0 && err.kind == SL_E_INTERNAL)
        abort();
    sl_directory_holder_each_spec(holder, define_kept, &finding);
    look(registry);
    sl_registry_keep_only(registry, NULL, 0);
    for (size_t i = 0; i < finding.count; i++) {
        sl_registry_forget(registry, finding.names[i], NULL);
        sl_directory_holder_remember(holder, finding.names[i], NULL, NULL);
    }
    sl_registry_set_budget(registry, 0); /* everything that nobody uses goes */
    sl_registry_settle(registry);
    sl_registry_free(sl_steal(&registry)); /* before its holder */
}

static void check_outside(void)
{
    struct stat status;
    char text[8] = "";
    sl_autoclose int fd = openat(base_fd, OUTSIDE "/file", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, text, sizeof(text)) != 4 || memcmp(text, "mine", 4) != 0 ||
        fstatat(base_fd, OUTSIDE "/folder", &status, AT_SYMLINK_NOFOLLOW) < 0 ||
        !S_ISDIR(status.st_mode) || (status.st_mode & 07777) != 0755 || status.st_nlink != 2)
        abort();
    if (fstatat(base_fd, OUTSIDE, &status, 0) < 0 || status.st_nlink != 3)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[128];
    if (base_fd < 0)
        make_base();
    put_file(base_fd, OUTSIDE "/file", (const uint8_t *)"mine", 4);
    if (mkdirat(base_fd, DIRECTORY, 0755) < 0)
        abort();
    int fd = openat(base_fd, DIRECTORY, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        abort();
    make_all(fd, data, bytes);
    close(fd);
    snprintf(path, sizeof(path), "%s/" DIRECTORY, base_path);
    restart(path);
    restart(path); /* what the first has left */
    check_outside();
    if (sl_tree_remove(base_fd, DIRECTORY) < 0)
        abort();
    return 0;
}

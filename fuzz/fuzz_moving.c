/*
 * Names and links on their way from the work places to a destination, after the prefix was cut off.
 *
 * The first line is what is cut off. Each other line makes one thing: its first byte says what and
 * where (f file, l link, d folder, h another name of the file made last: in the work place; F, L,
 * D: in the destination, before; s: from here on in a second work place), then comes the name, and
 * for links, behind a tab, the target.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hash.h"
#include "moving.h"
#include "sink.h"
#include "tree.h"

enum { LINE_BYTES = 600, OLD_LINKS_MAX = 64, SOURCES = 2, FOLDER = O_RDONLY | O_DIRECTORY };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static char path[] = "/dev/shm/sluice-fuzz-XXXXXX";
static int top = -1;
static ino_t old_links[OLD_LINKS_MAX];
static size_t old_count;

static void end(void)
{
    static const char *const names[] = {"to", "work0", "work1", "canary"};
    for (size_t i = 0; i < SL_COUNT(names); i++)
        sl_tree_remove(top, names[i]);
    if (rmdir(path) < 0) /* something lies beside it */
        abort();
}

static int begin(const char *name)
{
    if (sl_tree_remove(top, name) < 0 || mkdirat(top, name, 0755) < 0)
        abort();
    return openat(top, name, FOLDER);
}

/* ---- making --------------------------------------------------------------------------------- */

struct maker {
    int folders[SOURCES], to;
    size_t source;
    char last[LINE_BYTES]; /* the file made last, in the first work place */
};

static void make(struct maker *maker, char *line)
{
    bool there = *line == 'F' || *line == 'L' || *line == 'D';
    char *name = line + 1, *target = strchr(name, '\t');
    const char *leaf, *last_leaf;
    if (target)
        *target++ = 0;
    if (*line == 's')
        maker->source = SOURCES - 1;
    if (sl_name_check(name, strlen(name), NULL) < 0)
        return;
    int root = there ? maker->to : maker->folders[maker->source];
    sl_autoclose int fd = sl_tree_parent(root, name, true, &leaf);
    if (fd < 0)
        return;
    if (*line == 'd' || *line == 'D') {
        (void)!mkdirat(fd, leaf, 0755);
    } else if (*line == 'l' || *line == 'L') {
        (void)!(target && symlinkat(target, fd, leaf));
    } else if (*line == 'f' || *line == 'F') {
        sl_autoclose int file = openat(fd, leaf, O_WRONLY | O_CREAT | O_EXCL, 0644);
        if (file >= 0 && !there && maker->source == 0)
            snprintf(maker->last, sizeof(maker->last), "%s", name);
    } else if (*line == 'h' && *maker->last && maker->source == 0) {
        sl_autoclose int from = sl_tree_parent(root, maker->last, false, &last_leaf);
        (void)!linkat(from, last_leaf, fd, leaf, 0);
    }
}

/* The next line as a text; false at the end. */
static bool next_line(const uint8_t **data, size_t *bytes, char line[LINE_BYTES])
{
    if (!*bytes)
        return false;
    const uint8_t *newline = memchr(*data, '\n', *bytes);
    size_t used = newline ? (size_t)(newline - *data) : *bytes, kept = SL_MIN(used, LINE_BYTES - 1);
    memcpy(line, *data, kept);
    line[kept] = 0;
    used += newline != NULL;
    *data += used;
    *bytes -= used;
    return true;
}

/* ---- looking -------------------------------------------------------------------------------- */

/* Every name with its inode below a folder, in no order; takes fd. `links`: of what is new none
 * leads out. */
static uint64_t survey(int to, int fd, const char *folder, bool links)
{
    DIR *entries = fdopendir(fd);
    uint64_t sum = 0;
    if (!entries)
        abort();
    for (struct dirent *entry; (entry = readdir(entries));) {
        char name[4096];
        struct stat status;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(name, sizeof(name), "%s/%s", folder, entry->d_name);
        if (fstatat(dirfd(entries), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) < 0)
            abort();
        sum += (uint64_t)status.st_ino * 0x9e3779b97f4a7c15u ^ sl_crc32(0, name, strlen(name));
        if (S_ISDIR(status.st_mode)) {
            sum += survey(to, openat(dirfd(entries), entry->d_name, FOLDER), name, links);
        } else if (S_ISLNK(status.st_mode) && !links) {
            if (old_count < OLD_LINKS_MAX)
                old_links[old_count++] = status.st_ino;
        } else if (S_ISLNK(status.st_mode)) {
            struct open_how how = {.flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_BENEATH};
            bool old = false;
            for (size_t i = 0; i < old_count; i++)
                old |= old_links[i] == status.st_ino;
            sl_autoclose int found = (int)syscall(SYS_openat2, to, name + 2, &how, sizeof(how));
            if (!old && found < 0 && errno == EXDEV)
                abort();
        }
    }
    closedir(entries);
    return sum;
}

static uint64_t look(int to, bool links)
{
    return survey(to, openat(to, ".", FOLDER), ".", links);
}

static void check_beside(void)
{
    struct stat status;
    unsigned count = 0;
    int fd = openat(top, ".", FOLDER);
    DIR *entries = fdopendir(fd);
    while (readdir(entries))
        count++;
    closedir(entries);
    if (count != 2 + 4 || fstatat(top, "canary", &status, AT_SYMLINK_NOFOLLOW) < 0 ||
        status.st_size != 6 || status.st_nlink != 1 || (status.st_mode & 07777) != 0640)
        abort();
}

/* ---- one ------------------------------------------------------------------------------------ */

static void move(int to, int folders[SOURCES], const char *strip)
{
    struct sl_err err = SL_ERR_INIT;
    uint64_t before = look(to, false);
    SL_AUTO(sl_moving) moving = sl_moving_new(to, path, &err);
    bool good = moving != NULL;
    for (size_t i = 0; i < SOURCES; i++) /* takes it in any case */
        good = moving && good && sl_moving_add(moving, dup(folders[i]), strip, &err) == 0;
    good = good && sl_moving_judge(moving, NULL, &err) == 0 && sl_moving_look(moving, &err) == 0;
    if (!good && look(to, true) != before) /* refused, and half moved */
        abort();
    if (good && sl_moving_carry_out(moving, &err) < 0) {
        fprintf(stderr, "%s\n", err.message);
        abort(); /* it was judged to be possible */
    }
    look(to, true);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char strip[LINE_BYTES] = "", line[LINE_BYTES];
    struct maker maker = {0};
    if (top < 0) {
        top = mkdtemp(path) ? open(path, FOLDER | O_CLOEXEC) : -1;
        sl_autoclose int canary = openat(top, "canary", O_WRONLY | O_CREAT, 0640);
        if (canary < 0 || write(canary, "canary", 6) != 6 || fchmod(canary, 0640) < 0)
            abort();
        atexit(end);
    }
    maker.to = begin("to");
    maker.folders[0] = begin("work0");
    maker.folders[1] = begin("work1");
    old_count = 0;
    next_line(&data, &bytes, strip);
    for (unsigned count = 0; count < 64 && next_line(&data, &bytes, line); count++)
        make(&maker, line);
    move(maker.to, maker.folders, strip);
    check_beside();
    close(maker.to);
    close(maker.folders[0]);
    close(maker.folders[1]);
    return 0;
}

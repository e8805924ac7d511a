/*
 * Kubernetes mounts a regular file of its own at /dev/termination-log and reads its first 4096
 * bytes when the container has ended. It is opened without following a link and only ever written
 * if it is a regular file without another name, and, where the environment named it, one of this
 * user or root, so that nothing else can be put in its place; a file that is missing or may not be
 * written is not a failure, since most runs are not in a container. The text is cleaned here once
 * more, whoever made it: the message is shown in events, dashboards and chats.
 */
#include "termination.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "log.h"
#include "mem.h"

#define DEFAULT_PATH "/dev/termination-log"

static bool written;

/* ---- one line ------------------------------------------------------------------------------- */

/* Bytes of the character that begins here, 0 if it is not UTF-8. */
static size_t character_bytes(const unsigned char *text)
{
    size_t bytes = text[0] < 0x80                      ? 1
                   : text[0] >= 0xc2 && text[0] < 0xe0 ? 2
                   : text[0] >= 0xe0 && text[0] < 0xf0 ? 3
                   : text[0] >= 0xf0 && text[0] < 0xf5 ? 4
                                                       : 0;
    for (size_t i = 1; i < bytes; i++)
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    return bytes;
}

/* A URL ends where people end one in a sentence. */
static size_t url_bytes(const char *text)
{
    return strcspn(text, " \t\r\n\"'<>|\\^`{}");
}

/* Of "user:password@host/path?query" what may be shown: the user part and the query are left out.
 */
struct shown {
    size_t begin, end;
};
static struct shown shown_part(const char *text, size_t bytes)
{
    size_t host_end = strcspn(text, "/?#");
    struct shown part = {0, SL_MIN(strcspn(text, "?"), bytes)};
    for (size_t i = 0; i < SL_MIN(host_end, bytes); i++)
        if (text[i] == '@')
            part.begin = i;
    return part;
}

struct writer {
    char *line;
    size_t used;
};

/* Whole characters, as long as there is room for a newline after them. */
static void put(struct writer *writer, const char *text, size_t bytes)
{
    for (size_t taken; bytes; text += taken, bytes -= taken) {
        unsigned char first = (unsigned char)*text;
        taken = character_bytes((const unsigned char *)text);
        bool wrong = taken == 0 || taken > bytes;
        if (wrong)
            taken = 1;
        if (writer->used + taken > SL_TERMINATION_BYTES - 1)
            return;
        memcpy(writer->line + writer->used, text, taken);
        if (wrong)
            writer->line[writer->used] = '?';
        else if (first < 0x20 || first == 0x7f)
            writer->line[writer->used] = ' ';
        writer->used += taken;
    }
}

static void put_url(struct writer *writer, const char *text, size_t bytes)
{
    struct shown part = shown_part(text, bytes);
    if (part.begin)
        put(writer, "…", strlen("…"));
    put(writer, text + part.begin, part.end - part.begin);
    if (part.end < bytes)
        put(writer, "?…", strlen("?…"));
}

const char *sl_termination_line(const char *text, char line[SL_TERMINATION_BYTES + 1])
{
    struct writer writer = {line, 0};
    for (const char *url; (url = strstr(text, "://"));) {
        size_t before = (size_t)(url - text) + 3;
        put(&writer, text, before);
        text += before;
        size_t bytes = url_bytes(text);
        put_url(&writer, text, bytes);
        text += bytes;
    }
    put(&writer, text, strlen(text));
    line[writer.used++] = '\n';
    line[writer.used] = 0;
    return line;
}

/* ---- the file ------------------------------------------------------------------------------- */

/* NULL: none is wanted. */
static const char *choose_path(bool *named)
{
    const char *path = getenv("SLUICE_TERMINATION_LOG");
    *named = path && *path;
    if (!*named)
        return DEFAULT_PATH;
    return strcmp(path, "off") == 0 ? NULL : path;
}

/* Kubernetes has made its file; only one that was asked for by name is created. */
static int open_regular(const char *path, bool named)
{
    struct stat status;
    int flags = O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW | O_NONBLOCK;
    int fd = open(path, flags | (named ? O_CREAT : 0), 0644);
    if (fd < 0)
        return -1;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_nlink <= 1 &&
        (!named || status.st_uid == 0 || status.st_uid == geteuid()))
        return fd;
    close(fd);
    errno = EINVAL;
    return -1;
}

void sl_cli_termination(const char *text)
{
    char line[SL_TERMINATION_BYTES + 1];
    bool named;
    const char *path = choose_path(&named);
    written = true;
    if (!path)
        return;
    sl_autoclose int fd = open_regular(path, named);
    if (fd < 0) {
        if (named || errno != ENOENT)
            sl_log(SL_LOG_DEBUG, "no termination message in '%s': %s", path, strerror(errno));
        return;
    }
    size_t bytes = strlen(sl_termination_line(text, line));
    if (ftruncate(fd, 0) < 0 || write(fd, line, bytes) != (ssize_t)bytes)
        sl_log(SL_LOG_DEBUG, "cannot write '%s': %s", path, strerror(errno));
}

void sl_termination_default(const char *text)
{
    if (!written)
        sl_cli_termination(text);
}

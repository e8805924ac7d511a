/* The mount's options are in /proc/self/mountinfo, in the line with the directory's device. */
#include "pages.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "buf.h"

enum { MOUNTS_BYTES_MAX = 4 * 1024 * 1024 };

/* The options of the mount with this device number, in /proc/self/mountinfo: "… - tmpfs NAME
 * OPTIONS". NULL if it is not found. */
static const char *mount_options(char *text, const char *device)
{
    char *rest = text, *line;
    while ((line = strsep(&rest, "\n"))) {
        char *fields[3] = {line};
        for (int i = 0; i < 2 && fields[i]; i++)
            if ((fields[i + 1] = strchr(fields[i], ' ')))
                fields[i + 1]++;
        size_t bytes = strlen(device);
        if (!fields[2] || strncmp(fields[2], device, bytes) != 0 || fields[2][bytes] != ' ')
            continue;
        char *type = strstr(line, " - ");
        char *name = type ? strchr(type + 3, ' ') : NULL;
        char *options = name ? strchr(name + 1, ' ') : NULL;
        return options ? options + 1 : "";
    }
    return NULL;
}

enum sl_pages sl_pages_of(int directory_fd)
{
    struct stat status;
    struct statfs system;
    sl_autobuf mounts = SL_BUF_INIT(MOUNTS_BYTES_MAX);
    char device[32];
    if (fstat(directory_fd, &status) < 0 || fstatfs(directory_fd, &system) < 0 ||
        system.f_type != TMPFS_MAGIC)
        return SL_PAGES_NONE;
    if (sl_buf_read_file(&mounts, "/proc/self/mountinfo", NULL) < 0 || !mounts.data)
        return SL_PAGES_SMALL;
    snprintf(device, sizeof(device), "%u:%u", major(status.st_dev), minor(status.st_dev));
    const char *options = mount_options(mounts.data, device);
    const char *huge = options ? strstr(options, "huge=") : NULL;
    return huge && strncmp(huge, "huge=never", 10) != 0 ? SL_PAGES_HUGE : SL_PAGES_SMALL;
}

const char *sl_pages_text(enum sl_pages pages)
{
    static const char *const texts[] = {"disk", "tmpfs with 4 KiB pages", "tmpfs with huge pages"};
    return texts[pages];
}

const char *sl_pages_of_path(const char *path)
{
    char text[PATH_MAX];
    if (snprintf(text, sizeof(text), "%s", path) >= (int)sizeof(text))
        return "";
    int fd = open(text, O_PATH | O_CLOEXEC);
    for (char *slash; fd < 0 && (slash = strrchr(text, '/')); fd = open(text, O_PATH | O_CLOEXEC)) {
        if (slash == text && !text[1])
            return "";
        slash[slash == text] = 0; /* "/a/b", "/a", "/" */
    }
    if (fd < 0 && *path != '/')
        fd = open(".", O_PATH | O_CLOEXEC);
    const char *kind = fd < 0 ? "" : sl_pages_text(sl_pages_of(fd));
    if (fd >= 0)
        close(fd);
    return kind;
}

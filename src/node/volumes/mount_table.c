/* /proc/self/mountinfo: "ID PARENT MAJOR:MINOR ROOT POINT OPTIONS … - TYPE SOURCE OPTIONS", with
 * spaces, tabs, line ends and backslashes as \ooo (proc(5)). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "mounting.h"

static void unescape(char *text)
{
    char *out = text;
    for (const char *in = text; *in; in++) {
        bool escaped = in[0] == '\\' && in[1] >= '0' && in[1] <= '3' && in[2] >= '0' &&
                       in[2] <= '7' && in[3] >= '0' && in[3] <= '7';
        *out++ = escaped ? (char)((in[1] - '0') * 64 + (in[2] - '0') * 8 + (in[3] - '0')) : *in;
        in += escaped ? 3 : 0;
    }
    *out = 0;
}

bool sl_mount_line_parse(char *text, struct sl_mount_line *line)
{
    char *rest = text, *fields[5];
    unsigned major_number, minor_number;
    for (size_t i = 0; i < 5; i++) {
        fields[i] = strsep(&rest, " ");
        if (!rest)
            return false;
    }
    if (sscanf(fields[2], "%u:%u", &major_number, &minor_number) != 2 || *fields[3] != '/' ||
        *fields[4] != '/')
        return false;
    unescape(fields[3]);
    unescape(fields[4]);
    *line = (struct sl_mount_line){makedev(major_number, minor_number), fields[3], fields[4]};
    return true;
}

int sl_mount_table_each(void (*each)(void *arg, const struct sl_mount_line *line), void *arg,
                        struct sl_err *err)
{
    struct sl_mount_line line;
    char *text = NULL;
    size_t capacity = 0;
    FILE *file = fopen("/proc/self/mountinfo", "re");
    if (!file)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot read /proc/self/mountinfo");
    for (ssize_t bytes; (bytes = getline(&text, &capacity, file)) > 0;) {
        text[strcspn(text, "\n")] = 0;
        if (sl_mount_line_parse(text, &line))
            each(arg, &line);
    }
    free(text);
    fclose(file);
    return 0;
}

/* See http_case.h. */
#include "http_case.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct sl_server *server;
const struct sl_source_config plain = {.attempts = 2, .stall_seconds = 20};

int load(const char *path, const struct sl_source_config *config, struct sl_err *err)
{
    *err = (struct sl_err)SL_ERR_INIT;
    return sl_read_blob(sl_server_url(server, path), config ? config : &plain, 1000, 400000, err);
}

bool header_of(struct sl_server *from, unsigned nth, const char *name, char *text)
{
    return sl_server_header(sl_server_request_at(from, nth), name, text, 256);
}

/* A file of this test with that text; its path. */
const char *file_with(const char *text)
{
    static char paths[4][64];
    static unsigned turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof(paths[0]), "/tmp/sluice-test-XXXXXX");
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    return path;
}

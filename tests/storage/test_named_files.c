/* Files of credentials that a variable names and that cannot be read: a warning says so, since the
 * refusal that follows would tell people to give what they have given. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "claims.h"
#include "range_blob.h"
#include "stores.h"

static const struct {
    const char *variable, *uri;
} rows[] = {
    {"HF_TOKEN_PATH", "hf://org/name"},
    {"REGISTRY_AUTH_FILE", "oci://registry.example/org/name:v1"},
};

/* What opening a store says on standard error. */
static char *said(const char *uri, char text[4096])
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    int own = dup(STDERR_FILENO), log = memfd_create("log", MFD_CLOEXEC);
    ck_assert(own >= 0 && log >= 0 && dup2(log, STDERR_FILENO) >= 0);
    int done = sl_store_open(uri, NULL, &store, &key, &err);
    dup2(own, STDERR_FILENO);
    ck_assert_msg(done == 0, "%s", err.message);
    ssize_t bytes = pread(log, text, 4095, 0);
    ck_assert_int_ge(bytes, 0);
    text[bytes] = 0;
    close(own);
    close(log);
    return text;
}

SL_TEST_LOOP(a_file_that_is_named_and_not_there_is_warned_of, 0, (int)SL_COUNT(rows))
{
    char text[4096];
    setenv("HOME", "/nowhere", 1);
    ck_assert_str_eq(said(rows[_i].uri, text), "");
    setenv(rows[_i].variable, "/nowhere/token", 1);
    said(rows[_i].uri, text);
    ck_assert_msg(strstr(text, rows[_i].variable) && strstr(text, "'/nowhere/token'") &&
                      strstr(text, "cannot be read"),
                  "%s", text);
}

static bool prepare(void)
{
    clearenv();
    sl_test_environment();
    return true;
}

SL_CASE(.prepare = prepare)

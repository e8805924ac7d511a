/* A home directory and an environment for tests of credentials: empty but for what the test puts.
 */
#ifndef SL_CREDS_HOME_H
#define SL_CREDS_HOME_H

#include "creds.h"
#include "s3_options.h"

/** What stores are opened with in these tests; filled by the setup. */
struct sl_creds_home {
    char path[64]; /* $HOME */
    struct sl_s3_options s3;
    struct sl_source_config config;
    struct sl_err err;
};
extern struct sl_creds_home sl_creds_home;

/** The checked fixture. */
void sl_creds_home_setup(void);
void sl_creds_home_teardown(void);
/** Write HOME/name; the path, until the next call. */
const char *sl_creds_home_write(const char *name, const char *text);
/** Never NULL: a failure fails the test. */
struct sl_creds *sl_creds_home_open(void);
/** These keys come out; NULL for none. */
void sl_creds_home_expect(const char *access_key, const char *secret_key, const char *token);
/** Opening or getting fails so, and the message does not hold the secret "hush". */
void sl_creds_home_refuse(enum sl_err_kind kind, const char *text);

#endif

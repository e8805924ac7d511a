/* .netrc: logins for hosts (the format of ftp(1), quoted as curl has it). Any thread; a file of
 * at most SL_NETRC_BYTES_MAX is read, and hostile. */
#ifndef SL_NETRC_H
#define SL_NETRC_H

#include <stdbool.h>
#include <stddef.h>

#include "err.h"

enum { SL_NETRC_BYTES_MAX = 256 * 1024, SL_NETRC_WORD_MAX = 1024 };

struct sl_netrc_login {
    char login[SL_NETRC_WORD_MAX], password[SL_NETRC_WORD_MAX];
    bool by_default; /* of the default entry: the file does not name the host */
};

/**
 * Find the login for a host: of its first machine entry, or of the default entry if that comes
 * first. Values may be quoted, with backslashes.
 *
 * @text, bytes  of the file.
 * @host         in any case.
 * @login        out: "" for what the entry does not have.
 * @return       false: neither is there.
 */
bool sl_netrc_parse(const char *text, size_t bytes, const char *host, struct sl_netrc_login *login);
/** The same from $NETRC or ~/.netrc; a file that cannot be read is as good as none, with a warning
 * where NETRC names it. */
bool sl_netrc_find(const char *host, struct sl_netrc_login *login);

#endif

/*
 * URIs on their way to people: users, passwords and signatures are left out. It takes what cannot
 * be parsed, too, since that is what messages quote: one slash, a password with a slash, text that
 * was cut. Schemes are those of the stores, in any case. Any thread, nothing blocks.
 */
#ifndef SL_URI_TEXT_H
#define SL_URI_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "err.h"

/** A URI without its secrets into text, as snprintf() does: how many bytes it has. */
size_t sl_uri_write(const char *uri, char *text, size_t size);
/** A URI without its secrets. A path, and an '@' in a key, stay as they are. free() it. NULL with
 * SL_E_NO_SPACE. */
char *sl_uri_sanitize(const char *uri, struct sl_err *err);
/** The same, in place, of every URI within a message of at most `size` bytes with its NUL. */
void sl_uri_hide(char *text, size_t size);
/** Does it name a user, a key or a token where its scheme has no place for one? */
bool sl_uri_holds_key(const char *uri);

#endif

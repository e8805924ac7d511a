/* Links that let their bearer in until a time: when that is, and what a refusal says of it. Any
 * thread; no network. */
#ifndef SL_HTTP_EXPIRY_H
#define SL_HTTP_EXPIRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SL_EXPIRY_TEXT_BYTES = 200 };

/** What a store says in its answer: that a link or a request has expired. */
bool sl_http_says_expired(const char *code, const char *message);
/** For the message of a refusal: "the link ended at 2026-10-06 11:00:00 UTC, 53 days ago: ask for a
 * new one where it came from"; "" if nothing says so. said: the answer does. Returns text. */
const char *sl_http_expiry_text(const char *url, bool said, char text[SL_EXPIRY_TEXT_BYTES]);

#endif

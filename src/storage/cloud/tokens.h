/*
 * What lets requests in for a while: a bearer token, a signed query. One thread asks for a new one
 * before the old one ends; the others go on with the old one as long as it is good. Any thread,
 * but new and free. What is returned is the caller's, and wiped by sl_secret_free().
 */
#ifndef SL_TOKENS_H
#define SL_TOKENS_H

#include <stdbool.h>
#include <stdint.h>

#include "buf.h"
#include "exchange.h"

enum { SL_TOKEN_BYTES_MAX = 32 * 1024 };

/** Ask for one: *text (malloc'ed, fit for a header) and *expires (seconds since 1970, 0: never).
 * *text stays NULL where there is none to be had, and requests go without. May block. */
typedef int sl_tokens_ask(void *arg, char **text, int64_t *expires, struct sl_err *err);

struct sl_tokens;
/** margin_seconds: how long before its end a token is replaced. arg outlives it. No network.
 * SL_E_NO_SPACE. */
struct sl_tokens *sl_tokens_new(sl_tokens_ask *ask, void *arg, unsigned margin_seconds,
                                struct sl_err *err);
/** Wipes them; nobody asks any more. NULL is fine. */
void sl_tokens_free(struct sl_tokens *tokens);
SL_AUTO_DEFINE(sl_tokens)
/** The one of now: *text by malloc, NULL: there is none. Any thread; may block while it is asked
 * for. A failure is kept for a few seconds for those who waited for it. Errors are those of `ask`;
 * *generation is what sl_tokens_renew() takes. */
int sl_tokens_get(struct sl_tokens *tokens, char **text, unsigned *generation, struct sl_err *err);
/** The store refuses that of `generation`: true if there is another one now. May block. */
bool sl_tokens_renew(struct sl_tokens *tokens, unsigned generation);

/** Wipes and frees; NULL is fine. */
void sl_secret_free(char *text);
static inline void sl_autosecret_(void *pointer)
{
    sl_secret_free(*(char **)pointer);
}
/** Declares a char * that sl_secret_free() takes at the end of the scope. */
#define sl_autosecret __attribute__((cleanup(sl_autosecret_)))
/** As sl_secret_buf_release() of an answer's body; its head is released as it is. */
void sl_secret_answer_release(struct sl_answer *answer);
#define sl_autosecretanswer __attribute__((cleanup(sl_secret_answer_release))) struct sl_answer

/** A file's text without the blanks around it: one line that a header may carry. SL_E_AUTH.
 * free it by sl_secret_free(). Reads the file. */
char *sl_token_from_file(const char *path, struct sl_err *err);
/** May it stand in a header, whole? SL_E_AUTH names origin, never the text. */
int sl_token_check(const char *text, const char *origin, struct sl_err *err);

/** A question to a service that gives out tokens; everything is borrowed. */
struct sl_token_request {
    const char *what; /* "cannot get a token from 'https://…'" */
    const char *url;
    const char *const *headers; /* NULL-terminated */
    const char *form;           /* NULL: GET; else POST of it */
    const char *form_type;      /* NULL: application/x-www-form-urlencoded */
    bool direct;                /* never through a proxy: metadata services */
    unsigned seconds, tries;    /* per try; 0: 10 and 3 */
    const struct sl_tls_options *tls;
    struct sl_cancel *cancel;
};
/**
 * Tried again after what may pass (no answer, 429, 5xx); redirects are not followed. 0 with an
 * answer of any other status, to be released by sl_secret_answer_release(). SL_E_NET if nothing
 * answers, SL_E_CANCELED. Blocks.
 */
int sl_token_request(const struct sl_token_request *request, struct sl_answer *answer,
                     struct sl_err *err);
/** Always -1, SL_E_AUTH: a refusal, with the service's "error" and what to do. Nothing else of the
 * answer is quoted. */
int sl_token_refused(const struct sl_token_request *request, const struct sl_answer *answer,
                     const char *advice, struct sl_err *err);
/**
 * Take the token out of OAuth's JSON (RFC 6749 section 5.1): access_token, and expires_in, which is
 * a number or a text of one.
 *
 * @request  of which it is the answer; names the subject of errors.
 * @answer   with status 200.
 * @text     out: wiped by sl_secret_free().
 * @expires  out: seconds since 1970.
 * @return   0, or -1 with SL_E_AUTH or SL_E_NO_SPACE.
 */
int sl_token_take(const struct sl_token_request *request, const struct sl_answer *answer,
                  char **text, int64_t *expires, struct sl_err *err);
/** May secrets go to this URL: https, or http to this machine? SL_E_AUTH names whose it is. */
int sl_token_url_check(const char *url, const char *whose, struct sl_err *err);

#endif

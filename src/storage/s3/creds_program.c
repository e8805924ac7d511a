/*
 * credential_process of a profile: a command line that prints keys as JSON, version 1
 * (https://docs.aws.amazon.com/sdkref/latest/guide/feature-process-credentials.html). It runs only
 * where source.s3.credentialProcess allows it, and without a shell: blanks part its words, quotes
 * and backslashes keep them together, and nothing is expanded, as botocore has it.
 */
#include "creds_program.h"

#include <string.h>

#include "ask_program.h"
#include "json.h"

enum { WORDS_MAX = 64 };

/* The word at *at, written to *to with a NUL: quotes go. -1: one does not end. */
static int take_word(const char **at, char **to)
{
    const char *from = *at;
    char quote = 0;
    for (; *from && (quote || !strchr(" \t\r\n", *from)); from++) {
        bool escapes = *from == '\\' && (!quote || (quote == '"' && strchr("\"\\", from[1])));
        if (escapes && from[1])
            *(*to)++ = *++from;
        else if (*from == quote)
            quote = 0;
        else if (!quote && (*from == '"' || *from == '\''))
            quote = *from;
        else if (escapes)
            return -1;
        else
            *(*to)++ = *from;
    }
    *(*to)++ = 0;
    *at = from;
    return quote ? -1 : 0;
}

/* Words of line in text, which is as long; NULL behind the last. NULL: it is no command line. */
static const char *split(const char *line, char *text, char *argv[WORDS_MAX + 1])
{
    size_t count = 0;
    while (*(line += strspn(line, " \t\r\n"))) {
        argv[count++] = text;
        if (count > WORDS_MAX || take_word(&line, &text) < 0)
            return NULL;
    }
    argv[count] = NULL;
    return count ? argv[0] : NULL;
}

static int fail(const char *profile, const char *why, struct sl_err *err)
{
    return sl_fail(err, SL_E_AUTH,
                   "the program that credential_process of profile '%.100s' names %s: run it by "
                   "itself to see why",
                   profile, why);
}

static int take_key(const char *profile, const struct sl_buf *output, struct sl_key *key,
                    struct sl_err *err)
{
    sl_autofree char *origin =
        sl_asprintf(err, "the credential_process of profile '%.100s'", profile);
    json_t *document = sl_json_parse(sl_buf_string(output), output->used, "keys", NULL);
    bool first = json_integer_value(json_object_get(document, "Version")) == 1;
    json_decref(document);
    if (!origin)
        return -1;
    if (!first)
        return fail(profile, "does not print JSON of version 1", err);
    if (sl_key_from_json(key, output, "SessionToken", origin, err) < 0)
        return -1;
    if (key->expires && key->expires <= sl_wall_seconds())
        return fail(profile, "printed keys that have expired", err);
    return 0;
}

int sl_creds_from_program(const char *profile, const char *line, struct sl_cancel *cancel,
                          struct sl_key *key, struct sl_err *err)
{
    char *argv[WORDS_MAX + 1];
    const char *why;
    sl_autosecretbuf output = SL_BUF_INIT(SL_PROGRAM_OUTPUT_BYTES_MAX);
    sl_autofree char *text = sl_alloc(strlen(line) + 1, err);
    if (!text)
        return -1;
    if (!split(line, text, argv))
        return fail(profile, "cannot be read: its quotes do not pair, or it has 64 words", err);
    sl_autofree char *path = sl_program_find(argv[0]);
    if (!path)
        return fail(profile, "has no absolute path and is in no absolute directory of PATH", err);
    int result = sl_program_ask(path, argv, "", cancel, &output, &why, err);
    if (result < 0)
        return -1;
    if (result == SL_ASKED_ANSWERED)
        return take_key(profile, &output, key, err);
    return fail(profile, result == SL_ASKED_REFUSED ? "ended with an error" : why, err);
}

/*
 * Logins that programs keep, as ECR, Google and Azure have them: docker-credential-NAME, asked over
 * its stdin and stdout (https://github.com/docker/docker-credential-helpers). Only where the option
 * allows it, only from absolute directories of PATH, without a shell, for a limited time; its
 * output is a stranger's, and never quoted.
 */
#include <ctype.h>
#include <string.h>

#include "ask_program.h"
#include "json.h"
#include "log.h"
#include "oci_auth.h"
#include "thread_cancel.h"

enum { NAME_BYTES_MAX = 64 };

struct helper {
    const char *name, *host;
};

static int fail(const struct helper *helper, struct sl_err *err, const char *why)
{
    return sl_fail(
        err, SL_E_AUTH,
        "docker-credential-%.*s, which keeps the login of '%.100s', %s: run `echo %.100s "
        "| docker-credential-%.*s get` to see why",
        NAME_BYTES_MAX, helper->name, helper->host, why, helper->host, NAME_BYTES_MAX,
        helper->name);
}

/* No path can be made of it. */
static bool is_name(const char *name)
{
    size_t bytes = strlen(name);
    for (size_t i = 0; i < bytes; i++)
        if (!isalnum((unsigned char)name[i]) && !strchr("-_", name[i]))
            return false;
    return bytes >= 1 && bytes <= NAME_BYTES_MAX;
}

/* {"Username", "Secret"}; "<token>" for a user means an identity token. */
static int take_login(const struct helper *helper, const struct sl_buf *output,
                      struct sl_oci_login *login, struct sl_err *err)
{
    json_t *document = sl_json_parse(sl_buf_string(output), output->used, "login", NULL);
    const char *user = sl_json_get_string(document, "Username");
    const char *secret = sl_json_get_string(document, "Secret");
    int result = 0;
    if (!user || !*user || !secret || !*secret)
        result = fail(helper, err, "did not answer with a login");
    else if (strcmp(user, "<token>") == 0)
        result = (login->identity = sl_strdup(secret, err)) ? 0 : -1;
    else
        result = (login->user = sl_strdup(user, err)) && (login->password = sl_strdup(secret, err))
                     ? 0
                     : -1;
    json_decref(document);
    return result;
}

static int ask(const struct helper *helper, struct sl_cancel *cancel, struct sl_buf *output,
               struct sl_err *err)
{
    static const char hub[] = "https://index.docker.io/v1/";
    const char *place = strcmp(helper->host, "docker.io") == 0 ? hub : helper->host, *why;
    if (!is_name(helper->name))
        return sl_fail(err, SL_E_USAGE, "'%.80s' is not the name of a credential helper",
                       helper->name);
    sl_autofree char *program = sl_asprintf(err, "docker-credential-%s", helper->name);
    sl_autofree char *input = sl_asprintf(err, "%s\n", place);
    if (!program || !input)
        return -1;
    sl_autofree char *path = sl_program_find(program);
    if (!path)
        return fail(helper, err, "is in no absolute directory of PATH");
    char verb[] = "get";
    char *argv[] = {path, verb, NULL};
    int result = sl_program_ask(path, argv, input, cancel, output, &why, err);
    return result == SL_ASKED_FAILED ? fail(helper, err, why) : result;
}

int sl_oci_helper_ask(const char *name, const char *host, struct sl_cancel *cancel,
                      struct sl_oci_login *login, struct sl_err *err)
{
    struct helper helper = {.name = name, .host = host};
    sl_autosecretbuf output = SL_BUF_INIT(SL_PROGRAM_OUTPUT_BYTES_MAX);
    int result = ask(&helper, sl_thread_cancel(cancel), &output, err);
    if (result < 0)
        return -1;
    if (result == SL_ASKED_ANSWERED)
        return take_login(&helper, &output, login, err);
    struct sl_err why = SL_ERR_INIT; /* it has none, or could not look: they do not say which */
    fail(&helper, &why, "has no login");
    sl_log(SL_LOG_WARN, "%s", why.message);
    return 0;
}

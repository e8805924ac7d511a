/* A spec is known by its name, so that a local model and a spec can never be taken for each other.
 */
#include "operand.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "json.h"
#include "stores.h"

static bool ends_with(const char *text, const char *end)
{
    size_t a = strlen(text), b = strlen(end);
    return a > b && strcasecmp(text + a - b, end) == 0;
}

bool sl_operand_is_spec(const char *operand)
{
    if (strcmp(operand, "-") == 0)
        return true;
    return !strstr(operand, "://") && (ends_with(operand, ".yaml") || ends_with(operand, ".yml"));
}

static int read_specs(struct sl_cli *cli, const char *to, const char *otherwise_to,
                      struct sl_specs *specs, struct sl_err *err)
{
    const char *operand = cli->operands[0];
    if (sl_operand_is_spec(operand))
        return sl_cli_read_specs(cli, operand, specs, err);
    return sl_cli_uri_specs(cli, operand, to ? to : otherwise_to, specs, err);
}

int sl_operand_specs(struct sl_cli *cli, const char *to, const char *name, const char *otherwise_to,
                     struct sl_specs *specs, struct sl_err *err)
{
    sl_autofree struct sl_spec_setting *settings =
        sl_alloc_array(cli->setting_count + 2, sizeof(*settings), err);
    if (!settings)
        return -1;
    size_t count = cli->setting_count;
    if (count)
        memcpy(settings, cli->settings, count * sizeof(*settings));
    if (to && sl_operand_is_spec(cli->operands[0]))
        settings[count++] = (struct sl_spec_setting){"sink.tmpfs.path", to, "--to"};
    if (name)
        settings[count++] = (struct sl_spec_setting){"metadata.name", name, "--name"};
    struct sl_cli with = *cli;
    with.settings = settings;
    with.setting_count = count;
    return read_specs(&with, to, otherwise_to, specs, err);
}

/* JSON's strings are YAML's. */
char *sl_operand_quote(const char *text, struct sl_err *err)
{
    json_t *value = json_string(text);
    char *quoted = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    json_decref(value);
    if (!quoted)
        sl_fail(err, SL_E_USAGE, "'%.200s' is not valid UTF-8", text);
    return quoted;
}

/* ORG/NAME, as the Hub writes it. */
static bool looks_like_repository(const char *operand)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t organisation = strspn(operand, allowed);
    if (!organisation || *operand == '.' || operand[organisation] != '/')
        return false;
    const char *name = operand + organisation + 1;
    return *name && *name != '.' && !name[strspn(name, allowed)];
}

/* "s3:/bucket/key" and "s3//bucket/key" as they are meant; free() it. NULL: something else. */
static char *with_slashes(const char *operand)
{
    struct sl_err none = SL_ERR_INIT;
    int scheme = (int)strspn(operand, "abcdefghijklmnopqrstuvwxyz0123456789");
    const char *rest = operand + scheme;
    if (scheme < 2 || (strncmp(rest, ":/", 2) != 0 && strncmp(rest, "//", 2) != 0))
        return NULL;
    char *uri = sl_asprintf(&none, "%.*s://%s", scheme, operand, rest + 2);
    if (uri && sl_stores_find(uri))
        return uri;
    free(uri);
    return NULL;
}

void sl_operand_hint(const char *operand, struct sl_err *err)
{
    char why[sizeof(err->message)], near[SL_MODELS_NAME_BYTES];
    if (err->kind != SL_E_NOT_FOUND || strstr(operand, "://") || access(operand, F_OK) == 0)
        return;
    snprintf(why, sizeof(why), "%s", err->message);
    sl_autofree char *uri = with_slashes(operand);
    if (uri)
        sl_fail(err, err->kind, "%s; a URI has a colon and two slashes: %s", why, uri);
    else if (looks_like_repository(operand))
        sl_fail(err, err->kind, "%s; a repository of the Hub is written hf://%s", why, operand);
    else if (sl_models_near(operand, near))
        sl_fail(err, err->kind,
                "%s; for the public model %s `sluice models --spec %s` prints a spec", why, near,
                near);
}

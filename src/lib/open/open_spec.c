/*
 * From a URI and a caller's YAML to a spec, checked like one of a file. What must be in every spec
 * and means nothing here (a name, a sink) is set over it.
 */
#include <string.h>
#include <strings.h>
#include <sys/mman.h>

#include "open_parts.h"

enum { SETTINGS_MAX = 8 };

static const char *hashes_of(uint32_t verify)
{
    return verify == SLUICE_VERIFY_REQUIRE ? "require" : verify == SLUICE_VERIFY_OFF ? "off" : NULL;
}

static bool is_blank(const char *text)
{
    return !text || text[strspn(text, " \t\r\n")] == 0;
}

static int parse(const struct sl_open_wanted *wanted, const struct sl_spec_setting *settings,
                 size_t count, struct sl_specs *specs, struct sl_err *err)
{
    const char *to = wanted->to ? wanted->to : "/dev/shm"; /* nothing is written there */
    if (is_blank(wanted->spec))
        return sl_spec_from_uri(wanted->uri, to, settings, count, specs, NULL, err);
    struct sl_spec_setting all[SETTINGS_MAX + 5] = {
        {"apiVersion", "sluice/v1alpha1", "spec"}, {"kind", "Model", "spec"},
        {"metadata.name", "model", "spec"},        {"source.uri", wanted->uri, "URI"},
        {"sink.tmpfs.path", to, "directory"},
    };
    if (count)
        memcpy(all + 5, settings, count * sizeof(*settings));
    return sl_spec_parse(wanted->spec, strlen(wanted->spec), "spec", all, count + 5, specs, NULL,
                         err);
}

int sl_open_spec(const struct sl_open_wanted *wanted, struct sl_specs *specs, struct sl_err *err)
{
    struct sl_spec_setting settings[SETTINGS_MAX];
    size_t count = 0;
    if (!wanted->uri || !*wanted->uri)
        return sl_fail(err, SL_E_USAGE, "there is no URI");
    if (wanted->verify > SLUICE_VERIFY_OFF)
        return sl_fail(err, SL_E_USAGE, "verify is %u, which is none of enum sluice_verify",
                       wanted->verify);
    if (!wanted->to) /* under which a spec may select */
        settings[count++] =
            (struct sl_spec_setting){"sink.tmpfs.layout", "safetensors", "sluice_open()"};
    if (hashes_of(wanted->verify))
        settings[count++] =
            (struct sl_spec_setting){"verify.hashes", hashes_of(wanted->verify), "verify"};
    if (parse(wanted, settings, count, specs, err) < 0)
        return -1;
    if (specs->count == 1)
        return 0;
    sl_specs_release(specs);
    *specs = (struct sl_specs){0};
    return sl_fail(err, SL_E_USAGE, "the spec has several documents: open one model at a time");
}

/* ---- keys ------------------------------------------------------------------------------------ */

int sl_open_secret_take(const struct sluice_key *given, struct sl_open_secret *secret,
                        struct sl_err *err)
{
    struct sluice_key key;
    sl_api_take(&key, sizeof(key), given);
    if (!given)
        return 0;
    if (!key.key == !key.passphrase)
        return sl_fail(err, SL_E_USAGE, "a key is either 32 bytes or a passphrase");
    size_t count = key.key ? SL_KEY_BYTES : key.passphrase_bytes;
    secret->bytes = sl_alloc(count + 1, err);
    if (!secret->bytes)
        return -1;
    secret->count = count + 1;
    mlock(secret->bytes, secret->count); /* where it may be */
    memcpy(secret->bytes, key.key ? key.key : key.passphrase, count);
    if (key.key)
        secret->secret.key = secret->bytes;
    else
        secret->secret = (struct sl_spec_secret){NULL, secret->bytes, count};
    return 0;
}

void sl_open_secret_release(struct sl_open_secret *secret)
{
    if (!secret->bytes)
        return;
    explicit_bzero(secret->bytes, secret->count);
    munlock(secret->bytes, secret->count);
    free(secret->bytes);
    *secret = (struct sl_open_secret){0};
}

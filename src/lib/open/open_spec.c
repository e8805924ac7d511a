/*
 * From a URI and a caller's YAML to a spec, checked like one of a file. What must be in every spec
 * and means nothing here (a name, a sink) is set over it.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "keys.h"
#include "open_parts.h"
#include "stores.h"

enum { SETTINGS_MAX = 8 };

static const char *hashes_of(uint32_t verify)
{
    static const char *const names[] = {[SLUICE_VERIFY_REQUIRE] = "require",
                                        [SLUICE_VERIFY_OFF] = "off",
                                        [SLUICE_VERIFY_ALL] = "all"};
    return names[verify];
}

static bool is_blank(const char *text)
{
    return !text || text[strspn(text, " \t\r\n")] == 0;
}

static int parse(const struct sl_open_wanted *wanted, const char *uri,
                 const struct sl_spec_setting *settings, size_t count, struct sl_specs *specs,
                 struct sl_err *err)
{
    const char *to = wanted->to ? wanted->to : "/dev/shm"; /* nothing is written there */
    if (is_blank(wanted->spec))
        return sl_spec_from_uri(uri, to, settings, count, specs, NULL, err);
    struct sl_spec_setting all[SETTINGS_MAX + 5] = {
        {"apiVersion", "sluice/v1alpha1", "spec"}, {"kind", "Model", "spec"},
        {"metadata.name", "model", "spec"},        {"source.uri", uri, "URI"},
        {"sink.tmpfs.path", to, "directory"},
    };
    if (count)
        memcpy(all + 5, settings, count * sizeof(*settings));
    return sl_spec_parse(wanted->spec, strlen(wanted->spec), "spec", all, count + 5, specs, NULL,
                         err);
}

/* The parser refuses a mistaken URI. Behind a folder its user and password would be a path's, and
 * shown. */
char *sl_open_uri(const char *uri, struct sl_err *err)
{
    char folder[PATH_MAX];
    if (!*uri || *uri == '/' || !sl_uri_is_path(uri))
        return sl_strdup(uri, err);
    if (getcwd(folder, sizeof(folder)))
        return sl_asprintf(err, "%s/%s", folder, uri);
    sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot tell the current folder, of '%.200s'", uri);
    return NULL;
}

int sl_open_spec(const struct sl_open_wanted *wanted, struct sl_specs *specs, struct sl_err *err)
{
    struct sl_spec_setting settings[SETTINGS_MAX];
    size_t count = 0;
    if (!wanted->uri || !*wanted->uri)
        return sl_fail(err, SL_E_USAGE, "there is no URI");
    if (wanted->verify > SLUICE_VERIFY_ALL)
        return sl_fail(err, SL_E_USAGE, "verify is %u, which is not a value of enum sluice_verify",
                       wanted->verify);
    if (!wanted->to) /* under which a spec may select */
        settings[count++] =
            (struct sl_spec_setting){"sink.tmpfs.layout", "safetensors", "sluice_open()"};
    if (hashes_of(wanted->verify))
        settings[count++] =
            (struct sl_spec_setting){"verify.hashes", hashes_of(wanted->verify), "verify"};
    sl_autofree char *uri = sl_open_uri(wanted->uri, err);
    if (!uri || parse(wanted, uri, settings, count, specs, err) < 0)
        return -1;
    bool one = specs->count == 1, caches = one && specs->items[0].sink.caches.path;
    if (one && !caches)
        return 0;
    sl_specs_release(specs);
    *specs = (struct sl_specs){0};
    return sl_fail(err, SL_E_USAGE,
                   caches ? "only `sluice load` restores engine caches: leave out 'sink.caches'"
                          : "the spec has several documents: open one model at a time");
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* As the reference writer's default: the key takes a second and 256 MiB. */
static int take_kdf(const struct sluice_key *key, struct sl_open_secret *secret, struct sl_err *err)
{
    enum { PASSES = 3, MEMORY_MIB = 256, MEMORY_MIN = 8192, ARGON2ID13 = 2 };
    struct sl_kdf *kdf = &secret->kdf;
    *kdf = (struct sl_kdf){.opslimit = key->opslimit ? key->opslimit : PASSES,
                           .memlimit = key->memlimit ? key->memlimit : (uint64_t)MEMORY_MIB << 20,
                           .alg = ARGON2ID13,
                           .salt_bytes = SL_SALT_BYTES};
    secret->salted = key->salt;
    if (key->salt)
        memcpy(kdf->salt, key->salt, SL_SALT_BYTES);
    if (kdf->opslimit > SL_KDF_OPSLIMIT_MAX)
        return sl_fail(err, SL_E_USAGE, "opslimit is %" PRIu64 ": give 1 to %d", kdf->opslimit,
                       SL_KDF_OPSLIMIT_MAX);
    if (kdf->memlimit < MEMORY_MIN || kdf->memlimit > SL_KDF_MEMLIMIT_MAX)
        return sl_fail(err, SL_E_USAGE,
                       "memlimit is %" PRIu64 " bytes: give %d to %" PRIu64 " of them",
                       kdf->memlimit, MEMORY_MIN, SL_KDF_MEMLIMIT_MAX);
    return 0;
}

int sl_open_secret_take(const struct sluice_key *given, struct sl_open_secret *secret,
                        struct sl_err *err)
{
    struct sluice_key key;
    if (!given)
        return 0;
    if (sl_open_take(&key, sizeof(key), given, err) < 0)
        return -1;
    if (!key.key == !key.passphrase)
        return sl_fail(err, SL_E_USAGE, "a key is either 32 bytes or a passphrase");
    if (take_kdf(&key, secret, err) < 0)
        return -1;
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

static int derive(const struct sl_open_secret *secret, uint8_t derived[SL_KEY_BYTES],
                  struct sl_err *err)
{
    if (!secret->secret.passphrase || !secret->salted)
        return sl_fail(err, SL_E_USAGE, "a key is made of a passphrase and a salt");
    SL_AUTO(sl_keys)
    keys = sl_keys_from_passphrase(secret->secret.passphrase, secret->secret.passphrase_bytes, err);
    const uint8_t *key = keys ? sl_keys_find(keys, &secret->kdf, err) : NULL;
    if (!key)
        return -1;
    memcpy(derived, key, SL_KEY_BYTES);
    return 0;
}

int sluice_key_derive(const struct sluice_key *key, uint8_t derived[32], struct sluice_error *error)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_open_secret secret = {0};
    sl_open_begin();
    int status = sl_open_secret_take(key, &secret, &err);
    if (status == 0)
        status = derive(&secret, derived, &err);
    sl_open_secret_release(&secret);
    return status < 0 ? sl_open_fail(error, &err) : 0;
}

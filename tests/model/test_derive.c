/* Derivations that go on when nobody waits for them any more; the library's are gated here. */
#include "derive.h"

#include <check.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "crypt.h"
#include "fork_guard.h"
#include "keys.h"
#include "minisign_secret.h"
#include "thread_cancel.h"

static struct {
    struct sl_counter begun, ended;
    atomic_bool gated;
} library;

static int pass_gate(void)
{
    sl_counter_add(&library.begun, 1);
    SL_AWAIT(!atomic_load(&library.gated), "the gate's opening");
    sl_counter_add(&library.ended, 1);
    return 0;
}

int __wrap_crypto_pwhash(unsigned char *out, unsigned long long bytes, const char *passphrase,
                         unsigned long long passphrase_bytes, const unsigned char *salt,
                         unsigned long long opslimit, size_t memlimit, int alg);
int __wrap_crypto_pwhash(unsigned char *out, unsigned long long bytes, const char *passphrase,
                         unsigned long long passphrase_bytes, const unsigned char *salt,
                         unsigned long long opslimit, size_t memlimit, int alg)
{
    ck_assert_uint_eq(memlimit, 8192);
    ck_assert_uint_eq(opslimit, 1);
    ck_assert_int_eq(alg, 2);
    memset(out, salt[0] + passphrase[passphrase_bytes - 1], bytes);
    return pass_gate();
}

int __wrap_crypto_pwhash_scryptsalsa208sha256(unsigned char *out, unsigned long long bytes,
                                              const char *passphrase,
                                              unsigned long long passphrase_bytes,
                                              const unsigned char *salt,
                                              unsigned long long opslimit, size_t memlimit);
int __wrap_crypto_pwhash_scryptsalsa208sha256(unsigned char *out, unsigned long long bytes,
                                              const char *passphrase,
                                              unsigned long long passphrase_bytes,
                                              const unsigned char *salt,
                                              unsigned long long opslimit, size_t memlimit)
{
    (void)opslimit, (void)memlimit;
    memset(out, salt[0] + passphrase[passphrase_bytes - 1], bytes);
    return pass_gate();
}

/* ---- who asks -------------------------------------------------------------------------------- */

static const struct sl_kdf kdf = {
    .opslimit = 1, .memlimit = 8192, .alg = 2, .salt_bytes = 16, .salt = {1}};

struct asking {
    struct sl_keys *keys;
    struct sl_cancel *cancel;
    const uint8_t *key;
    struct sl_err err;
    pthread_t thread;
};

static void *find(void *arg)
{
    struct asking *asking = arg;
    asking->key = sl_keys_find(asking->keys, &kdf, &asking->err);
    return NULL;
}

static void ask(struct asking *asking, const char *passphrase)
{
    struct sl_err err = SL_ERR_INIT;
    *asking = (struct asking){.err = SL_ERR_INIT};
    asking->keys = sl_keys_from_passphrase(passphrase, strlen(passphrase), &err);
    asking->cancel = sl_cancel_new(&err);
    ck_assert_ptr_nonnull(asking->keys);
    sl_keys_heed(asking->keys, asking->cancel);
    ck_assert_int_eq(pthread_create(&asking->thread, NULL, find, asking), 0);
}

static void end(struct asking *asking)
{
    pthread_join(asking->thread, NULL);
    sl_keys_free(asking->keys);
    sl_cancel_free(asking->cancel);
}

static void await_begun(unsigned count)
{
    SL_AWAIT(sl_counter_get(&library.begun) == count, "a derivation");
}

static void set_up(void)
{
    atomic_store(&library.gated, true);
}

static void tear_down(void)
{
    atomic_store(&library.gated, false);
    await_begun((unsigned)sl_counter_get(&library.begun));
    SL_AWAIT(sl_counter_get(&library.ended) == sl_counter_get(&library.begun), "their ends");
}

/* ---- claims ---------------------------------------------------------------------------------- */

SL_TEST(who_is_canceled_leaves_a_derivation_behind)
{
    struct asking first;
    ask(&first, "p");
    await_begun(1);
    sl_cancel_raise(first.cancel, 0);
    end(&first);
    ck_assert_ptr_null(first.key);
    ck_assert_int_eq(first.err.kind, SL_E_CANCELED);
    ck_assert_uint_eq(sl_counter_get(&library.ended), 0);
}

/* Deferred: the thread that makes the key is the keys' own. */
SL_TEST(keys_are_freed_while_one_is_derived)
{
    struct sl_keys *keys = sl_keys_from_passphrase("p", 1, NULL);
    sl_keys_defer(keys);
    ck_assert_ptr_nonnull(sl_keys_find(keys, &kdf, NULL));
    ck_assert_int_eq(sl_keys_begin(keys, NULL), 0);
    await_begun(1);
    sl_keys_free(keys);
    ck_assert_uint_eq(sl_counter_get(&library.ended), 0);
}

/* Else a row of canceled loads would take the memory of them all. */
SL_TEST(no_other_begins_while_one_is_left_behind)
{
    struct asking first, second, third;
    uint8_t expected[SL_KEY_BYTES];
    ask(&first, "p");
    await_begun(1);
    sl_cancel_raise(first.cancel, 0);
    end(&first);
    ask(&second, "q");
    ask(&third, "r");
    sl_cancel_raise(third.cancel, 0); /* it waits for the first, or is about to */
    end(&third);
    ck_assert_int_eq(third.err.kind, SL_E_CANCELED);
    ck_assert_uint_eq(sl_counter_get(&library.begun), 1);
    atomic_store(&library.gated, false);
    pthread_join(second.thread, NULL);
    memset(expected, kdf.salt[0] + 'q', sizeof(expected));
    ck_assert_mem_eq(second.key, expected, sizeof(expected));
    ck_assert_uint_eq(sl_counter_get(&library.begun), 2);
    sl_keys_free(second.keys);
    sl_cancel_free(second.cancel);
}

/* What the parent left behind is none of its. */
SL_TEST(a_child_derives_at_once)
{
    struct asking first;
    int status;
    sl_fork_guard_begin();
    ask(&first, "p");
    await_begun(1);
    sl_cancel_raise(first.cancel, 0);
    end(&first);
    pid_t child = fork();
    if (child == 0) {
        struct sl_keys *keys = sl_keys_from_passphrase("q", 1, NULL);
        atomic_store(&library.gated, false);
        _exit(sl_keys_find(keys, &kdf, NULL) ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
}

/* Its end is that of one reader; the keys are those of all. */
static void *find_canceled(void *arg)
{
    struct asking *asking = arg;
    sl_thread_cancel_set(asking->cancel);
    asking->key = sl_keys_find(asking->keys, &kdf, &asking->err);
    return NULL;
}

SL_TEST(a_key_whose_maker_was_canceled_is_made_by_who_waits)
{
    uint8_t expected[SL_KEY_BYTES];
    struct sl_keys *keys = sl_keys_from_passphrase("p", 1, NULL);
    struct asking first = {.keys = keys, .cancel = sl_cancel_new(NULL), .err = SL_ERR_INIT};
    struct asking second = {.keys = keys, .err = SL_ERR_INIT};
    ck_assert_int_eq(pthread_create(&first.thread, NULL, find_canceled, &first), 0);
    await_begun(1);
    ck_assert_int_eq(pthread_create(&second.thread, NULL, find, &second), 0);
    sl_cancel_raise(first.cancel, 0);
    pthread_join(first.thread, NULL);
    ck_assert_int_eq(first.err.kind, SL_E_CANCELED);
    atomic_store(&library.gated, false);
    pthread_join(second.thread, NULL);
    ck_assert_msg(second.key != NULL, "%s", second.err.message);
    memset(expected, kdf.salt[0] + 'p', sizeof(expected));
    ck_assert_mem_eq(second.key, expected, sizeof(expected));
    sl_keys_free(keys);
    sl_cancel_free(first.cancel);
}

static void *open_secret(void *arg)
{
    struct asking *asking = arg;
    struct sl_minisign_secret secret;
    static const char text[] =
        "untrusted comment: minisign encrypted secret key\n"
        "RWRTY0IyAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAACAAAAAAAAAABAAAAAAAAA"
        "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
        "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n";
    sl_minisign_secret_parse(text, strlen(text), "p", asking->cancel, &secret, &asking->err);
    return NULL;
}

SL_TEST(the_password_of_a_secret_key_too)
{
    struct asking asking = {.cancel = sl_cancel_new(NULL), .err = SL_ERR_INIT};
    ck_assert_int_eq(pthread_create(&asking.thread, NULL, open_secret, &asking), 0);
    await_begun(1);
    sl_cancel_raise(asking.cancel, 0);
    pthread_join(asking.thread, NULL);
    ck_assert_int_eq(asking.err.kind, SL_E_CANCELED);
    sl_cancel_free(asking.cancel);
}

SL_CASE(.setup = set_up, .teardown = tear_down)

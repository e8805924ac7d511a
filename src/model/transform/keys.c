/*
 * The passphrase or key lies in pages for secrets, each derived key in others. Files are read
 * straight into such pages, past every buffer of ours or of libc.
 *
 * How much memory and time a derivation takes is said by the file, so it is held against limits
 * before anything is allocated. Derivations queue up and one thread at a time makes them, so that
 * there is never memory for more than one: whoever wants a key makes what is wanted or waits.
 */
#include "keys.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sodium.h>
#include <string.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include "derive.h"
#include "log.h"
#include "secret_pages.h"
#include "thread_cancel.h"

enum { PASSPHRASE_BYTES_MAX = 64 * 1024 };

struct derived {
    struct derived *next;
    struct sl_kdf kdf;
    uint8_t *key; /* a secret */
    enum { WANTED, MADE, FAILED } state;
};

struct sl_keys {
    uint8_t *secret; /* the key, or the passphrase */
    size_t bytes;
    bool passphrase, deferred;
    struct sl_cancel *cancel; /* may be NULL */
    pthread_t thread;         /* of whoever calls sl_keys_begin() */
    bool joinable;
    struct sl_counter unwanted; /* all of them */
    pthread_mutex_t lock;
    struct {
        struct derived *derived;
        struct sl_err failure; /* of one that is FAILED */
        bool busy;             /* somebody makes the wanted ones */
        uint64_t work;         /* of all: passes over memory, in bytes */
        pthread_cond_t rested; /* no longer busy */
    } locked;
};

static struct sl_keys *keys_new(size_t bytes, bool passphrase, struct sl_err *err)
{
    if (sl_crypt_init(err) < 0)
        return NULL;
    SL_AUTO(sl_keys) keys = sl_alloc(sizeof(*keys), err);
    if (!keys)
        return NULL;
    pthread_mutex_init(&keys->lock, NULL);
    sl_thread_cancel_cond_init(&keys->locked.rested);
    keys->bytes = bytes;
    keys->passphrase = passphrase;
    keys->secret = sl_secret_pages_new(bytes, err);
    return keys->secret ? sl_steal(&keys) : NULL;
}

void sl_keys_free(struct sl_keys *keys)
{
    if (!keys)
        return;
    sl_counter_add(&keys->unwanted, 1);
    if (keys->joinable)
        pthread_join(keys->thread, NULL);
    while (keys->locked.derived) {
        struct derived *derived = keys->locked.derived;
        keys->locked.derived = derived->next;
        sl_secret_pages_free(derived->key, SL_KEY_BYTES);
        free(derived);
    }
    sl_secret_pages_free(keys->secret, keys->bytes);
    pthread_cond_destroy(&keys->locked.rested);
    pthread_mutex_destroy(&keys->lock);
    free(keys);
}

struct sl_keys *sl_keys_from_key(const uint8_t key[SL_KEY_BYTES], struct sl_err *err)
{
    struct sl_keys *keys = keys_new(SL_KEY_BYTES, false, err);
    if (keys)
        memcpy(keys->secret, key, SL_KEY_BYTES);
    return keys;
}

struct sl_keys *sl_keys_from_passphrase(const void *passphrase, size_t bytes, struct sl_err *err)
{
    if (bytes < 1 || bytes > PASSPHRASE_BYTES_MAX) {
        sl_fail(err, SL_E_USAGE, "a passphrase of %zu bytes: give 1 to %d", bytes,
                PASSPHRASE_BYTES_MAX);
        return NULL;
    }
    struct sl_keys *keys = keys_new(bytes, true, err);
    if (keys)
        memcpy(keys->secret, passphrase, bytes);
    return keys;
}

bool sl_keys_have_passphrase(const struct sl_keys *keys)
{
    return keys->passphrase;
}

int sl_keys_passphrase(const struct sl_keys *keys, char *text, size_t limit, struct sl_err *err)
{
    if (!keys->passphrase || keys->bytes >= limit || memchr(keys->secret, 0, keys->bytes))
        return sl_fail(err, SL_E_USAGE, "a passphrase of at most %zu bytes without NULs is needed",
                       limit - 1);
    memcpy(text, keys->secret, keys->bytes);
    text[keys->bytes] = 0;
    return 0;
}

/* ---- files ----------------------------------------------------------------------------------- */

static int open_secret(const char *path, const char *what, struct sl_err *err)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0 || fstat(fd, &status) < 0) {
        int reason = errno;
        if (fd >= 0)
            close(fd);
        return sl_fail_errno(err, reason == ENOENT ? SL_E_NOT_FOUND : SL_E_AUTH, reason,
                             "cannot read the %s file '%s'", what, path);
    }
    if (S_ISREG(status.st_mode) && status.st_mode & S_IROTH)
        sl_log(SL_LOG_WARN,
               "all users of this machine can read the %s file '%s': run chmod 600 on it", what,
               path);
    return fd;
}

/* At most `limit` bytes; the number, or -1. */
static ssize_t read_secret(int fd, const char *path, const char *what, uint8_t *secret,
                           size_t limit, struct sl_err *err)
{
    size_t used = 0;
    while (used < limit) {
        ssize_t got = read(fd, secret + used, limit - used);
        if (got < 0 && errno == EINTR)
            return sl_fail(err, SL_E_CANCELED, "canceled while reading the %s file '%s'", what,
                           path);
        if (got < 0)
            return sl_fail_errno(err, SL_E_AUTH, errno, "cannot read the %s file '%s'", what, path);
        if (got == 0)
            break;
        used += (size_t)got;
    }
    return (ssize_t)used;
}

static struct sl_keys *read_key(const char *path, struct sl_err *err)
{
    static const char what[] = "key";
    sl_autoclose int fd = open_secret(path, what, err);
    if (fd < 0)
        return NULL;
    uint8_t *key = sl_secret_pages_new(SL_KEY_BYTES, err);
    ssize_t got = key ? read_secret(fd, path, what, key, SL_KEY_BYTES + 1, err) : -1;
    if (got >= 0 && got != SL_KEY_BYTES)
        sl_fail(err, SL_E_USAGE,
                "the key file '%s' has %s%zd bytes, a key is exactly %d raw ones: `sluice keygen "
                "FILE` makes one; a passphrase goes into --passphrase-file",
                path, got > SL_KEY_BYTES ? "at least " : "", got, SL_KEY_BYTES);
    struct sl_keys *keys = got == SL_KEY_BYTES ? sl_keys_from_key(key, err) : NULL;
    sl_secret_pages_free(key, SL_KEY_BYTES);
    return keys;
}

/* How much of it is the passphrase, without the end of a line; -1 if none is. */
static ssize_t trim(const uint8_t *text, size_t bytes, const char *from, struct sl_err *err)
{
    if (bytes > 0 && text[bytes - 1] == '\n')
        bytes -= bytes > 1 && text[bytes - 2] == '\r' ? 2 : 1;
    if (bytes == 0)
        return sl_fail(err, SL_E_USAGE, "the passphrase from '%s' is empty", from);
    if (bytes > PASSPHRASE_BYTES_MAX)
        return sl_fail(err, SL_E_USAGE, "the passphrase from '%s' is longer than %d bytes", from,
                       PASSPHRASE_BYTES_MAX);
    return (ssize_t)bytes;
}

/* ---- the terminal ---------------------------------------------------------------------------- */

/* A line without echo. A signal ends it, and none is missed: all are blocked but in ppoll(). */
static ssize_t read_line(int tty, const sigset_t *open, uint8_t *secret, size_t limit,
                         struct sl_err *err)
{
    size_t used = 0;
    while (used < limit && (used == 0 || secret[used - 1] != '\n')) {
        struct pollfd wait = {tty, POLLIN, 0};
        ssize_t got = ppoll(&wait, 1, NULL, open) < 0 ? -1 : read(tty, secret + used, limit - used);
        if (got < 0 && errno == EINTR)
            return sl_fail(err, SL_E_CANCELED, "canceled while asking for the passphrase");
        if (got < 0)
            return sl_fail_errno(err, SL_E_AUTH, errno, "cannot read the passphrase");
        if (got == 0)
            break;
        used += (size_t)got;
    }
    return (ssize_t)used;
}

static ssize_t ask_unbroken(int tty, const sigset_t *open, uint8_t *secret, size_t limit,
                            struct sl_err *err)
{
    static const char prompt[] = "passphrase: ", newline[] = "\n";
    struct termios old, silent;
    if (tcgetattr(tty, &old) < 0)
        return sl_fail_errno(err, SL_E_AUTH, errno, "cannot ask for the passphrase at /dev/tty");
    silent = old;
    silent.c_lflag &= ~(tcflag_t)(ECHO | ECHONL);
    silent.c_lflag |= ICANON;
    if (write(tty, prompt, sizeof(prompt) - 1) < 0 || tcsetattr(tty, TCSAFLUSH, &silent) < 0)
        return sl_fail_errno(err, SL_E_AUTH, errno, "cannot ask for the passphrase at /dev/tty");
    ssize_t got = read_line(tty, open, secret, limit, err);
    tcsetattr(tty, TCSAFLUSH, &old);
    (void)!write(tty, newline, 1);
    return got;
}

/* A signal that comes after the question waits until somebody looks for it: between the terminal's
 * change and the reading it would be handled and forgotten. */
static ssize_t ask(int tty, uint8_t *secret, size_t limit, struct sl_err *err)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    ssize_t got = ask_unbroken(tty, &before, secret, limit, err);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return got;
}

static struct sl_keys *read_passphrase(const char *path, struct sl_err *err)
{
    enum { LIMIT = PASSPHRASE_BYTES_MAX + 3 }; /* a line's end, and one too many */
    bool asked = strcmp(path, "-") == 0;
    sl_autoclose int fd = asked ? open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY)
                                : open_secret(path, "passphrase", err);
    if (fd < 0 && asked)
        sl_fail(err, SL_E_USAGE,
                "no terminal to ask for the passphrase: write it into a file and give "
                "--passphrase-file FILE");
    if (fd < 0)
        return NULL;
    uint8_t *text = sl_secret_pages_new(LIMIT, err);
    ssize_t used = -1;
    if (text)
        used = asked ? ask(fd, text, LIMIT, err)
                     : read_secret(fd, path, "passphrase", text, LIMIT, err);
    if (used >= 0)
        used = trim(text, (size_t)used, asked ? "the terminal" : path, err);
    struct sl_keys *keys = used > 0 ? sl_keys_from_passphrase(text, (size_t)used, err) : NULL;
    sl_secret_pages_free(text, LIMIT);
    return keys;
}

int sl_keys_open(const char *key_file, const char *passphrase_file, struct sl_keys **keys,
                 struct sl_err *err)
{
    bool key = key_file && *key_file, passphrase = passphrase_file && *passphrase_file;
    *keys = NULL;
    if (key && passphrase)
        return sl_fail(err, SL_E_USAGE, "give a key file or a passphrase file, not both");
    if (!key && !passphrase)
        return 0;
    *keys = key ? read_key(key_file, err) : read_passphrase(passphrase_file, err);
    return *keys ? 0 : -1;
}

/* ---- derivation ------------------------------------------------------------------------------ */

static int kdf_fail(const char *why, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_FORMAT, "E_KDF", "%s", why);
}

static int check_kdf(const struct sl_kdf *kdf, struct sl_err *err)
{
    if (!kdf)
        return kdf_fail("it was not encrypted with a passphrase: give its key with --key-file",
                        err);
    if (kdf->alg != crypto_pwhash_ALG_ARGON2ID13)
        return kdf_fail("its key is derived by an algorithm other than Argon2id", err);
    if (kdf->salt_bytes != SL_SALT_BYTES)
        return kdf_fail("the salt of its key derivation is not 16 bytes long", err);
    if (kdf->opslimit < crypto_pwhash_argon2id_OPSLIMIT_MIN ||
        kdf->memlimit < crypto_pwhash_argon2id_MEMLIMIT_MIN)
        return kdf_fail("its key derivation is weaker than Argon2id can be", err);
    if (kdf->opslimit > SL_KDF_OPSLIMIT_MAX || kdf->memlimit > SL_KDF_MEMLIMIT_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "E_KDF",
                            "its key derivation asks for %" PRIu64 " passes over %" PRIu64
                            " bytes, limits are %d and %" PRIu64,
                            kdf->opslimit, kdf->memlimit, SL_KDF_OPSLIMIT_MAX, SL_KDF_MEMLIMIT_MAX);
    return 0;
}

static bool same_kdf(const struct sl_kdf *a, const struct sl_kdf *b)
{
    return a->opslimit == b->opslimit && a->memlimit == b->memlimit && a->alg == b->alg &&
           memcmp(a->salt, b->salt, SL_SALT_BYTES) == 0;
}

static int derive(const struct sl_keys *keys, const struct sl_kdf *kdf, uint8_t key[SL_KEY_BYTES],
                  const struct sl_counter *unwanted, struct sl_err *err)
{
    struct sl_derivation derivation = {.kind = SL_DERIVE_ARGON2ID,
                                       .passphrase = keys->secret,
                                       .passphrase_bytes = keys->bytes,
                                       .opslimit = kdf->opslimit,
                                       .memlimit = kdf->memlimit};
    memcpy(derivation.salt, kdf->salt, SL_SALT_BYTES);
    return sl_derive(&derivation, key, SL_KEY_BYTES, keys->cancel, unwanted, err);
}

static struct derived *find_wanted(const struct sl_keys *keys)
{
    struct derived *derived = keys->locked.derived;
    while (derived && derived->state != WANTED)
        derived = derived->next;
    return derived;
}

/* One derivation after another until none is wanted. -1 with SL_E_CANCELED: whoever wants the rest
 * makes it. */
static int derive_all(struct sl_keys *keys, const struct sl_counter *unwanted, struct sl_err *err)
{
    struct derived *wanted;
    struct sl_err why = SL_ERR_INIT;
    SL_LOCKED(&keys->lock);
    while (why.kind != SL_E_CANCELED && (wanted = find_wanted(keys))) {
        pthread_mutex_unlock(&keys->lock);
        int done = derive(keys, &wanted->kdf, wanted->key, unwanted, &why);
        pthread_mutex_lock(&keys->lock);
        if (done == 0)
            wanted->state = MADE;
        else if (why.kind != SL_E_CANCELED) {
            wanted->state = FAILED;
            keys->locked.failure = why;
        }
    }
    keys->locked.busy = false;
    pthread_cond_broadcast(&keys->locked.rested);
    if (why.kind != SL_E_CANCELED)
        return 0;
    if (err)
        *err = why;
    return -1;
}

static void *run(void *arg)
{
    struct sl_keys *keys = arg;
    derive_all(keys, &keys->unwanted, NULL);
    return NULL;
}

/* Is there something to do that nobody does? Then it is the caller's. */
static bool take_over(struct sl_keys *keys)
{
    SL_LOCKED(&keys->lock);
    if (keys->locked.busy || !find_wanted(keys))
        return false;
    keys->locked.busy = true;
    return true;
}

int sl_keys_wait(struct sl_keys *keys, struct sl_err *err)
{
    SL_LOCKED(&keys->lock);
    while (keys->locked.busy)
        if (sl_thread_cancel_wait(&keys->locked.rested, &keys->lock, keys->cancel, err) < 0)
            return -1;
    if (!keys->locked.failure.kind)
        return sl_cancel_check(keys->cancel, err);
    if (err)
        *err = keys->locked.failure;
    return -1;
}

static struct derived *find_derived(const struct sl_keys *keys, const struct sl_kdf *kdf)
{
    struct derived *derived = keys->locked.derived;
    while (derived && !same_kdf(&derived->kdf, kdf))
        derived = derived->next;
    return derived;
}

static struct derived *add_wanted(struct sl_keys *keys, const struct sl_kdf *kdf,
                                  struct sl_err *err)
{
    uint64_t work = kdf->opslimit * kdf->memlimit; /* both were checked */
    if (work > SL_KDF_WORK_MAX - keys->locked.work) {
        sl_fail_code(err, SL_E_FORMAT, "E_KDF",
                     "the key derivations of its files ask for more than %" PRIu64
                     " bytes of memory to be passed over, all together: encrypt them with a key",
                     SL_KDF_WORK_MAX);
        return NULL;
    }
    struct derived *derived = sl_alloc(sizeof(*derived), err);
    if (!derived)
        return NULL;
    derived->kdf = *kdf;
    derived->key = sl_secret_pages_new(SL_KEY_BYTES, err);
    if (!derived->key) {
        free(derived);
        return NULL;
    }
    derived->next = keys->locked.derived;
    keys->locked.derived = derived;
    keys->locked.work += work;
    return derived;
}

/* Known, or wanted from now on. */
static struct derived *find_or_want(struct sl_keys *keys, const struct sl_kdf *kdf,
                                    struct sl_err *err)
{
    SL_LOCKED(&keys->lock);
    struct derived *derived = find_derived(keys, kdf);
    if (!derived)
        derived = add_wanted(keys, kdf, err);
    if (derived && derived->state == FAILED) {
        derived->state = WANTED;
        keys->locked.failure = (struct sl_err)SL_ERR_INIT;
    }
    return derived;
}

static bool is_made(struct sl_keys *keys, const struct derived *derived)
{
    SL_LOCKED(&keys->lock);
    return derived->state == MADE;
}

const uint8_t *sl_keys_find(struct sl_keys *keys, const struct sl_kdf *kdf, struct sl_err *err)
{
    if (!keys->passphrase)
        return keys->secret;
    if (check_kdf(kdf, err) < 0)
        return NULL;
    struct derived *derived = find_or_want(keys, kdf, err);
    if (!derived)
        return NULL;
    while (!keys->deferred && !is_made(keys, derived))
        if ((take_over(keys) && derive_all(keys, NULL, err) < 0) || sl_keys_wait(keys, err) < 0)
            return NULL;
    return derived->key;
}

void sl_keys_heed(struct sl_keys *keys, struct sl_cancel *cancel)
{
    keys->cancel = cancel;
}

void sl_keys_defer(struct sl_keys *keys)
{
    keys->deferred = true;
}

int sl_keys_begin(struct sl_keys *keys, struct sl_err *err)
{
    if (!take_over(keys))
        return 0;
    if (keys->joinable)
        pthread_join(keys->thread, NULL); /* it has nothing more to do */
    keys->joinable = sl_thread_start(&keys->thread, "keys", run, keys, err) == 0;
    if (keys->joinable)
        return 0;
    SL_LOCKED(&keys->lock);
    keys->locked.busy = false;
    pthread_cond_broadcast(&keys->locked.rested);
    return -1;
}

bool sl_keys_busy(struct sl_keys *keys)
{
    SL_LOCKED(&keys->lock);
    return keys->locked.busy;
}

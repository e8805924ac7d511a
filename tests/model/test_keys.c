/* Keys and passphrases from files, memory and a terminal; derivation, its limits and its cache. */
#include "await.h"
#include "keys.h"

#include <check.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "buf.h"
#include "claims.h"
#include "fake_clock.h"
#include "golden.h"
#include "scratch.h"
#include "thread.h"

/* The vector of the format's specification, section 11.3. */
static const char vector_passphrase[] = "correct horse b\xc3\xa4ttery staple";
static const char vector_key[] = "994fdea63110b88ce0363b0fca7d1855de4dd36fe6fb06ec8a5bed77de86b9ae";
static const struct sl_kdf vector_kdf = {
    .opslimit = 1,
    .memlimit = 8192,
    .alg = 2,
    .salt_bytes = 16,
    .salt = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
};

static char folder[SL_SCRATCH_PATH_BYTES], path[300];
static int folder_fd;

static void set_up(void)
{
    folder_fd = sl_scratch_open(folder);
}

static void tear_down(void)
{
    sl_scratch_close(folder_fd, folder);
}

static const char *file_of(const void *data, size_t bytes)
{
    snprintf(path, sizeof(path), "%s/secret", folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, data, bytes), (ssize_t)bytes);
    close(fd);
    return path;
}

static void expect_key(struct sl_keys *keys, const struct sl_kdf *kdf, const char *hex)
{
    char actual[65];
    struct sl_err err = SL_ERR_INIT;
    const uint8_t *key = sl_keys_find(keys, kdf, &err);
    ck_assert_msg(key != NULL, "%s", err.message);
    sl_hex(key, SL_KEY_BYTES, actual);
    ck_assert_str_eq(actual, hex);
}

SL_TEST(a_key_file_holds_32_raw_bytes)
{
    uint8_t raw[34];
    char hex[65];
    for (unsigned i = 0; i < sizeof(raw); i++)
        raw[i] = (uint8_t)(i * 7 + 10); /* holds '\n' */
    sl_hex(raw, 32, hex);
    struct sl_keys *keys;
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(sl_keys_open(file_of(raw, 32), "", &keys, &err), 0);
    ck_assert(!sl_keys_have_passphrase(keys));
    expect_key(keys, NULL, hex);
    expect_key(keys, &vector_kdf, hex); /* an exact key ignores how others derive it */
    sl_keys_free(keys);
    for (size_t bytes = 0; bytes <= sizeof(raw); bytes++) {
        if (bytes == 32)
            continue;
        ck_assert_int_lt(sl_keys_open(file_of(raw, bytes), NULL, &keys, &err), 0);
        ck_assert_int_eq(err.kind, SL_E_USAGE);
        ck_assert(strstr(err.message, "keygen") != NULL);
        ck_assert_ptr_null(keys);
    }
}

static void expect_passphrase(const void *text, size_t bytes, size_t used)
{
    struct sl_keys *keys, *same = sl_keys_from_passphrase(text, used, NULL);
    struct sl_err err = SL_ERR_INIT;
    char hex[65];
    ck_assert_msg(sl_keys_open(NULL, file_of(text, bytes), &keys, &err) == 0, "%s", err.message);
    ck_assert(sl_keys_have_passphrase(keys));
    sl_hex(sl_keys_find(same, &vector_kdf, NULL), SL_KEY_BYTES, hex);
    expect_key(keys, &vector_kdf, hex);
    sl_keys_free(keys);
    sl_keys_free(same);
}

SL_TEST(a_passphrase_file_is_taken_without_one_line_end)
{
    expect_passphrase("abc", 3, 3);
    expect_passphrase("abc\n", 4, 3);
    expect_passphrase("abc\r\n", 5, 3);
    expect_passphrase("abc\n\n", 5, 4);
    expect_passphrase("abc\r", 4, 4);
    expect_passphrase("a\0b\n", 4, 3);
    expect_passphrase("\n\n", 2, 1);
    static char longest[65536 + 4];
    memset(longest, 'x', sizeof(longest));
    expect_passphrase(longest, 65536, 65536);
    memcpy(longest + 65536, "\r\n", 2);
    expect_passphrase(longest, 65538, 65536);
    struct sl_keys *keys;
    struct sl_err err = SL_ERR_INIT;
    static const size_t refused[] = {0, 65537, 65539, 65540};
    memset(longest, 'x', sizeof(longest));
    for (unsigned i = 0; i < SL_COUNT(refused); i++) {
        ck_assert_int_lt(sl_keys_open(NULL, file_of(longest, refused[i]), &keys, &err), 0);
        ck_assert_int_eq(err.kind, SL_E_USAGE);
    }
    ck_assert_int_lt(sl_keys_open(NULL, file_of("\n", 1), &keys, &err), 0);
    ck_assert_int_lt(sl_keys_open(NULL, file_of("\r\n", 2), &keys, &err), 0);
}

SL_TEST(files_that_cannot_be_read_are_told_apart)
{
    struct sl_keys *keys;
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_lt(sl_keys_open("/no/such/key", NULL, &keys, &err), 0);
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
    ck_assert_int_lt(sl_keys_open(NULL, "/no/such/passphrase", &keys, &err), 0);
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
    ck_assert_int_lt(sl_keys_open(folder, NULL, &keys, &err), 0);
    ck_assert_int_eq(err.kind, SL_E_AUTH);
    ck_assert_int_lt(sl_keys_open("a", "b", &keys, &err), 0);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_int_eq(sl_keys_open(NULL, NULL, &keys, &err), 0);
    ck_assert_ptr_null(keys);
    ck_assert_int_eq(sl_keys_open("", "", &keys, &err), 0);
    ck_assert_ptr_null(keys);
}

SL_TEST(the_vector_of_the_specification_comes_out)
{
    struct sl_keys *keys =
        sl_keys_from_passphrase(vector_passphrase, sizeof(vector_passphrase) - 1, NULL);
    expect_key(keys, &vector_kdf, vector_key);
    sl_keys_free(keys);
}

SL_TEST(derivations_are_made_once)
{
    struct sl_keys *keys = sl_keys_from_passphrase("p", 1, NULL);
    struct sl_kdf other = vector_kdf;
    other.salt[15]++;
    const uint8_t *first = sl_keys_find(keys, &vector_kdf, NULL);
    const uint8_t *second = sl_keys_find(keys, &other, NULL);
    ck_assert(memcmp(first, second, SL_KEY_BYTES) != 0);
    ck_assert_ptr_eq(sl_keys_find(keys, &vector_kdf, NULL), first);
    ck_assert_ptr_eq(sl_keys_find(keys, &other, NULL), second);
    other.opslimit++;
    ck_assert_ptr_ne(sl_keys_find(keys, &other, NULL), second);
    sl_keys_free(keys);
}

static void expect_refused(struct sl_keys *keys, const struct sl_kdf *kdf)
{
    struct sl_err err = SL_ERR_INIT;
    ck_assert_ptr_null(sl_keys_find(keys, kdf, &err));
    ck_assert_int_eq(err.kind, SL_E_FORMAT);
    ck_assert_str_eq(err.code, "E_KDF");
}

SL_TEST(work_beyond_the_limits_is_refused_before_it_begins)
{
    struct sl_keys *keys = sl_keys_from_passphrase("p", 1, NULL);
    expect_refused(keys, NULL);
    struct sl_kdf kdf = vector_kdf;
    static const uint64_t ops[] = {0, SL_KDF_OPSLIMIT_MAX + 1, UINT64_MAX, UINT64_C(1) << 32},
                          memory[] = {0, 8191, SL_KDF_MEMLIMIT_MAX + 1, UINT64_MAX};
    for (unsigned i = 0; i < 4; i++) {
        kdf = vector_kdf;
        kdf.opslimit = ops[i];
        expect_refused(keys, &kdf);
        kdf = vector_kdf;
        kdf.memlimit = memory[i];
        expect_refused(keys, &kdf);
    }
    static const int32_t algs[] = {0, 1, 3, -1, INT32_MAX};
    for (unsigned i = 0; i < SL_COUNT(algs); i++) {
        kdf = vector_kdf;
        kdf.alg = algs[i];
        expect_refused(keys, &kdf);
    }
    static const uint16_t salts[] = {0, 15, 17, 65535};
    for (unsigned i = 0; i < SL_COUNT(salts); i++) {
        kdf = vector_kdf;
        kdf.salt_bytes = salts[i];
        expect_refused(keys, &kdf);
    }
    kdf = vector_kdf;
    kdf.opslimit = SL_KDF_OPSLIMIT_MAX; /* at the limit; the other limit would take 2 GiB */
    ck_assert_ptr_nonnull(sl_keys_find(keys, &kdf, NULL));
    sl_keys_free(keys);
}

/* A file has few derivations, but a model may have many files. */
SL_TEST(what_all_files_ask_for_together_is_limited)
{
    enum { WORST = 32 };
    struct sl_err err = SL_ERR_INIT;
    struct sl_keys *keys = sl_keys_from_passphrase("p", 1, NULL);
    struct sl_kdf kdf = vector_kdf;
    kdf.opslimit = SL_KDF_OPSLIMIT_MAX;
    kdf.memlimit = SL_KDF_MEMLIMIT_MAX;
    sl_keys_defer(keys);
    for (unsigned i = 0; i < WORST; i++) {
        kdf.salt[0] = (uint8_t)i;
        ck_assert_ptr_nonnull(sl_keys_find(keys, &kdf, &err));
    }
    ck_assert_ptr_nonnull(sl_keys_find(keys, &kdf, &err)); /* that one is wanted already */
    kdf.salt[0] = WORST;
    ck_assert_ptr_null(sl_keys_find(keys, &kdf, &err));
    ck_assert_str_eq(err.code, "E_KDF");
    sl_keys_free(keys);
}

/* At once, or deferred. */
SL_TEST_LOOP(keys_that_nobody_waits_for_any_more_are_not_made, 0, 2)
{
    static const uint8_t nothing[SL_KEY_BYTES];
    struct sl_err err = SL_ERR_INIT;
    struct sl_cancel *cancel = sl_cancel_new(NULL);
    struct sl_keys *keys = sl_keys_from_passphrase("p", 1, NULL);
    sl_cancel_raise(cancel, 0);
    sl_keys_heed(keys, cancel);
    if (_i)
        sl_keys_defer(keys);
    const uint8_t *key = sl_keys_find(keys, &vector_kdf, &err);
    ck_assert_int_eq(key != NULL, _i);
    ck_assert(!_i || (sl_keys_begin(keys, NULL) == 0 && sl_keys_wait(keys, &err) < 0));
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
    while (sl_keys_busy(keys))
        ;
    ck_assert(!_i || memcmp(key, nothing, SL_KEY_BYTES) == 0);
    sl_keys_free(keys);
    sl_cancel_free(cancel);
}

static void *find_many(void *arg)
{
    struct sl_kdf kdf = vector_kdf;
    uintptr_t sum = 0;
    for (unsigned i = 0; i < 40; i++) {
        kdf.salt[0] = (uint8_t)(i % 4);
        sum += (uintptr_t)sl_keys_find(arg, &kdf, NULL);
    }
    return (void *)sum; /* NOLINT: a number to compare */
}

SL_TEST(threads_find_the_same_keys)
{
    struct sl_keys *keys = sl_keys_from_passphrase("p", 1, NULL);
    pthread_t threads[8];
    void *sums[8];
    for (unsigned i = 0; i < 8; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, find_many, keys), 0);
    for (unsigned i = 0; i < 8; i++)
        pthread_join(threads[i], &sums[i]);
    for (unsigned i = 1; i < 8; i++)
        ck_assert_ptr_eq(sums[i], sums[0]);
    sl_keys_free(keys);
}

static int open_and_find(void *arg, struct sl_err *err)
{
    struct sl_keys *keys;
    if (sl_keys_open(NULL, arg, &keys, err) < 0)
        return -1;
    int result = sl_keys_find(keys, &vector_kdf, err) ? 0 : -1;
    sl_keys_free(keys);
    return result;
}

SL_TEST(deferred_keys_are_there_after_waiting)
{
    struct sl_keys *keys = sl_keys_from_passphrase("p", 1, NULL);
    uint8_t expected[SL_KEY_BYTES];
    memcpy(expected, sl_keys_find(keys, &vector_kdf, NULL), SL_KEY_BYTES);
    sl_keys_free(keys);
    keys = sl_keys_from_passphrase("p", 1, NULL);
    sl_keys_defer(keys);
    const uint8_t *key = sl_keys_find(keys, &vector_kdf, NULL);
    ck_assert(!sl_keys_busy(keys)); /* not before it is begun */
    ck_assert_int_eq(sl_keys_wait(keys, NULL), 0);
    ck_assert(memcmp(key, expected, SL_KEY_BYTES) != 0);
    ck_assert_int_eq(sl_keys_begin(keys, NULL), 0);
    ck_assert_int_eq(sl_keys_begin(keys, NULL), 0);
    ck_assert_int_eq(sl_keys_wait(keys, NULL), 0);
    ck_assert(!sl_keys_busy(keys));
    ck_assert_mem_eq(key, expected, SL_KEY_BYTES);
    sl_keys_free(keys);
}

/* Waits until threads that were left behind are done with what they were given. */
static void expect_derivable(void)
{
    struct sl_keys *keys = sl_keys_from_passphrase("p", 1, NULL);
    ck_assert_ptr_nonnull(sl_keys_find(keys, &vector_kdf, NULL));
    sl_keys_free(keys);
}

SL_TEST(keys_may_be_freed_while_one_is_derived)
{
    struct sl_keys *keys = sl_keys_from_passphrase("p", 1, NULL);
    sl_keys_defer(keys);
    ck_assert_ptr_nonnull(sl_keys_find(keys, &vector_kdf, NULL));
    ck_assert_int_eq(sl_keys_begin(keys, NULL), 0);
    sl_keys_free(keys);
    expect_derivable();
}

/* Now one ends as it is left, in some of the rounds: nobody looks before whether it is wanted. */
SL_TEST(a_derivation_that_ends_as_it_is_left_holds_up_no_other)
{
    enum { ROUNDS = 100 };
    fake_clock_hold();
    for (int i = 0; i < ROUNDS; i++) {
        struct sl_keys *keys = sl_keys_from_passphrase("p", 1, NULL);
        sl_keys_defer(keys);
        ck_assert_ptr_nonnull(sl_keys_find(keys, &vector_kdf, NULL));
        ck_assert_int_eq(sl_keys_begin(keys, NULL), 0);
        for (int turns = 0; turns < i; turns++)
            sched_yield();
        sl_keys_free(keys);
    }
    fake_clock_release();
    expect_derivable();
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they need address space */
SL_TEST(a_derivation_without_memory_is_told_and_may_be_tried_again)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_keys *keys = sl_keys_from_passphrase("p", 1, NULL);
    struct sl_kdf large = vector_kdf;
    large.memlimit = 1 << 30;
    large.opslimit = 1;
    struct rlimit old, little;
    getrlimit(RLIMIT_AS, &old);
    little = (struct rlimit){512 << 20, old.rlim_max};
    setrlimit(RLIMIT_AS, &little);
    const uint8_t *key = sl_keys_find(keys, &large, &err);
    setrlimit(RLIMIT_AS, &old);
    ck_assert_ptr_null(key);
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    ck_assert_ptr_nonnull(strstr(err.message, "1024 MiB"));
    ck_assert_ptr_nonnull(sl_keys_find(keys, &large, &err));
    sl_keys_free(keys);
}
#endif

SL_TEST(every_failing_allocation_is_reported)
{
    file_of("abc\n", 4);
    ck_assert_uint_ge(golden_each_allocation(open_and_find, path), 5);
}

/* ---- a terminal ------------------------------------------------------------------------------ */

/* Type `typed` (NULL: nothing) when the question has come; what the terminal showed. The child's
 * status. */
static int at_terminal(const char *typed, char *shown, size_t room, void (*child)(void))
{
    int master;
    pid_t pid = forkpty(&master, NULL, NULL, NULL);
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        child();
        _exit(99);
    }
    size_t used = 0;
    bool told = false;
    for (;;) {
        ssize_t got = read(master, shown + used, room - 1 - used);
        if (got <= 0)
            break; /* EIO: the child has ended */
        used += (size_t)got;
        shown[used] = 0;
        struct termios modes;
        if (typed && !told && strchr(shown, ':')) {
            SL_AWAIT(tcgetattr(master, &modes) < 0 || !(modes.c_lflag & ECHO), "a silent prompt");
            ck_assert_int_eq(write(master, typed, strlen(typed)), (ssize_t)strlen(typed));
            told = true;
        }
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    close(master);
    return status;
}

static void ask_child(void)
{
    struct sl_keys *keys;
    struct sl_err err = SL_ERR_INIT;
    struct termios modes;
    char hex[65];
    if (sl_keys_open(NULL, "-", &keys, &err) < 0)
        _exit(err.kind);
    if (tcgetattr(0, &modes) < 0 || !(modes.c_lflag & ECHO))
        _exit(97); /* the terminal must be as it was */
    sl_hex(sl_keys_find(keys, &vector_kdf, NULL), SL_KEY_BYTES, hex);
    _exit(strcmp(hex, vector_key) == 0 ? 0 : 98);
}

SL_TEST(a_terminal_asks_without_echo)
{
    char typed[100], shown[1000] = "";
    snprintf(typed, sizeof(typed), "%s\n", vector_passphrase);
    int status = at_terminal(typed, shown, sizeof(shown), ask_child);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 0);
    ck_assert(strstr(shown, "passphrase:") != NULL);
    ck_assert(strstr(shown, "horse") == NULL);
}

SL_TEST(nothing_typed_is_no_passphrase)
{
    char shown[1000] = "";
    int status = at_terminal("\n", shown, sizeof(shown), ask_child);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), SL_E_USAGE);
}

static void on_interrupt(int number)
{
    (void)number;
}

static bool interrupt_silence;

/* libc's, with a signal that comes when the echo is off and nobody reads yet. */
int tcsetattr(int fd, int actions, const struct termios *modes)
{
    int (*real)(int, int, const struct termios *) =
        (int (*)(int, int, const struct termios *))dlsym(RTLD_NEXT, "tcsetattr");
    int result = real(fd, actions, modes);
    if (interrupt_silence && !(modes->c_lflag & ECHO))
        kill(getpid(), SIGINT);
    return result;
}

static void interrupted_child(void)
{
    struct sigaction action = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &action, NULL);
    ask_child();
}

SL_TEST(a_signal_ends_the_question_and_brings_the_echo_back)
{
    char shown[1000] = "";
    int status = at_terminal("\x03", shown, sizeof(shown), interrupted_child);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), SL_E_CANCELED);
}

static void early_interrupted_child(void)
{
    interrupt_silence = true;
    interrupted_child();
}

SL_TEST(a_signal_between_question_and_reading_is_not_missed)
{
    char shown[1000] = "";
    int status = at_terminal(NULL, shown, sizeof(shown), early_interrupted_child);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), SL_E_CANCELED);
}

SL_TEST(without_a_terminal_nobody_is_asked)
{
    pid_t pid = fork();
    if (pid == 0) {
        struct sl_keys *keys;
        struct sl_err err = SL_ERR_INIT;
        setsid();
        _exit(sl_keys_open(NULL, "-", &keys, &err) < 0 ? err.kind : 0);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(WEXITSTATUS(status), SL_E_USAGE);
}

SL_CASE(.setup = set_up, .teardown = tear_down)

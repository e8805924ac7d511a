/*
 * Claims register themselves before main(), which takes those of the file that the program is
 * called by, sorted by their lines, chooses those that are wanted and gives them to Check.
 */
#include "claims.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mem.h"
#include "option.h"
#include "seed.h"

enum { WANTED_MAX = 64, CLAIMS_MAX = 512, TEXT_BYTES = 4096 };

static struct sl_claim *all, *first; /* of all files; of the file that is run */
static struct sl_claim_file *files;
static const struct sl_claim_case none, *common = &none;
static struct {
    const char *name;
    bool found;
} wanted[WANTED_MAX];
static unsigned wanted_count;
static bool list;

void sl_claim_add(struct sl_claim *claim)
{
    claim->next = all;
    all = claim;
}

void sl_claim_file_add(struct sl_claim_file *file)
{
    file->next = files;
    files = file;
}

/* Is it the source of test_NAME? */
static bool is_of(const char *file, const char *name)
{
    const char *slash = strrchr(file, '/'), *base = slash ? slash + 1 : file;
    size_t bytes = strlen(name);
    return strncmp(base, name, bytes) == 0 && strcmp(base + bytes, ".c") == 0;
}

static void insert(struct sl_claim *claim)
{
    struct sl_claim **at = &first;
    while (*at && (*at)->test->line < claim->test->line)
        at = &(*at)->next;
    claim->next = *at;
    *at = claim;
}

/* first: the claims of that file, in the order of their lines; common: what they share. */
static void take_file(const char *name)
{
    for (struct sl_claim *claim = all, *next; claim; claim = next) {
        next = claim->next;
        if (is_of(claim->test->file, name))
            insert(claim);
    }
    for (const struct sl_claim_file *file = files; file; file = file->next)
        if (is_of(file->file, name))
            common = &file->all;
}

static void want(const char *name)
{
    if (strcmp(name, "--list") == 0)
        list = true;
    else if (*name && wanted_count < WANTED_MAX)
        wanted[wanted_count++].name = name;
}

static void take_arguments(int argc, char **argv)
{
    static char text[TEXT_BYTES];
    char *rest = text, *name;
    const char *environment = getenv("SL_TEST");
    for (int i = 1; i < argc; i++)
        want(argv[i]);
    snprintf(text, sizeof(text), "%s", environment ? environment : "");
    while ((name = strsep(&rest, " ,")))
        want(name);
}

/* By hand as under ctest: Check's own time limit is four seconds. */
static void set_environment(void)
{
    setenv("CK_DEFAULT_TIMEOUT", "60", 0);
    if (access(SL_PROGRAM, X_OK) == 0)
        setenv("SLUICE", SL_PROGRAM, 0);
}

void sl_test_adapts(void)
{
    unsetenv("SLUICE_FIXED");
}

static void pin(void)
{
    setenv("SLUICE_FIXED", "usual", 1);
}

/* A test that wants no environment is pinned like others. */
int __real_clearenv(void);
int __wrap_clearenv(void);
int __wrap_clearenv(void)
{
    bool pinned = getenv("SLUICE_FIXED") != NULL;
    int done = __real_clearenv();
    if (pinned)
        pin();
    return done;
}

/* Check writes a message for each assertion that holds, and its parent moves 8 KiB for each that it
 * reads: a tenth of the time under the address sanitizer. It hears of each place once.
 */
void __real__mark_point(const char *file, int line);
void __wrap__mark_point(const char *file, int line);
void __wrap__mark_point(const char *file, int line)
{
    static _Atomic uintptr_t told[1024]; /* of this claim, which has a process of its own */
    const uintptr_t place = (uintptr_t)file + (uintptr_t)line;
    if (atomic_exchange_explicit(&told[place % SL_COUNT(told)], place, memory_order_relaxed) !=
        place)
        __real__mark_point(file, line);
}

static bool is_wanted(const char *name)
{
    bool result = wanted_count == 0;
    for (unsigned i = 0; i < wanted_count; i++)
        if (strcmp(wanted[i].name, name) == 0)
            result = wanted[i].found = true;
    return result;
}

static size_t prefix(const char *a, const char *b)
{
    size_t bytes = 0;
    while (a[bytes] && a[bytes] == b[bytes])
        bytes++;
    return bytes;
}

static void refuse(const char *name)
{
    const char *names[CLAIMS_MAX] = {NULL};
    unsigned count = 0;
    size_t length = strlen(name), shared = 0;
    for (struct sl_claim *claim = first; claim && count < CLAIMS_MAX; claim = claim->next)
        names[count++] = claim->test->name;
    const char *nearest = sl_nearest(name, names, count);
    fprintf(stderr, "no test is called '%s'%s%s%s\n", name, nearest ? ", did you mean '" : "",
            nearest ? nearest : "", nearest ? "'?" : ", --list names them");
    for (unsigned i = 0; i < count; i++)
        shared = SL_MAX(shared, prefix(names[i], name));
    for (unsigned i = 0; i < count; i++)
        if (strstr(names[i], name) || (shared > length / 2 && prefix(names[i], name) == shared))
            fprintf(stderr, "    %s\n", names[i]);
}

/* Claims of one case follow each other in the file, as a rule; where not, a case comes twice. */
static void choose(Suite *suite)
{
    const struct sl_claim_case *last = NULL;
    TCase *cases = NULL;
    for (const struct sl_claim *claim = first; claim; claim = claim->next) {
        const struct sl_claim_case *of = claim->of ? claim->of : common;
        if (!is_wanted(claim->test->name))
            continue;
        if (of != last) {
            cases = tcase_create("claims");
            tcase_add_checked_fixture(cases, of->adapts ? sl_test_adapts : pin, NULL);
            tcase_add_checked_fixture(cases, of->setup, of->teardown);
            if (of->seconds)
                tcase_set_timeout(cases, of->seconds);
            suite_add_tcase(suite, cases);
            last = of;
        }
        int step = of->starts ? SL_TEST_STARTS_STEP : SL_TEST_STEP;
        if (claim->end - claim->begin < 2 * step)
            step = 1;
        for (int i = claim->begin; i < claim->end; i += step)
            tcase_add_loop_test(cases, claim->test, i, i + 1);
    }
}

static int run(const char *name)
{
    Suite *suite = suite_create(name);
    bool missing = false;
    choose(suite);
    for (unsigned i = 0; i < wanted_count; i++)
        if (!wanted[i].found) {
            refuse(wanted[i].name);
            missing = true;
        }
    SRunner *runner = srunner_create(suite);
    if (!missing)
        srunner_run_all(runner, CK_ENV);
    int failures = srunner_ntests_failed(runner), checks = srunner_ntests_run(runner);
    srunner_free(runner);
    if (!checks && !missing)
        fprintf(stderr, "no check was run: unset CK_RUN_CASE and CK_RUN_SUITE\n");
    return failures || !checks ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    const char *slash = strrchr(argv[0], '/'), *name = slash ? slash + 1 : argv[0];
    take_arguments(argc, argv);
    set_environment();
    take_file(name);
    if (!first) {
        fprintf(stderr, "no %s.c is in this program: call it by the name of a file of tests\n",
                name);
        return EXIT_FAILURE;
    }
    if (list) {
        for (const struct sl_claim *claim = first; claim; claim = claim->next)
            printf("%s\n", claim->test->name);
        return EXIT_SUCCESS;
    }
    if (common->prepare && !common->prepare())
        return 77;
    return run(name);
}

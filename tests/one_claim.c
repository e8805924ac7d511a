/* glibc gives a constructor what main() gets, so programs whose main() takes nothing can be told,
 * too. */
#include "one_claim.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mem.h"
#include "option.h"

enum { WANTED_MAX = 64, NAMES_MAX = 512 };

void __real__tcase_add_test(TCase *cases, const TTest *test, int signal, int exit_code, int start,
                            int end);
void __real_srunner_run_all(SRunner *runner, enum print_output mode);

static struct {
    const char *name;
    bool found;
} wanted[WANTED_MAX];
static const char *names[NAMES_MAX];
static unsigned wanted_count, name_count;
static bool list;

static void want(const char *name)
{
    if (strcmp(name, "--list") == 0)
        list = true;
    else if (*name && wanted_count < WANTED_MAX)
        wanted[wanted_count++].name = name;
}

/* By hand as under ctest: Check's own time limit is four seconds. */
__attribute__((constructor)) static void take_arguments(int argc, char **argv)
{
    static char text[4096];
    char *rest = text, *name;
    const char *environment = getenv("SL_TEST");
    for (int i = 1; i < argc; i++)
        want(argv[i]);
    snprintf(text, sizeof(text), "%s", environment ? environment : "");
    while ((name = strsep(&rest, " ,")))
        want(name);
    setenv("CK_DEFAULT_TIMEOUT", "60", 0);
    if (access(SL_PROGRAM, X_OK) == 0)
        setenv("SLUICE", SL_PROGRAM, 0);
}

static bool is_wanted(const char *name)
{
    bool result = wanted_count == 0;
    for (unsigned i = 0; i < wanted_count; i++)
        if (strcmp(wanted[i].name, name) == 0)
            result = wanted[i].found = true;
    return result;
}

void __wrap__tcase_add_test(TCase *cases, const TTest *test, int signal, int exit_code, int start,
                            int end)
{
    if (name_count < NAMES_MAX)
        names[name_count++] = test->name;
    if (list)
        printf("%s\n", test->name);
    else if (is_wanted(test->name))
        __real__tcase_add_test(cases, test, signal, exit_code, start, end);
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
    const char *nearest = sl_nearest(name, names, name_count);
    fprintf(stderr, "no test is called '%s'%s%s%s\n", name, nearest ? ", did you mean '" : "",
            nearest ? nearest : "", nearest ? "'?" : ", --list names them");
    size_t length = strlen(name), shared = 0;
    for (unsigned i = 0; i < name_count; i++)
        shared = SL_MAX(shared, prefix(names[i], name));
    for (unsigned i = 0; i < name_count; i++)
        if (strstr(names[i], name) || (shared > length / 2 && prefix(names[i], name) == shared))
            fprintf(stderr, "    %s\n", names[i]);
}

void __wrap_srunner_run_all(SRunner *runner, enum print_output mode)
{
    bool missing = false;
    if (list)
        exit(EXIT_SUCCESS);
    for (unsigned i = 0; i < wanted_count; i++)
        if (!wanted[i].found) {
            refuse(wanted[i].name);
            missing = true;
        }
    if (missing)
        exit(EXIT_FAILURE);
    __real_srunner_run_all(runner, mode);
}

/* Runs the sluice that was built ($SLUICE) and keeps what it said. */
#ifndef SL_RUN_SLUICE_H
#define SL_RUN_SLUICE_H

#include <stddef.h>
#include <sys/types.h>

/** What one run left: zeroed before the first run, ran_release() after the last. */
struct ran {
    int exit_code;   /* 128 + n if signal n killed it */
    char *out, *err; /* at most 4 MiB each */
};
void ran_release(struct ran *ran);

/** Run to its end with these arguments (NULL at the end, without the program's name) and nothing on
 * stdin. */
void run_sluice(struct ran *ran, const char *const *arguments);
#define RUN(ran, ...) run_sluice(ran, (const char *const[]){__VA_ARGS__, NULL})
/** The same in a copy of this process, which must have no threads: for tests of many runs, most of
 * whose time it would be to start the program. Options of the environment are this process's. */
void run_copy(struct ran *ran, const char *const *arguments);
#define RUN_COPY(ran, ...) run_copy(ran, (const char *const[]){__VA_ARGS__, NULL})

/** As run_sluice, any program. */
void run_program(struct ran *ran, const char *program, const char *const *arguments);

/**
 * Run a script of tests/ by Python, with the module of python/ on this build's libsluice. -1: there
 * is not a Python, no library, or a library that Python cannot open since it is sanitized.
 */
int run_python(struct ran *ran, const char *script, const char *argument);
/** The same with another argument behind it. */
int run_python_with(struct ran *ran, const char *script, const char *argument, const char *more);

/** Start it and leave it running; stdout and stderr go to the files of these names. */
pid_t start_sluice(const char *const *arguments, const char *out_path, const char *err_path);
/** As start_sluice, any program, with its output thrown away. */
pid_t start_program(const char *program, const char *const *arguments);
/** The exit code of a started one, 128 + n for a signal. */
int wait_sluice(pid_t pid);

#endif

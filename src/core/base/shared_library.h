/*
 * Libraries that a program opens when it first needs them, since most starts do not, and loading
 * them takes longer than a small load. In static builds they are parts of the program. Whoever
 * wraps one has a table of its functions, and a lock around opening it, so that any thread may ask.
 */
#ifndef SL_SHARED_LIBRARY_H
#define SL_SHARED_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

#include "err.h"

struct sl_shared_function {
    const char *name;
    void **place; /* where its address goes */
    void *linked; /* that address, in static builds */
    bool optional;
};
#ifdef SLUICE_LIBRARIES_LINKED
#define SL_SHARED_FUNCTION(function, place, ...)                                                   \
    {                                                                                              \
#function, (void **)(place), (void *)(function), __VA_ARGS__                               \
    }
#else
#define SL_SHARED_FUNCTION(function, place, ...)                                                   \
    {                                                                                              \
#function, (void **)(place), NULL, __VA_ARGS__                                             \
    }
#endif

/**
 * Open a library and find its functions, also in the libraries that it needs itself.
 *
 * @file              the name that dlopen() finds it by.
 * @serves            what needs it, in the plural, for messages.
 * @functions, count  their places are filled in; an optional one that is missing is NULL.
 * @return            0, or -1 with SL_E_USAGE: it is not installed, or too old.
 *
 * The library stays open. In static builds nothing is opened, and nothing fails.
 */
int sl_shared_library_open(const char *file, const char *serves,
                           const struct sl_shared_function *functions, size_t count,
                           struct sl_err *err);

/*
 * A note in the program's file, for packagers: what is opened at run time is not among the
 * libraries that ldd shows. One a file. Read by dh_dlopenlibdeps and its like:
 * systemd.io/ELF_DLOPEN_METADATA.
 */
#ifdef SLUICE_LIBRARIES_LINKED
#define SL_SHARED_LIBRARY_NOTE(file, serves)
#else
#define SL_SHARED_LIBRARY_TEXT_(file, serves)                                                      \
    "[{\"feature\":\"" serves "\",\"priority\":\"required\",\"soname\":[\"" file "\"]}]"
#define SL_SHARED_LIBRARY_NOTE(file, serves)                                                       \
    static const struct {                                                                          \
        unsigned owner_bytes, text_bytes, type;                                                    \
        char owner[4];                                                                             \
        _Alignas(4) char text[sizeof(SL_SHARED_LIBRARY_TEXT_(file, serves))];                      \
    } shared_library_note __attribute__((used, section(".note.dlopen"), aligned(4))) = {           \
        4, sizeof(SL_SHARED_LIBRARY_TEXT_(file, serves)), 0x407c0c0a, "FDO",                       \
        SL_SHARED_LIBRARY_TEXT_(file, serves)};
#endif

#endif

/* dlopen() where there is one; a fully static program cannot open anything, and need not. */
#include "shared_library.h"

#ifdef SLUICE_LIBRARIES_LINKED

int sl_shared_library_open(const char *file, const char *serves,
                           const struct sl_shared_function *functions, size_t count,
                           struct sl_err *err)
{
    (void)file, (void)serves, (void)err;
    for (size_t i = 0; i < count; i++)
        *functions[i].place = functions[i].linked;
    return 0;
}

#else

#include <dlfcn.h>

int sl_shared_library_open(const char *file, const char *serves,
                           const struct sl_shared_function *functions, size_t count,
                           struct sl_err *err)
{
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return sl_fail(err, SL_E_USAGE,
                       "cannot open '%s', which %s need: install the package that has it (%s)",
                       file, serves, dlerror());
    for (size_t i = 0; i < count; i++) {
        *functions[i].place = dlsym(library, functions[i].name);
        if (!*functions[i].place && !functions[i].optional)
            return sl_fail(err, SL_E_USAGE, "'%s', which %s need, has no %s(): install a newer one",
                           file, serves, functions[i].name);
    }
    return 0;
}

#endif

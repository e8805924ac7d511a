/* Never closed: a server's threads run in it. */
#include "libmicrohttpd.h"

#include "mem.h"
#include "shared_library.h"
#include "thread.h"

#define SERVES "health, metrics and files over HTTP"
SL_SHARED_LIBRARY_NOTE(SLUICE_MICROHTTPD_SONAME, SERVES)

struct sl_libmicrohttpd sl_libmicrohttpd;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool opened; /* guarded by the lock */

static const struct sl_shared_function functions[] = {
#define SL_LIBMICROHTTPD(name)                                                                     \
    SL_SHARED_FUNCTION(MHD_##name, &sl_libmicrohttpd.name, .optional = false),
#include "libmicrohttpd.def"
#undef SL_LIBMICROHTTPD
};

int sl_libmicrohttpd_open(struct sl_err *err)
{
    SL_LOCKED(&lock);
    if (!opened)
        opened = sl_shared_library_open(SLUICE_MICROHTTPD_SONAME, SERVES, functions,
                                        SL_COUNT(functions), err) == 0;
    return opened ? 0 : -1;
}

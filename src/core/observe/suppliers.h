/*
 * Who supplied the bytes of a load, and of this process: the store that was named (the origin), and
 * caches and mirrors before it. What came of each request is told once, when it has ended; a load's
 * own are in its progress (progress.h), those of the process are metrics.
 *
 * A set has at most SL_SUPPLIERS_MAX: from then on whoever was last asked an hour ago or more goes
 * into SL_SUPPLIER_OTHERS for somebody new, or else the new one does, so that sums stay right.
 */
#ifndef SL_SUPPLIERS_H
#define SL_SUPPLIERS_H

#include <stddef.h>
#include <stdint.h>

#include "buf.h"
#include "err.h"
#include "json.h"

#define SL_SUPPLIER_ORIGIN_NAME "origin"
#define SL_SUPPLIER_OTHERS      "others"

enum { SL_SUPPLIERS_MAX = 64, SL_SUPPLIERS_SHOWN = 8, SL_SUPPLIER_NAME_BYTES = 96 };

enum sl_supplier_kind { SL_SUPPLIER_ORIGIN, SL_SUPPLIER_CACHE, SL_SUPPLIER_MIRROR };

enum sl_supplier_failure {
#define SL_SUPPLIER_FAILURE(id, name, text) SL_SUPPLIER_##id,
#include "supplier_failures.def"
#undef SL_SUPPLIER_FAILURE
    SL_SUPPLIER_FAILURE_COUNT, /* none */
};

/** The result of one request, or the finding that an earlier one was wrong. */
struct sl_supplied {
    enum sl_supplier_kind kind;
    const char *name; /* without secrets; NULL: SL_SUPPLIER_ORIGIN_NAME */
    uint64_t bytes, ranges, wrong;
    enum sl_supplier_failure failure;
    uint64_t began_ns; /* 0: now */
};

struct sl_supplier {
    char name[SL_SUPPLIER_NAME_BYTES]; /* printable ASCII without quotes and backslashes */
    enum sl_supplier_kind kind;
    uint64_t bytes, ranges; /* ranges: requests that were answered whole */
    uint64_t wrong;         /* times that what it gave had another hash: it was left */
    uint64_t failures[SL_SUPPLIER_FAILURE_COUNT];
    uint64_t first_ns, last_ns; /* when the first request began, when the last ended */
    uint64_t trouble_ns;        /* when the last one failed or was found wrong; 0: none did */
    uint64_t hash;              /* of the whole name */
};
uint64_t sl_supplier_failures(const struct sl_supplier *supplier);
/** From its first request to the end of its last; 0: no time has passed. */
double sl_supplier_rate(const struct sl_supplier *supplier);
/** "http://10.0.0.7:8080 was left: wrong bytes", "… failed 3 times (it sent nothing)"; "": it did
 * well. text holds 192 and is returned. */
const char *sl_supplier_trouble(const struct sl_supplier *supplier, char text[192]);
/** An array of objects. */
void sl_suppliers_json(struct sl_json *json, const struct sl_supplier *suppliers, size_t count);

/** Guarded by its owner; zeros are an empty one. */
struct sl_suppliers {
    struct sl_supplier items[SL_SUPPLIERS_MAX];
    size_t count;
};
void sl_suppliers_add(struct sl_suppliers *suppliers, const struct sl_supplied *supplied);
/** Copies of up to `limit`: the origin, then who did worst, then who gave most; how many there
 * are all together is returned. */
size_t sl_suppliers_copy(const struct sl_suppliers *suppliers, struct sl_supplier *copies,
                         size_t limit);

/** Of the whole process. Any thread. */
void sl_suppliers_count(const struct sl_supplied *supplied);
/** Suppliers but the origin that did badly within ten minutes, for health checks. Calls back under
 * no lock. */
void sl_suppliers_each_degraded(void (*call)(void *arg, const char *text), void *arg);
/** These as families of metrics; appended to out. SL_E_NO_SPACE. */
int sl_suppliers_write(struct sl_buf *out, int openmetrics, struct sl_err *err);

#endif

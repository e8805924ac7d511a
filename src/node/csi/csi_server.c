/*
 * From bytes to a call and back, the same for every row: unpack within a limit of memory, call,
 * pack, count, log. The log tells method, code and the failure's words, never attributes or
 * secrets.
 */
#include <string.h>

#include "csi_parts.h"
#include "log.h"
#include "metrics.h"

struct row {
    enum sl_csi_server server;
    const char *path;
    int (*call)(struct sl_csi *csi, struct sl_csi_call *call, struct sl_err *err);
    const ProtobufCMessageDescriptor *request;
    bool fast;
    unsigned at_once;
};
static const struct row rows[] = {
#define SL_CSI_METHOD(server_, path_, call_, request_, fast_, at_once_)                            \
    {SL_CSI_##server_, path_, sl_csi_##call_, &request_##__descriptor, fast_, at_once_},
#include "csi_methods.def"
#undef SL_CSI_METHOD
};
_Static_assert(SL_COUNT(rows) <= SL_GRPC_METHODS_MAX, "as many as a server takes");

/* ---- what is counted ------------------------------------------------------------------------ */

static struct sl_counter counts[SL_COUNT(rows)][SL_GRPC_CODE_COUNT];

static int write_counts(struct sl_buf *out, int openmetrics, struct sl_err *err)
{
    const char *name = "sluice_csi_calls_total";
    bool begun = false;
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        for (int code = 0; code < SL_GRPC_CODE_COUNT; code++) {
            uint64_t count = sl_counter_get(&counts[i][code]);
            if (!count)
                continue;
            if (!begun && sl_buf_printf(out, err,
                                        "# HELP %.*s Calls of CSI that were answered, by method "
                                        "and code\n# TYPE %.*s counter\n",
                                        (int)strlen(name) - (openmetrics ? 6 : 0), name,
                                        (int)strlen(name) - (openmetrics ? 6 : 0), name) < 0)
                return -1;
            begun = true;
            if (sl_buf_printf(out, err, "%s{method=\"%s\",code=\"%s\"} %llu\n", name,
                              strrchr(rows[i].path, '/') + 1, sl_grpc_code_name(code),
                              (unsigned long long)count) < 0)
                return -1;
        }
    return 0;
}

static void count_writer(void)
{
    sl_metrics_add_writer(write_counts);
}

/* ---- memory of one request ------------------------------------------------------------------ */

struct memory {
    size_t left;
};

static void *take(void *data, size_t bytes)
{
    struct memory *memory = data;
    if (bytes > memory->left)
        return NULL;
    memory->left -= bytes;
    return sl_alloc(bytes, NULL);
}

static void give_back(void *data, void *pointer)
{
    (void)data;
    free(pointer);
}

/* ---- a call --------------------------------------------------------------------------------- */

static enum sl_grpc_code code_of(const struct sl_err *err)
{
    static const struct {
        const char *word;
        enum sl_grpc_code code;
    } codes[] = {
        {"aborted", SL_GRPC_ABORTED},
        {"exists", SL_GRPC_ALREADY_EXISTS},
        {"precondition", SL_GRPC_FAILED_PRECONDITION},
        {"range", SL_GRPC_OUT_OF_RANGE},
        {"full", SL_GRPC_RESOURCE_EXHAUSTED}, /* of a share: later there is room */
    };
    for (size_t i = 0; i < SL_COUNT(codes); i++)
        if (strcmp(err->code, codes[i].word) == 0)
            return codes[i].code;
    return (enum sl_grpc_code)sl_err_row(err->kind)->grpc_status;
}

static int carry_out(struct sl_csi *csi, const struct row *row, struct sl_grpc_call *grpc,
                     struct sl_err *err)
{
    struct memory memory = {SL_CSI_UNPACKED_BYTES};
    ProtobufCAllocator allocator = {take, give_back, &memory};
    ProtobufCMessage *request =
        protobuf_c_message_unpack(row->request, &allocator, grpc->request_bytes, grpc->request);
    if (!request)
        return sl_fail(err, SL_E_USAGE, "the request is malformed, or has too many parts");
    struct sl_csi_call call = {request, grpc};
    int done = row->call(csi, &call, err);
    protobuf_c_message_free_unpacked(request, &allocator);
    return done;
}

/* Kubelets, that of 1.35 too, take the text of an event for a format: '%2e' would be
 * '%!e(MISSING)'. */
static void describe(const struct sl_err *err, char *text, size_t capacity)
{
    static const char wide[] = "\xef\xbc\x85"; /* U+FF05, which none takes for one */
    size_t used = 0;
    for (const char *at = err->message; *at && used + sizeof(wide) < capacity; at++) {
        size_t bytes = *at == '%' ? sizeof(wide) - 1 : 1;
        memcpy(text + used, *at == '%' ? wide : at, bytes);
        used += bytes;
    }
    text[used] = 0;
}

enum sl_grpc_code sl_csi_call_row(struct sl_csi *csi, size_t at, struct sl_grpc_call *call)
{
    const struct row *row = &rows[at];
    const char *name = strrchr(row->path, '/') + 1;
    struct sl_err err = SL_ERR_INIT;
    uint64_t begun_ns = sl_now_ns();
    enum sl_grpc_code code = SL_GRPC_OK;
    if (carry_out(csi, row, call, &err) < 0) {
        code = code_of(&err);
        describe(&err, call->text, sizeof(call->text));
        sl_log(code == SL_GRPC_ABORTED ? SL_LOG_INFO : SL_LOG_WARN, "%s: %s: %s", name,
               sl_grpc_code_name(code), err.message);
    }
    sl_counter_add(&counts[at][code], 1);
    sl_metric_observe(SL_M_CSI_SECONDS, (double)(sl_now_ns() - begun_ns) / SL_NS_PER_S);
    return code;
}

static enum sl_grpc_code answer(void *arg, const struct sl_grpc_method *method,
                                struct sl_grpc_call *call)
{
    return sl_csi_call_row(arg, (size_t)((const struct row *)method->more - rows), call);
}

struct sl_grpc *sl_csi_serve(struct sl_csi *csi, enum sl_csi_server server, struct sl_err *err)
{
    static struct sl_grpc_method methods[2][SL_COUNT(rows)];
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct sl_grpc_config config = {.methods = methods[server],
                                    .arg = csi,
                                    .socket = csi->config.socket,
                                    .workers = SL_CSI_WORKERS,
                                    .name = "csi"};
    pthread_once(&once, count_writer);
    if (server == SL_CSI_REGISTRATION) {
        config.socket = csi->config.registration;
        config.name = "csi-reg";
    }
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        if (rows[i].server == server)
            methods[server][config.method_count++] =
                (struct sl_grpc_method){.path = rows[i].path,
                                        .fast = rows[i].fast,
                                        .at_once = rows[i].at_once,
                                        .answer = answer,
                                        .more = &rows[i]};
    return sl_grpc_open(&config, err);
}

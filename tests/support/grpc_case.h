/* A server of gRPC with a few methods to play with, for tests. */
#ifndef SL_GRPC_CASE_H
#define SL_GRPC_CASE_H

#include "grpc.h"
#include "scratch.h"
#include "thread.h"

#define GRPC_FAST "/test.Play/Fast" /* the request comes back */
#define GRPC_ECHO "/test.Play/Echo" /* the same, by a worker */
#define GRPC_SIZE "/test.Play/Size" /* how many bytes came, as digits */
#define GRPC_FAIL "/test.Play/Fail" /* with the code of the first byte and the text behind it */
#define GRPC_HOLD "/test.Play/Hold" /* as Echo, after grpc_case_release(); CANCELLED if left */
#define GRPC_PAIR "/test.Play/Pair" /* as Hold, two at a time */

struct grpc_case {
    int directory;
    char path[SL_SCRATCH_PATH_BYTES], socket[SL_SCRATCH_PATH_BYTES + 16];
    struct sl_grpc *grpc;
    struct sl_counter holding, left, pairs;
    struct sl_cancel *released;
};
extern struct grpc_case grpc_case;

void grpc_case_open(void); /* with 4 workers */
void grpc_case_close(void);
/** sl_grpc_open() of the same once more. */
struct sl_grpc *grpc_case_serve(const char *socket, struct sl_err *err);
void grpc_case_release(void);

#endif

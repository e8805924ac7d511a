/* The answer of a call. */
#include "csi_parts.h"

int sl_csi_respond(struct sl_csi_call *call, const ProtobufCMessage *message, struct sl_err *err)
{
    size_t bytes = protobuf_c_message_get_packed_size(message);
    sl_autofree uint8_t *packed = sl_alloc(bytes, err);
    if (!packed)
        return -1;
    protobuf_c_message_pack(message, packed);
    return sl_buf_append(&call->grpc->response, packed, bytes, err);
}

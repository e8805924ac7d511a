/*
 * What a load that is killed keeps of ranges that have not come to their end. Bytes wait in three
 * places before the journal knows them: in the socket, below the mark at which poll() wakes; in the
 * window; written, in the writer's stretch. Where a connection is fast they go through all three in
 * a moment, and a record a MiB is enough. Where it is slow its thread looks every SL_UNTOLD_NS:
 * what is in the socket is read, the window ends with what has come, and the journal is told. No
 * window is cut for less than SL_KEEP_BYTES_MIN, so that the journal stays below a part in 400 of
 * the model.
 *
 * What changes on its way is not cut: a unit is written whole or not at all.
 */
#include "slot_parts.h"

int sl_slot_keep(struct sl_slot *slot, uint64_t now_ns, bool *due, struct sl_err *err)
{
    *due = false;
    if (sl_writer_flush_old(&slot->writer, now_ns, err) < 0)
        return -1;
    if (now_ns - slot->looked_ns < SL_UNTOLD_NS || !sl_slot_may_cut(slot))
        return 0;
    slot->looked_ns = now_ns;
    *due = slot->cut = slot->filled + sl_slot_unread_bytes(slot) >= SL_KEEP_BYTES_MIN;
    return 0;
}

void sl_slot_rescue(struct sl_slot *slot)
{
    struct sl_err err = SL_ERR_INIT;
    bool reads = slot->request != SL_REQUEST_NONE && slot->at < slot->range.end && slot->fetch;
    if (!reads || (slot->window == SL_WINDOW_NONE && sl_slot_open_window(slot, &err) < 0) ||
        !sl_slot_may_cut(slot))
        return;
    while (slot->window == SL_WINDOW_FILLING && sl_slot_unread_bytes(slot) &&
           sl_slot_fill_window(slot, &err) == SL_SLOT_RUN)
        ;
    if (slot->window == SL_WINDOW_FULL || sl_slot_cut_window(slot, 1))
        sl_slot_close_window(slot, true, &err);
}

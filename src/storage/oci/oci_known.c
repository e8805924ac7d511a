/* What is known of an open registry, and of pins: for its channels, its listing and its layers. */
#include <stdio.h>
#include <string.h>

#include "log.h"
#include "oci_store.h"

bool sl_oci_pin_parse(const char *pin, struct sl_oci_piece *piece)
{
    *piece = (struct sl_oci_piece){.at = 0};
    snprintf(piece->digest, sizeof(piece->digest), "%s", pin);
    if (!sl_oci_is_digest(piece->digest))
        return false;
    const char *rest = pin + strlen(piece->digest);
    if (!*rest)
        return true;
    if (*rest++ != '+' || !sl_take_digits(&rest, &piece->at) || *rest++ != '/' ||
        !sl_take_digits(&rest, &piece->of))
        return false;
    if (!*rest)
        return piece->at < piece->of;
    return *rest++ == '+' && sl_packing_find(rest, &piece->packing) &&
           piece->packing != SL_PACKING_NONE && piece->at <= SL_OBJECT_BYTES_MAX && piece->of;
}

const struct sl_oci_layer *sl_oci_find_layer(struct sl_oci *oci, const char *digest)
{
    SL_LOCKED(&oci->locked.mutex);
    for (size_t i = 0; oci->locked.known && i < oci->locked.manifest.layer_count; i++)
        if (strcmp(oci->locked.manifest.layers[i].digest, digest) == 0)
            return &oci->locked.manifest.layers[i];
    return NULL;
}

void sl_oci_advise_in_order(struct sl_oci *oci)
{
    SL_LOCKED(&oci->store->locked.mutex);
    oci->store->locked.in_order = true;
}

void sl_oci_note_no_ranges(struct sl_oci *oci)
{
    SL_LOCKED(&oci->locked.mutex);
    if (!oci->locked.no_ranges)
        sl_log(SL_LOG_WARN,
               "'%s' sends whole files where ranges are asked for: its files are read in order, on "
               "one connection, and what was read before is sent again after a failure",
               oci->uri.host);
    oci->locked.no_ranges = true;
    sl_oci_advise_in_order(oci);
}

bool sl_oci_knows_no_ranges(struct sl_oci *oci)
{
    SL_LOCKED(&oci->locked.mutex);
    return oci->locked.no_ranges;
}

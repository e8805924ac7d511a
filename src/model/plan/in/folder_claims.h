/* What one object says of the others in its folder. */
#ifndef SL_FOLDER_CLAIMS_H
#define SL_FOLDER_CLAIMS_H

#include "plan_parts.h"
#include "shard_map.h"

enum sl_claim_kind { SL_CLAIM_NONE, SL_CLAIM_SHARDS, SL_CLAIM_FOLDERS, SL_CLAIM_FILES };

/** What one object says of the others in its folder. */
struct sl_plan_claim {
    enum sl_claim_kind kind;
    char *text; /* the map's */
    struct sl_shard_map map;
    char **names; /* folders, or files */
    size_t name_count, name_capacity;
};

#endif

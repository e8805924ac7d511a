/*
 * Work on the bytes of a load that may be done on either side of the sink: by the readers, on the
 * host, before bytes are put into it, or by the device whose memory they land in, afterwards. Who
 * does it is decided in one place (plan/stages.h) and noted in the plan, with the mapping or check
 * that it is about.
 */
#ifndef SL_STAGE_H
#define SL_STAGE_H

enum sl_stage { SL_STAGE_DECRYPT, SL_STAGE_CAST, SL_STAGE_CRC, SL_STAGES };
enum sl_stage_side { SL_ON_HOST, SL_ON_DEVICE };

#endif

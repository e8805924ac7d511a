/* The Controller service: volumes that are nothing but their attributes. */
#include <stdio.h>
#include <string.h>

#include "claims.h"
#include "csi_case.h"

#define CREATE   "/csi.v1.Controller/CreateVolume"
#define DELETE   "/csi.v1.Controller/DeleteVolume"
#define VALIDATE "/csi.v1.Controller/ValidateVolumeCapabilities"

SL_CASE(.setup = csi_case_open, .teardown = csi_case_close)

static Csi__V1__CreateVolumeRequest create;
static Csi__V1__VolumeCapability *capabilities[1];
static Csi__V1__CapacityRange range;
static Csi__V1__CreateVolumeRequest__ParametersEntry parameters[2], *parameter_list[2];

static void set_parameter(size_t at, const char *key, const char *value)
{
    csi__v1__create_volume_request__parameters_entry__init(&parameters[at]);
    parameters[at].key = (char *)key;
    parameters[at].value = (char *)value;
    parameter_list[at] = &parameters[at];
    create.n_parameters = SL_MAX(create.n_parameters, at + 1);
}

static Csi__V1__CreateVolumeRequest *right(void)
{
    csi__v1__create_volume_request__init(&create);
    csi__v1__capacity_range__init(&range);
    capabilities[0] = csi_case_publish()->volume_capability;
    create.name = (char *)"pvc-1";
    create.volume_capabilities = capabilities;
    create.n_volume_capabilities = 1;
    create.parameters = parameter_list;
    create.capacity_range = &range;
    range.required_bytes = 1000;
    set_parameter(0, "model", "m");
    return &create;
}

static char *create_id(char id[SL_CSI_VOLUME_TEXT])
{
    Csi__V1__CreateVolumeResponse *answer = csi_case_unpack(
        csi_case_call(CREATE, &create.base, NULL), &csi__v1__create_volume_response__descriptor);
    ck_assert_uint_lt(strlen(answer->volume->volume_id), SL_CSI_VOLUME_TEXT);
    snprintf(id, SL_CSI_VOLUME_TEXT, "%s", answer->volume->volume_id);
    csi__v1__create_volume_response__free_unpacked(answer, NULL);
    return id;
}

SL_TEST(a_volume_is_its_parameters)
{
    right();
    set_parameter(1, "csi.storage.k8s.io/pvc/name", "claim"); /* the provisioner's own */
    Csi__V1__CreateVolumeResponse *answer = csi_case_unpack(
        csi_case_call(CREATE, &create.base, NULL), &csi__v1__create_volume_response__descriptor);
    ck_assert_int_eq(answer->volume->capacity_bytes, 1000);
    ck_assert_uint_eq(answer->volume->n_volume_context, 1);
    ck_assert_str_eq(answer->volume->volume_context[0]->key, "model");
    ck_assert_str_eq(answer->volume->volume_context[0]->value, "m");
    csi__v1__create_volume_response__free_unpacked(answer, NULL);
}

SL_TEST(a_name_and_its_parameters_always_give_the_same_id)
{
    char first[SL_CSI_VOLUME_TEXT], again[SL_CSI_VOLUME_TEXT];
    right();
    create_id(first);
    ck_assert_str_eq(create_id(again), first);
    sl_csi_close(sl_steal(&csi_case.csi), 0);
    grpc_client_close(csi_case.client);
    const struct sl_csi_config config = csi_case_config();
    csi_case.csi = sl_csi_open(NULL, &config, NULL);
    csi_case.client = grpc_client_open(csi_case.socket);
    ck_assert_str_eq(create_id(again), first);
    create.name = (char *)"pvc-2";
    ck_assert_str_ne(create_id(again), first);
}

SL_TEST(a_name_with_something_else_exists_already_until_it_is_deleted)
{
    char id[SL_CSI_VOLUME_TEXT];
    Csi__V1__DeleteVolumeRequest delete = CSI__V1__DELETE_VOLUME_REQUEST__INIT;
    right();
    create_id(id);
    range.required_bytes = 2000;
    csi_case_check(CREATE, &create.base, SL_GRPC_ALREADY_EXISTS, "another capacity");
    range.required_bytes = 1000;
    set_parameter(0, "model", "other");
    csi_case_check(CREATE, &create.base, SL_GRPC_ALREADY_EXISTS, "other parameters");
    delete.volume_id = id;
    csi_case_check(DELETE, &delete.base, 0, "");
    csi_case_check(DELETE, &delete.base, 0, "");
    csi_case_check(CREATE, &create.base, 0, "");
    delete.volume_id = (char *)"never made";
    csi_case_check(DELETE, &delete.base, 0, "");
    delete.volume_id = (char *)"";
    csi_case_check(DELETE, &delete.base, 3, "volume_id is missing");
}

SL_TEST(names_beyond_the_memory_push_the_oldest_out)
{
    char name[32], id[SL_CSI_VOLUME_TEXT];
    right();
    create_id(id);
    for (int i = 0; i < SL_CSI_CREATED_MAX; i++) {
        snprintf(name, sizeof(name), "more-%d", i);
        create.name = name;
        create_id(id);
    }
    range.required_bytes = 2000;
    csi_case_check(CREATE, &create.base, SL_GRPC_ALREADY_EXISTS, "");
    create.name = (char *)"pvc-1";
    csi_case_check(CREATE, &create.base, 0, "");
}

SL_TEST(what_cannot_be_made_is_said)
{
    Csi__V1__VolumeContentSource source = CSI__V1__VOLUME_CONTENT_SOURCE__INIT;
    char name[SL_CSI_ID_BYTES + 2] = "";
    right()->name = (char *)"";
    csi_case_check(CREATE, &create.base, 3, "name is missing");
    memset(name, 'n', SL_CSI_ID_BYTES + 1);
    right()->name = name;
    csi_case_check(CREATE, &create.base, 3, "name is longer than 128 bytes");
    name[SL_CSI_ID_BYTES] = 0;
    csi_case_check(CREATE, &create.base, 0, "");
    right()->n_volume_capabilities = 0;
    csi_case_check(CREATE, &create.base, 3, "volume_capabilities are missing");
    right()->volume_content_source = &source;
    csi_case_check(CREATE, &create.base, 3, "from another volume or a snapshot");
    right();
    set_parameter(0, "bad", "x");
    csi_case_check(CREATE, &create.base, 3, "attribute 'bad' is not known");
    right();
    range.limit_bytes = 10;
    csi_case_check(CREATE, &create.base, SL_GRPC_OUT_OF_RANGE, "limit of 10");
    range.limit_bytes = 0;
    range.required_bytes = -1;
    csi_case_check(CREATE, &create.base, SL_GRPC_OUT_OF_RANGE, "-1 bytes");
}

static bool is_confirmed(Csi__V1__ValidateVolumeCapabilitiesRequest *request)
{
    Csi__V1__ValidateVolumeCapabilitiesResponse *answer =
        csi_case_unpack(csi_case_call(VALIDATE, &request->base, NULL),
                        &csi__v1__validate_volume_capabilities_response__descriptor);
    bool confirmed = answer->confirmed != NULL;
    if (confirmed) {
        ck_assert_uint_eq(answer->confirmed->n_volume_capabilities, 1);
        ck_assert_uint_eq(answer->confirmed->n_volume_context, request->n_volume_context);
        ck_assert_uint_eq(answer->confirmed->n_parameters, request->n_parameters);
    }
    ck_assert(confirmed == !answer->message[0]);
    csi__v1__validate_volume_capabilities_response__free_unpacked(answer, NULL);
    return confirmed;
}

SL_TEST(capabilities_are_confirmed_for_what_was_made)
{
    Csi__V1__ValidateVolumeCapabilitiesRequest request =
        CSI__V1__VALIDATE_VOLUME_CAPABILITIES_REQUEST__INIT;
    Csi__V1__ValidateVolumeCapabilitiesRequest__VolumeContextEntry
        entry = CSI__V1__VALIDATE_VOLUME_CAPABILITIES_REQUEST__VOLUME_CONTEXT_ENTRY__INIT,
        *list[] = {&entry};
    char id[SL_CSI_VOLUME_TEXT];
    right();
    csi_case_check(VALIDATE, &request.base, 3, "volume_id is missing");
    request.volume_id = create_id(id);
    csi_case_check(VALIDATE, &request.base, 3, "volume_capabilities are missing");
    request.volume_capabilities = capabilities;
    request.n_volume_capabilities = 1;
    ck_assert(is_confirmed(&request));
    entry.key = (char *)"model";
    entry.value = (char *)"m";
    request.volume_context = list;
    request.n_volume_context = 1;
    ck_assert(is_confirmed(&request));
    entry.value = (char *)"other";
    ck_assert(!is_confirmed(&request));
    request.n_volume_context = 0;
    capabilities[0]->access_mode->mode =
        CSI__V1__VOLUME_CAPABILITY__ACCESS_MODE__MODE__MULTI_NODE_MULTI_WRITER;
    ck_assert(!is_confirmed(&request));
    id[strlen(id) - 1] = 'g';
    csi_case_check(VALIDATE, &request.base, SL_GRPC_NOT_FOUND, "has not created a volume");
    request.volume_id = (char *)"some-volume";
    csi_case_check(VALIDATE, &request.base, SL_GRPC_NOT_FOUND, "has not created a volume");
}

SL_TEST(the_controller_says_what_it_can)
{
    Csi__V1__ControllerGetCapabilitiesResponse *answer =
        csi_case_unpack(csi_case_call("/csi.v1.Controller/ControllerGetCapabilities", NULL, NULL),
                        &csi__v1__controller_get_capabilities_response__descriptor);
    ck_assert_uint_eq(answer->n_capabilities, 1);
    ck_assert_int_eq(answer->capabilities[0]->rpc->type, 1); /* CREATE_DELETE_VOLUME */
    csi__v1__controller_get_capabilities_response__free_unpacked(answer, NULL);
}

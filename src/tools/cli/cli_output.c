/* What commands print as JSON. */
#include <stdio.h>

#include "cli.h"
#include "json.h"

int sl_cli_print_json(struct sl_json *json, struct sl_err *err)
{
    const char *text = sl_json_text(json, err);
    if (!text)
        return -1;
    printf("%s\n", text);
    return 0;
}

void sl_cli_error_json(struct sl_json *json, const struct sl_err *err)
{
    sl_json_key_string(json, "kind", sl_err_row(err->kind)->name);
    sl_json_key_string(json, "code", err->code);
    sl_json_key_string(json, "message", err->message);
}

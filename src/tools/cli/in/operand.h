/* What the operand of load, plan and verify means: a spec file or a URI. */
#ifndef SL_OPERAND_H
#define SL_OPERAND_H

#include "cli.h"

/** Ends in .yaml or .yml, or is "-". */
bool sl_operand_is_spec(const char *operand);
/**
 * Read the models of the first operand, a spec file or a URI, with the flags of the command line
 * over them.
 *
 * @to            their path; NULL: as the spec says.
 * @name          their name; NULL: as the spec says.
 * @otherwise_to  where a URI goes without `to`; NULL: SL_E_USAGE.
 * @specs         out: release it in either case.
 * @return        0, or -1 as sl_cli_read_specs() and sl_cli_uri_specs().
 */
int sl_operand_specs(struct sl_cli *cli, const char *to, const char *name, const char *otherwise_to,
                     struct sl_specs *specs, struct sl_err *err);
/** As a string of YAML in double quotes; free() it. SL_E_USAGE for what is not UTF-8. */
char *sl_operand_quote(const char *text, struct sl_err *err);
/**
 * A local path is not there (err, SL_E_NOT_FOUND, says so): adds what the operand may have meant, a
 * URI that lacks a slash, a repository of the Hub, a public model. Nothing for anything else.
 */
void sl_operand_hint(const char *operand, struct sl_err *err);
enum { SL_MODELS_NAME_BYTES = 64 };
/** The public model of `sluice models --spec` that has this name, or nearly; false: none.
 * cmd_models.c. */
bool sl_models_near(const char *name, char near[SL_MODELS_NAME_BYTES]);

#endif

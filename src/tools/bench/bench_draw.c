/*
 * What both drawings share. A drawing is one SVG file without scripts, fonts and links; it follows
 * the reader's light or dark setting, and its colours are those of Okabe and Ito, which people with
 * any colour vision tell apart.
 */
#include <math.h>
#include <string.h>

#include "bench_parts.h"

const char *const sl_bench_colors[SL_BENCH_COLORS] = {"#0072b2", "#e69f00", "#009e73",
                                                      "#cc79a7", "#56b4e9", "#d55e00"};

static const char style[] =
    "<style>\n"
    "text{font:13px system-ui,-apple-system,\"Segoe UI\",Roboto,\"DejaVu Sans\",sans-serif;"
    "fill:#1f2328}\n"
    ".head{font-size:17px;font-weight:600}.dim{fill:#59636e;font-size:12px}\n"
    ".bg{fill:#fff}.grid{stroke:#d8dee4;stroke-width:1}.axis{stroke:#8c959f;stroke-width:1}\n"
    ".band{fill:#8c959f;fill-opacity:.28}.key{stroke:#8c959f;stroke-opacity:.28;stroke-width:10}\n"
    ".limit{stroke:#59636e;stroke-width:1.5}\n"
    ".line{fill:none;stroke-width:2.25;stroke-linejoin:round;stroke-linecap:round}\n"
    ".store{stroke-width:1.5;stroke-dasharray:5 4;stroke-opacity:.75}\n"
    ".range{stroke-width:1.25;stroke-opacity:.55}\n"
    ".flat{stroke:#1f2328;stroke-width:1.5;stroke-dasharray:9 4}\n"
    ".peer{stroke:#59636e;stroke-width:1.25;stroke-dasharray:2 4}\n"
    ".lead{stroke:#8c959f;stroke-width:.75;fill:none}\n"
    "@media (prefers-color-scheme:dark){text{fill:#e6edf3}.dim{fill:#9198a1}.bg{fill:#0d1117}\n"
    ".grid{stroke:#2a313c}.axis{stroke:#656c76}.limit,.peer{stroke:#9198a1}"
    ".flat{stroke:#e6edf3}}\n"
    "</style>\n";

double sl_bench_step(double full)
{
    if (!(full > 1e-9)) /* what nobody measures: 1 is as good as any */
        return 1;
    double power = pow(10, floor(log10(full / 6)));
    double units = full / 6 / power;
    return power * (units <= 1 ? 1 : units <= 2 ? 2 : units <= 5 ? 5 : 10);
}

/* Text with & < > " escaped. */
static int xml_text(struct sl_buf *out, const char *text, struct sl_err *err)
{
    static const char marks[] = "&<>\"";
    static const char *const escapes[] = {"&amp;", "&lt;", "&gt;", "&quot;"};
    if (!sl_is_utf8(text, strlen(text)))
        text = "?";
    while (*text) {
        size_t plain = strcspn(text, marks);
        if (sl_buf_append(out, text, plain, err) < 0)
            return -1;
        text += plain;
        if (*text && sl_buf_text(out, escapes[strchr(marks, *text) - marks], err) < 0)
            return -1;
        text += *text != 0;
    }
    return 0;
}

int sl_bench_svg_begin(struct sl_buf *out, unsigned width, unsigned height, const char *title,
                       struct sl_err *err)
{
    if (sl_buf_printf(out, err,
                      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%u\" height=\"%u\" "
                      "viewBox=\"0 0 %u %u\" role=\"img\">\n<title>",
                      width, height, width, height) < 0 ||
        xml_text(out, title, err) < 0 || sl_buf_text(out, "</title>\n", err) < 0 ||
        sl_buf_text(out, style, err) < 0)
        return -1;
    return sl_buf_printf(out, err, "<rect class=\"bg\" width=\"%u\" height=\"%u\" rx=\"6\"/>\n",
                         width, height);
}

int sl_bench_svg_text(struct sl_buf *out, const char *attributes, double x, double y,
                      const char *text, struct sl_err *err)
{
    if (sl_buf_printf(out, err, "<text x=\"%.1f\" y=\"%.1f\"%s%s>", x, y, *attributes ? " " : "",
                      attributes) < 0 ||
        xml_text(out, text, err) < 0)
        return -1;
    return sl_buf_text(out, "</text>\n", err);
}

int sl_bench_svg_line(struct sl_buf *out, const char *attributes, double x1, double y1, double x2,
                      double y2, struct sl_err *err)
{
    return sl_buf_printf(out, err, "<line %s x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
                         attributes, x1, y1, x2, y2);
}

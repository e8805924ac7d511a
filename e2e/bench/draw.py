"""Results as SVG: one file each, no script, no font, no link; it follows the reader's light or dark setting and looks like
the drawings of `sluice bench` (src/tools/bench/bench_draw.c), whose colours people with any colour vision tell apart.
"""
import math
from xml.sax.saxutils import escape

OURS, PEER, BAR = "#0072b2", "#e69f00", "#d55e00"
WIDTH, ROW, NAME = 860, 26, 128
STYLE = """<style>
text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:#1f2328}
.head{font-size:17px;font-weight:600}.dim{fill:#59636e;font-size:12px}
.bg{fill:#fff}.grid{stroke:#d8dee4;stroke-width:1}.axis{stroke:#8c959f;stroke-width:1}
.band{fill:#8c959f;fill-opacity:.45}.range{stroke:#59636e;stroke-width:1.5}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.dim{fill:#9198a1}.bg{fill:#0d1117}
.grid{stroke:#2a313c}.axis{stroke:#656c76}.range{stroke:#9198a1}}
</style>
"""


class Svg:
    def __init__(self, height, title):
        self.lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img">\n'
                      f"<title>{escape(title)}</title>\n{STYLE}"
                      f'<rect class="bg" width="{WIDTH}" height="{height}" rx="6"/>']

    def text(self, x, y, text, kind="", anchor=""):
        more = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor else "")
        self.lines.append(f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(text)}</text>')

    def line(self, kind, x1, y1, x2, y2):
        self.lines.append(f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')

    def block(self, x, y, width, height, color):
        """A coloured rectangle; without a colour, that of the limit."""
        look = f'fill="{color}"' if color else 'class="band"'
        self.lines.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{height}" rx="2" {look}/>')

    def dot(self, x, y, color, filled=True):
        look = f'fill="{color}"' if filled else f'fill="none" stroke="{color}" stroke-width="2"'
        self.lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" {look}/>')

    def done(self):
        return "\n".join(self.lines) + "\n</svg>\n"


def color_of(client):
    return "" if client in ("limit", "bare") else OURS if client.startswith("sluice") else PEER


def step_of(full):
    """About five steps of 1, 2 or 5 times a power of ten."""
    power = 10 ** math.floor(math.log10(full / 5)) if full > 1e-9 else 1
    units = full / 5 / power
    return power * (1 if units <= 1 else 2 if units <= 2 else 5 if units <= 5 else 10)


class Panel:
    """Bars of one figure, one a client, from `left` on: value and, where they differ, a line from `low` to `high`."""

    def __init__(self, svg, left, right, top, count, title, full):
        self.svg, self.left, self.room, self.top, self.full = svg, left, right - left - 44, top, full or 1
        svg.text(left, top - 8, title, "dim")
        svg.line("axis", left, top, left, top + count * ROW)

    def bar(self, number, value, color, text, low=None, high=None):
        y, scale = self.top + number * ROW + 5, self.room / self.full
        self.svg.block(self.left, y, value * scale, ROW - 10, color)
        end = value
        if low is not None and high - low > self.full / 200:
            self.svg.line("range", self.left + low * scale, y + 8, self.left + high * scale, y + 8)
            end = max(high, value)
        self.svg.text(self.left + end * scale + 5, y + 12, text)


def workload(title, table, small):
    """Rate or time, CPU, and memory of each client."""
    clients = list(table.items())
    svg = Svg(78 + len(clients) * ROW + 24, title)
    svg.text(24, 30, title, "head")
    top = 70
    for number, (client, _) in enumerate(clients):
        svg.text(24, top + number * ROW + 17, client)
    unit, low, value, high, scale = (("ms", "best_s", "median_s", "worst_s", 1e3) if small
                                     else ("GB/s", "worst_gb_s", "median_gb_s", "best_gb_s", 1))
    first = Panel(svg, NAME + 24, 476, top, len(clients), unit + ", median; line: worst to best run", max(row[high] for _, row in clients) * scale)
    per = 1e6 if small else 1
    cpu = Panel(svg, 492, 664, top, len(clients), "CPU ms" if small else "CPU s/GB", max(cpu_of(row, per) for _, row in clients))
    memory = Panel(svg, 680, 846, top, len(clients), "peak anonymous MiB", max(row["anon_mib"] for _, row in clients))
    for number, (client, row) in enumerate(clients):
        color = color_of(client)
        first.bar(number, row[value] * scale, color, f"{row[value] * scale:.1f}" if small else f"{row[value]:.2f}", row[low] * scale, row[high] * scale)
        cpu.bar(number, cpu_of(row, per), color, f"{cpu_of(row, per):.1f}" if small else f"{cpu_of(row, per):.2f}")
        if client != "limit":
            memory.bar(number, row["anon_mib"], color, f"{row['anon_mib']:.0f}")
    svg.text(24, top + len(clients) * ROW + 18, "limit: recv() into memory, nothing written, nothing checked, in the same rounds", "dim")
    return svg.done()


def cpu_of(row, per):
    return row["cpu_median"] * (row["bytes"] / per if per > 1 else 1)


def shares(rows):
    """Of every goal that is a share of the limit: what sluice and the best peer reached, and the bar. rows: bar.judged()."""
    rows = [row for row in rows if row["goal"].figure == "share" and row["best"] is not None]
    top, left, right = 84, 330, 826
    svg = Svg(top + len(rows) * ROW + 52, "sluice, the best peer and the bar, as shares of the limit")
    svg.text(24, 30, "Share of the limit: sluice, the best peer of the run, and the bar", "head")
    full = max([1.0] + [row["best"] for row in rows])
    bottom = top + len(rows) * ROW
    at = 0.0
    while at <= full + 1e-9:
        x = left + at / full * (right - left)
        svg.line("grid" if at else "axis", x, top - 6, x, bottom)
        svg.text(x, bottom + 18, f"{at:.1f}", "dim", "middle")
        at += 0.2
    for number, row in enumerate(rows):
        y = top + number * ROW + ROW / 2
        svg.text(24, y + 4, row["goal"].what.replace("`", ""))
        svg.block(left + row["wanted"][0] / full * (right - left) - 1.5, y - 9, 3, 18, BAR)
        if row["peer"]:
            svg.dot(left + row["peer"][0] / full * (right - left), y, PEER, False)
        svg.dot(left + row["best"] / full * (right - left), y, OURS)
    for x, text, color, kind in ((24, "sluice", OURS, "dot"), (110, "best peer", PEER, "ring"), (220, "the bar", BAR, "mark")):
        if kind == "mark":
            svg.block(x + 3, 46, 3, 18, color)
        else:
            svg.dot(x + 5, 55, color, kind == "dot")
        svg.text(x + 18, 59, text, "dim")
    return svg.done()

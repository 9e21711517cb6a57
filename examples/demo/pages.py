# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The page: one file that fetches nothing, light and dark. Also the tables and pictures of docs/results."""

from __future__ import annotations

import statistics
from html import escape
from pathlib import Path

from bench.lib import charts, columns, overview, pictures, tables
from bench.lib.charts import Series
from bench.lib.network import rate_text
from bench.lib.results import Results, Row

_SLOW_BAR = 0.15  # seconds: longer bars get a chart of their own
_PARTS = {"compute": "compute", "encode": "encode", "wire": "on the wire, and waiting for others",
          "decode": "decode and merge", "rest": "hand-over", "exchange": "exchange, not told apart (PyTorch's own)"}
_PART_STYLES = {"hand-over": "rest"}
#: The same exchange has the same colour in every run.
_STYLES = ("pytorch:ddp", "pytorch:fp16", "pytorch:powersgd", "bf16", "int8", "3lc", "3lc:s=1.75", "topk:ratio=0.01",
           "topk:ratio=0.001", "sidco:ratio=0.001", "powersgd:rank=4")


def styles(results: Results) -> dict[str, str]:
    known = {spec: f"s{i}" for i, spec in enumerate(_STYLES)}
    free = [f"s{i}" for i in range(3, 11) if f"s{i}" not in {known.get(row.spec) for row in results.rows}]
    others = [row.spec for row in results.rows if row.spec not in known]
    return {**known, **{spec: free[i % len(free)] if free else "s3" for i, spec in enumerate(others)}}


def heading(views: list[Results]) -> str:
    rates = [rate_text(results.network) for results in views]
    return f"{views[0].plan['workers']} workers, {('; ' if any(',' in r for r in rates) else ', ').join(rates)} each way" + mark(views[0])


def mark(results: Results) -> str:
    return " (emulated)" if results.emulated else ""


# ---- charts -----------------------------------------------------------------------------------------------------------


def over_steps(results: Results) -> list[Series]:
    style = styles(results)
    return [Series(r.label, style[r.spec], [(s, a) for s, a in r.curve]) for r in results.rows]


def over_seconds(results: Results) -> list[Series]:
    style = styles(results)
    return [Series(r.label, style[r.spec], [(s * r.step, a) for s, a in r.curve]) for r in results.rows]


def quality_chart(results: Results, seconds: bool) -> str:
    emulated, quality = ", emulated" if results.emulated else "", results.quality
    series = over_seconds(results) if seconds else over_steps(results)
    words = f"seconds at {rate_text(results.network)}{emulated}" if seconds else "steps"
    return charts.curves(series, f"{subject(results)} over {words.split()[0]}", words, results.plan["target"], quality.short,
                         quality.worst, quality.top([v for s in series for _, v in s.points]), log=seconds)


def subject(results: Results) -> str:
    return results.quality.name.capitalize()


def parts_of(row: Row) -> list[tuple[str, float]]:
    """Shares of the mean step, scaled to the median that the table shows."""
    scale = row.step / sum(row.parts.values())
    return [(_PART_STYLES.get(name, name), value * scale) for name, value in row.parts.items()]


def time_charts(results: Results) -> list[str]:
    emulated = ", emulated" if results.emulated else ""
    groups = [("fast exchanges", [r for r in results.rows if r.step <= _SLOW_BAR]),
              ("slow exchanges, another scale", [r for r in results.rows if r.step > _SLOW_BAR])]
    return [charts.stacked([(r.label, parts_of(r)) for r in rows], f"Step time, {name}",
                           f"milliseconds a step, {name}{emulated}") for name, rows in groups if rows]


def bytes_chart(results: Results) -> str:
    style = styles(results)
    rows = [(r.label, style[r.spec], r.own_bytes, r.kernel_bytes) for r in results.rows]
    return charts.dots(rows, "Bytes a step", "bytes that a worker sends in a step")


# ---- pieces of the page -----------------------------------------------------------------------------------------------


def figure(caption: str, chart: str) -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{chart}</figure>"


def legend(results: Results) -> str:
    style = styles(results)
    items = [f'<li><svg viewBox="0 0 26 12" aria-hidden="true"><g class="series {style[r.spec]}">'
             f'<polyline points="1,6 25,6"/></g></svg>{escape(r.label)}</li>' for r in results.rows]
    return f'<ul class="legend">{"".join(items)}</ul>'


def parts_legend(results: Results) -> str:
    used = {_PART_STYLES.get(name, name) for row in results.rows for name in row.parts}
    items = [f'<li><span class="swatch" style="background: var(--{name})"></span>{escape(words)}</li>'
             for name, words in _PARTS.items() if name in used]
    return f'<ul class="legend">{"".join(items)}</ul>'


def table(results: Results) -> str:
    """The best figure of each column stands out."""
    rows = results.rows
    timed = [r for r in rows if r.time_to_target is not None]
    best = {1: min(rows, key=lambda r: r.step), 7: max(rows, key=lambda r: r.speedup),
            8: max(rows, key=lambda r: r.speedup), 3: min(rows, key=lambda r: r.own_bytes)}
    if results.learned:
        best[6] = next(r for r in rows if r.final == results.quality.best([row.final for row in rows]))
    if timed:
        best |= {4: min(timed, key=lambda r: r.steps_to_target or 0), 5: min(timed, key=lambda r: r.time_to_target)}
    if rows[0].kernel_bytes is not None:
        best[2] = min(rows, key=lambda r: r.kernel_bytes)
    return html_table(columns.rows_of(results), {(rows.index(row), column) for column, row in best.items()})


def html_table(rows: list[list[str]], best=()) -> str:
    """The first row is the head; `best`: (row below it, column) of cells that stand out."""
    head = "".join(f"<th>{escape(c)}</th>" for c in rows[0])
    body = ""
    for i, row in enumerate(rows[1:]):
        body += "<tr>" + "".join(f'<td class="best">{escape(c)}</td>' if (i, j) in best else f"<td>{escape(c)}</td>"
                                 for j, c in enumerate(row)) + "</tr>"
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def facts(results: Results) -> str:
    fastest = min(results.rows, key=lambda r: r.step)
    found = [(f"{fastest.speedup:.0f}×", f"as fast a step as fp32 DDP: {fastest.label}, {columns.milliseconds(fastest.step)}")]
    hook = next((r for r in results.rows if r.spec == "pytorch:powersgd"), None)
    if hook is not None and fastest is not hook:
        found.append((f"{hook.step / fastest.step:.1f}×", "as fast as PyTorch's PowerSGD hook"))
    timed = [r for r in results.rows if r.time_to_target is not None]
    if timed:
        first = min(timed, key=lambda r: r.time_to_target)
        found.append((f"{first.time_to_target:.1f} s", f"to {results.target}: {first.label}"))
    if results.none_ratio is not None:
        found.append((f"{results.none_ratio:.2f}×", "the time of plain DDP's step when Laconic compresses nothing (none), unshaped"))
    return '<ul class="facts">' + "".join(f"<li><b>{escape(a)}</b>{escape(b)}</li>" for a, b in found) + "</ul>"


def keys(pairs) -> str:
    rows = "".join(f"<tr><td>{escape(str(a))}</td><td>{escape(str(b))}</td></tr>" for a, b in pairs)
    return f'<table class="keys"><tbody>{rows}</tbody></table>'


def environment(results: Results) -> list[tuple[str, str]]:
    raw, lab, plan = results.raw, results.raw["lab"], results.plan
    link = "emulated: senders wait, nothing is shaped" if results.emulated else (
        f"{', '.join(network.replace(',', ' at loss ') for network in plan['networks'])} each way, tbf burst {lab['burst'] // 1024} kB, queue {lab['queue'] // 1024} kB, "
        f"TCP {lab['tcp']}")
    specs = [f"{about['canonical']} by {about['strategy']}" for spec, about in raw["about"].items()
             if not spec.startswith("pytorch:")]
    return [*raw["machine"].items(), *raw["environment"].items(), ("link", link),
            ("training", f"{results.model.what}: {raw['parameters']:,} parameters; {raw['training']}, cosine to 0 in "
                         f"{plan['steps']} steps, seeds {plan['seeds']}, one bucket"),
            *([("data", Path(plan["data"]).name)] if plan["data"] else []),
            ("shaped blocks", blocks_text(plan)),
            ("exchanges", "; ".join(specs))]


def blocks_text(plan: dict) -> str:
    to_target = len(plan["networks"]) == 1 and not plan["times_only"]
    until = "until the target and at least " if to_target else ""
    return (f"{plan['repeats']} repeats, exchanges in turn; {plan['slow_steps']} steps above 100 ms a step, else "
            f"{until}{plan['fast_steps']}")


def html_notes(lines: list[str]) -> str:
    return '<div class="notes">' + "".join(f"<p>{escape(line)}</p>" for line in lines) + "</div>"


def bounds(results: Results, heading: str) -> str:
    rows = columns.bound_rows(results)
    return (f"<{heading}>{escape(columns.BOUNDS)}{mark(results)}</{heading}>\n{html_table(rows)}\n"
            f"{html_notes([columns.ABOUT_BOUNDS])}\n") if rows else ""


def steps_figure(results: Results) -> str:
    return figure("Over steps", quality_chart(results, seconds=False))


def seconds_figure(results: Results) -> str:
    return figure(f"Over seconds at {rate_text(results.network)}{mark(results)}", quality_chart(results, seconds=True))


def quality_section(results: Results) -> str:
    return f"""<h2>{escape(subject(results))}{mark(results)}</h2>
{legend(results)}
<div class="charts">
{seconds_figure(results)}
{steps_figure(results)}
</div>
""" if results.learned else ""


def step_figures(results: Results) -> str:
    return (figure("Where a step's time goes" + mark(results), "".join(time_charts(results)))
            + figure("Bytes a step: kernel's count (dot), own count (ring)" + mark(results), bytes_chart(results)))


def of_one(results: Results) -> str:
    return f"""{facts(results)}
<h2>Results{mark(results)}</h2>
{table(results)}
{html_notes(columns.notes(results))}
{bounds(results, "h2")}{quality_section(results)}<h2>Bytes and time{mark(results)}</h2>
{parts_legend(results)}
<div class="charts">
{step_figures(results)}
</div>"""


def of_several(views: list[Results]) -> str:
    shown = [overview_section(views)] if views[0].learned else []
    return "\n".join([*shown, html_notes(columns.shared_notes(views[0])), *map(section, views)])


def overview_section(views: list[Results]) -> str:
    first = views[0]
    return f"""<h2>Which exchange reaches the target first{mark(first)}</h2>
{html_table(overview.rows_of(views))}
<div class="charts">
{figure(f"Time to {first.target}{mark(first)}", overview.heat_map(views))}
{steps_figure(first)}
</div>
{legend(first)}"""


def section(results: Results) -> str:
    """Results of one network among several."""
    return f"""<h2>{escape(rate_text(results.network))}{mark(results)}</h2>
{table(results)}
{html_notes([columns.best_uncompressed(results)])}
{bounds(results, "h3")}{parts_legend(results)}
<div class="charts">
{seconds_figure(results) if results.learned else ""}
{step_figures(results)}
</div>"""


def page(views: list[Results]) -> str:
    first = views[0]
    emulated = '<p class="emulated">Emulated: no network was shaped or counted.</p>' if first.emulated else ""
    css = pictures.colours()
    phases = keys((name, f"{seconds:.1f} s") for name, seconds in first.phases.items())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Laconic: {escape(heading(views))}</title>
<style>
{css}</style>
</head>
<body>
<h1>{escape(heading(views))}</h1>
<p class="quiet">One model, one schedule, the same seeds; only the exchange of gradients differs. {escape(first.model.what.capitalize())},
{first.raw['parameters']:,} parameters; target {escape(first.target)}. {escape(first.choice)}</p>
{emulated}{of_several(views) if len(views) > 1 else of_one(first)}
<h2>To repeat it</h2>
<pre>{escape(first.raw["command"])}</pre>
{keys(environment(first))}
<h2>How long the demo took</h2>
{phases}
</body>
</html>
"""


# ---- for the README ---------------------------------------------------------------------------------------------------


def picture(results: Results) -> str:
    """Quality over seconds, with its legend, as a file of its own."""
    inner = pictures.inside(quality_chart(results, seconds=True))
    style = styles(results)
    rows, body = results.rows, []
    for i, row in enumerate(sorted(rows, key=lambda r: r.step)):
        y = 40 + 25 * i
        body.append(f'<g class="series {style[row.spec]}"><polyline points="646,{y} 672,{y}"/></g>'
                    + charts.text(680, y + 4, row.label, "start", "row")
                    + charts.text(936, y + 4, columns.milliseconds(row.step), "end", "tick"))
    body.append(charts.text(936, 18, "a step", "end", "name"))
    title = f"{subject(results)} over seconds: {heading([results])}"
    return pictures.standing_alone([inner, *body], title, 960, max(330, 50 + 25 * len(rows)))


def heat_picture(views: list[Results]) -> str:
    return pictures.of_chart(overview.heat_map(views), f"{overview.title(views)}: {views[0].plan['workers']} workers")


# ---- for docs/results -------------------------------------------------------------------------------------------------


def marked(rows: list[list[str]]) -> dict:
    """As a table of a result file."""
    head, *body = [[cell.replace("*", "\\*") for cell in row] for row in rows]
    return tables.table(head, body)


def tables_of(views: list[Results]) -> dict[str, dict]:
    first, several = views[0], len(views) > 1
    made = {"first to the target": marked(overview.rows_of(views))} if several else {}
    for results in views:
        behind = f", {rate_text(results.network)}" if several else ""
        made[f"exchanges{behind}"] = marked(columns.rows_of(results))
        if rows := columns.bound_rows(results):
            made[f"codec work{behind}"] = marked(rows)
    if len(first.none_ratios) > 1:
        low, median, high = statistics.quantiles(first.none_ratios, n=4)
        made["none against plain DDP"] = tables.table(["pairs", ("of its step (quartiles)", "{:.3f} ({:.3f}–{:.3f})")], [[len(first.none_ratios), [median, low, high]]])
    return made


def by_seed(results: Results) -> list[list[str]]:
    """No times: they are those of demo.md, and quality does not depend on them."""
    plain, quality = results.rows[0].final, results.quality
    return [["exchange", *(f"seed {seed}" for seed in results.plan["seeds"]), "mean", "against fp32"],
            *([row.label, *map(quality.precise, row.final_by_seed), quality.precise(row.final), quality.difference(row.final - plain)] for row in results.rows)]


def publish(views: list[Results], folder: Path, name: str = "demo") -> None:
    """NAME.json, its tables in NAME.md, NAME.svg; NAME-MODEL of other models than mlp, demo-networks of several networks, NAME-seeds, without times,
    of several seeds."""
    results, several = views[0], len(views) > 1
    name += (f"-{results.plan['model']}" if results.plan["model"] != "mlp" else "") + ("-networks" if several and name == "demo" else "")
    about = {"environment": tables.of_pairs(environment(results)), "seconds it took": tables.of_pairs((what, f"{s:.0f}") for what, s in results.phases.items())}
    if len(results.plan["seeds"]) > 1:
        tables.publish(folder, f"{name}-seeds", results.raw["command"], {"final qualities": marked(by_seed(results)), **about})
    if several or len(results.plan["seeds"]) == 1:
        tables.publish(folder, name, results.raw["command"], {**tables_of(views), **about})
        (folder / f"{name}.svg").write_text((heat_picture(views) if several else picture(results)) + "\n")

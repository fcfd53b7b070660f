"""The HTML report: one page without scripts or external resources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from html import escape
from typing import Final, Literal

from demo.charts import Points, chart, legend, stacked, strips
from demo.facts import Facts, Operation, Sample, Step, Verdict
from demo.statistics import by_second, disturbed, growth, latency, moves_done, quantile, quiet, within

__all__ = ["QUIET", "latency_rows", "page", "picture"]

QUIET: Final = "Read and write without disturbance"
"""The title of the baseline step."""
_MIB: Final = 1 << 20
_COLOURS: Final = """
:root { color-scheme: light dark; --ink: #1e293b; --soft: #64748b; --page: #fff; --grid: #e2e8f0; --calm: #f8fafc;
  --busy: #fef3c7; --good: #15803d; --bad: #b91c1c; --s0: #2563eb; --s1: #ea580c; --s2: #16a34a; --s3: #9333ea;
  --s4: #dc2626; --s5: #0891b2; --s6: #a16207; --s7: #475569; }
@media (prefers-color-scheme: dark) { :root { --ink: #e2e8f0; --soft: #94a3b8; --page: #0f172a; --grid: #334155;
  --calm: #162033; --busy: #3b3014; --good: #4ade80; --bad: #f87171; --s0: #60a5fa; --s1: #fb923c; --s2: #4ade80;
  --s3: #c084fc; --s4: #f87171; --s5: #22d3ee; --s6: #facc15; --s7: #cbd5e1; } }
"""
_CHARTS: Final = """
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); } svg .grid { stroke: var(--grid); }
svg polyline { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
svg .disturbs rect { fill: var(--busy); stroke: var(--page); } svg .calm rect { fill: var(--calm); }
svg .strip rect { fill: color-mix(in srgb, var(--s0) calc(8% + 72% * var(--share)), var(--page)); stroke: var(--page); }
svg .strip text { fill: var(--ink); font-weight: 600; }
svg .page { fill: var(--page); } svg .title { font-size: 14px; font-weight: 600; fill: var(--ink); }
""" + "".join(
    f"svg .s{number} {{ stroke: var(--s{number}); }} i.s{number} {{ background: var(--s{number}); }}\n"
    for number in range(8)
)
_STYLE: Final = f"""{_COLOURS}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 960px;
  margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.6rem; line-height: 1.25; }} h2 {{ font-size: 1.15rem; margin: 2.2rem 0 .4rem; }}
table {{ border-collapse: collapse; margin: .6rem 0; }}
td, th {{ padding: .25rem .9rem .25rem 0; text-align: left; vertical-align: top; }}
th {{ color: var(--soft); font-weight: 600; }}
td.n, th.n {{ text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }}
.yes {{ color: var(--good); font-weight: 700; }} .no {{ color: var(--bad); font-weight: 700; }}
.picture {{ overflow-x: auto; }} svg {{ display: block; width: 100%; min-width: 640px; height: auto; }}
.legend {{ margin: .6rem 0 .2rem; }} .legend span {{ margin-right: 1.2rem; white-space: nowrap; }}
.legend i {{ display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .35em; }}
.note {{ color: var(--soft); margin: .2rem 0; }}
.busy {{ background: var(--busy); padding: 0 .3em; border-radius: 3px; }}
{_CHARTS}"""


def page(facts: Facts) -> str:
    """Return the page."""
    good = all(verdict.holds for verdict in facts.verdicts)
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(facts.title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(facts.title)}</h1>",
        f"<p>{'All checks passed.' if good else 'Some checks failed; see below.'}</p>",
        _verdicts(facts.verdicts),
        "<h2>Steps</h2>",
        _steps(facts),
        _note(
            "The charts show seconds since the start; the numbers at the top are those of the steps. "
            'In <span class="busy">shaded</span> steps replicas move or a store is killed.'
        ),
        "<h2>Latency</h2>",
        _note("Median (p50) and 99th percentile (p99) of the reads and writes of each second, on a logarithmic scale."),
        _latency_table(facts),
        *_latency_charts(facts),
        "<h2>Leaders per store</h2>",
        _note("Number of partitions that each store leads. The leader serves a partition's reads and writes."),
        *_per_store(facts.samples, facts.steps),
        "<h2>Moves over time</h2>",
        _note("A replica that moves counts twice: on the store that gains it and on the store that loses it."),
        *_moves(facts.samples, facts.steps),
        "<h2>Bytes copied and wasted</h2>",
        _note("Snapshot bytes sent between stores, and those of transfers that were cancelled by a new target."),
        *_bytes(facts.samples, facts.steps),
        "</body></html>",
    ]
    return "\n".join(parts)


def picture(facts: Facts) -> str:
    """Return the two charts that the README shows, as one SVG file."""
    steps = [f"{number}  {step.title}" for number, step in enumerate(facts.steps, start=1) if step.disturbs]
    charts = {
        "Latency of writes: p50 (blue) and p99 (orange)": chart(
            _latency_series(facts, "write"), facts.steps, unit=" ms", log=True
        ),
        "Leaders per store": "".join(_per_store(facts.samples, facts.steps)),
    }
    return stacked(charts, ["Shaded steps:", *steps], style=_COLOURS + _CHARTS)


def _verdicts(verdicts: Sequence[Verdict]) -> str:
    rows = (
        f'<tr><td class="{"yes" if verdict.holds else "no"}">{"yes" if verdict.holds else "NO"}</td>'
        f"<td>{escape(verdict.what)}</td><td>{escape(verdict.detail)}</td></tr>"
        for verdict in verdicts
    )
    return f"<table>{''.join(rows)}</table>"


def _steps(facts: Facts) -> str:
    columns = "".join(f'<th class="n">{name}</th>' for name in ("seconds", "write p50", "write p99"))
    head = f"<tr><th>#</th><th>step</th>{columns}</tr>"
    rows = []
    for number, step in enumerate(facts.steps, start=1):
        writes = latency(within(facts.operations, [step]), "write")
        figures = (_ms(writes.p50), _ms(writes.p99)) if writes.count else ("", "")
        rows.append(
            f'<tr><td>{number}</td><td>{escape(step.title)}</td><td class="n">{step.ended - step.began:.1f}</td>'
            + "".join(f'<td class="n">{figure}</td>' for figure in figures)
            + "</tr>"
        )
    return f"<table>{head}{''.join(rows)}</table>"


def latency_rows(steps: Sequence[Step], operations: Sequence[Operation]) -> Iterator[tuple[str, ...]]:
    """Yield label, count, p50, p99 and maximum of writes and reads, before and during changes."""
    for when, windows in (("before", quiet(steps, title=QUIET)), ("during changes", disturbed(steps))):
        found = within(operations, windows)
        for kind in ("write", "read"):
            figures = latency(found, kind)
            times = (figures.p50, figures.p99, figures.longest)
            yield (f"{kind}s {when}", f"{figures.count:,}", *map(_ms, times))


def _latency_table(facts: Facts) -> str:
    head = "".join(f'<th class="n">{name}</th>' for name in ("count", "p50", "p99", "max"))
    rows = (
        f"<tr><td>{name}</td>{''.join(f'<td class=n>{figure}</td>' for figure in figures)}</tr>"
        for name, *figures in latency_rows(facts.steps, facts.operations)
    )
    return f"<table><tr><th></th>{head}</tr>{''.join(rows)}</table>"


def _latency_charts(facts: Facts) -> Iterator[str]:
    kinds: tuple[Literal["read", "write"], ...] = ("write", "read")
    for kind in kinds:
        series = _latency_series(facts, kind)
        yield legend(list(series))
        yield chart(series, facts.steps, unit=" ms", log=True)


def _latency_series(facts: Facts, kind: Literal["read", "write"]) -> dict[str, Points]:
    return {
        f"{kind}s, {name}": _in_ms(by_second(facts.operations, kind, partial(quantile, share=share)))
        for name, share in (("p50", 0.5), ("p99", 0.99))
    }


def _per_store(samples: Sequence[Sample], steps: Sequence[Step]) -> Iterator[str]:
    stores = sorted({store for sample in samples for store in sample.leaders})
    series = {store: [(sample.at, float(sample.leaders.get(store, 0))) for sample in samples] for store in stores}
    yield strips(series, steps)


def _moves(samples: Sequence[Sample], steps: Sequence[Step]) -> Iterator[str]:
    series: dict[str, Points] = {
        "partitions changing": [(sample.at, float(sample.moving)) for sample in samples],
        "replicas added or removed, cumulative": moves_done(samples),
    }
    yield legend(list(series))
    yield chart(series, steps, stairs=True)


def _bytes(samples: Sequence[Sample], steps: Sequence[Step]) -> Iterator[str]:
    copied, wasted = growth(sample.copied for sample in samples), growth(sample.wasted for sample in samples)
    times = [sample.at for sample in samples]
    series: dict[str, Points] = {
        "copied": [(at, value / _MIB) for at, value in zip(times, copied, strict=True)],
        "wasted": [(at, value / _MIB) for at, value in zip(times, wasted, strict=True)],
    }
    yield legend(list(series))
    yield chart(series, steps, unit=" MiB", stairs=True)
    if copied and copied[-1]:
        yield _note(
            f"{wasted[-1] / _MIB:.1f} of {copied[-1] / _MIB:.1f} MiB were wasted on cancelled transfers: "
            f"{100 * wasted[-1] / copied[-1]:.1f}%."
        )


def _note(text: str) -> str:
    return f'<p class="note">{text}</p>'


def _in_ms(points: Points) -> Points:
    return [(at, 1000 * value) for at, value in points]


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"

"""One page with everything in it: no scripts, no network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from html import escape
from typing import Final

from demo.charts import Points, chart, legend
from demo.facts import Facts, Operation, Sample, Step, Verdict
from demo.statistics import by_second, disturbed, growth, latency, moves_done, quantile, quiet, within

__all__ = ["QUIET", "latency_rows", "page"]

QUIET: Final = "Read and write, and nothing else"
"""The step that everything else is compared with."""
_MIB: Final = 1 << 20
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1e293b; max-width: 960px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; } td, th { padding: .25rem .9rem .25rem 0; text-align: left; vertical-align: top; }
th { color: #64748b; font-weight: 600; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
.yes { color: #15803d; font-weight: 700; } .no { color: #b91c1c; font-weight: 700; }
svg { width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: #64748b; }
svg polyline { fill: none; stroke-width: 1.8; stroke-linejoin: round; } svg .grid { stroke: #e2e8f0; }
svg .disturbs rect { fill: #fef3c7; opacity: .6; } svg .calm rect { fill: #f8fafc; }
.legend span { margin-right: 1.2rem; white-space: nowrap; }
.legend i { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .35em; }
.note { color: #64748b; }
"""


def page(facts: Facts) -> str:
    """Write the page."""
    good = all(verdict.holds for verdict in facts.verdicts)
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f"<title>{escape(facts.title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(facts.title)}</h1>",
        f"<p>{'Everything that was acknowledged is there.' if good else 'Something is wrong: see below.'}</p>",
        _verdicts(facts.verdicts),
        "<h2>The steps</h2>",
        _steps(facts),
        "<h2>Latency</h2>",
        _latency_table(facts),
        *_latency_charts(facts),
        "<h2>Leaders per store</h2>",
        *_per_store(facts.samples, facts.steps),
        "<h2>Moves over time</h2>",
        *_moves(facts.samples, facts.steps),
        "<h2>Bytes copied, and bytes wasted</h2>",
        *_bytes(facts.samples, facts.steps),
        "</body></html>",
    ]
    return "\n".join(parts)


def _verdicts(verdicts: Sequence[Verdict]) -> str:
    rows = (
        f'<tr><td class="{"yes" if verdict.holds else "no"}">{"yes" if verdict.holds else "NO"}</td>'
        f"<td>{escape(verdict.what)}</td><td>{escape(verdict.detail)}</td></tr>"
        for verdict in verdicts
    )
    return f"<table>{''.join(rows)}</table>"


def _steps(facts: Facts) -> str:
    head = (
        '<tr><th>#</th><th></th><th class="n">seconds</th><th class="n">write p50</th><th class="n">write p99</th></tr>'
    )
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
    """Before and during, for reads and for writes: what, how many, p50, p99, the longest."""
    for when, windows in (("before", quiet(steps, title=QUIET)), ("during changes", disturbed(steps))):
        found = within(operations, windows)
        for kind in ("write", "read"):
            figures = latency(found, kind)
            times = (figures.p50, figures.p99, figures.longest)
            yield (f"{kind}s {when}", f"{figures.count:,}", *map(_ms, times))


def _latency_table(facts: Facts) -> str:
    head = "".join(f'<th class="n">{name}</th>' for name in ("count", "p50", "p99", "longest"))
    rows = (
        f"<tr><td>{name}</td>{''.join(f'<td class=n>{figure}</td>' for figure in figures)}</tr>"
        for name, *figures in latency_rows(facts.steps, facts.operations)
    )
    return f"<table><tr><th></th>{head}</tr>{''.join(rows)}</table>"


def _latency_charts(facts: Facts) -> Iterator[str]:
    for kind in ("write", "read"):
        series = {
            f"{kind}s, {name}": _in_ms(by_second(facts.operations, kind, partial(quantile, share=share)))
            for name, share in (("p50", 0.5), ("p99", 0.99))
        }
        yield legend(list(series))
        yield chart(series, facts.steps, unit=" ms")


def _per_store(samples: Sequence[Sample], steps: Sequence[Step]) -> Iterator[str]:
    stores = sorted({store for sample in samples for store in sample.leaders})
    series = {store: [(sample.at, float(sample.leaders.get(store, 0))) for sample in samples] for store in stores}
    yield legend(stores)
    yield chart(series, steps, stairs=True)


def _moves(samples: Sequence[Sample], steps: Sequence[Step]) -> Iterator[str]:
    series: dict[str, Points] = {
        "partitions that are changing": [(sample.at, float(sample.moving)) for sample in samples],
        "replicas that came or went, in all": moves_done(samples),
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
        yield (
            f'<p class="note">{wasted[-1] / _MIB:.1f} of {copied[-1] / _MIB:.1f} MiB were copied for targets that had '
            f"changed before they were reached: {100 * wasted[-1] / copied[-1]:.1f}%.</p>"
        )


def _in_ms(points: Points) -> Points:
    return [(at, 1000 * value) for at, value in points]


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"

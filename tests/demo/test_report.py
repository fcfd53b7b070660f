"""The report is one self-contained file with all charts."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from demo.charts import chart, strips
from demo.facts import Step, Verdict
from demo.report import page, picture
from tests.demo.facts import STEPS, facts

GOOD, BAD = Verdict("rows are there", True, "all"), Verdict("rows are right", False, "found 2, expected <3>")


def pictures(text: str) -> list[ET.Element]:
    return [ET.fromstring(found) for found in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]


def test_it_loads_nothing() -> None:
    """The page has no external scripts, styles, images or fonts."""
    text = page(facts(GOOD))
    assert "<script" not in text
    assert not re.findall(r"(?:src|href)=|url\(|@import", text)
    assert set(re.findall(r"https?://[^\"]*", text)) == {"http://www.w3.org/2000/svg"}


def test_it_shows_leaders_moves_latency_and_bytes() -> None:
    """Each chart is well-formed, with a line for each store or value."""
    text = page(facts(GOOD))
    found = pictures(text)
    lines = [[line.findtext("{*}title") for line in picture.iterfind("{*}polyline")] for picture in found]
    assert lines == [
        ["writes, p50", "writes, p99"],
        ["reads, p50", "reads, p99"],
        [],
        ["partitions changing", "replicas added or removed, cumulative"],
        ["copied", "wasted"],
    ]
    strips = [[strip.findtext("{*}title") for strip in picture.iterfind("{*}g[@class='strip']")] for picture in found]
    assert {str(title).partition(":")[0] for title in strips[2]} == {"a", "b"}
    assert "1.0 of 10.0 MiB were wasted on cancelled transfers" in text


def test_picture_is_one_file() -> None:
    """The picture for the README is one SVG with two charts, their titles and the steps that disturb."""
    drawn = ET.fromstring(picture(facts(GOOD)))
    assert len(drawn.findall("{*}svg")) == 2
    texts = [text.text for text in drawn.iterfind("{*}text")]
    assert texts[:3] == ["Latency of writes: p50 (blue) and p99 (orange)", "Leaders per store", "Shaded steps:"]
    assert texts[3:] == [f"{number}  {step.title}" for number, step in enumerate(STEPS, start=1) if step.disturbs]
    assert not re.findall(r"(?:src|href)=|url\(|@import", picture(facts(GOOD)))


def test_failed_checks_are_shown() -> None:
    """A failed check is shown at the top and in the list, with markup escaped."""
    assert "All checks passed." in page(facts(GOOD))
    text = page(facts(GOOD, BAD))
    assert "Some checks failed" in text
    assert "found 2, expected &lt;3&gt;" in text
    assert "Scale &lt;the table&gt;" in text
    assert "<the table>" not in text


def places(picture: ET.Element) -> list[tuple[float, float]]:
    [line] = picture.iterfind("{*}polyline")
    return [(float(x), float(y)) for x, y in (place.split(",") for place in line.attrib["points"].split())]


def test_lines_are_where_they_belong() -> None:
    """Time runs to the right and values upwards; stairs have no slope."""
    points = [(0.0, 0.0), (10.0, 2.0), (20.0, 1.0)]
    [picture] = pictures(chart({"x": points}, STEPS))
    (left, low), (middle, high), (right, half) = places(picture)
    assert left < middle < right
    assert right - middle == middle - left
    assert low > half > high
    assert low - high == 2 * (low - half)
    [stairs] = pictures(chart({"x": points}, STEPS, stairs=True))
    assert places(stairs) == [(left, low), (middle, low), (middle, high), (right, high), (right, half)]


def test_logarithmic_scale() -> None:
    """On a logarithmic scale, each grid line is ten times the one below."""
    [picture] = pictures(chart({"x": [(0.0, 1.0), (10.0, 10.0), (20.0, 100.0)]}, STEPS, log=True))
    (_, low), (_, middle), (_, high) = places(picture)
    assert low - middle == middle - high > 0


def test_charts_start_with_their_first_value() -> None:
    """Steps before the first value are omitted; later ones keep their numbers."""
    [picture] = pictures(chart({"x": [(STEPS[-1].began, 1.0), (STEPS[-1].ended, 2.0)]}, STEPS))
    shown = [group.findtext("{*}text") for group in picture.iterfind("{*}g")]
    assert shown == [str(len(STEPS))]


def test_strips_show_runs_of_values() -> None:
    """A strip has one rectangle for each run of equal values, as wide as the run is long."""
    [picture] = pictures(
        strips({"a": [(0.0, 3.0), (5.0, 3.0), (10.0, 0.0), (15.0, 0.0)]}, [Step("s", 0.0, 20.0, True)])
    )
    found = picture.findall("{*}g[@class='strip']")
    assert [group.findtext("{*}text") for group in found] == ["3", "0"]
    one, other = (group.find("{*}rect") for group in found)
    assert one is not None
    assert other is not None
    assert one.attrib["width"] == other.attrib["width"]


def test_nothing_to_draw() -> None:
    """Charts without data are still valid."""
    for series, steps in (({}, []), ({"x": []}, STEPS), ({"x": [(1.0, 0.0)]}, [Step("s", 1.0, 1.0, False)])):
        for text in (chart(series, steps), chart(series, steps, log=True), strips(series, steps)):
            [picture] = pictures(text)
            assert "nan" not in ET.tostring(picture, encoding="unicode")

"""Every panel's query, run on a real Prometheus that scraped a real run, returns data.

The run: the simulated engine and two sidecars' worth of turns under a load that rises and falls, with an
override in between.  No Grafana server is needed to know that no panel is empty.
"""

import json
import re
import time
from pathlib import Path

import pytest

from deploy.generate.dashboards import ANNOTATIONS, dashboards, to_json
from tests.e2e.prometheus import prometheus
from tests.e2e.stage import stage

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

DASHBOARDS = {name: json.loads(to_json(made)) for name, made in dashboards().items()}
WAVE = (2, 8, 24, 48, 80, 48, 8, 2)
PHASE_S = 4.0


def targets(panels):
    """(panel title, expression) of every query, rows unfolded."""
    for panel in panels:
        yield from targets(panel.get("panels", []))
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


QUERIES = [
    (name, title, expr) for name, made in DASHBOARDS.items() for title, expr in targets(made["panels"])
]


def filled_in(expression, instance):
    """The query with Grafana's variables replaced, as Grafana would for a short range."""
    values = {"$instance": instance, "$__rate_interval": "15s", "$__range": "10m", "$model": ".*"}
    for variable, value in values.items():
        expression = expression.replace(variable, value)
    left = re.findall(r"\$\w+", expression)
    assert not left, f"unknown variables {left} in {expression}"
    return expression


@pytest.fixture(scope="module")
def scraped(tmp_path_factory):
    """(Prometheus, instance, from, to) after the run."""
    folder = tmp_path_factory.mktemp("prometheus")
    with stage({"loop.period_s": 0.5, "policy.name": "goodput"}) as running:
        instance = f"127.0.0.1:{running.api_port}"
        with prometheus(folder, {"specgov": instance}) as server:
            start = time.time()
            for concurrency in WAVE:
                running.concurrency = concurrency
                time.sleep(PHASE_S)
            running.put_override({"mode": "on", "depth": 4, "reason": "for the panels", "ttl_s": 60})
            running.concurrency = 48
            time.sleep(PHASE_S)
            running.put_override({"mode": "off", "reason": "for the panels", "ttl_s": 60})
            running.concurrency = 8
            time.sleep(PHASE_S)
            yield server, instance, start, time.time()


@pytest.mark.parametrize(
    ("dashboard", "title", "expression"), QUERIES, ids=[f"{d}: {t}" for d, t, _ in QUERIES]
)
def test_no_panel_is_empty(scraped, dashboard, title, expression):
    """The query gives at least one number at some time of the run."""
    server, instance, start, end = scraped
    found = server.query_range(filled_in(expression, instance), start, end, 1.0)
    values = [float(value) for series in found for _, value in series["values"]]
    assert any(value == value for value in values), f"{title} ({dashboard}) has no data: {expression}"


@pytest.mark.parametrize("expression", [expr for _, _, expr in ANNOTATIONS])
def test_prometheus_accepts_every_annotation(scraped, expression):
    """Events may be absent; the query must be sound."""
    server, instance, start, end = scraped
    server.query_range(filled_in(expression, instance), start, end, 1.0)


def test_what_the_panels_show_is_what_happened(scraped):
    """Depth 4 and depth 0 were both run, the load was seen, and the orders show."""
    server, _, start, end = scraped
    depths = server.query_range("sum by (depth) (specgov_engine_steps_total)", start, end, 1.0)
    assert {"0", "4"} <= {series["metric"]["depth"] for series in depths}
    (load,) = server.query_range("max_over_time(specgov_running_requests[5m])", end, end, 1.0)
    assert 30 <= float(load["values"][-1][1]) <= 80
    modes = server.query_range("specgov_mode == 1", start, end, 1.0)
    assert {"auto", "on", "off"} == {series["metric"]["mode"] for series in modes}


def test_the_rules_run_on_the_same_metrics(scraped):
    """Every metric that a rule or a panel names exists, by the sidecar's own list of names."""
    server, _, start, end = scraped
    known = {
        series["metric"]["__name__"] for series in server.query_range('{job="specgov"}', start, end, 5.0)
    }
    rules = (Path(__file__).parents[2] / "deploy" / "monitoring" / "rules.yaml").read_text()
    named = set(re.findall(r"specgov_\w+", rules + " ".join(expr for _, _, expr in QUERIES)))
    assert named - known <= {"specgov_scrape_errors_total"}, "which is there only once a request has failed"


def test_panels_do_not_overlap_and_fill_the_width():
    """24 columns; every panel has a place of its own."""
    for made in DASHBOARDS.values():
        taken = set()
        for panel in made["panels"]:
            at = panel["gridPos"]
            cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
            assert at["x"] + at["w"] <= 24, panel["title"]
            assert not taken & cells, panel["title"]
            taken |= cells

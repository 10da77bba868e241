"""The status page in a real Chromium, on a real sidecar beside the simulated engine."""

import re
import time

import httpx
import pytest
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from policies.types import Mode
from tests.e2e.chromium import DESKTOP, PHONE, chromium, emulate
from tests.e2e.stage import stage
from tests.e2e.tools import tool

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

TOKEN = "s3cret"
WAIT_S = 20
HOSTILE = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script> ${1} &amp;'


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A governed engine with something to do."""
    fleet = tmp_path_factory.mktemp("fleet") / "override.json"
    with stage({"api.token": TOKEN, "fleet.file": fleet}) as found:
        found.fleet = fleet
        found.concurrency = 6
        found.wait_for("/v1/status", lambda s: s.get("effect", {}).get("state") == "applied")
        yield found


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """One browser for all tests of this file."""
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture
def page(browser, running):
    """The page, freshly opened on a desktop, with no override and no token."""
    running.delete_override(TOKEN)
    running.concurrency = 6
    emulate(browser, DESKTOP)
    browser.get(running.url + "/")
    browser.execute_script("sessionStorage.clear()")
    browser.get(running.url + "/")
    wait(browser, lambda: text(browser, "mode") == "Speculating at depth 4")
    browser.get_log("browser")
    return browser


def text(browser, element_id):
    """What is shown in an element."""
    return browser.find_element(By.ID, element_id).text


def wait(browser, condition, seen=lambda: ""):
    """Until `condition` holds; a failure tells what was `seen` last."""
    try:
        WebDriverWait(browser, WAIT_S, poll_frequency=0.2).until(lambda _: condition())
    except TimeoutException:
        pytest.fail(f"not within {WAIT_S} s: {seen() or text(browser, 'mode')}")


def fill_in(browser, mode, reason, token=TOKEN):
    """Fill the form with the mouse and the keyboard."""
    browser.execute_script(
        "arguments[0].click()", browser.find_element(By.CSS_SELECTOR, f"input[value={mode}]")
    )
    for element_id, value in (("reason-input", reason), ("token", token)):
        field = browser.find_element(By.ID, element_id)
        field.clear()
        field.send_keys(value)


def submit(browser):
    """Press the button."""
    browser.find_element(By.CSS_SELECTOR, "#override-form button.primary").click()


def test_the_first_glance_says_mode_since_when_why_and_what_to_type(page):
    """Depth 4, since when, the reason's code and sentence, who decides, and what to type."""
    assert text(page, "mode") == "Speculating at depth 4"
    assert text(page, "since").startswith("for ")
    assert text(page, "reason").startswith("threshold")
    assert "by batch size from 1 depth 4" in text(page, "why")
    assert text(page, "authority") == "The policy"
    assert text(page, "type") == 'specgov override off --ttl 30m --reason "WHY"'
    assert page.title == "Speculating at depth 4 · specgov"


def test_the_plots_show_the_load_the_depth_and_the_throughput(page):
    """Every plot says in words what it shows."""
    load = re.compile(r"Load: running now [1-6], from \d to 6; waiting now 0")
    wait(page, lambda: load.search(labels(page)), lambda: labels(page))
    wait(page, lambda: "Throughput: output now" in labels(page), lambda: labels(page))
    wait(page, lambda: re.search(r"Depth in use: .* now 4, from", labels(page)), lambda: labels(page))


def labels(browser):
    """The texts that a screen reader reads for the plots."""
    return " | ".join(
        plot.get_attribute("aria-label") for plot in browser.find_elements(By.CSS_SELECTOR, "#plots svg")
    )


def test_the_schedule_shows_its_rows_and_what_was_measured(page):
    """The row in force is marked and carries a measured figure."""
    wait(page, lambda: "±" in text(page, "schedule-table"))
    now = page.find_element(By.CSS_SELECTOR, "#schedule-table tr.now").text
    assert now.split("\n")[:2] == ["1 to 31", "depth 4"]
    assert "depth 4" in page.find_element(By.CSS_SELECTOR, "#schedule-plot svg").get_attribute("aria-label")


def test_an_override_with_the_wrong_token_changes_nothing_and_says_so(page, running):
    """The message names the token; no order is in force."""
    fill_in(page, "off", "testing", token="wrong")
    submit(page)
    wait(page, lambda: text(page, "override-result"))
    assert text(page, "override-result") == "The token is missing or wrong."
    assert running.get("/v1/override")["mode"] == "auto"
    assert page.switch_to.active_element.get_attribute("id") == "token"


def test_an_override_takes_effect_shows_who_and_why_and_can_be_ended(page, running):
    """Off: seen at work in the engine, not only acknowledged.  Then back."""
    fill_in(page, "off", "kernel looks wrong")
    Select(page.find_element(By.ID, "ttl")).select_by_visible_text("10 minutes")
    submit(page)
    wait(page, lambda: text(page, "mode") == "Speculation is off")
    assert text(page, "authority") == "Override: off"
    assert "“kernel looks wrong”" in text(page, "authority-note")
    assert 0 < running.get("/v1/override")["expires_unix_s"] - time.time() <= 600
    assert running.get("/v1/status")["depth"]["in_use"]["depth"] == 0
    page.find_element(By.ID, "end-override").click()
    wait(page, lambda: text(page, "mode") == "Speculating at depth 4")
    assert text(page, "authority") == "The policy"
    wait(page, lambda: "override auto" in text(page, "log"))


def test_on_asks_for_a_depth_that_is_built(page, running):
    """Only built depths are offered; depth 2 is then in use."""
    fill_in(page, "on", "try two")
    depths = [option.text for option in Select(page.find_element(By.ID, "depth")).options]
    assert depths == ["deepest built", "1", "2", "3", "4"]
    Select(page.find_element(By.ID, "depth")).select_by_visible_text("2")
    submit(page)
    wait(page, lambda: text(page, "mode") == "Speculating at depth 2")


def test_a_hostile_reason_is_shown_as_text(page, running):
    """Markup in a reason is neither parsed nor run, in the header, the log and the form."""
    running.put_override({"mode": "off", "reason": HOSTILE, "actor": "<b>eve</b>"}, TOKEN)
    wait(page, lambda: HOSTILE in text(page, "authority-note"))
    wait(page, lambda: HOSTILE in text(page, "log"))
    assert "<b>eve</b>" in text(page, "authority-note")
    assert page.execute_script("return window.pwned ?? null") is None
    assert not page.find_elements(By.CSS_SELECTOR, "main img, main script, #log b")


@pytest.mark.parametrize(
    ("order", "note"),
    [
        (None, "The last change was too short a time ago. Mode auto since "),
        (
            "no_deeper",
            "The last change was too short a time ago. Override: no deeper than depth 2. By ann since ",
        ),
    ],
)
def test_a_guard_that_has_the_last_word_is_named_with_what_is_beneath_it(page, running, order, note):
    """From what the API says while it waits between two changes; else the page would call it the policy."""
    status = running.get("/v1/status")
    status["guard"] = {"name": "dwell", "because": "the last change was too short a time ago"}
    if order:
        status["override"] = {
            "mode": order,
            "limit": "no deeper than depth 2",
            "actor": "ann",
            "reason": "x",
            "scope": "pod",
            "set_unix_s": 1.0,
            "expires_unix_s": None,
            "obstacle": None,
        }
    view = page.execute_async_script(
        "const [status, done] = arguments;"
        "import('/ui/model.js').then((m) => done(m.statusView(status, [], null)), (e) => done(`${e}`));",
        status,
    )
    assert view["authority"] == "Guard: dwell"
    assert view["authorityNote"].startswith(note)


@pytest.mark.parametrize(
    ("order", "note"),
    [
        (
            {"scope": "pod", "resumed": True, "in_force_since_unix_s": 9.0},
            r"By ann at 1970-01-01 .*, in force since .*\d\d:\d\d:\d\d, until it is ended by hand: “x”\.",
        ),
        (
            {"scope": "pod", "in_force_since_unix_s": 9.0, "gap_unix_s": [5.0, 9.0]},
            r"By ann at 1970-01-01 .*, in force since .*, not from .* to .*, until it is ended by hand: .*",
        ),
        (
            {"scope": "pod", "suspends": "off by bob: y"},
            r"By ann since .*, until the fleet's order changes or ends: “x”. It suspends the fleet's “off”.",
        ),
        ({"scope": "sidecar"}, r"By ann since .*, until the orders can be read or one is given: “x”\."),
    ],
    ids=["outlived a restart", "had a break", "suspends the fleet's", "by the sidecar itself"],
)
def test_an_order_says_since_when_and_until_when_and_claims_no_more(page, running, order, note):
    """From what the API says; the button that ends an order is there for each of these."""
    status = running.get("/v1/status")
    given = {"mode": "auto", "actor": "ann", "reason": "x", "set_unix_s": 1.0, "expires_unix_s": None}
    status |= {"guard": None, "override": given | order}
    status["fleet_override"] = {"mode": "off"} if "suspends" in order else None
    view = page.execute_async_script(
        "const [status, done] = arguments;"
        "import('/ui/model.js').then((m) => done(m.statusView(status, [], null)), (e) => done(`${e}`));",
        status,
    )
    assert re.fullmatch(note, view["authorityNote"])
    assert view["override"]["order"]


def test_an_order_of_the_fleet_shows_as_such(page, running):
    """The fleet's file is followed, and the page says that it is the fleet's."""
    running.fleet.write_text('{"mode": "off", "reason": "all of them", "actor": "ann"}')
    try:
        wait(page, lambda: text(page, "authority") == "Fleet override: off")
        running.put_override({"mode": "on", "depth": 4, "reason": "not this one"}, TOKEN)
        wait(page, lambda: "It stands above the fleet's “off”." in text(page, "authority-note"))
    finally:
        running.fleet.unlink()
    running.delete_override(TOKEN)
    wait(page, lambda: text(page, "authority") == "The policy")


@pytest.mark.parametrize(
    ("mode", "limit"), [("no_deeper", "no deeper than"), ("no_shallower", "no shallower than")]
)
def test_one_direction_can_be_forbidden_and_the_first_glance_says_than_what(page, running, mode, limit):
    """The depths in force when it was given, by batch size; what ends it stands beside."""
    fill_in(page, mode, "load test")
    submit(page)
    wait(page, lambda: text(page, "authority").startswith(f"Override: {limit} depth 4 from batch size 1"))
    assert running.get("/v1/override")["mode"] == mode
    assert text(page, "override-result").startswith(f"Override taken: {mode.replace('_', ' ')}. Whether")
    wait(page, lambda: text(page, "override-now") == f"{mode.replace('_', ' ')} is in force")
    assert text(page, "type") == "specgov override auto"


def test_the_form_offers_every_order_of_the_api(page):
    """None of them for the command line alone."""
    offered = [each.get_attribute("value") for each in page.find_elements(By.NAME, "mode")]
    assert sorted(offered) == sorted(Mode)


def test_a_late_turn_is_seen_at_once_with_since_when_and_what_to_type(page, running):
    """An engine that does not answer: the page says of when its figures are, while it is so."""
    assert "Late" not in text(page, "warnings")
    running.hangs = True
    try:
        wait(page, lambda: text(page, "warnings").startswith("Late"), lambda: text(page, "warnings"))
        late = text(page, "warnings").splitlines()[0]
        assert re.search(
            r"what you see is of \d\d:\d\d:\d\d, no turn was done since: the engine is slow", late
        ), late
        assert "What helps: specgov preflight" in late
        assert text(page, "since").startswith("as of ")
        assert "specgov preflight" in text(page, "type")
    finally:
        running.hangs = False
    wait(page, lambda: "Late" not in text(page, "warnings"), lambda: text(page, "warnings"))


def test_the_log_shows_the_latest_and_more_on_demand(page, running):
    """Twelve rows, then all that there are."""
    for i in range(8):
        running.put_override({"mode": "off" if i % 2 else "native", "reason": f"number {i}"}, TOKEN)
        time.sleep(0.6)
    rows = lambda: len(page.find_elements(By.CSS_SELECTOR, "#log tr"))  # noqa: E731
    wait(page, lambda: "number 7" in text(page, "log"))
    assert rows() == 12
    page.find_element(By.ID, "log-more").click()
    wait(page, lambda: rows() > 12)


def test_the_token_stays_in_the_tab(page):
    """Session storage only: no cookie, no local storage, not in the address."""
    fill_in(page, "native", "look at the token")
    submit(page)
    wait(page, lambda: "taken" in text(page, "override-result"))
    assert page.execute_script("return sessionStorage.getItem('specgov.token')") == TOKEN
    assert page.execute_script("return [localStorage.length, document.cookie, location.search]") == [
        0,
        "",
        "",
    ]


def test_everything_comes_from_the_sidecar_and_the_console_is_silent(page, running):
    """No request leaves for another host, and nothing breaks the page's own policy."""
    time.sleep(2)
    names = page.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert len(names) > 10
    assert {name[: len(running.url)] for name in names} == {running.url}
    assert page.get_log("browser") == []


def test_the_policy_of_the_page_forbids_everything_else(running):
    """Headers of the page and of its modules."""
    for path in ("/", "/ui/app.js"):
        headers = httpx.get(running.url + path, trust_env=False).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize(
    "path", ["/ui/", "/ui/index.html", "/ui/../api.py", "/ui/%2e%2e/api.py", "/ui/app.py"]
)
def test_only_the_files_of_the_page_are_served(running, path):
    """A closed set of names."""
    assert httpx.get(running.url + path, trust_env=False).status_code == 404


def test_the_keyboard_alone_is_enough(page, running):
    """From the top of the page to an override in force, without a mouse."""
    page.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB, Keys.ENTER)
    active = lambda: page.switch_to.active_element  # noqa: E731
    assert active().get_attribute("id") == "override"
    active().send_keys(Keys.TAB)
    active().send_keys(Keys.SPACE)
    assert active().get_attribute("value") == "off"
    active().send_keys(Keys.ARROW_RIGHT)
    assert active().get_attribute("value") == "on"
    active().send_keys(Keys.ARROW_LEFT)
    active().send_keys(Keys.TAB)
    active().send_keys(Keys.TAB)
    active().send_keys("by keyboard", Keys.TAB)
    active().send_keys(TOKEN, Keys.ENTER)
    wait(page, lambda: text(page, "mode") == "Speculation is off")
    assert running.get("/v1/override")["reason"] == "by keyboard"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing(page, running, size, dark):
    """The accessibility checker axe-core, with warnings and an override on the page."""
    running.put_override({"mode": "off", "reason": "for the picture", "ttl_s": 1800}, TOKEN)
    emulate(page, size, dark=dark)
    wait(page, lambda: text(page, "mode") == "Speculation is off")
    axe = tool("axe").read_text(encoding="utf-8")
    page.execute_cdp_cmd("Runtime.evaluate", {"expression": axe})
    running.hangs = True
    try:
        wait(page, lambda: "Late" in text(page, "warnings"), lambda: text(page, "warnings"))
        found = page.execute_async_script("axe.run().then(r => arguments[0](r.violations))")
    finally:
        running.hangs = False
    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found] == []


def test_nothing_sticks_out_on_a_phone(page):
    """No sideways scrolling at 390 pixels; buttons and fields are tall enough for a thumb."""
    emulate(page, PHONE)
    time.sleep(1.5)
    assert page.execute_script("return document.documentElement.scrollWidth") <= PHONE[0]
    for control in page.find_elements(
        By.CSS_SELECTOR, "#override-form button.primary, #override-form .modes label"
    ):
        assert control.size["height"] >= 40


def test_with_protected_reads_the_page_asks_for_the_token(browser):
    """Nothing is shown without it; with it the page comes to life."""
    with stage({"api.token": TOKEN, "api.protect_reads": True}) as guarded:
        guarded.concurrency = 4
        browser.get(guarded.url + "/")
        browser.execute_script("sessionStorage.clear()")
        browser.get(guarded.url + "/")
        wait(browser, lambda: "token" in text(browser, "link-text"))
        assert text(browser, "mode") == "…"
        browser.find_element(By.ID, "token").send_keys(TOKEN, Keys.TAB)
        wait(browser, lambda: "depth" in text(browser, "mode"))


def test_a_sidecar_that_is_gone_is_said_to_be_gone(browser):
    """What is shown is then old, and the page says how old."""
    with stage() as short:
        browser.get(short.url + "/")
        wait(browser, lambda: text(browser, "link-text") == "live")
    wait(browser, lambda: "does not answer; what you see is" in text(browser, "link-text"))

"""The report in a real browser."""

import json
from pathlib import Path

import pytest

from routing_lightning.cli import main
from tests.browser.conftest import console_errors


@pytest.fixture
def page(browser, run, tmp_path):
    main(["report", str(run), "--out", str(tmp_path)])
    browser.get((tmp_path / "report.html").as_uri())
    return browser


def set_scheme(page, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def test_page_opens_without_errors_or_requests(page):
    assert "Digits-MTL" in page.find_element("tag name", "main").text
    assert console_errors(page) == []
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    requests = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    ours = [r["request"]["url"] for r in requests if r["documentURL"] == page.current_url]  # not the start page's
    assert [url for url in ours if not url.startswith("data:")] == [page.current_url]


def test_figures_have_a_size(page):
    figures = page.find_elements("css selector", "figure svg, #depths canvas")
    assert len(figures) == 2 + 3  # curves, map, three depths
    for figure in figures:
        assert figure.size["width"] > 100 and figure.size["height"] > 50
    width = page.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert width[0] <= width[1]  # nothing sticks out to the right


def test_slider_works_with_the_keyboard(page):
    from selenium.webdriver.common.keys import Keys

    slider, step = page.find_element("id", "time"), page.find_element("id", "step")
    last = step.text
    before = page.execute_script("return document.querySelector('#depths canvas').toDataURL()")
    slider.send_keys(Keys.HOME)
    assert step.text == "optimizer step 0" != last
    assert page.execute_script("return document.querySelector('#depths canvas').toDataURL()") != before
    slider.send_keys(Keys.ARROW_RIGHT)
    assert step.text not in ("optimizer step 0", last)
    slider.send_keys(Keys.END)
    assert step.text == last
    assert page.execute_script("return document.querySelector('#depths canvas').toDataURL()") == before
    assert console_errors(page) == []


def test_every_control_is_reached_with_the_tab_key(page):
    from selenium.webdriver.common.keys import Keys

    reached = set()
    for _ in range(20):
        page.switch_to.active_element.send_keys(Keys.TAB)
        active = page.switch_to.active_element
        reached.add(active.get_attribute("id") or active.tag_name)
    assert {"run", "time", "play", "summary"} <= reached


def test_play_moves_the_slider(page):
    from selenium.webdriver.support.ui import WebDriverWait

    page.find_element("id", "play").click()
    slider = page.find_element("id", "time")
    first = slider.get_attribute("value")
    WebDriverWait(page, 10).until(lambda _: slider.get_attribute("value") != first)
    page.find_element("id", "play").click()
    assert page.find_element("id", "play").text == "Play"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_figures_stand_out_in_light_and_dark(page, scheme):
    set_scheme(page, scheme)
    script = """
        const rgb = (colour) => colour.match(/[0-9.]+/g).slice(0, 3).map(Number);
        const light = (colour) => rgb(colour).map((c) => c / 255).map(
            (c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4
        ).reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
        const page = light(getComputedStyle(document.body).backgroundColor);
        const contrast = (colour) => {
            const pair = [light(colour), page].sort((a, b) => b - a);
            return (pair[0] + 0.05) / (pair[1] + 0.05);
        };
        return [
            page,
            contrast(getComputedStyle(document.body).color),
            contrast(getComputedStyle(document.querySelector("figcaption")).color),
            contrast(getComputedStyle(document.querySelector("figure svg text")).fill),
        ];
    """
    background, *contrasts = page.execute_script(script)
    assert (background > 0.5) == (scheme == "light")
    assert min(contrasts) >= 4.5  # WCAG AA


def test_page_still_reads_on_a_phone(page):
    page.set_window_size(420, 900)
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    )
    wide = page.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1] + 1


def test_report_of_many_runs_opens(browser, run, tmp_path):
    import shutil

    import yaml

    folders = []
    for number in range(12):
        folder = tmp_path / f"run_{number}"
        shutil.copytree(run, folder, ignore=shutil.ignore_patterns("checkpoints"))
        config = yaml.safe_load((folder / "config.yaml").read_text())
        config["seed_everything"], config["model"]["init_args"]["hidden"] = number % 2, number // 2 + 1
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        folders.append(str(folder))
    main(["report", *folders, "--out", str(tmp_path)])
    browser.get(Path(tmp_path / "report.html").as_uri())
    assert console_errors(browser) == []
    assert len(browser.find_elements("css selector", "#run option")) == 6
    browser.execute_script(
        "const b = document.getElementById('run'); b.value = 5; b.dispatchEvent(new Event('change'));"
    )
    assert console_errors(browser) == []

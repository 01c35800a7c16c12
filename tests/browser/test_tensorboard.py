"""TensorBoard on a run, in a real browser."""

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.browser.conftest import console_errors

# Walks the page with all its shadow roots and gives the texts of what a selector finds.
DEEP = """
    const found = [];
    const walk = (root) => {
        for (const element of root.querySelectorAll("*")) {
            if (element.matches(arguments[0])) found.push(element);
            if (element.shadowRoot) walk(element.shadowRoot);
        }
    };
    walk(document);
"""


@pytest.fixture(scope="module")
def board(run) -> Iterator[str]:
    """Address of a TensorBoard on the run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--logdir", str(run.parent), "--host", "127.0.0.1", "--port", str(port), "--load_fast", "false"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            try:
                if "version_0" in get(address, "data/runs"):
                    break
            except OSError:
                pass
            assert process.poll() is None, "TensorBoard ended"
            time.sleep(0.25)
        yield address
    finally:
        process.terminate()
        process.wait(30)


def get(address: str, path: str):
    with urllib.request.urlopen(f"{address}/{path}", timeout=30) as answer:
        return json.load(answer)


def wait_for(driver, script: str, *arguments, seconds: float = 60):
    """The first answer of a script that is not empty."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        answer = driver.execute_script(script, *arguments)
        if answer:
            return answer
        time.sleep(0.5)
    return driver.execute_script(script, *arguments)


def test_scalars_and_grouped_curves_are_served(board):
    tags = get(board, "data/plugin/scalars/tags")["version_0"]
    assert {f"policy/depth_1/largest/digit_{digit}" for digit in range(10)} <= set(tags)
    assert {"val/acc", "usage/overlap", "usage/entropy/depth_1", "router/entropy/depth_1"} <= set(tags)
    layout = get(board, "data/plugin/custom_scalars/layout")
    charts = {chart["title"]: chart["multiline"]["tag"] for group in layout["category"] for chart in group["chart"]}
    counts = {}
    for title, (pattern,) in charts.items():
        query = f"data/plugin/custom_scalars/scalars?tag={quote(pattern)}&run=version_0"
        counts[title] = len(get(board, query)["tag_to_events"])
    assert counts["val, all tasks"] == counts["largest probability at depth 1, all tasks"] == 10
    assert counts["entropy, all depths"] == counts["blocks in use, all depths"] == 3


def test_images_are_served_at_several_steps(board):
    tags = get(board, "data/plugin/images/tags")["version_0"]
    assert {
        "routing_map",
        "policy/depth_3",
        "policy_evolution/depth_2/digit_9",
        "policy_dynamics/depth_1",
    } <= set(tags)
    for tag in ("routing_map", "policy/depth_1", "policy_evolution/depth_1/digit_0"):
        images = get(board, f"data/plugin/images/images?tag={quote(tag)}&run=version_0&sample=0")
        assert len({image["step"] for image in images}) >= 2, tag
        with urllib.request.urlopen(f"{board}/data/plugin/images/individualImage?{images[-1]['query']}") as answer:
            assert answer.read(8) == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(("plugin", "expected"), [("scalars", "val/acc"), ("images", "policy/depth_1")])
def test_dashboard_shows_our_tags(browser, board, plugin, expected):
    browser.get(f"{board}/#timeseries" if plugin == "timeseries" else f"{board}/#{plugin}")
    script = DEEP + "return found.map((e) => e.textContent).filter((t) => t.includes(arguments[1])).length"
    assert wait_for(browser, script, "*", expected.split("/")[0]) > 0
    assert console_errors(browser) == []


def test_images_are_shown(browser, board):
    browser.get(f"{board}/#images")
    script = DEEP + "return found.filter((e) => e.naturalWidth > 100).length"
    assert wait_for(browser, script, "img") > 0
    sliders = browser.execute_script(DEEP + "return found.length", "paper-slider")
    assert sliders > 0
    assert console_errors(browser) == []


def test_grouped_curves_are_shown(browser, board):
    browser.get(f"{board}/#custom_scalars")
    script = DEEP + "return found.map((e) => e.textContent.trim()).filter((t) => t.includes('all tasks')).length"
    assert wait_for(browser, script, "*") > 0
    assert console_errors(browser) == []

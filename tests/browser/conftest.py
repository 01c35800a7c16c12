"""A headless Chromium, where one is installed."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> Path:
    """Folder of four short epochs of the digits, with all callbacks as shipped."""
    from routing_lightning.cli import main

    root = tmp_path_factory.mktemp("digits")
    config = Path(__file__).parents[2] / "configs" / "digits_mtl.yaml"
    limits = ["--trainer.max_epochs=4", "--trainer.limit_train_batches=20", "--trainer.accelerator=cpu"]
    quiet = ["--trainer.enable_progress_bar=false", f"--trainer.default_root_dir={root}", "--name=version_0"]
    return Path(main(["fit", f"--config={config}", *limits, *quiet]).trainer.log_dir)


@pytest.fixture
def browser(tmp_path) -> Iterator:
    """A browser with a profile of its own, whose console is kept."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("no chromium and chromedriver on this machine (Debian: apt-get install chromium chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (extra: test)")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "disable-dev-shm-usage",
        "disable-quic",
        "no-first-run",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        "window-size=1280,1600",
        f"user-data-dir={tmp_path / 'profile'}",
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=DRIVER))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


def console_errors(driver) -> list[str]:
    """Errors in the console since the last call."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]

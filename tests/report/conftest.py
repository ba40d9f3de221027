"""Share one browser among the tests of pages."""

from __future__ import annotations

import pytest

from tests.report import browser


@pytest.fixture(scope="session")
def page(tmp_path_factory):
    """A browser; `page.open(path)` opens a page in it."""
    if browser.CHROMIUM is None:
        pytest.skip("no Chromium; install it with: apt-get install chromium")
    with browser.browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened

"""What the browser's support says where there is no browser."""

from __future__ import annotations

import pytest

from tests.support.browser import BrowserNotFound, programs


def test_a_missing_browser_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BrowserNotFound, match="apt-get install --no-install-recommends chromium chromium-driver"):
        programs()

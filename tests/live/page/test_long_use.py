"""Ten minutes of use in fast motion; `benchmarks/long_use.py` does eight hours."""

from dataclasses import asdict

import pytest
from page_use import LongUse, is_faultless

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_ten_minutes_of_use_lose_nothing_keep_nothing_private_and_do_not_grow(browser, tmp_path):
    use = LongUse(tmp_path, browser, speed=40)
    try:
        use.run(hours=1 / 6, n_measures=2)
        result = use.finish()
    finally:
        use.server.kill()
    assert is_faultless(result), result
    counts = result["counts"]
    assert counts["sentences"] > 200
    # Each was done: see KINDS.
    done = {name: counts[name] for name in ("corrections", "ratings", "turns", "private_turns")}
    assert all(done.values()), counts
    assert min(counts["private"], counts["deleted"], counts["reloads"]) > 0
    early, late = (asdict(each) for each in use.memory)
    assert late["server_mb"] - early["server_mb"] < 8
    for name, page in late["pages"].items():
        assert page["heap_mb"] - early["pages"][name]["heap_mb"] < 0.7, name
        assert page["nodes"] - early["pages"][name]["nodes"] < 500, name

"""The drift report that the page's server makes of its usage log."""

import asyncio
import json
import sys
from datetime import UTC, datetime

import pytest
from day_layers import DISTANCES, OLD, learnt_of_three_days, write_chain, write_model
from drift_log import write_log
from serving import HTTP, TOKEN, make_session, serving

from cortext.cli import run
from cortext_live.core.log_writer import LogWriter
from cortext_live.page import drift
from cortext_live.page.drift import DriftReports
from cortext_live.usage.log import LOG
from cortext_live.usage.writer import UsageLog

AUTHORISED = {"Authorization": f"Bearer {TOKEN}"}
PATIENCE_S = 300.0
"""As the server has: the report is computed only where a core is idle."""


def ask(served, headers=AUTHORISED):
    return HTTP.get(served.url("/api/drift"), headers=headers, timeout=PATIENCE_S)


@pytest.fixture
def log(tmp_path):
    return write_log(tmp_path / "log", confidence=0.8)


@pytest.mark.slow
def test_answers_what_the_command_prints_and_again_when_the_log_has_grown(page_root, log, capsys):
    run(["report", "drift", str(log), "--json"])
    printed = json.loads(capsys.readouterr().out)
    with serving(make_session(page_root, log_writer=LogWriter(UsageLog(log)))) as served:
        assert ask(served).json() == printed
        when = datetime(2026, 1, 6, 10, tzinfo=UTC).isoformat()
        said = {"id": "x", "when": when, "session": "t15.2026.01.06"}
        with (log / LOG).open("a") as file:
            file.write(json.dumps(said | {"duration_s": 2.0, "text": "good morning"}) + "\n")
        assert len(ask(served).json()["days"]) == len(printed["days"]) + 1


@pytest.mark.slow
def test_answers_the_distances_of_day_layers_of_the_chain(page_root, log, tmp_path):
    session = make_session(page_root, log_writer=LogWriter(UsageLog(log)))
    session.chain = write_chain(tmp_path / "chain", learnt_of_three_days)
    with serving(session) as served:
        days = ask(served).json()["days"]
    assert [day["day_layer_distance"] for day in days] == DISTANCES


def test_day_layers_are_those_of_the_chain_or_until_there_is_one_of_the_run(
    log, tmp_path, monkeypatch
):
    program = "import json, sys; print(json.dumps(sys.argv[6:]))"  # after LOG --json --skip-bad
    monkeypatch.setattr(drift, "COMMAND", (sys.executable, "-c", program))
    run, bare = write_model(tmp_path / "run", OLD), tmp_path / "bare"
    write_model(bare, OLD, day_layer="none")
    chain = tmp_path / "chain"
    reports = DriftReports(log, run, chain)

    def options(reports):
        return asyncio.run(reports.report())

    assert options(reports) == ["--run", str(run)]
    write_chain(chain, learnt_of_three_days)
    assert options(reports) == ["--chain", str(chain)]
    assert options(DriftReports(log, bare)) == options(DriftReports(log)) == []


def test_needs_the_token_and_a_log(page_root, log):
    with serving(make_session(page_root, log_writer=LogWriter(UsageLog(log)))) as served:
        assert ask(served, {}).status_code == 401
    with serving(make_session(page_root)) as served:
        answer = ask(served)
    assert answer.status_code == 409
    assert "--session-log" in answer.json()["error"]


@pytest.mark.slow
def test_log_without_a_sentence_is_one_line(page_root, tmp_path):
    log_writer = LogWriter(UsageLog(tmp_path / "empty"))
    with serving(make_session(page_root, log_writer=log_writer)) as served:
        answer = ask(served)
    assert answer.status_code == 409
    assert "the log has no utterance" in answer.json()["error"]
    assert "\n" not in answer.json()["error"]

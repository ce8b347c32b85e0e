"""The drift report that the page's server makes of its usage log."""

import json
from datetime import UTC, datetime

import pytest
from drift_log import write_log
from serving import HTTP, TOKEN, make_session, serving

from cortext.cli import run
from cortext.live.core.log_writer import LogWriter
from cortext.usage.log import LOG
from cortext.usage.writer import UsageLog

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

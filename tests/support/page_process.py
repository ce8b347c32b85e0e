"""The real server with a model that hears perfectly, for tests of the page.

`python page_process.py DIR [options]`.

Its recordings spell phonemes: feature v is high while token v is said. So what is decoded is known
by hand: trial 0 reads "I see you" and says it, trial 1 reads "I see you" but says "I see me". "see"
and "sea" sound alike.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from opinion import Opinion
from speech_gate import speech_gate

from cortext.data import make_trial, write_session
from cortext.data.conventions import RELEASE_CONVENTIONS
from cortext.data.packed import open_data
from cortext.decoding import Decoder
from cortext.decoding.ngram import LanguageModel
from cortext.models.card import Conventional, Smoothing
from cortext.text.inventory import RELEASE
from cortext_live.core.log_writer import LogWriter
from cortext_live.core.speech import Speech
from cortext_live.page.access.rules import Access
from cortext_live.page.access.tls import load_tls
from cortext_live.page.day_pipeline import DayPipeline
from cortext_live.page.decoding_thread import DecodingThread
from cortext_live.page.server import listen, run_server
from cortext_live.page.sources import Replay
from cortext_live.usage.writer import UsageLog

DAYS = ("t15.2023.08.11", "t15.2023.08.13")
N_FEATURES = 48
SENTENCES = ("i see you", "you see me", "i see me", "we see you", "you and me")
SAID = {"i": "AY", "see": "S IY", "you": "Y UW", "me": "M IY", "and": "AH N D"}
TRIALS = (("I see you!", "i see you"), ("I see you.", "i see me"), ("You and me.", "you and me"))


class Hearing(Conventional):
    """A stepper whose logits are the features of the first bins of a patch.

    With patches of 4 bins it fills the last one with zeros.
    """

    def __init__(self, session: str, patch_size: int = 14) -> None:
        self.sessions, self.n_features, self.patch_stride = DAYS, N_FEATURES, 4
        self.patch_size, self.pads_last_patch = patch_size, patch_size == 4
        self.smoothing, self.conventions = Smoothing(smooth_data=False), RELEASE_CONVENTIONS
        self.use(session)

    def use(self, session: str) -> None:
        self.session = self.sessions[-1] if session == "latest" else session

    def start(self) -> None:
        pass

    def prepare(self, bins_KC: np.ndarray) -> None:
        pass

    def step(self, bins_SC: np.ndarray) -> np.ndarray:
        return 4 * bins_SC[: self.patch_stride, : len(self.inventory)].mean(axis=0)


def spoken(sentence: str, rng: np.random.Generator) -> np.ndarray:
    """Features [T, C]: each phoneme for two frames, then a blank one.

    Silence after words; 14 bins for the last.
    """
    tokens = [token for word in sentence.split() for token in (*SAID[word].split(), "SIL")]
    ids = np.repeat(
        [row for token in tokens for row in (RELEASE.index[token],) * 2 + (RELEASE.blank,)], 4
    )
    x_TC = 0.3 * rng.normal(size=(len(ids) + 14, N_FEATURES))
    x_TC[np.arange(len(ids)), ids] += 3
    x_TC[len(ids) :, RELEASE.blank] += 3
    return x_TC.astype(np.float32)


def prepare(root: Path) -> None:
    """Recordings and a language model, once."""
    rng = np.random.default_rng(0)
    for day in DAYS:
        for split in ("train", "val"):
            trials = [
                make_trial(spoken(said, rng), day, 1, n, read)
                for n, (read, said) in enumerate(TRIALS)
            ]
            write_session(root / "data" / day / f"data_{split}.hdf5", trials)
    open_data(root / "data")
    (root / "lm.txt").write_text(
        "".join(f"{sentence}\n" for sentence in SENTENCES * 3) + "the sea\n"
    )
    LanguageModel.build([root / "lm.txt"], 2, root / "lm")


def program(root: Path, *options: str) -> list[str]:
    """The command that runs this server as a process."""
    return [sys.executable, __file__, str(root), *options]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--speed", type=float, default=4.0)
    parser.add_argument("--loop", action="store_true")
    parser.add_argument("--open-view", action="store_true")
    parser.add_argument("--feed", action="store_true")
    parser.add_argument("--gate", action="store_true")
    parser.add_argument("--no-log", action="store_true")
    parser.add_argument("--chain", type=Path, help="chain whose day layers the drift report reads")
    parser.add_argument("--tls", type=Path, nargs=2)
    parser.add_argument("--voice")
    parser.add_argument(
        "--opinion", action="store_true", help="a large model that fails where the context says so"
    )
    asked = parser.parse_args()
    if not (asked.root / "lm").exists():
        prepare(asked.root)
    log_writer = None if asked.no_log else LogWriter(UsageLog(asked.root / "log"))
    decoder = Decoder.from_dir(asked.root / "lm")
    days = DayPipeline(
        Hearing("latest"),
        decoder.with_llm(Opinion(i_sea_you=0.0)) if asked.opinion else decoder,
        gate=speech_gate() if asked.gate else None,
    )
    source = None if asked.feed else Replay(asked.root / "data", loop=asked.loop)
    about = {
        "version": "0",
        "run": "a run",
        "lm": "a language model",
        "llm": "an opinion" if asked.opinion else None,
    }
    with listen("127.0.0.1", asked.port) as listener:
        session = DecodingThread(
            days, source, speed=asked.speed, log_writer=log_writer, about=about
        )
        session.chain = asked.chain
        if asked.voice is not None:
            speech = Speech(asked.voice)
            speech.wait()
            session.use_voice(speech)
        print(listener.getsockname()[1], flush=True)
        outside = f"https://127.0.0.1:{listener.getsockname()[1]}" if asked.tls else None
        access = Access(
            "secret", "127.0.0.1", asked.open_view, outside=outside, is_tls=bool(asked.tls)
        )
        run_server(session, access, listener, load_tls(*asked.tls) if asked.tls else None)


if __name__ == "__main__":
    main()

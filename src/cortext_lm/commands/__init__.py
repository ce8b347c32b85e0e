"""The commands of `cortext_lm`, which join those of cortext."""

from __future__ import annotations

from cortext.cli.tree import Group, Headings

COMMANDS: Headings = {
    "Language models": {
        "finetune-llm": "cortext.cli.lm.finetune",
        "lm": Group(
            "",
            {"train-neural": "cortext.cli.lm.train", "compare": "cortext.cli.lm.compare"},
        ),
    },
    "Decoding": {"ensemble": "cortext_lm.commands.ensemble.ensemble"},
}

"""The commands of `cortext_lm`, which join those of cortext."""

from __future__ import annotations

from cortext.cli.tree import Group, Headings

COMMANDS: Headings = {
    "Language models": {
        "finetune-llm": "cortext_lm.commands.neural.finetune",
        "lm": Group(
            "",
            {
                "import": "cortext_lm.commands.kaldi.import_folder",
                "train-neural": "cortext_lm.commands.neural.train",
                "compare": "cortext_lm.commands.neural.compare",
            },
        ),
    },
    "Decoding": {"ensemble": "cortext_lm.commands.ensemble.ensemble"},
}

"""The commands of `cortext_tune`, which join those of cortext."""

from __future__ import annotations

from cortext.cli.tree import Group, Headings

COMMANDS: Headings = {
    "Training": {
        "launch": "cortext_tune.commands.launch.launch",
        "tune": Group(
            "Search for good settings of the training or of the decoder.",
            {
                "training": "cortext_tune.commands.tune.training",
                "decoder": "cortext_tune.commands.tune_decoder.decoder",
            },
        ),
    },
}

"""The commands of `cortext_published`, which join those of cortext."""

from __future__ import annotations

from cortext.cli.tree import Group, Headings

COMMANDS: Headings = {
    "Data": {
        "fetch": "cortext_published.commands.fetch.fetch",
        "import": Group(
            "",
            {
                "checkpoint": "cortext_published.commands.exchange.import_checkpoint",
                "t15-analyses": "cortext_published.commands.release.import_analyses",
            },
        ),
        "verify": Group(
            "Compare published data on this machine with what is published about them.",
            {
                "t15": "cortext_published.commands.verify.t15",
                "t12": "cortext_published.commands.verify.t12",
            },
        ),
    },
    "Training": {"export": "cortext_published.commands.exchange.export"},
    "Live": {
        "report": Group("", {"release": "cortext_published.commands.release.report"}),
    },
}

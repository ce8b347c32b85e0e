"""The commands of `cortext_live`, which join those of cortext."""

from __future__ import annotations

from cortext.cli.tree import Group, Headings

COMMANDS: Headings = {
    "Training": {
        "adapt": "cortext_live.commands.adapt.adapt",
        "fit-gate": "cortext_live.commands.gate.fit_gate",
        "recalibrate": "cortext_live.commands.recalibrate.recalibrate",
        "chain": Group(
            "Look at the models that `recalibrate` made, and go back to one.",
            {
                "show": "cortext_live.commands.recalibrate.show",
                "verify": "cortext_live.commands.recalibrate.verify",
                "rollback": "cortext_live.commands.recalibrate.rollback",
            },
        ),
    },
    "Language models": {
        "lm": Group("", {"train-case": "cortext_live.commands.casing.train_case"}),
    },
    "Live": {
        "serve": "cortext_live.commands.live.serve",
        "lm-server": "cortext_live.commands.redis_streams.lm_server",
        "brand-node": "cortext_live.commands.redis_streams.brand_node",
        "replay": "cortext_live.commands.redis_streams.replay",
        "report": Group(
            "Draw what was recorded in daily use, or published.",
            {
                "use": "cortext_live.commands.live.use",
                "drift": "cortext_live.commands.drift.drift",
            },
        ),
        "log": Group(
            "Export the conversation of a usage log, and delete from it.",
            {
                "export": "cortext_live.commands.usage_log.export",
                "delete": "cortext_live.commands.usage_log.delete",
            },
        ),
    },
}

"""The commands of `cortext_checks`, which join those of cortext."""

from __future__ import annotations

from cortext.cli.tree import Headings

COMMANDS: Headings = {
    "Training": {"check-plugin": "cortext_checks.commands.check_plugin.check_plugin"},
}

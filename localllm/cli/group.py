"""A group of commands, as our help lists them and our errors name them."""

import click
from typer.core import TyperGroup

_WHOLE = 1000  # characters: no sentence is cut


class Commands(TyperGroup):
    """Tells the whole first sentence of each command, which click cuts to a line; and a near name once, not twice."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A row for each command, folded where it is long."""
        commands = [self.commands[name] for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(c.name or "", c.get_short_help_str(_WHOLE)) for c in commands if not c.hidden])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. Raises click.UsageError."""
        self.suggest_commands = not hasattr(click.exceptions, "NoSuchCommand")  # which suggests by itself
        return super().resolve_command(ctx, args)

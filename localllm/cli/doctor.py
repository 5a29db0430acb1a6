"""``localllm doctor``: what localllm stands on, and what to do where something is wrong."""

import sys
from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import Annotated

import typer

from localllm.cancel import Cancel
from localllm.cli import options
from localllm.cli.ceiling import tell_progress
from localllm.cli.models import Json
from localllm.cli.signals import cancelling

app = typer.Typer(rich_markup_mode=None)


@app.command()  # without settings: what is wrong with them must be told
def doctor(
    measure: Annotated[
        bool, typer.Option("--measure", help="Also measure how fast the default model runs here (half a minute).")
    ] = False,
    as_json: Json = False,
    color: options.Color = "auto",
) -> int:
    """Check llama.cpp, the machine, models, caches, network and terminal; say what to do about what is wrong.

    Exit code 1 where there is a problem; warnings are none.
    """
    from localllm.doctor import models
    from localllm.doctor.checks import findings
    from localllm.doctor.finding import examine
    from localllm.terminal import doctor_view
    from localllm.terminal.render import wants_color

    cancel, found = Cancel(), []
    speed = partial(models.measured_speed, cancel, tell_progress) if measure else models.speed
    with cancelling(cancel) if measure else nullcontext():  # a model that runs must be asked to stop
        for finding in chain(examine("terminal", doctor_view.terminal), findings(speed)):
            cancel.check()
            found.append(finding)
            if not as_json:
                sys.stdout.write(doctor_view.line(finding, wants_color(color)) + "\n")
                sys.stdout.flush()
    sys.stdout.write((doctor_view.as_json(found) if as_json else doctor_view.summary(found)) + "\n")
    return 1 if any(finding.status == "problem" for finding in found) else 0

"""The `cotune` command; one module per subcommand."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence

from cotune import __version__
from cotune.cli import doctor, show, simulate
from cotune.errors import CotuneError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status, 2 for an error, which is on stderr with a hint."""
    parser = argparse.ArgumentParser(prog="cotune", description="Hyperparameter tuning that packs trials onto devices.")
    parser.add_argument("--version", action="version", version=f"cotune {__version__}")
    parser.set_defaults(run_command=lambda options: print(parser.format_help(), end=""))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    doctor.add_to(commands)
    show.add_to(commands)
    simulate.add_to(commands)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show a character shows another.
        sys.stdout.reconfigure(errors="replace")
    try:
        options = parser.parse_args(arguments)
        code: int | None = options.run_command(options)
    except CotuneError as error:
        print(f"cotune: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of the output has closed it.
        sys.stderr.close()
        return 1
    except OSError as error:
        print(f"cotune: {error}", file=sys.stderr)
        return 2
    return code or 0

"""`python -m cotune`: the same as the `cotune` command."""

import sys

from cotune.cli import main

sys.exit(main())

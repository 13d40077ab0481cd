"""The driver, in the process that called `cotune.run`: its loop, and what it expects of trials before they run."""

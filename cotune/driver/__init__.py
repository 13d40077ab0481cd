"""What the process that called `cotune.run` does while trials run: the loop, and what it knows of trials beforehand."""

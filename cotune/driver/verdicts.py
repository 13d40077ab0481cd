"""Which attempts of trials wait for the verdict on a report, and which are to be given one."""

from __future__ import annotations


class Verdicts:
    """The verdicts that are due, one for each report, since a lane adds them up."""

    def __init__(self) -> None:
        self._due: list[tuple[int, int]] = []
        # Attempts whose last report is with the search, and whether they wait for its verdict.
        self._with_search: dict[tuple[int, int], bool] = {}

    @property
    def are_to_come(self) -> bool:
        """Whether the search has yet to judge a report, be the trial waiting or not."""
        return bool(self._with_search)

    def ask(self, trial: int, attempt: int) -> None:
        """A report goes to the search."""
        self._with_search[trial, attempt] = True

    def answered(self, trial: int, attempt: int) -> None:
        """The search has judged the report."""
        self.give_early(trial, attempt)
        self._with_search.pop((trial, attempt), None)

    def give_early(self, trial: int, attempt: int) -> None:
        """Gives an attempt the verdict on its report that is with the search, unless it has it."""
        if self._with_search.get((trial, attempt)):
            self._with_search[trial, attempt] = False
            self._due.append((trial, attempt))

    def give(self, trial: int, attempt: int) -> None:
        """Gives an attempt the verdict on a report that nobody judges."""
        self._due.append((trial, attempt))

    def take(self) -> list[tuple[int, int]]:
        """The verdicts that are due, trial and attempt; once."""
        due, self._due = self._due, []
        return due

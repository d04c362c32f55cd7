"""Tell people who are not engineers what a run proved: the page, the comparison of runs, the registry entry."""

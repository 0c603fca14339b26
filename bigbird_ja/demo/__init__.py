"""Demo of the main commands on a small generated corpus, with a kill and a resume."""

"""Demo of every command on a small generated corpus, with a kill and a resume."""

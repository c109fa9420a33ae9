"""Jobs: thin, each one function from settings to a run."""

"""Jobs, each a thin function from settings to a run."""

"""A deterministic simulator that runs `hanse.protocol` unchanged, with faults, to ten thousand brokers."""

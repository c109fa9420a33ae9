"""Experiments: environments, peers for comparison, and the runs that compare them."""

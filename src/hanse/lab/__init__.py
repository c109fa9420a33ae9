"""Experiments: environments, peers to compare with, and the runs that compare them."""

"""Everything a client meets before a broker does: listeners, headers, limits, and CONNECT."""

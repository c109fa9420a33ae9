"""The gateway's side of a client before any broker: listeners, headers, limits, and CONNECT."""

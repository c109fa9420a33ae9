"""Hanse: a self-managed federation of MQTT brokers."""

__version__ = "0.1.0"

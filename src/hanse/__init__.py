"""Hanse: a self-managed federation of MQTT brokers."""

from pathlib import Path

from hanse import compiled

__version__ = "0.1.0"

is_compiled = compiled.choose(Path(__file__).parent)

"""Retained state of a federation as a pure state machine: versions, the book, looks, fetches and deletions."""

from hanse.protocol.retained.keeper import Keeper
from hanse.protocol.retained.settings import RetainedSettings
from hanse.protocol.retained.versions import HybridClock, Version

__all__ = ["HybridClock", "Keeper", "RetainedSettings", "Version"]

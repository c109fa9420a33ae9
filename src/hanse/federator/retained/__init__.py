"""Retained state of one federator: the keeper of `hanse.protocol.retained` at a real host broker."""

from hanse.federator.retained.book_file import BookFile
from hanse.federator.retained.keeping import TOPIC, RetainedState

__all__ = ["TOPIC", "BookFile", "RetainedState"]
